package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"

	"github.com/rpcrdma/rpcrdma/bench"
	"github.com/rpcrdma/rpcrdma/internal/testing/simfabric"
	"github.com/rpcrdma/rpcrdma/transport"
)

const (
	kib = 1 << 10
	mib = 1 << 20
)

// adapter is a fabric that carries the calls.
type adapter struct {
	name, title, what string
	site              func() bench.Site
}

const simulated = "simulated"

// adapters lists the columns of the page. Immutable.
var adapters = []adapter{
	{simulated, "A simulated adapter", "`internal/testing/simfabric`, in memory, without delays", func() bench.Site {
		return bench.Over(simulated, "127.0.0.1", simfabric.New(simfabric.Config{LocalCompletion: true}))
	}},
	{"iwarp", "The software adapter", "`iwarp`, over the loopback interface", func() bench.Site { return bench.Software(bench.Adapter{}) }},
	{"shm", "Shared memory", "`shm`, with both ends in one process, which do not poll with one processor", bench.Shared},
	{"tcp", "TCP", "`transport.TCP`: records on the loopback interface, without RDMA", func() bench.Site { return bench.Over("tcp", "127.0.0.1", transport.TCP{}) }},
}

// kind is a kind of call.
type kind struct {
	name string
	n    int // calls of the shorter run
	of   func(bench.Site) bench.Workload
	bulk bool // not with the simulated adapter, which copies data several times
}

const manyCalls = "NULL, 32 outstanding"

// kinds lists the kinds of calls. Immutable.
var kinds = []kind{
	{"NULL", 1000, func(at bench.Site) bench.Workload { return bench.Null(at, 1) }, false},
	{"echo of 64 B", 1000, func(at bench.Site) bench.Workload { return bench.Echo(at, 64, 1) }, false},
	{"echo of 1 KiB", 1000, func(at bench.Site) bench.Workload { return bench.Echo(at, kib, 1) }, false},
	{manyCalls, 3200, func(at bench.Site) bench.Workload { return bench.Null(at, 32) }, false},
	{"1 MiB to the client", 100, func(at bench.Site) bench.Workload { return bench.Push(at, mib, 1) }, true},
	{"1 MiB to the server", 100, func(at bench.Site) bench.Workload { return bench.Pull(at, mib, 1) }, true},
}

// pair is a row: a kind of call over an adapter.
type pair struct {
	kind
	adapter
}

// pairs returns the rows.
func pairs() (list []pair) {
	for _, k := range kinds {
		for _, a := range adapters {
			if !k.bulk || a.name != simulated {
				list = append(list, pair{k, a})
			}
		}
	}
	return list
}

// Marks of a row in the plugin's file, in the order in which makeCalls makes them. The runs of n and 2n calls end with
// markFirst and markSecond.
const (
	markBegin = iota
	markFirst
	markAgain
	markSecond
	marksOfRow
)

const childVariable = "RPCRDMA_INSTRUCTIONS_CHILD"

func isChild() bool { return os.Getenv(childVariable) != "" }

// told is the child's report at its end.
type told struct {
	Allocs []float64 // per call, by row
	C      []float64 // by row, on devices: instructions with repetitions of the C program
}

// child makes the calls of all rows, each kind over each adapter.
func child(out io.Writer) error {
	var t told
	for _, p := range pairs() {
		allocs, err := p.makeCalls(p.site(), 1)
		if err != nil {
			return fmt.Errorf("%s, %s: %w", p.kind.name, p.adapter.name, err)
		}
		t.Allocs = append(t.Allocs, allocs)
	}
	return json.NewEncoder(out).Encode(t)
}

// makeCalls makes the calls of a row several times, between its marks, and returns the allocations per call in the last
// run.
func (k kind) makeCalls(at bench.Site, times int) (allocs float64, err error) {
	in, err := k.of(at).Start()
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, in.Close()) }()
	runtime.GC()                           // it does not run on its own in the child
	if err := in.Do(k.n / 2); err != nil { // grow buffers and fill caches
		return 0, err
	}
	for range times {
		var stats [3]runtime.MemStats
		runtime.ReadMemStats(&stats[0])
		mark()
		if err := in.Do(k.n); err != nil {
			return 0, err
		}
		mark()
		runtime.ReadMemStats(&stats[1])
		mark()
		if err := in.Do(2 * k.n); err != nil {
			return 0, err
		}
		mark()
		runtime.ReadMemStats(&stats[2])
		once := float64(stats[1].Mallocs - stats[0].Mallocs)
		twice := float64(stats[2].Mallocs - stats[1].Mallocs)
		allocs = (twice - once) / float64(k.n)
	}
	return allocs, nil
}
