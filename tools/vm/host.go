//go:build linux

package main

import (
	"cmp"
	"context"
	"debug/elf"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"time"
)

// host is this machine, and where this run keeps its files.
type host struct {
	scripts string // guest, and rdma, which the guest runs
	cache   string // kernels, kept for later runs
	work    string // for this run, removed at its end
}

// newHost also extends PATH to the programs for administrators, which a user's PATH may lack.
func newHost() (*host, error) {
	scripts, err := scriptsDir()
	if err != nil {
		return nil, err
	}
	cache, err := cacheDir()
	if err != nil {
		return nil, err
	}
	if err := os.Setenv("PATH", os.Getenv("PATH")+":/usr/sbin:/sbin"); err != nil {
		return nil, err
	}
	work, err := os.MkdirTemp("", "vm-")
	return &host{scripts: scripts, cache: cache, work: work}, err
}

func (h *host) close() { os.RemoveAll(h.work) }

// console returns the file with the output of the guest's kernel, qemuLog the one with QEMU's output, and control the
// directory shared with the guest.
func (h *host) console() string { return filepath.Join(h.work, "console") }
func (h *host) qemuLog() string { return filepath.Join(h.work, "qemu") }
func (h *host) control() string { return filepath.Join(h.work, "control") }

// scriptsVariable is how scripts/vm passes its directory. The guest does not get it.
const scriptsVariable = "RPCRDMA_VM_SCRIPTS"

func scriptsDir() (string, error) {
	dir := os.Getenv(scriptsVariable)
	if dir == "" {
		self, err := os.Executable()
		if err != nil {
			return "", err
		}
		dir = filepath.Dir(self)
	}
	dir, err := resolved(dir)
	if err != nil {
		return "", err
	}
	if _, err := os.Stat(filepath.Join(dir, "guest", "init")); err != nil {
		return "", fmt.Errorf("%w: set %s to the directory of scripts/vm", err, scriptsVariable)
	}
	return dir, nil
}

// cacheDir creates the cache if necessary.
func cacheDir() (string, error) {
	dir := os.Getenv("RPCRDMA_VM_CACHE")
	if dir == "" {
		parent := cmp.Or(os.Getenv("XDG_CACHE_HOME"), filepath.Join(os.Getenv("HOME"), ".cache"))
		dir = filepath.Join(parent, "rpcrdma", "vm")
	}
	if err := os.MkdirAll(dir, 0o777); err != nil {
		return "", fmt.Errorf("the kernel cannot be kept: %w: set RPCRDMA_VM_CACHE to a writable directory", err)
	}
	return resolved(dir)
}

// resolved makes a path absolute and free of symbolic links. The guest's init follows it before the host's file system
// is its root, where the target of an absolute link would be another file.
func resolved(path string) (string, error) {
	path, err := filepath.Abs(path)
	if err != nil {
		return "", err
	}
	return filepath.EvalSymlinks(path)
}

// ---- what this machine must have

// requirement is a required program, with its Debian package.
type requirement struct {
	pkg, program string
	static       bool // statically linked, as nothing else is in the initial RAM disk
}

func requirements(opts *options) []requirement {
	list := []requirement{
		{pkg: "qemu-system-x86", program: qemu},
		{pkg: "busybox-static", program: "busybox", static: true},
		{pkg: "kmod", program: "modprobe"},
		{pkg: "iproute2", program: "rdma"},
	}
	if opts.nfsd {
		list = append(list, requirement{pkg: "nfs-kernel-server", program: "rpc.nfsd"})
	}
	return list
}

func (r requirement) met() bool {
	path, err := exec.LookPath(r.program)
	return err == nil && (!r.static || isStatic(path))
}

// isStatic reports whether a program runs without a dynamic linker.
func isStatic(path string) bool {
	f, err := elf.Open(path)
	if err != nil {
		return false
	}
	defer f.Close()
	for _, p := range f.Progs {
		if p.Type == elf.PT_INTERP {
			return false
		}
	}
	return true
}

// missingError lists the packages that this machine lacks.
type missingError struct {
	packages []string
	setup    string // script that installs them
}

func (e *missingError) Error() string {
	return fmt.Sprintf("missing on this machine: %s (Debian packages); '%s vm' installs what is needed",
		strings.Join(e.packages, " "), e.setup)
}

// check returns a [missingError] if a requirement is not met.
func (h *host) check(list []requirement) error {
	if runtime.GOARCH != "amd64" {
		return fmt.Errorf("this machine is %s: only x86-64 is supported so far", runtime.GOARCH)
	}
	var missing []string
	for _, r := range list {
		if !r.met() {
			missing = append(missing, r.pkg)
		}
	}
	if len(missing) > 0 {
		return &missingError{missing, filepath.Join(h.scripts, "setup")}
	}
	return nil
}

// ---- programs and locks

// killDelay is how long a program may take to end after SIGTERM.
const killDelay = 3 * time.Second

// command prepares a program that gets SIGTERM when the context ends, or when this process ends for any reason, and
// SIGKILL killDelay later. It has its own process group, so that Ctrl-C reaches only this process, which then stops it
// properly.
func command(ctx context.Context, name string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGTERM}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGTERM) }
	cmd.WaitDelay = killDelay
	return cmd
}

// lock takes the lock of the cache, and calls waiting if another run holds it. It polls because a blocked flock cannot
// be interrupted in Go.
func (h *host) lock(ctx context.Context, waiting func()) (unlock func(), err error) {
	f, err := os.OpenFile(filepath.Join(h.cache, "lock"), os.O_RDWR|os.O_CREATE, 0o666)
	if err != nil {
		return nil, err
	}
	poll := time.NewTicker(100 * time.Millisecond)
	defer poll.Stop()
	for first := true; ; first = false {
		err = syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		if err == nil {
			return func() { f.Close() }, nil
		}
		if !errors.Is(err, syscall.EWOULDBLOCK) && !errors.Is(err, syscall.EINTR) {
			f.Close()
			return nil, err
		}
		if first {
			waiting()
		}
		select {
		case <-poll.C:
		case <-ctx.Done():
			f.Close()
			return nil, context.Cause(ctx)
		}
	}
}
