//go:build !linux || !cgo

package bench

import "github.com/rpcrdma/rpcrdma/fabric"

// deviceCounters are not there in a build that has no devices.
func deviceCounters(fabric.Conn) Counters { return Counters{} }
