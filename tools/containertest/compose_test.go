//go:build linux

package main

import (
	"bytes"
	"path/filepath"
	"strings"
	"testing"
)

// TestStartCompose: Docker's plugin, otherwise docker-compose, which needs a service of
// Podman.
func TestStartCompose(t *testing.T) {
	e, _ := fakeEngine(t, docker, "")
	if err := e.startCompose(t.Context()); err != nil {
		t.Errorf("Docker with its plugin: %v", err)
	}
	if got := e.compose(t.Context(), "up").Args; strings.Join(got, " ") != "docker compose up" {
		t.Errorf("%v", got)
	}

	e, calls := fakeEngine(t, docker, "exit 1")
	t.Setenv("PATH", filepath.Dir(calls))
	if err := e.startCompose(t.Context()); err == nil || !strings.Contains(err.Error(), "neither") {
		t.Errorf("no compose at all: %v", err)
	}
	write(t, filepath.Join(filepath.Dir(calls), "docker-compose"), "#!/bin/sh\n")
	if err := e.startCompose(t.Context()); err != nil {
		t.Errorf("Docker with docker-compose: %v", err)
	}
	if got := e.compose(t.Context(), "up").Args; strings.Join(got, " ") != "docker-compose up" {
		t.Errorf("%v", got)
	}
}

func TestStartService(t *testing.T) {
	t.Setenv("DOCKER_HOST", "")
	e, _ := fakeEngine(t, podman, `shift 4; : >"${1#unix://}"; exec sleep 60`)
	if err := e.startService(); err != nil {
		t.Errorf("%v", err)
	}
	e.stopService()
	e, _ = fakeEngine(t, podman, "echo no socket >&2; exit 125")
	if err := e.startService(); err == nil || err.Error() != "podman's service does not start: no socket" {
		t.Errorf("%v", err)
	}
	e.stopService()
}

// TestComposed: command lines run in their order, until one fails.
func TestComposed(t *testing.T) {
	s := fakeStep(t, "")
	calls := filepath.Join(t.TempDir(), "calls")
	t.Setenv("PATH", filepath.Dir(calls)+":/usr/bin:/bin")
	write(t, filepath.Join(filepath.Dir(calls), "docker-compose"), "#!/bin/sh\necho \"$COMPOSE_PROJECT_NAME $*\" >>"+calls+"\n[ \"$1\" != bad ]\n")
	run := composed([]string{"one"}, []string{"bad", "two"}, []string{"three"})
	if err := run(s); err == nil {
		t.Error("a command that fails is none of a check's business")
	}
	if got := text(t, calls); got != "mark one\nmark bad two\n" {
		t.Errorf("%s", got)
	}
}

// TestComposeLeftOut: a machine without compose leaves it out, by name and reason.
func TestComposeLeftOut(t *testing.T) {
	e, calls := fakeEngine(t, podman, "")
	t.Setenv("PATH", filepath.Dir(calls))
	var out bytes.Buffer
	s := &suite{engine: e, out: &out}
	s.testCompose(t.Context(), true)
	if out.String() != "left out: compose.yaml: neither 'docker compose' nor docker-compose here\n" || len(s.failed) > 0 {
		t.Errorf("%s, failed %v", &out, s.failed)
	}
}
