// Package fabrictest holds the rules of package fabric as tests.
//
// [Run] is the conformance suite: every provider passes it, and what a provider
// declares not to have is verified before it is skipped. [Pair] and [Endpoint]
// are for tests that need a connected pair, or one end of it played by hand:
// they keep account of every request, so that a completion that is lost, doubled
// or out of turn is noticed whatever the test is about. [Faulty] wraps a
// provider and makes it fail where a [Plan] says so.
//
// # Time
//
// Every expectation has a deadline and no test sleeps. Where a rule says that
// something does not happen, the test rests on order: a later message has
// arrived, or the connection has ended, and it still has not happened.
//
// # Memory and the race detector
//
// The memory of a request is touched by whoever drives the Conn. An Endpoint
// does that on a goroutine of its own and hands completions over under a lock,
// so that a test may look at a buffer once it holds the completion, and not
// earlier. A buffer lent to the peer is looked at after a message that was sent
// behind the peer's last access, or after a fence.
package fabrictest

import (
	"context"
	"fmt"
	"io"
	"runtime"
	"slices"
	"testing"
	"time"

	"github.com/rpcrdma/rpcrdma/fabric"
)

// Config says what Run tests, where, and what to expect.
type Config struct {
	// New makes the provider under test. It is called once for each check and
	// may leave its own clean-up with t.
	New func(t testing.TB) fabric.Provider

	// Addr is where listeners are put. Default: "127.0.0.1:0".
	Addr string

	// Timeout bounds each single expectation. Default: 20 seconds.
	Timeout time.Duration

	// Bulk is how many bytes two ends throw at each other at once.
	// Default: 64 MiB, an eighth of that with -short.
	Bulk int

	// Complete makes it a failure to skip a check for want of a capability.
	Complete bool

	// Groups names the groups of checks to run, such as "Message" and "End". Nil:
	// all of them.
	Groups []string

	// Limits are the provider's own ways where the seam leaves a choice.
	Limits Limits

	// Live counts what the provider holds open, in the whole process. Each
	// check must bring it back to where it was. Nil: not looked at.
	Live func() (conns, mrs, mws int)

	// Stall opens something at addr that will never become a connection
	// request, such as a bare TCP connection, until it is closed. Nil: the
	// check that needs it is skipped.
	Stall func(t testing.TB, addr string) io.Closer
}

// Limits are the differences between adapters that users of the seam have to
// live with. The zero value is the strictest.
type Limits struct {
	// Shortage is what becomes of a Send that finds no receive posted.
	Shortage Shortage

	// PaddedPrivateData: what arrives may have more around it than was sent,
	// as with the fixed-length fields of InfiniBand's connection manager.
	PaddedPrivateData bool

	// ClientFirst: the end that accepted must not send before the end that
	// connected has (RFC 5044 section 7.1.2, without a ready-to-receive
	// indication).
	ClientFirst bool

	// LocalCompletion: Sends and Writes complete when they have left, and not
	// when the peer has taken them. One that the peer refuses may thus have
	// completed well.
	LocalCompletion bool

	// CoarseStatus: the adapter tells only that a request failed, not
	// reliably why.
	CoarseStatus bool

	// CoarseEnd: an end that the peer was forced to may look like one in order.
	CoarseEnd bool

	// LateReads: a message may arrive before a Read that was posted in front of
	// it has been carried out, or refused (RFC 5040 section 5.5).
	LateReads bool

	// LooseWindows: a window does not hold its bounds, so that the peer reaches
	// all of the region beneath (rxe of Linux 6.1).
	LooseWindows bool

	// LooseReads: a Read needs no right, only a region of the connection (siw of
	// Linux 6.1).
	LooseReads bool

	// LooseInvalidation: a Send with Invalidate of what is not open does not
	// fail for its sender, and one of another connection's window is carried out
	// (rxe of Linux 6.1).
	LooseInvalidation bool
}

// A Shortage is what an adapter does with a Send that finds no receive posted.
type Shortage uint8

const (
	ShortageEnds  Shortage = iota // the connection ends
	ShortageWaits                 // the Send waits until there is one
)

func (s Shortage) String() string {
	switch s {
	case ShortageEnds:
		return "ends the connection"
	case ShortageWaits:
		return "waits"
	}
	return fmt.Sprintf("shortage %d", uint8(s))
}

func (c Config) withDefaults() Config {
	if c.Addr == "" {
		c.Addr = loopback
	}
	if c.Timeout == 0 {
		c.Timeout = defaultTimeout
	}
	if c.Bulk == 0 {
		c.Bulk = 64 << 20
		if testing.Short() {
			c.Bulk /= 8
		}
	}
	return c
}

// A group is a chapter of the suite.
type group struct {
	name   string
	checks []check
}

// A check is one rule. Its name is the rule in a few words.
type check struct {
	name string
	run  func(*scene)
}

// suite returns all checks, in the order in which a connection lives.
func suite() []group {
	return []group{
		{"Setup", setupChecks()},
		{"Message", messageChecks()},
		{"Memory", memoryChecks()},
		{"Window", windowChecks()},
		{"Fence", fenceChecks()},
		{"Progress", progressChecks()},
		{"End", endChecks()},
		{"Cost", costChecks()},
	}
}

// Run holds a provider against the rules of package fabric.
func Run(t *testing.T, cfg Config) {
	cfg = cfg.withDefaults()
	before := runtime.NumGoroutine()
	for _, g := range suite() {
		if cfg.Groups != nil && !slices.Contains(cfg.Groups, g.name) {
			continue
		}
		t.Run(g.name, func(t *testing.T) {
			for _, c := range g.checks {
				t.Run(c.name, func(t *testing.T) { runCheck(t, cfg, c) })
			}
		})
	}
	if !settles(cfg.Timeout, func() bool { return runtime.NumGoroutine() <= before }) {
		buf := make([]byte, 1<<20)
		t.Errorf("%d goroutines before the suite, %d after it:\n%s",
			before, runtime.NumGoroutine(), buf[:runtime.Stack(buf, true)])
	}
}

// runCheck runs one check with a provider of its own, and then looks for what
// the check has closed and the provider has not.
func runCheck(t testing.TB, cfg Config, c check) {
	if cfg.Live != nil {
		conns, mrs, mws := cfg.Live()
		t.Cleanup(func() { // first in, so it runs when all else is closed
			var c, r, w int
			if !settles(cfg.Timeout, func() bool {
				c, r, w = cfg.Live()
				return c <= conns && r <= mrs && w <= mws
			}) {
				t.Errorf("left open: %d connections, %d regions, %d windows", c-conns, r-mrs, w-mws)
			}
		})
	}
	c.run(&scene{TB: t, cfg: cfg, p: cfg.New(t)})
}

// settles reports whether ok comes true in time. It is for what a runtime or an
// adapter finishes on its own after everything has been closed.
func settles(d time.Duration, ok func() bool) bool {
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(d); !ok(); <-tick.C {
		if time.Now().After(end) {
			return false
		}
	}
	return true
}

// A scene is what a check plays on.
type scene struct {
	testing.TB
	cfg Config
	p   fabric.Provider
}

// ctx returns a context that ends with the time for one expectation.
func (s *scene) ctx() context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), s.cfg.Timeout)
	s.Cleanup(cancel)
	return ctx
}

// within runs f, which must return in time, and nil.
func (s *scene) within(what string, f func() error) {
	s.Helper()
	if err := s.result(what, later(f)); err != nil {
		s.Errorf("%s: %v", what, err)
	}
}

// returns reports whether f returns within d.
func returns(d time.Duration, f func()) bool {
	done := make(chan struct{})
	go func() {
		defer close(done)
		f()
	}()
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-done:
		return true
	case <-timer.C:
		return false
	}
}

// repeat is n, or a tenth of it with -short.
func repeat(n int) int {
	if testing.Short() {
		return max(n/10, 3)
	}
	return n
}

// A Lack is why a check is skipped: a capability that the provider says it does
// not have, and the error by which that turned out to be true.
type Lack struct {
	Capability string
	Proof      error
}

func (l Lack) String() string {
	return fmt.Sprintf("the provider has no %s: %v", l.Capability, l.Proof)
}
