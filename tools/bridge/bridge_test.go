package bridge

import (
	"bytes"
	"errors"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-git/go-billy/v5/memfs"
	"github.com/go-git/go-billy/v5/util"
	gonfs "github.com/willscott/go-nfs"
	"github.com/willscott/go-nfs/helpers"

	"github.com/rpcrdma/rpcrdma/internal/testing/testutil"
	"github.com/rpcrdma/rpcrdma/iwarp"
	"github.com/rpcrdma/rpcrdma/nfs"
	"github.com/rpcrdma/rpcrdma/proto/oncrpc"
	"github.com/rpcrdma/rpcrdma/rpc"
	"github.com/rpcrdma/rpcrdma/rpc/middleware"
	"github.com/rpcrdma/rpcrdma/transport"
)

func randomText(seed uint64, n int) string {
	b := make([]byte, n)
	rand.NewChaCha8([32]byte{byte(seed)}).Read(b)
	return string(b)
}

// serveGoNFS has go-nfs, unchanged, serve a file system in memory with one file until the test ends,
// and returns the address and the file's contents.
func serveGoNFS(t *testing.T, around ...rpc.Middleware) (addr, text string) {
	t.Helper()
	files := memfs.New()
	text = randomText(1, 100_000)
	testutil.Must(t, util.WriteFile(files, "file", []byte(text), 0o644))
	server, err := transport.NewServer(&transport.ServerConfig{Config: transport.Config{Middleware: around}})
	testutil.Must(t, err)
	bridge := server.Bridge(nfs.Binding{}, nfs.Program, nfs.MountProgram)
	l, err := server.Listen(t.Context(), iwarp.New(iwarp.Config{}), "127.0.0.1:0")
	testutil.Must(t, err)
	var serving sync.WaitGroup
	serving.Go(func() { server.Serve(l) })
	serving.Go(func() {
		handler := helpers.NewCachingHandler(helpers.NewNullAuthHandler(files), 100)
		if err := gonfs.Serve(bridge, handler); !errors.Is(err, net.ErrClosed) {
			t.Error(err)
		}
	})
	t.Cleanup(func() {
		server.Close()
		bridge.Close()
		serving.Wait()
	})
	return l.Addr().String(), text
}

// An NFS server that was written for TCP, by others, serves RDMA through the bridge, unchanged.
func TestBridgeOfAnotherServer(t *testing.T) {
	addr, text := serveGoNFS(t)
	c, err := nfs.Dial(t.Context(), iwarp.New(iwarp.Config{}), addr, nil)
	testutil.Must(t, err)
	defer c.Close()
	readThrough(t, c, text)
}

// readThrough reads the file of serveGoNFS.
func readThrough(t *testing.T, c *nfs.Client, text string) {
	t.Helper()
	top, err := c.Mnt(t.Context(), "/")
	testutil.Must(t, err)
	file, _, err := c.Lookup(t.Context(), top, "file")
	testutil.Must(t, err)
	buf := make([]byte, len(text))
	if n, err := c.ReadAt(t.Context(), file, buf, 0); n != len(text) || err != nil || string(buf) != text {
		t.Errorf("READ: %d bytes, %v", n, err)
	}
	if c.Transport().Stats().WriteChunk == 0 {
		t.Error("the data came without a write chunk")
	}
}

// Each piece of package middleware is around that server's calls as around those of our own.
func TestBridgeMiddleware(t *testing.T) {
	var log bytes.Buffer
	var mu sync.Mutex
	logger := slog.New(slog.NewJSONHandler(lockedWriter{&mu, &log}, nil))
	limiter, err := middleware.NewLimiter(middleware.Limits{By: middleware.ByUser, InFlight: 4, Rate: 1. / 3600, Burst: 20, Wait: time.Second})
	testutil.Must(t, err)
	check := middleware.Allow(middleware.Access{From: []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}, UIDs: []uint32{7}})
	addr, text := serveGoNFS(t, middleware.Log(middleware.LogConfig{Logger: logger, MaxFailures: -1}), middleware.Require(check), limiter.Wrap)
	dial := func(uid uint32) *nfs.Client {
		cred := oncrpc.AuthSys{Machine: "client", UID: uid}
		c, err := nfs.Dial(t.Context(), iwarp.New(iwarp.Config{}), addr, &nfs.Options{Auth: &cred})
		testutil.Must(t, err)
		t.Cleanup(func() { c.Close() })
		return c
	}
	lines := func() string {
		mu.Lock()
		defer mu.Unlock()
		s := log.String()
		log.Reset()
		return s
	}

	friend, stranger := dial(7), dial(8)
	readThrough(t, friend, text)
	out := lines()
	for _, want := range []string{`"prog":100005`, `"prog":100003,"vers":3,"proc":6`, `"uid":7`, `"status":"SUCCESS"`, `"out":100`} {
		if !strings.Contains(out, want) {
			t.Errorf("the log has no %s:\n%s", want, out)
		}
	}
	testutil.Must(t, stranger.Null(t.Context())) // which everybody may
	_, err = stranger.Mnt(t.Context(), "/")
	var refused *oncrpc.RPCError
	if !errors.As(err, &refused) || refused.AuthStat != oncrpc.AuthTooWeak {
		t.Errorf("the stranger's MNT: %v", err)
	}
	if out := lines(); !strings.Contains(out, `"proc":0,`) || !strings.Contains(out, `"uid":8,"gid":0,"status":"AUTH_TOOWEAK"`) {
		t.Errorf("the log has\n%s", out)
	}
	for range 30 { // more than the limit, of one user
		_, err = friend.Mnt(t.Context(), "/")
		if err != nil {
			break
		}
	}
	if !errors.As(err, &refused) || refused.AcceptStat != oncrpc.SystemErr || limiter.Stats().Refused != 1 {
		t.Errorf("beyond the limit: %v, %+v", err, limiter.Stats())
	}
}

// A lockedWriter is a writer for many goroutines.
type lockedWriter struct {
	mu *sync.Mutex
	w  *bytes.Buffer
}

func (l lockedWriter) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.w.Write(b)
}
