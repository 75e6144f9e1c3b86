// Package otelrpc exports metrics and traces of package transport to OpenTelemetry.
//
// [Metrics] is an [rpc.Observer]. Its instruments rpc.client.call.duration and rpc.server.call.duration follow the
// semantic conventions for RPC, version 1.43.0, with rpc.system.name "onc_rpc" and the attributes onc_rpc.*; the
// conventions define no other instruments for RPC, so the rest are under "rpcrdma.". No attribute value comes from a
// peer: names are those of Config.Table, or "_OTHER".
//
// [Tracing] makes spans: its Caller method wraps a Caller, and its Handler method a Handler. ONC RPC has no metadata,
// so a trace continues at the server only if both ends agree on a place for its context: see [Carrier]. Without that,
// spans are linked within a process: the spans of calls that a handler makes with its context are children of the
// handler's span.
package otelrpc

import (
	"context"
	"errors"
	"strings"
	"sync/atomic"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/propagation"
	semconv "go.opentelemetry.io/otel/semconv/v1.43.0"
	"go.opentelemetry.io/otel/semconv/v1.43.0/rpcconv"
	"go.opentelemetry.io/otel/trace"

	"github.com/rpcrdma/rpcrdma/internal/connset"
	"github.com/rpcrdma/rpcrdma/proto/oncrpc"
	"github.com/rpcrdma/rpcrdma/rpc"
	"github.com/rpcrdma/rpcrdma/rpc/names"
)

// A Config configures Metrics and Tracing. The zero value selects the defaults.
type Config struct {
	// Table lists the procedures with attribute values of their own; all others are "_OTHER". Nil: all procedures are.
	Table *names.Table

	MeterProvider  metric.MeterProvider          // nil: the global one
	TracerProvider trace.TracerProvider          // nil: the global one
	Propagator     propagation.TextMapPropagator // nil: the global one

	// Carrier carries the context of a trace from caller to handler. Nil: traces end at the connection.
	Carrier Carrier
}

// settle fills in the defaults.
func (cfg *Config) settle() {
	if cfg.Table == nil {
		cfg.Table, _ = names.New() // cannot fail without programs
	}
	if cfg.MeterProvider == nil {
		cfg.MeterProvider = otel.GetMeterProvider()
	}
	if cfg.TracerProvider == nil {
		cfg.TracerProvider = otel.GetTracerProvider()
	}
	if cfg.Propagator == nil {
		cfg.Propagator = otel.GetTextMapPropagator()
	}
}

// scope is the name of the instrumentation.
const scope = "github.com/rpcrdma/rpcrdma/rpc/otelrpc"

// system is the value of rpc.system.name. The conventions have no constant for it.
const system rpcconv.SystemNameAttr = "onc_rpc"

// other is the value that the conventions define for unknown values.
const other = "_OTHER"

// attributes returns the attributes of an entry of the table.
func attributes(e names.Entry) []attribute.KeyValue {
	list := []attribute.KeyValue{semconv.RPCSystemNameKey.String(string(system))}
	if e.Program == names.Other {
		return append(list, semconv.RPCMethod(other), semconv.OncRPCProgramName(other))
	}
	list = append(list, semconv.RPCMethod(method(e)), semconv.OncRPCProgramName(e.Program), semconv.OncRPCVersion(int(e.Vers)))
	if e.Procedure == names.Other {
		return append(list, semconv.OncRPCProcedureName(other))
	}
	return append(list, semconv.OncRPCProcedureName(e.Procedure), semconv.OncRPCProcedureNumber(int(e.Proc)))
}

// method returns the value of rpc.method.
func method(e names.Entry) string {
	if e.Procedure == names.Other {
		return other
	}
	return e.Program + "/" + e.Procedure
}

// outcome returns the attributes for the end of a call. word is CallEvent.Outcome.
func outcome(word string, replied bool) []attribute.KeyValue {
	var list []attribute.KeyValue
	if replied {
		list = append(list, semconv.RPCResponseStatusCode(strings.ToUpper(word))) // as RFC 5531 spells it
	}
	if word != "success" {
		list = append(list, semconv.ErrorTypeKey.String(word))
	}
	return list
}

// replied reports whether a call has an RPC reply.
func replied(err error) bool { return err == nil || errors.As(err, new(*oncrpc.RPCError)) }

// buckets are the bounds of histograms in seconds. The conventions' buckets begin at 5 ms, longer than most calls take
// here. Immutable.
var buckets = []float64{
	1e-05, 2.5e-05, 5e-05, 1e-04, 2.5e-04, 5e-04, 0.001, 0.0025, 0.005,
	0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10,
}

// Metrics is an rpc.Observer that measures the calls and connections of any number of clients and servers. A call that
// succeeds allocates nothing here; the SDK may allocate.
type Metrics struct {
	rpc.NoObserver
	table *names.Table
	conns connset.Set

	duration         [2]metric.Float64Histogram // client, server
	wait, handler    metric.Float64Histogram
	resent, replayed metric.Int64Counter
	open             metric.Int64UpDownCounter
	ended, notices   metric.Int64Counter

	// Read on demand: adding to a number is cheaper than calling the SDK.
	active [2]atomic.Int64                  // client, server
	bytes  [2][2][1 << wayBits]atomic.Int64 // by end, message and way

	// Options that are built once.
	procedures []atomic.Pointer[options] // two for each entry of the table: client, server
	ends       [2]endOptions

	registration metric.Registration
}

// endOptions have the attribute of one end.
type endOptions struct {
	add     []metric.AddOption
	record  []metric.RecordOption
	observe []metric.ObserveOption
}

// options are those of one procedure at one end.
type options struct {
	call    []metric.RecordOption // a success
	handler []metric.RecordOption
}

const (
	client  = 0
	server  = 1
	wayBits = 5 // of rpc.Ways
)

// Attributes under "rpcrdma.".
const (
	endKey     = attribute.Key("rpcrdma.end")     // "client" makes calls, "server" executes them
	messageKey = attribute.Key("rpcrdma.message") // "request" or "reply"
	wayKey     = attribute.Key("rpcrdma.way")     // as rpc.Ways prints it
	kindKey    = attribute.Key("rpcrdma.kind")    // as rpc.NoticeKind prints it
	reasonKey  = attribute.Key("rpcrdma.reason")  // rpc.ConnEvent.Outcome
)

var _ rpc.Observer = (*Metrics)(nil)

// NewMetrics returns a new Metrics. It fails if the MeterProvider refuses an instrument.
func NewMetrics(cfg Config) (*Metrics, error) {
	cfg.settle()
	m := &Metrics{table: cfg.Table, procedures: make([]atomic.Pointer[options], 2*cfg.Table.Len())}
	meter := cfg.MeterProvider.Meter(scope, metric.WithSchemaURL(semconv.SchemaURL))
	var failed []error
	note := func(err error) { failed = append(failed, err) }
	seconds := func(name, what string) metric.Float64Histogram {
		h, err := meter.Float64Histogram(name, metric.WithDescription(what), metric.WithUnit("s"), metric.WithExplicitBucketBoundaries(buckets...))
		note(err)
		return h
	}
	count := func(name, unit, what string) metric.Int64Counter {
		c, err := meter.Int64Counter(name, metric.WithDescription(what), metric.WithUnit(unit))
		note(err)
		return c
	}
	level := func(name, unit, what string) metric.Int64UpDownCounter {
		c, err := meter.Int64UpDownCounter(name, metric.WithDescription(what), metric.WithUnit(unit))
		note(err)
		return c
	}
	m.duration[client] = seconds(rpcconv.ClientCallDuration{}.Name(), rpcconv.ClientCallDuration{}.Description())
	m.duration[server] = seconds(rpcconv.ServerCallDuration{}.Name(), rpcconv.ServerCallDuration{}.Description())
	m.wait = seconds("rpcrdma.call.wait", "Time that calls waited to be sent, for a connection and a credit, or to be executed.")
	m.handler = seconds("rpcrdma.handler.duration", "Time that calls spent in their handler.")
	m.resent = count("rpcrdma.call.resent", "{call}", "Calls that were sent again on another connection.")
	m.replayed = count("rpcrdma.call.replayed", "{call}", "Calls that were answered from the reply cache.")
	m.open = level("rpcrdma.connection.open", "{connection}", "Connections that are open.")
	m.ended = count("rpcrdma.connection.ended", "{connection}", "Connections that have ended, by reason.")
	m.notices = count("rpcrdma.notices", "{notice}", "What has happened beside calls: messages refused, connections rejected, "+
		"waits for a credit or for memory, registrations of memory.")
	exposed, err := meter.Int64ObservableGauge("rpcrdma.memory.exposed", metric.WithUnit("By"), metric.WithDescription("Memory that peers can reach at the moment."))
	note(err)
	held, err := meter.Int64ObservableGauge("rpcrdma.memory.held", metric.WithUnit("By"), metric.WithDescription("Memory that calls hold which are executed at the moment."))
	note(err)
	credits, err := meter.Int64ObservableGauge("rpcrdma.credits", metric.WithUnit("{credit}"), metric.WithDescription("Credits granted on all open connections."))
	note(err)
	active, err := meter.Int64ObservableUpDownCounter("rpcrdma.call.active", metric.WithUnit("{call}"), metric.WithDescription("Calls that have begun and not ended."))
	note(err)
	bytes, err := meter.Int64ObservableCounter("rpcrdma.message.io", metric.WithUnit("By"), metric.WithDescription("RPC messages, by how their bytes traveled."))
	note(err)
	observed := []metric.Observable{exposed, held, credits, active, bytes}
	traffic := make(map[string]metric.Int64ObservableCounter)
	for c := range new(rpc.Stats).Counters() {
		if c.Kind == rpc.CountsTraffic {
			traffic[c.Name], err = meter.Int64ObservableCounter("rpcrdma.traffic."+c.Name, metric.WithDescription(c.Help))
			note(err)
			observed = append(observed, traffic[c.Name])
		}
	}
	for i := range m.ends {
		set := metric.WithAttributeSet(attribute.NewSet(endName(i)))
		m.ends[i] = endOptions{[]metric.AddOption{set}, []metric.RecordOption{set}, []metric.ObserveOption{set}}
	}
	if err := errors.Join(failed...); err != nil {
		return nil, err
	}
	m.registration, err = meter.RegisterCallback(func(_ context.Context, o metric.Observer) error {
		_, all, _ := m.conns.Look()
		o.ObserveInt64(exposed, all.ExposedBytes)
		o.ObserveInt64(held, all.HeldBytes)
		o.ObserveInt64(credits, int64(all.Credits))
		for c, n := range all.Stats.Counters() {
			if counter := traffic[c.Name]; counter != nil {
				o.ObserveInt64(counter, int64(n))
			}
		}
		for at := range m.ends {
			o.ObserveInt64(active, m.active[at].Load(), m.ends[at].observe...)
			for message, name := range []string{"request", "reply"} {
				for by := range m.bytes[at][message] {
					if n := m.bytes[at][message][by].Load(); n > 0 {
						o.ObserveInt64(bytes, n, metric.WithAttributes(
							endName(at), messageKey.String(name), wayKey.String(rpc.Ways(by).String())))
					}
				}
			}
		}
		return nil
	}, observed...)
	return m, err
}

// Close unregisters the callback of metrics: calls in flight, bytes, memory and credits are no longer exported. The
// other metrics still are.
func (m *Metrics) Close() error { return m.registration.Unregister() }

func side(atServer bool) int {
	if atServer {
		return server
	}
	return client
}

// ConnBegan implements rpc.Observer.
func (m *Metrics) ConnBegan(e rpc.ConnEvent) {
	m.conns.Began(e)
	m.open.Add(context.Background(), 1, m.ends[side(e.Server)].add...)
}

// ConnEnded implements rpc.Observer.
func (m *Metrics) ConnEnded(e rpc.ConnEvent) {
	m.conns.Ended(e)
	at := side(e.Server)
	m.open.Add(context.Background(), -1, m.ends[at].add...)
	m.ended.Add(context.Background(), 1, metric.WithAttributes(endName(at), reasonKey.String(e.Outcome())))
}

func endName(at int) attribute.KeyValue { return endKey.String([...]string{"client", "server"}[at]) }

// CallBegan implements rpc.Observer.
func (m *Metrics) CallBegan(e *rpc.CallEvent) { m.active[side(e.Executed)].Add(1) }

// CallEnded implements rpc.Observer.
func (m *Metrics) CallEnded(e *rpc.CallEvent) {
	ctx := context.Background() // the caller's context is not known here
	at := side(e.Executed)
	m.active[at].Add(-1)
	m.wait.Record(ctx, e.Waited.Seconds(), m.ends[at].record...)
	if e.Resent > 0 {
		m.resent.Add(ctx, int64(e.Resent))
	}
	if e.Replayed {
		m.replayed.Add(ctx, 1)
	}
	m.moved(at, 0, &e.Request)
	m.moved(at, 1, &e.Reply)

	i := m.table.Index(e.Prog, e.Vers, e.Proc)
	o := m.procedure(at, i)
	if e.Handler > 0 {
		m.handler.Record(ctx, e.Handler.Seconds(), o.handler...)
	}
	if word := e.Outcome(); word == "success" {
		m.duration[at].Record(ctx, e.Total.Seconds(), o.call...)
	} else {
		list := append(attributes(m.table.At(i)), outcome(word, replied(e.Err))...)
		m.duration[at].Record(ctx, e.Total.Seconds(), metric.WithAttributes(list...))
	}
}

// Noticed implements rpc.Observer.
func (m *Metrics) Noticed(n rpc.Notice) {
	if n.Kind <= rpc.NoticeRegistered {
		m.notices.Add(context.Background(), 1, metric.WithAttributes(kindKey.String(n.Kind.String())))
	}
}

// procedure returns the options of an entry of the table.
func (m *Metrics) procedure(at, i int) *options {
	where := &m.procedures[2*i+at]
	if o := where.Load(); o != nil {
		return o
	}
	list := attributes(m.table.At(i))
	o := &options{
		handler: []metric.RecordOption{metric.WithAttributeSet(attribute.NewSet(list...))},
		call:    []metric.RecordOption{metric.WithAttributeSet(attribute.NewSet(append(list, outcome("success", true)...)...))},
	}
	where.Store(o) // another goroutine's are equal
	return o
}

// moved counts the bytes of a request (0) or a reply (1).
func (m *Metrics) moved(at, message int, t *rpc.Transfer) {
	ways := &m.bytes[at][message]
	if inline := t.Bytes - t.Chunks; inline > 0 {
		ways[rpc.ByMessage].Add(int64(inline))
	}
	if t.Chunks > 0 {
		ways[t.By&^rpc.ByMessage&(1<<wayBits-1)].Add(int64(t.Chunks))
	}
}
