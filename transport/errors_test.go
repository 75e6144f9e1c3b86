package transport

import (
	"errors"
	"io"
	"net"
	"net/netip"
	"os"
	"syscall"
	"testing"

	"github.com/rpcrdma/rpcrdma/fabric"
	"github.com/rpcrdma/rpcrdma/iwarp"
	"github.com/rpcrdma/rpcrdma/rpc"
)

// TestErrorsSayEachThingOnce checks the texts of nested errors, and the errors that they unwrap to.
func TestErrorsSayEachThingOnce(t *testing.T) {
	const addr = "127.0.0.1:20301"
	refused := &net.OpError{
		Op: "dial", Net: "tcp", Addr: net.TCPAddrFromAddrPort(netip.MustParseAddrPort(addr)),
		Err: os.NewSyscallError("connect", syscall.ECONNREFUSED),
	}
	reset := &fabric.ConnError{Provider: "iwarp", Remote: true, Cause: &iwarp.BrokenError{Op: "read", Err: syscall.ECONNRESET}}
	for _, tt := range []struct {
		err  error
		is   error
		want string
	}{
		{&DialError{"iwarp", addr, &iwarp.SetupError{Addr: addr, Reason: "no TCP connection", Err: refused}}, syscall.ECONNREFUSED,
			"connect to 127.0.0.1:20301 over iwarp: no TCP connection: connection refused"},
		{&DialError{"iwarp", "host:20301", &iwarp.SetupError{Addr: addr, Reason: "no TCP connection", Err: refused}}, syscall.ECONNREFUSED,
			"connect to host:20301 over iwarp: 127.0.0.1:20301: no TCP connection: connection refused"},
		{&DialError{"tcp", addr, refused}, syscall.ECONNREFUSED, "connect to 127.0.0.1:20301 over tcp: connection refused"},
		{&DialError{"tcp", "host:20301", refused}, syscall.ECONNREFUSED,
			"connect to host:20301 over tcp: dial tcp 127.0.0.1:20301: connect: connection refused"},
		{&DialError{"iwarp", addr, &fabric.RejectError{Addr: addr}}, nil, "connect to 127.0.0.1:20301 over iwarp: the peer rejected the connection"},
		{&DialError{"iwarp", addr, &BusyError{Addr: addr, Err: io.EOF}}, io.EOF,
			"connect to 127.0.0.1:20301 over iwarp: server accepts no further connections at the moment: try again later"},
		{&DialError{"iwarp", addr, reset}, syscall.ECONNRESET,
			"connect to 127.0.0.1:20301 over iwarp: connection ended by the peer: read: connection reset by peer"},
		// As those of package rdmacm: its provider is rdma.
		{&DialError{"rdma", addr, errors.New("rdmacm: rdma_resolve_addr 127.0.0.1:20301: no such device")}, nil,
			"connect to 127.0.0.1:20301 over rdma: rdma_resolve_addr: no such device"},
		{&DialError{"rdma", addr, errors.New("rdmacm: connecting to 127.0.0.1:20301: UNREACHABLE: the peer does not answer")}, nil,
			"connect to 127.0.0.1:20301 over rdma: UNREACHABLE: the peer does not answer"},
		{&DialError{"rdma", addr, errors.New("rdma is off: no device")}, nil, "connect to 127.0.0.1:20301 over rdma: rdma is off: no device"},
		{&rpc.ClosedError{Addr: addr, Reason: reset}, net.ErrClosed,
			"connection to 127.0.0.1:20301: iwarp: connection ended by the peer: read: connection reset by peer"},
		{&fabric.ConnError{Provider: "rdma", Cause: errors.New("rdmacm: device mlx5_0 has been removed")}, net.ErrClosed,
			"rdma: connection ended by this side: device mlx5_0 has been removed"},
		{&fabric.ConnError{Provider: "rdma", Cause: errors.New("rdma is off: no device")}, net.ErrClosed,
			"rdma: connection ended by this side: rdma is off: no device"},
	} {
		if got := tt.err.Error(); got != tt.want {
			t.Errorf("%s\nwant %s", got, tt.want)
		}
		if tt.is != nil && !errors.Is(tt.err, tt.is) {
			t.Errorf("%v: is not %v", tt.err, tt.is)
		}
	}
}
