// Package bench compares remote procedure calls of this module with the alternatives of a Go
// program: sockets, net/rpc, gRPC, ttrpc, ONC RPC over TCP; and with C programs on the same
// RDMA device.
//
// A [Workload] is something that can be measured. Benchmarks in this package time workloads
// one by one, for benchstat. The program in directory ratio times pairs of them in turn, which
// is the only reliable way on a machine with other load; the program in directory report
// generates pages from its results.
//
// The server of a workload runs in this process or in a separate one: see [Workload.Split].
package bench

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"
)

// A Workload is something that can be timed.
type Workload struct {
	// Name is in the style of benchmarks: TCPEcho/size=64.
	Name string

	// Depth is the number of concurrent calls, each on its own goroutine; 0 means 1.
	Depth int

	// Bytes is the payload of a call, for workloads that measure throughput; 0 for others.
	Bytes int

	// Setup sets up both ends. Most workloads have a Server and a Client instead, which gets
	// the server's address.
	Setup  func() (*Instance, error)
	Server *Server
	Client func(addr string) (*Instance, error)

	// Under, if not nil, is the background activity.
	Under Condition

	apart bool // the server is in a separate process
}

// Split returns the workload with its server in a separate process, and reports whether that is possible.
func (w Workload) Split() (Workload, bool) {
	if w.Server == nil || w.Server.Site.over != nil {
		return w, false
	}
	w.Name += "/procs=2"
	w.apart = true
	return w, true
}

// OverUnix returns the workload with Unix domain sockets instead of TCP.
func (w Workload) OverUnix() Workload {
	s := *w.Server
	s.Unix = true
	w.Server = &s
	w.Name += "/net=unix"
	return w
}

// In returns the workload under a condition.
func (w Workload) In(name string, c Condition) Workload {
	w.Name += "/" + name
	w.Under = c
	return w
}

// An Instance is a workload that has been set up.
type Instance struct {
	// Call does the work once. Up to Depth goroutines call it concurrently, with different
	// values of worker below Depth.
	Call func(worker int) error

	// Batch makes n calls and returns the time that they took. External programs have it
	// instead of Call.
	Batch func(n int) (time.Duration, error)

	// Flush waits for work that calls have started and not finished. It may be nil.
	Flush func() error

	// Enter and Leave are called before and after each run, and are not timed. They may be
	// nil.
	Enter, Leave func() error

	// Counters returns the counters of the adapters of both ends. It is nil if they have none;
	// server is zero if the server is another process.
	Counters func() (client, server Counters)

	// Used returns the CPU time of a server that is another process. It may be nil.
	Used func() (time.Duration, error)

	// Close ends the workload and releases everything.
	Close func() error

	depth int
}

// Counters count boundary crossings since the connection was made. Counters that an adapter
// does not have are 0.
type Counters struct {
	Doorbells uint64 // lists posted to the send queue
	CgoCalls  uint64 // calls into C of the data path
	Syscalls  uint64 // of an adapter in Go: reads and writes of the socket
	Wakes     uint64 // times that a waiter was woken
}

// Start sets up the workload.
func (w Workload) Start() (*Instance, error) {
	start := w.start
	if w.restless() {
		start = w.startEach
	}
	in, err := start()
	if err != nil {
		return nil, fmt.Errorf("%s: %w", w.Name, err)
	}
	in.depth = max(1, w.Depth)
	if w.Under != nil {
		if err := in.under(w.Under); err != nil {
			return nil, fmt.Errorf("%s: %w", w.Name, errors.Join(err, in.Close()))
		}
	}
	return in, nil
}

func (w Workload) start() (*Instance, error) {
	if w.Setup != nil {
		return w.Setup()
	}
	start := w.Server.here
	if w.apart {
		start = w.Server.apart
	}
	far, err := start()
	if err != nil {
		return nil, err
	}
	in, err := w.Client(far.addr)
	if err != nil {
		return nil, errors.Join(err, far.close())
	}
	closeClient := in.Close
	in.Close = func() error { return errors.Join(closeClient(), far.close()) }
	if far.counters != nil && in.Counters != nil {
		client := in.Counters
		in.Counters = func() (Counters, Counters) {
			c, _ := client()
			return c, far.counters()
		}
	}
	if far.usage != nil {
		in.Used = func() (time.Duration, error) {
			u, err := far.usage()
			return u.CPU, err
		}
	}
	return in, nil
}

// Do makes n calls, Depth at a time, and waits for all.
func (in *Instance) Do(n int) error {
	_, err := in.do(n, false)
	return err
}

// Observe does what Do does, and returns the time of each call, in no particular order.
func (in *Instance) Observe(n int) ([]time.Duration, error) { return in.do(n, true) }

func (in *Instance) do(n int, observe bool) (times []time.Duration, err error) {
	switch {
	case in.Batch != nil:
		_, err = in.Batch(n)
	case in.depth == 1:
		// Use only the caller's goroutine: switching would be part of the time.
		if observe {
			times = make([]time.Duration, 0, n)
		}
		for range n {
			var begin time.Time
			if observe {
				begin = time.Now()
			}
			if err = in.Call(0); err != nil {
				break
			}
			if observe {
				times = append(times, time.Since(begin))
			}
		}
	default:
		times, err = in.doConcurrently(n, observe)
	}
	if err == nil && in.Flush != nil {
		err = in.Flush()
	}
	return times, err
}

func (in *Instance) doConcurrently(n int, observe bool) ([]time.Duration, error) {
	var left atomic.Int64
	left.Store(int64(n))
	errs := make([]error, in.depth)
	lists := make([][]time.Duration, in.depth)
	var wg sync.WaitGroup
	for worker := range in.depth {
		if observe {
			lists[worker] = make([]time.Duration, 0, 2*n/in.depth+16)
		}
		wg.Go(func() {
			for left.Add(-1) >= 0 {
				var begin time.Time
				if observe {
					begin = time.Now()
				}
				if err := in.Call(worker); err != nil {
					errs[worker] = err
					left.Store(0)
					return
				}
				if observe {
					lists[worker] = append(lists[worker], time.Since(begin))
				}
			}
		})
	}
	wg.Wait()
	var all []time.Duration
	for _, l := range lists {
		all = append(all, l...)
	}
	return all, errors.Join(errs...)
}
