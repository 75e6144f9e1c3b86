package nfs

import (
	"context"
	"time"

	"github.com/rpcrdma/rpcrdma/proto/xdr"
	"github.com/rpcrdma/rpcrdma/transport"
)

// A PendingCall is an outstanding call of a Client.
type PendingCall struct {
	Program uint32 // of NFS, or of MOUNT
	Proc    uint32
	Object  FileHandle // object or directory of an NFS call; empty for others
	Since   time.Time
}

// Pending returns the outstanding calls on the RDMA connection, oldest first. It is for status
// reports: the calls may have ended when it returns.
func (c *Client) Pending() []PendingCall {
	c.waiting.Lock()
	defer c.waiting.Unlock()
	var all []PendingCall
	for o := c.waiting.oldest; o != nil; o = o.later {
		p := PendingCall{Program: o.call.Prog, Proc: o.call.Proc, Since: o.since}
		if o.call.Prog == Program {
			// The arguments of every procedure but NULL begin with a handle.
			d := xdr.NewDecoder(o.call.Args)
			p.Object.Decode(&d)
		}
		all = append(all, p)
	}
	return all
}

// do makes the call of o, and lists it for Pending meanwhile.
func (c *Client) do(ctx context.Context, o *op) error {
	c.waiting.begin(o)
	defer c.waiting.end(o)
	return c.t.Call(ctx, &o.call)
}

// null is do for procedure 0.
func (c *Client) null(ctx context.Context, prog, vers uint32) error {
	o := op{call: transport.Call{Prog: prog, Vers: vers}}
	c.waiting.begin(&o)
	defer c.waiting.end(&o)
	return c.t.Null(ctx, prog, vers)
}
