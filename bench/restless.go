package bench

import (
	"errors"
	"net"
	"time"

	"github.com/rpcrdma/rpcrdma/rdmacm"
)

// restless reports whether a workload uses CPU time while it is not called, as a polling connection does. It would
// disturb the workloads measured in turn with it.
func (w *Workload) restless() bool {
	return w.Server != nil && w.Server.Site.Adapter.Device && w.Server.Site.Adapter.Wait == rdmacm.WaitPoll
}

// warmCalls is the number of calls on a new connection before a run, so that credits are granted and memory is
// registered.
const warmCalls = 200

// startEach sets the workload up again for each run, and closes it afterwards.
func (w Workload) startEach() (*Instance, error) {
	cur, err := w.start()
	if err != nil {
		return nil, err
	}
	var used time.Duration // at the last check
	in := &Instance{
		Enter: func() error {
			if cur != nil {
				return nil
			}
			next, err := w.start()
			if err != nil {
				return err
			}
			next.depth = max(1, w.Depth)
			if err := next.Do(warmCalls); err != nil {
				return errors.Join(err, next.Close())
			}
			cur = next
			return nil
		},
		Leave: func() error {
			last := cur
			cur = nil
			return last.Close()
		},
		Call: func(worker int) error {
			if cur == nil {
				return net.ErrClosed
			}
			return cur.Call(worker)
		},
		Close: func() error {
			if cur == nil {
				return nil
			}
			last := cur
			cur = nil
			return last.Close()
		},
	}
	if cur.Flush != nil {
		in.Flush = func() error { return cur.Flush() }
	}
	if cur.Counters != nil {
		in.Counters = func() (client, server Counters) { return cur.Counters() }
	}
	if cur.Used != nil {
		in.Used = func() (time.Duration, error) {
			if cur == nil {
				return used, nil
			}
			u, err := cur.Used()
			used = u
			return u, err
		}
	}
	return in, nil
}
