package bench

import (
	"os/exec"
	"syscall"
)

// dieWithParent makes the kernel kill the child when this process dies
// (PR_SET_PDEATHSIG(2const)).
func dieWithParent(c *exec.Cmd) { c.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL} }
