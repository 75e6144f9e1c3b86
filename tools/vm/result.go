//go:build linux

package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"strconv"
	"syscall"
	"time"
)

// Exit statuses other than the command's. Those for the time limit and for a failure of our own are those of
// timeout(1).
const (
	statusLimit  = 124
	statusFailed = 125
	statusSignal = 128 // plus the number of the signal
)

// exitStatus returns the exit status of the program for an error.
func exitStatus(err error) int {
	var (
		by     *signalError
		limit  *limitError
		output *outputError
	)
	switch {
	case errors.As(err, &by):
		return statusSignal + int(by.signal)
	case errors.As(err, &limit):
		return statusLimit
	case errors.As(err, &output) && errors.Is(err, syscall.EPIPE):
		return statusSignal + int(syscall.SIGPIPE)
	case errors.As(err, &output):
		return 1
	}
	return statusFailed
}

// signalError reports the signal that ended the program.
type signalError struct{ signal syscall.Signal }

func (e *signalError) Error() string { return e.signal.String() }

// outputError is a failure to write the command's output.
type outputError struct{ err error }

func (e *outputError) Error() string { return "cannot write the command's output: " + e.err.Error() }
func (e *outputError) Unwrap() error { return e.err }

// limitError reports a run that reached its time limit.
type limitError struct {
	limit   time.Duration
	started bool // the command had started
}

func (e *limitError) Error() string {
	text := fmt.Sprintf("stopped after the time limit of %d s", int(e.limit.Seconds()))
	if !e.started {
		text += ", before the command began"
	}
	return text
}

// errHangs is the error for a guest that does not reach the command.
var errHangs = errors.New("the virtual machine hangs while it starts")

// errPanicked and errNoStatus are the errors for guests that ended on their own without a status.
var (
	errPanicked = errors.New("the virtual machine's kernel panicked")
	errNoStatus = errors.New("the virtual machine ended without an exit status of the command")
)

// qemuError is the error for a QEMU that failed, with its exit status.
type qemuError struct{ status int }

func (e *qemuError) Error() string { return fmt.Sprintf("QEMU failed with status %d", e.status) }

// programStatus returns the exit status of a program as shells report it.
func programStatus(state *os.ProcessState) int {
	if w, ok := state.Sys().(syscall.WaitStatus); ok && w.Signaled() {
		return statusSignal + int(w.Signal())
	}
	return state.ExitCode()
}

// result returns the exit status of the command after QEMU has ended, or the reason why none exists. cause is the
// reason why QEMU was stopped, or nil if it ended on its own; qemu is its exit status.
func (g *guest) result(cause error, qemu int) (int, error) {
	var limit *limitError
	switch {
	case cause != nil && !errors.As(cause, &limit):
		return 0, cause
	case exists(g.file(controlStatus)):
		return readStatus(g.file(controlStatus))
	case limit != nil:
		return 0, &limitError{limit.limit, g.started()}
	case qemu != 0:
		return 0, &qemuError{qemu}
	case g.panicked():
		return 0, errPanicked
	}
	return 0, errNoStatus
}

// readStatus reads the exit status written by the guest.
func readStatus(path string) (int, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return 0, err
	}
	n, err := strconv.ParseUint(string(bytes.TrimSpace(text)), 10, 8)
	if err != nil {
		return 0, fmt.Errorf("the exit status of the command: %w", err)
	}
	return int(n), nil
}

func (g *guest) panicked() bool {
	text, err := os.ReadFile(g.console())
	return err == nil && bytes.Contains(text, []byte("Kernel panic"))
}

// exists reports whether a file exists and is not empty.
func exists(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.Size() > 0
}

// shownLines is how many lines of a log are shown.
const shownLines = 50

// showLastLines shows the end of a log, if there is one.
func showLastLines(of, path string) {
	text, err := os.ReadFile(path)
	if err != nil || len(text) == 0 {
		return
	}
	say("the last lines of %s:", of)
	os.Stderr.Write(lastLines(text, shownLines))
}

// lastLines returns up to n lines from the end of a text. It removes carriage returns, which a serial console adds.
func lastLines(text []byte, n int) []byte {
	text = bytes.ReplaceAll(text, []byte("\r"), nil)
	end := len(bytes.TrimSuffix(text, []byte("\n")))
	for i := end - 1; i >= 0; i-- {
		if text[i] == '\n' {
			if n--; n == 0 {
				return text[i+1:]
			}
		}
	}
	return text
}
