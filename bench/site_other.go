//go:build !linux || !cgo

package bench

import "github.com/rpcrdma/rpcrdma/fabric"

// deviceCounters returns nothing in a build without RDMA devices.
func deviceCounters(fabric.Conn) Counters { return Counters{} }
