package xdr_test

import (
	"fmt"

	"github.com/rpcrdma/rpcrdma/proto/xdr"
)

// A file handle and an offset, encoded and decoded.
func Example() {
	b := xdr.AppendOpaque(nil, []byte("handle"))
	b = xdr.AppendUint64(b, 4096)

	d := xdr.NewDecoder(b)
	handle := d.Opaque(64)
	offset := d.Uint64()
	if err := d.End(); err != nil {
		fmt.Println(err)
		return
	}
	fmt.Printf("%s %d\n", handle, offset)
	// Output: handle 4096
}

// The first error has its offset, and all later reads return zero values.
func ExampleDecoder() {
	d := xdr.NewDecoder([]byte{0, 0, 0, 1, 0, 0, 0, 9})
	for d.Optional() {
		fmt.Printf("%q\n", d.String(8))
	}
	fmt.Println(d.Err())
	// Output:
	// ""
	// xdr: byte 4: string of 9 bytes, limit is 8
}
