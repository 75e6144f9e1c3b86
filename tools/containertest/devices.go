//go:build linux

package main

import (
	"cmp"
	"context"
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// devicesDir exists if this machine has RDMA devices.
const devicesDir = "/dev/infiniband"

// vmAddresses are the addresses of the virtual machine's devices. Immutable.
var vmAddresses = []string{"10.9.9.1", "10.9.8.1"}

// situation determines where the checks with devices can run.
type situation struct {
	devices bool // this machine has RDMA devices
	root    bool // we are root
	vm      bool // the virtual machine may be started
	podman  bool // podman is installed
	qemu    bool
	kernel  bool // a kernel for the virtual machine exists or can be downloaded
}

// obstacle returns the reason why there are no devices to test with, or "".
func (s situation) obstacle() string {
	switch {
	case !s.podman:
		return "no podman here"
	case s.devices && !s.root:
		return "a container of a user may have no devices: root runs it"
	case s.devices:
		return ""
	case !s.qemu:
		return "no " + qemu + " here"
	case !s.vm:
		return "--without-vm, and this machine has none"
	case !s.kernel:
		return "no kernel of Debian's for the virtual machine"
	}
	return ""
}

const (
	qemu       = "qemu-system-x86_64"
	vmKernel   = "linux-image-amd64"
	devicesJob = "scripts/container-devices"
)

func findSituation(ctx context.Context, vm bool) situation {
	return situation{
		devices: hasDevices(), root: os.Getuid() == 0, vm: vm,
		podman: installed(podman), qemu: installed(qemu), kernel: hasKernel(ctx),
	}
}

func hasDevices() bool {
	_, err := os.Stat(devicesDir)
	return !errors.Is(err, fs.ErrNotExist)
}

func installed(program string) bool {
	_, err := exec.LookPath(program)
	return err == nil
}

// hasKernel checks the cache of scripts/vm, then the package lists.
func hasKernel(ctx context.Context) bool {
	cache := cmp.Or(os.Getenv("XDG_CACHE_HOME"), filepath.Join(os.Getenv("HOME"), ".cache"))
	cache = cmp.Or(os.Getenv("RPCRDMA_VM_CACHE"), filepath.Join(cache, "rpcrdma", "vm"))
	if _, err := os.Stat(filepath.Join(cache, vmKernel)); err == nil {
		return true
	}
	return exec.CommandContext(ctx, "apt-cache", "show", vmKernel).Run() == nil
}

func (s *suite) testDevices(ctx context.Context, vm bool) {
	const what = "confined containers with RDMA devices copy files"
	if why := findSituation(ctx, vm).obstacle(); why != "" {
		s.leaveOut(what, why)
		return
	}
	s.check(ctx, what, onDevices)
}

// onDevices runs scripts/container-devices on the devices of this machine, or otherwise on those of the virtual
// machine. It uses this machine's files, so podman and the image are available there. Podman needs no workarounds
// there.
func onDevices(s *step) error {
	archive := s.file("rpcrdma.tar")
	if _, err := s.do("save", "-o", archive, "rpcrdma"); err != nil {
		return err
	}
	args := append([]string{"scripts/vm", "--dev", "both", "--", devicesJob, archive}, vmAddresses...)
	if hasDevices() {
		status, err := s.run(exec.CommandContext(s.ctx, "scripts/rdma", "status"))
		if err != nil {
			return err
		}
		args = append([]string{devicesJob, archive}, activeAddresses(status.stdout)...)
	}
	cmd := gentle(exec.CommandContext(s.ctx, args[0], args[1:]...))
	cmd.Env = append(os.Environ(), configurationVariable+"=")
	_, err := s.run(cmd)
	return err
}

// activeAddresses returns the first address of each active device in the output of scripts/rdma status.
func activeAddresses(status string) (addresses []string) {
	for line := range strings.Lines(status) {
		if f := strings.Fields(line); len(f) > 3 && f[1] == "ACTIVE" {
			addresses = append(addresses, f[3])
		}
	}
	return addresses
}
