package bench

import (
	"os/exec"
	"syscall"
)

// dieWithParent has the kernel end a child when this process ends without having done so
// (PR_SET_PDEATHSIG(2const)).
func dieWithParent(c *exec.Cmd) { c.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL} }
