//go:build linux

package main

import (
	"errors"
	"fmt"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"
)

func TestExitStatus(t *testing.T) {
	for _, c := range []struct {
		err  error
		want int
	}{
		{&signalError{syscall.SIGHUP}, 129},
		{&signalError{syscall.SIGINT}, 130},
		{&signalError{syscall.SIGQUIT}, 131},
		{&signalError{syscall.SIGTERM}, 143},
		{&limitError{}, 124},
		{&outputError{fmt.Errorf("write: %w", syscall.EPIPE)}, 141},
		{&outputError{syscall.ENOSPC}, 1},
		{&qemuError{1}, 125},
		{errPanicked, 125},
		{errNoStatus, 125},
		{errHangs, 125},
		{&packageError{}, 125},
		{&missingError{}, 125},
	} {
		if got := exitStatus(c.err); got != c.want {
			t.Errorf("%T: %d, want %d", c.err, got, c.want)
		}
	}
}

// TestResult: what the run amounts to, by what the guest left and how QEMU ended.
func TestResult(t *testing.T) {
	limit := &limitError{limit: time.Minute}
	stopped := &signalError{syscall.SIGINT}
	for name, c := range map[string]struct {
		files   map[string]string // of the control directory
		console string
		cause   error
		qemu    int
		status  int
		want    string // of the error; empty: none
	}{
		"a status":                       {files: map[string]string{"status": "7\n"}, status: 7},
		"a status, and QEMU failed":      {files: map[string]string{"status": "0\n"}, qemu: 1},
		"a status at the time limit":     {files: map[string]string{"status": "3\n"}, cause: limit, status: 3},
		"a status, and a signal":         {files: map[string]string{"status": "3\n"}, cause: stopped, want: "interrupt"},
		"no number":                      {files: map[string]string{"status": "none\n"}, want: "exit status"},
		"no status":                      {want: "ended without an exit status"},
		"an empty status":                {files: map[string]string{"status": ""}, want: "ended without an exit status"},
		"the time limit":                 {files: map[string]string{"started": ""}, cause: limit, want: "stopped after the time limit of 60 s"},
		"the time limit, before it ran":  {cause: limit, want: "60 s, before the command began"},
		"a panic":                        {console: "[1.0] Kernel panic - not syncing", want: "kernel panicked"},
		"QEMU fails":                     {qemu: 1, want: "QEMU failed with status 1"},
		"QEMU is killed":                 {qemu: 137, want: "QEMU failed with status 137"},
		"it hangs":                       {cause: errHangs, want: "hangs while it starts"},
		"the output has nowhere to go":   {files: map[string]string{"status": "0\n"}, cause: &outputError{syscall.EPIPE}, want: "broken pipe"},
		"a panic, of which QEMU made 1":  {console: "Kernel panic", qemu: 1, want: "QEMU failed with status 1"},
		"the console is not the command": {console: "status 0", want: "ended without an exit status"},
	} {
		t.Run(name, func(t *testing.T) {
			g := &guest{host: &host{work: t.TempDir()}}
			for file, text := range c.files {
				write(t, g.file(file), text)
			}
			write(t, g.console(), c.console)
			status, err := g.result(c.cause, c.qemu)
			if c.want == "" && (err != nil || status != c.status) {
				t.Errorf("%d, %v; want %d", status, err, c.status)
			}
			if c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
				t.Errorf("%v, want %q", err, c.want)
			}
			if c.want == "stopped after the time limit of 60 s" && strings.Contains(err.Error(), "before") {
				t.Errorf("the command had begun: %v", err)
			}
		})
	}
}

func TestProgramStatus(t *testing.T) {
	for script, want := range map[string]int{"exit 3": 3, "kill -KILL $$": 137} {
		cmd := exec.Command("sh", "-c", script)
		var exit *exec.ExitError
		if err := cmd.Run(); !errors.As(err, &exit) || programStatus(cmd.ProcessState) != want {
			t.Errorf("%s: %v, %d, want %d", script, err, programStatus(cmd.ProcessState), want)
		}
	}
}

func TestLastLines(t *testing.T) {
	for _, c := range []struct {
		text string
		n    int
		want string
	}{
		{"", 2, ""},
		{"a\r\nb\r\nc\r\n", 2, "b\nc\n"},
		{"a\nb\nc", 2, "b\nc"},
		{"a\nb\n", 2, "a\nb\n"},
		{"a\n\n\n", 2, "\n\n"},
		{"a", 1, "a"},
	} {
		if got := string(lastLines([]byte(c.text), c.n)); got != c.want {
			t.Errorf("%d of %q: %q, want %q", c.n, c.text, got, c.want)
		}
	}
}
