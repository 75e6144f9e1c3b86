package rpcsec_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/rpcrdma/rpcrdma/fabric"
	"github.com/rpcrdma/rpcrdma/proto/oncrpc"
	"github.com/rpcrdma/rpcrdma/proto/xdr"
	"github.com/rpcrdma/rpcrdma/rpc"
	"github.com/rpcrdma/rpcrdma/rpc/rpcsec"
	"github.com/rpcrdma/rpcrdma/transport"
)

// attempts is how many contexts TestManyContexts begins.
var attempts = flag.Int("contexts", 10_000, "contexts that a host begins, and does not end")

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
		{"a verifier of another flavor", func(call *rpc.Call) {
			sign := call.Sign
			call.Sign = func(h []byte) oncrpc.Auth { return oncrpc.Auth{Flavor: oncrpc.FlavorSys, Body: sign(h).Body} }
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
		{"a handle with more", func(call *rpc.Call) {
			call.Cred.Body = append(call.Cred.Body, 0, 0, 0, 0)
			call.Cred.Body[19] = 20
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

// TestServicesUnknown: a service that there is not is refused by a server that permits all.
func TestServicesUnknown(t *testing.T) {
	svc := &service{}
	b := &between{next: serve(t, transport.TCP{}, programOf(svc, rpcsec.NewServer(rpcsec.ServerConfig{Acceptor: host})))}
	c := rpcsec.NewClient(b, rpcsec.ClientConfig{Initiator: alice, Service: rpc.ServiceNone})
	for _, n := range []uint32{0, 4, 5, 1<<32 - 1, oncrpc.ServiceSealed} { // the last one is not agreed on
		b.call = func(call *rpc.Call) { binary.BigEndian.PutUint32(call.Cred.Body[12:], n) }
		var got *oncrpc.RPCError
		if _, err := caller(c); !errors.As(err, &got) || got.AuthStat != oncrpc.AuthTooWeak || svc.executed.Load() != 0 {
			t.Errorf("service %d: %v, %d executed", n, err, svc.executed.Load())
		}
	}
}

// TestSequenceNumbers: numbers that were used, are too old, or beyond 2^31 execute nothing, however far ahead others are.
func TestSequenceNumbers(t *testing.T) {
	svc := &service{}
	cl := serve(t, transport.TCP{}, programOf(svc, rpcsec.NewServer(rpcsec.ServerConfig{Acceptor: host})))
	b := &between{next: cl}
	b.call = func(call *rpc.Call) {
		b.call = nil
		for i, tt := range []struct {
			seq uint32
			ok  bool
		}{
			{5000, true}, {5000, false}, {4999, true}, {5000 - 1023, true}, {5000 - 1024, false}, {0, false}, {1 << 20, true}, {5000, false},
			{1<<31 + 1, false}, {1<<32 - 1, false}, {1 << 31, true}, {1 << 31, false}, {1<<31 - 1, true}, {1 << 20, false},
		} {
			before := svc.executed.Load()
			copied := *call
			copied.Cred.Body = bytes.Clone(call.Cred.Body)
			setSeq(&copied, tt.seq)
			err := cl.Call(bg, &copied)
			var got *oncrpc.RPCError
			if n := svc.executed.Load() - before; (err == nil) != tt.ok || n == 1 != tt.ok || err != nil && (!errors.As(err, &got) || got.AuthStat != oncrpc.AuthGSSCtx) {
				t.Errorf("call %d, with number %d: %v, %d executed", i, tt.seq, err, n)
			}
		}
	}
	// Its own number is far below the others, and so it is made in another context.
	if _, err := caller(rpcsec.NewClient(b, rpcsec.ClientConfig{Initiator: alice, Service: rpc.ServiceNone})); err != nil {
		t.Error(err)
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
	if !errors.As(err, &got) || got.AuthStat != oncrpc.AuthGSSCtx || svc.executed.Load() != 3 {
		t.Errorf("%v, %d executed: want two in one context and one in another", err, svc.executed.Load())
	}
}

// TestReplayedAnew: a number for which the reply cache has answered executes no call after the cache has forgotten.
func TestReplayedAnew(t *testing.T) {
	svc := &service{}
	raw := &resender{addr: listen(t, transport.TCP{}, programOf(svc, rpcsec.NewServer(rpcsec.ServerConfig{Acceptor: host})))}
	as := func() *rpcsec.Client {
		return rpcsec.NewClient(raw, rpcsec.ClientConfig{Initiator: alice, Service: rpc.ServiceIntegrity})
	}
	c, other := as(), as()
	for range 2 { // one number each
		raw.xid = 7
		if _, err := caller(c); err != nil || svc.executed.Load() != 1 {
			t.Fatalf("%v, %d executed", err, svc.executed.Load())
		}
	}
	old := raw.last
	for range 300 { // more than the cache keeps
		raw.xid++
		if _, err := caller(other); err != nil {
			t.Fatal(err)
		}
	}
	raw.last = old
	var got *oncrpc.RPCError
	if err := raw.send(new(rpc.Call)); !errors.As(err, &got) || got.AuthStat != oncrpc.AuthGSSCtx || svc.executed.Load() != 301 {
		t.Errorf("%v, %d executed", err, svc.executed.Load())
	}
}

// TestReplayedAgreement: an offer to seal that is made again changes nothing.
func TestReplayedAgreement(t *testing.T) {
	svc := &service{}
	raw := &resender{addr: listen(t, transport.TCP{}, programOf(svc, rpcsec.NewServer(rpcsec.ServerConfig{Acceptor: host, Seal: true})))}
	var offer []byte
	c := rpcsec.NewClient(&between{next: raw, null: func(*rpc.Call) { offer = raw.last }}, rpcsec.ClientConfig{Initiator: alice, Seal: rpcsec.SealRequired})
	if err := newPair('a').do(c); err != nil {
		t.Fatal(err)
	}
	for range 300 { // more than the reply cache keeps
		raw.xid++
		if _, err := caller(c); err != nil {
			t.Fatal(err)
		}
	}
	raw.last = offer
	var got *oncrpc.RPCError
	if err := raw.send(new(rpc.Call)); !errors.As(err, &got) || got.AuthStat != oncrpc.AuthGSSCtx {
		t.Errorf("made again: %v", err)
	}
	raw.xid++
	if err := newPair('b').do(c); err != nil || svc.executed.Load() != 302 {
		t.Errorf("%v, %d executed", err, svc.executed.Load())
	}
}

// A denier forges denials of calls that the server has executed.
type denier struct {
	next  rpc.Caller
	forge []oncrpc.AuthStat // one after the other
}

func (d *denier) Call(ctx context.Context, call *rpc.Call) error {
	err := d.next.Call(ctx, call)
	if err != nil || call.Proc == 0 || len(d.forge) == 0 {
		return err
	}
	stat := d.forge[0]
	d.forge = d.forge[1:]
	return &oncrpc.RPCError{Stat: oncrpc.MsgDenied, RejectStat: oncrpc.AuthError, AuthStat: stat}
}

// TestForgedDenials: a denial that is not protected has no call executed twice.
func TestForgedDenials(t *testing.T) {
	for _, tt := range []struct {
		forge    []oncrpc.AuthStat
		contexts int
	}{
		{[]oncrpc.AuthStat{oncrpc.AuthGSSCtx}, 1},
		{[]oncrpc.AuthStat{oncrpc.AuthGSSCtx, oncrpc.AuthGSSCtx}, 2},
		{[]oncrpc.AuthStat{oncrpc.AuthGSSCred}, 2},
	} {
		t.Run(fmt.Sprint(tt), func(t *testing.T) {
			eachProvider(t, func(t *testing.T, p fabric.Provider) {
				for _, cfg := range []rpcsec.ClientConfig{
					{Service: rpc.ServiceNone}, {Service: rpc.ServiceIntegrity}, {Service: rpc.ServicePrivacy}, {Seal: rpcsec.SealRequired},
				} {
					svc := &service{}
					sec := rpcsec.NewServer(rpcsec.ServerConfig{Acceptor: host, Seal: true})
					cfg.Initiator = alice
					d := &denier{next: serve(t, p, programOf(svc, sec)), forge: tt.forge}
					c := rpcsec.NewClient(d, cfg)
					var call rpc.Call
					data, buf := bytes.Repeat([]byte("executed once "), 5000), make([]byte, 70000)
					if err := echo(c, &call, data, buf); err != nil || svc.executed.Load() != 1 {
						t.Errorf("%v: %v, executed %d times", cfg, err, svc.executed.Load())
					}
					// The same call, made anew, is another one.
					if err := echo(c, &call, data, buf); err != nil || svc.executed.Load() != 2 || sec.Contexts() != tt.contexts {
						t.Errorf("%v: the next call: %v, %d executed, %d contexts", cfg, err, svc.executed.Load(), sec.Contexts())
					}
				}
			})
		})
	}
}

// TestForgedSetUpDenial: a denial of a set-up does not have the call that needs it pass for the one that was made before it
// with the same Call.
func TestForgedSetUpDenial(t *testing.T) {
	svc := &service{}
	cl := serve(t, transport.TCP{}, programOf(svc, rpcsec.NewServer(rpcsec.ServerConfig{Acceptor: host})))
	call := rpc.Call{Prog: prog, Vers: 1, Proc: procWho, MaxResults: 100}
	for n := range int32(3) {
		deny := n > 0
		c := rpcsec.NewClient(rpc.CallerFunc(func(ctx context.Context, call *rpc.Call) error {
			if deny {
				deny = false
				return &oncrpc.RPCError{Stat: oncrpc.MsgDenied, RejectStat: oncrpc.AuthError, AuthStat: oncrpc.AuthGSSCred}
			}
			return cl.Call(ctx, call)
		}), rpcsec.ClientConfig{Initiator: alice})
		if err := c.Call(bg, &call); err != nil || svc.executed.Load() != n+1 {
			t.Errorf("call %d: %v, %d executed", n, err, svc.executed.Load())
		}
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

// TestCutSetUps: a set-up that is cut or changed at any place, or has an answer that is, makes no context. The server's log is bounded.
func TestCutSetUps(t *testing.T) {
	svc, log := &service{}, &logged{}
	sec := rpcsec.NewServer(rpcsec.ServerConfig{Acceptor: host, Logger: slog.New(slog.NewTextHandler(log, nil))})
	cl := serve(t, transport.TCP{}, programOf(svc, sec))
	began := time.Now()
	for _, tt := range []struct {
		name         string
		call, answer func(call *rpc.Call, n int) (whole int)
	}{
		{"a credential cut", func(call *rpc.Call, n int) int {
			b := call.Cred.Body
			call.Cred.Body = b[:n]
			return len(b)
		}, nil},
		{"a token cut", func(call *rpc.Call, n int) int {
			b := call.Args
			call.Args = b[:n]
			return len(b)
		}, nil},
		{"a token changed", func(call *rpc.Call, n int) int { call.Args[n] ^= 1; return len(call.Args) - 3 }, nil}, // without padding
		{"an answer cut", nil, func(call *rpc.Call, n int) int {
			b := call.Results
			call.Results = b[:n]
			return len(b)
		}},
	} {
		for n, whole := 0, 1; n < whole; n++ {
			c := rpcsec.NewClient(rpc.CallerFunc(func(ctx context.Context, call *rpc.Call) error {
				if tt.call != nil {
					whole = tt.call(call, n)
				}
				err := cl.Call(ctx, call)
				if tt.answer != nil {
					whole = tt.answer(call, n)
				}
				return err
			}), rpcsec.ClientConfig{Initiator: alice})
			if _, err := caller(c); !errors.As(err, new(*rpcsec.ContextError)) || tt.call != nil && sec.Contexts()+sec.HalfMade() > 0 {
				t.Fatalf("%s at %d: %v, %d contexts", tt.name, n, err, sec.Contexts()+sec.HalfMade())
			}
		}
	}
	if n, most := strings.Count(log.String(), "\n"), 10*int(time.Since(began)/time.Second+2); n == 0 || n > most || svc.executed.Load() != 0 {
		t.Errorf("%d records, at most %d; %d calls executed", n, most, svc.executed.Load())
	}
}

// A credulous client believes any verifier.
type credulous struct{ psk }

type credulousContext struct{ rpcsec.Context }

func (c credulous) Initiate(ctx context.Context) (rpcsec.Context, error) {
	gss, err := c.psk.Initiate(ctx)
	return credulousContext{gss}, err
}

func (credulousContext) VerifyMIC(_, _ []byte) error { return nil }

// TestWindowsOffered: whatever window a server offers, a client makes calls, and takes little memory.
func TestWindowsOffered(t *testing.T) {
	cl := serve(t, transport.TCP{}, programOf(&service{}, rpcsec.NewServer(rpcsec.ServerConfig{Acceptor: host, Window: 1<<32 - 1})))
	for _, window := range []uint32{0, 1, 1<<32 - 1} {
		c := rpcsec.NewClient(&between{next: cl, null: func(call *rpc.Call) {
			d := xdr.NewDecoder(call.Results)
			d.Opaque(400)
			binary.BigEndian.PutUint32(d.FixedOpaque(12)[8:], window)
		}}, rpcsec.ClientConfig{Initiator: credulous{alice}})
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		ctx, cancel := context.WithTimeout(bg, 20*time.Second)
		err := c.Call(ctx, &rpc.Call{Prog: prog, Vers: 1, Proc: procWho, MaxResults: 100})
		cancel()
		runtime.ReadMemStats(&after)
		if n := after.TotalAlloc - before.TotalAlloc; err != nil || n > 8<<20 {
			t.Errorf("window %d: %v, %d bytes", window, err, n)
		}
	}
}

// TestForeignRefused: memory that the mechanism cannot read is not sent unprotected.
func TestForeignRefused(t *testing.T) {
	svc := &service{}
	cl := serve(t, transport.TCP{}, programOf(svc, rpcsec.NewServer(rpcsec.ServerConfig{Acceptor: host})))
	c := rpcsec.NewClient(cl, rpcsec.ClientConfig{Initiator: alice, Service: rpc.ServiceIntegrity})
	for _, call := range []rpc.Call{
		{ReadItems: []rpc.ReadItem{{Offset: 4, Foreign: &fabric.Foreign{Len: 5}}}}, {WriteItems: []rpc.WriteItem{{Foreign: &fabric.Foreign{Len: 5}}}},
	} {
		call.Prog, call.Vers, call.Proc, call.Args = prog, 1, procEcho, number(5)
		if err := c.Call(bg, &call); !errors.As(err, new(*rpc.ForeignError)) || svc.executed.Load() != 0 {
			t.Errorf("%v, %d executed", err, svc.executed.Load())
		}
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
		text      string
	}{
		{"another key", other, nil, rpcsec.DefectiveToken, "refused by the server: GSS_S_DEFECTIVE_TOKEN"},
		{"an end too early", never, nil, 0, "the server has ended the set-up before the client"},
		{"a status", alice, edit(func(major, _, _ *[4]byte, _, _ []byte) { major[1] = 13 }), rpcsec.Failure, "refused by the server: GSS_S_FAILURE"},
		{"another window", alice, edit(func(_, _, window *[4]byte, _, _ []byte) { window[0]++ }), 0, "not from the server, or changed on its way: verifier"},
		{"another token", alice, edit(func(_, _, _ *[4]byte, _, token []byte) { token[40]++ }), 0, "GSS_S_DEFECTIVE_TOKEN"},
		{"no end", alice, edit(func(major, _, _ *[4]byte, _, _ []byte) { major[3] = 1 }), 0, "the server has not ended the set-up"},
		{"no verifier", alice, func(call *rpc.Call) { call.Reply.Verf = oncrpc.Auth{} }, 0, "not from the server, or changed on its way: verifier"},
		{"no results", alice, func(call *rpc.Call) { call.Results = nil }, 0, "short"},
	} {
		c := rpcsec.NewClient(&between{next: cl, null: tt.null}, rpcsec.ClientConfig{Initiator: tt.initiator})
		var got *rpcsec.ContextError
		if _, err := caller(c); !errors.As(err, &got) || got.Refused != (tt.status != 0) || got.Status != tt.status || !strings.Contains(err.Error(), tt.text) {
			t.Errorf("%s: %v", tt.name, err)
		}
	}
	if n := svc.executed.Load(); n != 0 {
		t.Errorf("%d calls executed", n)
	}
	// A server may leave the results of a destruction unprotected, which are empty.
	b := &between{next: cl}
	lax := rpcsec.NewClient(b, rpcsec.ClientConfig{Initiator: alice})
	if _, err := caller(lax); err != nil {
		t.Error(err)
	}
	b.null = func(call *rpc.Call) { call.Results = nil }
	if err := lax.Close(bg); err != nil {
		t.Errorf("a context that is destroyed: %v", err)
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
	for i := range *attempts {
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
