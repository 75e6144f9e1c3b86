package middleware

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"sync"
	"testing"

	"github.com/rpcrdma/rpcrdma/proto/oncrpc"
	"github.com/rpcrdma/rpcrdma/rpc"
	"github.com/rpcrdma/rpcrdma/transport"
)

// A rig is a server over TCP to which clients come from any address, without a network.
type rig struct {
	t     *testing.T
	conns chan net.Conn
	once  sync.Once
}

// newRig serves p until close.
func newRig(t *testing.T, cfg *transport.ServerConfig, p rpc.Program) (r *rig, stop func()) {
	t.Helper()
	s, err := transport.NewServer(cfg)
	if err == nil {
		err = s.Register(p)
	}
	if err != nil {
		t.Fatal(err)
	}
	r = &rig{t: t, conns: make(chan net.Conn)}
	var wg sync.WaitGroup
	wg.Go(func() { s.ServeTCP(r) })
	return r, func() { s.Close(); wg.Wait() }
}

func (r *rig) Accept() (net.Conn, error) {
	c, ok := <-r.conns
	if !ok {
		return nil, net.ErrClosed
	}
	return c, nil
}

func (r *rig) Close() error   { r.once.Do(func() { close(r.conns) }); return nil }
func (r *rig) Addr() net.Addr { return &net.TCPAddr{IP: net.IPv4(10, 0, 0, 1), Port: 1} }

// from returns a client at addr, which is anything if it is not an address with a port.
func (r *rig) from(addr string) *transport.Client {
	r.t.Helper()
	cl, err := transport.DialTCPWith(context.Background(), addr, &transport.ClientConfig{NoReconnect: true},
		func(context.Context, string) (net.Conn, error) {
			a, b := net.Pipe()
			r.conns <- placed{a, place(addr)}
			return b, nil
		})
	if err != nil {
		r.t.Fatal(err)
	}
	return cl
}

type placed struct {
	net.Conn
	addr net.Addr
}

func (p placed) RemoteAddr() net.Addr { return p.addr }

// A place is an address that is not a *net.TCPAddr.
type place string

func (p place) Network() string { return "pipe" }
func (p place) String() string  { return string(p) }

const prog = 0x20000088

// call makes a call of a procedure, and returns what came of it.
func call(cl *transport.Client, proc uint32, cred oncrpc.Auth) error {
	err := cl.Call(context.Background(), &rpc.Call{Prog: prog, Vers: 1, Proc: proc, Cred: cred, MaxResults: 100})
	var refused *oncrpc.RPCError
	switch {
	case !errors.As(err, &refused):
		return err
	case refused.Stat == oncrpc.MsgDenied:
		return refused.AuthStat
	}
	return refused.AcceptStat
}

// program returns a program that f executes, without a reply cache.
func program(f rpc.HandlerFunc) rpc.Program {
	return rpc.Program{Number: prog, Low: 1, High: 1, Handler: f, Idempotent: rpc.Every}
}

func nothing(context.Context, *rpc.Request, *rpc.Response) {}

func user(uid, gid uint32, gids ...uint32) oncrpc.Auth {
	a := oncrpc.AuthSys{Machine: "machine", UID: uid, GID: gid, GIDs: gids}
	return a.Auth()
}

func prefixes(list ...string) []netip.Prefix {
	all := make([]netip.Prefix, 0, len(list))
	for _, s := range list {
		all = append(all, netip.MustParsePrefix(s))
	}
	return all
}
