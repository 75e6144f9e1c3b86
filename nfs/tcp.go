package nfs

import (
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"syscall"
	"time"

	"github.com/rpcrdma/rpcrdma/rpc"
	"github.com/rpcrdma/rpcrdma/transport"
)

const (
	tcpTimeout    = 15 * time.Second // for a connection and a reply, if the context has no earlier deadline
	maxTCPResults = 1 << 20          // bytes

	// The range of reserved ports, and how many of them are tried.
	lowReserved, highReserved = 665, 1023
	reservedTries             = 16
)

// longResults makes calls that permit longer results than the binding says, which costs memory only over RDMA.
type longResults struct{ rpc.Caller }

// Call makes a call.
func (l longResults) Call(ctx context.Context, call *rpc.Call) error {
	call.MaxResults = maxTCPResults
	return l.Caller.Call(ctx, call)
}

// reservedTCP is TCP from a local port below 1024, or from another if it cannot bind one. Servers refuse other ports
// for exports that are "secure", the default on Linux.
type reservedTCP struct{ transport.TCP }

// DialStream implements transport.StreamProvider.
func (reservedTCP) DialStream(ctx context.Context, addr string) (net.Conn, error) {
	const ports = highReserved - lowReserved + 1
	first := rand.IntN(ports)
	for i := range reservedTries {
		d := net.Dialer{LocalAddr: &net.TCPAddr{Port: lowReserved + (first+i)%ports}}
		c, err := d.DialContext(ctx, "tcp", addr)
		var se *os.SyscallError
		switch {
		case err == nil:
			return c, nil
		case errors.Is(err, os.ErrPermission):
			return new(net.Dialer).DialContext(ctx, "tcp", addr)
		case errors.Is(err, syscall.EADDRINUSE), errors.Is(err, syscall.EADDRNOTAVAIL):
			// The port is in use, or in TIME_WAIT with this server.
		case errors.As(err, &se) && se.Syscall == "bind":
		default:
			return nil, err
		}
	}
	return new(net.Dialer).DialContext(ctx, "tcp", addr)
}

// noEOF converts io.EOF where the stream must not end.
func noEOF(err error) error {
	if err == io.EOF {
		return io.ErrUnexpectedEOF
	}
	return err
}
