//go:build race && linux && !purego

package lockorder

// goroutine returns a number that no other goroutine has at the same time: the address of what the
// runtime keeps of the calling one. A goroutine ends without locks, so that the next one at that address
// has none either. A stack trace, which tells the number elsewhere, takes longer than all else in a call.
//
//go:noescape
func goroutine() uint64
