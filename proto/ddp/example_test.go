package ddp_test

import (
	"fmt"
	"log"

	"github.com/rpcrdma/rpcrdma/proto/ddp"
)

// A tagged segment says where its payload belongs.
func Example() {
	segment := ddp.AppendTagged(nil, &ddp.Tagged{Last: true, STag: 0x2a01, TO: 4096})
	segment = append(segment, "payload"...)

	if ddp.IsTagged(segment) {
		var h ddp.Tagged
		n, err := ddp.ConsumeTagged(segment, &h)
		if err != nil {
			log.Fatal(err)
		}
		fmt.Printf("%q for STag %#x at %d, last: %v\n", segment[n:], h.STag, h.TO, h.Last)
	}
	// Output: "payload" for STag 0x2a01 at 4096, last: true
}
