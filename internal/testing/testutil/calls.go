package testutil

import "encoding/binary"

// AppendCall appends an RPC call to a conversation that a fuzzer makes up: the procedure,
// at most 255, the length of the arguments in two bytes, and the arguments.
func AppendCall(b []byte, proc uint32, args []byte) []byte {
	b = append(b, byte(proc))
	b = binary.BigEndian.AppendUint16(b, uint16(len(args)))
	return append(b, args...)
}

// EachCall calls f for the first 16 calls in b. The end of b may truncate arguments.
func EachCall(b []byte, f func(proc uint32, args []byte)) {
	for n := 0; len(b) >= 3 && n < 16; n++ {
		proc, size := uint32(b[0]), min(int(binary.BigEndian.Uint16(b[1:])), len(b)-3)
		f(proc, b[3:][:size])
		b = b[3+size:]
	}
}
