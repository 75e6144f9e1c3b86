package selftest

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"runtime"
	"sync"
	"time"

	"github.com/rpcrdma/rpcrdma/cmd/rpcrdma/internal/loadgen"
	"github.com/rpcrdma/rpcrdma/fabric"
	"github.com/rpcrdma/rpcrdma/rpc"
	"github.com/rpcrdma/rpcrdma/transport"
)

// patience is how long the server may not answer.
const patience = 20 * time.Second

// callChecks returns checks that call a server at peer, or, if peer is "", one of this process at addr.
func (s *session) callChecks(prefix, peer string, load time.Duration) (list []check) {
	for _, c := range []struct {
		name string
		step loadgen.Step
	}{
		{"NULL", loadgen.Step{Op: loadgen.Null, Depth: 1}},
		{"NULL, 32 at once", loadgen.Step{Op: loadgen.Null, Depth: 32}},
		{"echo of 64 bytes", loadgen.Step{Op: loadgen.Echo, Size: 64, Depth: 1}},
		{"echo of 1 MiB", loadgen.Step{Op: loadgen.Echo, Size: 1 << 20, Depth: 1}},
		{"1 MiB from the server", loadgen.Step{Op: loadgen.Read, Size: 1 << 20, Depth: 4}},
		{"1 MiB to the server", loadgen.Step{Op: loadgen.Write, Size: 1 << 20, Depth: 4}},
	} {
		list = append(list, check{prefix + c.name, func(t *trial) {
			cl := s.dial(t, peer)
			r, err := loadgen.Run(t.ctx, cl, c.step, loadgen.Config{Time: min(time.Second, load), Timeout: patience})
			t.must(err)
			t.figures["calls_per_s"] = round(r.Rate())
			t.figures["p50_us"], t.figures["p99_us"] = loadgen.Micros(r.Quantile(0.5)), loadgen.Micros(r.Quantile(0.99))
			if c.step.Size > 0 {
				t.figures["mib_per_s"] = round(r.BytesPerSecond() / (1 << 20))
			}
		}})
	}
	return append(list, check{prefix + "load", func(t *trial) { s.load(t, peer, load) }})
}

// dial connects to peer, or to a server of this process. Both are closed at the end of the trial.
func (s *session) dial(t *trial, peer string) *transport.Client {
	p, live, err := s.open()
	t.must(err)
	t.Cleanup(func() {
		p.Close()
		if conns, mrs, mws := live(); conns != 0 || mrs != 0 || mws != 0 {
			t.Errorf("left open: %d connections, %d regions, %d windows", conns, mrs, mws)
		}
	})
	if peer == "" {
		server, err := transport.NewServer(nil)
		t.must(err)
		t.must(server.Register(loadgen.Program()))
		l, err := server.Listen(t.ctx, p, net.JoinHostPort(s.addr, "0"))
		t.must(err)
		peer = l.Addr().String()
		done := make(chan error, 1)
		go func() { done <- server.Serve(l) }()
		t.Cleanup(func() {
			server.Close()
			if err := <-done; !errors.Is(err, net.ErrClosed) {
				t.Errorf("Serve: %v", err)
			}
		})
	}
	ctx, cancel := context.WithTimeout(t.ctx, patience)
	defer cancel()
	cl, err := transport.Dial(ctx, p, peer, nil)
	t.must(err)
	t.Cleanup(func() { cl.Close() })
	return cl
}

// load makes calls of all kinds concurrently, cancels some, and checks that nothing of them remains.
func (s *session) load(t *trial, peer string, d time.Duration) {
	goroutines, files := runtime.NumGoroutine(), descriptors()
	inner := &trial{name: t.name, ctx: t.ctx, figures: t.figures}
	inner.guard(func() { s.underLoad(inner, peer, d) })
	for i := len(inner.cleanups) - 1; i >= 0; i-- {
		inner.guard(inner.cleanups[i])
	}
	t.said, t.failed = inner.said, inner.failed
	deadline := time.Now().Add(patience)
	for runtime.NumGoroutine() > goroutines || descriptors() > files {
		if time.Now().After(deadline) {
			t.Fatalf("before %d goroutines and %d descriptors, after %d and %d", goroutines, files, runtime.NumGoroutine(), descriptors())
		}
		time.Sleep(10 * time.Millisecond)
	}
}

func (s *session) underLoad(t *trial, peer string, d time.Duration) {
	cl := s.dial(t, peer)
	steps := []loadgen.Step{
		{Op: loadgen.Null, Depth: 8}, {Op: loadgen.Echo, Size: 4096, Depth: 8},
		{Op: loadgen.Read, Size: 256 << 10, Depth: 4}, {Op: loadgen.Write, Size: 256 << 10, Depth: 4},
	}
	var wg sync.WaitGroup
	var mu sync.Mutex
	for _, step := range steps {
		wg.Go(func() {
			r, err := loadgen.Run(t.ctx, cl, step, loadgen.Config{Time: d, Timeout: patience})
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				t.Errorf("%s of %d bytes: %v", step.Op, step.Size, err)
				return
			}
			t.figures[fmt.Sprintf("%s_%d_per_s", step.Op, step.Size)] = round(r.Rate())
		})
	}
	wg.Go(func() {
		given, end := 0, time.Now().Add(d)
		for time.Now().Before(end) {
			ctx, cancel := context.WithTimeout(t.ctx, time.Millisecond)
			call := rpc.Call{
				Prog: loadgen.ProgramNumber, Vers: loadgen.ProgramVersion, Proc: loadgen.ProcSource, MaxResults: 4,
				Args: []byte{0, 16, 0, 0}, WriteItems: []rpc.WriteItem{{Buf: make([]byte, 1<<20)}},
			}
			switch err := cl.Call(ctx, &call); {
			case errors.Is(err, context.DeadlineExceeded):
				given++
			case err != nil:
				t.Errorf("a call that may be given up: %v", err)
			}
			cancel()
		}
		mu.Lock()
		t.figures["given_up"] = float64(given)
		mu.Unlock()
	})
	wg.Wait()
}

// descriptors returns the number of open descriptors of this process.
func descriptors() int {
	list, _ := os.ReadDir("/proc/self/fd")
	return len(list)
}

// opener makes a provider, and counts its open objects.
type opener func() (p fabric.Provider, live func() (conns, mrs, mws int), err error)
