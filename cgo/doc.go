// Package cgo contains bindings for libibverbs and librdmacm of rdma-core. It is the only package of the module that
// calls C, and has no logic: every method of [RDMACore] is one library call, or on the data path one batch of calls.
// Programs use packages ibv and rdmacm, which call the interface [Library], so that a fake can replace the libraries in
// tests.
//
// The rules of this package:
//
//   - Objects of the libraries are opaque pointers to C memory. The man page of a call says which side frees them.
//   - Setup calls take and return plain Go structs, which are copied field by field.
//   - [Progress], the call of the data path, takes slices of pointer-free structs with the layout of C structs: those
//     of the library ([WC], [SGE]) or of this package ([SendWR], [RecvWR]). layout_test.go compares every offset with
//     the C compiler's. The call neither retains the slices nor calls back into Go, and makes one transition into C for
//     a whole batch.
//   - Errors are errno values as [syscall.Errno]; zero is success.
//
// The package is empty without cgo and on systems other than Linux. It needs rdma-core 44 or newer: Debian and Ubuntu
// call the packages libibverbs-dev and librdmacm-dev.
package cgo
