//go:build !linux || !cgo

package explain

// This build has no provider rdma, and thus no errors of it.

// NoAnswer reports whether a connection of provider rdma failed because there was no answer.
func NoAnswer(error) bool { return false }

// RDMA is Text for the errors of provider rdma.
func RDMA(error) (string, bool) { return "", false }
