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

	"github.com/rpcrdma/rpcrdma/proto/oncrpc"
	"github.com/rpcrdma/rpcrdma/proto/xdr"
	"github.com/rpcrdma/rpcrdma/transport"
)

const (
	tcpTimeout    = 15 * time.Second // for a connection and a reply, if the context has no earlier deadline
	maxTCPResults = 1 << 20          // bytes

	// The reserved ports, and how many of them are tried.
	lowReserved, highReserved = 665, 1023
	reservedTries             = 16
)

// callTCP makes one call over a TCP connection of its own, from a port below 1024 if the process
// may: servers refuse other ports for exports that are "secure", the default on Linux. Results
// have at most maxResults bytes; decode must consume all of them.
func callTCP(ctx context.Context, addr string, cred oncrpc.Auth, p transport.Procedure, args []byte, maxResults int, decode func(*xdr.Decoder)) error {
	ctx, cancel := context.WithTimeout(ctx, tcpTimeout)
	defer cancel()
	t, err := transport.DialTCPWith(ctx, addr, &transport.ClientConfig{NoReconnect: true}, dialReserved)
	if err != nil {
		return err
	}
	defer t.Close()
	call := transport.Call{Prog: p.Prog, Vers: p.Vers, Proc: p.Proc, Cred: cred, Args: args, MaxResults: maxResults}
	if err := t.Call(ctx, &call); err != nil {
		return err
	}
	d := xdr.NewDecoder(call.Results)
	decode(&d)
	if err := d.End(); err != nil {
		return &BadReplyError{Op: "RPC over TCP", Reason: err.Error()}
	}
	return nil
}

// dialReserved connects from a reserved port, or from another if no reserved one can be bound.
func dialReserved(ctx context.Context, addr string) (net.Conn, error) {
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
			// In use, or in TIME_WAIT with this server.
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
