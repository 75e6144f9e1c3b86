package bench

import (
	"maps"
	"strings"
	"testing"

	"github.com/rpcrdma/rpcrdma/iwarp"
)

// ours are the workloads over this module.
func ours() map[string][]Workload {
	p := Loopback(iwarp.New(iwarp.Config{}))
	return map[string][]Workload{
		"Null": {Null(p, 1), Null(p, 32), NullWithCallbacks(p, 1), BackwardNull(p, 1)},
		"Echo": {Echo(p, 64, 1), Echo(p, 64, 32), Echo(p, 2560, 1), EchoV1(p, 2560, 1)},
		"Push": {Push(p, 64<<10, 4), Push(p, 1<<20, 4)},
		"Pull": {Pull(p, 64<<10, 4), Pull(p, 1<<20, 4)},
	}
}

func BenchmarkNull(b *testing.B) { run(b, ours()["Null"]) }
func BenchmarkEcho(b *testing.B) { run(b, ours()["Echo"]) }
func BenchmarkPush(b *testing.B) { run(b, ours()["Push"]) }
func BenchmarkPull(b *testing.B) { run(b, ours()["Pull"]) }

// baselines are the workloads to compare with.
func baselines() map[string][]Workload {
	return map[string][]Workload{
		"TCPEcho":      {TCPEcho(64)},
		"TCPCopy":      {TCPCopy(1<<20, 64<<10), TCPCopy(1<<20, 256<<10), TCPCopy(1<<20, 1<<20)},
		"TCPPipelined": {TCPPipelined(64, 32)},
		"NetRPC":       {NetRPC(64, 1), NetRPC(64, 32)},
		"GRPC": {
			GRPC(64, 1, false), GRPC(64, 1, true), GRPC(64, 32, false), GRPC(64, 32, true),
			GRPCPut(1<<20, false), GRPCPut(1<<20, true),
		},
	}
}

func BenchmarkBaselineTCPEcho(b *testing.B)      { run(b, baselines()["TCPEcho"]) }
func BenchmarkBaselineTCPCopy(b *testing.B)      { run(b, baselines()["TCPCopy"]) }
func BenchmarkBaselineTCPPipelined(b *testing.B) { run(b, baselines()["TCPPipelined"]) }
func BenchmarkBaselineNetRPC(b *testing.B)       { run(b, baselines()["NetRPC"]) }
func BenchmarkBaselineGRPC(b *testing.B)         { run(b, baselines()["GRPC"]) }

// run times workloads one by one.
func run(b *testing.B, list []Workload) {
	for _, w := range list {
		timeOne(b, w)
	}
}

// timeOne times one workload. The first element of its name is the benchmark's.
func timeOne(b *testing.B, w Workload) {
	_, name, _ := strings.Cut(w.Name, "/")
	b.Run(name, func(b *testing.B) {
		in, err := w.Start()
		if err != nil {
			b.Fatal(err)
		}
		defer func() {
			if err := in.Close(); err != nil {
				b.Error(err)
			}
		}()
		if err := in.Do(2 * in.depth); err != nil { // connects, grows buffers
			b.Fatal(err)
		}
		b.ReportAllocs()
		b.SetBytes(int64(w.Bytes))
		b.ResetTimer()
		if err := in.Do(b.N); err != nil {
			b.Fatal(err)
		}
		b.StopTimer()
	})
}

// TestWorkloads sets every workload up, uses it more than once, as the ratios do,
// and closes it.
func TestWorkloads(t *testing.T) {
	all := baselines()
	maps.Copy(all, ours())
	for _, list := range all {
		for _, w := range list {
			t.Run(w.Name, func(t *testing.T) {
				in, err := w.Start()
				if err != nil {
					t.Fatal(err)
				}
				for _, n := range []int{1, 100} {
					if err := in.Do(n); err != nil {
						t.Errorf("%d calls: %v", n, err)
					}
				}
				if err := in.Close(); err != nil {
					t.Error(err)
				}
				if err := in.Call(0); err == nil {
					t.Error("a call after Close succeeds")
				}
			})
		}
	}
}
