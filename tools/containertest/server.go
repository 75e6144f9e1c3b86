//go:build linux

package main

import (
	"errors"
	"fmt"
	"os"
	"regexp"
	"strings"
	"time"
)

// server, client and idle are the containers of the checks below. The network and the volume are named after the mark.
func (e *engine) server() string { return e.mark + "-server" }
func (e *engine) client() string { return e.mark + "-client" }
func (e *engine) idle() string   { return e.mark + "-idle" }

func (s *step) startServer() error {
	if _, err := s.do("network", "create", "--internal", s.mark); err != nil {
		return err
	}
	if _, err := s.do("volume", "create", s.mark); err != nil {
		return err
	}
	_, err := s.confined("-d", "--name", s.server(), "--network", s.mark, "--network-alias", "server", "-v", s.mark+":/srv/files", "rpcrdma")
	return err
}

// sumOfSums matches the last output of container-demo.
var sumOfSums = regexp.MustCompile(`SHA-256 of their sums is (\S+)`)

// sent returns the sum that the client printed, which it leaves in a file for later checks.
func (e *engine) sent() (string, error) {
	text, err := os.ReadFile(e.file("demo"))
	if err != nil {
		return "", errors.New("no client has sent anything")
	}
	m := sumOfSums.FindSubmatch(text)
	if m == nil {
		return "", errors.New("the client printed no sum")
	}
	return string(m[1]), nil
}

// stored returns the same sum for what the server has stored.
func (s *step) stored() (string, error) {
	r, err := s.confined("--rm", "-v", s.mark+":/srv/files:ro", "--entrypoint", "/bin/bash", "rpcrdma-demo", "-euo", "pipefail", "-c",
		`cd /srv/files/demo && find . -type f -print0 | sort -z | xargs -0 sha256sum | sha256sum | cut -d " " -f 1`)
	return r.stdout, err
}

func copiesWhole(s *step) error {
	if err := s.startServer(); err != nil {
		return err
	}
	r, err := s.confined("--rm", "--name", s.client(), "--network", s.mark, "--tmpfs", "/tmp:mode=1777", "rpcrdma-demo", "server:20049")
	if err != nil {
		return err
	}
	if err := os.WriteFile(s.file("demo"), []byte(r.stdout), 0o666); err != nil {
		return err
	}
	same, err := s.sumsAgree()
	if err == nil && !same {
		err = errors.New("what is stored is not what was sent")
	}
	return err
}

// sumsAgree compares the data sent with the data stored.
func (s *step) sumsAgree() (bool, error) {
	sent, err := s.sent()
	if err != nil {
		return false, err
	}
	stored, err := s.stored()
	s.notef("sent %s, stored %s", sent, stored)
	return sent == stored, err
}

func noticesDamage(s *step) error {
	if _, err := s.do("run", "--rm", "--user", "65532", "-v", s.mark+":/srv/files", "--entrypoint", "/bin/bash", "rpcrdma-demo",
		"-c", "printf x >>/srv/files/demo/1025.bin"); err != nil {
		return err
	}
	same, err := s.sumsAgree()
	if err == nil && same {
		err = errors.New("a file has changed, and the sums agree")
	}
	return err
}

// isConfined checks that the engine has removed all rights that the server does not need.
func isConfined(s *step) error {
	said, err := s.output(s.ctx, "inspect", "--format", "{{.HostConfig.ReadonlyRootfs}} {{.HostConfig.Privileged}}", s.server())
	if err != nil {
		return err
	}
	if said != "true false" {
		return fmt.Errorf("read-only and privileged are: %s", said)
	}
	pid, err := s.output(s.ctx, "inspect", "--format", "{{.State.Pid}}", s.server())
	if err != nil {
		return err
	}
	status, err := os.ReadFile("/proc/" + pid + "/status")
	if err != nil {
		return err
	}
	return confinedStatus(string(status))
}

var rootUser = regexp.MustCompile(`(?m)^Uid:\s0\s`)

// Immutable.
var confinedLines = []*regexp.Regexp{
	regexp.MustCompile(`(?m)^CapEff:\s0+$`),
	regexp.MustCompile(`(?m)^CapBnd:\s0+$`),
	regexp.MustCompile(`(?m)^NoNewPrivs:\s1$`),
}

// confinedStatus checks the status of a process, as in proc_pid_status(5).
func confinedStatus(status string) error {
	for _, line := range confinedLines {
		if !line.MatchString(status) {
			return fmt.Errorf("no line is %s:\n%s", line, status)
		}
	}
	if rootUser.MatchString(status) {
		return errors.New("the user is root")
	}
	return nil
}

// healthLimit is how long Docker may take to run a health check.
const healthLimit = time.Minute

func isHealthy(s *step) error {
	if s.name == podman {
		_, err := s.do("healthcheck", "run", s.server())
		return err
	}
	health := ""
	for end := time.Now().Add(healthLimit); time.Now().Before(end); {
		var err error
		if health, err = s.output(s.ctx, "inspect", "--format", "{{.State.Health.Status}}", s.server()); err != nil || health == "healthy" {
			return err
		}
		select {
		case <-time.After(time.Second):
		case <-s.ctx.Done():
			return s.ctx.Err()
		}
	}
	return fmt.Errorf("after %v it is %s", healthLimit, health)
}

// isUnhealthy runs the health check of the image next to a server on another port.
func isUnhealthy(s *step) error {
	if _, err := s.confined("-d", "--name", s.idle(), "--entrypoint", "/usr/bin/rpcrdma", "rpcrdma",
		"serve", "--addr", "127.0.0.1:20050", "--dir", "/srv/files"); err != nil {
		return err
	}
	_, err := fails(s.do("exec", s.idle(), "/usr/bin/rpcrdma", "ping", "-c", "1", "--timeout", "4s", "127.0.0.1:20049"))
	return err
}

// stopLimit is how long the server may take to exit. The engine kills it later than that.
const stopLimit = 15 * time.Second

func stopsAtOnce(s *step) error {
	begin := time.Now()
	if _, err := s.do("stop", "-t", "30", s.server()); err != nil {
		return err
	}
	took := time.Since(begin)
	status, err := s.output(s.ctx, "inspect", "--format", "{{.State.ExitCode}}", s.server())
	if err == nil && (strings.TrimSpace(status) != "0" || took >= stopLimit) {
		err = fmt.Errorf("status %s after %v", status, took)
	}
	return err
}
