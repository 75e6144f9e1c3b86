package main

import "syscall"

// endWithUs makes the system kill a process when this one is killed.
func endWithUs() *syscall.SysProcAttr { return &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL} }
