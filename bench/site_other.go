//go:build !linux || !cgo

package bench

import (
	"errors"

	"github.com/rpcrdma/rpcrdma/fabric"
)

// deviceCounters returns nothing in a build without RDMA devices.
func deviceCounters(fabric.Conn) Counters { return Counters{} }

func extendedQueues(string, int) (*Instance, error) {
	return nil, errors.New("built without RDMA devices")
}
