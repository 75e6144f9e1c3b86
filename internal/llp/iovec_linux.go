package llp

import "syscall"

// An Iovec is a piece of memory, as the system calls have it.
type Iovec = syscall.Iovec
