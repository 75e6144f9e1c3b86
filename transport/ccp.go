package transport

import (
	"context"
	"errors"
	"math"

	"github.com/rpcrdma/rpcrdma/proto/oncrpc"
	"github.com/rpcrdma/rpcrdma/proto/rpcrdma"
	"github.com/rpcrdma/rpcrdma/rpc"
	"github.com/rpcrdma/rpcrdma/transport/internal/plan"
)

// The Connection Configuration Protocol, RFC 5666 section 6: a client's first call states the limits it wants for the
// connection, and the reply states those of the server.
//
// Sizes include the transport header, as the 1024 bytes of section 6.1 do. Each end's maxrdmaread is the number of RDMA
// Reads that its adapter serves, so it limits the Reads of the other end. If either is zero, neither end uses read
// chunks.

// startConfig sets the bounds: the limits of this end, and those in the peer's private data, which apply for the life
// of the connection (RFC 8797 section 4). The default of 1024 bytes for peers without private data is not a bound.
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

// maxServed returns the maxrdmaread of this end.
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

// lesser returns the smaller of a number of this end and one of the peer.
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
	x.answer(oncrpc.ReplyHeader{}, rpcrdma.AppendConfigReply(x.results(), r)) // with the previous limits
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

// alone reports whether no other call of the connection is being answered. Handlers on their own goroutines rely on the
// limits that are about to change.
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
