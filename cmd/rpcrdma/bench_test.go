package main

import (
	"context"
	"net"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/rpcrdma/rpcrdma/cmd/rpcrdma/internal/loadgen"
	"github.com/rpcrdma/rpcrdma/cmd/rpcrdma/internal/look"
	"github.com/rpcrdma/rpcrdma/iwarp"
	"github.com/rpcrdma/rpcrdma/rpc"
	"github.com/rpcrdma/rpcrdma/transport"
)

// Every op is measured with each size and depth, and the numbers of a step are consistent.
func TestBench(t *testing.T) {
	s := startServer(t, "--dir", t.TempDir())
	for _, version := range []string{"1", "2"} {
		out := mustRun(t, "bench", "--json", "--version", version, "--calls", "60",
			"--size", "1,100,64Ki..128Ki", "--depth", "1,8", s.addr)
		j := decodeJSON[look.BenchJSON](t, out)
		if j.Address != s.addr || j.Provider != "iwarp" || j.Program != loadgen.ProgramNumber || j.Version != loadgen.ProgramVersion || j.InlineSend != 4096 || !j.Windows {
			t.Errorf("%+v", j)
		}
		if want := uint32(version[0] - '0'); j.RDMA != want {
			t.Errorf("RPC-over-RDMA version %d, want %d", j.RDMA, want)
		}
		if since := time.Since(j.Started); since < 0 || since > testTimeout {
			t.Errorf("started %v ago", since)
		}
		var want []loadgen.Step
		for _, op := range loadgen.Ops() {
			for _, size := range []int{1, 100, 64 << 10, 128 << 10} {
				for _, depth := range []int{1, 8} {
					if op == loadgen.Null {
						size = 0
					}
					if st := (loadgen.Step{Op: op, Size: size, Depth: depth}); !slices.Contains(want, st) {
						want = append(want, st)
					}
				}
			}
		}
		var got []loadgen.Step
		for _, st := range j.Steps {
			got = append(got, loadgen.Step{Op: st.Op, Size: st.Size, Depth: st.Depth})
			if st.Calls != 60 || st.Seconds <= 0 || st.CallsPerSecond <= 0 || (st.BytesPerSecond > 0) != (st.Op != loadgen.Null) {
				t.Errorf("%+v", st)
			}
			if st.Min <= 0 || st.Min > st.P50 || st.P50 > st.P90 || st.P90 > st.P99 || st.P99 > st.P999 || st.P999 > st.Max {
				t.Errorf("times are out of order: %+v", st)
			}
			var n uint64
			for _, b := range st.Histogram {
				n += b.Calls
			}
			if n != st.Calls || st.Histogram[len(st.Histogram)-1].Below < st.Max {
				t.Errorf("the histogram has %d calls: %+v", n, st)
			}
		}
		if !slices.Equal(got, want) {
			t.Errorf("steps\n%v, want\n%v", got, want)
		}
	}
}

func TestBenchText(t *testing.T) {
	s := startServer(t, "--dir", t.TempDir())
	out := mustRun(t, "bench", "--calls", "10", "--size", "2Ki", "--depth", "4", "--histogram", s.addr)
	for _, want := range []string{
		`(?m)^RPCRDMA_BENCH at 127\.0\.0\.1:\d+ over iwarp, RPC-over-RDMA version 2, 4096 bytes inline$`,
		`(?m)^ +op +size +depth +calls/s +MiB/s +min +p50 +p90 +p99 +p99\.9 +max$`,
		`(?m)^ +null +- +4 +\d+ +- +`,
		`(?m)^ +echo +2Ki +4 +\d+ +[\d.]+ +`,
		`(?m)^ +read +2Ki +4 +\d+ +[\d.]+ +`,
		`(?m)^ +write +2Ki +4 +\d+ +[\d.]+ +`,
		`(?m)^write of 2Ki, depth 4: 10 calls in `,
		`(?m)^  < [\d.]+.?s +[\d.]+ %  #+$`,
	} {
		if !regexp.MustCompile(want).MatchString(out) {
			t.Errorf("bench prints nothing like %s:\n%s", want, out)
		}
	}
}

// A step that is bounded by time takes at least that long.
// Connections are added for bulk data, not for a few small calls.
func TestBenchConnections(t *testing.T) {
	s := startServer(t, "--dir", t.TempDir())
	for op, want := range map[string]uint64{"read": 2, "null": 1} {
		j := decodeJSON[look.BenchJSON](t, mustRun(t, "bench", "--json", "--connections", "2", "--op", op, "--size", "2Mi", "--depth", "8", "--time", "500ms", s.addr))
		if j.Conns != want {
			t.Errorf("%s: %d connections, want %d", op, j.Conns, want)
		}
	}
	out := mustRun(t, "bench", "--connections", "2", "--op", "write", "--size", "2Mi", "--depth", "8", "--time", "500ms", s.addr)
	if !strings.Contains(out, "bytes inline, 2 connections\n") {
		t.Error(out)
	}
}

func TestBenchTime(t *testing.T) {
	s := startServer(t, "--dir", t.TempDir())
	j := decodeJSON[look.BenchJSON](t, mustRun(t, "bench", "--json", "--op", "null", "--depth", "2", "--time", "50ms", s.addr))
	if n := len(j.Steps); n != 1 {
		t.Fatalf("%d steps", n)
	}
	if st := j.Steps[0]; st.Seconds < 0.05 || st.Calls < 2 {
		t.Errorf("%d calls in %v s", st.Calls, st.Seconds)
	}
}

func TestBenchUsage(t *testing.T) {
	for _, tt := range []struct {
		text string
		args []string
	}{
		{"argument HOST[:PORT] is missing", nil},
		{"want HOST or HOST:PORT", []string{"a:b:c"}},
		{`--op "reed": want null, echo, read, write`, []string{"--op", "reed", "h:1"}},
		{`--size "1Gi": want numbers such as`, []string{"--size", "1Gi", "h:1"}},
		{`--size "-1": want numbers`, []string{"--size", "64,-1", "h:1"}},
		{`--size "0": want 1 to 4092Ki`, []string{"--size", "0", "h:1"}},
		{`--size "4Mi": want 1 to 4092Ki`, []string{"--size", "4Mi", "h:1"}},
		{`--size "99999999999999999999"`, []string{"--size", "99999999999999999999", "h:1"}},
		{`--size "8..4": the range ends before it begins`, []string{"--size", "8..4", "h:1"}},
		{`--depth "129": want 1 to 128`, []string{"--depth", "129", "h:1"}},
		{"--depth is empty", []string{"--depth", "", "h:1"}},
		{"--time is 0s", []string{"--time", "0", "h:1"}},
		{"--calls is -1", []string{"--calls", "-1", "h:1"}},
		{"steps, want at most 1000", []string{"--size", "1..2Mi,1..2Mi,1..2Mi", "--depth", "1..128,1..128", "h:1"}},
		{"--wait is for --provider rdma", []string{"--wait", "poll", "h:1"}},
	} {
		mustFail(t, 2, tt.text, append([]string{"bench"}, tt.args...)...)
	}
}

func TestBenchErrors(t *testing.T) {
	// No server listens there.
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	nobody := l.Addr().String()
	l.Close()
	mustFail(t, 1, "bench: no connection to "+nobody+" over iwarp: connection refused", "bench", nobody)

	// A server without the program.
	server, err := transport.NewServer(nil)
	if err != nil {
		t.Fatal(err)
	}
	sl, err := server.Listen(t.Context(), iwarp.New(iwarp.Config{}), "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- server.Serve(sl) }()
	defer func() { server.Close(); <-served }()
	mustFail(t, 1, "the server does not have RPCRDMA_BENCH (PROG_UNAVAIL)", "bench", sl.Addr().String())

	// A server that goes away, or falls silent, during a step.
	s := startServer(t, "--dir", t.TempDir())
	for _, cut := range []bool{true, false} {
		p := startProxy(t, s.addr, 1<<20, cut)
		text, limit := "no answer from the server for 300ms", "300ms"
		if cut {
			text, limit = "connection lost", "1m"
		}
		mustFail(t, 1, text, "bench", "--op", "read", "--depth", "4", "--size", "64Ki", "--time", "1m", "--timeout", limit, p.addr)
	}
}

// A wrong answer fails the measurement.
func TestBenchWrongAnswer(t *testing.T) {
	server, err := transport.NewServer(nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := server.Register(rpc.Program{
		Number: loadgen.ProgramNumber, Low: loadgen.ProgramVersion, High: loadgen.ProgramVersion, Idempotent: rpc.Every,
		Handler: rpc.HandlerFunc(func(_ context.Context, req *rpc.Request, res *rpc.Response) {
			switch req.Proc {
			case loadgen.ProcEcho:
				res.Results = append(res.Results, req.Args...)
				res.Results[len(res.Results)-1] ^= 1
			case loadgen.ProcSink:
				res.Results = append(res.Results, 0, 0, 0, 1)
			case loadgen.ProcSource:
				res.AddItem(make([]byte, 3), nil)
			}
		}),
	}); err != nil {
		t.Fatal(err)
	}
	l, err := server.Listen(t.Context(), iwarp.New(iwarp.Config{}), "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- server.Serve(l) }()
	defer func() { server.Close(); <-served }()
	for _, op := range []string{"echo", "read", "write"} {
		for _, size := range []string{"64", "64Ki"} {
			mustFail(t, 1, op+" of "+size+", depth 1: the answer has the wrong length or contents", "bench", "--op", op, "--size", size, "--depth", "1", l.Addr().String())
		}
	}
}

// An interrupted bench says so and ends.
func TestBenchInterrupted(t *testing.T) {
	s := startServer(t, "--dir", t.TempDir())
	p := startProxy(t, s.addr, 64<<10, false) // reached when it is under way
	ctx, cancel := context.WithTimeout(t.Context(), testTimeout)
	defer cancel()
	cmd := command(ctx, "bench", "--op", "null", "--time", "1h", "--timeout", "1h", p.addr)
	var stderr strings.Builder
	cmd.Stderr = &stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	select {
	case <-p.reached:
	case <-ctx.Done():
	}
	if err := cmd.Process.Signal(syscall.SIGINT); err != nil {
		t.Fatal(err)
	}
	cmd.Wait()
	if code := cmd.ProcessState.ExitCode(); code != 1 || !strings.HasSuffix(strings.TrimSpace(stderr.String()), "interrupted") {
		t.Errorf("status %d\n%s", code, &stderr)
	}
}
