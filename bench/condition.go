package bench

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

// A Condition is background activity while a workload runs. It is set up with the workload and
// paused while other workloads run.
type Condition func() (enter, leave, end func() error, err error)

// under sets up the condition.
func (in *Instance) under(c Condition) error {
	enter, leave, end, err := c()
	if err != nil {
		return err
	}
	if begin, finish := in.Enter, in.Leave; begin != nil {
		within, without := enter, leave
		enter = func() error {
			if err := begin(); err != nil {
				return err
			}
			return within()
		}
		leave = func() error { return errors.Join(without(), finish()) }
	}
	in.Enter, in.Leave = enter, leave
	closeIt := in.Close
	in.Close = func() error { return errors.Join(closeIt(), end()) }
	return nil
}

// OneProcessor sets GOMAXPROCS to 1.
func OneProcessor() (enter, leave, end func() error, err error) { return Processors(1)() }

// Processors sets GOMAXPROCS to n.
func Processors(n int) Condition {
	return func() (enter, leave, end func() error, err error) {
		before := runtime.GOMAXPROCS(0)
		enter = func() error { runtime.GOMAXPROCS(n); return nil }
		leave = func() error { runtime.GOMAXPROCS(before); return nil }
		return enter, leave, leave, nil
	}
}

// hogChild is the value of childVariable that makes a child process a hog.
const hogChild = "hog"

// hog uses a processor until its parent exits.
func hog() {
	runtime.GOMAXPROCS(1)
	parent := os.Getppid()
	x := uint32(1)
	for start := time.Now(); ; {
		for range 1 << 24 { // compute without system calls
			x = x*1664525 + 1013904223
		}
		if os.Getppid() != parent || time.Since(start) > 30*time.Minute {
			os.Exit(int(x & 1)) // so that the compiler does not remove the loop
		}
	}
}

// Hogs runs n processes that each use a processor.
func Hogs(n int) Condition {
	return func() (enter, leave, end func() error, err error) {
		self, err := os.Executable()
		if err != nil {
			return nil, nil, nil, err
		}
		var hogs []*exec.Cmd
		signal := func(s os.Signal) error {
			var errs []error
			for _, h := range hogs {
				errs = append(errs, h.Process.Signal(s))
			}
			return errors.Join(errs...)
		}
		end = sync.OnceValue(func() error {
			err := signal(os.Kill)
			for _, h := range hogs {
				h.Wait() // killed by the signal above
			}
			return err
		})
		for range n {
			h := exec.Command(self)
			h.Env = append(os.Environ(), childVariable+"="+hogChild)
			dieWithParent(h) // a stopped process does not notice that its parent has exited
			if err := h.Start(); err != nil {
				return nil, nil, nil, errors.Join(err, end())
			}
			hogs = append(hogs, h)
		}
		enter = func() error { return signal(syscall.SIGCONT) }
		leave = func() error { return signal(syscall.SIGSTOP) }
		if err := leave(); err != nil {
			return nil, nil, nil, errors.Join(err, end())
		}
		return enter, leave, end, nil
	}
}

// Garbage keeps the garbage collector running on a heap of the given size, in bytes, that is
// full of pointers.
func Garbage(heap int) Condition {
	return func() (enter, leave, end func() error, err error) {
		type node struct {
			next *node
			_    [56]byte
		}
		var live []*node
		var stop atomic.Bool
		done := make(chan struct{})
		enter = func() error {
			const chunk = 1 << 12
			for range heap / (chunk * 64) {
				nodes := make([]node, chunk)
				for i := range nodes[1:] {
					nodes[i].next = &nodes[i+1]
				}
				live = append(live, &nodes[0])
			}
			stop.Store(false)
			done = make(chan struct{})
			go func() {
				defer close(done)
				for !stop.Load() {
					runtime.GC()
				}
			}()
			return nil
		}
		leave = func() error {
			stop.Store(true)
			<-done
			if len(live) != heap/(1<<18) {
				return fmt.Errorf("the heap has %d pieces", len(live))
			}
			live = nil
			runtime.GC()
			return nil
		}
		return enter, leave, func() error { return nil }, nil
	}
}
