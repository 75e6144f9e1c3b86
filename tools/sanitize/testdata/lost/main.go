// Lost leaks C memory.
package main

// #include <stdlib.h>
//
// static void lose(void) { *(volatile char *)malloc(100) = 1; }
import "C"

func main() {
	for range 10 {
		C.lose()
	}
}
