// Beyond makes a slice that extends beyond its variable.
package main

import "unsafe"

var keep []byte

func main() {
	p := new([8]byte)
	keep = unsafe.Slice((*byte)(unsafe.Pointer((*[64]byte)(unsafe.Pointer(p)))), 64)
}
