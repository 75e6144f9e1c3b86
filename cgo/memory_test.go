//go:build linux && cgo

package cgo

import (
	"testing"
	"unsafe"
)

// TestRegMR: any memory can be registered, whatever lies beside it in the same object.
func TestRegMR(t *testing.T) {
	type page struct {
		next *page
		data [4096]byte
	}
	p := &page{next: new(page)} // a pointer to Go memory, which cgo refuses to pass on
	for _, tt := range []struct {
		name string
		mem  []byte
	}{
		{"an object of its own", make([]byte, 100)},
		{"beside a pointer", p.data[:]},
		{"a part of it", p.data[100:200]},
		{"nothing, beside a pointer", p.data[:0]},
		{"nothing", nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			q := newQueues(t)
			mr, lkey, rkey, errno := RDMACore{}.RegMR((*PD)(q.PD()), tt.mem, 1)
			if mr == nil || lkey != 1 || rkey != 2 || errno != 0 {
				t.Fatalf("region %p, keys %d and %d: %v", mr, lkey, rkey, errno)
			}
			addr, n := q.Region()
			if want := uint64(uintptr(unsafe.Pointer(unsafe.SliceData(tt.mem)))); addr != want || n != uint64(len(tt.mem)) {
				t.Errorf("%d bytes at %#x are registered, want %d at %#x", n, addr, len(tt.mem), want)
			}
		})
	}
}
