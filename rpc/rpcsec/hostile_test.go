package rpcsec_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"log/slog"
	"testing"

	"github.com/rpcrdma/rpcrdma/proto/oncrpc"
	"github.com/rpcrdma/rpcrdma/proto/xdr"
	"github.com/rpcrdma/rpcrdma/rpc"
	"github.com/rpcrdma/rpcrdma/rpc/rpcsec"
	"github.com/rpcrdma/rpcrdma/transport"
)

var quiet = slog.New(slog.NewTextHandler(io.Discard, nil))

// A between is a Caller that changes calls, and replies, on their way.
type between struct {
	next  rpc.Caller
	call  func(call *rpc.Call) // not called for procedure 0
	reply func(call *rpc.Call)
	null  func(call *rpc.Call) // called for the results of procedure 0
}

func (b *between) Call(ctx context.Context, call *rpc.Call) error {
	if call.Proc != 0 && b.call != nil {
		b.call(call)
	}
	err := b.next.Call(ctx, call)
	if f := b.reply; call.Proc != 0 && f != nil {
		f(call)
	}
	if f := b.null; call.Proc == 0 && f != nil {
		f(call)
	}
	return err
}

// setSeq puts another sequence number into the credential of call, which is then signed.
func setSeq(call *rpc.Call, seq uint32) { binary.BigEndian.PutUint32(call.Cred.Body[8:], seq) }

// TestRefused: calls that are not proved are refused, with the status of RFC 2203 section 5.3.3.3, and nothing is
// executed. The context, and the connection, go on.
func TestRefused(t *testing.T) {
	svc := &service{}
	sec := rpcsec.NewServer(rpcsec.ServerConfig{Acceptor: host, Required: true, Services: []rpc.Service{rpc.ServiceIntegrity, rpc.ServicePrivacy}, Logger: quiet})
	cl := serve(t, transport.TCP{}, programOf(svc, sec))
	mallory := psk{secret: secret, name: "mallory", steps: 1}
	var stolen []byte // alice's handle
	auth := func(stat oncrpc.AuthStat) oncrpc.RPCError {
		return oncrpc.RPCError{Stat: oncrpc.MsgDenied, RejectStat: oncrpc.AuthError, AuthStat: stat}
	}
	garbage := oncrpc.RPCError{AcceptStat: oncrpc.GarbageArgs}
	for _, tt := range []struct {
		name string
		call func(call *rpc.Call)
		want oncrpc.RPCError
	}{
		{"no verifier", func(call *rpc.Call) { call.Sign = nil }, auth(oncrpc.AuthGSSCred)},
		{"a verifier that signs something else", func(call *rpc.Call) {
			sign := call.Sign
			call.Sign = func(h []byte) oncrpc.Auth { return sign(h[4:]) }
		}, auth(oncrpc.AuthGSSCred)},
		{"a verifier cut short", func(call *rpc.Call) {
			sign := call.Sign
			call.Sign = func(h []byte) oncrpc.Auth { a := sign(h); a.Body = a.Body[:31]; return a }
		}, auth(oncrpc.AuthGSSCred)},
		{"another procedure than the one signed", func(call *rpc.Call) {
			sign := call.Sign
			call.Sign = func(h []byte) oncrpc.Auth { h[23] ^= 1; defer func() { h[23] ^= 1 }(); return sign(h) }
		}, auth(oncrpc.AuthGSSCred)},
		{"a context that there is not", func(call *rpc.Call) { call.Cred.Body[30] ^= 1 }, auth(oncrpc.AuthGSSCred)},
		{"the context of another client", func(call *rpc.Call) {
			copy(call.Cred.Body[20:], stolen)
		}, auth(oncrpc.AuthGSSCred)},
		{"a handle cut short", func(call *rpc.Call) {
			call.Cred.Body = call.Cred.Body[:32]
			call.Cred.Body[19] = 12
		}, auth(oncrpc.AuthGSSCred)},
		{"a number beyond the last", func(call *rpc.Call) { setSeq(call, 0x80000001) }, auth(oncrpc.AuthGSSCtx)},
		{"the service none", func(call *rpc.Call) { call.Cred.Body[15] = 1 }, auth(oncrpc.AuthTooWeak)},
		{"the service 4", func(call *rpc.Call) { call.Cred.Body[15] = 4 }, auth(oncrpc.AuthTooWeak)},
		{"a credential cut short", func(call *rpc.Call) { call.Cred.Body = call.Cred.Body[:20] }, auth(oncrpc.AuthBadCred)},
		{"a credential with more", func(call *rpc.Call) { call.Cred.Body = append(call.Cred.Body, 0, 0, 0, 0) }, auth(oncrpc.AuthBadCred)},
		{"version 2", func(call *rpc.Call) { call.Cred.Body[3] = 2 }, auth(oncrpc.AuthRejectedCred)},
		{"gss_proc 4", func(call *rpc.Call) { call.Cred.Body[7] = 4 }, auth(oncrpc.AuthBadCred)},
		{"a set-up by another procedure", func(call *rpc.Call) { call.Cred.Body[7] = 1 }, auth(oncrpc.AuthBadCred)},
		{"AUTH_SYS", func(call *rpc.Call) { call.Cred, call.Sign = (&oncrpc.AuthSys{}).Auth(), nil }, auth(oncrpc.AuthTooWeak)},
		{"AUTH_NONE", func(call *rpc.Call) { call.Cred, call.Sign = oncrpc.Auth{}, nil }, auth(oncrpc.AuthTooWeak)},
		{"other arguments", func(call *rpc.Call) { call.Args[9] ^= 4 }, garbage},
		{"arguments of another call", func(call *rpc.Call) { setSeq(call, binary.BigEndian.Uint32(call.Cred.Body[8:])+1) }, garbage},
		{"no arguments", func(call *rpc.Call) { call.Args = nil }, garbage},
		{"arguments for privacy", func(call *rpc.Call) { call.Cred.Body[15] ^= 1 }, garbage},
	} {
		for _, service := range []rpc.Service{rpc.ServiceIntegrity, rpc.ServicePrivacy} {
			b := &between{next: cl, call: func(call *rpc.Call) { stolen = bytes.Clone(call.Cred.Body[20:]) }}
			if name, err := caller(rpcsec.NewClient(b, rpcsec.ClientConfig{Initiator: alice, Service: service})); err != nil || name != "alice" {
				t.Fatalf("%q, %v", name, err)
			}
			c := rpcsec.NewClient(b, rpcsec.ClientConfig{Initiator: mallory, Service: service})
			before := svc.executed.Load()
			b.call = tt.call
			var got *oncrpc.RPCError
			if _, err := caller(c); !errors.As(err, &got) || got.Stat != tt.want.Stat || got.AcceptStat != tt.want.AcceptStat || got.AuthStat != tt.want.AuthStat {
				t.Errorf("%s, %v: %v", tt.name, service, err)
			}
			if n := svc.executed.Load() - before; n != 0 {
				t.Errorf("%s, %v: %d calls executed", tt.name, service, n)
			}
			b.call = nil
			if name, err := caller(c); err != nil || name != "mallory" {
				t.Errorf("after %s, %v: %q, %v", tt.name, service, name, err)
			}
		}
	}
}

// TestReplayed: a call with a number that was used before is refused with RPCSEC_GSS_CTXPROBLEM.
func TestReplayed(t *testing.T) {
	svc := &service{}
	cl := serve(t, transport.TCP{}, programOf(svc, rpcsec.NewServer(rpcsec.ServerConfig{Acceptor: host})))
	b := &between{next: cl}
	b.call = func(call *rpc.Call) {
		copied := *call
		if err := cl.Call(bg, &copied); err != nil {
			t.Error(err)
		}
	}
	_, err := caller(rpcsec.NewClient(b, rpcsec.ClientConfig{Initiator: alice}))
	var got *oncrpc.RPCError
	if !errors.As(err, &got) || got.AuthStat != oncrpc.AuthGSSCtx || svc.executed.Load() != 2 {
		t.Errorf("%v, %d executed: want one for each context", err, svc.executed.Load())
	}
}

// TestCutCalls: a call that is cut at any place is not executed.
func TestCutCalls(t *testing.T) {
	svc := &service{}
	cl := serve(t, transport.TCP{}, programOf(svc, rpcsec.NewServer(rpcsec.ServerConfig{Acceptor: host, Logger: quiet})))
	b := &between{next: cl}
	for _, service := range []rpc.Service{rpc.ServiceIntegrity, rpc.ServicePrivacy} {
		c := rpcsec.NewClient(b, rpcsec.ClientConfig{Initiator: alice, Service: service})
		whole := 1
		for n := 0; n < whole; n++ {
			b.call = func(call *rpc.Call) { whole = len(call.Args); call.Args = call.Args[:n] }
			if _, err := caller(c); err == nil {
				t.Errorf("%v: the first %d bytes of %d are enough", service, n, whole)
			}
		}
	}
	if n := svc.executed.Load(); n != 0 {
		t.Errorf("%d calls executed", n)
	}
}

// TestFalseReplies: a client believes no reply that the context's peer has not made for the call.
func TestFalseReplies(t *testing.T) {
	cl := serve(t, transport.TCP{}, programOf(&service{}, rpcsec.NewServer(rpcsec.ServerConfig{Acceptor: host})))
	var old rpc.Call
	for _, tt := range []struct {
		name    string
		reply   func(call *rpc.Call)
		results bool
	}{
		{"no verifier", func(call *rpc.Call) { call.Reply.Verf = oncrpc.Auth{} }, false},
		{"another verifier", func(call *rpc.Call) { call.Reply.Verf.Body[3] ^= 1 }, false},
		{"the reply to another call", func(call *rpc.Call) {
			if old.Results == nil {
				old.Results, old.Reply.Verf.Body = bytes.Clone(call.Results), bytes.Clone(call.Reply.Verf.Body)
				return
			}
			call.Results, call.Reply.Verf.Body = old.Results, old.Reply.Verf.Body
		}, false},
		{"the results of another call", func(call *rpc.Call) { call.Results = bytes.Clone(old.Results) }, true},
		{"no results", func(call *rpc.Call) { call.Results = nil }, true},
		{"other results", func(call *rpc.Call) { call.Results[8] ^= 1 }, true},
		{"more results", func(call *rpc.Call) { call.Results = append(call.Results, 0, 0, 0, 0) }, true},
	} {
		for _, service := range []rpc.Service{rpc.ServiceIntegrity, rpc.ServicePrivacy} {
			b := &between{next: cl}
			c := rpcsec.NewClient(b, rpcsec.ClientConfig{Initiator: alice, Service: service})
			if b.reply = tt.reply; tt.name == "the reply to another call" {
				old = rpc.Call{}
				if _, err := caller(c); err != nil {
					t.Fatal(err)
				}
			}
			var got *rpcsec.ReplyError
			if _, err := caller(c); !errors.As(err, &got) || got.Results != tt.results {
				t.Errorf("%s, %v: %v", tt.name, service, err)
			}
			b.reply = nil
			if _, err := caller(c); err != nil {
				t.Errorf("after %s, %v: %v", tt.name, service, err)
			}
		}
	}
}

// TestSetUpFails: what keeps a context from being made, at either end.
func TestSetUpFails(t *testing.T) {
	svc := &service{}
	sec := rpcsec.NewServer(rpcsec.ServerConfig{Acceptor: host, Logger: quiet})
	cl := serve(t, transport.TCP{}, programOf(svc, sec))
	other, never := alice, alice
	other.secret, never.steps = []byte("a guess"), 100
	edit := func(f func(major, minor, window *[4]byte, handle, token []byte)) func(*rpc.Call) {
		return func(call *rpc.Call) {
			d := xdr.NewDecoder(call.Results)
			handle, words, token := d.Opaque(400), d.FixedOpaque(12), d.Opaque(400)
			f((*[4]byte)(words), (*[4]byte)(words[4:]), (*[4]byte)(words[8:]), handle, token)
		}
	}
	for _, tt := range []struct {
		name      string
		initiator psk
		null      func(call *rpc.Call)
		status    rpcsec.Status // of a server that has refused
	}{
		{"another key", other, nil, rpcsec.DefectiveToken},
		{"an end too early", never, nil, 0},
		{"a status", alice, edit(func(major, _, _ *[4]byte, _, _ []byte) { major[1] = 13 }), rpcsec.Failure},
		{"another window", alice, edit(func(_, _, window *[4]byte, _, _ []byte) { window[0]++ }), 0},
		{"another token", alice, edit(func(_, _, _ *[4]byte, _, token []byte) { token[40]++ }), 0},
		{"no end", alice, edit(func(major, _, _ *[4]byte, _, _ []byte) { major[3] = 1 }), 0},
		{"no verifier", alice, func(call *rpc.Call) { call.Reply.Verf = oncrpc.Auth{} }, 0},
		{"no results", alice, func(call *rpc.Call) { call.Results = nil }, 0},
	} {
		c := rpcsec.NewClient(&between{next: cl, null: tt.null}, rpcsec.ClientConfig{Initiator: tt.initiator})
		var got *rpcsec.ContextError
		if _, err := caller(c); !errors.As(err, &got) || got.Refused != (tt.status != 0) || got.Status != tt.status {
			t.Errorf("%s: %v", tt.name, err)
		}
	}
	if n := svc.executed.Load(); n != 0 {
		t.Errorf("%d calls executed", n)
	}
	ctx, cancel := context.WithCancel(bg)
	cancel()
	c := rpcsec.NewClient(cl, rpcsec.ClientConfig{Initiator: alice})
	if err := c.Call(ctx, &rpc.Call{Prog: prog, Vers: 1, Proc: procWho}); !errors.Is(err, context.Canceled) {
		t.Errorf("canceled: %v", err)
	}
}

// TestManyContexts: contexts that a host begins, and does not end, are bounded, and do not take the place of
// those that are established.
func TestManyContexts(t *testing.T) {
	slow := host
	slow.steps = 3
	sec := rpcsec.NewServer(rpcsec.ServerConfig{Acceptor: slow, MaxContexts: 64})
	cl := serve(t, transport.TCP{}, programOf(&service{}, sec))
	honest := alice
	honest.steps = 3
	c := rpcsec.NewClient(cl, rpcsec.ClientConfig{Initiator: honest})
	if _, err := caller(c); err != nil {
		t.Fatal(err)
	}
	var handle []byte
	for i := range 10_000 {
		half, _ := honest.Initiate(bg)
		token, _, _ := half.Step(nil)
		call := rpc.Call{Prog: prog, Vers: 1, MaxResults: 1000, Args: xdr.AppendOpaque(nil, token),
			Cred: oncrpc.Auth{Flavor: oncrpc.FlavorGSS, Body: append(number(1), make([]byte, 16)...)}}
		call.Cred.Body[7] = 1
		if err := cl.Call(bg, &call); err != nil {
			t.Fatal(err)
		}
		if i == 0 {
			d := xdr.NewDecoder(call.Results)
			handle = bytes.Clone(d.Opaque(400))
		}
	}
	if n := sec.HalfMade(); n != 1 { // a quarter of a 16th of 64
		t.Errorf("%d contexts are half made", n)
	}
	late := rpc.Call{Prog: prog, Vers: 1, MaxResults: 1000, Args: xdr.AppendOpaque(nil, nil),
		Cred: oncrpc.Auth{Flavor: oncrpc.FlavorGSS, Body: xdr.AppendOpaque(append(number(1), 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 3), handle)}}
	var got *oncrpc.RPCError
	if err := cl.Call(bg, &late); !errors.As(err, &got) || got.AuthStat != oncrpc.AuthGSSCred {
		t.Errorf("the first one goes on: %v", err)
	}
	if _, err := caller(c); err != nil || sec.Contexts() != 1 {
		t.Errorf("%v, %d contexts", err, sec.Contexts())
	}
}
