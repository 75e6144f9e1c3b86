package transport_test

import (
	"context"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rpcrdma/rpcrdma/fabric"
	"github.com/rpcrdma/rpcrdma/internal/testing/leak"
	"github.com/rpcrdma/rpcrdma/internal/testing/testutil"
	"github.com/rpcrdma/rpcrdma/iwarp"
	"github.com/rpcrdma/rpcrdma/rpc"
	"github.com/rpcrdma/rpcrdma/transport"
)

// A lastStream is TCP, and knows the socket of the latest client.
type lastStream struct {
	transport.TCP
	conn net.Conn
}

func (s *lastStream) DialStream(ctx context.Context, addr string) (nc net.Conn, err error) {
	s.conn, err = s.TCP.DialStream(ctx, addr)
	return s.conn, err
}

// segments returns how many with data the socket has sent.
func (s *lastStream) segments(t *testing.T) (n uint64) {
	rc, err := s.conn.(*net.TCPConn).SyscallConn()
	testutil.Must(t, err)
	testutil.Must(t, rc.Control(func(fd uintptr) {
		info, err := unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO)
		testutil.Must(t, err)
		n = uint64(info.Data_segs_out)
	}))
	return n
}

// TestLinger checks that a lingering reply leaves with the next message, or alone if none follows.
func TestLinger(t *testing.T) {
	leak.Check(t)
	over := new(lastStream)
	t.Run("iwarp", func(t *testing.T) {
		testLinger(t, iwarp.New(iwarp.Config{}), func(cl *transport.Client) (n uint64) {
			for _, c := range cl.Conn().Stats().Adapter {
				if c.Name == "doorbells" {
					n = c.Value
				}
			}
			return n
		})
	})
	t.Run("tcp", func(t *testing.T) {
		testLinger(t, over, func(*transport.Client) uint64 { return over.segments(t) })
	})
}

func testLinger(t *testing.T, p fabric.Provider, posts func(*transport.Client) uint64) {
	soon, stop := context.WithTimeout(context.Background(), 20*time.Second)
	defer stop()
	var answered atomic.Int64
	addr := startServer(t, p, &answered)
	for _, lingers := range []bool{false, true} {
		var w atomic.Pointer[rpc.Waiter]
		cl, err := transport.Dial(soon, p, addr, &transport.ClientConfig{
			NoReconnect: true, Callbacks: []rpc.Program{{
				Number: startProg, Low: 1, High: 1, Inline: rpc.Every, Idempotent: rpc.Every,
				Handler: rpc.HandlerFunc(func(_ context.Context, _ *rpc.Request, res *rpc.Response) {
					if lingers {
						res.Linger()
					}
					(*w.Load()).Wake(true)
				}),
			}},
		})
		if err != nil {
			t.Fatal(err)
		}
		waiter := cl.Conn().NewWaiter()
		w.Store(&waiter)
		const rounds = 200
		before := posts(cl)
		for range rounds {
			if err := cl.Call(soon, &rpc.Call{Prog: startProg, Vers: 1, Proc: 2}); err != nil {
				t.Fatal(err)
			}
			if err := waiter.Wait(soon); err != nil {
				t.Fatal(err)
			}
		}
		if n := posts(cl) - before; lingers && n > rounds*7/4 {
			t.Errorf("%d sent for as many calls as replies, %d each", n, rounds)
		}
		testutil.Eventually(t, "the last reply leaves", func() bool { return answered.Load() == rounds })
		answered.Store(0)
		cl.Close()
	}
}
