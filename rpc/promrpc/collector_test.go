package promrpc

import (
	"context"
	"math/rand/v2"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/prometheus/client_golang/prometheus/testutil/promlint"
	dto "github.com/prometheus/client_model/go"

	"github.com/rpcrdma/rpcrdma/internal/testing/leak"
	ours "github.com/rpcrdma/rpcrdma/internal/testing/testutil"
	"github.com/rpcrdma/rpcrdma/iwarp"
	"github.com/rpcrdma/rpcrdma/proto/oncrpc"
	"github.com/rpcrdma/rpcrdma/rpc"
	"github.com/rpcrdma/rpcrdma/rpc/names"
	"github.com/rpcrdma/rpcrdma/transport"
)

func TestMain(m *testing.M) { os.Exit(leak.Main(m)) }

const (
	prog = 0x20000077
	echo = 1
	fail = 2
)

func table(t testing.TB) *names.Table {
	t.Helper()
	names, err := names.New(append(names.Known(100003),
		&oncrpc.Program{Number: prog, Vers: 1, Name: "TEST", Procedures: []string{"NULL", "ECHO", "FAIL"}})...)
	ours.Must(t, err)
	return names
}

// rig connects a client with one Collector to a server with another.
func rig(t *testing.T) (made, executed *Collector, cl *transport.Client) {
	t.Helper()
	leak.Check(t)
	made, executed = New(Config{Table: table(t)}), New(Config{Table: table(t)})
	srv, err := transport.NewServer(&transport.ServerConfig{Config: transport.Config{Observer: executed}})
	ours.Must(t, err)
	t.Cleanup(func() { srv.Close() })
	ours.Must(t, srv.Register(rpc.Program{Number: prog, Low: 1, High: 1, Handler: rpc.Procedures{
		echo: func(_ context.Context, req *rpc.Request, res *rpc.Response) {
			res.Results = append(res.Results, req.Args...)
		},
		fail: func(_ context.Context, _ *rpc.Request, res *rpc.Response) { res.Fail(oncrpc.SystemErr) },
	}}))
	p := iwarp.New(iwarp.Config{})
	l, err := srv.Listen(t.Context(), p, "127.0.0.1:0")
	ours.Must(t, err)
	go srv.Serve(l)
	cl, err = transport.Dial(t.Context(), p, l.Addr().String(), &transport.ClientConfig{Config: transport.Config{Observer: made}})
	ours.Must(t, err)
	t.Cleanup(func() { cl.Close() })
	return made, executed, cl
}

func call(t *testing.T, cl *transport.Client, proc uint32, args []byte) error {
	return cl.Call(t.Context(), &rpc.Call{Prog: prog, Vers: 1, Proc: proc, Args: args, MaxResults: 100000})
}

// series returns the value of each series by its name and labels, and of a histogram its count.
func series(t *testing.T, c *Collector) map[string]float64 {
	t.Helper()
	registry := prometheus.NewPedanticRegistry()
	ours.Must(t, registry.Register(c))
	families, err := registry.Gather()
	ours.Must(t, err)
	got := make(map[string]float64)
	for _, f := range families {
		for _, m := range f.Metric {
			name := f.GetName()
			for _, l := range m.Label {
				name += " " + l.GetValue()
			}
			switch f.GetType() {
			case dto.MetricType_HISTOGRAM:
				got[name] = float64(m.Histogram.GetSampleCount())
			case dto.MetricType_GAUGE:
				got[name] = m.Gauge.GetValue()
			default:
				got[name] = m.Counter.GetValue()
			}
		}
	}
	return got
}

// Both ends count calls, their bytes and their connections. Labels are in the order of their
// names: end, outcome, procedure, program, version.
func TestSeries(t *testing.T) {
	made, executed, cl := rig(t)
	for range 10 {
		ours.Must(t, call(t, cl, echo, []byte{1, 2, 3, 4}))
	}
	ours.Must(t, call(t, cl, echo, make([]byte, 50000)))
	if call(t, cl, fail, nil) == nil {
		t.Fatal("FAIL succeeds")
	}
	ours.Eventually(t, "all calls have ended", func() bool { return series(t, executed)["rpcrdma_calls_in_flight server"] == 0 })
	check := func(name string, c *Collector, want map[string]float64) {
		t.Helper()
		got := series(t, c)
		for series, value := range want {
			if value >= 0 && got[series] != value || value < 0 && got[series] <= 0 {
				t.Errorf("%s: %s is %v, want %v", name, series, got[series], value)
			}
		}
		if t.Failed() {
			t.Log(got)
		}
	}
	const some = -1
	check("client", made, map[string]float64{
		"rpcrdma_calls_total client success ECHO TEST 1":       11,
		"rpcrdma_calls_total client system_err FAIL TEST 1":    1,
		"rpcrdma_call_duration_seconds client ECHO TEST 1":     11,
		"rpcrdma_call_duration_seconds client FAIL TEST 1":     1,
		"rpcrdma_call_wait_seconds client":                     12,
		"rpcrdma_open_connections client":                      1,
		"rpcrdma_connections_opened_total client":              1,
		"rpcrdma_message_bytes_total client request inline":    some,
		"rpcrdma_message_bytes_total client request long_call": some,
		"rpcrdma_message_bytes_total client reply reply_chunk": some,
		"rpcrdma_calls_by_way_total reply_chunk":               some,
		"rpcrdma_credits":                                      some,
	})
	check("server", executed, map[string]float64{
		"rpcrdma_calls_total server success ECHO TEST 1":       11,
		"rpcrdma_calls_total server system_err FAIL TEST 1":    1,
		"rpcrdma_handler_duration_seconds ECHO TEST 1":         11,
		"rpcrdma_open_connections server":                      1,
		"rpcrdma_message_bytes_total server request long_call": some,
		"rpcrdma_message_bytes_total server reply reply_chunk": some,
		"rpcrdma_read_bytes_total":                             some,
		"rpcrdma_write_bytes_total":                            some,
	})
	before := series(t, executed)
	cl.Close()
	ours.Eventually(t, "the connection has ended", func() bool { return series(t, executed)["rpcrdma_open_connections server"] == 0 })
	check("server, after the end", executed, map[string]float64{"rpcrdma_connections_ended_total server closed": 1})
	after := series(t, executed)
	for _, name := range []string{"rpcrdma_read_bytes_total", "rpcrdma_calls_by_way_total inline"} {
		if after[name] < before[name] {
			t.Errorf("%s: %v has become %v", name, before[name], after[name])
		}
	}
}

// Notices are counted by kind; those of a kind that this package does not know are not.
func TestNotices(t *testing.T) {
	c := New(Config{})
	for kind := range rpc.NoticeKind(20) {
		c.Noticed(rpc.Notice{Kind: kind, Bytes: 100})
	}
	got := series(t, c)
	for kind := range rpc.NoticeRegistered + 1 {
		if name := "rpcrdma_notices_total " + strings.ReplaceAll(kind.String(), " ", "_"); got[name] != 1 {
			t.Errorf("%s is %v", name, got[name])
		}
	}
	if got["rpcrdma_registered_bytes_total"] != 100 {
		t.Errorf("%v bytes", got["rpcrdma_registered_bytes_total"])
	}
}

// Names and units follow Prometheus's conventions.
func TestLint(t *testing.T) {
	made, executed, cl := rig(t)
	ours.Must(t, call(t, cl, echo, make([]byte, 50000)))
	if call(t, cl, fail, nil) == nil {
		t.Fatal("FAIL succeeds")
	}
	for _, c := range []*Collector{made, executed} {
		problems, err := testutil.CollectAndLint(c)
		if err != nil {
			t.Fatal(err)
		}
		for _, p := range problems {
			t.Errorf("%s: %s", p.Metric, p.Text)
		}
	}
	// The check can fail.
	problems, err := promlint.New(strings.NewReader("# HELP calls Calls.\n# TYPE calls counter\ncalls 1\n")).Lint()
	if err != nil || len(problems) == 0 {
		t.Errorf("a counter without _total passes: %v", err)
	}
}

// However a peer chooses program, version and procedure, the number of series stays that of the
// table.
func TestCardinality(t *testing.T) {
	made, executed, cl := rig(t)
	random := rand.New(rand.NewPCG(1, 2))
	for i := range 500 {
		c := rpc.Call{Prog: random.Uint32(), Vers: random.Uint32(), Proc: random.Uint32()}
		switch i % 3 {
		case 0:
			c.Prog, c.Vers = prog, 1
		case 1:
			c.Prog = prog
		}
		if cl.Call(t.Context(), &c) == nil {
			t.Fatal("a random call succeeds")
		}
	}
	for _, c := range []*Collector{made, executed} {
		of := make(map[string]int)
		for name := range series(t, c) {
			family, _, _ := strings.Cut(name, " ")
			of[family]++
			if family == "rpcrdma_calls_total" && !strings.Contains(name, "other") {
				t.Errorf("there is %q", name)
			}
		}
		if of["rpcrdma_call_duration_seconds"] != 2 || of["rpcrdma_calls_total"] > 8 {
			t.Errorf("%v", of)
		}
	}
}

// A call that succeeds costs no memory.
func TestAllocs(t *testing.T) {
	c := New(Config{Table: table(t)})
	e := event()
	if n := testing.AllocsPerRun(1000, func() { c.CallBegan(e); c.CallEnded(e) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func event() *rpc.CallEvent {
	return &rpc.CallEvent{
		Procedure: rpc.Procedure{Prog: prog, Vers: 1, Proc: echo}, Executed: true, Total: 30 * time.Microsecond, Handler: time.Microsecond,
		Request: rpc.Transfer{Bytes: 100, By: rpc.ByMessage},
		Reply:   rpc.Transfer{Bytes: 5000, Chunks: 4096, By: rpc.ByMessage | rpc.ByWriteChunk},
	}
}

func BenchmarkCall(b *testing.B) {
	c := New(Config{Table: table(b)})
	b.ReportAllocs()
	b.RunParallel(func(pb *testing.PB) {
		e := event()
		for pb.Next() {
			c.CallBegan(e)
			c.CallEnded(e)
		}
	})
}
