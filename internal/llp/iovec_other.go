//go:build !linux

package llp

// An Iovec is a piece of memory.
type Iovec struct{ B []byte }
