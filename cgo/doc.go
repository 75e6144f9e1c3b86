// Package cgo binds libibverbs and librdmacm of rdma-core. It is the only place
// of the module where C is called, and it decides nothing: every function is one
// library call, or on the data path one batch of them. Packages ibv and rdmacm
// are what programs use.
//
// The rules of this package:
//
//   - Objects of the library are opaque pointers to C memory. Who frees them is
//     written in the man page of the call.
//   - Setup calls take and return plain Go structs that are filled field by field.
//   - Calls of the data path ([Progress], [PostRecv]) take slices of pointer-free
//     structs whose layout is that of the C structs ([WC], [SGE]) or of ours
//     ([SendWR], [RecvWR]); layout_test.go holds every offset against the
//     compiler's. They neither keep the slices nor call back into Go, and cost one
//     transition into C for a whole batch.
//   - Errors are errno values as [syscall.Errno]; zero is success.
//
// The package is empty when cgo is off or the system is not Linux. It needs
// rdma-core 44 or newer: Debian and Ubuntu call the packages libibverbs-dev and
// librdmacm-dev.
package cgo
