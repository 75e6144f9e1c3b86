package fabrictest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"time"

	"github.com/rpcrdma/rpcrdma/fabric"
)

func endChecks() []check {
	return []check{
		{"Disconnect", disconnect},
		{"DisconnectByServer", disconnectByServer},
		{"DisconnectAtBothEnds", disconnectAtBothEnds},
		{"DisconnectDeliversAll", disconnectDeliversAll},
		{"DisconnectGivesUp", disconnectGivesUp},
		{"CloseAtPeerFlushes", closeAtPeerFlushes},
		{"FailureFlushesTheRest", failureFlushesTheRest},
		{"CloseUnderLoad", closeUnderLoad},
		{"CloseUnblocksWait", closeUnblocksWait},
		{"CloseAtOnce", closeAtOnce},
		{"CloseBeforeConnect", closeBeforeConnect},
		{"AfterClose", afterClose},
		{"AfterPeersEnd", afterPeersEnd},
		{"MessagesBeforeEnd", messagesBeforeEnd},
		{"OthersGoOn", othersGoOn},
	}
}

// disconnect: Disconnect is an orderly close. Both ends report an orderly close and which end closed. Outstanding
// receives are flushed at both ends.
func disconnect(s *scene) {
	client, server := s.pair(stage{})
	s.wantDisconnect(client, server)
}

func disconnectByServer(s *scene) {
	client, server := s.pair(stage{})
	s.wantDisconnect(server, client)
}

func (s *scene) wantDisconnect(active, passive *Endpoint) {
	s.Helper()
	s.exchange("before the end", active, passive)
	active.Receives(5, 16)
	passive.Receives(7, 16)
	active.Stop()
	if err := s.result("Disconnect", later(func() error { return active.Conn.Disconnect(s.ctx()) })); err != nil {
		s.Fatalf("%s: Disconnect: %v", active.Name, err)
	}
	active.Start()
	mine := active.WantEnd("after its own Disconnect")
	theirs := passive.WantEnd("after the peer's Disconnect")
	if !mine.Clean || mine.Remote || mine.Cause != nil {
		s.Errorf("the end that disconnected says %v (%+v), want a clean end of its own", mine, *mine)
	}
	if !theirs.Clean || !theirs.Remote || theirs.Cause != nil {
		s.Errorf("the other end says %v (%+v), want a clean end by the peer", theirs, *theirs)
	}
	for e, n := range map[*Endpoint]int{active: 5, passive: 7} {
		for range n {
			if wc, _, err := e.NextRecv(); err != nil || wc.Status != fabric.WCFlushErr {
				s.Errorf("%s: an outstanding receive completed with %v (%v), want %v", e.Name, wc.Status, err, fabric.WCFlushErr)
			}
		}
		if err := e.Conn.Disconnect(s.ctx()); err != nil {
			var ce *fabric.ConnError
			if !errors.As(err, &ce) {
				s.Errorf("%s: Disconnect after the end: %v, want nil or the end", e.Name, err)
			}
		}
	}
}

// disconnectAtBothEnds: both ends may disconnect at the same time.
func disconnectAtBothEnds(s *scene) {
	l := s.listen(attr)
	for range repeat(20) {
		client, server := s.pairAt(l, stage{})
		ends := []*Endpoint{client, server}
		var gone [2]<-chan error
		for _, e := range ends {
			e.Receives(2, 16)
			e.Stop()
		}
		for i, e := range ends {
			gone[i] = later(func() error { return e.Conn.Disconnect(s.ctx()) })
		}
		for i, e := range ends {
			if err := s.result("Disconnect", gone[i]); err != nil {
				s.Fatalf("%s: Disconnect by both at once: %v", e.Name, err)
			}
			e.Start()
			if end := e.WantEnd("after Disconnect by both at once"); !end.Clean {
				s.Errorf("%s: an orderly end by both is reported as %v", e.Name, end)
			}
			e.Close()
		}
	}
}

// disconnectDeliversAll: requests posted before Disconnect arrive before the end.
func disconnectDeliversAll(s *scene) {
	const n, size = 60, 20000
	client, server := s.pair(stage{})
	server.Receives(n+1, size)
	sink := server.Region(1<<20, writable)
	out := client.Region(1<<20, 0)
	Fill(out.Bytes(), 70)
	client.Stop()
	client.Post("a Write", put(1, sink.Segment(), 0, SGE(out, 0, 1<<20)))
	for i := range n {
		wr := client.Message(Pattern(size, uint64(i)))
		if i%2 == 0 {
			wr.Flags = 0
		}
		client.Post("a message", wr)
	}
	if err := s.result("Disconnect", later(func() error { return client.Conn.Disconnect(s.ctx()) })); err != nil {
		s.Fatalf("Disconnect: %v", err)
	}
	for i := range n {
		server.WantMessage("a message posted before Disconnect", Pattern(size, uint64(i)))
	}
	if end := server.WantEnd("after the last message"); !end.Clean || !end.Remote {
		s.Errorf("server: %v (%+v), want a clean end by the peer", end, *end)
	}
	if !bytes.Equal(sink.Bytes(), out.Bytes()) {
		s.Error("a Write posted before Disconnect has not been placed")
	}
	client.Start()
	client.WantEnd("after Disconnect")
	client.WantSent("a Write posted before Disconnect", 1)
	for range n / 2 {
		if wc, err := client.NextSend(); err != nil || wc.Status != fabric.WCSuccess {
			s.Fatalf("a message that has left completed with %v (%v)", wc.Status, err)
		}
	}
}

// disconnectGivesUp: if the peer does not answer, Disconnect returns when its context ends.
func disconnectGivesUp(s *scene) {
	client, _ := s.pair(stage{idle: true})
	client.Receives(2, 8)
	ctx, cancel := context.WithTimeout(s.ctx(), 20*time.Millisecond)
	defer cancel()
	err := s.result("Disconnect", later(func() error { return client.Conn.Disconnect(ctx) }))
	if err != nil && !errors.Is(err, context.DeadlineExceeded) {
		s.Errorf("Disconnect from a peer that does not move: %v", err)
	}
	client.Close()
}

// closeAtPeerFlushes: when the peer has closed, every outstanding request completes once,
// before the end is reported.
func closeAtPeerFlushes(s *scene) {
	client, server := s.pair(stage{})
	client.Receives(20, 16)
	server.Receives(1, 16)
	src := server.Region(1<<20, readable).Segment()
	in := client.Region(1<<20, fabric.AccessLocalWrite)
	server.Stop() // on some adapters the server makes no progress anymore
	var wrs []fabric.SendWR
	for id := range uint64(30) {
		wr := get(id, src, 0, SGE(in, 0, 1<<20))
		if id%3 == 0 {
			wr.Flags = 0
		}
		wrs = append(wrs, wr)
	}
	client.Post("Reads", wrs...)
	server.Close()
	end := client.WantEnd("after the peer's Close")
	if !end.Remote {
		s.Errorf("the peer has closed, and the end is reported as %v", end)
	}
	for range 20 {
		if wc, _, err := client.NextRecv(); err != nil || wc.Status != fabric.WCFlushErr {
			s.Fatalf("an outstanding receive completed with %v (%v), want %v", wc.Status, err, fabric.WCFlushErr)
		}
	}
	for range 5 {
		var wc [1]fabric.WC
		n, err := client.Conn.Poll(wc[:])
		if n != 0 {
			s.Errorf("Poll after the end: %d completions", n)
		}
		s.wantOver("Poll after the end", err)
	}
}

// failureFlushesTheRest: a failed request and all requests after it have a completion, whatever their flags. An
// unsignaled request before it has none.
func failureFlushesTheRest(s *scene) {
	l := s.listen(attr)
	for _, flags := range []fabric.SendFlags{0, fabric.Deferred, fabric.Signaled} {
		client, server := s.pairAt(l, stage{})
		sink := server.Region(64, writable).Segment()
		src := server.Region(64, readable).Segment()
		own := client.Region(64, fabric.AccessLocalWrite)
		wrong := SGE(own, 0, 8)
		wrong.LKey ^= 0x5a5a5a5a
		before := put(1, sink, 0, SGE(own, 0, 8))
		before.Flags = 0
		client.Post("a request that nobody asks for", before)
		s.exchange("after it", client, server)
		list := []fabric.SendWR{get(2, src, 0, wrong)}
		list[0].Flags = flags
		for i, f := range []fabric.SendFlags{0, fabric.Signaled, fabric.Deferred, 0} {
			wr := put(uint64(3+i), sink, 0, SGE(own, 0, 8))
			wr.Flags = f
			list = append(list, wr)
		}
		client.Post("a list with a request that fails", list...)
		client.WantFailed("a request that fails", 2, s.local(fabric.WCLocProtErr)...)
		for _, wr := range list[1:] {
			client.WantFailed("a request behind one that fails", wr.ID, fabric.WCFlushErr)
		}
		client.WantEnd("after a request that failed")
		server.WantEnd("after a request of the peer failed")
		client.Close()
		server.Close()
	}
}

// closeUnderLoad: closing either end of a busy connection at any moment flushes every outstanding request once. The
// accounting of Endpoint detects lost and duplicated completions.
func closeUnderLoad(s *scene) {
	l := s.listen(attr)
	for round := range repeat(40) {
		client, server := s.pairAt(l, stage{})
		ends := []*Endpoint{client, server}
		var wg sync.WaitGroup
		for _, e := range ends {
			e.Receives(60, 256)
		}
		for i, e := range ends {
			sink, src := ends[1-i].Region(1<<16, writable).Segment(), ends[1-i].Region(1<<16, readable).Segment()
			// Each Read has its own memory: a provider may read the memory of a completed Read.
			out, in := e.Region(1<<16, 0), e.Region(60<<12, fabric.AccessLocalWrite)
			wg.Go(func() {
				for id := uint64(0); id < 60; id++ {
					list := []fabric.SendWR{
						put(3*id, sink, 0, SGE(out, 0, 1<<(id%17))),
						get(3*id+1, src, 0, SGE(in, int(id)<<12, 1<<(id%13))),
						{ID: 3*id + 2, Op: fabric.OpSend, Flags: fabric.Signaled, SGL: []fabric.SGE{SGE(out, 0, 200)}},
					}
					if id%2 == 0 {
						list[0].Flags = 0
					}
					err := e.TryPost(list...)
					if errors.Is(err, fabric.ErrQueueFull) {
						runtime.Gosched()
						id-- // retry
						continue
					}
					if err != nil {
						return
					}
				}
			})
		}
		closer, other := ends[round%2], ends[1-round%2]
		for range round % 25 {
			closer.WantRecv("a message under load")
		}
		closer.Close()
		other.WantEnd("after the peer's Close under load")
		closer.WantEnd("after its own Close under load")
		wg.Wait()
		other.Close()
	}
}

// closeUnblocksWait: Close unblocks Wait.
func closeUnblocksWait(s *scene) {
	l := s.listen(attr)
	for range repeat(20) {
		client, server := s.pairAt(l, stage{idle: true})
		waiting := later(client.Conn.Wait)
		runtime.Gosched()
		client.Close()
		s.wantOver("Wait on a Conn that was closed meanwhile", s.result("Wait", waiting))
		server.Close()
	}
}

// closeAtOnce: Close may be called concurrently and more than once.
func closeAtOnce(s *scene) {
	l := s.listen(attr)
	for range repeat(20) {
		client, server := s.pairAt(l, stage{})
		client.Receives(10, 64)
		mr := client.Region(64, writable)
		client.abandon()
		const closers = 8
		closed := make(chan error, closers)
		for range closers {
			go func() { closed <- errors.Join(client.Conn.Close(), mr.Close()) }()
		}
		for range closers {
			if err := s.result("Close by several at once", closed); err != nil {
				s.Errorf("Close by several at once: %v", err)
			}
		}
		server.WantEnd("after the peer's Close")
		client.Close()
		server.Close()
	}
}

// closeBeforeConnect: a Conn that was never connected can be closed.
func closeBeforeConnect(s *scene) {
	l := s.listen(attr)
	c := s.resolve(l)
	e := s.endpoint("client", c)
	e.Region(4096, writable)
	e.Receives(4, 64)
	e.Close()
	s.wantOver("Post after Close", c.Post([]fabric.SendWR{{Op: fabric.OpSend}}))
	if err := c.Connect(s.ctx(), nil); err == nil {
		s.Error("a Conn could be connected after Close")
	}
	a, b := s.pairAt(l, stage{})
	s.exchange("after a Conn that never connected", a, b)
}

// afterClose: after Close every call reports the end, and closing the Conn's objects is
// harmless.
func afterClose(s *scene) {
	client, server := s.pair(stage{})
	mr := client.Region(4096, writable)
	var mw fabric.MW
	if client.Conn.Capabilities().MemoryWindows {
		mw = client.Window()
	}
	s.exchange("before the end", client, server)
	client.Receives(1, 64)
	client.Close()
	s.wantAfterEnd(client)
	if err := client.Conn.Close(); err != nil {
		s.Errorf("a second Close: %v", err)
	}
	if _, err := client.Conn.RegMR(make([]byte, 64), 0); err == nil {
		s.Error("memory could be registered after Close")
	}
	if mw != nil {
		if _, err := client.Conn.AllocMW(); err == nil {
			s.Error("a window could be allocated after Close")
		}
		s.within("MW.Close after Close", mw.Close)
	}
	s.within("MR.Close after Close", mr.Close)
	client.Conn.Wake()
	client.Conn.Capabilities()
	client.Conn.PeerPrivateData()
	if client.Conn.LocalAddr() == nil || client.Conn.RemoteAddr() == nil {
		s.Error("a Conn that is closed has forgotten its addresses")
	}
}

// wantAfterEnd expects every call on a Conn to report the end.
func (s *scene) wantAfterEnd(e *Endpoint) {
	s.Helper()
	s.wantOver("Post after the end", e.Conn.Post([]fabric.SendWR{{ID: 1, Op: fabric.OpSend, Flags: fabric.Signaled}}))
	s.wantOver("PostRecv after the end", e.Conn.PostRecv([]fabric.RecvWR{{ID: 1}}))
	for range 3 {
		var wc [1]fabric.WC
		n, err := e.Conn.Poll(wc[:])
		if n != 0 {
			s.Errorf("Poll after the end returned %d completions", n)
		}
		s.wantOver("Poll after the end", err)
		s.wantOver("Wait after the end", s.result("Wait", later(e.Conn.Wait)))
		s.wantOver("WaitContext after the end", fabric.WaitContext(s.ctx(), e.Conn))
	}
}

// afterPeersEnd: after the peer has closed, every call reports the end.
func afterPeersEnd(s *scene) {
	client, server := s.pair(stage{})
	client.Receives(3, 64)
	mr := client.Region(4096, writable|readable)
	server.Close()
	client.WantEnd("after the peer's Close")
	s.wantAfterEnd(client)
	s.within("MR.Close after the end", mr.Close)
	client.Close()
}

// messagesBeforeEnd: an orderly end does not discard messages that arrived before, even if
// they have not been polled.
func messagesBeforeEnd(s *scene) {
	const n = 10
	l := s.listen(attr)
	for range repeat(20) {
		client, server := s.pairAt(l, stage{idle: true})
		server.Receives(n+2, 64)
		for i := range byte(n) {
			client.Post("a message", client.Message([]byte{i}))
		}
		// On some adapters the peer must make progress before Disconnect can return.
		gone := later(func() error { return client.Conn.Disconnect(s.ctx()) })
		runtime.Gosched()
		server.Start()
		for i := range byte(n) {
			server.WantMessage(fmt.Sprintf("message %d before the end", i), []byte{i})
		}
		server.WantEnd("after the last message")
		for range 2 {
			if wc, _, err := server.NextRecv(); err != nil || wc.Status != fabric.WCFlushErr {
				s.Errorf("a receive without a message completed with %v (%v)", wc.Status, err)
			}
		}
		if err := s.result("Disconnect", gone); err != nil {
			s.Fatalf("Disconnect: %v", err)
		}
		client.Close()
		server.Close()
	}
}

// othersGoOn: the end of one connection does not affect others.
func othersGoOn(s *scene) {
	l := s.listen(attr)
	var clients, servers []*Endpoint
	for range 6 {
		c, v := s.pairAt(l, stage{})
		clients, servers = append(clients, c), append(servers, v)
	}
	clients[0].Close()
	servers[1].Close()
	clients[2].Stop()
	if err := clients[2].Conn.Disconnect(s.ctx()); err != nil {
		s.Errorf("Disconnect: %v", err)
	}
	clients[3].Post("a message without a receive", fabric.SendWR{ID: 1, Op: fabric.OpWrite, Flags: fabric.Signaled,
		RKey: 0, RemoteOffset: 1, SGL: []fabric.SGE{SGE(clients[3].Region(8, 0), 0, 8)}})
	for i := range 4 {
		if i != 0 && i != 2 {
			clients[i].WantEnd("of one connection")
		}
		if i != 1 {
			servers[i].WantEnd("of one connection")
		}
	}
	for i := 4; i < 6; i++ {
		s.exchange("beside connections that have ended", clients[i], servers[i])
	}
}
