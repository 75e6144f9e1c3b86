//go:build unix

package limited

import (
	"os/exec"
	"syscall"
)

// ownGroup makes the program the leader of a new process group, which can be killed as a
// whole.
func ownGroup(cmd *exec.Cmd) {
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = new(syscall.SysProcAttr)
	}
	cmd.SysProcAttr.Setpgid = true
	endWithUs(cmd.SysProcAttr)
}

// killGroup may be called even after the program itself has been waited for. As long as a process is left in the group,
// no other group can have its number. If none is left, the group does not exist, unless the system has reused the
// number in the meantime, after a full cycle of numbers.
func killGroup(cmd *exec.Cmd) { _ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }

func termGroup(cmd *exec.Cmd) { _ = syscall.Kill(-cmd.Process.Pid, syscall.SIGTERM) }

// askForStacks makes a Go program print its stacks and exit.
func askForStacks(cmd *exec.Cmd) { _ = cmd.Process.Signal(syscall.SIGQUIT) }
