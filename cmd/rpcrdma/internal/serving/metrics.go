package serving

import (
	"bytes"
	"fmt"
	"hash/maphash"
	"log/slog"
	"net"
	"net/http"
	"net/http/pprof"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/common/expfmt"

	"github.com/rpcrdma/rpcrdma/cmd/rpcrdma/internal/loadgen"
	"github.com/rpcrdma/rpcrdma/cmd/rpcrdma/internal/notify"
	"github.com/rpcrdma/rpcrdma/nfs"
	"github.com/rpcrdma/rpcrdma/rpc"
	"github.com/rpcrdma/rpcrdma/rpc/names"
	"github.com/rpcrdma/rpcrdma/rpc/promrpc"
	"github.com/rpcrdma/rpcrdma/rpc/status"
	"github.com/rpcrdma/rpcrdma/rpc/stream"
)

// Limits of the metrics port, so that load on it costs only a small part of a processor.
const (
	metricsConns   = 64               // open connections
	metricsAccepts = 300              // accepted connections per second, and at once
	metricsDrops   = 600              // rejected connections per second, and at once
	metricsRate    = 50               // answered requests per second, and at once
	metricsHost    = 4                // additional connections and requests for each host, per second, and at once
	metricsHeader  = 5 * time.Second  // time to send a request
	metricsWrite   = 10 * time.Second // time to write a response
	metricsProfile = time.Minute      // time to write a profile, after collecting it
	metricsIdle    = 30 * time.Second
	metricsFresh   = time.Second // how long metrics are reused
	profilesAtOnce = 2
)

// metrics reports on the service over HTTP.
type metrics struct {
	monitor   *status.Monitor
	collector *promrpc.Collector
	registry  *prometheus.Registry
	host      string  // host of the option, a name that browsers may use for us
	budget    *shares // for requests
	profiles  chan struct{}
	serving   atomic.Bool

	mu   sync.Mutex // held while metrics are collected; requests meanwhile share them
	made time.Time
	text []byte

	http     *http.Server
	listener *crowd
	running  sync.WaitGroup
}

// newMetrics returns metrics on l, which listens on the address of the option. They are served after start is called.
// It takes over l unless it fails.
func newMetrics(l net.Listener, addr string, log *slog.Logger) (*metrics, error) {
	table, err := names.New(names.Known(nfs.Program, nfs.MountProgram, loadgen.ProgramNumber, notify.RpcrdmaNotify, stream.ProgramNumber)...)
	if err != nil {
		return nil, err
	}
	m := &metrics{
		monitor:   status.New(status.Config{Title: "rpcrdma serve", Table: table}),
		collector: promrpc.New(promrpc.Config{Table: table}),
		registry:  prometheus.NewRegistry(),
		budget:    newShares(metricsRate, metricsHost),
		profiles:  make(chan struct{}, profilesAtOnce),
	}
	for _, c := range []prometheus.Collector{
		m.collector, collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}), collectors.NewBuildInfoCollector(),
	} {
		if err := m.registry.Register(c); err != nil {
			return nil, err
		}
	}
	m.host, _, _ = net.SplitHostPort(addr)
	m.listener = newCrowd(l, metricsConns, newShares(metricsAccepts, metricsHost))
	m.http = &http.Server{
		Handler: m.handler(), ReadHeaderTimeout: metricsHeader, ReadTimeout: metricsHeader, WriteTimeout: metricsProfile,
		IdleTimeout: metricsIdle, MaxHeaderBytes: 8 << 10, ConnState: m.listener.state,
		ErrorLog: slog.NewLogLogger(log.Handler(), slog.LevelDebug), // strangers must not be able to fill the log
	}
	return m, nil
}

// observer returns the Observer for the transport, or nil if there are no metrics.
func (m *metrics) observer() rpc.Observer {
	if m == nil {
		return nil
	}
	return rpc.Observers(m.monitor, m.collector)
}

// start serves until Close.
func (m *metrics) start() {
	m.serving.Store(true)
	m.running.Go(func() { _ = m.http.Serve(m.listener) }) // the error is that of Close
}

// stopping makes the health check fail. Requests in progress continue.
func (m *metrics) stopping() {
	if m != nil {
		m.serving.Store(false)
	}
}

// Close stops serving at once.
func (m *metrics) Close() error {
	err := m.http.Close()
	m.listener.Close()
	m.running.Wait()
	return err
}

// handler returns the handler for all pages.
func (m *metrics) handler() http.Handler {
	pages := http.NewServeMux()
	pages.HandleFunc("GET /{$}", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/html; charset=utf-8")
		fmt.Fprint(w, `<!DOCTYPE html><title>rpcrdma serve</title><ul><li><a href="/debug/rpcrdma">/debug/rpcrdma</a><li><a href="/metrics">/metrics</a>`+
			`<li><a href="/healthz">/healthz</a><li><a href="/debug/pprof/">/debug/pprof/</a></ul>`)
	})
	pages.HandleFunc("GET /healthz", m.health)
	pages.HandleFunc("GET /metrics", m.metrics)
	pages.Handle("GET /debug/rpcrdma", m.known(m.monitor))
	profile := func(path string, h http.HandlerFunc) { pages.Handle("GET /debug/pprof/"+path, m.known(m.profile(h))) }
	profile("", pprof.Index)
	profile("cmdline", pprof.Cmdline)
	profile("profile", pprof.Profile)
	profile("symbol", pprof.Symbol)
	profile("trace", pprof.Trace)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(metricsWrite))
		// Health checks wait for nothing. The limit on connections limits them.
		if r.URL.Path == "/healthz" {
			w.Header().Set("Connection", "close")
		} else if !m.budget.take(m.budget.of(r.RemoteAddr)) {
			w.Header().Set("Connection", "close")
			http.Error(w, "too many requests", http.StatusTooManyRequests)
			return
		}
		pages.ServeHTTP(w, r)
	})
}

func (m *metrics) health(w http.ResponseWriter, _ *http.Request) {
	if !m.serving.Load() {
		http.Error(w, "shutting down", http.StatusServiceUnavailable)
		return
	}
	fmt.Fprintln(w, "ok")
}

// metrics responds in the text format that every version of Prometheus reads.
func (m *metrics) metrics(w http.ResponseWriter, _ *http.Request) {
	text, err := m.collect()
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", string(expfmt.NewFormat(expfmt.TypeTextPlain)))
	w.Header().Set("Content-Length", strconv.Itoa(len(text)))
	_, _ = w.Write(text)
}

// collect returns metrics not older than a second. They are not modified later.
func (m *metrics) collect() ([]byte, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	now := time.Now()
	if m.text != nil && now.Sub(m.made) < metricsFresh {
		return m.text, nil
	}
	families, err := m.registry.Gather()
	if err != nil {
		return nil, err
	}
	var b bytes.Buffer
	for _, f := range families {
		if _, err := expfmt.MetricFamilyToText(&b, f); err != nil {
			return nil, err
		}
	}
	m.text, m.made = b.Bytes(), now
	return m.text, nil
}

// profile calls h to make a profile, unless too many are being made.
func (m *metrics) profile(h http.HandlerFunc) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		select {
		case m.profiles <- struct{}{}:
			defer func() { <-m.profiles }()
		default:
			http.Error(w, "other profiles are being made", http.StatusServiceUnavailable)
			return
		}
		_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(metricsProfile))
		h(w, r)
	})
}

// known rejects requests for other hosts. Otherwise a web site with a name that resolves to this host (DNS rebinding)
// could read the page in its visitors' browsers.
func (m *metrics) known(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !m.ours(r.Host) {
			http.Error(w, "this host is known by its address, as localhost, by its own name and by that of --metrics-addr", http.StatusForbidden)
			return
		}
		h.ServeHTTP(w, r)
	})
}

func (m *metrics) ours(host string) bool {
	if name, _, err := net.SplitHostPort(host); err == nil {
		host = name
	}
	host = strings.TrimSuffix(strings.Trim(host, "[]"), ".")
	if _, err := netip.ParseAddr(host); err == nil {
		return true
	}
	own, _ := os.Hostname()
	for _, name := range []string{"localhost", own, m.host} {
		if name != "" && strings.EqualFold(host, name) {
			return true
		}
	}
	return false
}

// ---- bounds

// turns permits a number of events per second, and a burst after a pause.
type turns struct {
	each  time.Duration
	burst int

	mu   sync.Mutex
	next time.Time // when all permitted events would have happened at the regular rate
}

func newTurns(perSecond, burst int) *turns {
	return &turns{each: time.Second / time.Duration(perSecond), burst: burst}
}

// delay takes the next turn, and returns the time until it.
func (t *turns) delay() time.Duration {
	t.mu.Lock()
	defer t.mu.Unlock()
	now := t.now()
	t.next = t.next.Add(t.each)
	return max(0, t.next.Sub(now))
}

// take uses a turn if one is available now, and reports whether it did.
func (t *turns) take() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.next.After(t.now()) {
		return false
	}
	t.next = t.next.Add(t.each)
	return true
}

// now returns the time, and discards unused turns beyond a burst.
func (t *turns) now() time.Time {
	now := time.Now()
	if early := now.Add(-t.each * time.Duration(t.burst)); t.next.Before(early) {
		t.next = early
	}
	return now
}

// shareCount is the number of shares. If there are more hosts, some have one in common.
const shareCount = 256

// shares is turns for all hosts, and a few more for each host, which others cannot take.
type shares struct {
	all  *turns
	each [shareCount]turns
	seed maphash.Seed
}

func newShares(perSecond, perHost int) *shares {
	s := &shares{all: newTurns(perSecond, perSecond), seed: maphash.MakeSeed()}
	for i := range s.each {
		s.each[i].each, s.each[i].burst = time.Second/time.Duration(perHost), perHost
	}
	return s
}

// of returns the share of the host with an address. For IPv6, a network of 64 bits is a host.
func (s *shares) of(addr string) int {
	var host netip.Prefix
	if a, err := netip.ParseAddrPort(addr); err == nil {
		ip := a.Addr().Unmap()
		host, _ = ip.Prefix(min(ip.BitLen(), 64))
	}
	return int(maphash.Comparable(s.seed, host) % shareCount)
}

// take uses a turn of the share, or of all, if one is available now, and reports whether it did.
func (s *shares) take(share int) bool { return s.each[share].take() || s.all.take() }

// crowd is a listener with up to max connections. When there are that many, a new one replaces one of the host with the
// most. Connections that exceed their turns are closed at once, because those that wait in the kernel would make others
// wait.
type crowd struct {
	net.Listener
	max    int
	shares *shares
	drops  *turns // rate at which connections are closed; beyond it all wait in the kernel

	mu      sync.Mutex
	conns   map[*crowdConn]struct{}
	counter uint64
}

// crowdConn notifies its crowd when it is closed.
type crowdConn struct {
	net.Conn
	crowd *crowd
	share int
	busy  bool   // a request is in progress
	since uint64 // number of the state change that made it so
}

func newCrowd(l net.Listener, n int, s *shares) *crowd {
	return &crowd{Listener: l, max: n, shares: s, drops: newTurns(metricsDrops, metricsDrops), conns: make(map[*crowdConn]struct{})}
}

// Accept implements net.Listener.
func (c *crowd) Accept() (net.Conn, error) {
	for {
		conn, err := c.Listener.Accept()
		if err != nil {
			return nil, err
		}
		share := c.shares.of(conn.RemoteAddr().String())
		if c.shares.take(share) {
			if admitted := c.admit(conn, share); admitted != nil {
				return admitted, nil
			}
		}
		if tcp, ok := conn.(*net.TCPConn); ok {
			_ = tcp.SetLinger(0) // leave no state in the kernel
		}
		conn.Close()
		time.Sleep(c.drops.delay())
	}
}

// admit makes room for a connection. It returns nil if none exists.
func (c *crowd) admit(conn net.Conn, share int) net.Conn {
	var out *crowdConn
	c.mu.Lock()
	if len(c.conns) >= c.max {
		if out = c.leaving(share); out == nil {
			c.mu.Unlock()
			return nil
		}
		delete(c.conns, out)
	}
	c.counter++
	admitted := &crowdConn{Conn: conn, crowd: c, share: share, since: c.counter}
	c.conns[admitted] = struct{}{}
	c.mu.Unlock()
	if out != nil {
		out.Conn.Close()
	}
	return admitted
}

// leaving returns the connection to close for one of a share: of the share with the most, the one that has been without
// a request for longest. A connection with a request in progress makes room only for a share with fewer connections. mu
// is held.
func (c *crowd) leaving(share int) (out *crowdConn) {
	var count [shareCount]int
	most := 0
	for cc := range c.conns {
		count[cc.share]++
		most = max(most, count[cc.share])
	}
	for cc := range c.conns {
		switch {
		case count[cc.share] < most || cc.busy && count[share] >= most:
		case out == nil || out.busy && !cc.busy || out.busy == cc.busy && cc.since < out.since:
			out = cc
		}
	}
	return out
}

// state implements http.Server.ConnState.
func (c *crowd) state(conn net.Conn, s http.ConnState) {
	cc, ok := conn.(*crowdConn)
	if !ok || s != http.StateActive && s != http.StateIdle {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.counter++
	cc.busy, cc.since = s == http.StateActive, c.counter
}

// Close implements net.Conn.
func (c *crowdConn) Close() error {
	c.crowd.mu.Lock()
	delete(c.crowd.conns, c)
	c.crowd.mu.Unlock()
	return c.Conn.Close()
}

// where returns the address of the metrics.
func (m *metrics) where() string {
	if m == nil {
		return ""
	}
	return ", metrics at http://" + m.listener.Addr().String() + "/"
}
