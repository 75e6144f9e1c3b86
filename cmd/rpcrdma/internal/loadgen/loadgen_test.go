package loadgen

import (
	"bytes"
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rpcrdma/rpcrdma/internal/testing/testutil"
	"github.com/rpcrdma/rpcrdma/iwarp"
	"github.com/rpcrdma/rpcrdma/proto/oncrpc"
	"github.com/rpcrdma/rpcrdma/proto/xdr"
	"github.com/rpcrdma/rpcrdma/rpc"
	"github.com/rpcrdma/rpcrdma/transport"
)

// dial connects to a server with program p, until the test ends.
func dial(t *testing.T, p rpc.Program) *transport.Client {
	t.Helper()
	server, err := transport.NewServer(nil)
	testutil.Must(t, err, server.Register(p))
	l, err := server.Listen(t.Context(), iwarp.New(iwarp.Config{}), "127.0.0.1:0")
	testutil.Must(t, err)
	var serving sync.WaitGroup
	serving.Go(func() { server.Serve(l) })
	t.Cleanup(func() { server.Close(); serving.Wait() })
	c, err := transport.Dial(t.Context(), iwarp.New(iwarp.Config{}), l.Addr().String(), &transport.ClientConfig{NoReconnect: true})
	testutil.Must(t, err)
	t.Cleanup(func() { c.Close() })
	return c
}

// The program moves data of every size, inline and in chunks, and refuses what is wrong.
func TestBenchmarkProgram(t *testing.T) {
	c := dial(t, Program())
	call := func(proc uint32, args []byte, ri []rpc.ReadItem, wi []rpc.WriteItem) (*rpc.Call, error) {
		call := &rpc.Call{Prog: ProgramNumber, Vers: ProgramVersion, Proc: proc, Args: args, ReadItems: ri, WriteItems: wi}
		return call, c.Call(t.Context(), call)
	}
	for _, size := range []int{0, 1, 7, 1000, 1 << 20, 3<<20 + 1} {
		data := bytes.Repeat([]byte("0123456789abcde"), size/15+1)[:size]
		if size <= 1000 {
			echo, err := call(ProcEcho, xdr.AppendOpaque(nil, data), nil, nil)
			if got, n := xdr.ConsumeOpaque(echo.Results, 1<<20); err != nil || n != len(echo.Results) || string(got) != string(data) {
				t.Errorf("ECHO of %d bytes: %d bytes, %v", size, len(got), err)
			}
		}
		sink, err := call(ProcSink, xdr.AppendUint32(nil, uint32(size)), []rpc.ReadItem{{Offset: 4, Data: data}}, nil)
		if n, _ := xdr.ConsumeUint32(sink.Results); err != nil || int(n) != size {
			t.Errorf("SINK of %d bytes: %d, %v", size, n, err)
		}
		wi := []rpc.WriteItem{{Buf: make([]byte, max(size, 1))}}
		source, err := call(ProcSource, xdr.AppendUint32(nil, uint32(size)), nil, wi)
		if n, _ := xdr.ConsumeUint32(source.Results); err != nil || int(n) != size || size > 4096 && (!wi[0].Chunked || wi[0].N != size) {
			t.Errorf("SOURCE of %d bytes: %d, %v, %v", size, n, wi[0].Chunked, err)
		}
	}
	for _, tt := range []struct {
		proc uint32
		args []byte
		want oncrpc.AcceptStat
	}{
		{ProcEcho, nil, oncrpc.GarbageArgs},
		{ProcSink, []byte{0, 0, 0, 9}, oncrpc.GarbageArgs},
		{ProcSource, nil, oncrpc.GarbageArgs},
		{ProcSource, []byte{255, 255, 255, 255}, oncrpc.SystemErr},
		{17, nil, oncrpc.ProcUnavail},
	} {
		_, err := call(tt.proc, tt.args, nil, nil)
		var re *oncrpc.RPCError
		if !errors.As(err, &re) || re.AcceptStat != tt.want {
			t.Errorf("procedure %d with %x: %v, want %v", tt.proc, tt.args, err, tt.want)
		}
	}
}

// Each op is measured, for a time or for a number of calls.
func TestRun(t *testing.T) {
	c := dial(t, Program())
	for _, op := range Ops() {
		s := Step{Op: op, Size: 10_000, Depth: 3}
		if op == Null {
			s.Size = 0
		}
		r, err := Run(t.Context(), c, s, Config{Calls: 50})
		if err != nil || r.Step != s || r.N() != 50 || r.Rate() <= 0 || (r.BytesPerSecond() > 0) != (op != Null) {
			t.Errorf("%v: %v calls, %v", s, r.N(), err)
		}
		r, err = Run(t.Context(), c, s, Config{Time: 20 * time.Millisecond, Progress: func(done float64) {
			if done < 0 || done > 1 {
				t.Errorf("%v of the time has passed", done)
			}
		}})
		if err != nil || r.Took < 20*time.Millisecond || r.N() == 0 || r.Min() <= 0 || r.Max() > r.Took {
			t.Errorf("%v: %d calls in %v, %v", s, r.N(), r.Took, err)
		}
	}
}

// A step that cannot be measured is refused.
func TestRunRefuses(t *testing.T) {
	c := dial(t, Program())
	for _, s := range []Step{{Null, 0, 0}, {Read, 0, 1}, {"reed", 1, 1}, {"", 0, 1}} {
		if r, err := Run(t.Context(), c, s, Config{Calls: 1}); err == nil {
			t.Errorf("%+v is measured: %d calls", s, r.N())
		}
	}
}

// A wrong answer ends the step.
func TestRunWrongAnswer(t *testing.T) {
	p := Program()
	p.Handler = rpc.HandlerFunc(func(_ context.Context, _ *rpc.Request, res *rpc.Response) {
		res.Results = append(res.Results, 0, 0, 0, 1)
	})
	c := dial(t, p)
	for _, s := range []Step{{Echo, 64, 2}, {Read, 64, 2}, {Write, 64, 2}} {
		if _, err := Run(t.Context(), c, s, Config{Calls: 100}); !errors.Is(err, ErrWrongData) {
			t.Errorf("%v: %v", s, err)
		}
	}
}

// A server that falls silent ends the step after the timeout, for the reason that the
// caller gives.
func TestRunStalls(t *testing.T) {
	silent := make(chan struct{})
	p := Program()
	p.Handler = rpc.HandlerFunc(func(context.Context, *rpc.Request, *rpc.Response) { <-silent })
	c := dial(t, p)
	t.Cleanup(func() { close(silent) })
	why := errors.New("the reason")
	for want, f := range map[error]func() error{ErrStalled: nil, why: func() error { return why }} {
		if _, err := Run(t.Context(), c, Step{Echo, 64, 2}, Config{Calls: 1, Timeout: time.Millisecond, Stalled: f}); !errors.Is(err, want) {
			t.Errorf("%v, want %v", err, want)
		}
	}
}

func TestHistogram(t *testing.T) {
	// Every duration lies in the bucket it is counted in, and buckets are narrow.
	for _, d := range []time.Duration{0, 1, 63, 64, 65, 127, 128, 129, 1000, 12345, time.Millisecond, time.Second, time.Hour, 1<<63 - 1} {
		i := bucketOf(d)
		if i < 0 || i >= histogramSize || bucketStart(i) > d {
			t.Fatalf("%d is in bucket %d, which begins at %d", d, i, bucketStart(i))
		}
		if i+1 < histogramSize {
			if end := bucketStart(i + 1); end <= d || float64(end-bucketStart(i)) > max(1, float64(d)/32) {
				t.Errorf("%d is in bucket %d, %d to %d", d, i, bucketStart(i), end)
			}
		}
	}
	var all []time.Duration
	var one, two, h Histogram
	r := rand.New(rand.NewPCG(1, 2))
	for i := range 10_000 {
		d := time.Duration(r.ExpFloat64() * 50_000)
		all = append(all, d)
		if i%3 == 0 {
			one.Add(d)
		} else {
			two.Add(d)
		}
	}
	h.Merge(&one)
	h.Merge(new(Histogram))
	h.Merge(&two)
	slices.Sort(all)
	if h.n != 10_000 || h.min != all[0] || h.max != all[len(all)-1] {
		t.Errorf("%d durations from %v to %v, want %v to %v", h.n, h.min, h.max, all[0], all[len(all)-1])
	}
	for _, q := range []float64{0.01, 0.5, 0.9, 0.99, 0.999, 1} {
		want := all[int(q*10_000)-1]
		if got := h.Quantile(q); float64(got) < 0.98*float64(want) || float64(got) > 1.02*float64(want) {
			t.Errorf("quantile %v is %v, want %v", q, got, want)
		}
	}
	if got := new(Histogram).Quantile(0.5); got != 0 {
		t.Errorf("of nothing the median is %v", got)
	}
	var b strings.Builder
	var few Histogram
	for range 99 {
		few.Add(10 * time.Microsecond)
	}
	few.Add(25 * time.Microsecond)
	testutil.Must(t, few.Draw(&b, 20))
	want := "" +
		"  < 12.29µs     99.00 %  ####################\n" +
		"  < 16.38µs      0.00 %  \n" +
		"  < 24.58µs      0.00 %  \n" +
		"  < 32.77µs      1.00 %  .\n"
	if b.String() != want {
		t.Errorf("the histogram is drawn as\n%s, want\n%s", b.String(), want)
	}
}

// When the context of a step has ended, the step's error is the cause, not that of a call that was
// abandoned for it.
func TestBenchSaysWhy(t *testing.T) {
	c := dial(t, Program())
	why := errors.New("the reason")
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(why)
	if _, err := Run(ctx, c, Step{Null, 0, 8}, Config{Time: time.Second, Timeout: time.Minute}); !errors.Is(err, why) {
		t.Errorf("%v", err)
	}
}
