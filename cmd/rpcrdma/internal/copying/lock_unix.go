//go:build darwin || dragonfly || freebsd || linux || netbsd || openbsd

package copying

import (
	"errors"
	"os"
	"syscall"
)

// lockFile locks a file until it is closed, or fails without waiting.
func lockFile(f *os.File) error {
	err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
	if errors.Is(err, syscall.EWOULDBLOCK) {
		return errUnderWay
	}
	return err
}
