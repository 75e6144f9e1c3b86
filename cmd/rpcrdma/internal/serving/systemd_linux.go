package serving

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// accepts fails if a socket is not listening. A connection has the same socket type as a listener.
func accepts(f *os.File) error {
	rc, err := f.SyscallConn()
	if err != nil {
		return err
	}
	var accepting int
	if cerr := rc.Control(func(fd uintptr) {
		accepting, err = unix.GetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_ACCEPTCONN)
	}); cerr != nil {
		return cerr
	}
	if err == nil && accepting == 0 {
		err = fmt.Errorf("it is a connection: %w", unix.EINVAL)
	}
	return err
}
