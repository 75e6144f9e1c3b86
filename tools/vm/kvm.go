//go:build linux

package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"time"
)

// probeLimit is how long a guest may take to print its word under KVM.
const probeLimit = 15 * time.Second

// kvmDevice lets a program use KVM.
const kvmDevice = "/dev/kvm"

// accel decides between kvm and tcg. That KVM's device can be opened does not mean that KVM works, for example in
// nested virtual machines. A guest is therefore started once, and the answer is kept until this machine restarts.
func (h *host) accel(ctx context.Context, m *machine) (string, error) {
	const readWrite = 4 | 2
	if syscall.Access(kvmDevice, readWrite) != nil {
		return "tcg", nil
	}
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return "", err
	}
	answer := filepath.Join(h.cache, "accel-"+string(bytes.TrimSpace(boot)))
	if !exists(answer) {
		if err := h.probe(ctx, m, answer); err != nil {
			return "", err
		}
	}
	text, err := os.ReadFile(answer)
	return string(bytes.TrimSpace(text)), err
}

// probe stores the answer in a file, for other runs too.
func (h *host) probe(ctx context.Context, m *machine, answer string) error {
	unlock, err := h.lock(ctx, func() {})
	if err != nil {
		return err
	}
	defer unlock()
	if exists(answer) {
		return nil
	}
	if err := removeOld(h.cache, "accel-*", 0); err != nil {
		return err
	}
	say("testing once whether KVM works")
	accel := "kvm"
	if !h.kvmWorks(ctx, m) {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		say("KVM does not work here: using TCG, which is slower")
		accel = "tcg"
	}
	return os.WriteFile(answer, fmt.Appendln(nil, accel), 0o666)
}

// kvmWorks starts a guest with an init that prints a word and exits.
func (h *host) kvmWorks(ctx context.Context, m *machine) bool {
	ctx, cancel := context.WithTimeout(ctx, probeLimit)
	defer cancel()
	console := filepath.Join(h.work, "probe")
	probe := machine{kernel: m.kernel, initrd: m.initrd, accel: "kvm"}
	_ = command(ctx, qemu, probe.args([]string{"-m", "256", "-serial", "file:" + console}, "probe")...).Run()
	text, err := os.ReadFile(console)
	return err == nil && bytes.Contains(text, []byte("the guest runs"))
}
