// Package selftest has the command selftest: it tries out an RDMA adapter and writes down what came of it,
// for owners of adapters that this project has not.
package selftest
