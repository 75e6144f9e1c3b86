package iwarp

import (
	"context"
	"net"

	"github.com/rpcrdma/rpcrdma/fabric"
	"github.com/rpcrdma/rpcrdma/internal/llp"
	"github.com/rpcrdma/rpcrdma/proto/mpa"
)

// An Engine makes connections over a lower layer protocol other than TCP. Package shm is built on it.
type Engine struct{ p *Provider }

// NewEngine returns the Engine of a fabric.Provider with the given name.
func NewEngine(name string) *Engine {
	e := &Engine{New(Config{})}
	e.p.over = name
	return e
}

// OpenObjects is Provider.OpenObjects, without listeners.
func (e *Engine) OpenObjects() OpenObjects { return e.p.OpenObjects() }

// CheckAttr fills in defaults and rejects values out of range.
func (e *Engine) CheckAttr(a fabric.ConnAttr) (fabric.ConnAttr, error) { return e.p.checkAttr(a) }

// NewConn returns a connection that s will set up, with attributes from CheckAttr: either one to be connected to
// remote, or the one that request, the peer's offer, asks for. The connection owns s.
func (e *Engine) NewConn(s llp.Setup, attr fabric.ConnAttr, local, remote net.Addr, request *llp.Offer) *Conn {
	by := &setup{over: s, laddr: local, raddr: remote, target: remote.String(), link: link{eitherFirst: true}}
	if request != nil {
		by.passive, by.peerData = true, request.PrivateData
		by.reqRDMA = mpa.Enhanced{IRD: uint16(request.IRD), ORD: uint16(request.ORD)}
	}
	return e.p.newConn(attr, by)
}

// connectOver performs the initiator's handshake of an Engine's connection.
func (s *setup) connectOver(ctx context.Context, privateData []byte) error {
	var answer llp.Offer
	ird, ord := s.c.attr.InboundReads, s.c.attr.OutboundReads
	err := s.made(ctx, func(ctx context.Context) (stream llp.Stream, err error) {
		stream, answer, err = s.over.Connect(ctx, llp.Offer{IRD: ird, ORD: ord, PrivateData: privateData})
		if stream == nil && err == nil {
			err = &fabric.RejectError{Addr: s.target, PrivateData: answer.PrivateData}
		}
		return stream, err
	})
	if err != nil {
		return err
	}
	s.ird, s.ord = min(ird, answer.ORD), min(ord, answer.IRD)
	s.c.state.Lock().peerData = answer.PrivateData
	s.c.state.Unlock()
	return s.establish(ctx)
}

// acceptOver performs the responder's handshake of an Engine's connection.
func (s *setup) acceptOver(ctx context.Context, privateData []byte) error {
	s.ird, s.ord = min(s.ird, int(s.reqRDMA.ORD)), min(s.ord, int(s.reqRDMA.IRD))
	return s.made(ctx, func(ctx context.Context) (llp.Stream, error) {
		return s.over.Accept(ctx, llp.Offer{IRD: s.ird, ORD: s.ord, PrivateData: privateData})
	})
}

// made runs handshake and takes over its stream. The end of ctx, or Close, interrupts the handshake.
func (s *setup) made(ctx context.Context, handshake func(context.Context) (llp.Stream, error)) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	s.c.state.Lock().interrupt = cancel
	s.c.state.Unlock()
	if s.c.shut.Load() { // Close sets it before it interrupts
		return net.ErrClosed
	}
	stream, err := handshake(ctx)
	if err != nil {
		return err
	}
	sock := streamSocket(stream)
	st := s.c.state.Lock()
	st.laddr, st.raddr = s.over.Addrs()
	s.c.state.Unlock()
	return s.useSocket(sock)
}
