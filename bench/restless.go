package bench

import (
	"errors"
	"net"
	"time"

	"github.com/rpcrdma/rpcrdma/rdmacm"
)

// restless tells whether a workload uses processors while nobody calls it: a connection
// that polls does so for replies that are not due, and what is measured in turns with it
// would be measured beside it.
func (w *Workload) restless() bool {
	return w.Server != nil && w.Server.Site.Adapter.Device && w.Server.Site.Adapter.Wait == rdmacm.WaitPoll
}

// warmCalls are made before a run on a connection that has just been made, so that it has
// its credits and its memory.
const warmCalls = 200

// startEach sets the workload up for each run anew, and ends it after that.
func (w Workload) startEach() (*Instance, error) {
	cur, err := w.start()
	if err != nil {
		return nil, err
	}
	var used time.Duration // as of the last look
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
