package nfs

import (
	"context"
	"sync"
	"time"

	"github.com/rpcrdma/rpcrdma/proto/xdr"
	"github.com/rpcrdma/rpcrdma/rpc"
	"github.com/rpcrdma/rpcrdma/rpc/gen"
)

// A PendingCall is an outstanding call of a Client.
type PendingCall struct {
	Program uint32 // of NFS, or of MOUNT
	Proc    uint32
	Object  FileHandle // object or directory of an NFS call; empty for others
	Since   time.Time
}

// Pending returns the outstanding calls on the RDMA connection, oldest first. It is for status reports: the calls may
// have ended by the time it returns.
func (c *Client) Pending() []PendingCall {
	c.waiting.Lock()
	defer c.waiting.Unlock()
	var all []PendingCall
	for o := c.waiting.oldest; o != nil; o = o.later {
		p := PendingCall{Program: o.prog, Proc: o.proc, Since: o.since}
		if o.prog == Program {
			// The arguments of every procedure except NULL begin with a handle.
			d := xdr.NewDecoder(o.args)
			p.Object.Decode(&d)
		}
		all = append(all, p)
	}
	return all
}

// op is an outstanding call.
type op struct {
	prog, proc     uint32
	args           []byte // copied, because RPCSEC_GSS replaces those in the call
	since          time.Time
	earlier, later *op
}

// waiting is a list of outstanding calls, oldest first.
type waiting struct {
	sync.Mutex
	oldest, latest *op

	ops gen.Pool[op]
}

func (w *waiting) begin(call *rpc.Call) *op {
	o := w.ops.Get()
	w.Lock()
	defer w.Unlock()
	o.prog, o.proc, o.args, o.since, o.earlier = call.Prog, call.Proc, call.Args, time.Now(), w.latest
	if w.latest == nil {
		w.oldest = o
	} else {
		w.latest.later = o
	}
	w.latest = o
	return o
}

func (w *waiting) end(o *op) {
	w.Lock()
	defer w.Unlock()
	if o.earlier == nil {
		w.oldest = o.later
	} else {
		o.earlier.later = o.later
	}
	if o.later == nil {
		w.latest = o.earlier
	} else {
		o.later.earlier = o.earlier
	}
	*o = op{}
	w.ops.Put(o)
}

// do makes a call, and lists it for Pending until it returns.
func (c *caller) do(ctx context.Context, call *rpc.Call) error {
	defer c.waiting.end(c.waiting.begin(call))
	if c.sec != nil && call.Prog == Program {
		return c.sec.Call(ctx, call)
	}
	return c.t.Call(ctx, call)
}

// null makes a call of procedure 0.
func (c *Client) null(ctx context.Context, prog, vers uint32) error {
	defer c.waiting.end(c.waiting.begin(&rpc.Call{Prog: prog, Vers: vers}))
	return c.t.Null(ctx, prog, vers)
}
