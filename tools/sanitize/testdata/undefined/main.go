// Undefined shifts a 32-bit number by 32.
package main

// static int shift(volatile int n) { return 1 << n; }
import "C"

import "os"

func main() { os.Exit(int(C.shift(32)) & 0) }
