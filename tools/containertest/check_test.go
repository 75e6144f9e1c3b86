//go:build linux

package main

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"strings"
	"testing"
)

func TestParseOptions(t *testing.T) {
	for args, want := range map[string]options{
		"":                     {false, true},
		"--fresh":              {true, true},
		"--without-vm":         {false, false},
		"--fresh --without-vm": {true, false},
	} {
		if got, err := parseOptions(strings.Fields(args)); err != nil || got != want {
			t.Errorf("%q: %+v, %v", args, got, err)
		}
	}
	for _, args := range []string{"--odd", "odd"} {
		if _, err := parseOptions([]string{args}); err == nil || !strings.Contains(err.Error(), "container-test --help") {
			t.Errorf("%s: %v", args, err)
		}
	}
	if _, err := parseOptions([]string{"-h"}); !errors.Is(err, flag.ErrHelp) {
		t.Errorf("-h: %v", err)
	}
}

// TestSuite: a check that passes is one line, one that fails shows what was printed.
func TestSuite(t *testing.T) {
	e, _ := fakeEngine(t, podman, "echo text; echo more >&2; exit 3")
	var out bytes.Buffer
	s := &suite{engine: e, out: &out}
	s.check(t.Context(), "good", func(*step) error { return nil })
	s.check(t.Context(), "bad", func(s *step) error { _, err := s.do("run", "image"); return err })
	s.leaveOut("odd", "no reason")
	want := "ok    good" + strings.Repeat(" ", 58-4) + "   0s\n" +
		"FAIL  bad" + strings.Repeat(" ", 58-3) + "   0s\n" +
		"      text\n      more\n      podman run image: exit status 3\n" +
		"left out: odd: no reason\n"
	if out.String() != want {
		t.Errorf("got:\n%swant:\n%s", &out, want)
	}
	if err := s.summary(); err == nil || err.Error() != "1 passed, 1 failed: bad" {
		t.Errorf("%v", err)
	}
	stopped, stop := context.WithCancel(t.Context())
	stop()
	s.check(stopped, "late", func(*step) error { t.Error("it runs after a signal"); return nil })
}

func TestSummary(t *testing.T) {
	var out bytes.Buffer
	if err := (&suite{out: &out, passed: 3}).summary(); err != nil || out.String() != "container-test: all 3 passed\n" {
		t.Errorf("%q, %v", &out, err)
	}
}

func TestStepRun(t *testing.T) {
	e, _ := fakeEngine(t, podman, `echo " out "; echo err >&2; exit "$1"`)
	s := &step{engine: e, ctx: t.Context()}
	if r, err := s.do("0"); err != nil || r != (result{"out", "out \nerr", 0}) {
		t.Errorf("%+v, %v", r, err)
	}
	if r, err := s.do("7"); err == nil || r.status != 7 || r.stdout != "out" {
		t.Errorf("%+v, %v", r, err)
	}
	if said, err := fails(s.do("1")); err != nil || said != "out \nerr" {
		t.Errorf("%q, %v", said, err)
	}
	if _, err := fails(s.do("0")); err == nil {
		t.Error("a program that succeeds is taken for one that fails")
	}
	for _, status := range []string{"0", "1"} {
		if said, err := anyway(s.do(status)); err != nil || said != "out \nerr" {
			t.Errorf("%q, %v", said, err)
		}
	}
	e.name = "no-such-engine"
	if _, err := fails(s.do("1")); err == nil {
		t.Error("a missing program is taken for one that fails")
	}
	if _, err := anyway(s.do("1")); err == nil {
		t.Error("a missing program has printed something")
	}
}
