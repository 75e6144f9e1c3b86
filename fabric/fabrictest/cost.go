package fabrictest

import (
	"runtime"
	"testing"
	"time"

	"github.com/rpcrdma/rpcrdma/fabric"
)

func costChecks() []check {
	return []check{
		{"SendAllocatesNothing", func(s *scene) { allocatesNothing(s, sendTurn) }},
		{"WriteAllocatesNothing", func(s *scene) { allocatesNothing(s, writeTurn) }},
		{"ReadAllocatesNothing", func(s *scene) { allocatesNothing(s, readTurn) }},
		{"WindowAllocatesNothing", func(s *scene) { allocatesNothing(s, windowTurn) }},
		{"WaitAllocatesNothing", waitAllocatesNothing},
	}
}

// A turn is one round of steady state. Its requests are prepared in advance, so that only the provider allocates.
type turn struct {
	recv []fabric.RecvWR // posted by the server
	post []fabric.SendWR // then posted by the client
	want int             // total completions at both ends
	each func() error    // called first, if not nil
}

// allocatesNothing: in steady state requests do not allocate.
func allocatesNothing(s *scene, prepare func(s *scene, client, server *Endpoint) turn) {
	s.skipWithRace()
	client, server := s.pair(stage{idle: true})
	t := prepare(s, client, server)
	ends := []fabric.Conn{client.Conn, server.Conn}
	var wc [8]fabric.WC
	late := time.Now().Add(max(s.cfg.Timeout, time.Minute))
	var failed error
	var status fabric.WCStatus
	run := func() {
		if failed != nil || status != fabric.WCSuccess {
			return
		}
		if t.each != nil {
			if failed = t.each(); failed != nil {
				return
			}
		}
		if len(t.recv) > 0 {
			if failed = server.Conn.PostRecv(t.recv); failed != nil {
				return
			}
		}
		if failed = client.Conn.Post(t.post); failed != nil {
			return
		}
		for left := t.want; left > 0; {
			moved := 0
			for _, c := range ends {
				n, err := c.Poll(wc[:])
				if err != nil {
					failed = err
					return
				}
				for i := range wc[:n] {
					if wc[i].Status != fabric.WCSuccess {
						status = wc[i].Status
						return
					}
				}
				moved += n
			}
			if left -= moved; moved == 0 {
				if time.Now().After(late) {
					failed = errLate
					return
				}
				runtime.Gosched()
			}
		}
	}
	for range 300 { // until queues and pools have reached their final sizes
		run()
	}
	allocs := testing.AllocsPerRun(repeat(1000), run)
	if failed != nil || status != fabric.WCSuccess {
		s.Fatalf("a round of steady state: %v, %v", failed, status)
	}
	if allocs != 0 {
		s.Errorf("a round of steady state allocates %v times", allocs)
	}
}

type lateError struct{}

func (lateError) Error() string { return "no progress" }

var errLate error = lateError{}

// skipWithRace skips checks of allocations under the race detector, because its runtime allocates.
func (s *scene) skipWithRace() {
	s.Helper()
	if raceEnabled {
		s.Skip("the race detector allocates")
	}
}

func sendTurn(s *scene, client, server *Endpoint) turn {
	return turn{
		recv: []fabric.RecvWR{{ID: 1, SGE: SGE(server.Region(256, fabric.AccessLocalWrite), 0, 256)}},
		post: []fabric.SendWR{{ID: 2, Op: fabric.OpSend, Flags: fabric.Signaled, SGL: []fabric.SGE{SGE(client.Region(200, 0), 0, 200)}}},
		want: 2,
	}
}

// writeTurn is like a server's reply: unsignaled Writes followed by a Send.
func writeTurn(s *scene, client, server *Endpoint) turn {
	t := sendTurn(s, client, server)
	sink := server.Region(1<<16, writable).Segment()
	out := client.Region(1<<16, 0)
	small, large := put(3, sink, 0, SGE(out, 0, 100)), put(4, sink, 100, SGE(out, 100, 60000))
	small.Flags, large.Flags = 0, 0
	t.post = append([]fabric.SendWR{small, large}, t.post...)
	return t
}

func readTurn(s *scene, client, server *Endpoint) turn {
	src := server.Region(1<<16, readable).Segment()
	in := client.Region(1<<16, fabric.AccessLocalWrite)
	return turn{
		post: []fabric.SendWR{get(1, src, 0, SGE(in, 0, 100)), get(2, src, 100, SGE(in, 100, 60000))},
		want: 2,
	}
}

// windowTurn is like a client's call: a bind, the Send, and the invalidation, which a client posts only later.
func windowTurn(s *scene, client, server *Endpoint) turn {
	s.needWindows(client)
	t := sendTurn(s, client, server)
	mw := client.Window()
	mem := SGE(client.Region(4096, fabric.AccessLocalWrite), 0, 4096)
	bind, inv := bindWR(3, mw), localInvWR(4, 0)
	bind.Flags = 0
	t.post = []fabric.SendWR{bind, t.post[0], inv}
	t.want = 3
	t.each = func() error {
		seg, err := mw.Prepare(mem, openWrite)
		t.post[2].RKey = seg.Handle
		return err
	}
	return t
}

// waitAllocatesNothing: Wait does not allocate while the peer answers.
func waitAllocatesNothing(s *scene) {
	s.skipWithRace()
	client, server := s.pair(stage{idle: true})
	ask, answer := sendTurn(s, client, server), sendTurn(s, server, client)
	answer.post[0].Flags = 0
	answer.post = append(answer.post, put(3, client.Region(8, writable).Segment(), 0))
	if err := server.Conn.PostRecv(ask.recv); err != nil {
		s.Fatalf("post a receive: %v", err)
	}
	// wait waits for n completions.
	wait := func(c fabric.Conn, wc []fabric.WC, n int) error {
		for n > 0 {
			got, err := c.Poll(wc[:n])
			if err != nil {
				return err
			}
			if n -= got; got == 0 {
				if err := c.Wait(); err != nil {
					return err
				}
			}
		}
		return nil
	}
	answered := later(func() error {
		var wc [2]fabric.WC
		for {
			if err := wait(server.Conn, wc[:], 1); err != nil {
				return err
			}
			if wc[0].Op != fabric.WCRecv {
				continue // the Send of an answer
			}
			if err := server.Conn.PostRecv(ask.recv); err != nil {
				return err
			}
			if err := server.Conn.Post(answer.post); err != nil {
				return err
			}
		}
	})
	var failed error
	var wc [2]fabric.WC
	run := func() {
		if failed == nil {
			failed = client.Conn.PostRecv(answer.recv)
		}
		if failed == nil {
			failed = client.Conn.Post(ask.post)
		}
		if failed == nil {
			failed = wait(client.Conn, wc[:], 2)
		}
	}
	var allocs float64
	if !returns(s.bulkTime(), func() {
		for range 300 {
			run()
		}
		allocs = testing.AllocsPerRun(repeat(1000), run)
	}) {
		s.Fatal("a conversation in steady state is stuck")
	}
	client.Close()
	if err := s.result("Wait at the end", answered); failed != nil || err == nil {
		s.Fatalf("a conversation in steady state: %v, %v", failed, err)
	}
	if allocs != 0 {
		s.Errorf("a round of steady state with Wait allocates %v times", allocs)
	}
}
