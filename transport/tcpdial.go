package transport

import (
	"context"
	"net"

	"github.com/rpcrdma/rpcrdma/fabric"
	"github.com/rpcrdma/rpcrdma/transport/internal/budget"
)

// TCP says that there is no RDMA, where Dial, Server.Listen and Server.ListenAndServe want a
// provider: calls then go as records over TCP, see [DialTCP] and [Server.ServeTCP]. A program
// moves from TCP to RDMA, or chooses when it starts, by the provider alone. Code that wants RDMA
// gets errors.ErrUnsupported.
type TCP struct{}

var _ fabric.Provider = TCP{}

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

// Close does nothing: listeners belong to their servers.
func (TCP) Close() error { return nil }

// DialTCP connects to addr ("host:port") over TCP: calls go as records (RFC 5531 section 11). A nil
// cfg is the default configuration. The Client is used as any other, with these differences:
//
//   - all data of a call and of its reply goes inline. That of ReadItems is written from where
//     it is; that of WriteItems comes in Results, from which ResultDecoder.Item takes it;
//   - a reply may be as long as MaxResults and the Bufs of WriteItems together, or InlineRecv
//     if that is more; a longer one is dropped, and its call fails with a *BadReplyError;
//   - at most Credits calls are in flight. The others wait;
//   - when the context of a call ends, nothing else is lost: a half-sent call is sent to its end,
//     from a copy of its data;
//   - Operate fails with an *OperationError, and RegisterMemory does nothing;
//   - a server without room for a connection closes it.
//
// It reconnects as other Clients do, and executes Callbacks for its server on the same
// connection.
func DialTCP(ctx context.Context, addr string, cfg *ClientConfig) (*Client, error) {
	return DialTCPWith(ctx, addr, cfg, dialTCP)
}

func dialTCP(ctx context.Context, addr string) (net.Conn, error) {
	var d net.Dialer
	return d.DialContext(ctx, "tcp", addr)
}

// DialTCPWith is DialTCP with connections made by dial: from a reserved port, over TLS, or to a
// Unix socket. dial is called for each connection, with addr, which may be anything that dial
// understands. The connection belongs to the Client. Another than a *net.TCPConn or a
// *net.UnixConn is closed when a call with more than 4 KiB is given up of which a part has been
// sent, and the server does not take the rest within a second.
func DialTCPWith(ctx context.Context, addr string, cfg *ClientConfig,
	dial func(ctx context.Context, addr string) (net.Conn, error)) (*Client, error) {
	cl, err := newTCPClient(addr, cfg, dial)
	if err != nil {
		return nil, err
	}
	return cl.start(ctx)
}

// newTCPClient returns a client over TCP that has not connected yet.
func newTCPClient(addr string, cfg *ClientConfig, dial func(ctx context.Context, addr string) (net.Conn, error)) (*Client, error) {
	cl, err := newClient(addr, tcpProvider, cfg)
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
	c := newTCPConn(nc, cl.connCfg, roleClient, nil)
	c.stats = cl.stats.join()
	if len(cl.cfg.Callbacks) > 0 {
		c.execute(cl.callbacks, budget.New(totalMemory(&cl.cfg.Config)), cl.cfg.BackwardCredits)
	}
	go c.serve()
	return &c.public, nil
}
