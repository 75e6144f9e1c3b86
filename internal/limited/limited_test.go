//go:build unix

package limited

import (
	"bytes"
	"context"
	"errors"
	"os"
	"os/exec"
	"os/signal"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rpcrdma/rpcrdma/internal/testing/leak"
)

// role is the environment variable that makes this test binary one of the programs.
const role = "LIMITED_TEST_ROLE"

func TestMain(m *testing.M) {
	switch os.Getenv(role) {
	case "":
		os.Exit(leak.Main(m))
	case "hang":
		os.Stdout.WriteString("before\n")
		time.Sleep(time.Hour)
	case "chatter":
		for {
			os.Stdout.WriteString(strings.Repeat("word ", 1000))
		}
	case "parent":
		// The child keeps the pipes open, and prints its PID.
		child := self("sleep")
		child.Stdout, child.Stderr = os.Stdout, os.Stderr
		if err := child.Start(); err != nil {
			panic(err)
		}
		os.Stdout.WriteString(strconv.Itoa(child.Process.Pid) + "\n")
		time.Sleep(time.Hour)
	case "orphan":
		child := self("sleep")
		if err := child.Start(); err != nil {
			panic(err)
		}
		os.Stdout.WriteString(strconv.Itoa(child.Process.Pid) + "\n")
	case "sleep":
		time.Sleep(time.Hour)
	case "tidy":
		c := make(chan os.Signal, 1)
		signal.Notify(c, syscall.SIGTERM)
		os.Stdout.WriteString("ready\n")
		<-c
		os.Stdout.WriteString("tidied up\n")
		os.Exit(0)
	case "well":
		os.Stdout.WriteString("out")
		os.Stderr.WriteString("err")
	}
}

func self(as string) *exec.Cmd {
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), role+"="+as)
	return cmd
}

// gone waits until the process has exited; zombies count as exited.
func gone(t *testing.T, pid int) {
	t.Helper()
	for end := time.Now().Add(10 * time.Second); time.Now().Before(end); time.Sleep(time.Millisecond) {
		stat, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
		if errors.Is(syscall.Kill(pid, 0), syscall.ESRCH) || err == nil && bytes.Contains(stat, []byte(") Z ")) {
			return
		}
	}
	t.Errorf("process %d is still there", pid)
}

// A heard captures standard output, and signals the first output.
type heard struct {
	b bytes.Buffer // not embedded: it would read by itself
	c chan time.Time
}

func (h *heard) Write(b []byte) (int, error) {
	defer func() { h.c <- time.Now() }()
	return h.b.Write(b)
}

// runUntilHeard runs a program until its first output, which ends its time limit.
func runUntilHeard(t *testing.T, p *Program) (string, Result, error) {
	t.Helper()
	h := &heard{c: make(chan time.Time, 100)}
	p.Cmd.Stdout = h
	p.Over = h.c
	r, err := p.Run(t.Context())
	return h.b.String(), r, err
}

func TestWell(t *testing.T) {
	r, err := (&Program{Cmd: self("well"), Limit: time.Minute}).Run(t.Context())
	if err != nil || string(r.Stdout) != "out" || string(r.Stderr) != "err" {
		t.Errorf("%q, %v", r, err)
	}
}

// TestTimer: a program is killed at its time limit.
func TestTimer(t *testing.T) {
	cmd := self("hang")
	_, err := (&Program{Cmd: cmd, Limit: 10 * time.Millisecond}).Run(t.Context())
	if !errors.As(err, new(*TimeError)) {
		t.Errorf("%v", err)
	}
	gone(t, cmd.Process.Pid)
}

func TestHangs(t *testing.T) {
	cmd := self("hang")
	said, _, err := runUntilHeard(t, &Program{Cmd: cmd, Limit: time.Minute})
	var e *TimeError
	if !errors.As(err, &e) || e.Limit != time.Minute || err.Error() != "limited.test was killed: it had not ended after 1m0s" || !e.Timeout() {
		t.Errorf("%v", err)
	}
	if said != "before\n" {
		t.Errorf("%q", said)
	}
	gone(t, cmd.Process.Pid)
}

// TestStuck: Run does not wait for a program that does not exit when it is killed.
func TestStuck(t *testing.T) {
	cmd := self("hang")
	ownGroup(cmd)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	synctest.Test(t, func(t *testing.T) {
		if end(cmd, make(chan error)) {
			t.Error("it has ended")
		}
	})
	if err := cmd.Wait(); err == nil {
		t.Error("it was not killed")
	}
	e := &TimeError{Program: "rdma", Limit: time.Minute, Stuck: true}
	if got, want := e.Error(), "rdma waits in the kernel and cannot be killed: it had not ended after 1m0s"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
}

// TestStacks: a Go program that hangs prints its stacks.
func TestStacks(t *testing.T) {
	_, r, err := runUntilHeard(t, &Program{Cmd: self("hang"), Limit: time.Minute, Stacks: true})
	if !errors.As(err, new(*TimeError)) || !bytes.Contains(r.Stderr, []byte("limited.TestMain")) {
		t.Errorf("%v: %s", err, r.Stderr)
	}
}

// TestTidies: a program may clean up on SIGTERM, but the run fails nevertheless.
func TestTidies(t *testing.T) {
	said, _, err := runUntilHeard(t, &Program{Cmd: self("tidy"), Limit: time.Minute})
	if !errors.As(err, new(*TimeError)) || said != "ready\ntidied up\n" {
		t.Errorf("%q, %v", said, err)
	}
}

func TestPrintsWithoutEnd(t *testing.T) {
	cmd := self("chatter")
	r, err := (&Program{Cmd: cmd, Limit: 20 * time.Second, MaxOutput: 10000}).Run(t.Context())
	var e *OutputError
	if !errors.As(err, &e) || e.Limit != 10000 || len(r.Stdout) != 10000 {
		t.Errorf("%d bytes, %v", len(r.Stdout), err)
	}
	gone(t, cmd.Process.Pid)
}

// TestGroup: the children of a program are killed, whether it is killed or exits.
func TestGroup(t *testing.T) {
	for _, as := range []string{"parent", "orphan"} {
		var said string
		var err error
		p := &Program{Cmd: self(as), Limit: time.Minute}
		if as == "parent" {
			said, _, err = runUntilHeard(t, p)
		} else {
			var r Result
			r, err = p.Run(t.Context())
			said = string(r.Stdout)
		}
		if (as == "parent") != errors.As(err, new(*TimeError)) {
			t.Errorf("%s: %v", as, err)
		}
		pid, err := strconv.Atoi(strings.TrimSpace(said))
		if err != nil {
			t.Fatalf("%s: %v", as, err)
		}
		gone(t, pid)
	}
}

func TestContext(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cmd := self("hang")
	_, err := (&Program{Cmd: cmd, Limit: time.Minute, Started: cancel}).Run(ctx)
	if !errors.Is(err, context.Canceled) {
		t.Errorf("%v", err)
	}
	gone(t, cmd.Process.Pid)
	if _, err := (&Program{Cmd: self("well")}).Run(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("started all the same: %v", err)
	}
}

func TestSaid(t *testing.T) {
	if s := (Result{Stdout: []byte("out\n")}).Said(); s != "out" {
		t.Errorf("%q", s)
	}
	if s := (Result{Stdout: []byte("out"), Stderr: bytes.Repeat([]byte("e"), 5000)}).Said(); !strings.HasPrefix(s, "... e") || len(s) > 410 {
		t.Errorf("%d bytes", len(s))
	}
}
