// Package limited runs programs that may hang or print endlessly: each in its own process group, with limits on time
// and output.
package limited

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os/exec"
	"path/filepath"
	"sync"
	"time"
)

// DefaultOutput is the default limit on output, in bytes.
const DefaultOutput = 1 << 20

// grace is how long a program may take to print its stacks, and how long pipes are read that another process keeps
// open.
const grace = 5 * time.Second

// A Program is one run of a program. Its fields must not change while it runs.
type Program struct {
	// Cmd must not have been started. If its Stdout or Stderr is nil, that output is captured, up to MaxOutput.
	Cmd *exec.Cmd

	// Limit limits its run time. After it, the process group is killed, and Run returns a [TimeError]. 0 means no limit
	// other than the context's.
	Limit time.Duration

	// MaxOutput limits the captured output, in bytes; 0 means DefaultOutput. A program that prints more is killed, and
	// Run returns an [OutputError].
	MaxOutput int

	// Stacks makes a Go program that exceeds Limit print its stacks: it gets a SIGQUIT, and a moment to do so, before
	// it is killed.
	Stacks bool

	// Started, if not nil, is called when the program is running.
	Started func()

	// Over, if not nil, replaces the timer: a value means that the limit is exceeded. Limit is then used only in the
	// error.
	Over <-chan time.Time
}

// A Result is the output of a program, even if it was killed.
type Result struct {
	Stdout, Stderr []byte
}

// A TimeError means that a program was killed because it exceeded its time limit.
type TimeError struct {
	Program string
	Limit   time.Duration
	Stuck   bool // it did not exit after SIGKILL: it is in an uninterruptible wait in the kernel
}

func (e *TimeError) Error() string {
	if e.Stuck {
		return fmt.Sprintf("%s waits in the kernel and cannot be killed: it had not ended after %v", e.Program, e.Limit)
	}
	return fmt.Sprintf("%s was killed: it had not ended after %v", e.Program, e.Limit)
}

// Timeout returns true, as for net.Error.
func (e *TimeError) Timeout() bool { return true }

// An OutputError means that a program was killed because it exceeded its output limit.
type OutputError struct {
	Program string
	Limit   int // bytes
}

func (e *OutputError) Error() string {
	return fmt.Sprintf("%s was killed: it had printed more than %d bytes", e.Program, e.Limit)
}

// Run runs the program until it exits, or is killed because of a limit or the context. When Run returns, all processes
// of its group are gone, except those in an uninterruptible wait in the kernel.
func (p *Program) Run(ctx context.Context) (Result, error) {
	cmd := p.Cmd
	limit := p.MaxOutput
	if limit == 0 {
		limit = DefaultOutput
	}
	over := make(chan struct{})
	full := sync.OnceFunc(func() { close(over) })
	stdout := &output{max: limit, full: full}
	stderr := &output{max: limit, full: full}
	if cmd.Stdout == nil {
		cmd.Stdout = stdout
	}
	if cmd.Stderr == nil {
		cmd.Stderr = stderr
	}
	cmd.WaitDelay = grace
	ownGroup(cmd)
	if err := ctx.Err(); err != nil {
		return Result{}, err
	}
	if err := cmd.Start(); err != nil {
		return Result{}, err
	}
	if p.Started != nil {
		p.Started()
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	var timer <-chan time.Time
	switch {
	case p.Over != nil:
		timer = p.Over
	case p.Limit > 0:
		t := time.NewTimer(p.Limit)
		defer t.Stop()
		timer = t.C
	}
	name := filepath.Base(cmd.Path)
	var err error
	select {
	case err = <-ended:
		// Kill the processes that outlive the program.
		killGroup(cmd)
	case <-timer:
		if p.Stacks {
			askForStacks(cmd)
			select {
			case <-ended:
				ended <- nil // for end
			case <-over:
			case <-time.After(grace):
			}
		}
		err = &TimeError{Program: name, Limit: p.Limit, Stuck: !end(cmd, ended)}
	case <-over:
		err = &OutputError{name, limit}
		end(cmd, ended)
	case <-ctx.Done():
		err = ctx.Err()
		end(cmd, ended)
	}
	// The program may have exited after it exceeded the output limit.
	select {
	case <-over:
		if _, ok := err.(*TimeError); !ok && ctx.Err() == nil {
			err = &OutputError{name, limit}
		}
	default:
	}
	return Result{stdout.bytes(), stderr.bytes()}, err
}

// end terminates a program and its group, first with SIGTERM, because some scripts clean up. It reports whether the
// program has exited: one in an uninterruptible wait in the kernel does not, even after SIGKILL. It waits for twice the
// grace period, because pipes that others keep open are read for one.
func end(cmd *exec.Cmd, ended <-chan error) bool {
	termGroup(cmd)
	select {
	case <-ended:
		killGroup(cmd)
		return true
	case <-time.After(grace):
	}
	killGroup(cmd)
	select {
	case <-ended:
		return true
	case <-time.After(2 * grace):
		return false
	}
}

// Said returns the end of the output, for an error message of a few lines.
func (r Result) Said() string {
	const most = 400
	b := bytes.TrimSpace(r.Stderr)
	if len(b) == 0 {
		b = bytes.TrimSpace(r.Stdout)
	}
	if len(b) > most {
		return "... " + string(b[len(b)-most:])
	}
	return string(b)
}

// output captures what is written, up to a limit.
type output struct {
	max  int
	full func()

	mu  sync.Mutex
	buf []byte
}

var _ io.Writer = (*output)(nil)

// Write always succeeds, so that the program gets no error.
func (o *output) Write(b []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	keep := min(len(b), o.max-len(o.buf))
	o.buf = append(o.buf, b[:keep]...)
	if keep < len(b) {
		o.full()
	}
	return len(b), nil
}

func (o *output) bytes() []byte {
	o.mu.Lock()
	defer o.mu.Unlock()
	return bytes.Clone(o.buf)
}
