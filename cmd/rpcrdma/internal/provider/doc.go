// Package provider selects an RDMA adapter by name, for programs that leave the choice to their users: iwarp, which is
// RDMA in software over TCP and works everywhere; rdma, which is a device of this machine; or auto, which is rdma if a
// device has the address or a route to it, and otherwise iwarp. It also describes the devices and reports which of them
// can be used.
//
// A program that links this package links both adapters. A build without cgo has only iwarp: rdma then fails with
// [rdmacm.ErrNotBuilt]. A program with a fixed adapter imports that adapter instead.
package provider
