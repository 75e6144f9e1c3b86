//go:build linux

package interop

import (
	"bytes"
	"cmp"
	"fmt"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"
)

// A program of others is running.
type program struct {
	t      *testing.T
	name   string
	args   []string
	deaf   bool
	exited chan struct{}

	// Valid after it has exited.
	stdout, stderr *notes
	err            error

	mu     sync.Mutex
	cmd    *exec.Cmd
	killed bool
	again  bool // start it once more
}

// inUse is what a client prints about a port that is taken. Not every one exits then.
const inUse = "Address already in use"

// startProgram starts a program of a Debian package for a test on a device of this kind, and kills it
// at the end of the test. It is restarted after that.
func startProgram(t *testing.T, kind, name, debian string, args ...string) *program {
	t.Helper()
	r := &program{t: t, name: name, args: args, exited: make(chan struct{})}
	path := requireProgram(t, kind, name, debian)
	if err := r.start(path); err != nil {
		t.Fatal(err)
	}
	go func() {
		defer close(r.exited)
		for {
			r.err = r.cmd.Wait()
			if !strings.Contains(r.stderr.String(), inUse) && !r.restarts() {
				return
			}
			if err := r.start(path); err != nil {
				r.err = err
				return
			}
		}
	}()
	t.Cleanup(func() {
		r.kill()
		if t.Failed() {
			t.Log(r.state())
		}
	})
	return r
}

// start starts the program, unless it was to be killed.
func (r *program) start(path string) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.killed {
		return fmt.Errorf("%s is not started again", r.name)
	}
	cmd := exec.Command(path, r.args...)
	r.stdout, r.stderr = new(notes), new(notes)
	r.stderr.look = func(b []byte) {
		if bytes.Contains(b, []byte(inUse)) {
			cmd.Process.Kill()
		}
	}
	cmd.Stdout, cmd.Stderr = r.stdout, r.stderr
	r.cmd = cmd
	return cmd.Start()
}

// kill kills the program and waits for its exit.
func (r *program) kill() {
	r.mu.Lock()
	r.killed = true
	if r.cmd.Process != nil {
		r.cmd.Process.Kill()
	}
	r.mu.Unlock()
	<-r.exited
}

// restart kills the program, which is then started again.
func (r *program) restart() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.again = true
	r.cmd.Process.Kill()
}

func (r *program) restarts() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	again := r.again
	r.again = false
	return again
}

// Notes capture the output of a program.
type notes struct {
	buf  bytes.Buffer
	look func(b []byte) // at all that is there, whenever there is more
}

func (n *notes) Write(b []byte) (int, error) {
	n.buf.Write(b)
	if n.look != nil {
		n.look(n.buf.Bytes())
	}
	return len(b), nil
}

func (n *notes) String() string { return n.buf.String() }

// wantExit wants the program to exit by itself, and otherwise kills it.
func (r *program) wantExit() {
	r.t.Helper()
	select {
	case <-r.exited:
	case <-time.After(patience):
		r.kill()
		r.t.Errorf("%s has not exited by itself: %s", r.name, r.state())
	}
}

// state describes the exit for messages, with the end of its output.
func (r *program) state() string {
	s := fmt.Sprintf("%v: %v\n%s", r.cmd, cmp.Or[any](r.err, "exit status 0"), r.stderr.String())
	lines := strings.SplitAfter(r.stdout.String(), "\n")
	for _, line := range lines[max(0, len(lines)-4):] {
		s += fmt.Sprintf("%.100s\n", strings.TrimSuffix(line, "\n"))
	}
	return s
}
