//go:build linux && cgo

package explain

import (
	"fmt"
	"strings"
	"syscall"
	"testing"

	"github.com/rpcrdma/rpcrdma/ibv"
	"github.com/rpcrdma/rpcrdma/rdmacm"
	"github.com/rpcrdma/rpcrdma/transport"
)

// The messages for devices that do not work. The errors are those of packages ibv and rdmacm, which
// tests on devices provoke there.
func TestMistakesOfDevices(t *testing.T) {
	dial := func(err error) error {
		return &transport.DialError{Provider: "rdma", Addr: "192.0.2.1:20049", Err: fmt.Errorf("wrapped: %w", err)}
	}
	event := func(what rdmacm.EventType, errno syscall.Errno) error {
		return dial(&rdmacm.EventError{Op: "connecting to", Addr: "192.0.2.1:20049", Event: rdmacm.Event{Type: what, Status: -int(errno)}})
	}
	const (
		no   = "no connection to 192.0.2.1:20049 over rdma: "
		hint = "; a server that speaks iWARP over TCP is reached with --provider iwarp"
	)
	for _, tt := range []struct {
		err  error
		says string
	}{
		{dial(&ibv.MemlockError{Call: "ibv_reg_mr", Device: "mlx5_0", Limit: 64 << 10, Requested: 3 << 20, Err: syscall.ENOMEM}),
			no + "this process may lock 64 KiB of memory and needs 3 MiB more on mlx5_0: raise the limit (ulimit -l, LimitMEMLOCK= of systemd, --ulimit memlock=-1 of containers)"},
		{dial(&ibv.PermissionError{Device: "mlx5_0", Path: "/dev/infiniband/uverbs0", Err: syscall.EACCES}),
			no + "no permission to use mlx5_0: this needs read and write access to /dev/infiniband/uverbs0"},
		{dial(&ibv.NoDeviceError{}), no + "this machine has no RDMA device"},
		{dial(&ibv.Error{Call: "ibv_create_qp", Device: "mlx5_0", Err: syscall.ENOSPC}), no + "ibv_create_qp on mlx5_0: no space left on device"},
		{event(rdmacm.EventRejected, syscall.ECONNREFUSED), no + "connection refused (RDMA_CM_EVENT_REJECTED)" + hint},
		{event(rdmacm.EventUnreachable, 0), no + "no answer (RDMA_CM_EVENT_UNREACHABLE)" + hint},
		{event(rdmacm.EventUnreachable, syscall.ETIMEDOUT), no + "no answer (RDMA_CM_EVENT_UNREACHABLE)" + hint},
		{event(rdmacm.EventConnectError, syscall.ECONNRESET), no + "the other end closed the connection (connection reset by peer); is there an RDMA server?"},
	} {
		if got := Text(tt.err); got != tt.says {
			t.Errorf("%s\nwant\n%s", got, tt.says)
		}
	}
}

// No advice in a container is to load a module, and none outside is about a container.
func TestAdviceInContainers(t *testing.T) {
	missing := &ibv.NoDeviceError{InKernel: []string{"rxe0"}}
	for _, contained := range []bool{false, true} {
		for what, text := range map[string]string{
			"none":    HowToGetDevices(contained),
			"manager": managerText(syscall.ENODEV, contained),
			"files":   noDeviceText(missing, contained),
		} {
			if strings.Contains(text, "--device /dev/infiniband") != contained {
				t.Errorf("%s, in a container %v: %s", what, contained, text)
			}
			if strings.Contains(text, "modprobe") && contained {
				t.Errorf("%s, in a container: %s", what, text)
			}
		}
	}
}
