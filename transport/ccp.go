package transport

import (
	"context"
	"errors"
	"fmt"
	"math"

	"github.com/rpcrdma/rpcrdma/proto/oncrpc"
	"github.com/rpcrdma/rpcrdma/proto/rpcrdma"
	"github.com/rpcrdma/rpcrdma/rpc"
	"github.com/rpcrdma/rpcrdma/transport/internal/plan"
)

// The Connection Configuration Protocol, RFC 5666 section 6: a client's first call states
// the limits that it wants for the connection, and the reply those of the server.
//
// Sizes include the transport header, as the 1024 bytes of section 6.1 do. Each end's
// maxrdmaread is the number of RDMA Reads that its adapter serves, so it limits the
// Reads of the other end; if one of the two is zero, neither end uses read chunks.

// ConfigProtocol turns on the Connection Configuration Protocol of RFC 5666 section 6. A
// client's Dial then makes its call before anything else; a server that does not have
// the program, or refuses the call, leaves the connection as it was. A server answers
// the program beside those registered.
//
// The protocol is useful with peers that send no private data (RFC 8797): without both,
// messages have at most 1024 bytes. After private data it can only lower the sizes.
// ConnInfo has the result.
//
// A server cannot state the size of its inline replies: the client assumes that it may use
// what was asked for. So a server's InlineSend should be at least the InlineRecv of its
// clients.
//
// The call should be protected (section 11), or an attacker on the path can slow down the
// connection. This package neither makes nor verifies RPCSEC_GSS: use a credential
// that the server knows, or a link that is itself protected.
type ConfigProtocol struct {
	// Align is the alignment in bytes that a server recommends for opaque data, at
	// most 65536. 0 and 1 recommend none.
	Align int

	// MaxReads is how many RDMA Reads the peer may have in progress at this end. Zero, or more than
	// the adapter serves, is the adapter's limit.
	MaxReads int

	// NoReads allows the peer no Reads: neither end uses read chunks, and calls that
	// do not fit inline fail with *SizeError.
	NoReads bool

	// Cred and Verf are the credential and verifier of a client's call.
	Cred, Verf oncrpc.Auth

	// Auth decides at a server whether a call with this credential may configure the
	// connection. Any result but oncrpc.AuthOK rejects the call; oncrpc.AuthTooWeak is
	// for a flavor that does not suffice. Auth must be quick and must not keep the
	// credential's memory. Nil accepts every flavor, including AUTH_NONE, except
	// RPCSEC_GSS, which is always rejected.
	Auth func(cred oncrpc.Auth) oncrpc.AuthStat
}

// configures reports whether the protocol is turned on.
func (o *RFC5666) configures() bool { return o != nil && o.ConfigProtocol != nil }

// check returns an error if a field is out of range.
func (f *ConfigProtocol) check(o *RFC5666) error {
	switch {
	case f.Align < 0 || f.Align > maxAlign:
		return fmt.Errorf("transport: ConfigProtocol.Align is %d, want at most %d", f.Align, maxAlign)
	case f.MaxReads < 0:
		return fmt.Errorf("transport: ConfigProtocol.MaxReads is %d", f.MaxReads)
	case len(f.Cred.Body) > oncrpc.MaxAuthBody || len(f.Verf.Body) > oncrpc.MaxAuthBody:
		return fmt.Errorf("transport: ConfigProtocol has a credential or verifier of more than %d bytes", oncrpc.MaxAuthBody)
	case o.Align == 0 && o.Thresh != 0 && o.Thresh <= oncrpc.MaxAuthBody:
		return fmt.Errorf("transport: RFC5666 has Thresh %d, want more than %d", o.Thresh, oncrpc.MaxAuthBody)
	}
	return nil
}

// A configuration has the bounds that the setup of a connection leaves to the protocol,
// and the result of the protocol. It is written before other goroutines use the connection, or
// with the connection's state locked.
type configuration struct {
	send, recv int // the most that our Sends and the peer's can get

	align   int  // of our RDMA_MSGP calls
	noReads bool // no read chunks

	done      bool
	refused   error // the server's
	peerReads uint32
	peerAlign uint32 // recommended by the server
}

// startConfig sets the bounds: the limits of this end, and those in the peer's private data,
// which hold for the life of the connection (RFC 8797 section 4). The default of 1024 bytes
// for peers without private data is no bound.
func (c *conn) startConfig() {
	c.conf = configuration{send: c.cfg.InlineSend, recv: c.cfg.InlineRecv}
	if c.hasPriv {
		c.conf.send = min(c.conf.send, c.priv.RecvSize)
		c.conf.recv = min(c.conf.recv, c.priv.SendSize)
	}
	if o := c.cfg.RFC5666; o != nil {
		c.conf.align = o.Align
	}
}

// maxServed is the maxrdmaread of this end.
func (c *conn) maxServed() uint32 {
	switch o := c.cfg.RFC5666.ConfigProtocol; {
	case o.NoReads:
		return 0
	case o.MaxReads > 0:
		return uint32(min(o.MaxReads, c.caps.InboundReads))
	}
	return uint32(c.caps.InboundReads)
}

// limitReads applies the peer's maxrdmaread (RFC 5666 section 6.2).
func (l *leader) limitReads(peers uint32) {
	c := l.c
	c.conf.done, c.conf.peerReads = true, peers
	c.conf.noReads = peers == 0 || c.maxServed() == 0
	l.reads.Most = lesser(min(maxReads, c.caps.OutboundReads), peers)
	if c.conf.noReads {
		l.reads.Most = 0
	}
}

// lesser is the smaller of a number of this end and one of the peer.
func lesser(own int, peers uint32) int { return int(min(uint64(own), uint64(peers))) }

// ---- client

// configure makes the call, the first one on a new connection. If it returns an error, the
// connection cannot be used.
func (c *conn) configure(ctx context.Context) error {
	o := c.cfg.RFC5666
	if !o.configures() {
		return nil
	}
	call := rpc.Call{
		Prog: rpcrdma.ConfigProgram, Vers: rpcrdma.ConfigVersion, Proc: rpcrdma.ProcConfRDMA,
		Cred: o.ConfigProtocol.Cred, Verf: o.ConfigProtocol.Verf,
		Args: rpcrdma.AppendConfigCall(nil, rpcrdma.ConfigCall{
			MaxCall: uint32(c.conf.send), MaxReply: uint32(c.conf.recv), MaxReads: c.maxServed(),
		}),
		MaxResults: rpcrdma.ConfigSize,
	}
	err := c.call(ctx, pendingOf(&call))
	var refused *oncrpc.RPCError
	var unread *rpc.RDMAError
	if errors.As(err, &refused) || errors.As(err, &unread) {
		// The protocol is optional: the defaults stay (section 6).
		c.state.Lock()
		c.conf.refused = err
		c.state.Unlock()
		return nil
	}
	if err != nil {
		return err
	}
	r, n, err := rpcrdma.ConsumeConfigReply(call.Results)
	if err != nil || n != len(call.Results) {
		return &rpc.BadReplyError{XID: call.Reply.XID, Reason: "it is no config_rdma_reply"}
	}
	l := c.take()
	if l == nil {
		return c.endErr()
	}
	defer l.release()
	c.state.Lock()
	defer c.state.Unlock()
	c.setSizes(plan.Configured(plan.Sizes{Send: c.conf.send, Recv: c.conf.recv}, r.MaxCall))
	l.limitReads(r.MaxReads)
	c.conf.peerAlign = r.Align
	if o.Align == 0 && r.Align <= maxAlign {
		c.conf.align = int(r.Align)
	}
	return nil
}

// ---- server

// configure answers a call of the program with arguments args.
func (l *leader) configure(x *exch, args []byte) {
	if !x.asks(rpcrdma.ConfigVersion, rpcrdma.ProcConfRDMA) {
		return
	}
	c := l.c
	o := c.cfg.RFC5666.ConfigProtocol
	if stat := o.authorize(x.call.Cred); stat != oncrpc.AuthOK {
		x.answer(oncrpc.ReplyHeader{Stat: oncrpc.MsgDenied, RejectStat: oncrpc.AuthError, AuthStat: stat}, nil)
		return
	}
	req, n, err := rpcrdma.ConsumeConfigCall(args)
	if err != nil || n != len(args) {
		x.answer(oncrpc.ReplyHeader{AcceptStat: oncrpc.GarbageArgs}, nil)
		return
	}
	alone := l.alone(x)
	r := rpcrdma.ConfigReply{MaxCall: uint32(c.recvMax()), Align: uint32(o.Align), MaxReads: c.maxServed()}
	if alone {
		r.MaxCall = uint32(c.conf.recv)
	}
	x.answer(oncrpc.ReplyHeader{}, rpcrdma.AppendConfigReply(x.results(), r)) // under what was in force
	if !alone {
		return
	}
	c.state.Lock()
	defer c.state.Unlock()
	c.setSizes(plan.Configured(plan.Sizes{Send: c.conf.send, Recv: c.conf.recv}, req.MaxReply))
	l.limitReads(req.MaxReads)
}

func (o *ConfigProtocol) authorize(cred oncrpc.Auth) oncrpc.AuthStat {
	switch {
	case cred.Flavor == oncrpc.FlavorGSS:
		return oncrpc.AuthRejectedCred
	case o.Auth != nil:
		return o.Auth(cred)
	}
	return oncrpc.AuthOK
}

// alone reports whether no other call of the connection is being answered. Handlers on
// goroutines of their own rely on the limits that are about to change.
func (l *leader) alone(x *exch) bool {
	l.c.state.Lock()
	defer l.c.state.Unlock()
	for _, other := range l.exchs {
		switch other.state {
		case exchPulling, exchExecuting, exchPosting:
			if other != x {
				return false
			}
		}
	}
	return true
}

// fill reports the result of the protocol.
func (f *configuration) fill(i *rpc.ConnInfo) {
	i.Configured, i.ConfigError = f.done, f.refused
	i.PeerReads, i.PeerAlign = lesser(math.MaxInt32, f.peerReads), lesser(math.MaxInt32, f.peerAlign)
}
