package notify

import (
	"context"
	"fmt"

	"github.com/rpcrdma/rpcrdma/proto/oncrpc"
	"github.com/rpcrdma/rpcrdma/proto/xdr"
	"github.com/rpcrdma/rpcrdma/rpc"
	"github.com/rpcrdma/rpcrdma/transport"
)

// A ClientConfig has the subscription of a [Client], and its callbacks.
type ClientConfig struct {
	Dir       string // slash-separated, below the server's root, which is ""
	Recursive bool   // everything below Dir, too

	// Events is called with the events of each NOTIFY and its number. A gap in the
	// numbers shows as a leading [Overflow] without a path. The server waits until it
	// returns; the slice is valid until then.
	Events func(number uint64, events []Event)

	// Subscribed is called at the end of each successful [Client.Subscribe], before any
	// of its events. again: it is the subscription of the connection before, and no
	// event was lost. It may be nil.
	Subscribed func(again bool)
}

// A Client is one subscription, over one connection after another. Its callbacks are
// called one at a time, and must not call its methods. Its methods may be called by many
// goroutines at once.
type Client struct {
	cfg ClientConfig

	// turn is a lock that can be given up: it holds a value while it is taken. It is
	// held during SUBSCRIBE, so that events which come before its reply wait for it.
	turn   chan struct{}
	id     token
	known  bool   // id is a subscription's
	number uint64 // of the latest NOTIFY
	args   notifyArgs
}

// NewClient returns a client that has not subscribed yet.
func NewClient(cfg ClientConfig) *Client {
	return &Client{cfg: cfg, turn: make(chan struct{}, 1)}
}

// Program returns the program that the server calls. It must be among the callbacks of
// the connections that [Client.Subscribe] is given.
func (c *Client) Program() rpc.Program {
	return rpc.Program{
		Number: ClientProgram, Low: ClientVersion, High: ClientVersion,
		Handler: rpc.HandlerFunc(c.serve),
	}
}

func (c *Client) lock(ctx context.Context) error {
	select {
	case c.turn <- struct{}{}:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func (c *Client) unlock() { <-c.turn }

// Subscribe makes the subscription on cl. It must be called again each time cl has made a
// new connection; then the server resumes the subscription if it still knows it. The
// error is a [Status] if the server refuses, and the context's cause if that has ended.
func (c *Client) Subscribe(ctx context.Context, cl *transport.Client) error {
	if err := c.lock(ctx); err != nil {
		return err
	}
	defer c.unlock()
	a := subscribeArgs{dir: c.cfg.Dir, recursive: c.cfg.Recursive, old: former{again: c.known, id: c.id}}
	call := rpc.Call{
		Prog: ServerProgram, Vers: ServerVersion, Proc: ProcSubscribe, Args: a.Append(nil),
		NoResend: true, // it is about this connection, not the next one
	}
	if err := cl.Call(ctx, &call); err != nil {
		if ctx.Err() != nil {
			err = context.Cause(ctx)
		}
		return err
	}
	var r subscribeRes
	d := xdr.NewDecoder(call.Results)
	r.Decode(&d)
	if err := d.End(); err != nil {
		return fmt.Errorf("reply to SUBSCRIBE: %w", err)
	}
	if r.status != StatusOK {
		return r.status
	}
	if !r.ok.again {
		c.number = 0
	}
	c.id, c.known = r.ok.id, true
	if c.cfg.Subscribed != nil {
		c.cfg.Subscribed(r.ok.again)
	}
	return nil
}

// Unsubscribe ends the subscription, if there is one, which spares the server the grace
// period. The error is a [Status] if the server does not know the subscription.
func (c *Client) Unsubscribe(ctx context.Context, cl *transport.Client) error {
	if err := c.lock(ctx); err != nil {
		return err
	}
	defer c.unlock()
	if !c.known {
		return nil
	}
	call := rpc.Call{
		Prog: ServerProgram, Vers: ServerVersion, Proc: ProcUnsubscribe,
		Args: xdr.AppendFixedOpaque(nil, c.id[:]), NoResend: true,
	}
	if err := cl.Call(ctx, &call); err != nil {
		return err
	}
	c.known = false
	d := xdr.NewDecoder(call.Results)
	status := Status(d.Uint32())
	if err := d.End(); err != nil {
		return fmt.Errorf("reply to UNSUBSCRIBE: %w", err)
	}
	if status != StatusOK {
		return status
	}
	return nil
}

// serve executes NOTIFY.
func (c *Client) serve(ctx context.Context, req *rpc.Request, res *rpc.Response) {
	if req.Proc != ProcNotify {
		res.Fail(oncrpc.ProcUnavail)
		return
	}
	if c.lock(ctx) != nil {
		res.Fail(oncrpc.SystemErr)
		return
	}
	defer c.unlock()
	d := xdr.NewDecoder(req.Args)
	if c.args.Decode(&d); d.End() != nil {
		res.Fail(oncrpc.GarbageArgs)
		return
	}
	if c.args.id != c.id || !c.known {
		res.Fail(oncrpc.SystemErr) // a subscription that is of no use any more
		return
	}
	switch next := c.number + 1; {
	case c.args.number < next:
		return // sent again, because its reply was lost
	case c.args.number > next:
		c.args.events = append([]Event{overflow()}, c.args.events...)
	}
	c.number = c.args.number
	c.cfg.Events(c.number, c.args.events)
}
