package transport

import (
	"context"
	"errors"
	"syscall"

	"github.com/rpcrdma/rpcrdma/fabric"
	"github.com/rpcrdma/rpcrdma/proto/oncrpc"
)

// A Call is one remote procedure call: what goes out, where bulk results go,
// and what came back. The caller owns it and may use it again for the next
// call, which then allocates nothing.
type Call struct {
	Prog, Vers, Proc uint32
	Cred, Verf       oncrpc.Auth

	// Args are the XDR-encoded arguments without the data and padding of the
	// items in ReadItems; the length words of those stay in Args.
	Args []byte

	// ReadItems are arguments that may leave the caller's memory as read
	// chunks, in the order of the stream. Whether they do is decided by
	// size: what fits goes inline.
	ReadItems []ReadItem

	// WriteItems are buffers for the results that may come back through write
	// chunks, in the order of the binding. When Call returns, the memory is
	// the caller's again and nobody else can reach it, whatever the outcome.
	WriteItems []WriteItem

	// MaxResults bounds the XDR-encoded results, without the data of the
	// write items, in bytes: what may not fit inline is given a reply chunk.
	// Zero promises that the results are small enough.
	MaxResults int

	// Results are the XDR-encoded results. The data of write items with
	// Chunked set is not in it, their length words are. The memory belongs
	// to the Call: it is valid until the next call with it.
	Results []byte

	// Reply is the RPC reply header, likewise.
	Reply oncrpc.ReplyHeader

	store []byte // the reply message

	// raw makes the call carry a whole RPC message, without the data of
	// ReadItems, in place of a header and Args; its xid is replaced.
	// ReadItems' offsets then count from the message's first byte, and
	// Results receives the whole reply message.
	raw []byte
}

// A ReadItem is the data of one opaque argument. The memory belongs to the
// call until Call returns and must not change meanwhile.
type ReadItem struct {
	// Offset says where in Args the data belongs: the offset behind the
	// item's length word.
	Offset int
	Data   []byte
}

// A WriteItem is the memory for the data of one opaque result.
type WriteItem struct {
	Buf []byte

	// Chunked is set when the peer placed the data in Buf: N bytes of it.
	// Otherwise the data, if any, is inline in Results.
	Chunked bool
	N       int
}

// A Client is the requester's end of a connection. Its methods may be called
// by many goroutines at once; calls run in parallel as far as credits allow.
type Client struct {
	c *conn
}

// Dial connects to addr ("host:port") with provider p. A nil cfg is the default
// configuration.
func Dial(ctx context.Context, p fabric.Provider, addr string, cfg *Config) (*Client, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	for try := 1; ; try++ {
		c, err := dial(ctx, p, addr, cfg)
		if err == nil {
			return &Client{c: c}, nil
		}
		// A provider that picks local ports and has the kernel open TCP connections
		// from them, as siw's does, may pick one that TCP uses already.
		if try == pickTries || !errors.Is(err, syscall.EADDRINUSE) {
			return nil, &DialError{Provider: p.Name(), Addr: addr, Err: err}
		}
	}
}

// pickTries is how often a connection is tried whose local port is taken.
const pickTries = 4

func dial(ctx context.Context, p fabric.Provider, addr string, cfg *Config) (*conn, error) {
	fc, err := p.Resolve(ctx, addr, cfg.connAttr(roleClient))
	if err != nil {
		return nil, err
	}
	c := newConn(fc, p.Name(), cfg, roleClient)
	if err := c.connect(ctx); err != nil {
		c.discard()
		return nil, err
	}
	if err := c.configure(ctx); err != nil {
		c.close()
		return nil, err
	}
	return c, nil
}

// Call makes one call and waits for its reply. It fails with
//
//   - an *oncrpc.RPCError when the server answered that it did not execute it;
//   - an *RDMAError when the server's transport refused the message;
//   - a *ReplyError when the reply made no sense;
//   - a *SizeError when the message is longer than the peers can exchange;
//   - the error of ctx when that ended first: the call may have been executed;
//   - a *ClosedError, which is net.ErrClosed, when the connection has ended.
//
// In all cases the memory of ReadItems and WriteItems has been fenced off from
// the peer before Call returns. Ending a call that has chunks in use while the
// server moves them costs the connection: the adapter refuses the access.
func (cl *Client) Call(ctx context.Context, call *Call) error {
	return cl.c.call(ctx, call)
}

// Null calls procedure 0 of a program, which every program answers.
func (cl *Client) Null(ctx context.Context, prog, vers uint32) error {
	return cl.Call(ctx, &Call{Prog: prog, Vers: vers})
}

// Info tells what the connection's set-up agreed on, and the credits granted.
func (cl *Client) Info() ConnInfo { return cl.c.info() }

// Stats returns the connection's counters.
func (cl *Client) Stats() Stats { return cl.c.stats.snapshot() }

// Done is closed when the connection has ended; Err then tells why.
func (cl *Client) Done() <-chan struct{} { return cl.c.done }

// Err is nil while the connection lives, then the *ClosedError.
func (cl *Client) Err() error { return cl.c.endErr() }

// Shutdown refuses new calls, waits until those under way have returned, and
// closes in order. When ctx ends first the connection is closed at once and
// ctx's error returned.
func (cl *Client) Shutdown(ctx context.Context) error { return cl.c.shutdown(ctx) }

// Close ends the connection at once: calls under way fail with *ClosedError. On
// return no memory is exposed any more. It may be called twice and by anybody.
func (cl *Client) Close() error { return cl.c.close() }
