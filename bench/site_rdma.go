//go:build linux && cgo

package bench

import (
	"github.com/rpcrdma/rpcrdma/fabric"
	"github.com/rpcrdma/rpcrdma/rdmacm"
)

// deviceCounters returns the counters of a connection on an RDMA device.
func deviceCounters(c fabric.Conn) Counters {
	dev, ok := c.(*rdmacm.Conn)
	if !ok {
		return Counters{}
	}
	s := dev.Stats()
	return Counters{Doorbells: s.SendCalls, CgoCalls: s.SendCalls + s.RecvCalls + s.Calls, Wakes: s.Events}
}
