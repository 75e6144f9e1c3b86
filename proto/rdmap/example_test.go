package rdmap_test

import (
	"fmt"
	"log"

	"github.com/rpcrdma/rpcrdma/proto/ddp"
	"github.com/rpcrdma/rpcrdma/proto/rdmap"
)

// An RDMA Read Request is an untagged DDP message on queue 1.
func Example() {
	segment := ddp.AppendUntagged(nil, &ddp.Untagged{Last: true, ULP: rdmap.Control(rdmap.OpReadRequest), QN: rdmap.QNRead, MSN: 1})
	segment = rdmap.AppendReadRequest(segment, &rdmap.ReadRequest{SinkSTag: 7, Size: 1 << 20, SrcSTag: 0x2a01, SrcTO: 4096})

	var h ddp.Untagged
	n, err := ddp.ConsumeUntagged(segment, &h)
	if err != nil {
		log.Fatal(err)
	}
	op, err := rdmap.ParseControl(h.ULP)
	if err != nil {
		log.Fatal(err)
	}
	var read rdmap.ReadRequest
	if _, err := rdmap.ConsumeReadRequest(segment[n:], &read); err != nil {
		log.Fatal(err)
	}
	fmt.Printf("%v: %d bytes of STag %#x at %d\n", op, read.Size, read.SrcSTag, read.SrcTO)
	// Output: RDMA Read Request: 1048576 bytes of STag 0x2a01 at 4096
}
