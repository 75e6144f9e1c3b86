//go:build !linux

package main

import "syscall"

// endWithUs does nothing on this system: processes end with their standard input.
func endWithUs() *syscall.SysProcAttr { return nil }
