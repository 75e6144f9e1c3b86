package transport

import (
	"context"
	"net"

	"github.com/rpcrdma/rpcrdma/fabric"
	"github.com/rpcrdma/rpcrdma/transport/internal/budget"
)

// A StreamProvider provides byte streams in place of RDMA connections. Dial, DialGroup, Server.Listen and
// Server.ListenAndServe recognize it by its methods, and send calls as records over the streams: see [DialTCPWith] and
// [Server.ServeTCP]. [TCP] is one. A type that embeds TCP can override its methods, for instance to count connections
// or to set socket options.
type StreamProvider interface {
	fabric.Provider

	// DialStream connects to addr, in any format that it understands.
	DialStream(ctx context.Context, addr string) (net.Conn, error)

	// ListenStream listens at addr. ctx does not end the listener.
	ListenStream(ctx context.Context, addr string) (net.Listener, error)
}

// TCP is the provider without RDMA: calls are sent as records over TCP, see [DialTCP] and [Server.ServeTCP]. A program
// moves from TCP to RDMA, or chooses at startup, by the provider alone. Code that requires RDMA gets
// errors.ErrUnsupported.
type TCP struct{}

var _ StreamProvider = TCP{}

// Name returns "tcp".
func (TCP) Name() string { return tcpProvider }

// Resolve fails: there is no RDMA.
func (TCP) Resolve(context.Context, string, fabric.ConnAttr) (fabric.Conn, error) {
	return nil, errNoRDMA
}

// Listen fails: there is no RDMA.
func (TCP) Listen(context.Context, string, fabric.ConnAttr) (fabric.Listener, error) {
	return nil, errNoRDMA
}

// DialStream connects to addr ("host:port").
func (TCP) DialStream(ctx context.Context, addr string) (net.Conn, error) {
	var d net.Dialer
	return d.DialContext(ctx, "tcp", addr)
}

// ListenStream listens at addr ("host:port"). Port 0 selects a free port.
func (TCP) ListenStream(ctx context.Context, addr string) (net.Listener, error) {
	var lc net.ListenConfig
	return lc.Listen(ctx, "tcp", addr)
}

// Close does nothing: servers own the listeners.
func (TCP) Close() error { return nil }

// DialTCP connects to addr ("host:port") over TCP: calls are sent as records (RFC 5531 section 11). A nil cfg is the
// default configuration. The Client is used like any other, with these differences:
//
//   - all data of a call and of its reply goes inline. The data of ReadItems is written without a copy; that of
//     WriteItems arrives in Results, from which ResultDecoder.Item copies it;
//   - a reply may be as long as MaxResults and the Bufs of WriteItems together, or InlineRecv if that is more; a longer
//     reply is dropped, and its call fails with a *BadReplyError;
//   - at most Credits calls are in flight. The others wait;
//   - when the context of a call ends, nothing else is affected: the rest of a half-sent call is sent from a copy of
//     its data;
//   - Operate fails with an *OperationError, and RegisterMemory does nothing;
//   - a server without room for a connection closes it.
//
// It reconnects as other Clients do, and executes Callbacks for its server on the same connection.
func DialTCP(ctx context.Context, addr string, cfg *ClientConfig) (*Client, error) {
	return Dial(ctx, TCP{}, addr, cfg)
}

// DialTCPWith is DialTCP with connections made by dial: from a reserved port, over TLS, or to a Unix socket. dial is
// called for each connection, with addr, in any format that dial understands. The Client owns the connection. A
// connection that is not a *net.TCPConn or *net.UnixConn is closed if a half-sent call of more than 4 KiB is canceled
// and the server does not take the rest within a second.
func DialTCPWith(ctx context.Context, addr string, cfg *ClientConfig,
	dial func(ctx context.Context, addr string) (net.Conn, error)) (*Client, error) {
	cl, err := newTCPClient(addr, tcpProvider, cfg, dial)
	if err != nil {
		return nil, err
	}
	return cl.start(ctx)
}

// newTCPClient returns a client over TCP that has not connected yet.
func newTCPClient(addr, via string, cfg *ClientConfig, dial func(ctx context.Context, addr string) (net.Conn, error)) (*Client, error) {
	cl, err := newClient(addr, via, cfg)
	if err == nil {
		cl.dialTCP = dial
	}
	return cl, err
}

// connectTCP makes a connection.
func (cl *Client) connectTCP(ctx context.Context) (*Conn, error) {
	nc, err := cl.dialTCP(ctx, cl.addr)
	if err != nil {
		return nil, err
	}
	if _, ok := nc.(tlsConn); !ok && cl.connCfg.tls != nil {
		if nc, err = cl.connCfg.secureTo(ctx, nc, cl.addr); err != nil {
			return nil, err
		}
	}
	c := newTCPConn(nc, cl.connCfg, roleClient, nil)
	c.stats = cl.stats.join()
	if len(cl.cfg.Callbacks) > 0 {
		c.execute(cl.callbacks, budget.New(totalMemory(&cl.cfg.Config)), cl.cfg.BackwardCredits)
	}
	go c.serve()
	return &c.public, nil
}
