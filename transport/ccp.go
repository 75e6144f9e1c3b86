package transport

import (
	"context"
	"errors"
	"fmt"
	"math"

	"github.com/rpcrdma/rpcrdma/proto/oncrpc"
	"github.com/rpcrdma/rpcrdma/proto/rpcrdma"
)

// The Connection Configuration Protocol, RFC 5666 section 6: a client's first call says
// what it wants of the connection, and the answer has the server's limits.
//
// Sizes count the transport header in, as the 1024 bytes of section 6.1 do. Each end's
// maxrdmaread is the number of RDMA Reads that its adapter serves, so it binds the
// Reads of the other; no end uses read chunks if one of the two is zero.

// ConfigProtocol turns on the Connection Configuration Protocol of RFC 5666 section 6. A
// client's Dial then makes its call before anything else; a server that does not have
// the program, or refuses the call, leaves the connection as it was. A server answers
// the program beside those registered.
//
// The protocol is of use with peers that have no private data (RFC 8797), without which
// messages are of 1024 bytes at most. Where there was some it can make sizes only
// smaller. What came out is in ConnInfo.
//
// A server cannot tell how long its inline replies may get: the client takes it that it
// will use what was asked for. So a server's InlineSend should be no less than the
// InlineRecv of its clients.
//
// The call is to be protected (section 11), or somebody in between can slow the
// connection down. This package makes and verifies no RPCSEC_GSS: what remains is a
// credential that means something to the server, and a link that is protected itself.
type ConfigProtocol struct {
	// Align is the alignment in bytes that a server recommends for opaque data, at
	// most 65536. 0 and 1 recommend none.
	Align int

	// MaxReads is how many RDMA Reads the peer may have under way at this end at
	// once. Zero, and more than the adapter can do, is what it can do.
	MaxReads int

	// NoReads makes that none at all: then neither end uses read chunks, and calls
	// that do not fit inline fail with *SizeError.
	NoReads bool

	// Cred and Verf go with a client's call.
	Cred, Verf oncrpc.Auth

	// Auth decides at a server whether a call with this credential may configure the
	// connection: with another answer than oncrpc.AuthOK the call is rejected, with
	// oncrpc.AuthTooWeak where a flavor does not suffice. It must be quick, and not
	// keep the credential's memory. Nil takes every flavor, AUTH_NONE included, but
	// RPCSEC_GSS, which is always rejected.
	Auth func(cred oncrpc.Auth) oncrpc.AuthStat
}

// configures tells whether the protocol is turned on.
func (o *RFC5666) configures() bool { return o != nil && o.ConfigProtocol != nil }

// check finds what a configuration of this kind cannot be.
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

// A configuration is what a connection's set-up leaves to the protocol, and what that
// has made of it. It changes while nobody else uses the connection, and while the
// connection's state is locked.
type configuration struct {
	send, recv int // the most that our Sends and the peer's can get

	align   int  // of our RDMA_MSGP calls
	noReads bool // no read chunks

	done      bool
	refused   error // the server's
	peerReads uint32
	peerAlign uint32 // recommended by the server
}

// startConfig sets the bounds: this end's own limits, and what the peer's private data
// says, which holds for the life of the connection (RFC 8797 section 4). The 1024 bytes
// that stand in for private data that was not sent are no bound.
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

// maxServed is our maxrdmaread.
func (c *conn) maxServed() uint32 {
	switch o := c.cfg.RFC5666.ConfigProtocol; {
	case o.NoReads:
		return 0
	case o.MaxReads > 0:
		return uint32(min(o.MaxReads, c.caps.InboundReads))
	}
	return uint32(c.caps.InboundReads)
}

// limitReads observes the peer's maxrdmaread (RFC 5666 section 6.2).
func (l *leader) limitReads(peers uint32) {
	c := l.c
	c.conf.done, c.conf.peerReads = true, peers
	c.conf.noReads = peers == 0 || c.maxServed() == 0
	l.reads.Most = lesser(min(maxReads, c.caps.OutboundReads), peers)
	if c.conf.noReads {
		l.reads.Most = 0
	}
}

// lesser is the smaller one of a number of ours and one of the peer's.
func lesser(own int, peers uint32) int { return int(min(uint64(own), uint64(peers))) }

// ---- client

// configure makes the call, as the first one on a new connection. The error is a reason
// to give the connection up.
func (c *conn) configure(ctx context.Context) error {
	o := c.cfg.RFC5666
	if !o.configures() {
		return nil
	}
	call := Call{
		Prog: rpcrdma.ConfigProgram, Vers: rpcrdma.ConfigVersion, Proc: rpcrdma.ProcConfRDMA,
		Cred: o.ConfigProtocol.Cred, Verf: o.ConfigProtocol.Verf,
		Args: rpcrdma.AppendConfigCall(nil, rpcrdma.ConfigCall{
			MaxCall: uint32(c.conf.send), MaxReply: uint32(c.conf.recv), MaxReads: c.maxServed(),
		}),
		MaxResults: rpcrdma.ConfigSize,
	}
	err := c.call(ctx, &call)
	var refused *oncrpc.RPCError
	var unread *RDMAError
	if errors.As(err, &refused) || errors.As(err, &unread) {
		// The protocol is optional: it goes on as it is (section 6).
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
		return &BadReplyError{XID: call.Reply.XID, Reason: "it is no config_rdma_reply"}
	}
	l := c.take()
	if l == nil {
		return c.endErr()
	}
	defer l.release()
	c.state.Lock()
	defer c.state.Unlock()
	c.agreed.sendLimit.Store(int32(lesser(c.conf.send, r.MaxCall)))
	c.agreed.recvLimit.Store(int32(c.conf.recv))
	l.limitReads(r.MaxReads)
	c.conf.peerAlign = r.Align
	if o.Align == 0 && r.Align <= maxAlign {
		c.conf.align = int(r.Align)
	}
	return nil
}

// ---- server

// configure answers a call to the program, with arguments args.
func (l *leader) configure(x *exch, args []byte) {
	if !x.asks(l, rpcrdma.ConfigVersion, rpcrdma.ProcConfRDMA) {
		return
	}
	c := l.c
	o := c.cfg.RFC5666.ConfigProtocol
	if stat := o.authorize(x.call.Cred); stat != oncrpc.AuthOK {
		x.replyError(l, oncrpc.ReplyHeader{Stat: oncrpc.MsgDenied, RejectStat: oncrpc.AuthError, AuthStat: stat})
		return
	}
	req, n, err := rpcrdma.ConsumeConfigCall(args)
	if err != nil || n != len(args) {
		x.replyError(l, oncrpc.ReplyHeader{AcceptStat: oncrpc.GarbageArgs})
		return
	}
	alone := l.alone(x)
	r := rpcrdma.ConfigReply{MaxCall: uint32(c.recvMax()), Align: uint32(o.Align), MaxReads: c.maxServed()}
	if alone {
		r.MaxCall = uint32(c.conf.recv)
	}
	x.reply(l, rpcrdma.AppendConfigReply(x.results(), r)) // under what was in force
	if !alone {
		return
	}
	c.state.Lock()
	defer c.state.Unlock()
	c.agreed.sendLimit.Store(int32(lesser(c.conf.send, req.MaxReply)))
	c.agreed.recvLimit.Store(int32(c.conf.recv)) // what the receives are posted for
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

// alone reports whether no other call of the connection is being answered: services on
// goroutines of their own go by what may change now.
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

// fill tells what the protocol has done.
func (f *configuration) fill(i *ConnInfo) {
	i.Configured, i.ConfigError = f.done, f.refused
	i.PeerReads, i.PeerAlign = lesser(math.MaxInt32, f.peerReads), lesser(math.MaxInt32, f.peerAlign)
}
