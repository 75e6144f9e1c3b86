//go:build linux && cgo

// Package cgotest is a fake of libibverbs and librdmacm for tests of packages ibv and rdmacm: a
// [cgo.Library] with devices that exist only in memory.
//
// Nothing happens by itself on a fake device. A test takes what was posted from
// [QP.Sends] and [QP.Recvs] and completes each request by hand, in the order and
// with the status that it wants; it raises events of the connection manager with
// [ID.Raise] and makes calls fail with [Library.Fail]. Hooks let it act in the
// middle of a call. Only set-up goes on by itself, unless [Library.Manual] says
// otherwise: addresses and routes resolve, Connect and Accept lead to an established
// connection, Disconnect to a disconnected one.
//
// The fake fails the test on what corrupts memory or blocks forever with rdma-core: use of an object
// that has been destroyed, destruction of one that has users or unacknowledged events, a completion
// queue that overruns. It also fails the test if anything is left at the end.
package cgotest
