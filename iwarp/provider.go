package iwarp

import (
	"context"
	"crypto/tls"
	"fmt"
	"maps"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rpcrdma/rpcrdma/fabric"
	"github.com/rpcrdma/rpcrdma/internal/lockorder"
	"github.com/rpcrdma/rpcrdma/proto/mpa"
)

const name = "iwarp"

// Defaults of Config and of fabric.ConnAttr.
const (
	DefaultRequestTimeout = 10 * time.Second
	DefaultReplyTimeout   = 5 * time.Second
	DefaultMaxPending     = 128
	DefaultBacklog        = 128

	DefaultSendDepth = 128
	DefaultRecvDepth = 128
	DefaultReads     = 16

	// MaxDepth is the largest queue depth, in work requests.
	MaxDepth = 1 << 16
)

// MaxPrivateData is the longest private data that can be sent. The protocol allows 512 bytes (RFC 5044 section 7.1.1),
// but Linux's siw accepts only 256, four of which are the enhanced data of RFC 6581. Received private data may be as
// long as the protocol allows.
const MaxPrivateData = 252

// MaxSendSGE is the longest gather list of a Send or Write.
const MaxSendSGE = 16

// Config configures a Provider. The zero value is valid.
type Config struct {
	// CRC requests a CRC32C on every FPDU when this side connects. Both sides use it if either requests it (RFC 5044
	// section 7.1.1). Default: no CRC, because TCP has its own checksum.
	CRC bool

	// RequireCRC also requests CRCs when this side accepts.
	RequireCRC bool

	// PeerToPeer requests the peer-to-peer model of RFC 6581 section 4 when this side
	// connects: it sends a Ready To Receive frame after the reply, so that the accepting side
	// may send first. Without it the requests of the accepting side stay queued until the
	// other side has sent something (RFC 5044 section 7.1.2). It has no effect on connections
	// that this side accepts.
	PeerToPeer bool

	// TLS, if not nil, protects connections with TLS 1.3, in both roles: its handshake precedes that of MPA. The peer
	// must use TLS, too; it does not work with siw or hardware adapters. A client verifies that the server's
	// certificate is valid for the host in the address, unless ServerName is set; ClientAuth and ClientCAs are for
	// servers that require client certificates. The ALPN protocol is "iwarp" if NextProtos is empty. Conn.TLS returns
	// the outcome. The configuration must not be changed while the Provider is in use, but its callbacks may return
	// different values over time.
	TLS *tls.Config

	// MaxFPDU is the longest FPDU to send, in bytes on the wire. Default: the maximum (64 KiB)
	// if the peer is on the same host, and one TCP segment otherwise, since adapters with
	// their own TCP stack may not accept more. Peers that run this package or Linux's siw
	// accept 64 KiB over any network, and are faster with it. Received FPDUs may have any
	// length.
	MaxFPDU int

	// RequestTimeout bounds the time in which an incoming TCP connection must send its MPA
	// request.
	RequestTimeout time.Duration

	// ReplyTimeout bounds how long Connect waits for the MPA reply, and thus for the peer to
	// accept.
	ReplyTimeout time.Duration

	// MaxPending bounds the incoming TCP connections of a Listener that have not sent a complete MPA request. Another
	// one replaces the oldest connection of the host that has the most.
	MaxPending int

	// Backlog bounds the connection requests of a Listener that wait for Accept. Further requests are rejected.
	Backlog int

	// Park makes every wait park at once. By default a wait begins by polling the socket, for up to 200 microseconds,
	// on connections where that has been faster. Polling occupies a processor, which a container with a small quota may
	// not have.
	Park bool

	// ListenTCP returns the socket for a Listener on addr. It is for programs that are started with open sockets. The
	// Listener uses a duplicate, and closes the socket that was returned. Default: a new socket.
	ListenTCP func(ctx context.Context, addr string) (*net.TCPListener, error)
}

func (c Config) withDefaults() Config {
	if c.RequestTimeout <= 0 {
		c.RequestTimeout = DefaultRequestTimeout
	}
	if c.ReplyTimeout <= 0 {
		c.ReplyTimeout = DefaultReplyTimeout
	}
	if c.MaxPending <= 0 {
		c.MaxPending = DefaultMaxPending
	}
	if c.Backlog <= 0 {
		c.Backlog = DefaultBacklog
	}
	if c.ListenTCP == nil {
		c.ListenTCP = listenTCP
	}
	return c
}

// A Provider is a software RDMA adapter over TCP. The zero value has the zero Config. A
// Provider must not be copied.
type Provider struct {
	cfg     Config
	over    string // the name of the provider of an Engine; empty for TCP
	open    open
	stages  sync.Pool // *stage
	batches sync.Pool // *batch

	made  time.Time
	polls polls

	listening lockorder.Value[listening]

	nudgeAfter time.Duration // for tests; firstNudge if zero
}

var _ fabric.Provider = (*Provider)(nil)

// Listening is the set of listeners of a Provider, under the lock of Provider.listening.
type listening struct {
	on     map[*listener]struct{}
	closed bool
}

// New returns a Provider. It opens nothing until it is used.
func New(cfg Config) *Provider {
	p := &Provider{cfg: cfg, made: time.Now()}
	p.listening.Init(lockorder.IwarpProvider)
	return p
}

// Close implements fabric.Provider. Its error is nil.
func (p *Provider) Close() error {
	l := p.listening.Lock()
	l.closed = true
	list := slices.Collect(maps.Keys(l.on))
	p.listening.Unlock()
	for _, l := range list {
		l.Close()
	}
	return nil
}

// mayOpen returns nil until Close is called. The error is for an operation on addr.
func (p *Provider) mayOpen(addr string) error {
	defer p.listening.Unlock()
	if p.listening.Lock().closed {
		return &SetupError{Addr: addr, Reason: "the provider", Err: net.ErrClosed}
	}
	return nil
}

// open counts the open objects of a Provider.
type open struct{ conns, mrs, mws, handshakes atomic.Int64 }

// OpenObjects counts the objects of a Provider that have not been closed.
type OpenObjects struct {
	Conns      int // connections, including those being set up
	Listeners  int
	MRs        int // memory regions
	MWs        int // memory windows
	Handshakes int // incoming connections without a complete request
}

// OpenObjects returns the current counts, for tests that check for leaks.
func (p *Provider) OpenObjects() OpenObjects {
	listeners := len(p.listening.Lock().on)
	p.listening.Unlock()
	return OpenObjects{
		Conns:      int(p.open.conns.Load()),
		Listeners:  listeners,
		MRs:        int(p.open.mrs.Load()),
		MWs:        int(p.open.mws.Load()),
		Handshakes: int(p.open.handshakes.Load()),
	}
}

// Name implements fabric.Provider.
func (p *Provider) Name() string {
	if p.over != "" {
		return p.over
	}
	return name
}

// lacks returns the error for a capability that the adapter does not have.
func (p *Provider) lacks(capability string) error {
	return &fabric.CapabilityError{Provider: p.Name(), Capability: capability}
}

// checkAttr fills in defaults and rejects values that are out of range.
func (p *Provider) checkAttr(a fabric.ConnAttr) (fabric.ConnAttr, error) {
	for _, f := range []struct {
		v    *int
		def  int
		most int
		what string
	}{
		{&a.SendDepth, DefaultSendDepth, MaxDepth, "send queue"},
		{&a.RecvDepth, DefaultRecvDepth, MaxDepth, "receive queue"},
		{&a.InboundReads, DefaultReads, mpa.MaxReads, "number of inbound Reads"},
		{&a.OutboundReads, DefaultReads, mpa.MaxReads, "number of outbound Reads"},
	} {
		if *f.v == 0 {
			*f.v = f.def
		}
		if *f.v < 0 || *f.v > f.most {
			return a, p.lacks(fmt.Sprintf("%s of %d (1 to %d)", f.what, *f.v, f.most))
		}
	}
	if !supported {
		return a, p.lacks("data path for this operating system")
	}
	return a, nil
}

// Resolve implements fabric.Provider. It looks up the host name; Connect makes the TCP connection.
func (p *Provider) Resolve(ctx context.Context, addr string, attr fabric.ConnAttr) (fabric.Conn, error) {
	attr, err := p.checkAttr(attr)
	if err != nil {
		return nil, err
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if err := p.mayOpen(addr); err != nil {
		return nil, err
	}
	host, service, err := net.SplitHostPort(addr)
	if err != nil {
		return nil, &SetupError{Addr: addr, Reason: "malformed address", Err: err}
	}
	port, err := net.DefaultResolver.LookupPort(ctx, "tcp", service)
	if err != nil {
		return nil, &SetupError{Addr: addr, Reason: "unknown port", Err: err}
	}
	var ips []net.IPAddr
	if host == "" {
		// As with net.Dial, an empty host is the local host.
		ips = []net.IPAddr{{IP: net.IPv6loopback}, {IP: net.IPv4(127, 0, 0, 1)}}
	} else if ips, err = net.DefaultResolver.LookupIPAddr(ctx, host); err != nil {
		return nil, &SetupError{Addr: addr, Reason: "unknown host", Err: err}
	}
	to := &setup{target: addr}
	for _, ip := range ips {
		to.addrs = append(to.addrs, &net.TCPAddr{IP: ip.IP, Port: port, Zone: ip.Zone})
	}
	to.raddr = to.addrs[0]
	return p.newConn(attr, to), nil
}
