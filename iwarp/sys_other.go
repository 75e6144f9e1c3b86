//go:build !linux

package iwarp

import (
	"errors"
	"net"
	"os"

	"github.com/rpcrdma/rpcrdma/internal/llp"
)

// supported: Resolve and Listen fail on platforms for which the data path is not written.
const supported = false

var errAgain = errors.New("iwarp: not supported")

type iovec = llp.Iovec

func setIovec(v *iovec, b []byte)     { v.B = b }
func advanceIovec(v *iovec, n int)    { v.B = v.B[n:] }
func iovecLen(v *iovec) int           { return len(v.B) }
func iovecBytes(v *iovec) []byte      { return v.B }
func peek(fd int) (waiting, eof bool) { return false, true }
func segmentSize(fd int) int          { return 0 }
func setKeepAlive(fd int)             {}
func yield()                          {}

type socket struct {
	at     llp.Parker
	f      *os.File
	fd     int
	stream llp.Stream

	secured *secured
}

func streamSocket(stream llp.Stream) socket { return socket{} }

func startConnect(a *net.TCPAddr) (s socket, finish func() (bool, error), err error) {
	return socket{}, nil, errors.ErrUnsupported
}

func listeningSocket(l *net.TCPListener) (socket, error) { return socket{}, errors.ErrUnsupported }

func acceptSocket(fd int) (socket, *net.TCPAddr, error) {
	return socket{}, nil, errors.ErrUnsupported
}

func localAddr(fd int) (*net.TCPAddr, error) { return nil, errors.ErrUnsupported }
