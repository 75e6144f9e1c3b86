package nfs

import (
	"context"
	"time"

	"github.com/rpcrdma/rpcrdma/proto/xdr"
	"github.com/rpcrdma/rpcrdma/transport"
)

// A PendingCall is a call that a Client waits for.
type PendingCall struct {
	Program uint32 // of NFS, or of MOUNT
	Proc    uint32
	Object  FileHandle // that a call of NFS is about, or the directory; empty for others
	Since   time.Time
}

// Pending returns the calls that wait for an answer on the RDMA connection, the oldest
// first. It is for telling what a program waits for when that takes long: a call may
// have ended when it returns.
func (c *Client) Pending() []PendingCall {
	c.waiting.Lock()
	defer c.waiting.Unlock()
	var all []PendingCall
	for o := c.waiting.oldest; o != nil; o = o.later {
		p := PendingCall{Program: o.call.Prog, Proc: o.call.Proc, Since: o.since}
		if o.call.Prog == Program {
			// Every procedure but NULL begins its arguments with the handle.
			d := xdr.NewDecoder(o.call.Args)
			p.Object.Decode(&d)
		}
		all = append(all, p)
	}
	return all
}

// do makes the call of o, which Pending tells of meanwhile.
func (c *Client) do(ctx context.Context, o *op) error {
	c.waiting.begin(o)
	defer c.waiting.end(o)
	return c.t.Call(ctx, &o.call)
}

// null makes a call of procedure 0, as do makes others.
func (c *Client) null(ctx context.Context, prog, vers uint32) error {
	o := op{call: transport.Call{Prog: prog, Vers: vers}}
	c.waiting.begin(&o)
	defer c.waiting.end(&o)
	return c.t.Null(ctx, prog, vers)
}
