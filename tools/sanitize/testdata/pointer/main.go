// Pointer writes a Go pointer to C memory.
package main

// #include <stdlib.h>
import "C"

import "unsafe"

var keep *int

func main() {
	p := (**int)(C.calloc(1, C.size_t(unsafe.Sizeof(keep))))
	keep = new(int)
	*p = keep
}
