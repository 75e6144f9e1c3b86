//go:build !unix

package arena

// mapMemory returns n zeroed bytes. Go heap objects do not move either.
func mapMemory(n int) ([]byte, error) { return make([]byte, n), nil }

func unmapMemory([]byte) {}
