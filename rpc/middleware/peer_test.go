package middleware

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net"
	"slices"
	"testing"

	"github.com/rpcrdma/rpcrdma/internal/testing/leak"
	"github.com/rpcrdma/rpcrdma/internal/testing/testutil"
	"github.com/rpcrdma/rpcrdma/proto/oncrpc"
	"github.com/rpcrdma/rpcrdma/rpc"
	"github.com/rpcrdma/rpcrdma/transport"
)

// over returns a client at 10.0.0.1 with TLS, and what the server sees of it.
func (r *rig) over(client, server *tls.Config) *transport.Client {
	r.t.Helper()
	cl, err := transport.DialTCPWith(bg, "peer", &transport.ClientConfig{NoReconnect: true},
		func(context.Context, string) (net.Conn, error) {
			a, b := net.Pipe()
			r.conns <- tls.Server(placed{a, place("10.0.0.1:5")}, server)
			return tls.Client(b, client), nil
		})
	if err != nil {
		r.t.Fatal(err)
	}
	return cl
}

// TestProvedCallers: what has been proved of a caller is known to handlers, to the rules of an Access, to
// limits and in the log; what has not is not, however it is claimed.
func TestProvedCallers(t *testing.T) {
	leak.Check(t)
	authority, stranger := testutil.NewAuthority(t), testutil.NewAuthority(t)
	names := []string{"DNS:Alice.Example.org", "URI:spiffe://example.org/alice", "email:alice@example.org", "IP:10.0.0.1", "subject:alice"}
	server := func(auth tls.ClientAuthType) *tls.Config {
		return &tls.Config{Certificates: []tls.Certificate{authority.Issue(t, nil, "DNS:server")}, ClientAuth: auth, ClientCAs: authority.Pool()}
	}
	client := func(cert ...tls.Certificate) *tls.Config {
		return &tls.Config{Certificates: cert, RootCAs: authority.Pool(), ServerName: "server"}
	}
	const all = "[DNS:alice.example.org URI:spiffe://example.org/alice email:alice@example.org IP:10.0.0.1 subject:CN=alice]"
	alice := &rpc.Principal{Mechanism: "krb5", Name: "alice@EXAMPLE.ORG", Service: rpc.ServicePrivacy}
	for _, tt := range []struct {
		name           string
		client, server *tls.Config // nil: no TLS
		principal      *rpc.Principal
		want           string // certificate, principal, proved, private
		a              Access // that this caller satisfies, if any does
		allowed        bool
		id             callerID // ByProof
		log            []any    // certificate, principal, service
	}{
		{name: "nothing", want: "[] <nil> false false", a: Access{Certificates: []string{"DNS:alice.example.org"}},
			id: callerID{host: prefixes("10.0.0.1/32")[0]}, log: []any{nil, nil, nil}},
		{name: "a server's TLS alone", client: client(), server: server(tls.NoClientCert), want: "[] <nil> false true",
			a: Access{Certificates: []string{}}, id: callerID{host: prefixes("10.0.0.1/32")[0]}, log: []any{nil, nil, nil}},
		{name: "a certificate that is not verified", client: client(stranger.Issue(t, nil, names...)), server: server(tls.RequireAnyClientCert),
			want: "[] <nil> false true", a: Access{Certificates: []string{"DNS:alice.example.org", "subject:CN=alice"}},
			id: callerID{host: prefixes("10.0.0.1/32")[0]}, log: []any{nil, nil, nil}},
		{name: "a certificate", client: client(authority.Issue(t, nil, names...)), server: server(tls.RequireAndVerifyClientCert),
			want: all + " <nil> true true", a: Access{Certificates: []string{"DNS:bob.example.org", "URI:spiffe://example.org/alice"}}, allowed: true,
			id: callerID{kind: kindCertificate, name: "DNS:alice.example.org"}, log: []any{"DNS:alice.example.org", nil, nil}},
		{name: "a certificate, other names", client: client(authority.Issue(t, nil, names...)), server: server(tls.VerifyClientCertIfGiven),
			want: all + " <nil> true true", a: Access{Certificates: []string{"alice.example.org", "DNS:CN=alice", "subject:alice"}},
			id: callerID{kind: kindCertificate, name: "DNS:alice.example.org"}, log: []any{"DNS:alice.example.org", nil, nil}},
		{name: "a principal", principal: alice, want: "[] alice@EXAMPLE.ORG true true", a: Access{Principals: []string{"alice@EXAMPLE.ORG"}}, allowed: true,
			id: callerID{kind: kindPrincipal, name: "alice@EXAMPLE.ORG", by: "krb5"}, log: []any{nil, "alice@EXAMPLE.ORG", "privacy"}},
		{name: "a principal and a certificate", principal: alice, client: client(authority.Issue(t, nil, "DNS:bob")), server: server(tls.RequireAndVerifyClientCert),
			want: "[DNS:bob] alice@EXAMPLE.ORG true true", a: Access{Principals: []string{"alice@EXAMPLE.ORG"}, Certificates: []string{"DNS:bob"}}, allowed: true,
			id: callerID{kind: kindPrincipal, name: "alice@EXAMPLE.ORG", by: "krb5"}, log: []any{"DNS:bob", "alice@EXAMPLE.ORG", "privacy"}},
		{name: "another principal", principal: alice, want: "[] alice@EXAMPLE.ORG true true", a: Access{Principals: []string{"bob@EXAMPLE.ORG"}},
			id: callerID{kind: kindPrincipal, name: "alice@EXAMPLE.ORG", by: "krb5"}, log: []any{nil, "alice@EXAMPLE.ORG", "privacy"}},
		{name: "not a process", want: "[] <nil> false false", a: Access{Processes: []uint32{0}},
			id: callerID{host: prefixes("10.0.0.1/32")[0]}, log: []any{nil, nil, nil}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var log records
			tt.a.Logger = log.logger()
			limiter := newLimiter(t, Limits{By: ByProof})
			check := Allow(tt.a)
			var stat oncrpc.AuthStat
			p := program(func(_ context.Context, req *rpc.Request, _ *rpc.Response) {
				peer, name := req.Peer(), "<nil>"
				if peer.Principal != nil {
					name = peer.Principal.Name
				}
				if got := fmt.Sprintf("%v %s %v %v", peer.Certificate, name, peer.Proved(), peer.Private()); got != tt.want {
					t.Errorf("got %s, want %s", got, tt.want)
				}
				if peer.Sys == nil || peer.Sys.UID != 7 || peer.Addr.String() != "10.0.0.1:5" || (peer.TLS != nil) != (tt.client != nil) {
					t.Errorf("%+v", peer)
				}
				if later := req.Detach().Peer(); later.Principal != peer.Principal || later.TLS != peer.TLS || later.Sys.UID != 7 {
					t.Errorf("later: %+v", later)
				}
				stat = check(req)
				if id := limiter.identify(req); id != tt.id {
					t.Errorf("the caller is %+v, want %+v", id, tt.id)
				}
			})
			p.Handler = rpc.Chain(p.Handler, Log(LogConfig{Logger: log.logger()}))
			p.Auth = func(req *rpc.Request) oncrpc.AuthStat {
				req.SetPrincipal(tt.principal) // as a wrapper that has verified the call
				return oncrpc.AuthOK
			}
			r, stop := newRig(t, nil, p)
			defer stop()
			cl := r.from("10.0.0.1:5")
			if tt.client != nil {
				cl.Close()
				cl = r.over(tt.client, tt.server)
			}
			defer cl.Close()
			if err := call(cl, 1, user(7, 8)); err != nil {
				t.Fatal(err)
			}
			if (stat == oncrpc.AuthOK) != tt.allowed {
				t.Errorf("%+v: %v", tt.a, stat)
			}
			for _, rec := range log.take(t) {
				if got := []any{rec["certificate"], rec["principal"], rec["service"]}; !slices.Equal(got, tt.log) || rec["uid"] != 7.0 {
					t.Errorf("logged: %v", rec)
				}
			}
		})
	}
	if names := rpc.CertificateNames(new(x509.Certificate)); names != nil {
		t.Errorf("a certificate without names has %v", names)
	}
}

// TestIdentify: with a certificate that is known a caller is its user, and otherwise not the one that it claims to be.
func TestIdentify(t *testing.T) {
	leak.Check(t)
	a := testutil.NewAuthority(t)
	alice := (&oncrpc.AuthSys{Machine: "server", UID: 7, GID: 8, GIDs: []uint32{9}}).Auth()
	claim := (&oncrpc.AuthSys{Machine: "client", UID: 1, GID: 2, GIDs: []uint32{3, 4}}).Auth()
	server := &tls.Config{Certificates: []tls.Certificate{a.Issue(t, nil, "DNS:server")}, ClientAuth: tls.VerifyClientCertIfGiven, ClientCAs: a.Pool()}
	for _, tt := range []struct {
		name string
		cert []tls.Certificate
		cred oncrpc.Auth
		want string
	}{
		{"one that is known", []tls.Certificate{a.Issue(t, nil, "DNS:x", "DNS:alice")}, claim, "AUTH_SYS &{0 server 7 8 [9]}"},
		{"one that is not", []tls.Certificate{a.Issue(t, nil, "DNS:bob")}, claim, "AUTH_NONE <nil>"},
		{"no certificate", nil, claim, "AUTH_NONE <nil>"},
		{"no claim", []tls.Certificate{a.Issue(t, nil, "DNS:alice")}, oncrpc.Auth{}, "AUTH_NONE <nil>"},
		{"another flavor", []tls.Certificate{a.Issue(t, nil, "DNS:alice")}, oncrpc.Auth{Flavor: 99}, "AUTH(99) <nil>"},
	} {
		got := make(chan string, 1)
		p := program(func(_ context.Context, req *rpc.Request, _ *rpc.Response) {
			got <- fmt.Sprintf("%v %v", req.Cred.Flavor, req.Peer().Sys)
		})
		identify := Identify(func(p rpc.Peer) (cred oncrpc.Auth) {
			if slices.Contains(p.Certificate, "DNS:alice") {
				cred = alice
			}
			return cred
		})
		look := Require(func(req *rpc.Request) oncrpc.AuthStat { req.AuthSys(); return oncrpc.AuthOK }) // at the claim
		p.Handler = rpc.Chain(p.Handler, look, identify)
		r, stop := newRig(t, nil, p)
		cl := r.over(&tls.Config{Certificates: tt.cert, RootCAs: a.Pool(), ServerName: "server"}, server)
		for range 2 {
			if err := call(cl, 1, tt.cred); err != nil {
				t.Fatalf("%s: %v", tt.name, err)
			}
			if got := <-got; got != tt.want {
				t.Errorf("%s: %q, want %q", tt.name, got, tt.want)
			}
		}
		cl.Close()
		stop()
	}
}
