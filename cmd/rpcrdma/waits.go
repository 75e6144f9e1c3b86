package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"runtime"
	"sync"
	"time"

	"github.com/spf13/pflag"

	"github.com/rpcrdma/rpcrdma/nfs"
	"github.com/rpcrdma/rpcrdma/proto/dump"
	"github.com/rpcrdma/rpcrdma/transport"
)

// limitValue is a time limit as a flag. Zero is no limit.
type limitValue struct{ d *time.Duration }

// newLimit returns a time limit as a flag.
func newLimit(d *time.Duration) pflag.Value { return limitValue{d} }

func (v limitValue) Type() string { return "TIME" }

func (v limitValue) String() string {
	if v.d == nil || *v.d == 0 {
		return "none"
	}
	return v.d.String()
}

func (v limitValue) completions() []string { return []string{"none", v.String()} }

func (v limitValue) Set(s string) error {
	if s == "none" {
		*v.d = 0
		return nil
	}
	d, err := time.ParseDuration(s)
	if err != nil || d < 0 {
		return errors.New("want a time such as 90s or 2m, or none")
	}
	*v.d = d
	return nil
}

// A stallError is a wait that has timed out.
type stallError struct {
	limit time.Duration
	what  string // was waited for, if known
	state string // of the connection, if there is one
	hint  string // what to try
}

func (e *stallError) Error() string {
	text := fmt.Sprintf("no answer from the server for %v", e.limit)
	if e.what != "" {
		text += ": " + e.what
	}
	if e.state != "" {
		text += " (" + e.state + ")"
	}
	return text + e.hint
}

func (e *stallError) explain() string { return e.Error() }

// within returns a context that ends after limit, with the error that late then
// returns. No limit is 0.
func within(ctx context.Context, limit time.Duration, late func() error) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(ctx)
	if limit == 0 {
		return ctx, func() { cancel(nil) }
	}
	timer := time.AfterFunc(limit, func() { cancel(late()) })
	return ctx, func() {
		timer.Stop()
		cancel(nil)
	}
}

// stalled returns the error of a wait that has timed out. c is nil before there is a
// connection.
func (o *options) stalled(stderr io.Writer, what string, c transport.Requester) *stallError {
	e := &stallError{limit: o.timeout, what: what}
	if c != nil {
		e.state = connState(c.Info(), c.Stats())
	}
	if o.debugStalls {
		stacks := make([]byte, 1<<20)
		stacks = stacks[:runtime.Stack(stacks, true)]
		fmt.Fprintf(stderr, "rpcrdma: %v, and all goroutines are:\n%s\n", e, stacks)
	}
	return e
}

// connState describes a connection on which nothing happens.
func connState(i transport.ConnInfo, s transport.Stats) string {
	text := fmt.Sprintf("calls in flight: %d, credits: %d, replies before: %d, RPC-over-RDMA version %d over %s",
		max(0, int64(s.Calls-s.Replies-s.Cancelled)), i.Credits, s.Replies, i.Version, i.Provider)
	if n := s.ErrVers + s.ErrChunk + s.Dropped; n > 0 {
		text += fmt.Sprintf(", other messages: %d", n)
	}
	return text
}

// heard is how many messages the server has sent.
func heard(s transport.Stats) uint64 {
	return s.Replies + s.ErrVers + s.ErrChunk + s.Dropped + s.Optional
}

// A stage is what a command is doing, for the error of a timeout.
type stage struct {
	mu   sync.Mutex
	text string
}

func (s *stage) set(format string, args ...any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.text = fmt.Sprintf(format, args...)
}

func (s *stage) get() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.text
}

// watch returns true when calls are outstanding and the server has sent nothing for limit,
// and false when ctx ends. It checks at every tick, whose value is the time.
func watch(ctx context.Context, ticks <-chan time.Time, limit time.Duration, stats func() transport.Stats) (silent bool) {
	var seen uint64
	var since time.Time // of the first tick with this number
	for {
		select {
		case <-ctx.Done():
			return false
		case now := <-ticks:
			s := stats()
			if n := heard(s); n != seen || s.Calls <= s.Replies+s.Cancelled || since.IsZero() {
				seen, since = n, now
			} else if now.Sub(since) >= limit {
				return true
			}
		}
	}
}

// knownNames are the names of files on the server by handle, for the errors of timeouts. Only
// the files in use are in it.
type knownNames struct {
	mu sync.Mutex
	of map[nfs.FileHandle]string
}

// maxKnown bounds knownNames: directories stay in it up to this number.
const maxKnown = 4096

// add adds the name of a handle. The function that it returns removes it.
func (n *knownNames) add(fh nfs.FileHandle, name string) (forget func()) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.of == nil || len(n.of) >= maxKnown {
		n.of = make(map[nfs.FileHandle]string)
	}
	n.of[fh] = name
	return func() {
		n.mu.Lock()
		defer n.mu.Unlock()
		delete(n.of, fh)
	}
}

// waitsFor describes the oldest outstanding call, and counts the others.
func (n *knownNames) waitsFor(pending []nfs.PendingCall) string {
	if len(pending) == 0 {
		return ""
	}
	p := pending[0]
	program, proc := dump.Names(p.Program, 3, p.Proc)
	text := proc
	if p.Program != nfs.Program {
		text = program + " " + proc
	}
	n.mu.Lock()
	if name, ok := n.of[p.Object]; ok {
		text += " of " + printable(name)
	}
	n.mu.Unlock()
	if others := len(pending) - 1; others > 0 {
		text += fmt.Sprintf(" and %d more", others)
	}
	return text
}
