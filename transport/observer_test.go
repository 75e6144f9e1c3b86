package transport_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rpcrdma/rpcrdma/fabric"
	"github.com/rpcrdma/rpcrdma/internal/lockorder"
	"github.com/rpcrdma/rpcrdma/internal/testing/testutil"
	"github.com/rpcrdma/rpcrdma/iwarp"
	"github.com/rpcrdma/rpcrdma/proto/oncrpc"
	"github.com/rpcrdma/rpcrdma/proto/xdr"
	"github.com/rpcrdma/rpcrdma/rpc"
	"github.com/rpcrdma/rpcrdma/transport"
)

// pairs is an Observer that holds the transport to what Observer says: what has begun ends, once.
type pairs struct {
	rpc.NoObserver
	mu    sync.Mutex
	calls map[*rpc.CallEvent]rpc.CallEvent
	conns map[rpc.Conn]bool
	bad   []string
	ended int
}

// outcomes are the words of CallEvent.Outcome.
var outcomes = strings.Fields(`success prog_unavail prog_mismatch proc_unavail garbage_args system_err rpc_mismatch auth_error
	rdma_error bad_reply too_long lost closed timeout canceled failed`)

func (p *pairs) ConnBegan(e rpc.ConnEvent) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.conns == nil {
		p.conns = make(map[rpc.Conn]bool)
	}
	if _, there := p.conns[e.Conn]; there || e.Began.IsZero() {
		p.bad = append(p.bad, fmt.Sprintf("a connection begins twice, or at no time: %+v", e))
	}
	p.conns[e.Conn] = true
}

func (p *pairs) ConnEnded(e rpc.ConnEvent) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.conns[e.Conn] {
		p.bad = append(p.bad, fmt.Sprintf("a connection ends that has not begun, or has ended: %+v", e))
	}
	p.conns[e.Conn] = false
}

func (p *pairs) CallBegan(e *rpc.CallEvent) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.calls == nil {
		p.calls = make(map[*rpc.CallEvent]rpc.CallEvent)
	}
	if _, there := p.calls[e]; there || e.Began.IsZero() || e.Executed && e.Conn == nil {
		p.bad = append(p.bad, fmt.Sprintf("a call begins twice, or without a time or connection: %+v", *e))
	}
	p.calls[e] = *e
}

func (p *pairs) CallEnded(e *rpc.CallEvent) {
	p.mu.Lock()
	defer p.mu.Unlock()
	began, there := p.calls[e]
	delete(p.calls, e)
	p.ended++
	switch {
	case !there || began.Procedure != e.Procedure || began.Executed != e.Executed || began.Backward != e.Backward || began.Began != e.Began:
		p.bad = append(p.bad, fmt.Sprintf("a call ends that has not begun: %+v began as %+v", *e, began))
	case e.Waited < 0 || e.Wire < 0 || e.Handler < 0 || e.Waited+e.Wire > e.Total || e.Waited+e.Handler > e.Total:
		p.bad = append(p.bad, fmt.Sprintf("the parts of a call take longer than the call: %+v", *e))
	case e.Request.Chunks > e.Request.Bytes || e.Reply.Chunks > e.Reply.Bytes || e.Request.Bytes < 0 || e.Reply.Bytes < 0:
		p.bad = append(p.bad, fmt.Sprintf("more bytes in chunks than in all: %+v", *e))
	case !slices.Contains(outcomes, e.Outcome()):
		p.bad = append(p.bad, fmt.Sprintf("an unknown outcome %q: %+v", e.Outcome(), *e))
	case e.Executed && e.Err == nil && e.Request.Bytes == 0:
		p.bad = append(p.bad, fmt.Sprintf("a call without a message: %+v", *e))
	}
}

// wrong lists what is not as it has to be. Nothing may be under way.
func (p *pairs) wrong() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	bad := p.bad
	for _, e := range p.calls {
		bad = append(bad, fmt.Sprintf("a call has not ended: %+v", e))
	}
	for c, open := range p.conns {
		if open {
			bad = append(bad, fmt.Sprintf("a connection with %v has not ended", c.RemoteAddr()))
		}
	}
	return bad
}

// seen is an Observer that keeps copies of what it sees.
type seen struct {
	pairs
	mu      sync.Mutex
	calls   []rpc.CallEvent
	conns   []rpc.ConnEvent
	notices []rpc.Notice
}

func (s *seen) CallEnded(e *rpc.CallEvent) {
	s.pairs.CallEnded(e)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.calls = append(s.calls, *e)
}

func (s *seen) ConnEnded(e rpc.ConnEvent) {
	s.pairs.ConnEnded(e)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.conns = append(s.conns, e)
}

func (s *seen) Noticed(n rpc.Notice) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.notices = append(s.notices, n)
}

// last returns the latest call of proc, which may have to end first.
func (s *seen) last(t *testing.T, proc uint32) rpc.CallEvent {
	t.Helper()
	for end := time.Now().Add(10 * time.Second); ; time.Sleep(time.Millisecond) {
		s.mu.Lock()
		for i := len(s.calls) - 1; i >= 0; i-- {
			if e := s.calls[i]; e.Proc == proc {
				s.calls = s.calls[:0]
				s.mu.Unlock()
				return e
			}
		}
		s.mu.Unlock()
		if time.Now().After(end) {
			t.Fatalf("no call of procedure %d has ended", proc)
		}
	}
}

// TestObserver checks what both ends report for calls of every kind.
func TestObserver(t *testing.T) {
	var client, server seen
	b := onIwarp(iwarp.Config{})
	w := b.start(t, &transport.Settings{Observer: &server})
	cl := w.dial(t, &transport.Settings{Observer: &client})
	data, buf := make([]byte, 1<<16), make([]byte, 1<<16)
	var call rpc.Call
	const small, large = 100, 1 << 16
	header := 24 + 8 + 8 + 8 // xid, type, four words; empty credential and verifier; the length word and its padding
	for _, tt := range []struct {
		name           string
		proc           uint32
		do             func() error
		request, reply rpc.Transfer
		outcome        string
		fails          bool
	}{
		{"inline", procEcho, func() error { return echo(cl, procEcho, data[:small], buf, &call) },
			rpc.Transfer{Bytes: header - 4 + small, By: rpc.ByMessage},
			rpc.Transfer{Bytes: 28 + small, By: rpc.ByMessage}, "success", false},
		{"chunks", procSlow, func() error { return echo(cl, procSlow, data[:large], buf, &call) },
			rpc.Transfer{Bytes: header - 4 + large, Chunks: large, By: rpc.ByMessage | rpc.ByReadChunk},
			rpc.Transfer{Bytes: 28 + large, Chunks: large, By: rpc.ByMessage | rpc.ByWriteChunk}, "success", false},
		{"reply chunk", procLong, func() error {
			call = rpc.Call{Prog: prog, Vers: 1, Proc: procLong, Args: []byte{0, 0, 16, 0}, MaxResults: 4 << 12}
			return cl.Call(bg, &call)
		}, rpc.Transfer{Bytes: 44, By: rpc.ByMessage},
			rpc.Transfer{Bytes: 24 + 4<<12, Chunks: 24 + 4<<12, By: rpc.ByReplyChunk}, "success", false},
		{"refused", 99, func() error { return cl.Call(bg, &rpc.Call{Prog: prog, Vers: 1, Proc: 99}) },
			rpc.Transfer{Bytes: 40, By: rpc.ByMessage},
			rpc.Transfer{Bytes: 24, By: rpc.ByMessage}, "proc_unavail", true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if err := tt.do(); err != nil != tt.fails {
				t.Fatal(err)
			}
			c, s := client.last(t, tt.proc), server.last(t, tt.proc)
			for end, e := range map[string]rpc.CallEvent{"client": c, "server": s} {
				if e.Request != tt.request || e.Reply != tt.reply || e.Outcome() != tt.outcome {
					t.Errorf("%s: %+v, %+v, %s; want %+v, %+v, %s", end, e.Request, e.Reply, e.Outcome(), tt.request, tt.reply, tt.outcome)
				}
				if e.Executed != (end == "server") || e.Backward || e.Conn == nil || e.Prog != prog || e.Vers != 1 || e.Resent != 0 || e.Replayed {
					t.Errorf("%s: %+v", end, e)
				}
			}
			if c.XID != s.XID || c.Wire <= 0 || s.Handler <= 0 || c.Total < s.Handler {
				t.Errorf("xids %x and %x, wire %v, handler %v, total %v", c.XID, s.XID, c.Wire, s.Handler, c.Total)
			}
		})
	}

	t.Run("given up", func(t *testing.T) {
		ctx, cancel := context.WithTimeout(bg, 20*time.Millisecond)
		defer cancel()
		if err := cl.Call(ctx, &rpc.Call{Prog: prog, Vers: 1, Proc: procHang}); !errors.Is(err, context.DeadlineExceeded) {
			t.Fatal(err)
		}
		if e := client.last(t, procHang); e.Outcome() != "timeout" || e.Total < 20*time.Millisecond || e.Wire != 0 {
			t.Errorf("%+v", e)
		}
	})

	t.Run("now", func(t *testing.T) {
		conns := w.server.Conns()
		if len(conns) != 1 {
			t.Fatalf("%d connections", len(conns))
		}
		ctx, cancel := context.WithCancel(bg)
		done := make(chan error, 1)
		hang := rpc.Call{Prog: prog, Vers: 1, Proc: procHang, WriteItems: []rpc.WriteItem{{Buf: make([]byte, 1<<20)}}}
		go func() { done <- cl.Call(ctx, &hang) }()
		for cl.Conn().Stats().ExposedBytes != 1<<20 {
			time.Sleep(time.Millisecond)
		}
		st := cl.Conn().Stats()
		if st.InFlight < 1 || st.Calls < 6 || len(st.Adapter) == 0 || st.Adapter[0].Value == 0 {
			t.Errorf("the client's connection: %+v", st)
		}
		for conns[0].Stats().HeldBytes < 1<<20 { // as soon as it has the call
			time.Sleep(time.Millisecond)
		}
		if st := conns[0].Stats(); st.Calls < 6 || len(st.Adapter) == 0 {
			t.Errorf("the server's connection: %+v", st)
		}
		cancel()
		<-done
		if n := cl.Conn().Stats().ExposedBytes; n != 0 {
			t.Errorf("%d bytes are exposed when the call has returned", n)
		}
	})

	cl.Close()
	w.server.Close()
	for name, s := range map[string]*seen{"client": &client, "server": &server} {
		s.settle(t, name)
		if len(s.conns) == 0 {
			t.Errorf("%s: no connection has ended", name)
		}
	}
	if n := len(w.server.Conns()); n != 0 {
		t.Errorf("%d connections are open after Close", n)
	}
	if s, c := w.server.Stats(), cl.Stats(); s.Calls != c.Calls || s.Calls < 6 || s.ReadBytes != large || s.OpenConns != 0 {
		t.Errorf("sums after the end: server %+v, client %+v", s, c)
	}
}

// settle wants that nothing is wrong when all has ended: connections end while Close returns, and
// handlers that hang after their connection.
func (s *seen) settle(t *testing.T, name string) {
	t.Helper()
	for end := time.Now().Add(10 * time.Second); len(s.wrong()) > 0 && time.Now().Before(end); {
		time.Sleep(time.Millisecond)
	}
	for _, what := range s.wrong() {
		t.Errorf("%s: %s", name, what)
	}
}

// TestObserverTCP checks the reports of both ends over TCP, with a callback.
func TestObserverTCP(t *testing.T) {
	var client, server seen
	srv, err := transport.NewServer(&transport.ServerConfig{Config: transport.Config{Observer: &server}})
	if err != nil {
		t.Fatal(err)
	}
	defer srv.Close()
	back := rpc.Program{Number: prog + 1, Low: 1, High: 1, Inline: rpc.Every,
		Handler: rpc.Procedures{1: func(context.Context, *rpc.Request, *rpc.Response) {}}}
	if err := srv.Register(rpc.Program{Number: prog, Low: 1, High: 1, Handler: rpc.HandlerFunc(
		func(ctx context.Context, req *rpc.Request, res *rpc.Response) {
			req.Conn().AllowBackward(1)
			if err := req.Conn().Call(ctx, &rpc.Call{Prog: prog + 1, Vers: 1, Proc: 1}); err != nil {
				res.Fail(oncrpc.SystemErr)
			}
			res.AddItem(req.Args, nil)
		})}); err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	go srv.ServeTCP(l)
	cl, err := transport.DialTCP(bg, l.Addr().String(), &transport.ClientConfig{
		Config: transport.Config{Observer: &client}, Callbacks: []rpc.Program{back}})
	if err != nil {
		t.Fatal(err)
	}
	defer cl.Close()
	args := bytes.Repeat([]byte("ab"), 10_000)
	if err := cl.Call(bg, &rpc.Call{Prog: prog, Vers: 1, Proc: 2, Args: args, MaxResults: len(args) + 4}); err != nil {
		t.Fatal(err)
	}
	want := [2]rpc.Transfer{{Bytes: 40 + len(args), By: rpc.ByMessage}, {Bytes: 28 + len(args), By: rpc.ByMessage}}
	for name, s := range map[string]*seen{"client": &client, "server": &server} {
		s.mu.Lock()
		both := slices.Clone(s.calls)
		s.mu.Unlock()
		i := slices.IndexFunc(both, func(e rpc.CallEvent) bool { return e.Prog == prog })
		j := slices.IndexFunc(both, func(e rpc.CallEvent) bool { return e.Prog == prog+1 })
		if i < 0 || j < 0 {
			t.Fatalf("%s: %+v", name, both)
		}
		if e := both[i]; [2]rpc.Transfer{e.Request, e.Reply} != want || e.Backward || e.Executed != (name == "server") || e.Outcome() != "success" {
			t.Errorf("%s: %+v", name, e)
		}
		if e := both[j]; !e.Backward || e.Executed != (name == "client") || e.Outcome() != "success" || e.Total > both[i].Total {
			t.Errorf("%s, called back: %+v", name, e)
		}
	}
	cl.Close()
	srv.Close()
	for name, s := range map[string]*seen{"client": &client, "server": &server} {
		s.settle(t, name)
	}
}

// TestObserverConns checks that Server.Conns includes connections whose event has not reached the Observer yet, and
// that these can be used.
func TestObserverConns(t *testing.T) {
	p := iwarp.New(iwarp.Config{})
	s, err := transport.NewServer(&transport.ServerConfig{Config: transport.Config{Observer: rpc.NoObserver{}}})
	if err != nil {
		t.Fatal(err)
	}
	l, err := s.Listen(bg, p, "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	go s.Serve(l)
	stop := make(chan struct{})
	var g sync.WaitGroup
	g.Go(func() {
		for {
			for _, cn := range s.Conns() {
				_ = cn.Null(bg, prog, 1) // which the client is not ready for
			}
			select {
			case <-stop:
				return
			default:
			}
		}
	})
	for range 20 {
		cl, err := transport.Dial(bg, p, l.Addr().String(), nil)
		if err != nil {
			t.Fatal(err)
		}
		cl.Close()
	}
	close(stop)
	g.Wait()
	s.Close()
}

// TestObserverNotices checks the notices for operators other than those about calls.
func TestObserverNotices(t *testing.T) {
	var client, server seen
	b := onIwarp(iwarp.Config{})
	w := b.start(t, &transport.Settings{Observer: &server, Credits: 1, MaxConns: 1})
	cl := w.dial(t, &transport.Settings{Observer: &client})
	var g sync.WaitGroup
	for range 8 {
		g.Go(func() {
			for range 20 {
				if err := cl.Null(bg, prog, 1); err != nil {
					t.Error(err)
				}
			}
		})
	}
	g.Wait()
	if _, err := transport.Dial(bg, w.provider, w.addr, nil); err == nil {
		t.Fatal("there was room for a second connection")
	}
	kinds := func(s *seen) map[rpc.NoticeKind]int {
		s.mu.Lock()
		defer s.mu.Unlock()
		m := make(map[rpc.NoticeKind]int)
		for _, n := range s.notices {
			if m[n.Kind]++; n.Peer == "" || n.Kind == rpc.NoticeRejected && n.Err == nil {
				t.Errorf("%v: %+v", n.Kind, n)
			}
		}
		return m
	}
	if m := kinds(&client); m[rpc.NoticeCreditStall] == 0 {
		t.Errorf("the client noticed %v", slices.Collect(maps.Keys(m)))
	}
	if m := kinds(&server); m[rpc.NoticeRejected] == 0 {
		t.Errorf("the server noticed %v", slices.Collect(maps.Keys(m)))
	}
}

// registersConn is a connection of an adapter that wants all memory registered, as devices do.
type registersConn struct{ fabric.Conn }

func (c registersConn) Capabilities() fabric.Capabilities {
	caps := c.Conn.Capabilities()
	caps.LocalDMA = false
	return caps
}

type registersProvider struct{ fabric.Provider }

func (p registersProvider) Resolve(ctx context.Context, addr string, attr fabric.ConnAttr) (fabric.Conn, error) {
	c, err := p.Provider.Resolve(ctx, addr, attr)
	if err != nil {
		return nil, err
	}
	return registersConn{c}, nil
}

// asking is an Observer that asks the connections what an Observer may ask, at all times.
type asking struct {
	t          *testing.T
	told       [5]atomic.Int64
	registered chan func(rpc.Conn) // what to do when long memory has been registered, once
}

// ask asks c. Another goroutine does that, so that a lock that is held fails the test alone.
func (a *asking) ask(event string, c rpc.Conn) (st rpc.ConnStats) {
	if held := lockorder.Held(); len(held) > 0 {
		a.t.Errorf("%s is called with locks of the ranks %v", event, held)
	}
	if c == nil { // it does not exist yet
		return st
	}
	answer := make(chan rpc.ConnStats, 1)
	go func() {
		c.Info()
		c.RemoteAddr()
		answer <- c.Stats()
	}()
	select {
	case st = <-answer:
	case <-time.After(testutil.Patience):
		a.t.Errorf("%s waits for Conn.Info and Conn.Stats, which wait for %s", event, event)
	}
	return st
}

func (a *asking) ConnBegan(e rpc.ConnEvent)  { a.told[0].Add(1); a.ask("ConnBegan", e.Conn) }
func (a *asking) ConnEnded(e rpc.ConnEvent)  { a.told[1].Add(1); a.ask("ConnEnded", e.Conn) }
func (a *asking) CallBegan(e *rpc.CallEvent) { a.told[2].Add(1); a.ask("CallBegan", e.Conn) }
func (a *asking) CallEnded(e *rpc.CallEvent) { a.told[3].Add(1); a.ask("CallEnded", e.Conn) }

func (a *asking) Noticed(n rpc.Notice) {
	a.told[4].Add(1)
	if n.Kind == rpc.NoticeRegistered && n.Bytes >= 1<<16 {
		select {
		case f := <-a.registered:
			f(n.Conn)
		default:
		}
	}
	a.ask("Noticed", n.Conn)
}

// TestObserverAsks checks that an Observer that queries the state of a connection in any event blocks nothing, whatever
// happens meanwhile.
func TestObserverAsks(t *testing.T) {
	client := &asking{t: t, registered: make(chan func(rpc.Conn), 1)}
	entered, late := make(chan struct{}), make(chan struct{})
	w := onIwarp(iwarp.Config{}).startWith(t, &transport.Settings{Observer: &asking{t: t}}, rpc.Program{
		Number: prog + 1, Low: 1, High: 1, Idempotent: rpc.Every,
		Handler: rpc.Procedures{
			1: func(context.Context, *rpc.Request, *rpc.Response) {
				close(entered)
				<-late
			},
			2: func(context.Context, *rpc.Request, *rpc.Response) {},
		},
	})
	w.provider = registersProvider{w.provider}
	cl := w.dial(t, &transport.Settings{Observer: client})
	for range 3 { // until there are several credits
		if err := cl.Null(bg, prog, 1); err != nil {
			t.Fatal(err)
		}
	}
	put := func(proc uint32, n int) *rpc.Call {
		return &rpc.Call{Prog: prog + 1, Vers: 1, Proc: proc, Args: xdr.AppendUint32(nil, uint32(n)),
			ReadItems: []rpc.ReadItem{{Offset: 4, Data: make([]byte, n)}}}
	}

	// The bounce buffer of a call that is given up is kept until its reply. That comes while memory
	// is registered for the bounce buffer of another call.
	ctx, giveUp := context.WithCancel(bg)
	first := make(chan error, 1)
	go func() { first <- cl.Call(ctx, put(1, 12_000)) }()
	<-entered
	giveUp()
	if err := <-first; !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
	client.registered <- func(c rpc.Conn) {
		close(late)
		for end := time.Now().Add(5 * time.Second); client.ask("Noticed", c).InFlight > 1; time.Sleep(time.Millisecond) {
			if time.Now().After(end) {
				t.Error("the late reply does not come")
				return
			}
		}
	}
	if err := cl.Call(bg, put(2, 50_000)); err != nil {
		t.Error(err)
	}
	if len(client.registered) > 0 {
		close(late)
		t.Error("no memory has been registered for the second call")
	}
	manyCalls(t, cl)
	cl.Close()
	for i := range client.told {
		if client.told[i].Load() == 0 {
			t.Errorf("the client has not been told of events of kind %d", i)
		}
	}
}

// counting is an Observer with memory of its own.
type counting struct{ calls, conns, notices, bytes atomic.Int64 }

func (c *counting) ConnBegan(rpc.ConnEvent)  { c.conns.Add(1) }
func (c *counting) ConnEnded(rpc.ConnEvent)  {}
func (c *counting) CallBegan(*rpc.CallEvent) { c.notices.Add(1) }
func (c *counting) CallEnded(e *rpc.CallEvent) {
	if e.Prog == prog { // beside it the client asks what the server is
		c.calls.Add(1)
		c.bytes.Add(int64(e.Request.Bytes + e.Reply.Bytes))
	}
}
func (c *counting) Noticed(rpc.Notice) { c.notices.Add(1) }

// TestObserverAllocs checks that an Observer with preallocated memory adds no allocation.
func TestObserverAllocs(t *testing.T) {
	if raceEnabled {
		t.Skip("the race detector allocates")
	}
	var client, server counting
	b := onIwarp(iwarp.Config{})
	w := b.start(t, &transport.Settings{Observer: rpc.Observers(nil, &server, rpc.NoObserver{})})
	cl := w.dial(t, &transport.Settings{Observer: rpc.Observers(&client, nil)})
	var call rpc.Call
	data, buf := make([]byte, 1<<16), make([]byte, 1<<16)
	for _, size := range []int{64, 1 << 16} {
		f := func() {
			if err := echo(cl, procEcho, data[:size], buf, &call); err != nil {
				t.Fatal(err)
			}
		}
		for range 100 {
			f()
		}
		if n := testing.AllocsPerRun(1000, f); n > 0 {
			t.Errorf("%d bytes: %v allocations a call", size, n)
		}
	}
	if client.calls.Load() != server.calls.Load() || client.bytes.Load() != server.bytes.Load() || client.calls.Load() < 2000 {
		t.Errorf("client %d calls, %d bytes; server %d, %d", client.calls.Load(), client.bytes.Load(), server.calls.Load(), server.bytes.Load())
	}
}
