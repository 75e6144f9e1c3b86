package connect

import (
	"context"
	"fmt"
	"io"
	"runtime"
	"sync"
	"time"

	"github.com/rpcrdma/rpcrdma/rpc"
	"github.com/rpcrdma/rpcrdma/transport"
)

// A StallError is the error of a wait that has timed out.
type StallError struct {
	Limit time.Duration // that was exceeded
	what  string        // what was waited for, if known
	state string        // state of the connection, if there is one
	hint  string        // suggestion
}

func (e *StallError) Error() string {
	text := fmt.Sprintf("no answer from the server for %v", e.Limit)
	if e.what != "" {
		text += ": " + e.what
	}
	if e.state != "" {
		text += " (" + e.state + ")"
	}
	return text + e.hint
}

// Explain returns the error text unchanged.
func (e *StallError) Explain() string { return e.Error() }

// Within returns a context that ends after limit, with the error that late then returns. A limit of 0 means none.
func Within(ctx context.Context, limit time.Duration, late func() error) (context.Context, context.CancelFunc) {
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

// Stalled returns the error of a wait that has timed out. c is nil if there is no connection yet.
func (o *Options) Stalled(stderr io.Writer, what string, c transport.Requester) *StallError {
	e := &StallError{Limit: o.Timeout, what: what}
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

// connState describes an idle connection.
func connState(i rpc.ConnInfo, s rpc.Stats) string {
	how := i.Provider
	if i.Version != 0 { // zero over TCP
		how = fmt.Sprintf("RPC-over-RDMA version %d over %s", i.Version, i.Provider)
	}
	text := fmt.Sprintf("calls in flight: %d, credits: %d, replies before: %d, %s",
		max(0, int64(s.Calls-s.Replies-s.Canceled)), i.Credits, s.Replies, how)
	if n := s.ErrVers + s.ErrChunk + s.Dropped; n > 0 {
		text += fmt.Sprintf(", other messages: %d", n)
	}
	return text
}

// Heard returns how many messages the server has sent.
func Heard(s rpc.Stats) uint64 {
	return s.Replies + s.ErrVers + s.ErrChunk + s.Dropped + s.Optional
}

// stage is the current step of a command, for timeout errors.
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

// AwaitSilence returns true when calls are outstanding and the server has sent nothing for limit, and false when ctx
// ends. It checks at every tick; a tick's value is the time.
func AwaitSilence(ctx context.Context, ticks <-chan time.Time, limit time.Duration, stats func() rpc.Stats) (silent bool) {
	var seen uint64
	var since time.Time // of the first tick with this count
	for {
		select {
		case <-ctx.Done():
			return false
		case now := <-ticks:
			s := stats()
			if n := Heard(s); n != seen || s.Calls <= s.Replies+s.Canceled || since.IsZero() {
				seen, since = n, now
			} else if now.Sub(since) >= limit {
				return true
			}
		}
	}
}

// A Pace limits how often a message is repeated: three times at once, then three times a minute.
type Pace struct {
	since time.Time // time of the oldest message that counts
}

// Limits of a Pace.
const (
	PaceBurst    = 3                // messages at once
	PaceInterval = 20 * time.Second // until the next message
)

// Allows reports whether a message may be printed now, and counts it.
func (p *Pace) Allows() bool {
	now := time.Now()
	if oldest := now.Add(-PaceBurst * PaceInterval); p.since.Before(oldest) {
		p.since = oldest
	}
	next := p.since.Add(PaceInterval)
	if next.After(now) {
		return false
	}
	p.since = next
	return true
}
