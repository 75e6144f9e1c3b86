//go:build linux

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"time"
)

// compose prepares a run of the compose.yaml project, with the plugin of Docker, or with docker-compose, which reaches
// Podman through its Docker-compatible API.
func (e *engine) compose(ctx context.Context, args ...string) *exec.Cmd {
	program := []string{"docker-compose"}
	if e.hasPlugin(ctx) {
		program = []string{docker, "compose"}
	}
	args = append(program[1:], args...)
	cmd := gentle(exec.CommandContext(ctx, program[0], args...))
	cmd.Env = append(os.Environ(), "COMPOSE_PROJECT_NAME="+e.mark) // a project for this run only
	return cmd
}

func (e *engine) hasPlugin(ctx context.Context) bool {
	return e.name == docker && exec.CommandContext(ctx, docker, "compose", "version").Run() == nil
}

// startCompose makes compose work. The error is the reason why it does not.
func (e *engine) startCompose(ctx context.Context) error {
	if e.hasPlugin(ctx) {
		return nil
	}
	if !installed("docker-compose") {
		return errors.New("neither 'docker compose' nor docker-compose here")
	}
	if e.name != podman {
		return nil
	}
	return e.startService()
}

// serviceLimit is how long Podman's service may take to listen.
const serviceLimit = 10 * time.Second

// startService starts the Podman service that docker-compose needs. It runs until the engine is closed, even after a
// signal, because compose removes containers through it.
func (e *engine) startService() error {
	socket, said := e.file("podman.sock"), e.file("service")
	log, err := os.Create(said)
	if err != nil {
		return err
	}
	defer log.Close()
	ctx, end := context.WithCancel(context.Background())
	cmd := e.command(ctx, "system", "service", "--time", "0", "unix://"+socket)
	cmd.Stdout, cmd.Stderr = log, log
	if err := cmd.Start(); err != nil {
		end()
		return err
	}
	ended := make(chan struct{})
	go func() { _ = cmd.Wait(); close(ended) }()
	e.stopService = func() { end(); <-ended }
	if !appears(socket, ended, serviceLimit) {
		text, _ := os.ReadFile(said)
		return fmt.Errorf("podman's service does not start: %s", lastLine(text))
	}
	return os.Setenv("DOCKER_HOST", "unix://"+socket)
}

// appears waits for a file as long as the process that creates it is running.
func appears(file string, ended <-chan struct{}, limit time.Duration) bool {
	look := time.NewTicker(100 * time.Millisecond)
	defer look.Stop()
	late := time.After(limit)
	for {
		if _, err := os.Stat(file); err == nil {
			return true
		}
		select {
		case <-look.C:
		case <-ended:
			return false
		case <-late:
			return false
		}
	}
}

// composed returns a check that runs each command line of compose.
func composed(commands ...[]string) func(*step) error {
	return func(s *step) error {
		for _, args := range commands {
			if _, err := s.run(s.compose(s.ctx, args...)); err != nil {
				return err
			}
		}
		return nil
	}
}

// vmComposed lets the virtual machine use KVM if this machine has it.
func vmComposed(s *step) error {
	const kvm = "/dev/kvm"
	cmd := s.compose(s.ctx, "run", "-T", "--rm", "vm")
	device := kvm
	if info, err := os.Stat(kvm); err != nil || info.Mode()&os.ModeCharDevice == 0 {
		device = os.DevNull
	}
	cmd.Env = append(cmd.Env, "RPCRDMA_KVM="+device)
	_, err := s.run(cmd)
	return err
}

func (s *suite) testCompose(ctx context.Context, vm bool) {
	if err := s.startCompose(ctx); err != nil {
		s.leaveOut("compose.yaml", err.Error())
		return
	}
	s.check(ctx, "compose.yaml: the client's demonstration", composed(
		[]string{"config", "-q"}, []string{"run", "-T", "--rm", "client"}, []string{"down", "-v"}))
	if hasDevices() {
		s.check(ctx, "compose.yaml: the same on RDMA devices", composed(
			[]string{"run", "-T", "--rm", "device-client"}, []string{"--profile", "devices", "down", "-v"}))
	} else {
		s.leaveOut("compose.yaml: RDMA devices", "there is no "+devicesDir+" here")
	}
	switch {
	case !vm:
		s.leaveOut("compose.yaml: the virtual machine", "--without-vm")
	case runtime.GOARCH != "amd64":
		s.leaveOut("compose.yaml: the virtual machine", "it is for x86-64, this is "+runtime.GOARCH)
	default:
		s.check(ctx, "compose.yaml: the virtual machine's demonstration", vmComposed)
	}
}
