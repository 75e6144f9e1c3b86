package llp

import "syscall"

// An Iovec is a piece of memory in the form of the system calls.
type Iovec = syscall.Iovec
