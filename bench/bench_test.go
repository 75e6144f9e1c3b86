package bench

import (
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/rpcrdma/rpcrdma/rdmacm"
)

func TestMain(m *testing.M) {
	Child()
	os.Exit(m.Run())
}

// sites are the software adapter, and the RDMA devices that the environment reports, in
// each mode of waiting.
func sites() []Site {
	list := []Site{Software(Adapter{}), Shared()}
	for _, kind := range []string{"rxe", "siw", "hw"} {
		if host := os.Getenv("RPCRDMA_" + strings.ToUpper(kind) + "_ADDR"); host != "" {
			for _, mode := range []rdmacm.WaitMode{rdmacm.WaitAdaptive, rdmacm.WaitEvent, rdmacm.WaitPoll} {
				list = append(list, OnDevice(kind, host, Adapter{Wait: mode}))
			}
		}
	}
	return list
}

// at makes workloads for each site.
func at(f func(Site) []Workload) []Workload {
	var list []Workload
	for _, s := range sites() {
		list = append(list, f(s)...)
	}
	return list
}

// ours are the workloads of this module.
func ours() map[string][]Workload {
	return map[string][]Workload{
		"Null": at(func(s Site) []Workload {
			return []Workload{Null(s, 1), NullWithCallbacks(s, 1), BackwardNull(s, 1), NullContext(s)}
		}),
		"NullDepth": at(func(s Site) (list []Workload) {
			for depth := 1; depth <= 256; depth *= 4 {
				list = append(list, Null(s, depth))
			}
			return list
		}),
		"Echo": at(func(s Site) (list []Workload) {
			for _, size := range []int{1, 64, 1024, 2560, 16 << 10, 64 << 10} {
				list = append(list, Echo(s, size, 1))
			}
			return append(list, EchoV1(s, 2560, 1), Echo(s, 64, 32), EchoPiped(s, 64, 32))
		}),
		"Push": bulk(Push),
		"Pull": bulk(Pull),
		"Reg": at(func(s Site) []Workload {
			return []Workload{
				PushWith(s, Ends{}, 64<<10, 1), PushWith(s, Ends{LocalInv: true}, 64<<10, 1), PushWith(s, Ends{Register: true}, 64<<10, 1),
			}
		}),
		"Conns": at(func(s Site) (list []Workload) {
			for _, conns := range []int{1, 10, 30, 100, 1000} {
				list = append(list, NullConns(s, conns, 128))
			}
			return list
		}),
		"Group": at(func(s Site) []Workload {
			e := Ends{Group: 2}
			return []Workload{NullWith(s, e, 1), NullWith(s, e, 32), PushWith(s, e, 1<<20, 8), PullWith(s, e, 1<<20, 8)}
		}),
		"Connect":    at(func(s Site) []Workload { return []Workload{Connect(s)} }),
		"OverCommit": at(func(s Site) []Workload { return []Workload{OverCommit(s, 16, 16), OverCommit(s, 16, 64)} }),
		"Cancelled": at(func(s Site) []Workload {
			return []Workload{Cancelled(s, Ends{}, 64), Cancelled(s, Ends{LocalInv: true}, 64<<10)}
		}),
		"Hog": at(func(s Site) (list []Workload) {
			for hogs := range 3 {
				list = append(list, Null(s, 1).In(fmt.Sprintf("hogs=%d", hogs), Hogs(hogs)))
			}
			return append(list, Null(s, 1).In("procs=one", OneProcessor))
		}),
		"GC":    at(func(s Site) []Workload { return []Workload{Null(s, 1).In("heap=64Mi", Garbage(64<<20))} }),
		"Write": append(bulk(Write), Write(Software(Adapter{CRC: true}), 1<<20, 4), Write(Software(Adapter{MaxFPDU: 1428}), 1<<20, 4)),
	}
}

// bulk are sizes and depths.
func bulk(f func(Site, int, int) Workload) []Workload {
	return at(func(s Site) (list []Workload) {
		for _, size := range []int{4 << 10, 64 << 10, 1 << 20} {
			list = append(list, f(s, size, 1), f(s, size, 4))
		}
		return list
	})
}

func BenchmarkNull(b *testing.B)       { run(b, ours()["Null"]) }
func BenchmarkNullDepth(b *testing.B)  { run(b, ours()["NullDepth"]) }
func BenchmarkEcho(b *testing.B)       { run(b, ours()["Echo"]) }
func BenchmarkPush(b *testing.B)       { run(b, ours()["Push"]) }
func BenchmarkPull(b *testing.B)       { run(b, ours()["Pull"]) }
func BenchmarkReg(b *testing.B)        { run(b, ours()["Reg"]) }
func BenchmarkConns(b *testing.B)      { run(b, ours()["Conns"]) }
func BenchmarkGroup(b *testing.B)      { run(b, ours()["Group"]) }
func BenchmarkConnect(b *testing.B)    { run(b, ours()["Connect"]) }
func BenchmarkOverCommit(b *testing.B) { run(b, ours()["OverCommit"]) }
func BenchmarkCancelled(b *testing.B)  { run(b, ours()["Cancelled"]) }
func BenchmarkHog(b *testing.B)        { run(b, ours()["Hog"]) }
func BenchmarkGC(b *testing.B)         { run(b, ours()["GC"]) }
func BenchmarkWrite(b *testing.B)      { run(b, ours()["Write"]) }

// BenchmarkIdle measures once, whatever b.N says.
func BenchmarkIdle(b *testing.B) {
	for _, s := range sites() {
		const conns = 100
		b.Run(fmt.Sprintf("prov=%s/conns=%d", s.Name, conns), func(b *testing.B) {
			i, err := MeasureIdle(s, conns, time.Second)
			if err != nil {
				b.Fatal(err)
			}
			b.ReportMetric(i.ClientResident, "client-B/conn")
			b.ReportMetric(i.ServerResident, "server-B/conn")
			b.ReportMetric(i.ClientRoutines+i.ServerRoutines, "goroutines/conn")
			b.ReportMetric(100*i.CPU, "cpu-pct")
		})
	}
}

// baselines are the workloads to compare with.
func baselines() map[string][]Workload {
	return map[string][]Workload{
		"TCPEcho":      {TCPEcho(64), TCPEchoConns(64, 10, 4)},
		"TCPDial":      {TCPDial()},
		"TCPCopy":      {TCPCopy(1<<20, 64<<10), TCPCopy(1<<20, 256<<10), TCPCopy(1<<20, 1<<20)},
		"TCPPipelined": {TCPPipelined(64, 32)},
		"NetRPC":       {NetRPC(64, 1), NetRPC(64, 32)},
		"GRPC": {
			GRPC(64, 1, false), GRPC(64, 1, true), GRPC(64, 32, false), GRPC(64, 32, true),
			GRPCPut(1<<20, false), GRPCPut(1<<20, true),
		},
		"TTRPC":     {TTRPC(64, 1), TTRPC(64, 32)},
		"ONCRPCTCP": {ONCRPCTCP(64, 1), ONCRPCTCP(64, 32)},
	}
}

func BenchmarkBaselineTCPEcho(b *testing.B)      { run(b, baselines()["TCPEcho"]) }
func BenchmarkBaselineTCPDial(b *testing.B)      { run(b, baselines()["TCPDial"]) }
func BenchmarkBaselineTCPCopy(b *testing.B)      { run(b, baselines()["TCPCopy"]) }
func BenchmarkBaselineTCPPipelined(b *testing.B) { run(b, baselines()["TCPPipelined"]) }
func BenchmarkBaselineNetRPC(b *testing.B)       { run(b, baselines()["NetRPC"]) }
func BenchmarkBaselineGRPC(b *testing.B)         { run(b, baselines()["GRPC"]) }
func BenchmarkBaselineTTRPC(b *testing.B)        { run(b, baselines()["TTRPC"]) }
func BenchmarkBaselineONCRPCTCP(b *testing.B)    { run(b, baselines()["ONCRPCTCP"]) }

// splitVariable in the environment gives the server of every benchmark that can have one
// a process of its own.
const splitVariable = "RPCRDMA_BENCH_SPLIT"

// run times workloads one by one.
func run(b *testing.B, list []Workload) {
	for _, w := range list {
		if os.Getenv(splitVariable) != "" {
			w, _ = w.Split()
		}
		timeOne(b, w)
	}
}

// timeOne times one workload. The first element of its name is the benchmark's.
func timeOne(b *testing.B, w Workload) {
	_, name, _ := strings.Cut(w.Name, "/")
	if name == "" {
		name = "all"
	}
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
		hook := func(f func() error) {
			if f != nil {
				if err := f(); err != nil {
					b.Fatal(err)
				}
			}
		}
		hook(in.Enter)
		defer hook(in.Leave)
		var before [2]Counters
		if in.Counters != nil {
			before[0], before[1] = in.Counters()
		}
		cpu := ProcessorTime()
		b.ReportAllocs()
		b.SetBytes(int64(w.Bytes))
		b.ResetTimer()
		if err := in.Do(b.N); err != nil {
			b.Fatal(err)
		}
		b.StopTimer()
		n := float64(b.N)
		b.ReportMetric(float64(ProcessorTime()-cpu)/n, "cpu-ns/op")
		var after [2]Counters
		if in.Counters != nil {
			after[0], after[1] = in.Counters()
		}
		// Looking at single calls costs time and memory of its own.
		times, err := in.Observe(min(b.N, 10_000))
		if err != nil {
			b.Fatal(err)
		}
		slices.Sort(times)
		if k := len(times); k > 0 {
			b.ReportMetric(float64(times[(k-1)/2]), "p50-ns")
			b.ReportMetric(float64(times[(k-1)*99/100]), "p99-ns")
		}
		for i, side := range []string{"client", "server"} {
			a, c := after[i], before[i]
			for unit, count := range map[string]uint64{
				"doorbells": a.Doorbells - c.Doorbells, "cgo": a.CgoCalls - c.CgoCalls, "syscalls": a.Syscalls - c.Syscalls, "wakes": a.Wakes - c.Wakes,
			} {
				if count > 0 {
					b.ReportMetric(float64(count)/n, side+"-"+unit+"/op")
				}
			}
		}
	})
}

// TestWorkloads sets every workload up, uses it more than once, as the ratios do,
// and closes it; with its server in this process, and in one of its own.
func TestWorkloads(t *testing.T) {
	all := baselines()
	maps.Copy(all, ours())
	for _, list := range all {
		for _, w := range list {
			t.Run(w.Name, func(t *testing.T) { use(t, w) })
			if s, ok := w.Split(); ok && w.Depth < 100 && w.Under == nil {
				t.Run(s.Name, func(t *testing.T) { use(t, s) })
			}
		}
	}
}

func use(t *testing.T, w Workload) {
	in, err := w.Start()
	if err != nil {
		t.Fatal(err)
	}
	hook := func(f func() error) {
		if f != nil {
			if err := f(); err != nil {
				t.Error(err)
			}
		}
	}
	for _, n := range []int{1, min(4*max(w.Depth, 4), 100)} { // more than are under way at once
		hook(in.Enter)
		times, err := in.Observe(n)
		hook(in.Leave)
		if err != nil {
			t.Errorf("%d calls: %v", n, err)
		}
		if in.Batch == nil && len(times) != n {
			t.Errorf("%d times of %d calls", len(times), n)
		}
	}
	if in.Used != nil {
		if used, err := in.Used(); err != nil || used <= 0 {
			t.Errorf("the server's process has used %v, %v", used, err)
		}
	}
	if err := in.Close(); err != nil {
		t.Error(err)
	}
	again := func() error { return in.Call(0) }
	if in.Batch != nil {
		again = func() error { _, err := in.Batch(1); return err }
	}
	if err := again(); err == nil {
		t.Error("a call after Close succeeds")
	}
}
