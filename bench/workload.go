// Package bench measures remote procedure calls over this module against what a
// Go program would otherwise use: sockets, net/rpc, gRPC.
//
// What can be measured is a [Workload]. Benchmarks in this package time workloads
// one by one, for benchstat; the program in directory ratio times pairs of them in
// turns, which is the only honest way on a machine that does other things too.
//
// All workloads run client and server in one process, over loopback.
package bench

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"
)

// A Workload is something to be timed.
type Workload struct {
	// Name is in the style of benchmarks: TCPEcho/size=64.
	Name string

	// Depth is how many calls are outstanding at once, each on a goroutine of its
	// own; 0 is 1.
	Depth int

	// Bytes is how much payload a call moves, for workloads that are about
	// throughput; others have 0.
	Bytes int

	// Setup makes it ready to be called.
	Setup func() (*Instance, error)
}

// An Instance is a workload that is set up.
type Instance struct {
	// Call does the work once. Up to Depth goroutines are in it at a time, and
	// worker, below Depth, tells them apart.
	Call func(worker int) error

	// Batch does n calls and tells how long they took, by its own clock: instead
	// of Call, for programs that are not in Go.
	Batch func(n int) (time.Duration, error)

	// Flush waits for work that calls have left behind, as far as they do. It may
	// be nil.
	Flush func() error

	// Close ends it and gives everything back.
	Close func() error

	depth int
}

// Start sets the workload up.
func (w Workload) Start() (*Instance, error) {
	in, err := w.Setup()
	if err != nil {
		return nil, fmt.Errorf("%s: %w", w.Name, err)
	}
	in.depth = max(1, w.Depth)
	return in, nil
}

// Do makes n calls, depth at a time, and waits until all is done.
func (in *Instance) Do(n int) error {
	var err error
	if in.Batch != nil {
		_, err = in.Batch(n)
	} else if in.depth == 1 {
		// No goroutine but the caller's: hand-overs would be part of the time.
		for range n {
			if err = in.Call(0); err != nil {
				break
			}
		}
	} else {
		err = in.doConcurrently(n)
	}
	if err == nil && in.Flush != nil {
		err = in.Flush()
	}
	return err
}

func (in *Instance) doConcurrently(n int) error {
	var left atomic.Int64
	left.Store(int64(n))
	errs := make([]error, in.depth)
	var wg sync.WaitGroup
	for worker := range in.depth {
		wg.Go(func() {
			for left.Add(-1) >= 0 {
				if err := in.Call(worker); err != nil {
					errs[worker] = err
					left.Store(0)
					return
				}
			}
		})
	}
	wg.Wait()
	return errors.Join(errs...)
}
