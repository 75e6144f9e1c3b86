//go:build linux

// Containertest builds the container images and tests them, as far as this machine
// allows: it prints what it leaves out, and why. scripts/container-test builds and runs it,
// in the root of the working tree. It checks that
//
//   - the runtime image is small and labelled, has no shell, does not run as root, and is complete:
//     the command and every libibverbs driver find their libraries;
//   - a server and a client in separate containers, with a read-only root, no capabilities and a
//     private network, copy files with the right checksums; and that a damaged file is detected;
//   - the health check passes with a server and fails without one; the server exits on SIGTERM with
//     status 0; errors have status 1; the benchmarks run;
//   - with devices, of this machine or of a virtual machine, containers confined in the same way copy
//     files over rxe and siw, and errors appear when device files, limit or permission are missing;
//   - compose.yaml works, including the virtual machine.
//
// Without access to a registry it builds the base images itself, and says so.
//
//	main.go      the order of it all
//	engine.go    Docker or Podman, and what keeps Podman from starting containers here
//	images.go    base images and ours
//	check.go     runs a check and counts it
//	runtime.go   checks of one image
//	server.go    checks of a server and its clients
//	devices.go   checks with RDMA devices
//	compose.go   checks of compose.yaml
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"
)

const usage = `usage: scripts/container-test [--fresh] [--without-vm]

Builds the images and tests them, as far as this machine allows: what is left out
is printed, with the reason.

  --fresh        make the base images again, where they come from Debian packages
  --without-vm   do not boot the virtual machine, which takes minutes without KVM

The engine is Docker if it runs, otherwise Podman. Where no registry can be reached the
base images are made of Debian packages and of this machine's Go.
`

// statusSignal is the exit status after a signal.
const statusSignal = 129

// options holds the command line.
type options struct {
	fresh bool // make the base images again
	vm    bool // start the virtual machine
}

func parseOptions(args []string) (options, error) {
	f := flag.NewFlagSet("container-test", flag.ContinueOnError)
	f.SetOutput(io.Discard)
	fresh := f.Bool("fresh", false, "")
	without := f.Bool("without-vm", false, "")
	err := f.Parse(args)
	if err == nil && f.NArg() > 0 {
		err = fmt.Errorf("unknown argument '%s'", f.Arg(0))
	}
	if err != nil && !errors.Is(err, flag.ErrHelp) {
		err = fmt.Errorf("%w: see 'scripts/container-test --help'", err)
	}
	return options{*fresh, !*without}, err
}

func main() { os.Exit(run(os.Args[1:])) }

// run returns the exit status of the program.
func run(args []string) int {
	opts, err := parseOptions(args)
	if errors.Is(err, flag.ErrHelp) {
		fmt.Print(usage)
		return 0
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGHUP, syscall.SIGINT, syscall.SIGQUIT, syscall.SIGTERM)
	defer stop()
	if err == nil {
		err = testAll(ctx, opts)
	}
	if ctx.Err() != nil {
		return statusSignal
	}
	if err != nil {
		fmt.Fprintf(os.Stderr, "container-test: %v\n", err)
		return 1
	}
	return 0
}

// say prints progress.
func say(format string, args ...any) { fmt.Printf("container-test: "+format+"\n", args...) }

// testAll builds the images and runs every check that this machine supports.
func testAll(ctx context.Context, opts options) error {
	// A user's PATH may lack the programs for administrators.
	if err := os.Setenv("PATH", os.Getenv("PATH")+":/usr/sbin:/sbin"); err != nil {
		return err
	}
	e, err := findEngine(ctx)
	if err != nil {
		return err
	}
	defer e.close()
	if err := e.settle(ctx); err != nil {
		return err
	}
	b, err := e.findBases(ctx, opts.fresh)
	if err != nil {
		return err
	}
	if err := e.buildImages(ctx, b, opts.vm); err != nil {
		return err
	}
	s := &suite{engine: e, out: os.Stdout}
	for _, c := range checks() {
		s.check(ctx, c.name, c.run)
	}
	s.testDevices(ctx, opts.vm)
	s.testCompose(ctx, opts.vm)
	return s.summary()
}

// checks returns the checks that need only an engine, in a valid order: those of the server share one.
func checks() []check {
	return []check{
		{"the runtime image has at most 120 MB", isSmall},
		{"it has labels", hasLabels},
		{"it has no shell and no package manager", hasNoShell},
		{"the images do not run as root", isUnprivileged},
		{"the command and all drivers find their libraries", linksWhole},
		{"the command has both providers", runsRDMA},
		{"two containers copy files, confined: equal checksums", copiesWhole},
		{"a file that is damaged on the server is noticed", noticesDamage},
		{"the server has no capabilities and writes nowhere else", isConfined},
		{"the health check passes with a server", isHealthy},
		{"the health check fails without", isUnhealthy},
		{"the server ends when it is told to, with status 0", stopsAtOnce},
		{"a client without a server says why, with status 1", failsAlone},
		{"the benchmarks run", benchmarksRun},
	}
}
