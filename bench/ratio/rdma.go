package main

import (
	"fmt"
	"os"
	"strings"

	"github.com/rpcrdma/rpcrdma/bench"
	"github.com/rpcrdma/rpcrdma/bench/internal/measure"
	"github.com/rpcrdma/rpcrdma/bench/internal/result"
	"github.com/rpcrdma/rpcrdma/rdmacm"
)

// deviceConns replaces 1000 as the number of connections on software devices in a virtual machine, where connecting
// takes some milliseconds.
const deviceConns = 100

// kinds lists the kinds of devices that may have an address in the environment: RPCRDMA_RXE_ADDR, RPCRDMA_SIW_ADDR, and
// RPCRDMA_HW_ADDR for hardware. Immutable.
var kinds = []string{"rxe", "siw", hardware}

const hardware = "hw"

func addressOf(kind string) string { return os.Getenv("RPCRDMA_" + strings.ToUpper(kind) + "_ADDR") }

// devicePlan returns the plan for RDMA devices: it compares calls with a C program on the same device with the same
// number of messages. The addresses of the devices are in the environment, as set by scripts/vm.
func devicePlan(cverbs string) (plan, error) {
	var p plan
	p.title = "RDMA devices"
	p.missing = missing(false)
	for _, kind := range kinds {
		host := addressOf(kind)
		if host == "" {
			continue
		}
		d := deviceAt(kind, host, cverbs)
		list := tasks(d.pairs())
		if emulated() {
			for i := range list {
				if counted[strings.TrimPrefix(list[i].ID, kind+" ")] {
					list[i].Floor, list[i].Want = 0, 0
				}
			}
		}
		if kind == hardware {
			list[0].derived = overhead
		}
		p.pairs = append(p.pairs, list...)
		p.values = append(p.values, countTask(kind, d.event, true), idleTask(kind, d.adaptive, deviceConns, 64, 24, 1, 0))
		p.distributions = append(p.distributions, measure.Distribution{
			ID: id(kind, "latency"), What: id(kind, "Time of single RPC NULL, one at a time"),
			Points: []measure.Point{
				{Series: "polled", W: bench.Null(d.poll, 1)}, {Series: "adaptive", W: bench.Null(d.adaptive, 1)}, {Series: "with events", W: bench.Null(d.event, 1)},
			},
		})
		p.sweeps = append(p.sweeps, sizeSweep(kind, d.event), throughputSweep(d.event, false), depthSweep(d.event, false), connsSweep(d.event, deviceConns))
	}
	if len(p.pairs) == 0 {
		return p, fmt.Errorf("none of RPCRDMA_RXE_ADDR, RPCRDMA_SIW_ADDR and RPCRDMA_HW_ADDR has the address of an RDMA device; -vm boots a machine with some")
	}
	return p, nil
}

// counted lists the rows with floors that apply to instructions if the processor is emulated, because times are then
// those of the emulator. See bench/instructions. Immutable.
var counted = map[string]bool{"2": true, "6 d1": true, "6 d8": true, "6 d32": true, "6 d128": true, "7a": true, "7c": true, "30": true}

// emulated reports whether QEMU emulates the processors of this machine.
func emulated() bool {
	b, err := os.ReadFile("/proc/cpuinfo")
	return err == nil && strings.Contains(string(b), "QEMU TCG CPU")
}

// overhead returns the time that a call adds to the ping-pong.
func overhead(p result.Pair) result.Value {
	return result.Value{
		ID: id(hardware, "5"), Goal: 5, What: "what a polled RPC NULL adds to the polled ping-pong in C", Unit: "µs",
		Value: result.Float(float64(p.TimeA-p.TimeB) / 1e3), Floor: 2, Want: 1, Judged: true, Busy: p.Disturbed(),
	}
}

// device is a device of a kind, in all wait modes.
type device struct {
	kind, host, cverbs              string
	poll, event, adaptive, windowed bench.Site
}

func deviceAt(kind, host, cverbs string) device {
	site := func(a bench.Adapter) bench.Site { return bench.OnDevice(kind, host, a) }
	return device{
		kind: kind, host: host, cverbs: cverbs,
		poll: site(bench.Adapter{Wait: rdmacm.WaitPoll}), event: site(bench.Adapter{Wait: rdmacm.WaitEvent}),
		adaptive: site(bench.Adapter{Wait: rdmacm.WaitAdaptive}), windowed: site(bench.Adapter{Wait: rdmacm.WaitAdaptive, Windows: true}),
	}
}

// c returns a C program with its options, in both wait modes; the better one is used.
func (d *device) c(command string, size int) []bench.Workload {
	name, options, _ := strings.Cut(command, " ")
	var both []bench.Workload
	for _, mode := range []string{"poll", "event"} {
		both = append(both, d.c1(fmt.Sprintf("%s -m %s %s", name, mode, options), size))
	}
	return both
}

func (d *device) c1(command string, size int) bench.Workload {
	return bench.CVerbs(d.cverbs, strings.TrimSpace(command), d.host, size)
}

func (d *device) pairs() []measure.Pair {
	const rate = result.Rate
	row := func(name string) string { return id(d.kind, name) }
	poll, event, adaptive := d.poll, d.event, d.adaptive
	hogs, hogName := bench.Hogs(numCPU()), fmt.Sprintf("hogs=%d", numCPU())
	kept := bench.Ends{Kept: true} // pre-registered memory, for goals 7 and 8
	one := func(w bench.Workload) bench.Workload { return w.In("procs=one", bench.OneProcessor) }
	beside := func(w bench.Workload) bench.Workload { return w.In(hogName, hogs) }
	writes := append(d.c("stream -o write -d 4", mib), bench.WriteBW(d.host, mib))

	pairs := []measure.Pair{
		{ID: row("1"), Goal: 1, What: "RPC NULL polled, over a polled ping-pong in C", A: bench.Null(poll, 1), B: list(d.c1("pingpong -m poll", 0)), Floor: 1.6, Want: 1.3},
		{ID: row("2"), Goal: 2, What: "RPC NULL with events, over a ping-pong in C with events", A: bench.Null(event, 1), B: list(d.c1("pingpong -m event", 0)), Floor: 1.5, Want: 1.25},
		{ID: row("3"), Goal: 3, What: "RPC NULL adaptive, over the better of polled and with events", A: bench.Null(adaptive, 1), B: list(bench.Null(poll, 1), bench.Null(event, 1)), Floor: 1.5, Want: 1.2},
		{ID: row("4a"), Goal: 4, What: "the same beside a hog for each CPU", A: beside(bench.Null(adaptive, 1)), B: list(beside(bench.Null(poll, 1)), beside(bench.Null(event, 1))), Floor: 2, Want: 1.3},
		{ID: row("4b"), Goal: 4, What: "the same with GOMAXPROCS=1", A: one(bench.Null(adaptive, 1)), B: list(one(bench.Null(poll, 1)), one(bench.Null(event, 1))), Floor: 2, Want: 1.3},
	}
	for _, depth := range []int{1, 8, 32, 128} {
		pairs = append(pairs, measure.Pair{
			ID: row(fmt.Sprintf("6 d%d", depth)), Goal: 6, What: fmt.Sprintf("RPC echo of 64 B, %d outstanding, over a pipeline in C", depth), Kind: rate,
			A: bench.Echo(adaptive, 64, depth), B: d.c(fmt.Sprintf("pipeline -d %d", depth), 0), Floor: 0.6, Want: 0.8,
		})
	}
	pairs = append(pairs, []measure.Pair{
		{ID: row("7a"), Goal: 7, What: "1 MiB read through a write chunk, 4 outstanding, in memory that stays registered, over Writes in C", Kind: rate, A: bench.PushWith(adaptive, kept, mib, 4), B: writes, Floor: 0.85, Want: 0.95, Longer: 2},
		{ID: row("7b"), What: "the same, 1 outstanding, over request, Write and reply in C", Kind: rate, A: bench.PushWith(adaptive, kept, mib, 1), B: d.c("stream -o push -d 1", mib), Longer: 2},
		{ID: row("7c"), Goal: 7, What: "1 MiB written through a read chunk, 4 outstanding, from memory that stays registered, over Reads in C", Kind: rate, A: bench.PullWith(adaptive, kept, mib, 4), B: d.c("stream -o read -d 4", mib), Floor: 0.85, Want: 0.95, Longer: 2},
		{ID: row("9"), Goal: 9, What: "1 MiB read through a write chunk, 4 outstanding, both ends registering for each call, over Writes in C", Kind: rate, A: bench.PushWith(adaptive, bench.Ends{Register: true}, mib, 4), B: writes[:2], Want: 0.6, Longer: 2},
		{ID: row("9a"), What: "1 MiB read through a write chunk, 4 outstanding, the client registering for each call, over Writes in C", Kind: rate, A: bench.Push(adaptive, mib, 4), B: writes[:2], Longer: 2},
		{ID: row("9c"), What: "1 MiB written through a read chunk, 4 outstanding, the client registering for each call, over Reads in C", Kind: rate, A: bench.Pull(adaptive, mib, 4), B: d.c("stream -o read -d 4", mib), Longer: 2},
		{ID: row("17"), Goal: 17, What: "RPC NULL, over gRPC on the same machine", A: bench.Null(adaptive, 1), B: list(bench.GRPC(64, 1, false)), Floor: 0.6, Want: 0.35},
		{ID: row("24"), Goal: 24, What: fmt.Sprintf("RPC NULL, 128 outstanding on %d connections, over one connection", deviceConns), Kind: rate, A: bench.NullConns(event, deviceConns, 128), B: list(bench.NullConns(event, 1, 128)), Floor: 0.5, Want: 0.8, Longer: 4},
		{ID: row("25"), Goal: 25, What: "RPC NULL, 32 outstanding, p99 over p50", Of: result.SelfP99, A: bench.Null(event, 32), Floor: 5, Want: 3},
		{ID: row("27"), Goal: 27, What: "RPC NULL, 4 times as many callers as credits, over as many", Kind: rate, A: bench.OverCommit(event, 16, 64), B: list(bench.OverCommit(event, 16, 16)), Floor: 0.9, Want: 0.98},
		{ID: row("30"), Goal: 30, What: "connect, RPC NULL, close, over the same in C", Kind: rate, A: bench.Connect(event), B: list(d.c1("connect -m event", 0)), Floor: 0.6, Want: 0.85},
		{ID: row("cancel 1"), What: "RPC NULL with a context that could end, over one that cannot", A: bench.NullContext(event), B: list(bench.Null(event, 1))},
		{ID: row("back 1"), What: "RPC NULL with an idle backchannel, over one without", A: bench.NullWithCallbacks(event, 1), B: list(bench.Null(event, 1)), Floor: 1.1, Want: 1},
		{ID: row("back 2"), What: "RPC NULL from the server, over one from the client", A: bench.BackwardNull(event, 1), B: list(bench.Null(event, 1)), Floor: 1.1, Want: 1},
		{ID: row("v2 1"), What: "RPC echo of 1.5 KiB in version 2, over version 1 with 1024 bytes inline", Kind: rate, A: bench.Echo(event, 1536, 1), B: list(bench.EchoV1(event, 1536, 1)), Floor: 1.3},
		{ID: row("v2 2"), What: "the same with 3.5 KiB", Kind: rate, A: bench.Echo(event, 3584, 1), B: list(bench.EchoV1(event, 3584, 1)), Floor: 1.3},
	}...)
	switch d.kind {
	case "rxe":
		for _, list := range []int{1, 16, 64} {
			pairs = append(pairs, measure.Pair{
				ID: row(fmt.Sprintf("ext %d", list)), What: fmt.Sprintf("lists of %d Sends and their completions by the extended API of ibv, over the same in C", list),
				A: bench.Extended(d.host, list), B: []bench.Workload{d.c1(fmt.Sprintf("extended -d %d", list), 0)}, Floor: 1.15, Want: 1.05,
			})
		}
		small := d.c(fmt.Sprintf("stream -o write -d 4 -s %d", 64*kib), 64*kib)
		pairs = append(pairs,
			measure.Pair{ID: row("8a"), Goal: 8, What: "1 MiB read through a write chunk through a memory window, 4 outstanding, over Writes in C", Kind: rate, A: bench.PushWith(d.windowed, kept, mib, 4), B: writes[:2], Floor: 0.85, Want: 0.95, Longer: 2},
			measure.Pair{ID: row("8b"), Goal: 8, What: "the same with 64 KiB", Kind: rate, A: bench.PushWith(d.windowed, kept, 64*kib, 4), B: small, Floor: 0.6, Want: 0.75},
		)
	case "siw":
		sw := bench.Software(bench.Adapter{})
		pairs = append(pairs, measure.Pair{
			ID: row("11"), Goal: 11, What: "1 MiB Writes of the software adapter, over ib_write_bw on the kernel's", Kind: rate,
			A: bench.Write(sw, mib, 4), B: list(bench.WriteBW(d.host, mib)), Floor: 1, Want: 1.2, Longer: 2,
		})
	}
	return pairs
}
