package middleware

import (
	"context"
	"io"
	"log/slog"
	"math/rand/v2"
	"net/netip"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rpcrdma/rpcrdma/internal/testing/leak"
	"github.com/rpcrdma/rpcrdma/iwarp"
	"github.com/rpcrdma/rpcrdma/proto/oncrpc"
	"github.com/rpcrdma/rpcrdma/rpc"
	"github.com/rpcrdma/rpcrdma/transport"
)

// TestChainAllocs: a call that passes all wrappers, of a caller that is known, allocates nothing.
func TestChainAllocs(t *testing.T) {
	if raceEnabled {
		t.Skip("the race detector allocates")
	}
	leak.Check(t)
	l := newLimiter(t, Limits{By: ByUser, InFlight: 4, Rate: 1e9, Wait: time.Second})
	check := Allow(Access{From: prefixes("127.0.0.0/8", "::1/128"), UIDs: []uint32{7}, GIDs: []uint32{3}})
	p := program(func(_ context.Context, _ *rpc.Request, res *rpc.Response) {
		res.Results = append(res.Results, 1, 2, 3, 4)
	})
	p.Inline = rpc.Every
	alice := &rpc.Principal{Mechanism: "krb5", Name: "alice@EXAMPLE.ORG", Service: rpc.ServiceNone}
	p.Auth = func(req *rpc.Request) oncrpc.AuthStat {
		req.SetPrincipal(alice)
		return check(req)
	}
	proved := newLimiter(t, Limits{By: ByProof, InFlight: 4})
	members := Allow(Access{Principals: []string{"alice@EXAMPLE.ORG"}})
	cfg := &transport.ServerConfig{Config: transport.Config{Middleware: []rpc.Middleware{
		Log(LogConfig{Logger: slog.New(slog.NewTextHandler(io.Discard, nil)), Level: slog.LevelDebug}), Require(check), l.Wrap, Require(members), proved.Wrap,
	}}}
	s, err := transport.NewServer(cfg)
	if err == nil {
		err = s.Register(p)
	}
	if err != nil {
		t.Fatal(err)
	}
	provider := iwarp.New(iwarp.Config{})
	ln, err := s.Listen(bg, provider, "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	wg.Go(func() { s.Serve(ln) })
	defer wg.Wait()
	defer s.Close()
	cl, err := transport.Dial(bg, provider, ln.Addr().String(), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer cl.Close()
	call := rpc.Call{Prog: prog, Vers: 1, Proc: 1, Cred: user(9, 1, 2, 3), MaxResults: 100}
	f := func() {
		if err := cl.Call(bg, &call); err != nil {
			t.Fatal(err)
		}
	}
	for range 200 {
		f()
	}
	if n := testing.AllocsPerRun(1000, f); n > 0 {
		t.Errorf("%v allocations per call", n)
	}
}

// TestLimiterParallel: whatever callers do, never more of their calls are executed than they may
// have, and in the end no caller is counted. Where there are fewer places than callers, one may have
// calls under its own limit, its host's and that of all.
func TestLimiterParallel(t *testing.T) {
	t.Run("a place for each", func(t *testing.T) { limiterParallel(t, 8*40, 3) })
	t.Run("too few places", func(t *testing.T) { limiterParallel(t, 32, 3*3) })
}

func limiterParallel(t *testing.T, places int, bound int32) {
	leak.Check(t)
	const most, users = 3, 40
	l := newLimiter(t, Limits{By: ByUser, InFlight: most, Rate: 1e6, Wait: time.Millisecond, Callers: places})
	var running [users]atomic.Int32
	var executed atomic.Int64
	var wg sync.WaitGroup
	for g := range 16 {
		wg.Go(func() {
			r := rand.New(rand.NewPCG(1, uint64(g)))
			for range 300 {
				uid := r.Uint32N(users)
				ctx, cancel := bg, context.CancelFunc(func() {})
				if r.IntN(4) == 0 {
					ctx, cancel = context.WithTimeout(bg, time.Duration(r.IntN(int(time.Millisecond))))
				}
				c := l.enter(ctx, callerID{host: netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 0, 0, byte(uid % 5)}), 32), kind: kindUser, uid: uid})
				cancel()
				if c == nil {
					continue
				}
				if n := running[uid].Add(1); n > bound {
					t.Errorf("%d calls of user %d", n, uid)
				}
				executed.Add(1)
				time.Sleep(time.Duration(r.IntN(100)) * time.Microsecond) // the work
				running[uid].Add(-1)
				l.leave(c, true)
			}
		})
	}
	wg.Wait()
	if st := l.Stats(); executed.Load() < 1000 || st.Callers > places {
		t.Errorf("%d calls were executed, %+v", executed.Load(), st)
	}
	for _, c := range append([]*caller{l.rest}, callersOf(l)...) {
		if c.refs != 0 || c.running != 0 || c.first != nil || c.last != nil {
			t.Errorf("%+v is left", *c)
		}
	}
}

func callersOf(l *Limiter) []*caller {
	var all []*caller
	for _, c := range l.callers {
		all = append(all, c)
	}
	return all
}
