package selftest

import (
	"context"
	"fmt"
	"os"
	"runtime"
	"runtime/debug"
	"strings"
	"sync"
	"testing"
	"time"
)

// check is a single check of the self-test.
type check struct {
	name string
	run  func(*trial)
}

// trial is one run of a check. It is the testing.TB for the checks of package fabrictest, which are written as tests.
// The embedded TB is nil, and is there only for its private method.
type trial struct {
	testing.TB

	name    string
	ctx     context.Context
	figures map[string]float64

	mu       sync.Mutex
	said     []string
	failed   bool
	skipped  bool
	cleanups []func()
}

// try runs a check in its own goroutine, which the check may end.
func try(ctx context.Context, c check) Result {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	t := &trial{name: c.name, ctx: ctx, figures: make(map[string]float64)}
	start := time.Now()
	t.guard(func() { c.run(t) })
	for len(t.cleanups) > 0 {
		last := t.cleanups[len(t.cleanups)-1]
		t.cleanups = t.cleanups[:len(t.cleanups)-1]
		t.guard(last)
	}
	r := Result{Name: c.name, Outcome: Passed, Seconds: round(time.Since(start).Seconds()), Figures: t.figures}
	switch {
	case t.failed:
		r.Outcome = Failed
	case t.skipped:
		r.Outcome = Skipped
	}
	if r.Outcome != Passed {
		r.Why = strings.Join(t.said, "; ")
	}
	return r
}

// guard runs f until it returns, panics or calls runtime.Goexit.
func (t *trial) guard(f func()) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer func() {
			if p := recover(); p != nil {
				t.Errorf("panic: %v\n%s", p, debug.Stack())
			}
		}()
		f()
	}()
	<-done
}

func (t *trial) say(format string, args ...any) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.said = append(t.said, strings.TrimSpace(fmt.Sprintf(format, args...)))
}

func (t *trial) mark(failed, skipped bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.failed, t.skipped = t.failed || failed, t.skipped || skipped
}

// The methods of testing.TB. The log is used if the check fails.

func (t *trial) Helper()                  {}
func (t *trial) Name() string             { return t.name }
func (t *trial) Context() context.Context { return t.ctx }
func (t *trial) Log(args ...any)          { t.say("%s", fmt.Sprintln(args...)) }
func (t *trial) Logf(f string, a ...any)  { t.say(f, a...) }
func (t *trial) Fail()                    { t.mark(true, false) }
func (t *trial) FailNow()                 { t.Fail(); runtime.Goexit() }
func (t *trial) SkipNow()                 { t.leave() }
func (t *trial) Error(args ...any)        { t.Log(args...); t.Fail() }
func (t *trial) Errorf(f string, a ...any) {
	t.say(f, a...)
	t.Fail()
}
func (t *trial) Fatal(args ...any)         { t.Log(args...); t.FailNow() }
func (t *trial) Fatalf(f string, a ...any) { t.say(f, a...); t.FailNow() }
func (t *trial) Skip(args ...any)          { t.Log(args...); t.leave() }
func (t *trial) Skipf(f string, a ...any)  { t.say(f, a...); t.leave() }

// leave ends a check that does not apply.
func (t *trial) leave() {
	t.mark(false, true)
	runtime.Goexit()
}

func (t *trial) Failed() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.failed
}

func (t *trial) Skipped() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.skipped
}

func (t *trial) Cleanup(f func()) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.cleanups = append(t.cleanups, f)
}

func (t *trial) TempDir() string {
	dir, err := os.MkdirTemp("", "selftest")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

// must ends the check if there is an error.
func (t *trial) must(err error) {
	if err != nil {
		t.Fatal(err)
	}
}

var _ testing.TB = (*trial)(nil)
