//go:build linux && cgo

// Package cgotest is a fake of libibverbs and librdmacm for tests of packages ibv
// and rdmacm: a [cgo.Library] whose devices exist in memory alone.
//
// Nothing happens by itself on a fake device. A test takes what was posted from
// [QP.Sends] and [QP.Recvs] and completes each request by hand, in the order and
// with the status that it wants; it raises events of the connection manager with
// [ID.Raise] and makes calls fail with [Library.Fail]. Hooks let it act in the
// middle of a call. Only set-up goes on by itself, unless [Library.Manual] says
// otherwise: addresses and routes resolve, Connect and Accept lead to an established
// connection, Disconnect to a disconnected one.
//
// The fake reports as an error of the test what corrupts memory or blocks for ever
// with rdma-core: use of an object that has been destroyed, destruction of one that
// has users or whose events have not been acknowledged, a completion queue that
// overruns. At the end of the test nothing may be left.
package cgotest
