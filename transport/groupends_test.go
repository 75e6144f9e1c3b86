package transport_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rpcrdma/rpcrdma/fabric"
	"github.com/rpcrdma/rpcrdma/internal/testing/leak"
	"github.com/rpcrdma/rpcrdma/iwarp"
	"github.com/rpcrdma/rpcrdma/proto/oncrpc"
	"github.com/rpcrdma/rpcrdma/proto/xdr"
	"github.com/rpcrdma/rpcrdma/rpc"
	"github.com/rpcrdma/rpcrdma/transport"
)

// TestIwarpGroup runs the suite for Requesters on a group with several connections.
func TestIwarpGroup(t *testing.T) {
	b := onIwarp(iwarp.Config{})
	b.conns = 3
	for name, run := range map[string]func(*testing.T, *bed){
		"Sizes": testSizes, "Long": testLong, "Parallel": testParallel, "Line": testLine, "Registered": testGroupMemory,
	} {
		t.Run(name, func(t *testing.T) {
			leak.Check(t)
			run(t, b)
		})
	}
}

// grown waits until g has all its connections, while calls keep them busy.
func grown(t *testing.T, w *world, g *transport.Group, conns int) {
	t.Helper()
	var wg sync.WaitGroup
	var full atomic.Bool
	end := time.Now().Add(30 * time.Second)
	for range 8 * conns {
		wg.Go(func() {
			var call rpc.Call
			data, buf := make([]byte, 1<<19), make([]byte, 1<<19)
			for !full.Load() && time.Now().Before(end) {
				if err := echo(g, procSlow, data, buf, &call); err != nil {
					t.Error(err)
					return
				}
				if g.Stats().OpenConns == uint64(conns) {
					full.Store(true)
				}
			}
		})
	}
	wg.Wait()
	if !full.Load() {
		t.Fatalf("the group has not grown to %d connections: %+v", conns, g.Stats())
	}
}

// testGroupMemory: memory that is registered with a group is there on each connection, and
// nowhere after Close.
func testGroupMemory(t *testing.T, b *bed) {
	w := b.start(t, nil)
	g := w.requester(t, nil).(*transport.Group)
	mem, err := g.RegisterMemory(make([]byte, 1<<20))
	if err != nil {
		t.Fatal(err)
	}
	grown(t, w, g, b.conns)
	var call rpc.Call
	if err := echo(g, procEcho, mem.Bytes()[:1<<19], mem.Bytes()[1<<19:], &call); err != nil {
		t.Error(err)
	}
	if err := mem.Close(); err != nil {
		t.Error(err)
	}
}

const procOnce = 1 // uint32 id -> nothing; not to be executed twice

// onceLog is a program with calls that must be executed once. It ends connections in between.
type onceLog struct {
	mu    sync.Mutex
	times map[uint32]int // executed
	cuts  int
}

func (l *onceLog) ServeRPC(_ context.Context, req *rpc.Request, res *rpc.Response) {
	id, n := xdr.ConsumeUint32(req.Args)
	if n <= 0 || req.Proc != procOnce {
		res.Fail(oncrpc.ProcUnavail)
		return
	}
	l.mu.Lock()
	l.times[id]++
	cut := l.times[id] == 1 && id%97 == 0
	if cut {
		l.cuts++
	}
	l.mu.Unlock()
	if cut {
		req.Conn().Close()
	}
	time.Sleep(5 * time.Millisecond) // work, so that calls wait for credits
}

// TestGroupOnce checks that non-idempotent calls are executed only once, although connections are continually lost
// while calls wait, run, and move to other connections.
func TestGroupOnce(t *testing.T) {
	for name, provider := range map[string]fabric.Provider{"iwarp": iwarp.New(iwarp.Config{}), "tcp": transport.TCP{}} {
		t.Run(name, func(t *testing.T) {
			leak.Check(t)
			l := &onceLog{times: make(map[uint32]int)}
			server, err := transport.NewServer(&transport.ServerConfig{Config: transport.Config{Credits: 4}})
			if err != nil {
				t.Fatal(err)
			}
			if err := server.Register(rpc.Program{Number: prog, Low: 1, High: 1, Handler: l}); err != nil {
				t.Fatal(err)
			}
			at, err := server.Listen(bg, provider, "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			served := make(chan error, 1)
			go func() { served <- server.Serve(at) }()
			defer func() {
				server.Close()
				<-served
			}()
			g, err := transport.DialGroup(bg, provider, []string{at.Addr().String()}, &transport.ClientConfig{
				Connections: 4, MaxPause: 20 * time.Millisecond, Config: transport.Config{Credits: 4},
			})
			if err != nil {
				t.Fatal(err)
			}
			defer g.Close()
			const callers, each = 48, 40
			var wg sync.WaitGroup
			for c := range uint32(callers) {
				wg.Go(func() {
					for i := range uint32(each) {
						call := rpc.Call{Prog: prog, Vers: 1, Proc: procOnce, Args: xdr.AppendUint32(nil, c*each+i)}
						if err := g.Call(bg, &call); err != nil {
							t.Errorf("call %d: %v", c*each+i, err)
							return
						}
					}
				})
			}
			wg.Wait()
			l.mu.Lock()
			defer l.mu.Unlock()
			for id := range uint32(callers * each) {
				if n := l.times[id]; n != 1 {
					t.Errorf("call %d was executed %d times", id, n)
				}
			}
			st := g.Stats()
			t.Logf("%d connections were cut; %+v", l.cuts, st)
			if l.cuts == 0 || st.Resent == 0 || st.Conns < uint64(l.cuts)+2 {
				t.Error("nothing happened")
			}
		})
	}
}

// TestGroupRestart checks that clients with several connections each return after a server restart, and that nothing
// remains when they go.
func TestGroupRestart(t *testing.T) {
	leak.Check(t)
	b := onIwarp(iwarp.Config{})
	p, live := b.provider(t)
	serve := func(addr string) (*transport.Server, string, chan error) {
		s, err := transport.NewServer(nil)
		if err != nil {
			t.Fatal(err)
		}
		if err := s.Register(rpc.Program{Number: prog, Low: 1, High: 1, Handler: &service{}, Idempotent: rpc.Every}); err != nil {
			t.Fatal(err)
		}
		l, err := s.Listen(bg, p, addr)
		if err != nil {
			t.Fatal(err)
		}
		served := make(chan error, 1)
		go func() { served <- s.Serve(l) }()
		return s, l.Addr().String(), served
	}
	s, addr, served := serve(b.addr)
	g, err := transport.DialGroup(bg, p, []string{addr}, &transport.ClientConfig{Connections: 3,
		MaxPause:   20 * time.Millisecond,
		Idempotent: func(_, _, _ uint32) bool { return true }})
	if err != nil {
		t.Fatal(err)
	}
	var stop atomic.Bool
	var calls atomic.Int64
	var wg sync.WaitGroup
	for range 12 {
		wg.Go(func() {
			var call rpc.Call
			data, buf := make([]byte, 300_000), make([]byte, 300_000)
			fill(data, 5)
			for !stop.Load() {
				if err := echo(g, procSlow, data, buf, &call); err != nil {
					t.Error(err)
					return
				}
				calls.Add(1)
			}
		})
	}
	more := func() {
		t.Helper()
		want, end := calls.Load()+100, time.Now().Add(b.patience())
		for calls.Load() < want {
			if time.Now().After(end) {
				t.Fatalf("calls are not made: %+v", g.Stats())
			}
			time.Sleep(time.Millisecond)
		}
	}
	for range 5 {
		more()
		s.Close()
		<-served
		s, _, served = serve(addr)
	}
	more()
	stop.Store(true)
	wg.Wait()
	t.Logf("%+v", g.Stats())
	if err := g.Shutdown(bg); err != nil {
		t.Error(err)
	}
	s.Close()
	<-served
	live.check(t)
}

// TestGroupCloseUnderLoad checks Close while many calls run and connections are being made.
func TestGroupCloseUnderLoad(t *testing.T) {
	b := onIwarp(iwarp.Config{})
	for i := range b.count(30) {
		leak.Check(t)
		w := b.start(t, &transport.Settings{Credits: 8})
		g, err := transport.DialGroup(bg, w.provider, []string{w.addr}, &transport.ClientConfig{Connections: 4})
		if err != nil {
			t.Fatal(err)
		}
		var wg sync.WaitGroup
		for range 20 {
			wg.Go(func() {
				var call rpc.Call
				data, buf := make([]byte, 200_000), make([]byte, 200_000)
				for {
					if err := echo(g, procEcho, data, buf, &call); err != nil {
						if !errors.Is(err, net.ErrClosed) {
							t.Error(err)
						}
						return
					}
				}
			})
		}
		for g.Stats().Calls < uint64(100*(i%5)) {
			time.Sleep(time.Millisecond)
		}
		if i%2 == 0 {
			err = g.Close()
		} else {
			err = g.Shutdown(bg)
		}
		if err != nil {
			t.Error(err)
		}
		wg.Wait()
	}
}

// TestGroupAllocs checks that a group's calls do not allocate.
func TestGroupAllocs(t *testing.T) {
	if raceEnabled {
		t.Skip("the race detector allocates")
	}
	b := onIwarp(iwarp.Config{})
	b.conns = 2
	w := b.start(t, nil)
	g := w.requester(t, nil).(*transport.Group)
	grown(t, w, g, 2)
	call := rpc.Call{Prog: prog, Vers: 1, Proc: procEcho, Args: xdr.AppendOpaque(nil, make([]byte, 100)), MaxResults: 104}
	one := func() {
		if err := g.Call(bg, &call); err != nil {
			t.Fatal(err)
		}
	}
	one()
	if n := testing.AllocsPerRun(200, one); n != 0 {
		t.Errorf("%v allocations per call", n)
	}
}

// Files are fetched over up to four connections, to either of the server's addresses. Reads that may
// be repeated go on at once when a connection is lost.
func ExampleDialGroup() {
	ctx := context.Background()
	group, err := transport.DialGroup(ctx, iwarp.New(iwarp.Config{}),
		[]string{"192.0.2.1:20049", "198.51.100.1:20049"},
		&transport.ClientConfig{
			Connections: 4,
			Idempotent:  func(prog, _, proc uint32) bool { return prog == 0x20000001 && proc == 1 },
		})
	if err != nil {
		log.Fatal(err)
	}
	defer group.Close()
	var callers sync.WaitGroup
	for block := range uint32(16) {
		callers.Go(func() {
			call := rpc.Call{Prog: 0x20000001, Vers: 1, Proc: 1, Args: xdr.AppendUint32(nil, block)}
			call.Receive(make([]byte, 1<<20))
			if err := group.Call(ctx, &call); err != nil {
				log.Print(err)
			}
		})
	}
	callers.Wait()
	fmt.Println(group.Stats().OpenConns, "connections")
}
