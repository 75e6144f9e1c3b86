package status

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rpcrdma/rpcrdma/internal/testing/leak"
	"github.com/rpcrdma/rpcrdma/internal/testing/testutil"
	"github.com/rpcrdma/rpcrdma/iwarp"
	"github.com/rpcrdma/rpcrdma/proto/oncrpc"
	"github.com/rpcrdma/rpcrdma/rpc"
	"github.com/rpcrdma/rpcrdma/rpc/names"
	"github.com/rpcrdma/rpcrdma/transport"
)

func TestMain(m *testing.M) { os.Exit(leak.Main(m)) }

const (
	prog = 0x20000077
	echo = 1 // answers with its arguments
	hang = 2 // answers when the test says so
	fail = 3 // SYSTEM_ERR
)

func table(t testing.TB) *names.Table {
	t.Helper()
	names, err := names.New(&oncrpc.Program{Number: prog, Vers: 1, Name: "TEST", Procedures: []string{"NULL", "ECHO", "HANG", "FAIL"}})
	if err != nil {
		t.Fatal(err)
	}
	return names
}

// A rig is a server and a client, each with a Monitor.
type rig struct {
	server, client *Monitor
	srv            *transport.Server
	cl             *transport.Client
	release        chan struct{} // closed: HANG returns
}

func newRig(t *testing.T) *rig {
	t.Helper()
	leak.Check(t)
	r := &rig{server: New(Config{Title: "the server", Table: table(t)}), client: New(Config{Table: table(t)}), release: make(chan struct{})}
	srv, err := transport.NewServer(&transport.ServerConfig{Config: transport.Config{Observer: r.server}})
	if err != nil {
		t.Fatal(err)
	}
	r.srv = srv
	t.Cleanup(func() { srv.Close() })
	err = srv.Register(rpc.Program{Number: prog, Low: 1, High: 1, Handler: rpc.Procedures{
		echo: func(_ context.Context, req *rpc.Request, res *rpc.Response) {
			res.Results = append(res.Results, req.Args...)
		},
		hang: func(ctx context.Context, _ *rpc.Request, _ *rpc.Response) {
			select {
			case <-r.release:
			case <-ctx.Done():
			}
		},
		fail: func(_ context.Context, _ *rpc.Request, res *rpc.Response) { res.Fail(oncrpc.SystemErr) },
	}})
	if err != nil {
		t.Fatal(err)
	}
	p := iwarp.New(iwarp.Config{})
	l, err := srv.Listen(t.Context(), p, "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	go srv.Serve(l)
	r.cl, err = transport.Dial(t.Context(), p, l.Addr().String(), &transport.ClientConfig{Config: transport.Config{Observer: r.client}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { r.cl.Close() })
	return r
}

func (r *rig) call(t *testing.T, proc uint32, args []byte) error {
	return r.cl.Call(t.Context(), &rpc.Call{Prog: prog, Vers: 1, Proc: proc, Args: args, MaxResults: 100000})
}

// get returns the answer to a request.
func get(t *testing.T, m *Monitor, url string) *httptest.ResponseRecorder {
	t.Helper()
	w := httptest.NewRecorder()
	m.ServeHTTP(w, httptest.NewRequest(http.MethodGet, url, nil))
	return w
}

// Both ends show connections and calls, those under way among them.
func TestSnapshot(t *testing.T) {
	r := newRig(t)
	for range 10 {
		testutil.Must(t, r.call(t, echo, []byte{1, 2, 3, 4}))
	}
	testutil.Must(t, r.call(t, echo, make([]byte, 50000)))
	if err := r.call(t, fail, nil); err == nil {
		t.Fatal("FAIL succeeds")
	}
	done := make(chan error)
	go func() { done <- r.call(t, hang, nil) }()
	testutil.Eventually(t, "the call is under way", func() bool { return r.server.Snapshot().Totals.Executing == 1 })

	s := r.server.Snapshot()
	if s.Totals.Open != 1 || s.Totals.Opened != 1 || len(s.Conns) != 1 || s.Totals.FailedCalls != 1 || s.Totals.Counters["calls"] < 13 {
		t.Errorf("totals %+v", s.Totals)
	}
	c := &s.Conns[0]
	if !c.Server || c.Provider != "iwarp" || c.Version == 0 || c.Credits == 0 || c.Executing != 1 || c.InlineSend != 4096 ||
		len(c.Adapter) == 0 || c.Counters["reply_chunk"] == 0 || s.Totals.Adapter[c.Adapter[0].Name] == 0 && c.Adapter[0].Value != 0 {
		t.Errorf("connection %+v", c)
	}
	if len(s.Calls) != 1 || s.Calls[0].What() != "TEST 1 HANG" || s.Calls[0].Peer != c.Peer || s.Calls[0].Total <= 0 {
		t.Errorf("calls under way %+v", s.Calls)
	}
	if len(s.Failed) != 1 || s.Failed[0].What() != "TEST 1 FAIL" || s.Failed[0].Outcome != "system_err" {
		t.Errorf("failed %+v", s.Failed)
	}
	if len(s.Slowest) == 0 || s.Slowest[0].Total < s.Slowest[len(s.Slowest)-1].Total {
		t.Errorf("slowest %+v", s.Slowest)
	}
	wantProcedure(t, s, "ECHO", true, 11, 0)
	wantProcedure(t, s, "FAIL", true, 1, 1)
	if body := get(t, r.server, "/").Body.String(); !strings.Contains(body, "TEST 1 HANG") || !strings.Contains(body, "<rect ") ||
		!strings.Contains(body, c.Peer) || !strings.Contains(body, "<title>the server</title>") {
		t.Errorf("the page lacks something:\n%s", body)
	}

	mine := r.client.Snapshot()
	wantProcedure(t, mine, "ECHO", false, 11, 0)
	if mine.Totals.Calling != 1 || len(mine.Calls) != 1 || len(mine.Conns) != 1 || mine.Conns[0].Server || mine.Conns[0].Calling != 1 {
		t.Errorf("the client shows %+v, %+v", mine.Totals, mine.Conns)
	}
	close(r.release)
	testutil.Must(t, <-done)

	r.cl.Close()
	testutil.Eventually(t, "the connection has ended", func() bool { return r.server.Snapshot().Totals.Open == 0 })
	s = r.server.Snapshot()
	if len(s.Ended) != 1 || s.Ended[0].Outcome != "closed" || s.Totals.EndedBy["closed"] != 1 || s.Totals.Counters["calls"] < 13 || len(s.Calls) != 0 {
		t.Errorf("after the end: %+v, %+v", s.Totals, s.Ended)
	}
}

func wantProcedure(t *testing.T, s *Snapshot, name string, executed bool, calls, failed uint64) {
	t.Helper()
	for i := range s.Procedures {
		p := &s.Procedures[i]
		if p.Procedure != name {
			continue
		}
		if p.Program != "TEST" || p.Executed != executed || p.Calls != calls || p.Failed != failed || p.Mean <= 0 ||
			p.Median > p.P99 || p.P99 > p.Max || p.Max <= 0 || p.Total < p.Mean {
			t.Errorf("%+v, want %d calls, %d failed", p, calls, failed)
		}
		return
	}
	t.Errorf("there is no procedure %s", name)
}

// A peer that calls what there is not makes one entry, and fills no list beyond its bound.
// A nameless listener has connections without addresses.
type nameless struct{ net.Listener }

type namelessConn struct{ net.Conn }

func (l nameless) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	return namelessConn{c}, err
}

func (namelessConn) RemoteAddr() net.Addr { return nil }
func (namelessConn) LocalAddr() net.Addr  { return nil }

// A connection may have no addresses.
func TestNameless(t *testing.T) {
	leak.Check(t)
	m := New(Config{Table: table(t)})
	srv, err := transport.NewServer(&transport.ServerConfig{Config: transport.Config{Observer: m}})
	testutil.Must(t, err, srv.Register(rpc.Program{Number: prog, Low: 1, High: 1, Handler: rpc.HandlerFunc(
		func(_ context.Context, _ *rpc.Request, res *rpc.Response) { res.Fail(oncrpc.SystemErr) },
	)}))
	l, err := net.Listen("tcp", "127.0.0.1:0")
	testutil.Must(t, err)
	served := make(chan error, 1)
	go func() { served <- srv.ServeTCP(nameless{l}) }()
	cl, err := transport.DialTCP(t.Context(), l.Addr().String(), nil)
	testutil.Must(t, err)
	if err := cl.Call(t.Context(), &rpc.Call{Prog: prog, Vers: 1, Proc: fail}); !errors.As(err, new(*oncrpc.RPCError)) {
		t.Errorf("%v", err)
	}
	if s := m.Snapshot(); len(s.Conns) != 1 || s.Conns[0].Peer != "" || s.Conns[0].Local != "" || len(s.Failed) != 1 {
		t.Errorf("%+v", s)
	}
	cl.Close()
	srv.Close()
	<-served
	if s := m.Snapshot(); len(s.Conns) != 0 {
		t.Errorf("%+v", s.Conns)
	}
}

func TestUnknownProcedures(t *testing.T) {
	r := newRig(t)
	random := rand.New(rand.NewPCG(1, 2))
	for range 300 {
		call := rpc.Call{Prog: random.Uint32(), Vers: random.Uint32(), Proc: random.Uint32()}
		if err := r.cl.Call(t.Context(), &call); err == nil {
			t.Fatal("a random call succeeds")
		}
	}
	s := r.server.Snapshot()
	if len(s.Procedures) != 1 || s.Procedures[0].Procedure != names.Other || s.Procedures[0].Failed != 300 {
		t.Errorf("%+v", s.Procedures)
	}
	if len(s.Failed) != DefaultMaxRecords || s.Totals.FailedCalls != 300 || len(s.Slowest) > DefaultMaxRecords {
		t.Errorf("%d of %d failed calls, %d slow ones", len(s.Failed), s.Totals.FailedCalls, len(s.Slowest))
	}
}

// What a peer sends does nothing to the page or the JSON.
func TestHostileText(t *testing.T) {
	m := New(Config{})
	evil := "</table><script>alert(1)</script>\xff\x1b[31m" + strings.Repeat("long", 1000)
	m.Noticed(rpc.Notice{Kind: rpc.NoticeRefused, Peer: "<b>peer</b>", XID: 5, Err: errors.New(evil)})
	m.Noticed(rpc.Notice{Kind: rpc.NoticeRejected, Peer: "192.0.2.1:5", Err: errors.New(evil)})
	body := get(t, m, "/").Body.String()
	if strings.Contains(body, "<script") || strings.Contains(body, "<b>") || !strings.Contains(body, "&lt;script") || len(body) > 10000 {
		t.Errorf("%d bytes:\n%.2000s", len(body), body)
	}
	var s Snapshot
	if err := json.Unmarshal(get(t, m, "/?format=json").Body.Bytes(), &s); err != nil {
		t.Fatal(err)
	}
	if len(s.Refused) != 1 || len(s.Rejected) != 1 || s.Refused[0].XID != 5 || len(s.Refused[0].Error) > maxError+10 {
		t.Errorf("%+v", s)
	}
}

func TestRequests(t *testing.T) {
	m := New(Config{})
	for _, tt := range []struct {
		method, url string
		status      int
	}{
		{"GET", "/", 200}, {"HEAD", "/", 200}, {"GET", "/?format=html&refresh=5", 200}, {"GET", "/?format=json", 200},
		{"POST", "/", 405}, {"DELETE", "/", 405}, {"OPTIONS", "/", 405},
		{"GET", "/?format=xml", 400}, {"GET", "/?refresh=0", 400}, {"GET", "/?refresh=3601", 400}, {"GET", "/?refresh=1%3Burl=x", 400},
	} {
		w := httptest.NewRecorder()
		m.ServeHTTP(w, httptest.NewRequest(tt.method, tt.url, strings.NewReader("garbage")))
		if w.Code != tt.status {
			t.Errorf("%s %s: %d, want %d", tt.method, tt.url, w.Code, tt.status)
		}
	}
	if body := get(t, m, "/?format=json").Body.String(); strings.Contains(body, "null") || !strings.Contains(body, `"calls_in_flight":[]`) {
		t.Errorf("empty lists are not lists: %s", body)
	}
	h := get(t, m, "/?refresh=5").Header()
	if h.Get("Refresh") != "5" || !strings.Contains(h.Get("Content-Security-Policy"), "default-src 'none'") || h.Get("X-Content-Type-Options") != "nosniff" {
		t.Errorf("header %v", h)
	}
}

// Requests within a second cost one look at the connections.
func TestFresh(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := New(Config{})
		first := get(t, m, "/?format=json").Body.String()
		time.Sleep(fresh - time.Nanosecond)
		if again := get(t, m, "/?format=json").Body.String(); again != first {
			t.Error("another page within a second")
		}
		time.Sleep(time.Nanosecond)
		if again := get(t, m, "/?format=json").Body.String(); again == first {
			t.Error("the same page after a second")
		}
	})
}

// The slowest calls are forgotten after two windows.
func TestSlowestWindows(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := New(Config{MaxRecords: 3})
		end := func(took time.Duration) {
			e := &rpc.CallEvent{Began: time.Now(), Total: took}
			time.Sleep(took)
			m.CallBegan(e)
			m.CallEnded(e)
		}
		want := func(what string, seconds ...time.Duration) {
			t.Helper()
			var got, wanted []string
			for _, c := range m.Snapshot().Slowest {
				got = append(got, c.Total.String())
			}
			for _, s := range seconds {
				wanted = append(wanted, s.String())
			}
			if strings.Join(got, " ") != strings.Join(wanted, " ") {
				t.Errorf("%s: %v, want %v", what, got, wanted)
			}
		}
		for _, s := range []time.Duration{3, 1, 5, 2, 4} {
			end(s * time.Second)
		}
		want("three of five", 5*time.Second, 4*time.Second, 3*time.Second)
		time.Sleep(SlowWindow)
		end(2 * time.Second)
		want("with those of the window before", 5*time.Second, 4*time.Second, 3*time.Second)
		time.Sleep(SlowWindow)
		end(time.Second)
		want("one window later", 2*time.Second, time.Second)
		time.Sleep(3 * SlowWindow)
		want("much later")
	})
}

// A list takes at most so many entries in a second, and counts the others.
func TestFlood(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := ring[int]{n: 1000}
		for i := range 10000 {
			r.add(time.Now(), func() int { return i })
		}
		if list, total := r.latest(); len(list) != maxPerSec || total != 10000 {
			t.Errorf("%d of %d", len(list), total)
		}
		time.Sleep(time.Second)
		r.add(time.Now(), func() int { return -1 })
		if list, _ := r.latest(); list[0] != -1 || list[1] != maxPerSec-1 {
			t.Errorf("latest %v", list[:2])
		}
	})
}

// More calls than the table has room for are counted, and end in any order.
func TestManyCalls(t *testing.T) {
	m := New(Config{MaxCalls: 64})
	events := make([]rpc.CallEvent, 1000)
	began := time.Now()
	for i := range events {
		events[i] = rpc.CallEvent{Executed: true, Began: began.Add(time.Duration(i) * time.Microsecond)}
		m.CallBegan(&events[i])
	}
	if s := m.Snapshot(); len(s.Calls) > 64 || len(s.Calls) < 32 || s.Totals.Executing != 1000 {
		t.Errorf("%d calls of %d", len(s.Calls), s.Totals.Executing)
	}
	for _, i := range rand.Perm(len(events)) {
		m.CallEnded(&events[i])
	}
	if s := m.Snapshot(); len(s.Calls) != 0 || s.Totals.Executing != 0 || m.calls.untracked.Load() != 0 {
		t.Errorf("%d calls of %d, %d", len(s.Calls), s.Totals.Executing, m.calls.untracked.Load())
	}
}

// A call that succeeds costs no memory.
func TestAllocs(t *testing.T) {
	m := New(Config{Table: table(t)})
	e := &rpc.CallEvent{Procedure: rpc.Procedure{Prog: prog, Vers: 1, Proc: echo}, Executed: true}
	one := func() {
		e.Began = time.Now()
		m.CallBegan(e)
		e.Total = time.Microsecond
		m.CallEnded(e)
	}
	for range 1000 {
		one()
	}
	if n := testing.AllocsPerRun(10000, one); n != 0 {
		t.Errorf("%v allocations for a call", n)
	}
}

func BenchmarkCall(b *testing.B) {
	m := New(Config{Table: table(b)})
	b.ReportAllocs()
	b.RunParallel(func(pb *testing.PB) {
		e := &rpc.CallEvent{Procedure: rpc.Procedure{Prog: prog, Vers: 1, Proc: echo}, Executed: true}
		for pb.Next() {
			e.Began = time.Now()
			m.CallBegan(e)
			e.Total = time.Microsecond
			m.CallEnded(e)
		}
	})
}

func TestSeconds(t *testing.T) {
	for _, tt := range []struct {
		d          time.Duration
		text, json string
	}{
		{0, "0s", "0"},
		{17 * time.Nanosecond, "17ns", "0.000000017"},
		{123456 * time.Nanosecond, "123µs", "0.000123456"},
		{1234567 * time.Nanosecond, "1.23ms", "0.001234567"},
		{98765 * time.Millisecond, "1m39s", "98.765"},
		{100*time.Hour + 12345*time.Microsecond, "100h0m0s", "360000.012345"},
	} {
		b, err := json.Marshal(Seconds(tt.d))
		if err != nil || string(b) != tt.json || Seconds(tt.d).String() != tt.text {
			t.Errorf("%v: %s, %q, %v", tt.d, b, Seconds(tt.d), err)
		}
		var back Seconds
		if err := json.Unmarshal(b, &back); err != nil || (back-Seconds(tt.d)).Duration().Abs() > 1000 {
			t.Errorf("%v comes back as %v, %v", tt.d, back, err)
		}
	}
	for _, bad := range []string{`"x"`, "1e300", "null", "{}"} {
		var s Seconds
		if err := s.UnmarshalJSON([]byte(bad)); err == nil {
			t.Errorf("%s is %v", bad, s)
		}
	}
}

func TestBars(t *testing.T) {
	classes := make([]uint64, buckets)
	classes[0], classes[3], classes[buckets-1] = 1, 1000000, 5
	got := fmt.Sprint(bars(classes))
	if got != "[{0 22 2 below 1µs: 1} {27 0 24 below 8µs: 1000000} {234 21 3 longer: 5}]" {
		t.Error(got)
	}
	for _, tt := range []struct {
		n    any
		want string
	}{{int64(0), "0 B"}, {uint64(1023), "1023 B"}, {int64(1536), "1.5 KiB"}, {uint64(1 << 40), "1.0 TiB"}, {uint64(1<<64 - 1), "16.0 EiB"}} {
		if got := size(tt.n); got != tt.want {
			t.Errorf("%v: %q, want %q", tt.n, got, tt.want)
		}
	}
}
