package examples

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"os"
	"strings"
	"sync"
	"testing"

	"github.com/rpcrdma/rpcrdma/examples/kv"
	"github.com/rpcrdma/rpcrdma/internal/testing/testutil"
	"github.com/rpcrdma/rpcrdma/proto/oncrpc"
	"github.com/rpcrdma/rpcrdma/rpc"
	"github.com/rpcrdma/rpcrdma/rpc/middleware"
	"github.com/rpcrdma/rpcrdma/transport"
)

// storeProgram is that of docs/services.md: TestAccessPage compares them.
func storeProgram(impl kv.StoreV1Server) rpc.Program {
	p := kv.StoreV1Program(impl)
	p.Auth = middleware.Allow(middleware.Access{
		From: []netip.Prefix{netip.MustParsePrefix("10.1.0.0/16")},
		UIDs: []uint32{1000}, // optional
	})
	return p
}

// TestAccessPage has a generated client call a server with the access of docs/services.md, and one with
// addresses alone, from inside and outside.
func TestAccessPage(t *testing.T) {
	page, err := os.ReadFile("../docs/services.md")
	code, err2 := os.ReadFile("access_test.go")
	testutil.Must(t, err, err2)
	_, section, _ := strings.Cut(string(page), "\n## Access\n")
	section, _, _ = strings.Cut(section, "\n## ")
	blocks := strings.Split(section, "```")
	if len(blocks) != 3 {
		t.Fatalf("the section has %d blocks", len(blocks)/2)
	}
	if block := strings.TrimPrefix(blocks[1], "go\n"); !strings.Contains(string(code), "\n"+block+"\n") {
		t.Errorf("this test has other code than the page:\n%s", block)
	}
	_, line, _ := strings.Cut(blocks[2], "credential: `")
	if line, _, _ = strings.Cut(line, "`"); line == "" || !strings.Contains(string(code), "\t"+line+"\n") {
		t.Errorf("this test has other code than the page: %s", line)
	}
	none := func(*kv.StoreV1Client) {}
	user := func(client *kv.StoreV1Client) {
		client.Cred = (&oncrpc.AuthSys{UID: 1000}).Auth()
	}
	other := func(client *kv.StoreV1Client) {
		client.Cred = (&oncrpc.AuthSys{UID: 1001}).Auth()
	}
	store := new(emptyStore)
	everyone := kv.StoreV1Program(store)
	everyone.Auth = middleware.Allow(middleware.Access{From: []netip.Prefix{netip.MustParsePrefix("10.1.0.0/16")}})
	nowhere := kv.StoreV1Program(store)
	nowhere.Auth = middleware.Allow(middleware.Access{From: []netip.Prefix{}})
	for _, tt := range []struct {
		name    string
		program rpc.Program
		from    string
		is      func(client *kv.StoreV1Client)
		allowed bool
	}{
		{"the user", storeProgram(store), "10.1.2.3", user, true},
		{"another user", storeProgram(store), "10.1.2.3", other, false},
		{"no user", storeProgram(store), "10.1.2.3", none, false},
		{"the user, from elsewhere", storeProgram(store), "10.2.2.3", user, false},
		{"addresses alone", everyone, "10.1.2.3", none, true},
		{"addresses alone, a user", everyone, "10.1.2.3", other, true},
		{"addresses alone, from elsewhere", everyone, "10.2.2.3", none, false},
		{"no address", nowhere, "10.1.2.3", none, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			client := kv.NewStoreV1Client(dialFrom(t, tt.program, tt.from))
			tt.is(client)
			res, err := client.Get(t.Context(), "key", nil)
			var refused *oncrpc.RPCError
			switch {
			case tt.allowed && (err != nil || res.Status != kv.NoKey):
				t.Errorf("%+v, %v", res, err)
			case !tt.allowed && (!errors.As(err, &refused) || refused.AuthStat != oncrpc.AuthTooWeak):
				t.Errorf("%v", err)
			}
		})
	}
}

// An emptyStore has no values.
type emptyStore struct{ kv.UnimplementedStoreV1Server }

func (*emptyStore) Get(_ context.Context, _ *rpc.Request, _ kv.Key, res *kv.Result) error {
	res.Status = kv.NoKey
	return nil
}

// dialFrom serves a program, and returns a connection to it from an address, without a network.
func dialFrom(t *testing.T, p rpc.Program, addr string) *transport.Client {
	s, err := transport.NewServer(nil)
	if err == nil {
		err = s.Register(p)
	}
	if err != nil {
		t.Fatal(err)
	}
	l := &pipeListener{conns: make(chan net.Conn)}
	var wg sync.WaitGroup
	wg.Go(func() { s.ServeTCP(l) })
	cl, err := transport.DialTCPWith(t.Context(), "server", nil, func(context.Context, string) (net.Conn, error) {
		a, b := net.Pipe()
		l.conns <- addrConn{a, &net.TCPAddr{IP: net.ParseIP(addr), Port: 700}}
		return b, nil
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { cl.Close(); s.Close(); wg.Wait() })
	return cl
}

type pipeListener struct {
	conns chan net.Conn
	once  sync.Once
}

func (l *pipeListener) Accept() (net.Conn, error) {
	c, ok := <-l.conns
	if !ok {
		return nil, net.ErrClosed
	}
	return c, nil
}
func (l *pipeListener) Close() error   { l.once.Do(func() { close(l.conns) }); return nil }
func (l *pipeListener) Addr() net.Addr { return &net.TCPAddr{} }

type addrConn struct {
	net.Conn
	addr net.Addr
}

func (c addrConn) RemoteAddr() net.Addr { return c.addr }
