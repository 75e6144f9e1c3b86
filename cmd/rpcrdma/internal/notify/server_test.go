package notify

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"iter"
	"net"
	"net/netip"
	"sync"
	"syscall"
	"testing"

	"github.com/rpcrdma/rpcrdma/internal/testing/leak"
	"github.com/rpcrdma/rpcrdma/internal/testing/testutil"
	"github.com/rpcrdma/rpcrdma/iwarp"
	"github.com/rpcrdma/rpcrdma/rpc"
	"github.com/rpcrdma/rpcrdma/rpc/stream"
	"github.com/rpcrdma/rpcrdma/transport"
)

// A fakeSource has the events that a test makes up.
type fakeSource struct {
	mu      sync.Mutex
	err     error // of Watch
	last    int
	watches map[int]func(Event)
}

func (s *fakeSource) Watch(_ *rpc.Request, _ string, _ bool, tell func(Event)) (func(), error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err != nil {
		return nil, s.err
	}
	s.last++
	id := s.last
	s.watches[id] = tell
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.watches, id)
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
	for _, tell := range s.watches {
		tell(e)
	}
}

// A bed is a server with the program.
type bed struct {
	server *Server
	source fakeSource
	addr   string
}

// newBed runs a server until the test ends, which must leave nothing running.
func newBed(t *testing.T) *bed {
	t.Helper()
	leak.Check(t)
	b := &bed{source: fakeSource{watches: make(map[int]func(Event))}}
	b.server = NewServer(&b.source, nil)
	server, err := transport.NewServer(nil)
	testutil.Must(t, err, RegisterNotifyV1(server, b.server))
	l, err := server.Listen(context.Background(), iwarp.New(iwarp.Config{}), "127.0.0.1:0")
	testutil.Must(t, err)
	b.addr = l.Addr().String()
	var serving sync.WaitGroup
	serving.Go(func() { server.Serve(l) })
	t.Cleanup(func() {
		b.server.Close()
		server.Close()
		serving.Wait()
		if n := b.kept(); n != 0 {
			t.Errorf("%d watches are left behind", n)
		}
	})
	return b
}

// kept is how much the server keeps for its clients.
func (b *bed) kept() int {
	b.server.mu.Lock()
	n := len(b.server.watches) + len(b.server.hosts)
	b.server.mu.Unlock()
	b.source.mu.Lock()
	defer b.source.mu.Unlock()
	return n + len(b.source.watches)
}

func (b *bed) client(t *testing.T) *NotifyV1Client {
	t.Helper()
	cl, err := transport.Dial(t.Context(), iwarp.New(iwarp.Config{}), b.addr, &transport.ClientConfig{Streams: true})
	testutil.Must(t, err)
	t.Cleanup(func() { cl.Close() })
	return NewNotifyV1Client(cl)
}

// watching begins a watch, and returns what comes after its first event.
func watching(t *testing.T, c *NotifyV1Client) (next func() (Event, error)) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), testutil.Patience)
	pull, stop := iter.Pull2(c.Watch(ctx, new(WatchArgs)))
	t.Cleanup(func() { cancel(); stop() })
	next = func() (Event, error) {
		e, err, ok := pull()
		if !ok {
			err = errors.New("the watch is over")
		}
		return e, err
	}
	if e, err := next(); err != nil || e.Kind != Watching {
		t.Fatalf("the first event is %v, %v", e, err)
	}
	return next
}

func wantEvent(t *testing.T, next func() (Event, error), want string) {
	t.Helper()
	if e, err := next(); err != nil || e.String() != want {
		t.Fatalf("event %q, %v, want %q", e, err, want)
	}
}

// Changes come in order. A watch ends with its directory, and with the client that leaves it.
func TestWatch(t *testing.T) {
	b := newBed(t)
	c := b.client(t)
	next := watching(t, c)
	b.source.emit(Event{Kind: Created, Path: "a"})
	b.source.emit(Event{Kind: Removed, Path: "a"})
	wantEvent(t, next, "created a")
	wantEvent(t, next, "removed a")
	b.source.emit(Event{Kind: Ended, Status: StatusGone})
	wantEvent(t, next, "ended the directory has been removed or renamed (GONE)")
	testutil.Eventually(t, "the server keeps nothing", func() bool { return b.kept() == 0 })

	for e, err := range c.Watch(t.Context(), new(WatchArgs)) {
		if e.Kind != Watching {
			t.Errorf("%v, %v", e, err)
		}
		break
	}
	testutil.Eventually(t, "the server keeps nothing", func() bool { return b.kept() == 0 })
}

// The client learns why there is no watch.
func TestWatchRefused(t *testing.T) {
	b := newBed(t)
	c := b.client(t)
	for want, err := range map[Status]error{
		StatusNoEnt: fs.ErrNotExist, StatusNotDir: &fs.PathError{Err: syscall.ENOTDIR}, StatusAcces: fs.ErrPermission,
		StatusTooMuch: fmt.Errorf("wrapped: %w", StatusTooMuch), StatusSystem: errors.New("broken"),
	} {
		b.source.refuse(err)
		n := 0
		for e, err := range c.Watch(t.Context(), &WatchArgs{Dir: "dir"}) {
			if n++; err != nil || e.Kind != Ended || e.Status != want {
				t.Errorf("event %v, %v, want the end with %v", e, err, want)
			}
		}
		if n != 1 {
			t.Errorf("%d events", n)
		}
	}
}

// A client that loses its connection watches again over the next one, and learns that changes may be missing.
func TestWatchAgain(t *testing.T) {
	b := newBed(t)
	next := watching(t, b.client(t))
	b.server.mu.Lock()
	for _, conn := range b.server.watches {
		conn.Close()
	}
	b.server.mu.Unlock()
	if e, err := next(); !errors.As(err, new(*stream.GapError)) {
		t.Fatalf("%v, %v, want a gap", e, err)
	}
	wantEvent(t, next, "watching ")
	b.source.emit(Event{Kind: Created, Path: "a"})
	wantEvent(t, next, "created a")
}

// A storm of changes costs a bounded amount of memory for a slow client. The client learns that it has to rescan, and
// gets later events.
func TestWatchStorm(t *testing.T) {
	b := newBed(t)
	slow, quick := watching(t, b.client(t)), watching(t, b.client(t)) // none reads meanwhile
	for i := range maxPending + 2000 {                                // which overflows once
		b.source.emit(Event{Kind: Created, Path: fmt.Sprint(i)})
		b.server.mu.Lock()
		for w := range b.server.watches {
			w.mu.Lock()
			if n := len(w.queue.events); n > maxPending || w.queue.size > maxPendingSize || len(w.queue.told) > maxPending {
				t.Errorf("%d events of %d bytes wait", n, w.queue.size)
			}
			w.mu.Unlock()
		}
		b.server.mu.Unlock()
	}
	read := func(until func(e Event) bool) {
		t.Helper()
		for _, next := range []func() (Event, error){slow, quick} {
			for e, err := next(); !until(e); e, err = next() {
				if err != nil {
					t.Fatal(err)
				}
			}
		}
	}
	read(func(e Event) bool { return e.Kind == Overflow })
	b.source.emit(Event{Kind: Created, Path: "last"})
	read(func(e Event) bool { return e.Path == "last" })
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

// A host of IPv6, which has all addresses of its network, cannot take all watches.
func TestWatchesOfANetwork(t *testing.T) {
	b := newBed(t)
	server, err := transport.NewServer(nil)
	testutil.Must(t, err, RegisterNotifyV1(server, b.server))
	l := &listener{conns: make(chan net.Conn)}
	var serving sync.WaitGroup
	serving.Go(func() { server.ServeTCP(l) })
	defer func() { server.Close(); serving.Wait() }()
	watch := func(addr string) Event {
		cl, err := transport.DialTCPWith(t.Context(), addr, &transport.ClientConfig{NoReconnect: true, Streams: true}, func(context.Context, string) (net.Conn, error) {
			a, b := net.Pipe()
			l.conns <- placed{a, *net.TCPAddrFromAddrPort(netip.MustParseAddrPort(addr))}
			return b, nil
		})
		testutil.Must(t, err)
		t.Cleanup(func() { cl.Close() })
		pull, stop := iter.Pull2(NewNotifyV1Client(cl).Watch(t.Context(), new(WatchArgs)))
		t.Cleanup(stop)
		e, err, _ := pull()
		testutil.Must(t, err)
		return e
	}
	for i := range MaxPerHost {
		if e := watch(fmt.Sprintf("[2001:db8:0:1::%x]:5", i)); e.Kind != Watching {
			t.Fatalf("watch %d: %v", i, e)
		}
	}
	if e := watch("[2001:db8:0:1:2:3:4:5]:5"); e.Status != StatusFull {
		t.Errorf("one watch too many, from another address of the network: %v", e)
	}
	if e := watch("[2001:db8:0:2::1]:5"); e.Kind != Watching {
		t.Errorf("a host of another network: %v", e)
	}
}
