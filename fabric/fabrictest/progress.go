package fabrictest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"time"

	"github.com/rpcrdma/rpcrdma/fabric"
)

func progressChecks() []check {
	return []check{
		{"WritesBothWays", func(s *scene) { bothWays(s, fabric.OpWrite, false) }},
		{"WritesBothWaysOneGoroutine", func(s *scene) { bothWays(s, fabric.OpWrite, true) }},
		{"ReadsBothWays", func(s *scene) { bothWays(s, fabric.OpRead, false) }},
		{"ReadsBothWaysOneGoroutine", func(s *scene) { bothWays(s, fabric.OpRead, true) }},
		{"SendsBothWaysOneGoroutine", sendsBothWays},
		{"BurstsBothWays", burstsBothWays},
		{"PostDoesNotWait", postDoesNotWait},
		{"PollDoesNotWait", pollDoesNotWait},
		{"PollTakesWhatFits", pollTakesWhatFits},
		{"WaitForMessage", waitForMessage},
		{"WaitForCompletion", waitForCompletion},
		{"WaitWhileThereIsSomething", waitWhileThereIsSomething},
		{"WakeDuringWait", wakeDuringWait},
		{"WakeBeforeWait", wakeBeforeWait},
		{"WakeWakesOnce", wakeWakesOnce},
		{"WaitContext", waitContext},
		{"WaitSeesEnd", waitSeesEnd},
	}
}

// postInTime posts requests and expects Post not to block.
func (s *scene) postInTime(e *Endpoint, wrs ...fabric.SendWR) {
	s.Helper()
	if err := s.result("Post", later(func() error { return e.TryPost(wrs...) })); err != nil {
		s.Fatalf("%s: post: %v", e.Name, err)
	}
}

// turns drives several ends on one goroutine until done returns true.
func (s *scene) turns(what string, done func() bool, ends ...*Endpoint) {
	s.Helper()
	d := s.bulkTime()
	late := time.Now().Add(d)
	ok := returns(2*d, func() {
		for !done() {
			moved := 0
			for _, e := range ends {
				n, err := e.Step()
				if err != nil {
					return
				}
				moved += n
			}
			if moved == 0 {
				if time.Now().After(late) {
					return
				}
				runtime.Gosched()
			}
		}
	})
	if !ok {
		s.Fatalf("%s: Poll has not returned after %v", what, 2*d)
	}
	if !done() {
		for _, e := range ends {
			e.mu.Lock()
			s.Errorf("%s: %s: %s", e.Name, what, e.state())
			e.mu.Unlock()
		}
		s.FailNow()
	}
}

// bulkTime is the timeout of bulk transfers.
func (s *scene) bulkTime() time.Duration {
	if s.cfg.Timeout < defaultTimeout {
		return s.cfg.Timeout
	}
	return 3 * s.cfg.Timeout
}

// bothWays: two ends that transfer in both directions at full speed do not deadlock. If one goroutine drives both ends,
// no call may wait for the peer.
func bothWays(s *scene, op fabric.Opcode, alone bool) {
	const size = 1 << 20
	n := max(s.cfg.Bulk/size, 1)
	a := fabric.ConnAttr{SendDepth: n + 1, RecvDepth: 16, InboundReads: 8, OutboundReads: 8}
	l := s.listen(a)
	client, server := s.pairAt(l, stage{client: a, server: a, idle: alone})
	ends := []*Endpoint{client, server}
	var exposed, local [2]fabric.MR
	for i, e := range ends {
		e.Timeout = s.bulkTime()
		exposed[i] = e.Region(size, openBoth|fabric.AccessLocalWrite)
		local[i] = e.Region(size, fabric.AccessLocalWrite)
		src := local[i]
		if op == fabric.OpRead {
			src = exposed[i]
		}
		Fill(src.Bytes(), uint64(60+i))
	}
	for i, e := range ends {
		wrs := make([]fabric.SendWR, n)
		for id := range wrs {
			wrs[id] = put(uint64(id), exposed[1-i].Segment(), 0, SGE(local[i], 0, size))
			wrs[id].Op = op
		}
		s.postInTime(e, wrs...)
	}
	if alone {
		s.turns("moving "+describe(op)+" both ways", func() bool {
			return len(client.sent) == n && len(server.sent) == n
		}, client, server)
	}
	for _, e := range ends {
		for id := range n {
			e.WantSent(describe(op), uint64(id))
		}
	}
	if alone {
		client.Start()
		server.Start()
	}
	s.exchange("at the end", client, server)
	for i, e := range ends {
		dst, seed := exposed[i], uint64(60+1-i)
		if op == fabric.OpRead {
			dst = local[i]
		}
		if !bytes.Equal(dst.Bytes(), Pattern(size, seed)) {
			s.Errorf("%s: memory is not what the peer has", e.Name)
		}
	}
}

// sendsBothWays: two ends that send in both directions at full speed do not deadlock. Sends also need receives at the
// peer.
func sendsBothWays(s *scene) {
	const n, size = 100, 1 << 16
	client, server := s.pair(stage{idle: true})
	ends := []*Endpoint{client, server}
	for _, e := range ends {
		e.Receives(n, size)
	}
	for i, e := range ends {
		var wrs []fabric.SendWR
		for m := range n {
			wrs = append(wrs, e.Message(Pattern(size, uint64(2*m+i))))
		}
		s.postInTime(e, wrs...)
	}
	s.turns("moving Sends both ways", func() bool {
		return len(client.sent) == n && len(server.sent) == n && len(client.rcvd) == n && len(server.rcvd) == n
	}, client, server)
	for i, e := range ends {
		for m := range n {
			e.WantMessage("one of many messages", Pattern(size, uint64(2*m+1-i)))
		}
	}
}

// burstsBothWays: a burst that is posted while an earlier burst is in progress is sent completely, even if all buffers
// are full at that moment and nothing is posted afterwards.
func burstsBothWays(s *scene) {
	const n, size = 12, 2 << 20
	client, server := s.pair(stage{})
	ends := []*Endpoint{client, server}
	var put1, get1 [2]fabric.Segment
	var out, in [2]fabric.MR
	for i, e := range ends {
		put1[i] = e.Region(size, writable).Segment()
		get1[i] = e.Region(size, readable).Segment()
		out[i], in[i] = e.Region(size, 0), e.Region(size, fabric.AccessLocalWrite)
	}
	rng := rand.New(rand.NewPCG(5, 6))
	for round := range max(50*s.cfg.Bulk/(n*size), 4) {
		var posted [2][]fabric.SendWR
		for i := range ends {
			for id := range uint64(1 + rng.IntN(n)) {
				wr := get(id, get1[1-i], 0, SGE(in[i], 0, size>>rng.IntN(4)))
				if rng.IntN(3) == 0 {
					wr = put(id, put1[1-i], 0, SGE(out[i], 0, size>>rng.IntN(4)))
				}
				posted[i] = append(posted[i], wr)
			}
		}
		for i, e := range ends {
			e.Post("a burst", posted[i]...)
		}
		for i, e := range ends {
			for id := range posted[i] {
				e.WantSent(fmt.Sprintf("part of burst %d", round), uint64(id))
			}
		}
	}
	s.exchange("after many bursts", client, server)
}

// postDoesNotWait: however much is posted, Post returns even if the peer receives nothing.
func postDoesNotWait(s *scene) {
	const size = 1 << 20
	n := max(s.cfg.Bulk/size, 1)
	a := fabric.ConnAttr{SendDepth: n, RecvDepth: 16, InboundReads: 8, OutboundReads: 8}
	client, server := s.pair(stage{client: a, idle: true})
	out := client.Region(size, fabric.AccessLocalWrite)
	sink := server.Region(size, writable|readable).Segment()
	for id := range n {
		wr := put(uint64(id), sink, 0, SGE(out, 0, size))
		if id%8 == 7 {
			wr.Op = fabric.OpRead
		}
		s.postInTime(client, wr)
	}
	client.Close()
}

// pollDoesNotWait: Poll returns on an idle connection.
func pollDoesNotWait(s *scene) {
	client, server := s.pair(stage{idle: true})
	s.within("Poll", func() error {
		for _, e := range []*Endpoint{client, server} {
			for range 100 {
				if n, err := e.Step(); n != 0 || err != nil {
					return fmt.Errorf("%s: %d completions (%w) on an idle connection", e.Name, n, err)
				}
			}
		}
		return nil
	})
	src := server.Region(1<<20, readable).Segment()
	in := client.Region(1<<20, fabric.AccessLocalWrite)
	client.Post("a Read from a peer that does not move", get(1, src, 0, SGE(in, 0, 1<<20)))
	s.within("Poll", func() error {
		for range 100 {
			if _, err := client.Step(); err != nil {
				return err
			}
		}
		return nil
	})
}

// pollTakesWhatFits: Poll stores up to len(wc) completions and keeps the others.
func pollTakesWhatFits(s *scene) {
	const n = 9
	client, server := s.pair(stage{idle: true})
	server.Receives(n, 8)
	client.Start()
	for i := range byte(n) {
		client.Send("a message", []byte{i})
	}
	s.within("Poll and Wait", func() error {
		var wc [4]fabric.WC
		if got, err := server.Conn.Poll(nil); got != 0 || err != nil {
			return fmt.Errorf("Poll without space returned %d completions (%w)", got, err)
		}
		for seen := 0; seen < n; {
			space := 1 + seen%3
			got, err := server.Conn.Poll(wc[:space])
			if err != nil || got > space {
				return fmt.Errorf("Poll with space for %d returned %d completions (%w)", space, got, err)
			}
			if seen += got; got == 0 {
				if err := server.Conn.Wait(); err != nil {
					return err
				}
			}
		}
		if got, err := server.Conn.Poll(wc[:]); got != 0 || err != nil {
			return fmt.Errorf("%d completions (%w) after the last one", got, err)
		}
		return nil
	})
}

// waitOnce expects Wait to return, and then Poll to return a completion.
func (s *scene) waitOnce(e *Endpoint) {
	s.Helper()
	s.within("Wait", e.Conn.Wait)
	if n, err := e.Step(); n == 0 || err != nil {
		s.Fatalf("%s: Wait returned and Poll has %d completions (%v)", e.Name, n, err)
	}
}

// waitForMessage: Wait returns when a message arrives, and Poll then returns it.
func waitForMessage(s *scene) {
	client, server := s.pair(stage{idle: true})
	client.Start()
	for i := range byte(repeat(100)) {
		server.Receives(1, 8)
		wr := client.Message([]byte{i})
		if i%2 == 0 {
			wr.Flags |= fabric.Solicited
		}
		if i%3 == 0 {
			client.Post("a message", wr)
			s.waitOnce(server)
		} else {
			waiting := later(server.Conn.Wait)
			runtime.Gosched()
			client.Post("a message", wr)
			if err := s.result("Wait", waiting); err != nil {
				s.Fatalf("Wait for a message: %v", err)
			}
			if n, err := server.Step(); n == 0 || err != nil {
				s.Fatalf("Wait returned and Poll has %d completions (%v)", n, err)
			}
		}
		server.WantMessage("what Wait waited for", []byte{i})
		client.WantSent("a message", wr.ID)
	}
}

// waitForCompletion: Wait makes the progress that a request needs to complete, and then
// returns.
func waitForCompletion(s *scene) {
	const n = 8 << 20
	client, server := s.pair(stage{idle: true})
	server.Start()
	sink := server.Region(n, writable|readable).Segment()
	own := client.Region(n, fabric.AccessLocalWrite)
	for id, wr := range []fabric.SendWR{
		put(0, sink, 0, SGE(own, 0, n)),
		get(1, sink, 0, SGE(own, 0, n)),
		put(2, sink, 0, SGE(own, 0, 1)),
	} {
		client.Post("a request", wr)
		s.waitOnce(client)
		client.WantSent("what Wait waited for", uint64(id))
	}
}

// waitWhileThereIsSomething: while there is something to poll, Wait returns at once.
func waitWhileThereIsSomething(s *scene) {
	client, server := s.pair(stage{idle: true})
	client.Start()
	server.Receives(2, 8)
	client.Send("a message", []byte("one"))
	client.Send("a message", []byte("two"))
	for range 5 {
		s.within("Wait with something to poll", server.Conn.Wait)
	}
	var wc [1]fabric.WC
	s.within("Poll and Wait", func() error {
		for seen := 0; seen < 2; {
			n, err := server.Conn.Poll(wc[:])
			if err != nil {
				return err
			}
			if seen += n; n == 0 {
				if err := server.Conn.Wait(); err != nil {
					return err
				}
			}
		}
		return nil
	})
}

// wakeDuringWait: Wake unblocks the current Wait.
func wakeDuringWait(s *scene) {
	client, _ := s.pair(stage{idle: true})
	for range repeat(100) {
		waiting := later(client.Conn.Wait)
		runtime.Gosched()
		client.Conn.Wake()
		if err := s.result("Wait", waiting); err != nil {
			s.Fatalf("Wait that was woken: %v", err)
		}
		if n, err := client.Step(); n != 0 || err != nil {
			s.Fatalf("Poll after Wake: %d, %v", n, err)
		}
	}
}

// wakeBeforeWait: without a current Wait, Wake unblocks the next one.
func wakeBeforeWait(s *scene) {
	client, _ := s.pair(stage{idle: true})
	for range 10 {
		client.Conn.Wake()
		client.Step() // does not count as a Wait
		s.within("Wait after Wake", client.Conn.Wait)
	}
}

// wakeWakesOnce: a Wake unblocks only one Wait.
func wakeWakesOnce(s *scene) {
	client, _ := s.pair(stage{idle: true})
	for range 3 {
		client.Conn.Wake()
		client.Conn.Wake()
		s.within("Wait after Wake", client.Conn.Wait)
	}
	// Two Wakes may unblock two Waits. Of any further Waits, some must block.
	ctx, cancel := context.WithTimeout(s.ctx(), 20*time.Millisecond)
	defer cancel()
	waits := 0
	for ctx.Err() == nil {
		if waits++; waits > 5 {
			s.Fatal("Wait keeps returning, and there is neither a Wake nor anything to poll")
		}
		err := s.result("WaitContext", later(func() error { return fabric.WaitContext(ctx, client.Conn) }))
		if err != nil && !errors.Is(err, context.DeadlineExceeded) {
			s.Fatalf("WaitContext: %v", err)
		}
	}
}

// waitContext: WaitContext ends with its context, unless there is something to poll.
func waitContext(s *scene) {
	client, server := s.pair(stage{idle: true})
	wait := func(ctx context.Context) error {
		return s.result("WaitContext", later(func() error { return fabric.WaitContext(ctx, server.Conn) }))
	}
	ctx, cancel := context.WithTimeout(s.ctx(), 10*time.Millisecond)
	defer cancel()
	if err := wait(ctx); !errors.Is(err, context.DeadlineExceeded) {
		s.Errorf("WaitContext with a deadline: %v", err)
	}
	ctx, cancel = context.WithCancel(s.ctx())
	defer cancel()
	waiting := later(func() error { return fabric.WaitContext(ctx, server.Conn) })
	runtime.Gosched()
	cancel()
	if err := s.result("WaitContext", waiting); !errors.Is(err, context.Canceled) {
		s.Errorf("WaitContext with a context canceled meanwhile: %v", err)
	}
	if err := wait(ctx); !errors.Is(err, context.Canceled) {
		s.Errorf("WaitContext with a context canceled before: %v", err)
	}
	// The connection still works.
	client.Start()
	server.Receives(1, 8)
	client.Send("a message", []byte("there"))
	if err := wait(s.ctx()); err != nil {
		s.Errorf("WaitContext: %v", err)
	}
	s.turns("receiving a message", func() bool { return len(server.rcvd) == 1 }, server)
	server.WantMessage("a message", []byte("there"))
}

// waitSeesEnd: Wait returns the end when Poll does, not before.
func waitSeesEnd(s *scene) {
	client, server := s.pair(stage{idle: true})
	server.Receives(3, 8)
	client.Close()
	flushed := 0
	s.within("Wait until the end", func() error {
		var wc [1]fabric.WC
		for {
			n, err := server.Conn.Poll(wc[:])
			if flushed += n; err != nil {
				return nil
			}
			if n > 0 {
				if wc[0].Status == fabric.WCSuccess {
					return errors.New("a receive has succeeded without a message")
				}
				continue
			}
			if err := server.Conn.Wait(); err != nil {
				if n, perr := server.Conn.Poll(wc[:]); n != 0 || perr == nil {
					return fmt.Errorf("Wait says %w, and Poll %d, %w", err, n, perr)
				}
				return nil
			}
		}
	})
	if flushed != 3 {
		s.Errorf("%d of 3 receives were flushed before the end", flushed)
	}
	s.wantOver("Wait after the end", s.result("Wait", later(server.Conn.Wait)))
}
