//go:build race && linux && !purego

package lockorder

// goroutine returns a number that no other goroutine has at the same time: the address of the runtime's data about the
// calling goroutine. A goroutine ends without holding locks, so the next one at that address holds none either. Reading
// the number from a stack trace takes longer than everything else in a call.
//
//go:noescape
func goroutine() uint64
