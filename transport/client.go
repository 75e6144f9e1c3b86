package transport

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rpcrdma/rpcrdma/fabric"
	"github.com/rpcrdma/rpcrdma/rpc"
	"github.com/rpcrdma/rpcrdma/rpc/stream"
	"github.com/rpcrdma/rpcrdma/transport/internal/expose"
)

// A ClientConfig configures a Client or a Group. The zero value and a nil pointer select the defaults. It is not
// modified, and may be shared.
type ClientConfig struct {
	Config

	// Callbacks are the programs that a client executes for its server, over the connection that the client has made
	// (RFC 8167). Receives for their calls are posted before the connection is established. A client without Callbacks
	// drops calls from its server.
	Callbacks []rpc.Program

	// Streams is for generated clients with methods that return streams of results: see package rpc/stream. It adds the
	// streams' program to the client's Callbacks.
	Streams bool

	// NoReconnect ends a Client with its connection. Otherwise the client reconnects when
	// a call needs it or, if it has Callbacks, at once.
	NoReconnect bool

	// MaxPause is the longest pause between two attempts of a Client to reconnect. There is no pause after a connection
	// that lived for two seconds, nor after the first shorter one on which calls were answered. Otherwise, and after
	// failed attempts, pauses start at 50 ms, randomized by plus or minus half, and double. Zero is 10 seconds: a
	// server that ends every connection at once then sees about eight attempts in the first five seconds, and six per
	// minute later. Only a call's context bounds how often it is sent again.
	MaxPause time.Duration

	// OnReconnect, if not nil, is called on its own goroutine each time a Client has reconnected. A client with
	// Callbacks announces here that it is ready for calls; its announcement on the previous connection no longer counts
	// (RFC 8167 section 6). At most four calls of OnReconnect run at once; when one returns, one more is made for all
	// connections made meanwhile.
	OnReconnect func(cl *Client)

	// KeepAlive is how long a Client's server may be silent, or answer none of the calls in flight, before the client
	// calls procedure 0 of the most recently called program, and how long that reply may take before the connection
	// counts as lost. Zero is a minute for a client with Callbacks or Streams, and no keep-alive for others; negative
	// turns it off. With IdleTimeout, keep-alive calls are made only while calls are in flight.
	KeepAlive time.Duration

	// IdleTimeout is how long a Client without Callbacks keeps an idle connection; the next call makes
	// a new one. Zero is forever.
	IdleTimeout time.Duration

	// Connections is the maximum number of connections of a Group, from 1 to MaxConnections, or one to each address if
	// that is more. When all connections are lost, one is added to each address that has none. Zero is 2. A Client
	// always has one.
	Connections int

	// Idempotent, for a Group, reports whether a call may be executed twice: the second time over another connection,
	// and the first time late, after the second. That holds for calls that only read, and for calls that change nothing
	// when repeated. If the connection of such a call is lost, the call is made at once on another. Nil means no call
	// may: a sent call waits for its own connection. Idempotent is called for calls that were sent and lost their
	// connection, on the goroutine that made the call.
	Idempotent func(prog, vers, proc uint32) bool

	// VersionCache remembers which servers support only version 1, so that clients with VersionAuto need not ask. Nil:
	// each client has its own. See NewVersionCache.
	VersionCache *VersionCache

	streams *stream.Receiver // with Streams; one of Callbacks
}

// settle returns cfg with its defaults filled in, and the configuration of its connections.
func (cfg *ClientConfig) settle() (c ClientConfig, conns *config, err error) {
	if cfg != nil {
		c = *cfg
	}
	if c.MaxPause == 0 {
		c.MaxPause = defaultMaxPause
	}
	if c.MaxPause < 0 || c.MaxPause > time.Hour {
		return c, nil, fmt.Errorf("transport: ClientConfig.MaxPause is %v, want up to an hour", c.MaxPause)
	}
	if c.Streams && c.streams == nil {
		c.streams = stream.NewReceiver()
		c.Callbacks = append(slices.Clip(c.Callbacks), c.streams.Program())
	}
	if c.KeepAlive == 0 && len(c.Callbacks) > 0 {
		c.KeepAlive = time.Minute
	}
	conns, err = c.Config.settle("ClientConfig")
	if err != nil {
		return c, nil, err
	}
	c.Config = conns.Config
	conns.callbacks = len(c.Callbacks) > 0
	conns.xids = newXIDs(&c.Config)
	return c, conns, nil
}

// A Client is the requester's end of a connection, over RDMA ([Dial]) or TCP ([DialTCP]), and of the connections that
// replace it when it is lost. Its methods may be called by many goroutines at once; calls run in parallel as far as
// credits allow.
type Client struct {
	provider  fabric.Provider // nil: TCP
	dialTCP   func(ctx context.Context, addr string) (net.Conn, error)
	via       string // the provider's name
	addr      string
	cfg       ClientConfig // with its defaults filled in
	connCfg   *config      // configuration of its connections
	stats     tally
	conns     atomic.Uint64
	callbacks *registry
	versions  *VersionCache
	trust     atomic.Int32    // see versionTrust
	regions   *expose.Regions // memory that stays registered; shared by the Clients of a Group
	changed   func()          // called when a connection is made or lost, if not nil

	link   link
	dialer dialer
	last   atomic.Uint64   // program and version of the latest call
	ctx    context.Context // ends with the client
	cancel context.CancelFunc
	done   chan struct{}
	once   sync.Once
}

// Dial connects to addr ("host:port") with provider p, which may be [TCP]. A nil cfg is the default configuration. If
// the server currently accepts no further connections, the error unwraps to a *BusyError; if ctx has a deadline, Dial
// first retries until ctx ends.
func Dial(ctx context.Context, p fabric.Provider, addr string, cfg *ClientConfig) (*Client, error) {
	cl, err := newClientOver(p, addr, cfg)
	if err != nil {
		return nil, err
	}
	return cl.start(ctx)
}

// NewClient is Dial without waiting. It returns a Client that connects in the background, like one that has lost its
// connection, until the server is reachable, with pauses up to ClientConfig.MaxPause. Calls wait for the connection
// until their contexts end. ClientConfig.OnReconnect is called for the first connection too. Until there is a
// connection, Conn returns nil, and Info the zero value. The error is about p or cfg, which must not have NoReconnect.
func NewClient(p fabric.Provider, addr string, cfg *ClientConfig) (*Client, error) {
	if cfg != nil && cfg.NoReconnect {
		return nil, errors.New("transport: NewClient with ClientConfig.NoReconnect would never connect")
	}
	cl, err := newClientOver(p, addr, cfg)
	if err != nil {
		return nil, err
	}
	cl.link.wake()
	cl.watch()
	return cl, nil
}

// newClientOver returns a client over p that has not connected yet.
func newClientOver(p fabric.Provider, addr string, cfg *ClientConfig) (*Client, error) {
	switch p := p.(type) {
	case nil:
		return nil, errNoProvider
	case StreamProvider:
		return newTCPClient(addr, p.Name(), cfg, p.DialStream)
	}
	cl, err := newClient(addr, p.Name(), cfg)
	if err == nil {
		cl.provider, err = p, cl.connCfg.private(p)
	}
	if err != nil {
		return nil, err
	}
	return cl, nil
}

// newClient returns a client that has no provider yet.
func newClient(addr, via string, cfg *ClientConfig) (*Client, error) {
	own, conns, err := cfg.settle()
	if err != nil {
		return nil, err
	}
	cl := &Client{addr: addr, via: via, cfg: own, connCfg: conns, done: make(chan struct{})}
	cl.regions = expose.NewRegions()
	cl.callbacks = newRegistry(conns)
	for _, p := range own.Callbacks {
		if err := cl.callbacks.register(p); err != nil {
			return nil, err
		}
	}
	if cl.versions = own.VersionCache; cl.versions == nil {
		cl.versions = NewVersionCache(0)
	}
	cl.link.init()
	cl.link.to, cl.link.observation = addr, conns.observation
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

// latest returns the latest connection, or nil before the first.
func (cl *Client) latest() connection { return cl.link.latest() }

// Call makes one call and waits for its reply. It fails with
//
//   - an *oncrpc.RPCError when the server answered that it did not execute it;
//   - an *RDMAError when the server's transport refused the message, or could not send the reply; in the latter case
//     the call has been executed;
//   - a *BadReplyError when the reply was invalid;
//   - a *SizeError when the message is longer than the peers can exchange;
//   - the error of ctx when ctx ended first: the call may have been executed;
//   - a *LostError when the connection was lost and ctx ended before there was another, there was no memory to send the
//     call again, or it has NoResend: the error reports whether the call may have been executed;
//   - a *ClosedError, which is net.ErrClosed, when the client has been closed, when it has NoReconnect and the
//     connection has ended, or when the server broke the protocol.
//
// A call that loses its connection is sent again on the next one, with the same xid. A server with a reply cache, such
// as Server, still executes it only once.
//
// In all cases the memory of ReadItems and WriteItems has been fenced off from the peer before Call returns, unless
// [Client.RegisterMemory] says otherwise. If a call is canceled while the server is moving its chunks, the adapter
// refuses the access, which ends the connection. On a device, the late reply to a call with chunks may do so, too.
// Neither happens with chunks in bounce buffers (Config.BounceMax).
func (cl *Client) Call(ctx context.Context, call *rpc.Call) error {
	cl.note(call)
	return cl.link.call(ctx, pendingOf(call))
}

// note remembers the program of the latest call.
func (cl *Client) note(call *rpc.Call) {
	if cl.cfg.KeepAlive > 0 {
		cl.last.Store(uint64(call.Prog)<<32 | uint64(call.Vers))
	}
}

// Null calls procedure 0, which every program answers.
func (cl *Client) Null(ctx context.Context, prog, vers uint32) error {
	return cl.Call(ctx, &rpc.Call{Prog: prog, Vers: vers})
}

// Operate requests an optional operation of Config.Operations and waits for the answer. The caller owns the memory of
// the answer. It fails with an *OperationError on a connection of version 1, with an *RDMAError if the server does not
// know the operation, and otherwise as Call does.
func (cl *Client) Operate(ctx context.Context, m Optional) (answer Optional, err error) {
	return operate(cl.connCfg, m, func(call *pendingCall) error { return cl.link.call(ctx, call) })
}

// Info returns what the latest connection agreed on, and the credits granted.
func (cl *Client) Info() (info rpc.ConnInfo) {
	if c := cl.latest(); c != nil {
		info = c.info()
	}
	return info
}

// Stats returns the counters of all connections together.
func (cl *Client) Stats() rpc.Stats {
	st := cl.stats.sum()
	st.Conns = cl.conns.Load()
	if c := cl.latest(); c != nil && c.lives() {
		st.OpenConns = 1
	}
	return st
}

// Conn returns the latest connection, which may have ended, or nil before the first: see [NewClient]. Calls that should
// survive the connection are made with the Client instead.
func (cl *Client) Conn() *Conn { return cl.link.cur.Load() }

// OpenStream returns what a stream is opened with: the Receiver, and the current connection, for which it waits if
// necessary. It is for generated clients.
func (cl *Client) OpenStream(ctx context.Context, call *rpc.Call) (*stream.Receiver, rpc.Conn, error) {
	if cl.cfg.streams == nil {
		return nil, nil, stream.ErrNoStreams
	}
	cl.note(call)
	c := cl.latest()
	if c == nil || !c.lives() || c.leaves() {
		var err error
		if c, err = cl.link.await(ctx, c, new(pendingCall)); err != nil {
			return nil, nil, err
		}
	}
	return cl.cfg.streams, c.seen(), nil
}

// Done returns a channel that is closed when the client has been closed or, with NoReconnect, when its connection has
// ended. Err then returns why.
func (cl *Client) Done() <-chan struct{} { return cl.done }

// Err returns nil until Done is closed, and the *ClosedError afterwards.
func (cl *Client) Err() error { return cl.link.ended() }

// over announces the client's end.
func (cl *Client) over() {
	cl.cancel()
	cl.once.Do(func() { close(cl.done) })
}

// stop stops the goroutines that make connections.
func (cl *Client) stop() {
	cl.link.close(&rpc.ClosedError{Addr: cl.link.addr()})
	cl.cancel()
}

// Shutdown refuses new calls, waits until those in flight have returned, and closes in order. If ctx ends first, it
// closes the connection at once and returns ctx's error.
func (cl *Client) Shutdown(ctx context.Context) error {
	return cl.endWith(func(c connection) error { return c.shutdown(ctx) })
}

// Close ends the connection at once: calls in flight fail with *ClosedError. When it returns, no memory is exposed. It
// may be called more than once, and by any goroutine.
func (cl *Client) Close() error { return cl.endWith(connection.close) }

// endWith ends the client, and the latest connection with end. It waits until an attempt to connect has been canceled.
func (cl *Client) endWith(end func(connection) error) (err error) {
	cl.stop()
	if c := cl.latest(); c != nil {
		err = end(c)
	}
	cl.dialer.running.Wait()
	cl.callbacks.stop()
	cl.over()
	return err
}

// A Requester is a client with all of its connections to a server: a [Client], which has one, or a [Group], which has
// several. [Client] documents the methods.
type Requester interface {
	rpc.Caller

	// See [Client].
	Null(ctx context.Context, prog, vers uint32) error
	RegisterMemory(mem []byte) (*Memory, error)
	Info() rpc.ConnInfo
	Stats() rpc.Stats
	Shutdown(ctx context.Context) error
	Close() error
	Done() <-chan struct{}
	Err() error
}

var (
	_ Requester = (*Client)(nil)
	_ Requester = (*Group)(nil)

	_ stream.Opener = (*Client)(nil)
	_ stream.Opener = (*Group)(nil)

	_ rpc.Caller = (*Conn)(nil)
	_ rpc.Caller = (*Backchannel)(nil)
)
