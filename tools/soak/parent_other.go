//go:build !linux

package main

import "syscall"

// endWithUs can do nothing here: processes end with their standard input.
func endWithUs() *syscall.SysProcAttr { return nil }
