package main

import (
	"errors"
	"fmt"
	"math"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/rpcrdma/rpcrdma/bench"
	"github.com/rpcrdma/rpcrdma/bench/internal/measure"
	"github.com/rpcrdma/rpcrdma/bench/internal/result"
)

func numCPU() int { return runtime.NumCPU() }

// missing returns the goals that are known in advance to have no results, with the reasons. software is set for a run
// without devices.
func missing(software bool) []result.Missing {
	var list []result.Missing
	devices := measure.RDMADevices()
	real := measure.Hardware(devices)
	why5 := fmt.Sprintf("%s, on a bus of this machine: RPCRDMA_HW_ADDR does not have its address, or this was a run without devices", strings.Join(real, ", "))
	switch {
	case len(devices) == 0:
		why5 = "there is no RDMA device here: /sys/class/infiniband is empty"
	case len(real) == 0:
		why5 = fmt.Sprintf("%s work in software: none is on a bus", strings.Join(devices, ", "))
	}
	for _, g := range result.Goals {
		switch {
		case g.Number == 5 && !software && addressOf(hardware) != "":
		case g.Number == 5:
			list = append(list, result.Missing{Goal: 5, Why: why5})
		case software && !g.Software:
			list = append(list, result.Missing{Goal: g.Number, Why: "it is about RDMA devices: make bench-rdma"})
		case !software && !g.Devices:
			list = append(list, result.Missing{Goal: g.Number, Why: "it is about the software adapter: make bench"})
		}
	}
	return list
}

// id returns a row's name, with the kind of its device.
func id(kind, name string) string { return strings.TrimSpace(kind + " " + name) }

// countTask counts allocations, calls into C and doorbells, which are exact.
func countTask(kind string, at bench.Site, device bool) valueTask {
	goals := []int{18, 21}
	if device {
		goals = append(goals, 19, 20)
	}
	return valueTask{id: id(kind, "count"), what: "allocations, doorbells, calls into C", goals: goals, measure: func() ([]result.Value, error) {
		return counts(kind, at, device)
	}}
}

func counts(kind string, at bench.Site, device bool) ([]result.Value, error) {
	var values []result.Value
	for _, w := range []struct {
		name string
		bench.Workload
	}{{"NULL", bench.Null(at, 1)}, {"echo", bench.Echo(at, 64, 1)}} {
		n, err := allocations(w.Workload)
		if err != nil {
			return nil, err
		}
		values = append(values, result.Value{
			ID: id(kind, "18 "+w.name), Goal: 18, What: "allocations per call, client and inline server: " + w.name, Value: result.Float(n), Judged: true, Exact: true,
		})
	}
	reply, err := crossings(bench.Push(at, mib, 1), 50)
	if err != nil {
		return nil, err
	}
	values = append(values, result.Value{
		ID: id(kind, "21"), Goal: 21, What: "doorbells of the server for a reply with 1 MiB", Value: result.Float(reply[1].doorbells), Floor: 2, Want: 1, Judged: true, Exact: true,
	})
	for _, depth := range []int{1, 32} {
		c, err := crossings(bench.Null(at, depth), 3200)
		if err != nil {
			return nil, err
		}
		for i, side := range []string{"client", "server"} {
			at := fmt.Sprintf(" %s d%d", side, depth)
			if device {
				floor, want := 4.0, 2.0
				if depth > 1 {
					floor, want = 1, 0.25
				}
				values = append(values, result.Value{
					ID: id(kind, "19"+at), Goal: 19, What: fmt.Sprintf("calls into C for an RPC, %s, %d outstanding", side, depth), Value: result.Float(c[i].cgo),
					Floor: result.Float(floor), Want: result.Float(want), Judged: true, Exact: true,
				})
			} else {
				values = append(values, result.Value{
					ID: "syscalls" + at, What: fmt.Sprintf("reads and writes of the socket for an RPC, %s, %d outstanding", side, depth), Value: result.Float(c[i].syscalls), Exact: true,
				})
			}
			v := result.Value{ID: id(kind, "20"+at), What: fmt.Sprintf("doorbells for an RPC, %s, %d outstanding", side, depth), Value: result.Float(c[i].doorbells), Exact: true}
			if depth > 1 && device {
				v.Goal, v.Floor, v.Want, v.Judged = 20, 1, 0.2, true
			}
			values = append(values, v)
		}
	}
	return values, nil
}

// allocations counts allocations in steady state, on all goroutines of the process.
func allocations(w bench.Workload) (n float64, err error) {
	in, err := w.Start()
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, in.Close()) }()
	if err := in.Do(200); err != nil {
		return 0, err
	}
	n = testing.AllocsPerRun(2000, func() {
		if e := in.Call(0); e != nil {
			err = e
		}
	})
	return n, err
}

// crossing holds the counts of one side for one call.
type crossing struct{ doorbells, cgo, syscalls float64 }

// crossings returns the counts of a call at the client and at the server.
func crossings(w bench.Workload, n int) (sides [2]crossing, err error) {
	in, err := w.Start()
	if err != nil {
		return sides, err
	}
	defer func() { err = errors.Join(err, in.Close()) }()
	if err := in.Do(max(10, n/10)); err != nil {
		return sides, err
	}
	var before, after [2]bench.Counters
	before[0], before[1] = in.Counters()
	if err := in.Do(n); err != nil {
		return sides, err
	}
	after[0], after[1] = in.Counters()
	for i := range sides {
		per := func(a, b uint64) float64 { return float64(a-b) / float64(n) }
		sides[i] = crossing{
			doorbells: per(after[i].Doorbells, before[i].Doorbells),
			cgo:       per(after[i].CgoCalls, before[i].CgoCalls),
			syscalls:  per(after[i].Syscalls, before[i].Syscalls),
		}
	}
	return sides, nil
}

// idleTask measures idle connections.
func idleTask(kind string, at bench.Site, conns int, floorKiB, wantKiB, floorRoutines, wantRoutines float64) valueTask {
	return valueTask{id: id(kind, "idle"), what: fmt.Sprintf("%d idle connections, ends in two processes", conns), goals: []int{22, 23, 29}, measure: func() ([]result.Value, error) {
		const times = 3
		var mem, server, cpu []float64
		var i bench.Idle
		for range times {
			var err error
			if i, err = bench.MeasureIdle(at, conns, 2*time.Second); err != nil {
				return nil, err
			}
			mem, server, cpu = append(mem, i.ClientResident/kib), append(server, i.ServerResident/kib), append(cpu, 100*i.CPU)
		}
		spread := func(v result.Value, list []float64) result.Value {
			low, middle, high := math.Inf(1), list[0], math.Inf(-1)
			for _, x := range list {
				low, high = min(low, x), max(high, x)
			}
			for _, x := range list { // the median of three
				if x > low && x < high {
					middle = x
				}
			}
			v.Value, v.Low, v.High = result.Float(middle), result.Float(low), result.Float(high)
			return v
		}
		values := []result.Value{
			spread(result.Value{ID: id(kind, "22"), Goal: 22, What: "resident memory of an idle connection, client's side", Unit: "KiB", Floor: result.Float(floorKiB), Want: result.Float(wantKiB), Judged: true}, mem),
			spread(result.Value{ID: id(kind, "22s"), Goal: 22, What: "the same, server's side", Unit: "KiB", Floor: result.Float(floorKiB), Want: result.Float(wantKiB), Judged: true}, server),
		}
		for k, n := range []float64{i.ClientRoutines, i.ServerRoutines} {
			side := []string{"client", "server"}[k]
			values = append(values, result.Value{
				ID: id(kind, "23 "+side), Goal: 23, What: "goroutines of an idle connection, " + side, Value: result.Float(n),
				Floor: result.Float(floorRoutines), Want: result.Float(wantRoutines), Judged: true, Exact: true,
			})
		}
		cpuValue := spread(result.Value{ID: id(kind, "29"), Goal: 29, What: fmt.Sprintf("CPU of %d idle connections, both ends", conns), Unit: "%", Floor: 1, Want: 0.1, Judged: true}, cpu)
		return append(values, cpuValue), nil
	}}
}

// sizes lists the sizes of the sweep for goal 26, around the inline threshold and beyond.
var sizes = []int{1, 64, 512, 1 * kib, 2 * kib, 3 * kib, 3584, 4608, 6 * kib, 8 * kib, 16 * kib, 64 * kib, 256 * kib, mib, 8 * mib} // immutable

// The threshold between inline and chunks lies between these two sizes: messages of 4096 bytes
// include the headers.
const belowThreshold, aboveThreshold = 3584, 4608

// Series of sizeSweep.
const (
	perCall = "RPC"
	kept    = "RPC, registered memory"
)

// sizeSweep makes one call at a time with a result of S bytes in memory of the caller: inline
// or in a write chunk, as the transport chooses. On devices, which register the memory, it is
// repeated with memory that stays registered.
func sizeSweep(kind string, at bench.Site) sweepTask {
	s := sweepTask{rounds: 10, goals: []int{26}, Sweep: measure.Sweep{ID: id(kind, "size"), What: id(kind, "RPC with a result of S bytes, one at a time"), X: "size", Show: "time"}}
	for _, size := range sizes {
		s.Points = append(s.Points, measure.Point{Series: perCall, X: size, W: bench.PushWith(at, bench.Ends{Large: true}, size, 1)})
	}
	if at.Adapter.Device {
		for _, size := range sizes {
			s.Points = append(s.Points, measure.Point{Series: kept, X: size, W: bench.PushWith(at, bench.Ends{Large: true, Kept: true}, size, 1)})
		}
	}
	s.derived = func(r result.Sweep) []result.Value {
		values := linearity(kind, r, perCall, "")
		if at.Adapter.Device {
			values = append(values, linearity(kind, r, kept, ", in memory that stays registered")...)
		}
		return values
	}
	return s
}

// linearity compares the times of sizes with RTT + S/BW, with the RTT of the smallest and the
// bandwidth of the largest.
func linearity(kind string, r result.Sweep, series, where string) []result.Value {
	suffix := ""
	if where != "" {
		suffix = "k"
	}
	points := slices.DeleteFunc(slices.Clone(r.Points), func(p result.Point) bool { return p.Series != series })
	first, last := points[0], points[len(points)-1]
	perByte := float64(last.Time-first.Time) / float64(last.X-first.X)
	var worst result.Point
	var most float64
	byX := make(map[int]result.Point)
	model := func(x int) float64 { return float64(first.Time) + perByte*float64(x-first.X) }
	for _, p := range points {
		byX[p.X] = p
		if v := float64(p.Time) / model(p.X); v > most {
			worst, most = p, v
		}
	}
	above, below := byX[aboveThreshold], byX[belowThreshold]
	over := func(a, b time.Duration) result.Float { return result.Float(float64(a) / float64(b)) }
	return []result.Value{
		{
			ID: id(kind, "26a"+suffix), Goal: 26, What: fmt.Sprintf("time of 1 B to 8 MiB over RTT + S/BW%s, the worst, at %d bytes", where, worst.X),
			Value: result.Float(most), Low: result.Float(float64(worst.Low) / model(worst.X)), High: result.Float(float64(worst.High) / model(worst.X)),
			Floor: 1.4, Want: 1.2, Judged: true,
		},
		{
			ID: id(kind, "26b"+suffix), Goal: 26, What: "step across the threshold between inline and chunks" + where,
			Value: over(above.Time, below.Time), Low: over(above.Low, below.High), High: over(above.High, below.Low), Floor: 2, Want: 1.5, Judged: true,
		},
	}
}

// throughputSweep transfers bulk data with 4 outstanding calls, optionally also with other
// implementations.
func throughputSweep(at bench.Site, others bool) sweepTask {
	s := sweepTask{rounds: 6, Sweep: measure.Sweep{ID: id(kindOf(at), "throughput"), What: id(kindOf(at), "Throughput over the size of a call's data, 4 outstanding"), X: "size", Show: "bytes"}}
	for size := 4 * kib; size <= 2*mib; size *= 8 {
		add := func(series string, w bench.Workload) {
			s.Points = append(s.Points, measure.Point{Series: series, X: size, W: w})
		}
		add("RPC, write chunk", bench.Push(at, size, 4))
		add("RPC, read chunk", bench.Pull(at, size, 4))
		if others {
			add("TCP copy loop", bench.TCPCopy(size, min(size, 256*kib)))
			add("gRPC put", bench.GRPCPut(size, false))
		}
	}
	return s
}

// kindOf returns the device's kind, or "" for the software adapter.
func kindOf(at bench.Site) string {
	if !at.Adapter.Device {
		return ""
	}
	kind, _, _ := strings.Cut(at.Name, "/")
	return kind
}

// depthSweep makes small calls with increasing depth.
func depthSweep(at bench.Site, others bool) sweepTask {
	s := sweepTask{rounds: 6, Sweep: measure.Sweep{ID: id(kindOf(at), "depth"), What: id(kindOf(at), "Rate of calls with 64 bytes over how many are outstanding"), X: "depth", Show: "calls"}}
	for _, depth := range []int{1, 4, 16, 64, 128} {
		add := func(series string, w bench.Workload) {
			s.Points = append(s.Points, measure.Point{Series: series, X: depth, W: w})
		}
		add("RPC", bench.Echo(at, 64, depth))
		if others {
			add("TCP pipelined by hand", bench.TCPPipelined(64, depth))
			add("ONC RPC on TCP", bench.ONCRPCTCP(64, depth))
			add("net/rpc", bench.NetRPC(64, depth))
			add("ttrpc", bench.TTRPC(64, depth))
			add("gRPC", bench.GRPC(64, depth, false))
		}
	}
	return s
}

// connsSweep makes calls on an increasing number of connections.
func connsSweep(at bench.Site, most int) sweepTask {
	s := sweepTask{rounds: 6, Sweep: measure.Sweep{ID: id(kindOf(at), "conns"), What: id(kindOf(at), "Time per call over the number of connections, 128 outstanding on all together"), X: "conns", Show: "time"}}
	for _, conns := range []int{1, 3, 10, 30, 100, 300, 1000} {
		if conns <= most {
			s.Points = append(s.Points, measure.Point{Series: "RPC NULL", X: conns, W: bench.NullConns(at, conns, 128)})
		}
	}
	return s
}

// mostProcessors limits the sweep over processors.
const mostProcessors = 64

// processors returns the values of GOMAXPROCS for a sweep on a machine with that many CPUs: powers of two, and all of
// them.
func processors(cpus int) (list []int) {
	most := min(cpus, mostProcessors)
	for n := 1; n < most; n *= 2 {
		list = append(list, n)
	}
	return append(list, most)
}

// scaleConns is the number of connections of the sweep over processors, with 2 callers each.
const scaleConns = 64

// processorSweep makes calls with an increasing number of processors, which both ends share: on one connection, on
// many, and of a TCP echo on as many.
func processorSweep(at bench.Site, cpus int) sweepTask {
	s := sweepTask{rounds: 10, Sweep: measure.Sweep{ID: id(kindOf(at), "procs"), What: id(kindOf(at), "Rate of calls over GOMAXPROCS"), X: "procs", Show: "calls"}}
	for _, n := range processors(cpus) {
		add := func(series string, w bench.Workload) {
			s.Points = append(s.Points, measure.Point{Series: series, X: n, W: w.In(fmt.Sprintf("procs=%d", n), bench.Processors(n))})
		}
		add("RPC NULL, 32 outstanding on one connection", bench.Null(at, 32))
		add(fmt.Sprintf("RPC NULL, %d outstanding on %d connections", 2*scaleConns, scaleConns), bench.NullConns(at, scaleConns, 2*scaleConns))
		add(fmt.Sprintf("TCP echo, %d outstanding on %d connections", 2*scaleConns, scaleConns), bench.TCPEchoConns(64, scaleConns, 2*scaleConns))
	}
	return s
}
