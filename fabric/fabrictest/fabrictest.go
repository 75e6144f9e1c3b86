// Package fabrictest tests implementations of package fabric.
//
// [Run] is the conformance suite, which every provider must pass. If a provider declares that it lacks a capability,
// the suite verifies that before it skips the checks. [Pair] and [Endpoint] are for tests that need a connected pair,
// or control of one end. They account for every request, so that any test detects lost, duplicated and reordered
// completions. [Faulty] wraps a provider and injects the faults of a [Plan].
//
// # Time
//
// Every expectation has a deadline, and no test sleeps. A test that an event does not happen relies on order: a later
// message has arrived, or the connection has ended, and the event has not happened.
//
// # Memory and the race detector
//
// The goroutine that is in Poll or Wait accesses the memory of a request. An Endpoint has its own goroutine for that
// and passes completions under a lock, so a test may access a buffer only after it has received the completion. A
// buffer exposed to the peer may be accessed after a message that the peer sent after its last access, or after a
// fence.
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

// Config configures Run.
type Config struct {
	// New returns the provider under test. It is called once for each check, which closes the
	// provider, and may register a cleanup with t.
	New func(t testing.TB) fabric.Provider

	// Addr is the address of listeners. Default: "127.0.0.1:0".
	Addr string

	// Timeout bounds each expectation. Default: 20 seconds.
	Timeout time.Duration

	// Bulk is the number of bytes that two ends send to each other at the same time. Default:
	// 64 MiB, an eighth of that with -short or the race detector.
	Bulk int

	// Complete makes the test fail if a check has to be skipped for lack of a capability.
	Complete bool

	// Groups names the groups of checks to run, such as "Message" and "End". Nil:
	// all of them.
	Groups []string

	// Limits describe the provider's behavior where package fabric permits several.
	Limits Limits

	// Live counts the open objects of the provider that New returned last. After each check there must be none. Nil:
	// not checked.
	Live func() (conns, mrs, mws int)

	// Stall opens a connection to addr that does not become a connection request until it is closed, such as a bare TCP
	// connection. Nil: the check that needs it is skipped.
	Stall func(t testing.TB, addr string) io.Closer
}

// Limits are differences between adapters that users of package fabric must tolerate. The zero
// value is the strictest.
type Limits struct {
	// Shortage is the behavior of a Send that finds no receive posted.
	Shortage Shortage

	// PaddedPrivateData: received private data may be longer than the data sent, as with the fixed-length fields of
	// InfiniBand's connection manager.
	PaddedPrivateData bool

	// ClientFirst: the end that accepted must not send before the end that
	// connected has (RFC 5044 section 7.1.2, without a ready-to-receive
	// indication).
	ClientFirst bool

	// LocalCompletion: Sends and Writes complete when they have been sent, not when the peer
	// has received them. A request that the peer refuses may thus have completed successfully.
	LocalCompletion bool

	// CoarseStatus: the status of a failed request is not reliable.
	CoarseStatus bool

	// CoarseEnd: an abnormal end may look like an orderly one.
	CoarseEnd bool

	// LateReads: a message may arrive before a Read that was posted earlier has been executed
	// or refused (RFC 5040 section 5.5).
	LateReads bool

	// LooseWindows: the bounds of windows are not enforced: the peer can access all of the
	// underlying region (rxe of Linux 6.1).
	LooseWindows bool

	// LooseReads: a Read needs no access right, only a region of the connection (siw of Linux 6.1).
	LooseReads bool

	// LooseInvalidation: a Send with Invalidate of a handle that is not bound does not fail at
	// its sender, and one of another connection's window is executed (rxe of Linux 6.1).
	LooseInvalidation bool

	// CrossedInvalidation: a Send with Invalidate of a window that its owner has already invalidated, and not bound
	// since, arrives once. With other adapters it ends the connection.
	CrossedInvalidation bool
}

// A Shortage is the reaction of an adapter to a Send that finds no receive posted.
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
		if testing.Short() || raceEnabled {
			c.Bulk /= 8
		}
	}
	return c
}

// A group is a named list of checks.
type group struct {
	name   string
	checks []check
}

// A check tests one rule. Its name summarizes the rule.
type check struct {
	name string
	run  func(*scene)
}

// suite returns all checks, in the order of a connection's life.
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

// Run tests a provider against the rules of package fabric.
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

// runCheck runs one check with a new provider, and then checks for objects that the provider
// has not closed.
func runCheck(t testing.TB, cfg Config, c check) {
	s := &scene{TB: t, cfg: cfg, p: cfg.New(t)}
	t.Cleanup(func() { // registered first, so it runs after all other cleanups
		s.within("Close of the provider", s.p.Close)
		if cfg.Live == nil {
			return
		}
		var conns, mrs, mws int
		if !settles(cfg.Timeout, func() bool {
			conns, mrs, mws = cfg.Live()
			return conns == 0 && mrs == 0 && mws == 0
		}) {
			t.Errorf("left open: %d connections, %d regions, %d windows", conns, mrs, mws)
		}
	})
	c.run(s)
}

// settles reports whether ok returns true within d. It is for work that the runtime or an adapter completes after
// everything has been closed.
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

// A scene is the environment of a check.
type scene struct {
	testing.TB
	cfg Config
	p   fabric.Provider
}

// ctx returns a context with the timeout of one expectation.
func (s *scene) ctx() context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), s.cfg.Timeout)
	s.Cleanup(cancel)
	return ctx
}

// within runs f, which must return nil before the timeout.
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

// repeat returns n, or a tenth of it with -short.
func repeat(n int) int {
	if testing.Short() {
		return max(n/10, 3)
	}
	return n
}

// A Lack is the reason that a check is skipped: a capability that the provider declares to lack, and the error of an
// attempt to use it.
type Lack struct {
	Capability string // the name of the field of fabric.Capabilities
	Proof      error  // of the attempt
}

func (l Lack) String() string {
	return fmt.Sprintf("the provider has no %s: %v", l.Capability, l.Proof)
}

// A Check is one rule of package fabric: see [Checks].
type Check struct {
	Name string // "Group/Check"
	Run  func(testing.TB)
}

// Checks returns the checks of Run, for a program that is not a test and has its own [testing.TB]. The program must
// have called testing.Init and parsed flags.
func Checks(cfg Config) (list []Check) {
	cfg = cfg.withDefaults()
	for _, g := range suite() {
		if cfg.Groups != nil && !slices.Contains(cfg.Groups, g.name) {
			continue
		}
		for _, c := range g.checks {
			list = append(list, Check{Name: g.name + "/" + c.name, Run: func(t testing.TB) { runCheck(t, cfg, c) }})
		}
	}
	return list
}
