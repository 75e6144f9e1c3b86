//go:build linux

package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"strings"
	"time"
)

// check is one property of the images.
type check struct {
	name string
	run  func(*step) error
}

// suite runs checks and counts them.
type suite struct {
	*engine
	out    io.Writer
	passed int
	failed []string
}

// check runs one check. The output of its programs is shown if it fails.
func (s *suite) check(ctx context.Context, name string, run func(*step) error) {
	if ctx.Err() != nil {
		return
	}
	begin := time.Now()
	this := &step{engine: s.engine, ctx: ctx}
	err := run(this)
	verdict := "ok   "
	if err != nil {
		verdict = "FAIL "
	}
	fmt.Fprintf(s.out, "%s %-58s %3ds\n", verdict, name, int(time.Since(begin).Seconds()))
	if err == nil {
		s.passed++
		return
	}
	s.failed = append(s.failed, name)
	this.notef("%v", err)
	for line := range strings.Lines(this.said.String()) {
		fmt.Fprintf(s.out, "      %s", line)
	}
}

// leaveOut reports that a check cannot run here.
func (s *suite) leaveOut(name, why string) { fmt.Fprintf(s.out, "left out: %s: %s\n", name, why) }

// summary returns an error if a check has failed.
func (s *suite) summary() error {
	if len(s.failed) > 0 {
		return fmt.Errorf("%d passed, %d failed: %s", s.passed, len(s.failed), strings.Join(s.failed, "; "))
	}
	fmt.Fprintf(s.out, "container-test: all %d passed\n", s.passed)
	return nil
}

// step is a check in progress, with the output of it and its programs.
type step struct {
	*engine
	ctx  context.Context
	said bytes.Buffer
}

// notef records something that helps if the check fails.
func (s *step) notef(format string, args ...any) { fmt.Fprintf(&s.said, format+"\n", args...) }

// result is the outcome of a program. Texts have no surrounding white space.
type result struct {
	stdout string
	all    string // followed by stderr
	status int
}

// run runs a program. If the status is not 0 it returns an error, together with a result unless the program could not
// be started.
func (s *step) run(cmd *exec.Cmd) (result, error) {
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	err := cmd.Run()
	all := stdout.String() + stderr.String()
	s.said.WriteString(all)
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		return result{}, err
	}
	r := result{strings.TrimSpace(stdout.String()), strings.TrimSpace(all), cmd.ProcessState.ExitCode()}
	if err != nil {
		return r, fmt.Errorf("%s: %w", strings.Join(cmd.Args, " "), err)
	}
	return r, nil
}

// do runs the engine.
func (s *step) do(args ...string) (result, error) { return s.run(s.command(s.ctx, args...)) }

// confined runs an image like compose.yaml: without any rights that it does not need.
func (s *step) confined(args ...string) (result, error) {
	return s.do(append([]string{"run", "--read-only", "--cap-drop", "ALL", "--security-opt", "no-new-privileges"}, args...)...)
}

// fails expects a program to fail on its own, and returns its output.
func fails(r result, err error) (string, error) {
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		return "", err
	}
	if err == nil {
		return "", errors.New("it succeeds, and should fail")
	}
	return r.all, nil
}

// anyway returns a program's output, whatever its status.
func anyway(r result, err error) (string, error) {
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		err = nil
	}
	return r.all, err
}

// says requires a text to contain each of the words.
func says(text string, words ...string) error {
	for _, word := range words {
		if !strings.Contains(text, word) {
			return fmt.Errorf("%q is not in: %s", word, text)
		}
	}
	return nil
}
