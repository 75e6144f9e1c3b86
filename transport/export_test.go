package transport

import (
	"fmt"
	"log/slog"
	"strings"
	"time"

	"github.com/rpcrdma/rpcrdma/proto/rpcrdma"
	"github.com/rpcrdma/rpcrdma/rpc"
)

// ArenaSlabs is how many slabs the client's arena has. An ended connection without
// calls has none.
func (cl *Client) ArenaSlabs() int {
	return cl.conn().arena.Stats().Slabs
}

// conn is the client's latest connection, over RDMA.
func (cl *Client) conn() *conn { return cl.latest().(*conn) }

// rdma is the connection, over RDMA.
func (cn *Conn) rdma() *conn { return cn.c.(*conn) }

// Once is cfg for a client that has one connection.
func Once(cfg *Settings) *Settings {
	var c Settings
	if cfg != nil {
		c = *cfg
	}
	c.NoReconnect = true
	return &c
}

// Latest is the client's connection as a handler would see it.
func (cl *Client) Latest() *Conn { return cl.link.cur.Load() }

// ArenaUse is how many bytes the arena of a connection has mapped, and how many of its
// buffers are in use.
func ArenaUse(cn *Conn) (mapped, buffers int) {
	if c, ok := cn.c.(*tcpConn); ok {
		a := c.arena.Stats()
		return a.Bytes, a.Buffers
	}
	a := cn.rdma().arena.Stats()
	return a.Bytes, a.Buffers
}

// inspect has f look at what only the leader may touch.
func (c *conn) inspect(f func(l *leader, st *state)) {
	st := c.state.Lock()
	if st.taken() {
		c.state.Unlock()
		looked := make(chan struct{})
		c.ask(func(l *leader) {
			f(l, c.state.Lock())
			c.state.Unlock()
			close(looked)
		})
		select {
		case <-looked:
			return
		case <-c.done:
		}
		c.state.Lock()
	}
	l := st.baton.Take()
	f(l, st)
	st.baton.Give(l)
	c.state.Unlock()
}

// StartXIDs has the calls of this end of a connection, and of those that come after it, go on from
// xid: math.MaxUint32-n is for the nth call from now to be the last before the counter wraps. For
// connections that are not made yet, [Random] does the same.
func StartXIDs(cn *Conn, xid uint32) { cn.c.counter().last.Store(xid - 1) }

// SameXIDs has the next calls of both ends begin with the same xids. False means that
// there are calls under way.
func SameXIDs(cl *Client, cn *Conn) bool {
	for _, c := range []*conn{cl.conn(), cn.rdma()} {
		busy := c.state.Lock().calls.inUse > 0
		c.state.Unlock()
		if busy {
			return false
		}
	}
	StartXIDs(cn, cl.conn().counter().last.Load()+1)
	return true
}

// InLine is how many callers wait for a credit.
func InLine(cn *Conn) int {
	t := &cn.rdma().state.Lock().calls
	defer cn.rdma().state.Unlock()
	return t.queue.Len()
}

// Random is cfg with random numbers from f: xids, and pauses between attempts to connect.
func Random(cfg *Settings, f func() uint64) *Settings {
	c := *cfg
	c.random = f
	return &c
}

// XID is the xid that a call was last sent with, 0 if it was not sent.
func XID(call *rpc.Call) uint32 {
	p := pendingOf(call)
	if !p.sent {
		return 0
	}
	return p.xid
}

// Held is how many bytes the calls hold that this end of a connection is answering.
func Held(cn *Conn) int64 { return cn.rdma().tenant.Held() }

// Busy says what a connection still holds on which nothing is under way, "" if all is well.
func Busy(cn *Conn) string {
	var what []string
	note := func(bad bool, format string, args ...any) {
		if bad {
			what = append(what, fmt.Sprintf(format, args...))
		}
	}
	if c, ok := cn.c.(*tcpConn); ok {
		c.busy(note)
		return strings.Join(what, "; ")
	}
	c := cn.rdma()
	c.inspect(func(l *leader, st *state) {
		c.sends.mu.Lock()
		defer c.sends.mu.Unlock()
		waiting := int(c.sends.waiting.Load())
		held := c.tenant.Held()
		note(held != 0, "its calls hold %d bytes", held)
		note(len(l.exchs)-len(l.free) != waiting, "%d calls are being answered", len(l.exchs)-len(l.free)-waiting)
		note(len(l.memq) > 0, "%d calls wait for memory", len(l.memq))
		note(st.calls.inUse > 0, "%d calls have no reply", st.calls.inUse)
		note(!st.calls.queue.Empty(), "callers wait for credits")
		note(st.baton.Waiting(), "callers wait for the connection")
		note(len(c.sends.pending) > 0, "%d requests have not been posted", len(c.sends.pending))
		posted, queued := l.reads.Len()
		note(posted > 0 || queued > 0, "%d Reads are under way, %d messages wait", posted, queued)
		used := st.recvs.n
		for _, s := range st.calls.all {
			note(s.lent.Len() > 0, "a loan is open")
			note(s.lent.Late() > 0, "bounce buffers are kept for a late reply")
			if s.send != nil {
				used++
			}
		}
		for _, x := range l.exchs {
			if x.out != nil {
				used++
			}
			note(x.held != 0, "a call that is over holds %d bytes", x.held)
		}
		a := c.arena.Stats()
		note(a.Buffers != used, "%d buffers are in use, %d by what stays", a.Buffers, used)
		note(a.Refs != 1, "%d hold the arena", a.Refs)
		if b := c.exposes.Bounce; b != nil {
			note(b.Stats().Buffers > 0, "%d bounce buffers are in use", b.Stats().Buffers)
		}
	})
	return strings.Join(what, "; ")
}

// busy is Busy over TCP.
func (c *tcpConn) busy(note func(bad bool, format string, args ...any)) {
	pending := c.awaits()
	t := &c.state.Lock().calls
	note(t.inUse > 0 || pending > 0, "%d calls, of which %d have no reply", t.inUse, pending)
	note(!t.queue.Empty(), "callers wait for their turn")
	c.state.Unlock()
	a := &c.answers
	held, buffers := a.c.tenant.Held(), a.c.arena.Stats().Buffers
	a.mu.Lock()
	defer a.mu.Unlock()
	note(held != 0, "its calls hold %d bytes", held)
	note(buffers != 0, "%d buffers are in use", buffers)
	note(a.flight > 0, "%d calls are being answered", a.flight)
	note(len(a.free) != len(a.exchs), "%d of %d exchanges are free", len(a.free), len(a.exchs))
	note(len(a.memq) > 0, "%d calls wait for memory", len(a.memq))
	note(!c.w.Rests(), "something has not been written")
}

// InitialGrant is how many calls a peer may have in flight before its first reply.
const InitialGrant = initialGrant

// MemoryUse returns the memory that a server keeps for its clients, as it counts it.
func MemoryUse(s *Server) int64 {
	st := s.memory.Stats()
	return st.Held + st.Base + st.Idle
}

// Settings are those of either end, in one: most tests give the same to both.
type Settings struct {
	InlineSend, InlineRecv              int
	Credits, BackwardCredits            int
	MaxMessage, MaxMemory, MaxSegment   int
	Limits                              rpcrdma.Limits
	NoPrivateData, NoRemoteInvalidation bool
	PeerChunks                          PeerChunks
	ReplyCache                          ReplyCache
	Version                             Version
	Operations                          []Operation
	RFC5666                             *RFC5666
	SetupTimeout, StallTimeout          time.Duration
	Logger                              *slog.Logger
	Observer                            rpc.Observer
	Middleware                          []rpc.Middleware
	BounceMax                           int
	TLS                                 *TLS

	// A client's.
	Callbacks              []rpc.Program
	NoReconnect            bool
	MaxPause               time.Duration
	OnReconnect            func(cl *Client)
	KeepAlive, IdleTimeout time.Duration
	VersionCache           *VersionCache

	// A server's.
	MaxTotalMemory, MaxConns int

	random func() uint64
}

// common returns the settings of both ends.
func (s *Settings) common() Config {
	return Config{
		InlineSend: s.InlineSend, InlineRecv: s.InlineRecv, Credits: s.Credits, BackwardCredits: s.BackwardCredits,
		MaxMessage: s.MaxMessage, MaxMemory: s.MaxMemory, MaxSegment: s.MaxSegment, Limits: s.Limits,
		NoPrivateData: s.NoPrivateData, NoRemoteInvalidation: s.NoRemoteInvalidation, PeerChunks: s.PeerChunks,
		ReplyCache: s.ReplyCache, Version: s.Version, Operations: s.Operations, RFC5666: s.RFC5666,
		SetupTimeout: s.SetupTimeout, StallTimeout: s.StallTimeout, Logger: s.Logger, Observer: s.Observer, Middleware: s.Middleware,
		BounceMax: s.BounceMax, TLS: s.TLS,
		random: s.random,
	}
}

// Client returns the settings of a client.
func (s *Settings) Client() *ClientConfig {
	if s == nil {
		return nil
	}
	return &ClientConfig{
		Config: s.common(), Callbacks: s.Callbacks, NoReconnect: s.NoReconnect, MaxPause: s.MaxPause,
		OnReconnect: s.OnReconnect, KeepAlive: s.KeepAlive, IdleTimeout: s.IdleTimeout, VersionCache: s.VersionCache,
	}
}

// Server returns the settings of a server.
func (s *Settings) Server() *ServerConfig {
	if s == nil {
		return nil
	}
	return &ServerConfig{Config: s.common(), MaxTotalMemory: s.MaxTotalMemory, MaxConns: s.MaxConns}
}
