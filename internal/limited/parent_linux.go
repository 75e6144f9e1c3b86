package limited

import "syscall"

// endWithUs lets the system kill the program when we are killed ourselves.
func endWithUs(attr *syscall.SysProcAttr) { attr.Pdeathsig = syscall.SIGKILL }
