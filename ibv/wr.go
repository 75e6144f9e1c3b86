//go:build linux && cgo

package ibv

import (
	"encoding/binary"
)

// htonl turns a number into one whose bytes in memory are in network byte order,
// and back.
func htonl(n uint32) uint32 {
	var b [4]byte
	binary.BigEndian.PutUint32(b[:], n)
	return binary.NativeEndian.Uint32(b[:])
}
