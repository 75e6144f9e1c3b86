//go:build linux || darwin || freebsd || netbsd || openbsd

package transport

import "syscall"

// descriptors returns how many descriptors this process may have open. Go has raised the limit as far as possible.
func descriptors() int {
	var l syscall.Rlimit
	if syscall.Getrlimit(syscall.RLIMIT_NOFILE, &l) != nil || uint64(l.Cur) > manyDescriptors {
		return manyDescriptors
	}
	return int(l.Cur)
}
