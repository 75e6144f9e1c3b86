// Package limited runs other programs that may hang, or print without end: each with
// all that it starts in a group of its own, for a time, and for an amount of output.
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

// DefaultOutput is how many bytes a program may print where nothing else is said.
const DefaultOutput = 1 << 20

// grace is how long a program that was told to print where it stands has for that, and
// how long pipes are read that somebody else has kept open.
const grace = 5 * time.Second

// A Program is one run of a program. Its fields stay as they are while it runs.
type Program struct {
	// Cmd has not been started. Where its Stdout and Stderr are nil the output is kept,
	// up to MaxOutput.
	Cmd *exec.Cmd

	// Limit is the time that it has; then its group is killed, and Run returns a
	// [TimeError]. 0 is no limit but the context's.
	Limit time.Duration

	// MaxOutput is how many bytes of output are kept, 0 stands for DefaultOutput. A
	// program that prints more is killed, and Run returns an [OutputError].
	MaxOutput int

	// Stacks are wanted of a Go program whose time is over: it gets SIGQUIT, and a
	// moment to print them.
	Stacks bool

	// Started, if not nil, is called with the program running.
	Started func()

	// Over, if not nil, says by a value when the time is over, for whoever keeps it in
	// another way; Limit is then only what the error tells.
	Over <-chan time.Time
}

// A Result is what a program has printed, also when it was ended.
type Result struct {
	Stdout, Stderr []byte
}

// A TimeError says that a program was killed because its time was over.
type TimeError struct {
	Program string
	Limit   time.Duration
	Stuck   bool // it has not ended after it was killed either: it waits in the kernel
}

func (e *TimeError) Error() string {
	if e.Stuck {
		return fmt.Sprintf("%s waits in the kernel and cannot be killed: it had not ended after %v", e.Program, e.Limit)
	}
	return fmt.Sprintf("%s was killed: it had not ended after %v", e.Program, e.Limit)
}

// Timeout implements net.Error's.
func (e *TimeError) Timeout() bool { return true }

// An OutputError says that a program was killed because it printed too much.
type OutputError struct {
	Program string
	Limit   int // bytes
}

func (e *OutputError) Error() string {
	return fmt.Sprintf("%s was killed: it had printed more than %d bytes", e.Program, e.Limit)
}

// Run runs the program until it ends, by itself or because of a limit or the context.
// Nothing that it has started in its group is left then, but what the kernel does not
// let end: Run does not wait for that.
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
		// Whoever it has left behind goes with it.
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
	// A program may have ended by itself after it printed too much.
	select {
	case <-over:
		if _, ok := err.(*TimeError); !ok && ctx.Err() == nil {
			err = &OutputError{name, limit}
		}
	default:
	}
	return Result{stdout.bytes(), stderr.bytes()}, err
}

// end ends a program and its group: first by SIGTERM, as there are scripts that clean up.
// It tells whether the program has ended, which one that waits uninterruptibly in the
// kernel does not even when it is killed. Twice the grace is for that: pipes that others
// keep open are read for once.
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

// Said is the end of what a program has printed, for an error in one line or a few.
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

// An output keeps what is written, up to a limit.
type output struct {
	max  int
	full func()

	mu  sync.Mutex
	buf []byte
}

var _ io.Writer = (*output)(nil)

// Write takes everything, so that the program does not see an error of ours.
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
