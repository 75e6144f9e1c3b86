// Package promrpc exports metrics of package transport to Prometheus.
//
//	c := promrpc.New(promrpc.Config{Table: table})
//	registry.MustRegister(c)
//	srv, err := transport.NewServer(&transport.ServerConfig{Config: transport.Config{Observer: c}})
//
// A [Collector] is an [rpc.Observer] for any number of clients and servers, and a Collector of client_golang. The names
// of its metrics begin with "rpcrdma_". The label "end" is "client" for measurements of the end that makes calls, and
// "server" for the end that executes them; a process may be both.
//
// No label value comes from a peer: program and procedure are names in Config.Table or "other", and the other labels
// have a fixed set of values. So the table bounds the number of series, and no series has the address of a peer. A call
// that succeeds allocates nothing.
package promrpc

import (
	"cmp"
	"slices"
	"strings"
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/rpcrdma/rpcrdma/internal/connset"
	"github.com/rpcrdma/rpcrdma/rpc"
	"github.com/rpcrdma/rpcrdma/rpc/names"
)

// A Config configures a Collector. The zero value selects the defaults.
type Config struct {
	// Table lists the procedures that are counted separately; all others are "other". Nil: all procedures are.
	Table *names.Table

	// Buckets are the upper bounds of the histograms' buckets, in seconds, in increasing
	// order. Nil: DefaultBuckets.
	Buckets []float64
}

// DefaultBuckets returns the default bounds of histogram buckets: from 10 microseconds to 10 seconds, three to a
// decade.
func DefaultBuckets() []float64 {
	return []float64{
		1e-05, 2.5e-05, 5e-05, 1e-04, 2.5e-04, 5e-04, 0.001, 0.0025, 0.005,
		0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10,
	}
}

// A Collector is an rpc.Observer that counts calls and connections. Use New to make one.
type Collector struct {
	rpc.NoObserver
	table *names.Table
	conns connset.Set

	vectors  []prometheus.Collector
	calls    *prometheus.CounterVec   // end, program, version, procedure, outcome
	duration *prometheus.HistogramVec // end, program, version, procedure
	handler  *prometheus.HistogramVec // program, version, procedure
	bytes    *prometheus.CounterVec   // end, message, way
	ended    *prometheus.CounterVec   // end, reason
	ends     [2]end
	notices  [len(noticeKinds)]prometheus.Counter
	regBytes prometheus.Counter

	procedures []atomic.Pointer[procedure] // two for each entry of the table: client, server
	ways       [2][2][1 << wayBits]atomic.Pointer[prometheus.Counter]

	gauges  []figure
	traffic map[string]*prometheus.Desc // by name of an rpc.Counter
	byWay   *prometheus.Desc
	adapter *prometheus.Desc
}

// An end has the counters of the end that makes calls, or of the end that executes them.
type end struct {
	name           string
	wait           prometheus.Observer
	inFlight, open prometheus.Gauge
	opened, again  prometheus.Counter // again: sent again, or answered from the reply cache
}

// A procedure has the counters of one procedure at one end.
type procedure struct {
	succeeded         prometheus.Counter
	duration, handler prometheus.Observer // handler: nil at a client
}

// A figure is computed from a Sum on demand.
type figure struct {
	desc  *prometheus.Desc
	value func(*connset.Sum) float64
}

// noticeKinds are the values of the label "kind". Immutable.
var noticeKinds = [...]string{
	rpc.NoticeRefused: "refused", rpc.NoticeRejected: "rejected", rpc.NoticeCreditStall: "credit_stall",
	rpc.NoticeMemoryStall: "memory_stall", rpc.NoticeRegistered: "registered",
}

const (
	client = 0
	server = 1

	wayBits = 5 // of rpc.Ways
)

var (
	_ rpc.Observer         = (*Collector)(nil)
	_ prometheus.Collector = (*Collector)(nil)
)

// New returns a Collector.
func New(cfg Config) *Collector {
	if cfg.Table == nil {
		cfg.Table, _ = names.New() // cannot fail without programs
	}
	if cfg.Buckets == nil {
		cfg.Buckets = DefaultBuckets()
	}
	c := &Collector{table: cfg.Table, procedures: make([]atomic.Pointer[procedure], 2*cfg.Table.Len())}
	counter := func(name, help string, labels ...string) *prometheus.CounterVec {
		v := prometheus.NewCounterVec(prometheus.CounterOpts{Name: "rpcrdma_" + name, Help: help}, labels)
		c.vectors = append(c.vectors, v)
		return v
	}
	gauge := func(name, help string) *prometheus.GaugeVec {
		v := prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: "rpcrdma_" + name, Help: help}, []string{"end"})
		c.vectors = append(c.vectors, v)
		return v
	}
	histogram := func(name, help string, labels ...string) *prometheus.HistogramVec {
		v := prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: "rpcrdma_" + name, Help: help, Buckets: slices.Clone(cfg.Buckets)}, labels)
		c.vectors = append(c.vectors, v)
		return v
	}
	c.calls = counter("calls_total", "Calls that have ended, by outcome.", "end", "program", "version", "procedure", "outcome")
	c.duration = histogram("call_duration_seconds", "Time from the beginning of calls to their end.", "end", "program", "version", "procedure")
	c.handler = histogram("handler_duration_seconds", "Time that calls spent in their handler.", "program", "version", "procedure")
	c.bytes = counter("message_bytes_total", "RPC messages, by how their bytes traveled.", "end", "message", "way")
	c.ended = counter("connections_ended_total", "Connections that have ended, by reason.", "end", "reason")
	wait := histogram("call_wait_seconds", "Time that calls waited: to be sent, for a connection and a credit; "+
		"to be executed, for memory and for the RDMA Reads of their arguments.", "end")
	inFlight := gauge("calls_in_flight", "Calls that have begun and not ended.")
	open := gauge("open_connections", "Connections that are open.")
	opened := counter("connections_opened_total", "Connections that have been set up.", "end")
	resent := counter("retransmissions_total", "Calls that were sent again on another connection.")
	replayed := counter("reply_cache_hits_total", "Calls that were answered from the reply cache.")
	for i, name := range []string{client: "client", server: "server"} {
		again := resent
		if i == server {
			again = replayed
		}
		c.ends[i] = end{
			name: name, wait: wait.WithLabelValues(name), inFlight: inFlight.WithLabelValues(name),
			open: open.WithLabelValues(name), opened: opened.WithLabelValues(name), again: again.WithLabelValues(),
		}
	}
	notices := counter("notices_total", "What has happened beside calls: messages refused, connections rejected, "+
		"waits for a credit or for memory, registrations of memory.", "kind")
	for kind, name := range noticeKinds {
		c.notices[kind] = notices.WithLabelValues(name)
	}
	c.regBytes = counter("registered_bytes_total", "Memory that has been registered with adapters.").WithLabelValues()
	c.figures()
	return c
}

// figures adds the counters that connections keep themselves.
func (c *Collector) figures() {
	gauge := func(name, help string, value func(*connset.Sum) float64) {
		c.gauges = append(c.gauges, figure{prometheus.NewDesc("rpcrdma_"+name, help, nil, nil), value})
	}
	gauge("exposed_bytes", "Memory that peers can reach at the moment.", func(s *connset.Sum) float64 { return float64(s.ExposedBytes) })
	gauge("held_bytes", "Memory that calls hold which are executed at the moment.", func(s *connset.Sum) float64 { return float64(s.HeldBytes) })
	gauge("credits", "Credits granted on all open connections.", func(s *connset.Sum) float64 { return float64(s.Credits) })
	gauge("waiting_callers", "Callers that wait for a credit at the moment.", func(s *connset.Sum) float64 { return float64(s.Waiting) })
	c.traffic = make(map[string]*prometheus.Desc)
	for f := range new(rpc.Stats).Counters() {
		if f.Kind == rpc.CountsTraffic {
			c.traffic[f.Name] = prometheus.NewDesc("rpcrdma_"+f.Name+"_total", f.Help, nil, nil)
		}
	}
	c.byWay = prometheus.NewDesc("rpcrdma_calls_by_way_total", "Calls sent or received, by the chunks that they have: a call may count for several ways.", []string{"way"}, nil)
	c.adapter = prometheus.NewDesc("rpcrdma_adapter_total", "Figures of the adapter.", []string{"counter"}, nil)
}

// Describe implements prometheus.Collector.
func (c *Collector) Describe(descs chan<- *prometheus.Desc) {
	for _, v := range c.vectors {
		v.Describe(descs)
	}
	for _, f := range c.gauges {
		descs <- f.desc
	}
	for _, desc := range c.traffic {
		descs <- desc
	}
	descs <- c.byWay
	descs <- c.adapter
}

// Collect implements prometheus.Collector. It briefly acquires the locks of the data path of each connection.
func (c *Collector) Collect(metrics chan<- prometheus.Metric) {
	for _, v := range c.vectors {
		v.Collect(metrics)
	}
	_, all, _ := c.conns.Look()
	for _, f := range c.gauges {
		metrics <- prometheus.MustNewConstMetric(f.desc, prometheus.GaugeValue, f.value(&all))
	}
	for f, n := range all.Stats.Counters() {
		switch f.Kind {
		case rpc.CountsTraffic:
			metrics <- prometheus.MustNewConstMetric(c.traffic[f.Name], prometheus.CounterValue, float64(n))
		case rpc.CountsWays:
			metrics <- prometheus.MustNewConstMetric(c.byWay, prometheus.CounterValue, float64(n), f.Name)
		}
	}
	for name, n := range all.Adapter {
		metrics <- prometheus.MustNewConstMetric(c.adapter, prometheus.CounterValue, float64(n), name)
	}
}

// ConnBegan implements rpc.Observer.
func (c *Collector) ConnBegan(e rpc.ConnEvent) {
	c.conns.Began(e)
	end := &c.ends[side(e.Server)]
	end.opened.Inc()
	end.open.Inc()
}

// ConnEnded implements rpc.Observer.
func (c *Collector) ConnEnded(e rpc.ConnEvent) {
	c.conns.Ended(e)
	end := &c.ends[side(e.Server)]
	end.open.Dec()
	c.ended.WithLabelValues(end.name, e.Outcome()).Inc()
}

func side(atServer bool) int {
	if atServer {
		return server
	}
	return client
}

// CallBegan implements rpc.Observer.
func (c *Collector) CallBegan(e *rpc.CallEvent) { c.ends[side(e.Executed)].inFlight.Inc() }

// CallEnded implements rpc.Observer.
func (c *Collector) CallEnded(e *rpc.CallEvent) {
	at := side(e.Executed)
	end := &c.ends[at]
	end.inFlight.Dec()
	end.wait.Observe(e.Waited.Seconds())
	if e.Resent > 0 {
		end.again.Add(float64(e.Resent))
	}
	if e.Replayed {
		end.again.Inc()
	}
	c.moved(at, 0, &e.Request)
	c.moved(at, 1, &e.Reply)

	i := c.table.Index(e.Prog, e.Vers, e.Proc)
	p := c.procedure(at, i)
	p.duration.Observe(e.Total.Seconds())
	if p.handler != nil && e.Handler > 0 {
		p.handler.Observe(e.Handler.Seconds())
	}
	if outcome := e.Outcome(); outcome == "success" {
		p.succeeded.Inc()
	} else {
		program, vers, proc := c.labels(i)
		c.calls.WithLabelValues(end.name, program, vers, proc, outcome).Inc()
	}
}

// Noticed implements rpc.Observer.
func (c *Collector) Noticed(n rpc.Notice) {
	if int(n.Kind) >= len(c.notices) {
		return
	}
	c.notices[n.Kind].Inc()
	if n.Kind == rpc.NoticeRegistered {
		c.regBytes.Add(float64(n.Bytes))
	}
}

// labels returns the labels of an entry of the table.
func (c *Collector) labels(i int) (program, vers, proc string) {
	e := c.table.At(i)
	return e.Program, e.Version(), e.Procedure
}

// procedure returns the counters of an entry of the table.
func (c *Collector) procedure(at, i int) *procedure {
	where := &c.procedures[2*i+at]
	if p := where.Load(); p != nil {
		return p
	}
	program, vers, proc := c.labels(i)
	end := c.ends[at].name
	p := &procedure{
		succeeded: c.calls.WithLabelValues(end, program, vers, proc, "success"),
		duration:  c.duration.WithLabelValues(end, program, vers, proc),
	}
	if at == server {
		p.handler = c.handler.WithLabelValues(program, vers, proc)
	}
	where.Store(p) // another goroutine's has the same counters
	return p
}

// moved counts the bytes of a request (0) or a reply (1).
func (c *Collector) moved(at, message int, t *rpc.Transfer) {
	if inline := t.Bytes - t.Chunks; inline > 0 {
		c.way(at, message, rpc.ByMessage).Add(float64(inline))
	}
	if t.Chunks > 0 {
		c.way(at, message, t.By&^rpc.ByMessage).Add(float64(t.Chunks))
	}
}

// way returns the counter of bytes that traveled in these ways.
func (c *Collector) way(at, message int, by rpc.Ways) prometheus.Counter {
	where := &c.ways[at][message][by&(1<<wayBits-1)]
	if p := where.Load(); p != nil {
		return *p
	}
	name := strings.ReplaceAll(cmp.Or(by, rpc.ByMessage).String(), " ", "_")
	counter := c.bytes.WithLabelValues(c.ends[at].name, [...]string{"request", "reply"}[message], name)
	where.Store(&counter)
	return counter
}
