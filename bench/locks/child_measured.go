//go:build measuredlocks

package main

import (
	"encoding/json"
	"errors"
	"io"
	"runtime"
	"sync"

	"github.com/rpcrdma/rpcrdma/bench"
)

// child measures all workloads, in a program with another package sync.
func child(out io.Writer) error {
	var all []sample
	for _, w := range workloads() {
		s, err := w.measure()
		if err != nil {
			return err
		}
		all = append(all, s)
	}
	return json.NewEncoder(out).Encode(all)
}

func (w *workload) measure() (s sample, err error) {
	in, err := w.of().Start()
	if err != nil {
		return s, err
	}
	defer func() { err = errors.Join(err, in.Close()) }()
	if err := in.Do(w.calls / 10); err != nil {
		return s, err
	}
	runtime.GC()
	sync.MeasuredLocks()
	sync.MeasureLocks(true)
	cpu := bench.ProcessorTime()
	err = in.Do(w.calls)
	s.BusyTime = bench.ProcessorTime() - cpu
	sync.MeasureLocks(false)
	if err != nil {
		return s, err
	}
	for _, m := range sync.MeasuredLocks() {
		s.Sites = append(s.Sites, site{Frames: names(m.Frames), Taken: m.Taken, Waited: m.Waited, WaitedFor: m.WaitedFor, Holds: m.Holds, Locks: m.Locks})
	}
	// The CPU time of calls is that without measuring.
	cpu = bench.ProcessorTime()
	if err := in.Do(w.calls); err != nil {
		return s, err
	}
	s.Time = bench.ProcessorTime() - cpu

	// Apparent cost of an empty critical section.
	var mu sync.Mutex
	sync.MeasureLocks(true)
	for range 1000 {
		mu.Lock()
		mu.Unlock()
	}
	sync.MeasureLocks(false)
	for _, m := range sync.MeasuredLocks() {
		if m.Taken >= 1000 {
			s.Empty = m.Holds
		}
	}
	return s, nil
}

func names(pcs []uintptr) (list []string) {
	frames := runtime.CallersFrames(pcs)
	for {
		f, more := frames.Next()
		if f.Function != "" {
			list = append(list, f.Function)
		}
		if !more {
			return list
		}
	}
}
