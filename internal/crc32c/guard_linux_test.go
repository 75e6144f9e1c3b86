package crc32c

import (
	"os"
	"syscall"
	"testing"
)

// TestReadsNothingElse computes the CRC of memory between inaccessible pages.
func TestReadsNothingElse(t *testing.T) {
	page := 8 * os.Getpagesize() // for all that Update may choose
	mem, err := syscall.Mmap(-1, 0, 3*page, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_ANON|syscall.MAP_PRIVATE)
	if err != nil {
		t.Fatal(err)
	}
	defer syscall.Munmap(mem)
	for _, guard := range [][]byte{mem[:page], mem[2*page:]} {
		if err := syscall.Mprotect(guard, syscall.PROT_NONE); err != nil {
			t.Fatal(err)
		}
	}
	p := mem[page : 2*page]
	copy(p, random(page))
	for n := 0; n <= page; n += 1 + n/500 {
		first, last := p[:n], p[page-n:]
		if Update(0, first) != want(0, first) || Update(0, last) != want(0, last) {
			t.Fatalf("%d bytes: not the CRC", n)
		}
	}
}
