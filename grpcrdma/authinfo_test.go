package grpcrdma_test

import (
	"context"
	"crypto/tls"
	"os"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	testgrpc "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	"github.com/rpcrdma/rpcrdma/fabric"
	"github.com/rpcrdma/rpcrdma/grpcrdma"
	"github.com/rpcrdma/rpcrdma/internal/testing/leak"
	"github.com/rpcrdma/rpcrdma/internal/testing/testutil"
	"github.com/rpcrdma/rpcrdma/iwarp"
	"github.com/rpcrdma/rpcrdma/rpc"
	"github.com/rpcrdma/rpcrdma/shm"
	"github.com/rpcrdma/rpcrdma/transport"
)

// A secret is a credential of calls that must not be sent in plain text.
type secret struct{}

func (secret) GetRequestMetadata(context.Context, ...string) (map[string]string, error) {
	return map[string]string{"secret": "x"}, nil
}

func (secret) RequireTransportSecurity() bool { return true }

// TestAuthInfo: handlers of calls and streams, and callers, learn the proved identity of the other end, and credentials that
// need privacy are sent where there is some.
func TestAuthInfo(t *testing.T) {
	a := testutil.NewAuthority(t)
	mutual := &tls.Config{
		Certificates: []tls.Certificate{a.Issue(t, nil, "IP:127.0.0.1")},
		RootCAs:      a.Pool(), ClientCAs: a.Pool(), ClientAuth: tls.RequireAndVerifyClientCert,
	}
	overTLS := func(t *testing.T, at peer.Peer) {
		info, ok := at.AuthInfo.(credentials.TLSInfo)
		if !ok || info.State.Version != tls.VersionTLS13 || len(info.State.VerifiedChains) == 0 || info.SecurityLevel != credentials.PrivacyAndIntegrity {
			t.Errorf("with TLS: %+v", at.AuthInfo)
		}
	}
	ofProcess := func(t *testing.T, at peer.Peer) {
		info, ok := at.AuthInfo.(grpcrdma.AuthInfo)
		if !ok || info.AuthType() != "process" || int(info.Peer.Process.PID) != os.Getpid() || info.SecurityLevel != credentials.PrivacyAndIntegrity {
			t.Errorf("of a process: %+v", at.AuthInfo)
		}
	}
	nothing := func(t *testing.T, at peer.Peer) {
		if at.AuthInfo != nil {
			t.Errorf("in plain text: %+v", at.AuthInfo)
		}
	}
	ofPrincipal := func(t *testing.T, at peer.Peer) {
		info, ok := at.AuthInfo.(grpcrdma.AuthInfo)
		if !ok || info.AuthType() != "krb5" || info.Peer.Principal.Name != "alice" || info.SecurityLevel != credentials.IntegrityOnly {
			t.Errorf("of a principal: %+v", at.AuthInfo)
		}
	}
	alice := &rpc.Principal{Mechanism: "krb5", Name: "alice", Service: rpc.ServiceIntegrity}
	verified := func(next rpc.Handler) rpc.Handler {
		return rpc.HandlerFunc(func(ctx context.Context, req *rpc.Request, res *rpc.Response) {
			req.SetPrincipal(alice)
			next.ServeRPC(ctx, req, res)
		})
	}
	plain := grpcrdma.Config(4 << 20)
	withTLS, withPrincipal := plain, plain
	withTLS.TLS = &transport.TLS{Config: mutual}
	withPrincipal.Middleware = []rpc.Middleware{verified}
	for _, tc := range []struct {
		name             string
		p                fabric.Provider
		addr             string
		server, client   transport.Config
		atServer, atPeer func(t *testing.T, at peer.Peer)
		private          bool
	}{
		{"iwarp with TLS", iwarp.New(iwarp.Config{TLS: mutual}), "127.0.0.1:0", plain, plain, overTLS, overTLS, true},
		{"TCP with TLS", transport.TCP{}, "127.0.0.1:0", withTLS, withTLS, overTLS, overTLS, true},
		{"shm", shm.New(shm.Config{}), "@", plain, plain, ofProcess, ofProcess, true},
		{"iwarp", iwarp.New(iwarp.Config{}), "127.0.0.1:0", plain, plain, nothing, nothing, false},
		{"a principal", iwarp.New(iwarp.Config{}), "127.0.0.1:0", withPrincipal, plain, ofPrincipal, nothing, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			leak.Check(t)
			see := func(ctx context.Context) {
				at, ok := peer.FromContext(ctx)
				if md, _ := metadata.FromIncomingContext(ctx); !ok || tc.private && len(md["secret"]) == 0 {
					t.Errorf("a handler without a peer, or metadata: %v", md)
				}
				tc.atServer(t, *at)
			}
			srv := grpcrdma.NewServer(grpcrdma.ServerTransport(transport.ServerConfig{Config: tc.server}))
			testgrpc.RegisterTestServiceServer(srv, &service{
				unary: func(ctx context.Context, r *testgrpc.SimpleRequest) (*testgrpc.SimpleResponse, error) {
					see(ctx)
					return echoes(ctx, r)
				},
				duplex: func(s testgrpc.TestService_FullDuplexCallServer) error {
					see(s.Context())
					return nil
				},
			})
			c := testgrpc.NewTestServiceClient(serve(t, tc.p, tc.addr, srv, grpcrdma.WithTransport(transport.ClientConfig{Config: tc.client})))
			var at peer.Peer
			_, err := c.UnaryCall(t.Context(), &testgrpc.SimpleRequest{}, grpc.PerRPCCredentials(secret{}))
			if want := map[bool]codes.Code{true: codes.OK, false: codes.Unauthenticated}[tc.private]; status.Code(err) != want {
				t.Errorf("with a secret: %v", err)
			}
			var opts []grpc.CallOption
			if tc.private {
				opts = append(opts, grpc.PerRPCCredentials(secret{}))
			}
			if _, err := c.UnaryCall(t.Context(), &testgrpc.SimpleRequest{}, append(opts, grpc.Peer(&at))...); err != nil {
				t.Error(err)
			}
			tc.atPeer(t, at)
			at = peer.Peer{}
			s, err := c.FullDuplexCall(t.Context(), append(opts, grpc.Peer(&at))...)
			if err != nil {
				t.Fatal(err)
			}
			tc.atPeer(t, at)
			s.Recv()
		})
	}
}
