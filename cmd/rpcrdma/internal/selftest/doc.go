// Package selftest implements the command selftest, which tests an RDMA adapter and writes a report. It is for owners
// of adapters that this project does not have.
package selftest
