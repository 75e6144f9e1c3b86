package krb5

import (
	"bytes"
	"context"
	"net"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/rpcrdma/rpcrdma/internal/testing/cprog"
	"github.com/rpcrdma/rpcrdma/internal/testing/kdctest"
	"github.com/rpcrdma/rpcrdma/internal/testing/rdmatest"
	"github.com/rpcrdma/rpcrdma/proto/xdr"
	"github.com/rpcrdma/rpcrdma/rpc"
	"github.com/rpcrdma/rpcrdma/rpc/rpcsec"
	"github.com/rpcrdma/rpcrdma/transport"
)

// The programs in C of echo.x are the other end, with what libtirpc and MIT's library have for RPCSEC_GSS.
const (
	echoDir  = "../../../internal/testing/interop/rpcgen"
	echoProg = 0x20000099

	// largest is the longest buffer of libtirpc, in bytes. What it protects has to fit one.
	largest = "262144"
)

// echoed answers a call of echo.x. Most procedures return what they are called with.
func echoed(req *rpc.Request, res *rpc.Response) {
	switch {
	case req.Vers == 2 && req.Proc == 9: // ECHO_SEVERAL: arrays, all empty but for hues
		res.Results = append(res.Results, make([]byte, 44)...)
		res.Results = append(res.Results, 0, 0, 0, 1, 0, 0, 0, 5)
		res.Results = append(res.Results, make([]byte, 36)...)
	case req.Vers == 2 && req.Proc == 10: // ECHO_USER
		res.Results = xdr.AppendUint32(res.Results, 1234)
	default:
		res.Results = append(res.Results, req.Args...)
	}
}

// TestTirpcClient: a client on libtirpc calls our server in contexts with each service, gets what it gets without them,
// and destroys them.
func TestTirpcClient(t *testing.T) {
	k := kdctest.New(t, "EXAMPLE.COM")
	path := buildTirpc(t, "client")
	user, host := k.Keytab(t, "alice", kdctest.AES), k.Keytab(t, "nfs/localhost", "aes256-cts-hmac-sha384-192:normal")
	k.Run(t, "", "kinit", "-k", "-t", user, "alice")
	acceptor, err := NewAcceptor(AcceptorConfig{Keytab: host, Service: "nfs"})
	if err != nil {
		t.Fatal(err)
	}
	sec := rpcsec.NewServer(rpcsec.ServerConfig{Acceptor: acceptor})
	var mu sync.Mutex
	var callers []rpc.Principal
	handler := rpc.HandlerFunc(func(_ context.Context, req *rpc.Request, res *rpc.Response) {
		if p := req.Peer().Principal; p != nil {
			mu.Lock()
			callers = append(callers, *p)
			mu.Unlock()
		}
		echoed(req, res)
	})
	server, err := transport.NewServer(nil)
	if err != nil {
		t.Fatal(err)
	}
	defer server.Close()
	if err := server.Register(rpc.Program{Number: echoProg, Low: 2, High: 3, Null: true, Handler: rpc.Chain(handler, sec.Wrap)}); err != nil {
		t.Fatal(err)
	}
	l, err := server.Listen(t.Context(), transport.TCP{}, "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	go server.Serve(l)
	_, port, _ := net.SplitHostPort(l.Addr().String())
	var plain []string
	for i, service := range []string{"0", "1", "2", "3"} {
		mu.Lock()
		callers = nil
		mu.Unlock()
		c := cprog.Start(t, k.Env, path, port, largest, "nfs@localhost", service)
		c.WantSuccess()
		lines := c.Out.All()
		mu.Lock()
		if i == 0 {
			plain = lines
		}
		want := rpc.Principal{Mechanism: "krb5", Name: "alice@EXAMPLE.COM", Service: rpc.Service(i)}
		if len(lines) < 20 || !slices.Equal(lines, plain) || sec.Contexts() != 0 || i > 0 && len(callers) < 20 ||
			slices.ContainsFunc(callers, func(p rpc.Principal) bool { return p != want }) {
			t.Errorf("service %v: callers %v, %d contexts\n%s", want.Service, callers, sec.Contexts(), strings.Join(lines, "\n"))
		}
		mu.Unlock()
	}
}

// TestTirpcServer: we call a server on libtirpc in contexts with each service, many calls at once, and destroy them.
func TestTirpcServer(t *testing.T) {
	k := kdctest.New(t, "EXAMPLE.COM")
	path := buildTirpc(t, "server")
	user, host := k.Keytab(t, "alice", kdctest.AES), k.Keytab(t, "nfs/localhost", "aes256-cts-hmac-sha384-192:normal")
	server := cprog.Start(t, append(slices.Clone(k.Env), "KRB5_KTNAME="+host), path, largest)
	port, _ := strings.CutPrefix(server.Out.Wait(t, "")[0], "port ")
	cl, err := transport.DialTCP(t.Context(), net.JoinHostPort("127.0.0.1", port), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer cl.Close()
	i, err := NewInitiator(InitiatorConfig{Service: "nfs@localhost", Config: k.Config, Keytab: user, Principal: "alice"})
	if err != nil {
		t.Fatal(err)
	}
	for _, service := range []rpc.Service{rpc.ServiceNone, rpc.ServiceIntegrity, rpc.ServicePrivacy} {
		c := rpcsec.NewClient(cl, rpcsec.ClientConfig{Initiator: i, Service: service, Seal: rpcsec.SealOptional})
		var wg sync.WaitGroup
		for range 4 {
			wg.Go(func() {
				for _, n := range []int{0, 1, 2, 3, 4, 1000, 65537, 200_000} {
					args := xdr.AppendBool(xdr.AppendOpaque(xdr.AppendString(nil, "bulk"), bytes.Repeat([]byte{byte(n)}, n)), true)
					call := rpc.Call{Prog: echoProg, Vers: 2, Proc: 6, Args: args, MaxResults: len(args)}
					if err := c.Call(t.Context(), &call); err != nil || !bytes.Equal(call.Results, args) {
						t.Errorf("%v, %d bytes: %v, %d bytes of results", service, n, err, len(call.Results))
					}
				}
			})
		}
		wg.Wait()
		if err := c.Close(t.Context()); err != nil {
			t.Errorf("%v: %v", service, err)
		}
	}
	if err := cl.Call(t.Context(), &rpc.Call{Prog: echoProg, Vers: 2, Proc: 12}); err != nil { // ECHO_END
		t.Fatal(err)
	}
	server.WantSuccess()
}

// buildTirpc builds a program of echo.x with RPCSEC_GSS.
func buildTirpc(t *testing.T, name string) string {
	t.Helper()
	out, err := exec.Command("pkg-config", "--cflags", "krb5-gssapi").Output()
	if err != nil {
		rdmatest.Lacking(t, "kdc", "headers of GSS-API are not there for C programs (Debian package libkrb5-dev): pkg-config: "+err.Error())
	}
	return cprog.Build(t, echoDir, name, append(strings.Fields(string(out)), "-DGSS")...)
}
