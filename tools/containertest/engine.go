//go:build linux

package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"time"
)

// engine builds images and runs containers.
type engine struct {
	name string // docker or podman
	mark string // part of the name of everything that is started
	work string // directory for temporary files

	stopService func() // ends Podman's service; may be nil
}

const (
	docker = "docker"
	podman = "podman"
)

// findEngine returns Docker if it is running, otherwise Podman.
func findEngine(ctx context.Context) (*engine, error) {
	e := &engine{name: docker, mark: fmt.Sprintf("rpcrdma-test-%d", os.Getpid())}
	if exec.CommandContext(ctx, docker, "info").Run() != nil {
		e.name = podman
		if _, err := exec.LookPath(podman); err != nil {
			return nil, errors.New("neither a running Docker nor podman here: 'scripts/setup container-test' installs podman")
		}
		if out, err := exec.CommandContext(ctx, podman, "info").CombinedOutput(); err != nil {
			return nil, fmt.Errorf("podman does not work here: %s", bytes.TrimSpace(out))
		}
	}
	version, err := e.output(ctx, "--version")
	if err != nil {
		return nil, err
	}
	say("engine: %s", version)
	e.work, err = os.MkdirTemp("", "container-test-")
	return e, err
}

// command prepares a run of the engine. When the context ends, the engine gets a signal to terminate, because it has
// containers to stop.
func (e *engine) command(ctx context.Context, args ...string) *exec.Cmd {
	return gentle(exec.CommandContext(ctx, e.name, args...))
}

// gentle makes a program terminate with SIGTERM, and later forcibly.
func gentle(cmd *exec.Cmd) *exec.Cmd {
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = 15 * time.Second
	return cmd
}

// output runs the engine and returns its output. The error includes its stderr.
func (e *engine) output(ctx context.Context, args ...string) (string, error) {
	out, err := e.command(ctx, args...).Output()
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		err = fmt.Errorf("%s %s: %w: %s", e.name, strings.Join(args, " "), err, bytes.TrimSpace(exit.Stderr))
	}
	return string(bytes.TrimSpace(out)), err
}

func (e *engine) file(name string) string { return filepath.Join(e.work, name) }

// close removes everything that was started, even after a signal.
func (e *engine) close() {
	defer os.RemoveAll(e.work)
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	_ = e.compose(ctx, "down", "-v").Run()
	for _, kind := range []struct{ list, remove []string }{
		{[]string{"ps", "-aq"}, []string{"rm", "-f"}},
		{[]string{"volume", "ls", "-q"}, []string{"volume", "rm", "-f"}},
		{[]string{"network", "ls", "--format", "{{.Name}}"}, []string{"network", "rm"}},
	} {
		names, err := e.output(ctx, append(kind.list, "--filter", "name="+e.mark)...)
		if err == nil && names != "" {
			_ = e.command(ctx, append(kind.remove, strings.Fields(names)...)...).Run()
		}
	}
	if e.stopService != nil {
		e.stopService()
	}
}

// ---- what keeps Podman from starting containers

// hindrance is a reason why a container cannot be started, for which there is a workaround.
type hindrance int

const (
	none    hindrance = iota // or nothing known here
	limits                   // a root without CAP_SYS_RESOURCE may not raise limits, as inside of other containers
	cgroups                  // cgroups of both versions, more than crun supports, as in small virtual machines
)

// hindranceIn finds the hindrance from the message of a container runtime, crun or runc.
func hindranceIn(said string) hindrance {
	for _, known := range []struct {
		words string
		hindrance
	}{
		{"setrlimit", limits},
		{"RLIMIT_", limits},
		{"setting rlimit", limits},
		{"hybrid mode", cgroups},
	} {
		if strings.Contains(said, known.words) {
			return known.hindrance
		}
	}
	return none
}

// noProgram matches the messages of runtimes when an image lacks a program.
var noProgram = regexp.MustCompile(`no such file|not found|No such file`)

// settle finds out with an empty image what keeps Podman from starting containers, and writes a configuration that
// avoids it. The desired answer is that the image does not contain the program.
func (e *engine) settle(ctx context.Context) error {
	if e.name != podman {
		return nil
	}
	if err := e.importEmpty(ctx); err != nil {
		return err
	}
	image := "localhost/" + e.mark
	defer func() { _ = e.command(context.WithoutCancel(ctx), "rmi", "-f", image).Run() }()
	conf := configuration{netavark: installed(netavark)}
	var said []byte
	for range 3 { // each hindrance, and then none
		if err := e.configure(conf); err != nil {
			return err
		}
		said, _ = e.command(ctx, "run", "--rm", image, "/none").CombinedOutput()
		switch hindranceIn(string(said)) {
		case limits:
			if err := conf.avoidLimits(); err != nil {
				return err
			}
			say("limits of containers may not be raised here: they get this machine's")
			continue
		case cgroups:
			if _, err := exec.LookPath("runc"); err != nil {
				return fmt.Errorf("crun does not run here (%s), and runc is not installed", bytes.TrimSpace(said))
			}
			conf.runtime = "runc"
			say("this machine has cgroups of both versions: runc instead of crun")
			continue
		}
		break
	}
	if !noProgram.Match(said) {
		return fmt.Errorf("podman does not start containers here: %s", bytes.TrimSpace(said))
	}
	return nil
}

func (e *engine) importEmpty(ctx context.Context) error {
	archive := e.file("empty.tar")
	// The end of a tar file: two blocks of zeros.
	if err := os.WriteFile(archive, make([]byte, 1024), 0o666); err != nil {
		return err
	}
	if _, err := e.output(ctx, "import", "--quiet", archive, "localhost/"+e.mark); err != nil {
		return fmt.Errorf("podman does not import an image: %w", err)
	}
	return nil
}

// netavark is where Podman's packages install the program that connects its networks.
const netavark = "/usr/lib/podman/netavark"

// configuration is read by Podman from containers.conf.
type configuration struct {
	ulimits string // limits of containers; empty: the default
	runtime string // empty: the default

	// netavark is set where it is installed. A Podman that was first used without it keeps using networks in which
	// containers cannot find each other by name.
	netavark bool
}

// avoidLimits gives containers the limits that this process has.
func (c *configuration) avoidLimits() error {
	var files syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &files); err != nil {
		return err
	}
	c.ulimits = fmt.Sprintf("\"nofile=%d:%d\", \"nproc=4096:4096\"", files.Max, files.Max)
	return nil
}

func (c configuration) String() string {
	text := "[containers]\n"
	if c.ulimits != "" {
		text += "default_ulimits = [" + c.ulimits + "]\n"
	}
	text += "[engine]\n"
	if c.runtime != "" {
		text += fmt.Sprintf("runtime = %q\n", c.runtime)
	}
	if c.netavark {
		text += "[network]\nnetwork_backend = \"netavark\"\n"
	}
	return text
}

// configurationVariable tells Podman where its configuration is.
const configurationVariable = "CONTAINERS_CONF"

// configure makes every later run of Podman use a configuration.
func (e *engine) configure(c configuration) error {
	file := e.file("containers.conf")
	if err := os.WriteFile(file, []byte(c.String()), 0o666); err != nil {
		return err
	}
	return os.Setenv(configurationVariable, file)
}
