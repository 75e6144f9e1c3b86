//go:build !linux || !cgo

package explain

// This build has no errors of provider rdma to explain.

// NoAnswer reports whether a connection of provider rdma failed because there was no answer.
func NoAnswer(error) bool { return false }

// RDMA is Text for the errors of provider rdma.
func RDMA(error) (string, bool) { return "", false }
