// Overflow reads one byte past the end of C memory.
package main

// #include <stdlib.h>
//
// static int behind(volatile char *p, int n) { return p[n]; }
import "C"

import "os"

func main() {
	p := (*C.char)(C.calloc(8, 1))
	os.Exit(int(C.behind(p, 8)) & 0)
}
