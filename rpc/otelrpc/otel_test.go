package otelrpc

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/baggage"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/propagation"
	sdk "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"

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
	prog  = 0x20000077
	echo  = 1
	relay = 2 // calls ECHO on the server itself, through a Caller of its own
	fail  = 3
	boom  = 4 // panics
	carry = 5 // is observed as ECHO

	flavor = 0x2f000001
)

func table(t testing.TB) *names.Table {
	t.Helper()
	names, err := names.New(&oncrpc.Program{Number: prog, Vers: 1, Name: "TEST", Procedures: []string{"NULL", "ECHO", "RELAY", "FAIL", "BOOM"}})
	testutil.Must(t, err)
	return names
}

// A bed is a server and a client. Readers read its metrics, and its spans are recorded.
type bed struct {
	made, executed *sdk.ManualReader
	spans          *tracetest.SpanRecorder
	tracer         trace.Tracer
	cl             *transport.Client
	caller         rpc.Caller // that of the client with spans
}

func newBed(t *testing.T, carrier Carrier) *bed {
	t.Helper()
	leak.Check(t)
	b := &bed{made: sdk.NewManualReader(), executed: sdk.NewManualReader(), spans: tracetest.NewSpanRecorder()}
	provider := sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(b.spans))
	b.tracer = provider.Tracer("test")
	cfg := Config{
		Table: table(t), TracerProvider: provider, Carrier: carrier,
		Propagator: propagation.NewCompositeTextMapPropagator(propagation.TraceContext{}, propagation.Baggage{}),
	}
	metrics := func(reader *sdk.ManualReader) *Metrics {
		cfg := cfg
		cfg.MeterProvider = sdk.NewMeterProvider(sdk.WithReader(reader))
		m, err := NewMetrics(cfg)
		testutil.Must(t, err)
		t.Cleanup(func() { m.Close() })
		return m
	}
	tracing := NewTracing(cfg)
	srv, err := transport.NewServer(&transport.ServerConfig{Config: transport.Config{Observer: metrics(b.executed), Logger: slog.New(slog.DiscardHandler)}})
	testutil.Must(t, err)
	t.Cleanup(func() { srv.Close() })
	testutil.Must(t, srv.Register(rpc.Program{Number: prog, Low: 1, High: 1, Handler: tracing.Handler(rpc.Procedures{
		echo: func(ctx context.Context, req *rpc.Request, res *rpc.Response) {
			res.Results = append(res.Results, req.Args...)
		},
		relay: func(ctx context.Context, req *rpc.Request, res *rpc.Response) {
			if err := b.caller.Call(ctx, &rpc.Call{Prog: prog, Vers: 1, Proc: echo}); err != nil {
				res.Fail(oncrpc.SystemErr)
			}
		},
		carry: func(_ context.Context, req *rpc.Request, _ *rpc.Response) { req.Observed.Proc = echo },
		fail:  func(_ context.Context, _ *rpc.Request, res *rpc.Response) { res.Fail(oncrpc.SystemErr) },
		boom:  func(context.Context, *rpc.Request, *rpc.Response) { panic("boom") },
	})}))
	p := iwarp.New(iwarp.Config{})
	l, err := srv.Listen(t.Context(), p, "127.0.0.1:0")
	testutil.Must(t, err)
	go srv.Serve(l)
	b.cl, err = transport.Dial(t.Context(), p, l.Addr().String(), &transport.ClientConfig{Config: transport.Config{Observer: metrics(b.made)}})
	testutil.Must(t, err)
	t.Cleanup(func() { b.cl.Close() })
	b.caller = tracing.Caller(b.cl)
	return b
}

func (b *bed) call(ctx context.Context, proc uint32, args []byte) error {
	return b.caller.Call(ctx, &rpc.Call{Prog: prog, Vers: 1, Proc: proc, Args: args, MaxResults: 100000})
}

// points returns the value of each series, by its name, unit and attributes: of a histogram the
// number of calls.
func points(t *testing.T, r *sdk.ManualReader) map[string]float64 {
	t.Helper()
	var all metricdata.ResourceMetrics
	testutil.Must(t, r.Collect(t.Context(), &all))
	got := make(map[string]float64)
	for _, s := range all.ScopeMetrics {
		for _, m := range s.Metrics {
			name := m.Name + " " + m.Unit + " "
			switch data := m.Data.(type) {
			case metricdata.Histogram[float64]:
				for _, p := range data.DataPoints {
					got[name+p.Attributes.Encoded(encoder{})] = float64(p.Count)
				}
			case metricdata.Sum[int64]:
				for _, p := range data.DataPoints {
					got[name+p.Attributes.Encoded(encoder{})] = float64(p.Value)
				}
			case metricdata.Gauge[int64]:
				for _, p := range data.DataPoints {
					got[name+p.Attributes.Encoded(encoder{})] = float64(p.Value)
				}
			default:
				t.Fatalf("%s is a %T", m.Name, data)
			}
		}
	}
	return got
}

const (
	echoOf = "onc_rpc.procedure.name=ECHO,onc_rpc.procedure.number=1,onc_rpc.program.name=TEST,onc_rpc.version=1,rpc.method=TEST/ECHO"
	failOf = "onc_rpc.procedure.name=FAIL,onc_rpc.procedure.number=3,onc_rpc.program.name=TEST,onc_rpc.version=1,rpc.method=TEST/FAIL"
)

// Names, units and attributes are those of the conventions, and both ends count the same calls.
func TestMetrics(t *testing.T) {
	b := newBed(t, nil)
	for range 10 {
		testutil.Must(t, b.call(t.Context(), echo, []byte{1, 2, 3, 4}))
	}
	testutil.Must(t, b.call(t.Context(), echo, make([]byte, 50000)))
	if b.call(t.Context(), fail, nil) == nil {
		t.Fatal("FAIL succeeds")
	}
	testutil.Eventually(t, "all calls have ended", func() bool {
		return points(t, b.executed)["rpcrdma.call.active {call} rpcrdma.end=server"] == 0
	})
	const some = -1
	check := func(end string, r *sdk.ManualReader, want map[string]float64) {
		t.Helper()
		got := points(t, r)
		for series, value := range want {
			if n, ok := got[series]; !ok || value >= 0 && n != value || value < 0 && n <= 0 {
				t.Errorf("%s: %s is %v, want %v", end, series, got[series], value)
			}
		}
		if t.Failed() {
			t.Log(strings.Join(slices.Sorted(maps.Keys(got)), "\n"))
		}
	}
	check("client", b.made, map[string]float64{
		"rpc.client.call.duration s " + echoOf + ",rpc.response.status_code=SUCCESS,rpc.system.name=onc_rpc":                          11,
		"rpc.client.call.duration s error.type=system_err," + failOf + ",rpc.response.status_code=SYSTEM_ERR,rpc.system.name=onc_rpc": 1,
		"rpcrdma.call.wait s rpcrdma.end=client":                                                 12,
		"rpcrdma.connection.open {connection} rpcrdma.end=client":                                1,
		"rpcrdma.message.io By rpcrdma.end=client,rpcrdma.message=request,rpcrdma.way=long call": some,
		"rpcrdma.message.io By rpcrdma.end=client,rpcrdma.message=reply,rpcrdma.way=reply chunk": some,
		"rpcrdma.message.io By rpcrdma.end=client,rpcrdma.message=request,rpcrdma.way=inline":    some,
		"rpcrdma.credits {credit} ":  some,
		"rpcrdma.memory.exposed By ": 0,
		"rpcrdma.memory.held By ":    0,
	})
	check("server", b.executed, map[string]float64{
		"rpc.server.call.duration s " + echoOf + ",rpc.response.status_code=SUCCESS,rpc.system.name=onc_rpc": 11,
		"rpcrdma.handler.duration s " + echoOf + ",rpc.system.name=onc_rpc":                                  11,
	})
	b.cl.Close()
	testutil.Eventually(t, "the connection has ended", func() bool {
		return points(t, b.executed)["rpcrdma.connection.ended {connection} rpcrdma.end=server,rpcrdma.reason=closed"] == 1
	})
}

// However a peer chooses program, version and procedure, the number of series stays that of the
// table.
func TestCardinality(t *testing.T) {
	b := newBed(t, nil)
	random := rand.New(rand.NewPCG(1, 2))
	for i := range 300 {
		c := rpc.Call{Prog: random.Uint32(), Vers: random.Uint32(), Proc: random.Uint32()}
		if i%2 == 0 {
			c.Prog, c.Vers = prog, 1
		}
		if b.cl.Call(t.Context(), &c) == nil {
			t.Fatal("a random call succeeds")
		}
	}
	for name, r := range map[string]*sdk.ManualReader{"client": b.made, "server": b.executed} {
		n := 0
		for series := range points(t, r) {
			if !strings.Contains(series, ".call.duration") {
				continue
			}
			n++
			if !strings.Contains(series, "onc_rpc.program.name=_OTHER,rpc.method=_OTHER") && !strings.Contains(series, "onc_rpc.procedure.name=_OTHER,onc_rpc.program.name=TEST") {
				t.Errorf("%s has %s", name, series)
			}
		}
		if n < 2 || n > 4 {
			t.Errorf("%s has %d series of calls", name, n)
		}
	}
}

// Notices are counted by kind; those of a kind that this package does not know are not.
func TestNotices(t *testing.T) {
	reader := sdk.NewManualReader()
	m, err := NewMetrics(Config{MeterProvider: sdk.NewMeterProvider(sdk.WithReader(reader))})
	testutil.Must(t, err)
	for kind := range rpc.NoticeKind(20) {
		m.Noticed(rpc.Notice{Kind: kind})
	}
	for series, n := range points(t, reader) {
		if strings.HasPrefix(series, "rpcrdma.notices") && (n != 1 || strings.Contains(series, "NoticeKind")) {
			t.Errorf("%s is %v", series, n)
		}
	}
	testutil.Must(t, m.Close())
}

// A call that succeeds costs no memory in this package.
func TestAllocs(t *testing.T) {
	m, err := NewMetrics(Config{Table: table(t), MeterProvider: sdk.NewMeterProvider(sdk.WithReader(sdk.NewManualReader()))})
	testutil.Must(t, err)
	e := event()
	if n := testing.AllocsPerRun(1000, func() { m.CallBegan(e); m.CallEnded(e) }); n != 0 {
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
	m, err := NewMetrics(Config{Table: table(b), MeterProvider: sdk.NewMeterProvider(sdk.WithReader(sdk.NewManualReader()))})
	testutil.Must(b, err)
	b.ReportAllocs()
	b.RunParallel(func(pb *testing.PB) {
		e := event()
		for pb.Next() {
			m.CallBegan(e)
			m.CallEnded(e)
		}
	})
}

// tree returns each span as its name and kind, below those that it is in.
func (b *bed) tree() []string {
	spans := b.spans.Ended()
	byID := make(map[trace.SpanID]sdktrace.ReadOnlySpan)
	for _, s := range spans {
		byID[s.SpanContext().SpanID()] = s
	}
	var list []string
	for _, s := range spans {
		path := ""
		for s := s; s != nil; s = byID[s.Parent().SpanID()] {
			path = fmt.Sprintf("/%s:%v%s", s.Name(), s.SpanKind(), path)
		}
		list = append(list, path)
	}
	slices.Sort(list)
	return list
}

// With a Carrier a trace goes through two servers; without one it ends at the first, and goes on
// only within a process.
func TestTraces(t *testing.T) {
	for _, tt := range []struct {
		name    string
		carrier Carrier
		want    []string
	}{
		{"carried", Verifier(flavor), []string{
			"/test:internal",
			"/test:internal/TEST/RELAY:client",
			"/test:internal/TEST/RELAY:client/TEST/RELAY:server",
			"/test:internal/TEST/RELAY:client/TEST/RELAY:server/TEST/ECHO:client",
			"/test:internal/TEST/RELAY:client/TEST/RELAY:server/TEST/ECHO:client/TEST/ECHO:server",
		}},
		{"not carried", nil, []string{
			"/TEST/ECHO:server",
			"/TEST/RELAY:server",
			"/TEST/RELAY:server/TEST/ECHO:client",
			"/test:internal",
			"/test:internal/TEST/RELAY:client",
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			b := newBed(t, tt.carrier)
			ctx, span := b.tracer.Start(t.Context(), "test")
			testutil.Must(t, b.call(ctx, relay, nil))
			span.End()
			testutil.Eventually(t, "all spans have ended", func() bool { return len(b.spans.Ended()) == len(tt.want) })
			if got := b.tree(); !slices.Equal(got, tt.want) {
				t.Errorf("%s", strings.Join(got, "\n"))
			}
		})
	}
}

// A span has the outcome of its call, and names by number what has no name.
func TestSpanStatus(t *testing.T) {
	b := newBed(t, nil)
	for _, call := range []rpc.Call{{Prog: prog, Vers: 1, Proc: fail}, {Prog: prog, Vers: 1, Proc: boom}, {Prog: 99, Vers: 7, Proc: 5}} {
		if b.caller.Call(t.Context(), &call) == nil {
			t.Error("the call succeeds")
		}
	}
	canceled, cancel := context.WithCancel(t.Context())
	cancel()
	if err := b.call(canceled, echo, nil); !errors.Is(err, context.Canceled) {
		t.Errorf("%v", err)
	}
	var got []string
	for _, s := range b.spans.Ended() {
		if s.SpanKind() != trace.SpanKindClient {
			continue
		}
		text := s.Name()
		for _, a := range s.Attributes() {
			switch a.Key {
			case "error.type", "rpc.response.status_code", "onc_rpc.program.number", "onc_rpc.version", "onc_rpc.procedure.number":
				text += " " + a.Value.String()
			}
		}
		if s.Status().Code != codes.Error {
			text += " without an error"
		}
		got = append(got, text)
	}
	want := []string{
		"TEST/FAIL 1 3 536871031 SYSTEM_ERR system_err",
		"TEST/BOOM 1 4 536871031 SYSTEM_ERR system_err",
		"onc_rpc 7 5 99 PROG_UNAVAIL prog_unavail",
		"TEST/ECHO 1 1 536871031 canceled",
	}
	if !slices.Equal(got, want) {
		t.Errorf("%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	for _, name := range []string{"TEST/FAIL", "TEST/BOOM"} {
		testutil.Eventually(t, "the handler of "+name+" has a span with an error", func() bool {
			return slices.ContainsFunc(b.spans.Ended(), func(s sdktrace.ReadOnlySpan) bool {
				return s.SpanKind() == trace.SpanKindServer && s.Name() == name && s.Status().Code == codes.Error
			})
		})
	}
}

// A call that is observed as another one has the names of that.
func TestObserved(t *testing.T) {
	b := newBed(t, nil)
	testutil.Must(t, b.caller.Call(t.Context(), &rpc.Call{Prog: prog, Vers: 1, Proc: carry, Observed: rpc.Procedure{Prog: prog, Vers: 1, Proc: echo}}))
	testutil.Eventually(t, "both spans are of ECHO", func() bool {
		spans := b.spans.Ended()
		return len(spans) == 2 && spans[0].Name() == "TEST/ECHO" && spans[1].Name() == "TEST/ECHO"
	})
	for name, r := range map[string]*sdk.ManualReader{"client": b.made, "server": b.executed} {
		testutil.Eventually(t, "the metrics of the "+name+" have a call of ECHO", func() bool {
			for series := range points(t, r) {
				if strings.Contains(series, ".call.duration") {
					return strings.Contains(series, echoOf)
				}
			}
			return false
		})
	}
}

// The verifier takes what it has room for, leaves calls alone that have one, and gives the call
// back as it was.
func TestVerifier(t *testing.T) {
	v := Verifier(flavor)
	fields := map[string]string{"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", "baggage": strings.Repeat("b", 390)}
	var call rpc.Call
	v.Inject(&call, fields)
	got := v.Extract(&rpc.Request{Verf: call.Verf})
	if len(got) != 1 || got["traceparent"] != fields["traceparent"] || len(call.Verf.Body) > oncrpc.MaxAuthBody {
		t.Errorf("%d bytes: %v", len(call.Verf.Body), got)
	}
	full := rpc.Call{Verf: oncrpc.Auth{Flavor: oncrpc.FlavorGSS, Body: []byte("mine")}}
	v.Inject(&full, fields)
	if full.Verf.Flavor != oncrpc.FlavorGSS || string(full.Verf.Body) != "mine" {
		t.Errorf("%+v", full.Verf)
	}
	for _, req := range []rpc.Request{{}, {Verf: oncrpc.Auth{Flavor: flavor + 1, Body: call.Verf.Body}}, {Verf: oncrpc.Auth{Flavor: flavor, Body: call.Verf.Body[:20]}}} {
		if got := v.Extract(&req); got != nil {
			t.Errorf("%+v: %v", req.Verf, got)
		}
	}

	b := newBed(t, v)
	member, err := baggage.NewMember("who", "me")
	testutil.Must(t, err)
	bag, err := baggage.New(member)
	testutil.Must(t, err)
	again := rpc.Call{Prog: prog, Vers: 1, Proc: echo}
	testutil.Must(t, b.caller.Call(baggage.ContextWithBaggage(t.Context(), bag), &again))
	if again.Verf.Flavor != oncrpc.FlavorNone || again.Verf.Body != nil {
		t.Errorf("the call has been left with %+v", again.Verf)
	}
}

// The fields that a hostile peer puts into a verifier are accepted or not, and nothing worse happens.
func FuzzVerifier(f *testing.F) {
	var call rpc.Call
	Verifier(flavor).Inject(&call, map[string]string{"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", "tracestate": "a=b"})
	f.Add(call.Verf.Body)
	f.Add([]byte{0, 0, 0, 9})
	f.Fuzz(func(t *testing.T, body []byte) {
		fields := Verifier(flavor).Extract(&rpc.Request{Verf: oncrpc.Auth{Flavor: flavor, Body: body}})
		if len(fields) > maxFields {
			t.Errorf("%d fields", len(fields))
		}
		propagation.NewCompositeTextMapPropagator(propagation.TraceContext{}, propagation.Baggage{}).Extract(t.Context(), propagation.MapCarrier(fields))
	})
}

// encoder prints attributes as "key=value,key=value", in the order of the keys.
type encoder struct{}

func (encoder) ID() attribute.EncoderID { return attribute.EncoderID{} }

func (encoder) Encode(it attribute.Iterator) string {
	var list []string
	for it.Next() {
		kv := it.Attribute()
		list = append(list, string(kv.Key)+"="+kv.Value.String())
	}
	return strings.Join(list, ",")
}
