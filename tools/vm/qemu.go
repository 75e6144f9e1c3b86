//go:build linux

package main

import "strings"

const qemu = "qemu-system-x86_64"

// bootOptions is the kernel's command line. A kernel with a problem must stop rather than continue in an undefined
// state.
const bootOptions = "console=ttyS0 quiet panic=-1 oops=panic nokaslr mitigations=off audit=0 rcupdate.rcu_expedited=1"

// tcgOptions are added without KVM: on a busy host such a guest gets too little time to pass the kernel's clock tests.
// Under KVM the kernel skips them.
const tcgOptions = "no_timer_check tsc=reliable"

// machine is the part of QEMU's arguments that is common to a run and the test of KVM.
type machine struct {
	kernel, initrd string
	accel          string // kvm or tcg
	plugin         string // for TCG; empty: none
}

// args returns QEMU's arguments: those of the machine, more, and the kernel's command line followed by words.
func (m *machine) args(more []string, words ...string) []string {
	args := []string{"-nodefaults", "-display", "none", "-no-reboot", "-kernel", m.kernel, "-initrd", m.initrd}
	line := append([]string{bootOptions}, words...)
	if m.accel == "kvm" {
		args = append(args, "-accel", "kvm", "-cpu", "host")
	} else {
		// A large cache for translated code, because the tests run a lot of it.
		accel := "tcg,thread=multi,tb-size=512"
		if m.plugin != "" {
			accel = "tcg,tb-size=512"
			args = append(args, "-icount", "shift=0", "-plugin", m.plugin)
		}
		args = append(args, "-accel", accel, "-cpu", "max")
		line = append(line, tcgOptions)
	}
	return append(append(args, more...), "-append", strings.Join(line, " "))
}

// share returns the argument that lets the guest mount a directory of the host.
func share(tag, dir string) string {
	// In QEMU's syntax a comma ends the path; two commas stand for one.
	return "local,path=" + strings.ReplaceAll(dir, ",", ",,") + ",mount_tag=" + tag + ",security_model=none,multidevs=remap"
}
