package status

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"time"

	"github.com/rpcrdma/rpcrdma/fabric"
	"github.com/rpcrdma/rpcrdma/internal/connset"
	"github.com/rpcrdma/rpcrdma/rpc"
	"github.com/rpcrdma/rpcrdma/rpc/names"
)

// Seconds is a duration that is a number of seconds in JSON.
type Seconds time.Duration

// Duration returns it as a time.Duration.
func (s Seconds) Duration() time.Duration { return time.Duration(s) }

// MarshalJSON returns the seconds, with up to nine decimals.
func (s Seconds) MarshalJSON() ([]byte, error) {
	return strconv.AppendFloat(nil, time.Duration(s).Seconds(), 'f', -1, 64), nil
}

// UnmarshalJSON parses the output of MarshalJSON.
func (s *Seconds) UnmarshalJSON(b []byte) error {
	f, err := strconv.ParseFloat(string(b), 64)
	if err != nil || f < -1e9 || f > 1e9 {
		return fmt.Errorf("status: %.20q is no number of seconds", b)
	}
	*s = Seconds(f * 1e9)
	return nil
}

// String formats it as a time.Duration, with three digits.
func (s Seconds) String() string {
	d := time.Duration(s)
	for unit := time.Nanosecond; ; unit *= 10 {
		if d.Abs() < 1000*unit || d.Abs() >= time.Hour {
			if d.Abs() >= time.Minute {
				unit = max(unit, time.Second)
			}
			return d.Round(unit).String()
		}
	}
}

// A Snapshot is everything that a Monitor shows, in the form of its JSON. Durations are in seconds.
type Snapshot struct {
	Title string    `json:"title"` // Config.Title
	Time  time.Time `json:"time"`
	Since time.Time `json:"since"` // when counting began

	Totals     Totals      `json:"totals"`
	Minute     Minute      `json:"last_minute"`
	Conns      []Conn      `json:"connections"`     // open connections
	Calls      []Call      `json:"calls_in_flight"` // oldest first
	Slowest    []Call      `json:"slowest_calls"`
	Failed     []Call      `json:"failed_calls"` // this and the following lists: latest first
	Refused    []Refusal   `json:"refused_messages"`
	Rejected   []Refusal   `json:"rejected_connections"`
	Ended      []EndedConn `json:"ended_connections"`
	Procedures []Procedure `json:"procedures"` // procedures with calls

	help map[string]string // of Totals.Adapter
}

// A Minute has the counts of the 60 complete seconds before Snapshot.Time, oldest first.
type Minute struct {
	Executed []uint64 `json:"executed"` // calls executed by this end
	Made     []uint64 `json:"made"`     // calls made by this end
	Failed   []uint64 `json:"failed"`   // calls of both kinds that failed
	Bytes    []uint64 `json:"bytes"`    // bytes of all messages

	age int64 // seconds since Snapshot.Since
}

// Totals are figures of the whole process.
type Totals struct {
	Opened      uint64         `json:"connections_opened"` // since Snapshot.Since
	Open        int            `json:"connections_open"`   // now
	EndedBy     map[string]int `json:"connections_ended"`  // by outcome
	Executing   int64          `json:"calls_executing"`
	Calling     int64          `json:"calls_waiting_for_reply"`
	FailedCalls uint64         `json:"calls_failed"`
	Refused     uint64         `json:"messages_refused"`
	Rejected    uint64         `json:"connections_rejected"`

	// The number of times that calls waited for a credit and for memory, and that memory was registered.
	CreditStalls    uint64 `json:"credit_stalls"`
	MemoryStalls    uint64 `json:"memory_stalls"`
	Registrations   uint64 `json:"registrations"`
	RegisteredBytes uint64 `json:"registered_bytes"` // since Snapshot.Since

	ExposedBytes int64 `json:"exposed_bytes"` // that peers can reach now
	HeldBytes    int64 `json:"held_bytes"`    // held by calls that are executed

	Counters map[string]uint64 `json:"counters"` // rpc.Stats, by name
	Adapter  map[string]uint64 `json:"adapter"`  // fabric.Counting
}

// A Conn is an open connection. Sizes are in bytes.
type Conn struct {
	ID       uint64  `json:"id"` // numbered in the order of their beginning
	Server   bool    `json:"server"`
	Peer     string  `json:"peer"`
	Local    string  `json:"local"`
	Provider string  `json:"provider"`
	Version  uint32  `json:"version"`
	Age      Seconds `json:"age"`

	// What the ends agreed on: see rpc.ConnInfo.
	InlineSend         int  `json:"inline_send"`
	InlineRecv         int  `json:"inline_recv"`
	PrivateData        bool `json:"private_data"`
	Properties         bool `json:"properties"`
	Configured         bool `json:"configured"`
	RemoteInvalidation bool `json:"remote_invalidation"`
	MemoryWindows      bool `json:"memory_windows"`

	// Credits for calls in the usual direction and in the other one, and current calls.
	Credits         int `json:"credits"`
	BackwardCredits int `json:"backward_credits"`
	Executing       int `json:"calls_executing"`
	Calling         int `json:"calls_waiting_for_reply"`
	Waiting         int `json:"callers_waiting_for_credit"`

	ExposedBytes int64 `json:"exposed_bytes"` // that the peer can reach now
	HeldBytes    int64 `json:"held_bytes"`    // held by calls that are executed

	Counters map[string]uint64 `json:"counters"` // rpc.Stats of the connection, by name
	Adapter  []fabric.Counter  `json:"adapter"`  // fabric.Counting
}

// A Call is a call in flight, or one that has ended. For a call in flight, Total is its age.
type Call struct {
	Time      time.Time `json:"time"` // of its beginning
	Program   string    `json:"program,omitempty"`
	Procedure string    `json:"procedure,omitempty"`
	Prog      uint32    `json:"prog"`
	Vers      uint32    `json:"vers"`
	Proc      uint32    `json:"proc"`
	XID       uint32    `json:"xid"`
	Executed  bool      `json:"executed"` // by this end; false: made by it
	Backward  bool      `json:"backward"`
	Peer      string    `json:"peer,omitempty"`
	Conn      uint64    `json:"connection,omitempty"` // Conn.ID or EndedConn.ID

	// The parts of its duration: see rpc.CallEvent.
	Total   Seconds `json:"total"`
	Waited  Seconds `json:"waited"`
	Wire    Seconds `json:"wire"`
	Handler Seconds `json:"handler"`

	// How the messages traveled, and the outcome of the call.
	Request  Travel `json:"request"`
	Reply    Travel `json:"reply"`
	Outcome  string `json:"outcome,omitempty"`  // rpc.CallEvent.Outcome; empty while in flight
	Error    string `json:"error,omitempty"`    // the text of the error
	Resent   int    `json:"resent,omitempty"`   // number of times it was sent again
	Replayed bool   `json:"replayed,omitempty"` // answered from the reply cache
}

// What returns the name of the procedure, such as "NFS 3 READ", with numbers where there is no name.
func (c *Call) What() string {
	proc := c.Procedure
	if proc == "" {
		proc = "procedure " + strconv.FormatUint(uint64(c.Proc), 10)
	}
	if c.Program == "" {
		return fmt.Sprintf("program %d version %d %s", c.Prog, c.Vers, proc)
	}
	return fmt.Sprintf("%s %d %s", c.Program, c.Vers, proc)
}

// A Travel is an rpc.Transfer.
type Travel struct {
	Bytes      int    `json:"bytes"`       // of the RPC message, including all data in chunks
	ChunkBytes int    `json:"chunk_bytes"` // bytes moved by RDMA Read or Write
	By         string `json:"by"`          // rpc.Ways
}

// A Refusal is a refused message, or a rejected connection.
type Refusal struct {
	Time  time.Time `json:"time"`
	Peer  string    `json:"peer"`          // its address
	XID   uint32    `json:"xid,omitempty"` // of the message, if it had one
	Error string    `json:"error"`         // why
}

// An EndedConn is a connection that has ended.
type EndedConn struct {
	Time    time.Time `json:"time"` // of the end
	ID      uint64    `json:"id"`
	Server  bool      `json:"server"`
	Peer    string    `json:"peer"`
	Age     Seconds   `json:"age"`
	Calls   uint64    `json:"calls"`
	Outcome string    `json:"outcome"`
	Error   string    `json:"error,omitempty"`
}

// A Procedure has the latencies of one procedure at one end. Percentiles are the upper bounds of their classes.
type Procedure struct {
	Program   string   `json:"program"` // its name in Config.Table
	Vers      uint32   `json:"vers"`
	Procedure string   `json:"procedure"`
	Executed  bool     `json:"executed"` // by this end; false: made by it
	Calls     uint64   `json:"calls"`
	Rate      float64  `json:"per_second"` // over the last ten seconds
	Failed    uint64   `json:"failed"`     // among Calls
	Mean      Seconds  `json:"mean"`       // of the whole call, like the next three
	Median    Seconds  `json:"median"`
	P99       Seconds  `json:"p99"`
	Max       Seconds  `json:"max"`
	Waited    Seconds  `json:"mean_waited"` // before the call is sent or executed
	Inner     Seconds  `json:"mean_inner"`  // in the handler, or on the wire
	Total     Seconds  `json:"sum"`
	Classes   []uint64 `json:"classes"` // calls below 1 µs, below 2 µs, 4 µs and so on
}

// Snapshot returns the current state. It briefly acquires the locks of the data path of each connection.
func (m *Monitor) Snapshot() *Snapshot {
	now := time.Now()
	s := &Snapshot{Title: m.cfg.Title, Time: now, Since: m.began, Slowest: m.slow.slowest(now)}
	t := &s.Totals
	s.Failed, t.FailedCalls = m.failed.latest()
	s.Refused, t.Refused = m.refused.latest()
	s.Rejected, t.Rejected = m.rejected.latest()
	s.Ended, _ = m.ended.latest()
	t.CreditStalls, t.MemoryStalls = m.creditStalls.Load(), m.memoryStalls.Load()
	t.Registrations, t.RegisteredBytes = m.registrations.Load(), m.registeredBytes.Load()
	t.Calling, t.Executing = m.calls.all[0].Load(), m.calls.all[1].Load()

	underWay := m.calls.list()
	executing := make(map[rpc.Conn]int)
	for i := range underWay {
		if u := &underWay[i]; u.executed {
			executing[u.conn]++
		}
		if i < maxShownNow {
			s.Calls = append(s.Calls, m.shown(&underWay[i], now))
		}
	}
	m.connections(s, executing)
	m.latencies(s)
	// Programs iterate over lists, including empty ones.
	s.Conns, s.Calls, s.Slowest, s.Failed = list(s.Conns), list(s.Calls), list(s.Slowest), list(s.Failed)
	s.Refused, s.Rejected, s.Ended, s.Procedures = list(s.Refused), list(s.Rejected), list(s.Ended), list(s.Procedures)
	return s
}

// list returns a list that is [] in JSON if it is empty.
func list[T any](l []T) []T {
	if l == nil {
		return []T{}
	}
	return l
}

// shown returns the Call for a call in flight.
func (m *Monitor) shown(u *underWay, now time.Time) Call {
	c := Call{
		Time: u.began, Prog: u.Prog, Vers: u.Vers, Proc: u.Proc, XID: u.xid, Executed: u.executed, Backward: u.backward,
		Peer: address(u.conn), Conn: m.conns.ID(u.conn), Total: Seconds(now.Sub(u.began)), Request: travel(u.request),
	}
	m.name(&c)
	return c
}

// connections fills in the connections.
func (m *Monitor) connections(s *Snapshot, executing map[rpc.Conn]int) {
	open, all, opened := m.conns.Look()
	t := &s.Totals
	t.Opened, t.Open, t.EndedBy = opened, len(open), make(map[string]int)
	m.mu.Lock()
	maps.Copy(t.EndedBy, m.reasons)
	m.mu.Unlock()
	t.Counters, t.Adapter, s.help = counters(all.Stats), all.Adapter, all.Help
	t.ExposedBytes, t.HeldBytes = all.ExposedBytes, all.HeldBytes
	busy := func(c *connset.Entry) int { return executing[c.Conn] + c.Stats.InFlight + c.Stats.Waiting }
	slices.SortFunc(open, func(a, b connset.Entry) int {
		return cmp.Or(cmp.Compare(busy(&b), busy(&a)), cmp.Compare(b.Stats.Calls, a.Stats.Calls), cmp.Compare(a.ID, b.ID))
	})
	now := s.Time
	for i := range open[:min(len(open), m.cfg.MaxConns)] {
		o := &open[i]
		info := o.Conn.Info()
		s.Conns = append(s.Conns, Conn{
			ID: o.ID, Server: o.Server, Peer: spell(info.RemoteAddr), Local: spell(info.LocalAddr),
			Provider: info.Provider, Version: info.Version, Age: Seconds(now.Sub(o.Began)),
			InlineSend: info.InlineSend, InlineRecv: info.InlineRecv, PrivateData: info.PrivateData, Properties: info.Properties,
			Configured: info.Configured, RemoteInvalidation: info.RemoteInvalidation, MemoryWindows: info.Capabilities.MemoryWindows,
			Credits: info.Credits, BackwardCredits: info.BackwardCredits, Executing: executing[o.Conn],
			Calling: o.Stats.InFlight, Waiting: o.Stats.Waiting, ExposedBytes: o.Stats.ExposedBytes, HeldBytes: o.Stats.HeldBytes,
			Counters: counters(o.Stats.Stats), Adapter: list(o.Stats.Adapter),
		})
	}
}

// latencies fills in the procedures that have been called.
func (m *Monitor) latencies(s *Snapshot) {
	now := s.Time.Unix()
	add := func(to, more []uint64) {
		for i := range more {
			to[i] += more[i]
		}
	}
	s.Minute = Minute{make([]uint64, minute), make([]uint64, minute), make([]uint64, minute), m.bytes.list(now), now - s.Since.Unix()}
	for i := range m.procedures {
		l := m.procedures[i].Load()
		if l == nil {
			continue
		}
		name := m.cfg.Table.At(i / 2)
		p := Procedure{
			Program: name.Program, Vers: name.Vers, Procedure: name.Procedure, Executed: i%2 == 1,
			Failed: l.failed.Load(), Max: Seconds(l.longest.Load()), Total: Seconds(l.total.Load()),
			Classes: make([]uint64, buckets),
		}
		for j := range l.classes {
			p.Classes[j] = l.classes[j].Load()
			p.Calls += p.Classes[j]
		}
		if p.Calls == 0 {
			continue
		}
		lately := l.calls.list(now)
		p.Rate = rate(lately, s.Minute.age)
		if p.Executed {
			add(s.Minute.Executed, lately)
		} else {
			add(s.Minute.Made, lately)
		}
		add(s.Minute.Failed, l.failures.list(now))
		n := int64(p.Calls)
		p.Mean, p.Waited, p.Inner = Seconds(l.total.Load()/n), Seconds(l.waited.Load()/n), Seconds(l.inner.Load()/n)
		p.Median, p.P99 = p.percentile(50), p.percentile(99)
		s.Procedures = append(s.Procedures, p)
	}
	slices.SortStableFunc(s.Procedures, func(a, b Procedure) int { return cmp.Compare(b.Total, a.Total) })
	for i := range s.Procedures {
		if p := &s.Procedures[i]; p.Program == names.Other {
			p.Vers = 0
		}
	}
}

// percentile returns the upper bound of the class of the call that takes longer than percent of all, or the longest
// time if that is less.
func (p *Procedure) percentile(percent uint64) Seconds {
	left := (p.Calls*percent + 99) / 100
	for i, n := range p.Classes {
		if n >= left && i < buckets-1 {
			return min(Seconds(bucketEnd(i)), max(p.Max, 1))
		}
		left -= min(left, n)
	}
	return p.Max
}
