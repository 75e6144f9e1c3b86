//go:build linux && cgo

package connect

import (
	"syscall"
	"testing"

	"github.com/rpcrdma/rpcrdma/cmd/rpcrdma/internal/explain"
	"github.com/rpcrdma/rpcrdma/rdmacm"
)

// The address that is in use on a device is named once.
func TestAddressInUseOnDevice(t *testing.T) {
	err := &ListenError{"addr", "192.0.2.1:20049", &rdmacm.CallError{Op: "rdma_bind_addr", Addr: "192.0.2.1:20049", Errno: syscall.EADDRINUSE}}
	const want = "192.0.2.1:20049: address already in use: stop what has it, or give --addr another port, 0 for a free one"
	if got := explain.Text(err); got != want {
		t.Errorf("%s\nwant\n%s", got, want)
	}
}
