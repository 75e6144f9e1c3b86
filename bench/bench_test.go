package bench

import (
	"strings"
	"testing"
)

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

func BenchmarkBaselineTCPEcho(b *testing.B)      { run(b, "TCPEcho") }
func BenchmarkBaselineTCPCopy(b *testing.B)      { run(b, "TCPCopy") }
func BenchmarkBaselineTCPPipelined(b *testing.B) { run(b, "TCPPipelined") }
func BenchmarkBaselineNetRPC(b *testing.B)       { run(b, "NetRPC") }
func BenchmarkBaselineGRPC(b *testing.B)         { run(b, "GRPC") }

// run times the workloads of one baseline.
func run(b *testing.B, name string) {
	for _, w := range baselines()[name] {
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
	for _, list := range baselines() {
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
