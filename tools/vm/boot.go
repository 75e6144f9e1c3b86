//go:build linux

package main

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync"
	"time"
)

// guest is a virtual machine that runs one command.
type guest struct {
	*host
	opts           *options
	out            string // --out, resolved; empty: not set
	stdout, stderr *os.File
	patience       time.Duration // CPU time within which it must reach the command
}

// file returns the path of a file in the control directory.
func (g *guest) file(name string) string { return filepath.Join(g.control(), name) }

// started reports whether the guest reached the command.
func (g *guest) started() bool {
	_, err := os.Stat(g.file(controlStarted))
	return err == nil
}

// run starts the guest and returns the exit status of its command. A guest that hangs before it reaches the command is
// restarted once.
func (g *guest) run(ctx context.Context, m *machine) (int, error) {
	status, err := g.boot(ctx, m, true)
	if errors.Is(err, errHangs) {
		say("%v: starting it again", err)
		showLastLines("the kernel's console", g.console())
		status, err = g.boot(ctx, m, false)
	}
	if errors.Is(err, errPanicked) && g.out != "" {
		err = errors.Join(err, g.keepConsole())
	}
	return status, err
}

// keepConsole copies what the kernel printed to --out.
func (g *guest) keepConsole() error {
	text, err := os.ReadFile(g.console())
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(g.out, "console"), text, 0o666)
}

// arguments returns the arguments for QEMU.
func (g *guest) arguments(m *machine) []string {
	more := []string{
		"-smp", strconv.Itoa(g.opts.cpus), "-m", strconv.Itoa(g.opts.memory), "-serial", "file:" + g.console(),
		"-virtfs", share("root", "/") + ",readonly=on", "-virtfs", share("control", g.control()),
	}
	if g.out != "" {
		more = append(more, "-virtfs", share("out", g.out))
	}
	return m.args(more)
}

// boot runs the machine once, under the time limit, and copies its output to ours. It returns errHangs only if the
// guest is watched.
func (g *guest) boot(parent context.Context, m *machine, watched bool) (int, error) {
	limited, cancel := context.WithTimeoutCause(parent, g.opts.limit, &limitError{limit: g.opts.limit})
	defer cancel()
	ctx, stop := context.WithCancelCause(limited)
	defer stop(nil)

	streams, err := g.streams()
	if err != nil {
		return 0, err
	}
	cmd, err := g.start(ctx, m)
	if err != nil {
		return 0, err
	}
	ended := make(chan struct{})
	var helpers sync.WaitGroup
	help := func(do func() error) {
		helpers.Go(func() {
			if err := do(); err != nil {
				stop(err)
			}
		})
	}
	for _, s := range streams {
		help(func() error { return s.follow(ended) })
	}
	if watched {
		used := func() (time.Duration, error) { return processorTime(cmd.Process.Pid) }
		help(func() error { return watch(ended, g.patience, g.started, used) })
	}
	_ = cmd.Wait() // its state is more informative
	close(ended)
	helpers.Wait()
	return g.result(context.Cause(ctx), programStatus(cmd.ProcessState))
}

// start starts QEMU.
func (g *guest) start(ctx context.Context, m *machine) (*exec.Cmd, error) {
	log, err := os.Create(g.qemuLog())
	if err != nil {
		return nil, err
	}
	defer log.Close()
	cmd := command(ctx, qemu, g.arguments(m)...)
	cmd.Stdout, cmd.Stderr = log, log
	return cmd, cmd.Start()
}
