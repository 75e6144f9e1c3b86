package xdr

import (
	"math"
	"testing"
)

// Memory that one input has allocated counts once, however often Keep is called.
func TestKeepTwice(t *testing.T) {
	d := NewDecoder(AppendString(nil, string(make([]byte, 1000))))
	d.String(math.MaxUint32)
	var total uint64
	for range 3 {
		if !d.Keep(&total) || total != 1000 {
			t.Fatalf("%d bytes count, want 1000", total)
		}
	}
}
