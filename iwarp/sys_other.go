//go:build !linux

package iwarp

import (
	"errors"
	"net"
	"os"
	"syscall"
)

// supported: Resolve and Listen fail on platforms for which the data path is not written.
const supported = false

var errAgain = errors.New("iwarp: not supported")

type iovec struct{ b []byte }

func setIovec(v *iovec, b []byte)           { v.b = b }
func advanceIovec(v *iovec, n int)          { v.b = v.b[n:] }
func iovecLen(v *iovec) int                 { return len(v.b) }
func readv(fd int, v []iovec) (int, error)  { return 0, errors.ErrUnsupported }
func writev(fd int, v []iovec) (int, error) { return 0, errors.ErrUnsupported }
func peek(fd int) (waiting, eof bool)       { return false, true }
func shutdownWrite(fd int)                  {}
func resetOnClose(fd int)                   {}
func segmentSize(fd int) int                { return 0 }

func setKeepAlive(fd int) {}

type socket struct {
	f  *os.File
	rc syscall.RawConn
	fd int
}

func startConnect(a *net.TCPAddr) (s socket, finish func() (bool, error), err error) {
	return socket{}, nil, errors.ErrUnsupported
}

func listeningSocket(l *net.TCPListener) (socket, error) { return socket{}, errors.ErrUnsupported }

func acceptSocket(fd int) (socket, *net.TCPAddr, error) {
	return socket{}, nil, errors.ErrUnsupported
}

func localAddr(fd int) (*net.TCPAddr, error) { return nil, errors.ErrUnsupported }
