//go:build !unix

package arena

// mapMemory returns n zeroed bytes. Objects of the Go heap stay in place too.
func mapMemory(n int) ([]byte, error) { return make([]byte, n), nil }

func unmapMemory([]byte) {}
