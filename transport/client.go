package transport

import (
	"context"
	"net"
	"sync"
	"sync/atomic"

	"github.com/rpcrdma/rpcrdma/fabric"
	"github.com/rpcrdma/rpcrdma/proto/oncrpc"
	"github.com/rpcrdma/rpcrdma/transport/internal/expose"
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

	// NoResend keeps a call that has been sent from being sent again when its connection
	// is lost: it fails with a *LostError instead. It is for calls that must not be
	// executed twice, at servers without a cache of replies.
	NoResend bool

	// Results are the XDR-encoded results. The data of write items with
	// Chunked set is not in it, their length words are. The memory belongs
	// to the Call: it is valid until the next call with it.
	Results []byte

	// Reply is the RPC reply header, likewise.
	Reply oncrpc.ReplyHeader

	store   []byte // the reply message
	sent    bool   // on an earlier connection, or this one
	xid     uint32 // which it was sent with
	replied uint32 // version of the protocol that the reply, or the refusal, has

	// raw makes the call carry a whole RPC message, without the data of
	// ReadItems, in place of a header and Args; its xid is replaced.
	// ReadItems' offsets then count from the message's first byte, and
	// Results receives the whole reply message.
	raw []byte

	op *operation // makes the call an optional operation, see operation.go
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

// A Client is the requester's end of a connection, over RDMA ([Dial]) or TCP ([DialTCP]), and
// of those that take its place when it is lost. Its methods may be called by many goroutines at once; calls run in
// parallel as far as credits allow.
type Client struct {
	provider  fabric.Provider // nil: TCP
	dialTCP   func(ctx context.Context, addr string) (net.Conn, error)
	via       string // the provider's name
	addr      string
	cfg       *Config
	stats     *counters
	conns     atomic.Uint64
	callbacks *registry
	versions  *VersionCache
	trust     atomic.Int32   // see versionTrust
	regions   expose.Regions // memory that stays registered

	link   link
	dialer dialer
	last   atomic.Uint64   // program and version called last
	ctx    context.Context // ends with the client
	cancel context.CancelFunc
	done   chan struct{}
	once   sync.Once
}

// Dial connects to addr ("host:port") with provider p. A nil cfg is the default
// configuration. When the server takes no more connections at the moment, it is asked again
// until ctx has ended, if ctx has a deadline; the error unwraps to a *BusyError.
func Dial(ctx context.Context, p fabric.Provider, addr string, cfg *Config) (*Client, error) {
	if p == nil {
		return nil, errNoProvider
	}
	cl, err := newClient(addr, p.Name(), cfg)
	if err != nil {
		return nil, err
	}
	cl.provider = p
	return cl.start(ctx)
}

// newClient returns a client that has no way to connect yet.
func newClient(addr, via string, cfg *Config) (*Client, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	cl := &Client{addr: addr, via: via, cfg: cfg, stats: new(counters), done: make(chan struct{})}
	cl.callbacks = newRegistry(cfg)
	for _, p := range cfg.Callbacks {
		if err := cl.callbacks.register(p); err != nil {
			return nil, err
		}
	}
	if cl.versions = cfg.VersionCache; cl.versions == nil {
		cl.versions = NewVersionCache(0)
	}
	cl.link.init()
	cl.dialer.cl = cl
	cl.link.want, cl.link.outdated = cl.dialer.want, cl.outdated
	cl.ctx, cl.cancel = context.WithCancel(context.Background())
	return cl, nil
}

// start makes the first connection.
func (cl *Client) start(ctx context.Context) (*Client, error) {
	cn, err := cl.connectPatiently(ctx)
	if err != nil {
		cl.cancel()
		cl.callbacks.stop()
		return nil, err
	}
	cl.link.cur.Store(cn)
	cn.c.whenEnded(cl.lost)
	cl.watch()
	return cl, nil
}

// latest is the latest connection.
func (cl *Client) latest() connection { return cl.link.latest() }

// Call makes one call and waits for its reply. It fails with
//
//   - an *oncrpc.RPCError when the server answered that it did not execute it;
//   - an *RDMAError when the server's transport refused the message, or could not send the
//     reply: then the call has been executed;
//   - a *BadReplyError when the reply made no sense;
//   - a *SizeError when the message is longer than the peers can exchange;
//   - the error of ctx when that ended first: the call may have been executed;
//   - a *LostError when the connection was lost and ctx ended before there was another, or
//     there was no memory to send it again, or the call has NoResend: it tells whether the
//     call may have been executed;
//   - a *ClosedError, which is net.ErrClosed, when the client has been closed, when it has
//     NoReconnect and the connection has ended, or when the server broke the protocol.
//
// A call that loses its connection is sent again on the next one, with the same xid. A
// server with a reply cache, as Server has, still executes it once.
//
// In all cases the memory of ReadItems and WriteItems has been fenced off from the peer
// before Call returns, unless [Client.RegisterMemory] says otherwise. A call that is given
// up while the server moves its chunks costs the connection, as the adapter refuses the
// access.
func (cl *Client) Call(ctx context.Context, call *Call) error {
	if cl.cfg.KeepAlive > 0 {
		cl.last.Store(uint64(call.Prog)<<32 | uint64(call.Vers))
	}
	return cl.link.call(ctx, call)
}

// Null calls procedure 0 of a program, which every program answers.
func (cl *Client) Null(ctx context.Context, prog, vers uint32) error {
	return cl.Call(ctx, &Call{Prog: prog, Vers: vers})
}

// Info tells what the set-up of the latest connection agreed on, and the credits
// granted.
func (cl *Client) Info() ConnInfo { return cl.latest().info() }

// Stats returns the counters, of all connections together.
func (cl *Client) Stats() Stats {
	st := cl.stats.snapshot()
	st.Conns = cl.conns.Load()
	if cl.latest().lives() {
		st.OpenConns = 1
	}
	return st
}

// Done is closed when the client has been closed, or, with NoReconnect, when its
// connection has ended; Err then tells why.
func (cl *Client) Done() <-chan struct{} { return cl.done }

// Err is nil before that, then the *ClosedError.
func (cl *Client) Err() error { return cl.link.ended() }

// over makes the client's end known.
func (cl *Client) over() {
	cl.cancel()
	cl.once.Do(func() { close(cl.done) })
}

// stop ends what makes connections.
func (cl *Client) stop() {
	cl.link.close(&ClosedError{Addr: cl.link.addr()})
	cl.cancel()
}

// Shutdown refuses new calls, waits until those under way have returned, and
// closes in order. When ctx ends first the connection is closed at once and
// ctx's error returned.
func (cl *Client) Shutdown(ctx context.Context) error {
	cl.stop()
	err := cl.latest().shutdown(ctx)
	cl.finish()
	return err
}

// Close ends the connection at once: calls under way fail with *ClosedError. On
// return no memory is exposed any more. It may be called twice and by anybody.
func (cl *Client) Close() error {
	cl.stop()
	err := cl.latest().close()
	cl.finish()
	return err
}

// finish comes after the last connection, and waits until one that was being made is
// given up.
func (cl *Client) finish() {
	cl.dialer.running.Wait()
	cl.callbacks.stop()
	cl.over()
}
