package notify

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/rpcrdma/rpcrdma/internal/testing/leak"
	"github.com/rpcrdma/rpcrdma/internal/testing/testutil"
	"github.com/rpcrdma/rpcrdma/iwarp"
	"github.com/rpcrdma/rpcrdma/proto/oncrpc"
	"github.com/rpcrdma/rpcrdma/proto/xdr"
	"github.com/rpcrdma/rpcrdma/rpc"
	"github.com/rpcrdma/rpcrdma/transport"
)

// A fakeSource has the events that a test makes up.
type fakeSource struct {
	mu      sync.Mutex
	err     error // of Watch
	watches map[*fakeWatch]bool
}

type fakeWatch struct {
	dir  string
	tell func(Event)
}

func (s *fakeSource) Watch(dir string, _ bool, tell func(Event)) (func(), error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err != nil {
		return nil, s.err
	}
	w := &fakeWatch{dir, tell}
	if s.watches == nil {
		s.watches = make(map[*fakeWatch]bool)
	}
	s.watches[w] = true
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.watches, w)
	}, nil
}

// refuse has Watch return err.
func (s *fakeSource) refuse(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.err = err
}

// emit reports an event in every directory.
func (s *fakeSource) emit(e Event) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for w := range s.watches {
		w.tell(e)
	}
}

// end ends the watches of a directory.
func (s *fakeSource) end(dir string, status Status) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for w := range s.watches {
		if w.dir == dir {
			w.tell(Event{Kind: Ended, Status: status})
			delete(s.watches, w)
		}
	}
}

// A bed is a server with the program.
type bed struct {
	server *Server
	source fakeSource
	addr   string
}

// newBed runs a server until the test ends, which must leave nothing running.
func newBed(t testing.TB, grace, answer time.Duration) *bed {
	t.Helper()
	leak.Check(t)
	b := new(bed)
	b.server = NewServer(&b.source, nil)
	b.server.grace, b.server.answer = grace, answer
	server, err := transport.NewServer(nil)
	testutil.Must(t, err, server.Register(b.server.Program()))
	l, err := server.Listen(context.Background(), iwarp.New(iwarp.Config{}), "127.0.0.1:0")
	testutil.Must(t, err)
	b.addr = l.Addr().String()
	var serving sync.WaitGroup
	serving.Go(func() { server.Serve(l) })
	t.Cleanup(func() {
		b.server.Close()
		server.Close()
		serving.Wait()
		if s := b.state(); s != (state{}) {
			t.Errorf("left behind: %+v", s)
		}
	})
	return b
}

// A state is the memory that the server keeps for its clients.
type state struct{ subs, hosts, watches int }

func (b *bed) state() (s state) {
	b.server.mu.Lock()
	s.subs, s.hosts = len(b.server.subs), len(b.server.hosts)
	b.server.mu.Unlock()
	b.source.mu.Lock()
	s.watches = len(b.source.watches)
	b.source.mu.Unlock()
	return s
}

// idle waits until the server keeps nothing.
func (b *bed) idle(t testing.TB) {
	t.Helper()
	testutil.Eventually(t, "the server keeps nothing", func() bool { return b.state() == state{} })
}

// A notified is a client that speaks the protocol by hand. Its events must come in order and without
// gaps.
type notified struct {
	t  *testing.T
	cl *transport.Client

	mu      sync.Mutex // held by NOTIFY
	hold    sync.Mutex // held: NOTIFY is not answered
	refuse  bool
	numbers map[token]uint64
	lines   testutil.Lines
}

func (b *bed) dial(t *testing.T, cfg transport.ClientConfig) *notified {
	t.Helper()
	c := &notified{t: t, numbers: make(map[token]uint64)}
	b.redial(t, c, cfg)
	return c
}

// redial gives a client a new connection.
func (b *bed) redial(t *testing.T, c *notified, cfg transport.ClientConfig) {
	t.Helper()
	if cfg.Callbacks == nil {
		cfg.Callbacks = []rpc.Program{{
			Number: ClientProgram, Low: ClientVersion, High: ClientVersion, Handler: rpc.HandlerFunc(c.serve),
		}}
	}
	cfg.NoReconnect = true
	cl, err := transport.Dial(t.Context(), iwarp.New(iwarp.Config{}), b.addr, &cfg)
	testutil.Must(t, err)
	t.Cleanup(func() { cl.Close() })
	c.cl = cl
}

func (c *notified) serve(_ context.Context, req *rpc.Request, res *rpc.Response) {
	c.hold.Lock()
	defer c.hold.Unlock()
	c.mu.Lock()
	defer c.mu.Unlock()
	var a notifyArgs
	d := xdr.NewDecoder(req.Args)
	a.Decode(&d)
	switch {
	case d.End() != nil || req.Proc != ProcNotify || len(a.events) == 0:
		c.t.Errorf("procedure %d with %d bytes: %v", req.Proc, len(req.Args), d.End())
	case c.refuse:
		res.Fail(oncrpc.SystemErr)
		return
	case a.number <= c.numbers[a.id]:
		return // sent again, because its reply was lost
	case a.number != c.numbers[a.id]+1:
		c.t.Errorf("number %d, want %d", a.number, c.numbers[a.id]+1)
	}
	c.numbers[a.id] = a.number
	for _, e := range a.events {
		c.lines.Add(e.String())
	}
}

func (c *notified) subscribe(a subscribeArgs) (r subscribeRes, err error) {
	call := rpc.Call{Prog: ServerProgram, Vers: ServerVersion, Proc: ProcSubscribe, Args: a.Append(nil)}
	if err = c.cl.Call(c.t.Context(), &call); err != nil {
		return r, err
	}
	d := xdr.NewDecoder(call.Results)
	r.Decode(&d)
	return r, d.End()
}

func (c *notified) unsubscribe(id token) Status {
	c.t.Helper()
	call := rpc.Call{Prog: ServerProgram, Vers: ServerVersion, Proc: ProcUnsubscribe, Args: xdr.AppendFixedOpaque(nil, id[:])}
	testutil.Must(c.t, c.cl.Call(c.t.Context(), &call))
	d := xdr.NewDecoder(call.Results)
	status := Status(d.Uint32())
	testutil.Must(c.t, d.End())
	return status
}

func (c *notified) mustSubscribe(a subscribeArgs) subscribed {
	c.t.Helper()
	r, err := c.subscribe(a)
	if err != nil || r.status != StatusOK {
		c.t.Fatalf("SUBSCRIBE: %+v, %v", r, err)
	}
	return r.ok
}

// A client that comes back with its token gets every event, once and in order; with
// anything else it gets a new subscription.
func TestSubscribeAgain(t *testing.T) {
	b := newBed(t, time.Minute, time.Minute)
	c := b.dial(t, transport.ClientConfig{})
	file := func(i int) string { return fmt.Sprintf("file%d", i) }
	r := c.mustSubscribe(subscribeArgs{recursive: true})
	if r.again || r.grace != 60 || r.id == (token{}) {
		t.Errorf("first answer: %+v", r)
	}
	n := 0
	var got []string
	for range 5 {
		for range 10 {
			b.source.emit(Event{Kind: Created, Path: file(n)})
			n++
		}
		got = append(got, c.lines.Wait(t, "created "+file(n-1))...)
		// The connection goes with a call under way or without.
		c.hold.Lock()
		for range 10 {
			b.source.emit(Event{Kind: Created, Path: file(n)})
			n++
		}
		c.cl.Close()
		c.hold.Unlock()
		b.redial(t, c, transport.ClientConfig{})
		if again := c.mustSubscribe(subscribeArgs{recursive: true, old: former{true, r.id}}); !again.again || again.id != r.id {
			t.Fatalf("SUBSCRIBE again: %+v", again)
		}
		got = append(got, c.lines.Wait(t, "created "+file(n-1))...)
	}
	var want []string
	for i := range n {
		want = append(want, "created "+file(i))
	}
	testutil.WantLines(t, got, want...)
	for _, a := range []subscribeArgs{
		{recursive: true, old: former{true, token{1}}},
		{recursive: false, old: former{true, r.id}},
	} {
		if other := c.mustSubscribe(a); other.again || other.id == r.id {
			t.Errorf("SUBSCRIBE with %+v: %+v", a, other)
		} else if got := c.unsubscribe(other.id); got != StatusOK {
			t.Errorf("UNSUBSCRIBE: %v", got)
		}
	}
	if got := c.unsubscribe(r.id); got != StatusOK {
		t.Errorf("UNSUBSCRIBE: %v", got)
	}
	b.idle(t)
	if got := c.unsubscribe(r.id); got != StatusUnknown {
		t.Errorf("UNSUBSCRIBE again: %v", got)
	}
	if other := c.mustSubscribe(subscribeArgs{recursive: true, old: former{true, r.id}}); other.again || other.id == r.id {
		t.Errorf("SUBSCRIBE with the token of a subscription that has ended: %+v", other)
	}
}

// Whatever clients do, the server keeps nothing for those that are gone, and a bounded
// amount for the others.
func TestSubscribeHostile(t *testing.T) {
	b := newBed(t, time.Minute, time.Minute)
	c := b.dial(t, transport.ClientConfig{})
	garbage := func(proc uint32, args []byte) {
		t.Helper()
		err := c.cl.Call(t.Context(), &rpc.Call{Prog: ServerProgram, Vers: ServerVersion, Proc: proc, Args: args})
		want := oncrpc.GarbageArgs
		if proc > ProcUnsubscribe {
			want = oncrpc.ProcUnavail
		}
		var rpc *oncrpc.RPCError
		if !errors.As(err, &rpc) || rpc.AcceptStat != want {
			t.Errorf("procedure %d with %x: %v, want %v", proc, args, err, want)
		}
	}
	whole := (&subscribeArgs{dir: "dir", old: former{again: true}}).Append(nil)
	for n := range len(whole) / 4 {
		garbage(ProcSubscribe, whole[:4*n])
	}
	garbage(ProcSubscribe, append(slices.Clone(whole), 0, 0, 0, 0))
	garbage(ProcSubscribe, []byte{0xff, 0xff, 0xff, 0xff})
	garbage(ProcSubscribe, (&subscribeArgs{dir: strings.Repeat("x", MaxPath+1)}).Append(nil))
	garbage(ProcUnsubscribe, nil)
	garbage(ProcUnsubscribe, make([]byte, 12))
	garbage(ProcUnsubscribe, make([]byte, 20))
	garbage(3, nil)

	for want, err := range map[Status]error{
		StatusNoEnt: fs.ErrNotExist, StatusNotDir: &fs.PathError{Err: syscall.ENOTDIR}, StatusAcces: fs.ErrPermission,
		StatusTooMuch: fmt.Errorf("wrapped: %w", StatusTooMuch), StatusSystem: errors.New("broken"),
	} {
		b.source.refuse(err)
		if r, err := c.subscribe(subscribeArgs{dir: "dir"}); err != nil || r.status != want {
			t.Errorf("SUBSCRIBE: %v, %v, want %v", r.status, err, want)
		}
	}
	b.source.refuse(nil)
	b.idle(t)

	// One address cannot take all subscriptions, and can take new ones when it has given
	// its own back.
	var ids []token
	for range MaxPerHost {
		ids = append(ids, c.mustSubscribe(subscribeArgs{dir: "dir"}).id)
	}
	other := b.dial(t, transport.ClientConfig{})
	if r, err := other.subscribe(subscribeArgs{dir: "dir"}); err != nil || r.status != StatusFull {
		t.Errorf("one subscription too many: %+v, %v", r, err)
	}
	for _, id := range ids {
		c.unsubscribe(id)
	}
	b.idle(t)
	other.mustSubscribe(subscribeArgs{dir: "dir"})
	other.cl.Close() // the end of the test does not wait for it
}

// A listener has connections from any address, without a network.
type listener struct {
	conns chan net.Conn
	once  sync.Once
}

type placed struct {
	net.Conn
	addr net.TCPAddr
}

func (p placed) RemoteAddr() net.Addr { return &p.addr }

func (l *listener) Accept() (net.Conn, error) {
	c, ok := <-l.conns
	if !ok {
		return nil, net.ErrClosed
	}
	return c, nil
}

func (l *listener) Close() error   { l.once.Do(func() { close(l.conns) }); return nil }
func (l *listener) Addr() net.Addr { return new(net.TCPAddr) }

// A host of IPv6, which has all addresses of its network, cannot take all subscriptions.
func TestSubscriptionsOfANetwork(t *testing.T) {
	s := NewServer(new(fakeSource), nil)
	server, err := transport.NewServer(nil)
	testutil.Must(t, err, server.Register(s.Program()))
	l := &listener{conns: make(chan net.Conn)}
	var serving sync.WaitGroup
	serving.Go(func() { server.ServeTCP(l) })
	defer func() { s.Close(); server.Close(); serving.Wait() }()
	subscribe := func(addr string) Status {
		c := &notified{t: t, numbers: make(map[token]uint64)}
		cl, err := transport.DialTCPWith(t.Context(), addr, &transport.ClientConfig{
			NoReconnect: true,
			Callbacks: []rpc.Program{{
				Number: ClientProgram, Low: ClientVersion, High: ClientVersion, Handler: rpc.HandlerFunc(c.serve),
			}},
		}, func(context.Context, string) (net.Conn, error) {
			a, b := net.Pipe()
			l.conns <- placed{a, *net.TCPAddrFromAddrPort(netip.MustParseAddrPort(addr))}
			return b, nil
		})
		testutil.Must(t, err)
		t.Cleanup(func() { cl.Close() })
		c.cl = cl
		r, err := c.subscribe(subscribeArgs{dir: "dir"})
		testutil.Must(t, err)
		return r.status
	}
	for i := range MaxPerHost {
		if got := subscribe(fmt.Sprintf("[2001:db8:0:1::%x]:5", i)); got != StatusOK {
			t.Fatalf("subscription %d: %v", i, got)
		}
	}
	if got := subscribe("[2001:db8:0:1:2:3:4:5]:5"); got != StatusFull {
		t.Errorf("one subscription too many, from another address of the network: %v", got)
	}
	if got := subscribe("[2001:db8:0:2::1]:5"); got != StatusOK {
		t.Errorf("a host of another network: %v", got)
	}
}

// A client that is gone, does not answer, or refuses notifications is not kept.
func TestSubscriptionEnds(t *testing.T) {
	const short = 200 * time.Millisecond
	for _, tt := range []struct {
		name   string
		answer time.Duration // long where the client has to answer, however slow it is
		do     func(b *bed, c *notified, id token)
	}{
		{"gone", short, func(_ *bed, c *notified, _ token) { c.cl.Close() }},
		{"gone with a call under way", short, func(b *bed, c *notified, _ token) {
			c.hold.Lock()
			b.source.emit(Event{Kind: Created, Path: "x"})
			c.cl.Close()
			c.hold.Unlock()
		}},
		{"silent", short, func(b *bed, c *notified, _ token) {
			c.hold.Lock()
			c.t.Cleanup(c.hold.Unlock)
			b.source.emit(Event{Kind: Created, Path: "x"})
			// It learns that its subscription has ended.
			select {
			case <-c.cl.Done():
			case <-time.After(testutil.Patience):
				c.t.Error("the connection lives")
			}
		}},
		{"refusing", testutil.Patience, func(b *bed, c *notified, _ token) {
			c.mu.Lock()
			c.refuse = true
			c.mu.Unlock()
			b.source.emit(Event{Kind: Created, Path: "x"})
		}},
		{"with a directory that goes", testutil.Patience, func(b *bed, c *notified, id token) {
			r := c.mustSubscribe(subscribeArgs{dir: "dir", recursive: true})
			b.source.end("dir", StatusGone)
			c.lines.Wait(c.t, "ended the directory has been removed or renamed (GONE)")
			testutil.Eventually(c.t, "it is forgotten", func() bool { return b.server.find(r.id) == nil })
			c.unsubscribe(id)
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			b := newBed(t, short, tt.answer)
			c := b.dial(t, transport.ClientConfig{})
			tt.do(b, c, c.mustSubscribe(subscribeArgs{recursive: true}).id)
			b.idle(t)
		})
	}
	t.Run("without the program", func(t *testing.T) {
		b := newBed(t, short, testutil.Patience)
		c := b.dial(t, transport.ClientConfig{Callbacks: []rpc.Program{{
			Number: ClientProgram + 1, Low: 1, High: 1, Handler: rpc.HandlerFunc(func(context.Context, *rpc.Request, *rpc.Response) {}),
		}}})
		// The server asks at once whether the program is there, and may have ended the
		// connection before the reply has left.
		r, err := c.subscribe(subscribeArgs{recursive: true})
		if err == nil && r.status != StatusOK || err != nil && !errors.Is(err, net.ErrClosed) {
			t.Errorf("SUBSCRIBE: %+v, %v", r, err)
		}
		select {
		case <-c.cl.Done():
		case <-time.After(testutil.Patience):
			t.Error("the connection lives")
		}
		b.idle(t)
	})
	t.Run("idle and there", func(t *testing.T) {
		b := newBed(t, 50*time.Millisecond, testutil.Patience)
		c := b.dial(t, transport.ClientConfig{})
		c.mustSubscribe(subscribeArgs{recursive: true})
		testutil.Eventually(t, "the server asks", func() bool { return c.cl.Stats().Calls > 3 })
		b.source.emit(Event{Kind: Created, Path: "x"})
		c.lines.Wait(t, "created x")
	})
}

// A storm of changes costs a bounded amount of memory for a slow client. The client learns that it
// has to rescan, and gets later events.
func TestNotifyStorm(t *testing.T) {
	b := newBed(t, time.Minute, time.Minute)
	slow, quick := b.dial(t, transport.ClientConfig{}), b.dial(t, transport.ClientConfig{})
	id := slow.mustSubscribe(subscribeArgs{recursive: true}).id
	other := b.server.find(quick.mustSubscribe(subscribeArgs{recursive: true}).id)
	s := b.server.find(id)
	slow.hold.Lock()
	const files = 10_000
	for i := range files {
		b.source.emit(Event{Kind: Created, Path: fmt.Sprintf("%0100d", i)})
		if i%100 == 0 {
			s.mu.Lock()
			if n := len(s.queue.events); n > maxPending || s.queue.size > maxPendingSize || len(s.queue.told) > maxPending {
				t.Fatalf("%d events of %d bytes wait", n, s.queue.size)
			}
			s.mu.Unlock()
		}
	}
	testutil.Eventually(t, "there is too much", func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		return s.queue.overflowed() && len(s.queue.events) == 1
	})
	slow.hold.Unlock()
	slow.lines.Wait(t, "rescan this directory")
	testutil.Eventually(t, "the quick one has everything, or has been told to look", func() bool {
		other.mu.Lock()
		defer other.mu.Unlock()
		return len(other.queue.events) == 0
	})
	b.source.emit(Event{Kind: Created, Path: "last"})
	slow.lines.Wait(t, "created last")
	quick.lines.Wait(t, "created last")
}

// FuzzNotifyCalls makes calls of the program over a connection. Each is answered or
// refused, and when the subscriptions that were made have been given back the server
// keeps nothing.
func FuzzNotifyCalls(f *testing.F) {
	for _, a := range []subscribeArgs{
		{}, {dir: "dir", recursive: true}, {dir: "../outside"}, {dir: "dir", old: former{true, token{1}}}, {dir: "a\x00b"},
	} {
		f.Add(testutil.AppendCall(nil, ProcSubscribe, a.Append(nil)))
	}
	f.Add(testutil.AppendCall(testutil.AppendCall(nil, ProcUnsubscribe, make([]byte, 16)), 9, nil))
	b := newBed(f, time.Minute, time.Minute)
	silent := rpc.HandlerFunc(func(context.Context, *rpc.Request, *rpc.Response) {})
	cl, err := transport.Dial(context.Background(), iwarp.New(iwarp.Config{}), b.addr, &transport.ClientConfig{
		NoReconnect: true,
		Callbacks:   []rpc.Program{{Number: ClientProgram, Low: ClientVersion, High: ClientVersion, Handler: silent}},
	})
	testutil.Must(f, err)
	f.Cleanup(func() { cl.Close() })
	f.Fuzz(func(t *testing.T, in []byte) {
		c := &notified{t: t, cl: cl}
		var ids []token
		testutil.EachCall(in, func(proc uint32, args []byte) {
			call := rpc.Call{Prog: ServerProgram, Vers: ServerVersion, Proc: proc, Args: args}
			err := cl.Call(t.Context(), &call)
			var rpc *oncrpc.RPCError
			if err != nil && !errors.As(err, &rpc) {
				t.Fatal(err)
			}
			if err != nil || proc != ProcSubscribe {
				return
			}
			var r subscribeRes
			d := xdr.NewDecoder(call.Results)
			if r.Decode(&d); d.End() != nil {
				t.Fatalf("SUBSCRIBE is answered by %x", call.Results)
			}
			if r.status == StatusOK {
				ids = append(ids, r.ok.id)
			}
		})
		if s := b.state(); s.subs > MaxPerHost || s.watches > MaxPerHost {
			t.Errorf("%+v", s)
		}
		for _, id := range ids {
			c.unsubscribe(id)
		}
		b.idle(t)
	})
}
