//go:build linux

// Vm runs a command in a virtual machine that has RDMA devices. The kernel is
// Debian's. The root file system is this machine's, read-only, below a layer that
// takes every change and is discarded. The command, the files it needs and the
// directory it runs in are therefore the same inside, and no change to files remains.
//
// scripts/vm builds and runs this program; its --help describes the options. The
// program needs the scripts that run inside the machine: guest and rdma, in the
// directory that RPCRDMA_VM_SCRIPTS names, by default the program's own.
//
// One run goes through these steps, each in a file of its own:
//
//	options.go   the command line
//	host.go      the programs this machine must have, the cache and its lock
//	kernel.go    the guest's kernel: from the cache, or built from Debian's packages (apt.go)
//	initrd.go    the initial RAM disk: busybox, our init, kernel modules (modules.go, cpio.go)
//	qemu.go      QEMU's arguments; kvm.go finds out whether KVM works
//	job.go       what the guest is to do
//	boot.go      QEMU runs; watchdog.go sees a guest that hangs, follow.go copies the output
//	result.go    what the run amounts to: exit statuses and messages
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"syscall"
)

const usage = `usage: scripts/vm [OPTION...] [--] COMMAND [ARG...]

Runs COMMAND in a virtual machine with RDMA devices, in the directory of the same
name, with an empty stdin; stdout, stderr and exit status are the command's.

  --dev rxe|siw|both|none  devices to set up (both)
  --timeout SECONDS        time limit for the virtual machine (900)
  --mem MiB                memory (3072), which includes what the command writes to files
  --cpus N                 processors (2)
  --out DIR                DIR is writable inside, and what is written remains; its path
                           is in $RPCRDMA_OUT; if the kernel panics, DIR/console is what
                           it printed
  --nfsd                   first start the kernel's NFS server: it exports the empty directory
                           $RPCRDMA_NFSD_DIR over TCP, and over RDMA on $RPCRDMA_NFSD_PORT
  --accel auto|kvm|tcg     auto takes KVM if it works here, otherwise TCG
  --plugin FILE[,NAME=VALUE]
                           with a plugin of QEMU, in TCG, where the clock counts instructions:
                           a nanosecond each, whatever else this machine does; with --cpus 1
  --kernel-package NAME    Debian package of the kernel (linux-image-amd64)
  --console                also show the kernel's console on stderr
  -h, --help               this text

The devices are rxe0 (RoCE, on 10.9.9.1 and fd09:9::1) and siw0 (iWARP, on 10.9.8.1
and fd09:8::1). The command finds the addresses in RPCRDMA_RXE_ADDR, RPCRDMA_RXE_ADDR6,
RPCRDMA_SIW_ADDR and RPCRDMA_SIW_ADDR6. It also gets PATH, HOME, and the variables
whose names begin with RPCRDMA_ or GO; TMPDIR is a file system of its own. It runs as
root, and 'modprobe' loads every module of the kernel package.

As the -exec of go test:
  go test -exec "$PWD/scripts/vm --dev rxe" ./rdmacm

Exit status: the command's; 124 after the time limit; 125 when the virtual machine
itself fails.

The first run fetches and builds the kernel: some 220 MB of packages, some 450 MB in
$RPCRDMA_VM_CACHE (~/.cache/rpcrdma/vm). Delete that directory to fetch it again.
Host: Debian on x86-64 for now; root is not needed.
`

func main() { os.Exit(run(os.Args[1:])) }

// run returns the exit status of the program.
func run(args []string) int {
	opts, err := parseOptions(args)
	if errors.Is(err, flag.ErrHelp) {
		fmt.Print(usage)
		return 0
	}
	if err != nil {
		say("%v", err)
		return statusFailed
	}
	ctx, stop := untilSignal(context.Background())
	defer stop()
	h, err := newHost()
	if err != nil {
		say("%v", err)
		return statusFailed
	}
	defer h.close()
	status, err := h.run(ctx, opts)
	if ctx.Err() != nil { // any failure was a consequence of that
		err = context.Cause(ctx)
	}
	if err != nil {
		h.explain(err)
		return exitStatus(err)
	}
	return status
}

// run returns the exit status of the command.
func (h *host) run(ctx context.Context, opts *options) (int, error) {
	if err := h.check(requirements(opts)); err != nil {
		return 0, err
	}
	k, err := h.kernel(ctx, opts.kernelPackage)
	if err != nil {
		return 0, err
	}
	m := &machine{kernel: k.image(), accel: opts.accel, plugin: opts.plugin}
	if m.initrd, err = h.initrd(ctx, k); err != nil {
		return 0, err
	}
	if m.accel == "auto" {
		if m.accel, err = h.accel(ctx, m); err != nil {
			return 0, err
		}
	}
	g, err := h.newGuest(opts, k)
	if err != nil {
		return 0, err
	}
	return g.run(ctx, m)
}

// explain tells the user why there is no exit status of the command, and shows the machine's output. The sender of a
// signal, or the reader that closed our output, knows the reason.
func (h *host) explain(err error) {
	var by *signalError
	if errors.As(err, &by) || errors.Is(err, syscall.EPIPE) {
		return
	}
	say("%v", err)
	showLastLines("the kernel's console", h.console())
	showLastLines("QEMU", h.qemuLog())
}

// say prints a message for the user.
func say(format string, args ...any) { fmt.Fprintf(os.Stderr, "vm: "+format+"\n", args...) }

// untilSignal returns a context that ends with a [signalError] when the user stops the program. Writing to a closed
// pipe becomes an error instead of a signal, so that QEMU and temporary files are cleaned up in that case too.
func untilSignal(parent context.Context) (context.Context, func()) {
	ctx, cancel := context.WithCancelCause(parent)
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGHUP, syscall.SIGINT, syscall.SIGQUIT, syscall.SIGTERM)
	// Not signal.Ignore, which all started programs would inherit.
	signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE)
	go func() {
		select {
		case s := <-signals:
			cancel(&signalError{s.(syscall.Signal)})
		case <-ctx.Done():
		}
	}()
	return ctx, func() { cancel(nil) }
}
