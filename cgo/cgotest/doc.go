//go:build linux && cgo

// Package cgotest is a fake of libibverbs and librdmacm for tests of packages ibv and rdmacm: a [cgo.Library] with
// devices that exist only in memory.
//
// Nothing happens by itself on a fake device. A test takes the posted requests from [QP.Sends] and [QP.Recvs] and
// completes each by hand, in the order and with the status that it chooses. It raises events of the connection manager
// with [ID.Raise] and makes calls fail with [Library.Fail]. Hooks let it act in the middle of a call. Only setup
// proceeds by itself, unless [Library.Manual] is set: addresses and routes resolve, Connect and Accept lead to an
// established connection, Disconnect to a disconnected one.
//
// The fake fails the test on actions that corrupt memory or block forever with rdma-core: using a destroyed object,
// destroying one that has users or unacknowledged events, or overrunning a completion queue. It also fails the test if
// any object is left at the end.
package cgotest
