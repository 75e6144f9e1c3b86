// Package status shows what a process does with package transport: a [Monitor] is an
// Observer that remembers connections, calls under way, slow and failed calls, refusals and
// latencies, and an [http.Handler] with all of that as a page or as JSON.
//
//	table, err := names.New(names.Known(100003)...)
//	...
//	m := status.New(status.Config{Table: table})
//	srv, err := transport.NewServer(&transport.ServerConfig{Config: transport.Config{Observer: m}})
//	...
//	http.Handle("/debug/rpcrdma", m)
//
// The page needs no JavaScript and loads nothing from other servers. The memory of a Monitor is
// bounded, whatever peers do. The page shows addresses of peers, and errors that quote what peers
// sent. It is meant for operators: serve it where only they can reach it, such as on a loopback
// address.
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

// Defaults of Config, and other bounds.
const (
	DefaultMaxCalls   = 4096 // calls under way that are known one by one
	DefaultMaxConns   = 256  // connections that are shown
	DefaultMaxRecords = 64   // entries of each list of what has happened

	// SlowWindow is the age at which a call begins to be forgotten among the slowest: these
	// are the slowest of the current window and of the one before.
	SlowWindow = 5 * time.Minute

	maxError    = 400 // bytes of an error that are kept
	maxPerSec   = 256 // entries that a list takes in a second
	maxShownNow = 512 // calls under way that are shown
)

// A Config configures a Monitor. The zero value is the defaults.
type Config struct {
	// Title is the heading of the page. Empty: "rpcrdma".
	Title string

	// Table has the procedures that latencies are kept for, each for itself. Nil: they are
	// kept for all procedures together.
	Table *names.Table

	// MaxCalls is how many calls under way are known one by one; more are counted. A call
	// takes about 150 bytes.
	MaxCalls int

	// MaxConns is how many connections are shown: those with the most calls under way, and among
	// equals those with the most calls. The others are part of the totals.
	MaxConns int

	// MaxRecords is the length of each list of what has happened: the slowest calls, and the
	// latest that have failed, messages refused, connections rejected and connections ended.
	MaxRecords int
}

// A Monitor remembers what it sees as an rpc.Observer, of any number of clients and
// servers, and shows it as an http.Handler. It allocates nothing for a call that succeeds and is
// not among the slowest.
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
	reasons map[string]int // how connections have ended

	page page
}

// New returns a Monitor.
func New(cfg Config) *Monitor {
	cfg.Title = cmp.Or(cfg.Title, "rpcrdma")
	cfg.MaxCalls = cmp.Or(max(cfg.MaxCalls, 0), DefaultMaxCalls)
	cfg.MaxConns = cmp.Or(max(cfg.MaxConns, 0), DefaultMaxConns)
	cfg.MaxRecords = cmp.Or(max(cfg.MaxRecords, 0), DefaultMaxRecords)
	if cfg.Table == nil {
		cfg.Table, _ = names.New() // which cannot fail without programs
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

// ConnBegan is a method of rpc.Observer.
func (m *Monitor) ConnBegan(e rpc.ConnEvent) { m.conns.Began(e) }

// ConnEnded is a method of rpc.Observer.
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

// CallBegan is a method of rpc.Observer.
func (m *Monitor) CallBegan(e *rpc.CallEvent) { m.calls.begin(e) }

// CallEnded is a method of rpc.Observer.
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

// Noticed is a method of rpc.Observer.
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

// address is that of the other end of a connection, if there is one.
func address(cn rpc.Conn) string {
	if cn == nil {
		return ""
	}
	return spell(cn.RemoteAddr())
}

// spell returns the text of an address, which a provider may leave nil.
func spell(a net.Addr) string {
	if a == nil {
		return ""
	}
	return a.String()
}

// text is the part of an error that is kept. Some of it may be from a peer.
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

// counters are Stats by name, as "read_chunk", but for those that are of the owner, not of a connection.
func counters(s rpc.Stats) map[string]uint64 {
	named := make(map[string]uint64)
	for c, n := range s.Counters() {
		if c.Kind != rpc.CountsConns {
			named[c.Name] = n
		}
	}
	return named
}
