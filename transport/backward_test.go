package transport

import (
	"context"
	"testing"
	"testing/synctest"

	"github.com/rpcrdma/rpcrdma/proto/rpcrdma"
)

// Calls in both directions on one connection (RFC 8167).

// procReady is by what a scripted client says that it is ready for calls.
const procReady = 20

// A callerService is a testService of which procReady leaves the connection to the test.
type callerService struct {
	testService
	conns chan *Conn
}

func (s *callerService) ServeRPC(ctx context.Context, req *Request, res *Response) {
	if req.Proc == procReady {
		s.conns <- req.Conn()
		return
	}
	s.testService.ServeRPC(ctx, req, res)
}

// caller runs a conversation with a server that calls a scripted client. cn is the way to
// it, with AllowBackward still to be called.
func caller(t *testing.T, cfg *Config, script func(p *peer, s *Server, cn *Conn)) {
	t.Helper()
	callerOf(t, newPeer(t), cfg, script)
}

func callerOf(t *testing.T, p *peer, cfg *Config, script func(p *peer, s *Server, cn *Conn)) {
	t.Helper()
	svc := &callerService{}
	prog := svc.program()
	prog.Handler = svc
	serverOf(t, p, cfg, []Program{prog}, func(p *peer, s *Server) {
		svc.gate = make(chan struct{})
		svc.conns = make(chan *Conn, 1)
		script(p, s, svc.ready(p, 0x5ead))
	})
}

// ready has a client say that it is ready, in a call with the given xid.
func (s *callerService) ready(p *peer, xid uint32) *Conn {
	p.t.Helper()
	p.send(callBytes(rpcrdma.Header{XID: xid}, procReady), 0)
	_, payload := p.message("the reply to a client that is ready")
	accepted(p.t, payload, xid)
	return <-s.conns
}

// backward starts a call of a server's.
func backward(cn *Conn, ctx context.Context, call *Call) <-chan error {
	done := make(chan error, 1)
	go func() { done <- cn.Call(ctx, call) }()
	return done
}

func testCall() *Call { return &Call{Prog: testProg, Vers: 1, Proc: 7} }

func TestAllowBackward(t *testing.T) {
	t.Run("a call that stands in line when the half opens is let go", func(t *testing.T) {
		gate := make(chan struct{})
		prog := Program{Number: testProg, Low: 1, High: 1, Inline: Every, Idempotent: Every}
		var cn *Conn
		prog.Handler = HandlerFunc(func(_ context.Context, req *Request, _ *Response) {
			cn = &Conn{c: req.x.c}
			<-gate // the leader is here, and does not see that it is to open the half
		})
		serverOf(t, newPeer(t), nil, []Program{prog}, func(p *peer, s *Server) {
			gate = make(chan struct{})
			p.send(callBytes(rpcrdma.Header{XID: 1}, procHold), 0)
			synctest.Wait()
			cn.AllowBackward(0)
			done := backward(cn, bg, testCall())
			synctest.Wait()
			close(gate)
			p.message("the reply")
			h, _ := p.message("the call")
			p.reply(rpcrdma.Header{XID: h.XID})
			if err := outcome(t, done); err != nil {
				t.Error(err)
			}
		})
	})
}
