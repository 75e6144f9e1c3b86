package middleware

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rpcrdma/rpcrdma/proto/oncrpc"
	"github.com/rpcrdma/rpcrdma/rpc"
	"github.com/rpcrdma/rpcrdma/transport"
)

var bg = context.Background()

func newLimiter(t testing.TB, limits Limits) *Limiter {
	t.Helper()
	l, err := NewLimiter(limits)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func TestLimitsRange(t *testing.T) {
	for _, l := range []Limits{
		{By: ByProof + 1}, {InFlight: -1}, {Wait: -1}, {Callers: -1}, {Rate: -1}, {Rate: math.NaN()}, {Rate: math.Inf(1)},
		{Rate: 1, Burst: -1}, {Burst: 3}, {Rate: 1e-300}, {Rate: 1e-9, Burst: 1 << 30},
	} {
		if _, err := NewLimiter(l); err == nil {
			t.Errorf("%+v is taken", l)
		}
	}
	for _, l := range []Limits{{}, {Rate: 1e-6}, {Rate: 1e12}, {Rate: 5, Burst: 1 << 20}} {
		newLimiter(t, l)
	}
}

// TestInFlight: calls of a caller are executed up to the limit, others wait in order, and not
// forever.
func TestInFlight(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const procHold, procQuick, procInline = 1, 2, 3
		l := newLimiter(t, Limits{InFlight: 2, Wait: time.Second})
		var mu sync.Mutex
		var order []uint32
		running, most := 0, 0
		p := program(func(_ context.Context, req *rpc.Request, _ *rpc.Response) {
			mu.Lock()
			if running++; running > most {
				most = running
			}
			if len(req.Cred.Body) > 0 {
				order = append(order, binary.BigEndian.Uint32(req.Cred.Body))
			}
			mu.Unlock()
			if req.Proc == procHold {
				time.Sleep(400 * time.Millisecond)
			}
			mu.Lock()
			running--
			mu.Unlock()
		})
		p.Handler = rpc.Chain(p.Handler, l.Wrap)
		p.Inline = func(_, proc uint32) bool { return proc == procInline }
		r, stop := newRig(t, nil, p)
		cl, other := r.from("10.0.0.1:5"), r.from("10.0.0.2:5")
		var wg sync.WaitGroup
		var refused atomic.Int32
		start := time.Now()
		for i := range uint32(8) {
			wg.Go(func() {
				err := call(cl, procHold, oncrpc.Auth{Flavor: oncrpc.FlavorShort, Body: binary.BigEndian.AppendUint32(nil, i)})
				if err == oncrpc.SystemErr {
					refused.Add(1)
				} else if err != nil {
					t.Error(err)
				}
			})
			synctest.Wait() // they come one after the other
		}
		if err := call(cl, procInline, oncrpc.Auth{}); err != oncrpc.SystemErr || time.Since(start) > 0 {
			t.Errorf("a call that must not wait: %v after %v", err, time.Since(start))
		}
		if err := call(other, procQuick, oncrpc.Auth{}); err != nil || time.Since(start) > 0 {
			t.Errorf("another caller: %v after %v", err, time.Since(start))
		}
		wg.Wait()
		// 0 and 1 run at once, 2 and 3 after 0.4 s, 4 and 5 after 0.8 s; 6 and 7 would after 1.2 s.
		for i := 0; i+1 < len(order); i += 2 {
			slices.Sort(order[i : i+2]) // two begin at the same moment
		}
		if fmt.Sprint(order) != "[0 1 2 3 4 5]" || refused.Load() != 2 || most > 3 {
			t.Errorf("executed were %v, %d refused, %d at a time", order, refused.Load(), most)
		}
		if st := l.Stats(); st != (LimiterStats{Callers: 2, Waited: 4, Refused: 3}) {
			t.Errorf("%+v", st)
		}
		if err := call(cl, procQuick, oncrpc.Auth{}); err != nil {
			t.Errorf("after that: %v", err)
		}
		cl.Close()
		other.Close()
		stop()
	})
}

// TestRate: so many calls per second, and a burst after a pause.
func TestRate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLimiter(t, Limits{Rate: 10, Burst: 3, Wait: 250 * time.Millisecond})
		id := callerID{host: netip.MustParsePrefix("10.0.0.1/32")}
		var got []string
		note := func() {
			start := time.Now()
			c := l.enter(bg, id)
			what := "refused"
			if c != nil {
				what = time.Since(start).String()
				l.leave(c, true)
			}
			got = append(got, what)
		}
		for range 4 {
			note()
		}
		time.Sleep(time.Minute)
		var wg sync.WaitGroup
		var executed atomic.Int32
		for range 100 {
			wg.Go(func() {
				if c := l.enter(bg, id); c != nil {
					executed.Add(1)
					l.leave(c, true)
				}
			})
		}
		wg.Wait()
		if s := fmt.Sprint(got); s != "[0s 0s 0s 100ms]" {
			t.Errorf("one after the other: %s", s)
		}
		if n := executed.Load(); n != 5 { // three, and those for which there is time within the wait
			t.Errorf("%d of a hundred at once were executed", n)
		}
		if c := l.enter(bg, id); c == nil {
			t.Error("refused calls have used up the rate of others")
		} else {
			l.leave(c, true)
		}
		ctx, cancel := context.WithTimeout(bg, 10*time.Millisecond)
		defer cancel()
		for range 5 {
			if c := l.enter(ctx, id); c != nil {
				l.leave(c, true)
			}
		}
		if d := l.rest.refs; d != 0 || l.callers[id] != nil && l.callers[id].refs != 0 {
			t.Error("calls are counted that are over")
		}
	})
}

// TestCallersApart: which callers share a limit.
func TestCallersApart(t *testing.T) {
	for _, tt := range []struct {
		by   By
		a, b string
		x, y oncrpc.Auth
		same bool
	}{
		{ByHost, "10.0.0.1:5", "10.0.0.1:6", user(1, 1), user(2, 2), true},
		{ByHost, "10.0.0.1:5", "10.0.0.2:5", user(1, 1), user(1, 1), false},
		{ByHost, "[2001:db8::1]:5", "[2001:db8::ffff:1]:5", user(1, 1), user(1, 1), true},
		{ByHost, "[2001:db8::1]:5", "[2001:db8:0:1::1]:5", user(1, 1), user(1, 1), false},
		{ByHost, "somewhere", "elsewhere", user(1, 1), user(1, 1), true},
		{ByConn, "10.0.0.1:5", "10.0.0.1:6", user(1, 1), user(1, 1), false},
		{ByConn, "10.0.0.1:5", "10.0.0.1:5", user(1, 1), user(2, 1), true},
		{ByUser, "10.0.0.1:5", "10.0.0.1:6", user(1, 1), user(1, 2), true},
		{ByUser, "10.0.0.1:5", "10.0.0.1:5", user(1, 1), user(2, 1), false},
		{ByUser, "10.0.0.1:5", "10.0.0.2:5", user(1, 1), user(1, 1), false},
		{ByUser, "10.0.0.1:5", "10.0.0.1:5", user(0, 0), oncrpc.Auth{}, false},
		{ByUser, "10.0.0.1:5", "10.0.0.1:5", oncrpc.Auth{Flavor: 77}, oncrpc.Auth{}, true},
	} {
		synctest.Test(t, func(t *testing.T) {
			l := newLimiter(t, Limits{By: tt.by, Rate: 1})
			p := program(nothing)
			p.Handler = rpc.Chain(p.Handler, l.Wrap)
			r, stop := newRig(t, nil, p)
			a, b := r.from(tt.a), r.from(tt.b)
			if err := call(a, 1, tt.x); err != nil {
				t.Error(err)
			}
			if err := call(b, 1, tt.y); (err == oncrpc.SystemErr) != tt.same {
				t.Errorf("%v: %s and %s share their limit: %v, %v", tt.by, tt.a, tt.b, err != nil, err)
			}
			a.Close()
			b.Close()
			stop()
		})
	}
}

// TestHostBits: what counts as a host is the server's to say.
func TestHostBits(t *testing.T) {
	for bits, want := range map[int]error{48: oncrpc.SystemErr, 64: nil} {
		l := newLimiter(t, Limits{Rate: 1e-3, Burst: 1})
		p := program(nothing)
		p.Handler = rpc.Chain(p.Handler, l.Wrap)
		r, stop := newRig(t, &transport.ServerConfig{Config: transport.Config{HostBits: bits}}, p)
		a, b := r.from("[2001:db8:0:1::1]:5"), r.from("[2001:db8:0:2::1]:5")
		if err := call(a, 1, oncrpc.Auth{}); err != nil {
			t.Error(err)
		}
		if err := call(b, 1, oncrpc.Auth{}); err != want {
			t.Errorf("another network of 64 bits, of which %d are the host's: %v, want %v", bits, err, want)
		}
		a.Close()
		b.Close()
		stop()
	}
}

// TestForgottenCallers: a host that has used up its part gets a place for a new caller if another has
// nothing that has to be remembered, and only then.
func TestForgottenCallers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const part = looks + 2
		l := newLimiter(t, Limits{By: ByUser, Rate: 1, Burst: 1, Callers: part * hostPart})
		user := func(uid uint32) callerID {
			return callerID{host: netip.MustParsePrefix("10.0.0.1/32"), kind: kindUser, uid: uid}
		}
		calls := func(uid uint32) *caller {
			c := l.enter(bg, user(uid))
			if c != nil {
				l.leave(c, true)
			}
			return c
		}
		for uid := range uint32(part) {
			calls(uid)
		}
		if c := calls(part); c == nil || c.id.kind != kindRest {
			t.Errorf("all have called a moment ago, and a new caller has got a place: %+v", c)
		}
		if calls(0) != nil {
			t.Error("the limit of a caller has been forgotten")
		}
		time.Sleep(2 * time.Second)
		for uid := range uint32(part - 1) { // those that came first call most
			calls(uid)
		}
		if c := calls(part); c == nil || c.id != user(part) || l.callers[user(part-1)] != nil {
			t.Errorf("the caller that has not called for longest has kept its place, a new one is %+v", c)
		}
	})
}

// TestHostileCallers: a host that claims to be many users, and many hosts, cost bounded memory, are
// limited all the same, and leave others what they have.
func TestHostileCallers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const most = 64
		l := newLimiter(t, Limits{By: ByUser, InFlight: 1, Rate: 100, Burst: 1, Callers: most})
		addr := func(i int) netip.Prefix {
			return netip.PrefixFrom(netip.AddrFrom4([4]byte{10, byte(i >> 16), byte(i >> 8), byte(i)}), 32)
		}
		bounded := func() {
			t.Helper()
			of := 0
			for _, h := range l.hosts {
				of += h.n
			}
			if n := len(l.callers); n > most || len(l.hosts) > n || of != n {
				t.Fatalf("%d callers, %d hosts with %d", n, len(l.hosts), of)
			}
		}
		// One host, and no call ends.
		var held []*caller
		for uid := range uint32(10000) {
			if c := l.enter(bg, callerID{host: addr(1), kind: kindUser, uid: uid}); c != nil {
				held = append(held, c)
			}
			bounded()
		}
		if n := len(held); n != most/hostPart+1 {
			t.Errorf("one host has %d calls in flight as so many users", n)
		}
		honest := callerID{host: addr(2), kind: kindUser, uid: 1}
		c := l.enter(bg, honest)
		if c == nil || c.id != honest {
			t.Error("another host is refused")
		}
		// Then many.
		for i := range 10000 {
			if c := l.enter(bg, callerID{host: addr(3 + i), kind: kindUser}); c != nil {
				held = append(held, c)
			}
			bounded()
		}
		if n := len(held); n > most+1 {
			t.Errorf("%d calls are in flight, of %d callers that are told apart", n, most)
		}
		if l.enter(bg, honest) != nil {
			t.Error("the other host has two calls in flight")
		}
		l.leave(c, true)
		time.Sleep(time.Second)
		if c = l.enter(bg, honest); c == nil {
			t.Error("the other host has lost its place")
		} else {
			l.leave(c, true)
		}
		for _, c := range held {
			l.leave(c, true)
		}
		time.Sleep(time.Second)
		for i := range 1000 { // all may be forgotten
			if c := l.enter(bg, callerID{host: addr(20000 + i), kind: kindUser}); c == nil {
				t.Fatal("refused, though nobody else calls")
			} else {
				l.leave(c, true)
			}
			bounded()
			time.Sleep(time.Millisecond)
		}
	})
}

// TestRefuse: a program can answer refused calls in its own way.
func TestRefuse(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLimiter(t, Limits{Rate: 1, Refuse: func(_ context.Context, _ *rpc.Request, res *rpc.Response) {
			res.Results = append(res.Results, "busy"...)
		}})
		p := program(nothing)
		p.Handler = rpc.Chain(p.Handler, l.Wrap)
		r, stop := newRig(t, nil, p)
		cl := r.from("10.0.0.1:5")
		for _, want := range []string{"", "busy"} {
			c := rpc.Call{Prog: prog, Vers: 1, Proc: 1, MaxResults: 100}
			if err := cl.Call(bg, &c); err != nil || string(c.Results) != want {
				t.Errorf("%q, %v; want %q", c.Results, err, want)
			}
		}
		cl.Close()
		stop()
	})
}

// TestLimiterPanic: a handler that panics gives its place back.
func TestLimiterPanic(t *testing.T) {
	l := newLimiter(t, Limits{InFlight: 1})
	p := program(func(context.Context, *rpc.Request, *rpc.Response) { panic("a defect") })
	p.Handler = rpc.Chain(p.Handler, l.Wrap)
	var log records
	r, stop := newRig(t, &transport.ServerConfig{Config: transport.Config{Logger: log.logger()}}, p)
	defer stop()
	cl := r.from("10.0.0.1:5")
	defer cl.Close()
	for range 3 {
		if err := call(cl, 1, oncrpc.Auth{}); !errors.Is(err, oncrpc.SystemErr) {
			t.Error(err)
		}
	}
	if st := l.Stats(); st.Refused != 0 || log.len() != 3 {
		t.Errorf("%d calls were refused, %d have panicked", st.Refused, log.len())
	}
}

// BenchmarkLimiter is a call of a caller that is known, alone.
func BenchmarkLimiter(b *testing.B) {
	l := newLimiter(b, Limits{InFlight: 100, Rate: 1e12})
	id := callerID{host: netip.MustParsePrefix("10.0.0.1/32")}
	b.ReportAllocs()
	for b.Loop() {
		l.leave(l.enter(bg, id), true)
	}
}
