// Package status shows what package transport does in a process. A [Monitor] is an Observer that remembers connections,
// calls in flight, slow and failed calls, refusals and latencies, and an [http.Handler] that serves all of that as a
// page or as JSON.
//
//	table, err := names.New(names.Known(100003)...)
//	...
//	m := status.New(status.Config{Table: table})
//	srv, err := transport.NewServer(&transport.ServerConfig{Config: transport.Config{Observer: m}})
//	...
//	http.Handle("/debug/rpcrdma", m)
//
// The page needs no JavaScript and loads nothing from other servers. The memory of a Monitor is bounded, whatever peers
// do. The page shows addresses of peers, and errors that quote what peers sent. It is meant for operators: serve it
// where only they can reach it, such as on a loopback address.
package status

import (
	"cmp"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rpcrdma/rpcrdma/internal/connset"
	"github.com/rpcrdma/rpcrdma/rpc"
	"github.com/rpcrdma/rpcrdma/rpc/names"
)

// Defaults of Config, and other limits.
const (
	DefaultMaxCalls   = 4096 // calls in flight that are listed
	DefaultMaxConns   = 256  // connections that are listed
	DefaultMaxRecords = 64   // entries of each list of past events

	// SlowWindow is the length of a window of the slowest calls: the list has those of the current window and of the
	// previous one.
	SlowWindow = 5 * time.Minute

	maxError    = 400 // bytes of an error that are kept
	maxPerSec   = 256 // entries that a list accepts per second
	maxShownNow = 512 // calls in flight that are shown
)

// A Config configures a Monitor. The zero value selects the defaults.
type Config struct {
	// Title is the heading of the page. Empty: "rpcrdma".
	Title string

	// Table lists the procedures with latencies of their own. Nil: the latencies of all procedures are kept together.
	Table *names.Table

	// MaxCalls is the maximum number of calls in flight that are listed; more are only counted. A call needs about 150
	// bytes.
	MaxCalls int

	// MaxConns is the maximum number of connections that are listed: those with the most calls in flight, and among
	// equals those with the most calls. The others are part of the totals.
	MaxConns int

	// MaxRecords is the length of each list of past events: the slowest calls, and the latest failed calls, refused
	// messages, rejected connections and ended connections.
	MaxRecords int
}

// A Monitor is an rpc.Observer for any number of clients and servers, and an http.Handler that shows what it has seen.
// It allocates nothing for a call that succeeds and is not among the slowest.
type Monitor struct {
	rpc.NoObserver
	cfg   Config
	began time.Time

	calls      callTable
	procedures []atomic.Pointer[latency] // two for each entry of the table: executed, made
	slow       slowList
	failed     ring[Call]
	refused    ring[Refusal]
	rejected   ring[Refusal]
	ended      ring[EndedConn]

	creditStalls, memoryStalls, registrations, registeredBytes atomic.Uint64

	bytes history // of calls and replies

	conns   connset.Set
	mu      sync.Mutex
	reasons map[string]int // how connections ended

	page page
}

// New returns a Monitor.
func New(cfg Config) *Monitor {
	cfg.Title = cmp.Or(cfg.Title, "rpcrdma")
	cfg.MaxCalls = cmp.Or(max(cfg.MaxCalls, 0), DefaultMaxCalls)
	cfg.MaxConns = cmp.Or(max(cfg.MaxConns, 0), DefaultMaxConns)
	cfg.MaxRecords = cmp.Or(max(cfg.MaxRecords, 0), DefaultMaxRecords)
	if cfg.Table == nil {
		cfg.Table, _ = names.New() // cannot fail without programs
	}
	m := &Monitor{
		cfg: cfg, began: time.Now(),
		procedures: make([]atomic.Pointer[latency], 2*cfg.Table.Len()),
		reasons:    make(map[string]int),
	}
	m.calls.bound(cfg.MaxCalls)
	m.slow.n = cfg.MaxRecords
	m.failed.n, m.refused.n, m.rejected.n, m.ended.n = cfg.MaxRecords, cfg.MaxRecords, cfg.MaxRecords, cfg.MaxRecords
	return m
}

var (
	_ rpc.Observer = (*Monitor)(nil)
	_ http.Handler = (*Monitor)(nil)
)

// ConnBegan implements rpc.Observer.
func (m *Monitor) ConnBegan(e rpc.ConnEvent) { m.conns.Began(e) }

// ConnEnded implements rpc.Observer.
func (m *Monitor) ConnEnded(e rpc.ConnEvent) {
	now := time.Now()
	c := m.conns.Ended(e)
	outcome := e.Outcome()
	m.mu.Lock()
	m.reasons[outcome]++
	m.mu.Unlock()
	m.ended.add(now, func() EndedConn {
		return EndedConn{
			Time: now, ID: c.ID, Server: e.Server, Peer: address(e.Conn), Age: Seconds(now.Sub(e.Began)),
			Calls: c.Stats.Calls, Outcome: outcome, Error: text(e.Err),
		}
	})
}

// CallBegan implements rpc.Observer.
func (m *Monitor) CallBegan(e *rpc.CallEvent) { m.calls.begin(e) }

// CallEnded implements rpc.Observer.
func (m *Monitor) CallEnded(e *rpc.CallEvent) {
	m.calls.end(e)
	outcome := e.Outcome()
	end, failed := e.Began.Add(e.Total), outcome != "success"
	m.latency(e).add(e, end.Unix(), failed)
	m.bytes.add(end.Unix(), uint64(e.Request.Bytes+e.Reply.Bytes))
	if failed {
		m.failed.add(end, func() Call { return m.record(e, outcome) })
	}
	m.slow.offer(e, func() Call { return m.record(e, outcome) })
}

// Noticed implements rpc.Observer.
func (m *Monitor) Noticed(n rpc.Notice) {
	list := &m.refused
	switch n.Kind {
	case rpc.NoticeRefused:
	case rpc.NoticeRejected:
		list = &m.rejected
	case rpc.NoticeCreditStall:
		m.creditStalls.Add(1)
		return
	case rpc.NoticeMemoryStall:
		m.memoryStalls.Add(1)
		return
	case rpc.NoticeRegistered:
		m.registrations.Add(1)
		m.registeredBytes.Add(uint64(n.Bytes))
		return
	default:
		return
	}
	now := time.Now()
	list.add(now, func() Refusal {
		return Refusal{Time: now, Peer: n.Peer, XID: n.XID, Error: text(n.Err)}
	})
}

// record returns the record of a call that has ended.
func (m *Monitor) record(e *rpc.CallEvent, outcome string) Call {
	c := Call{
		Time: e.Began, Prog: e.Prog, Vers: e.Vers, Proc: e.Proc, XID: e.XID,
		Executed: e.Executed, Backward: e.Backward, Peer: address(e.Conn), Conn: m.conns.ID(e.Conn),
		Total: Seconds(e.Total), Waited: Seconds(e.Waited), Wire: Seconds(e.Wire), Handler: Seconds(e.Handler),
		Request: travel(e.Request), Reply: travel(e.Reply), Outcome: outcome, Error: text(e.Err),
		Resent: e.Resent, Replayed: e.Replayed,
	}
	m.name(&c)
	return c
}

// name sets the names of a call's procedure, if the table has them.
func (m *Monitor) name(c *Call) {
	n := m.cfg.Table.At(m.cfg.Table.Index(c.Prog, c.Vers, c.Proc))
	if n.Program != names.Other {
		c.Program = n.Program
	}
	if n.Procedure != names.Other {
		c.Procedure = n.Procedure
	}
}

// address returns the address of the other end of a connection, if there is one.
func address(cn rpc.Conn) string {
	if cn == nil {
		return ""
	}
	return spell(cn.RemoteAddr())
}

// spell returns the text of an address, which may be nil.
func spell(a net.Addr) string {
	if a == nil {
		return ""
	}
	return a.String()
}

// text returns the part of an error that is kept. Some of it may come from a peer.
func text(err error) string {
	if err == nil {
		return ""
	}
	s := err.Error()
	if len(s) > maxError {
		s = s[:maxError] + "..."
	}
	return strings.ToValidUTF8(s, "\uFFFD")
}

func travel(t rpc.Transfer) Travel {
	return Travel{Bytes: t.Bytes, ChunkBytes: t.Chunks, By: t.By.String()}
}

// counters returns Stats by name, such as "read_chunk", except those that belong to the owner rather than to a
// connection.
func counters(s rpc.Stats) map[string]uint64 {
	named := make(map[string]uint64)
	for c, n := range s.Counters() {
		if c.Kind != rpc.CountsConns {
			named[c.Name] = n
		}
	}
	return named
}
