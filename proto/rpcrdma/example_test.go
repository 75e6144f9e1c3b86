package rpcrdma_test

import (
	"errors"
	"fmt"

	"github.com/rpcrdma/rpcrdma/proto/rpcrdma"
)

// A call offers memory for a result; the reply has the length that was used.
func Example() {
	b := rpcrdma.AppendHeader(nil, &rpcrdma.Header{
		XID: 7, Vers: rpcrdma.Version1, Credit: 32, Proc: rpcrdma.ProcMsg,
		Writes: []rpcrdma.WriteChunk{{{Handle: 0x1234, Length: 8192, Offset: 0}}},
	})
	b = append(b, "the RPC message"...)

	var h rpcrdma.Header
	n, err := rpcrdma.ConsumeHeader(b, &h, nil)
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(h.Proc, n, h.Writes[0].Length(), string(b[n:]))

	h.Credit, h.Writes[0][0].Length = 64, 5000
	fmt.Println(len(rpcrdma.AppendHeader(nil, &h)))
	// Output:
	// RDMA_MSG 52 8192 the RPC message
	// 52
}

// A message of an unsupported version, and the answer to it.
func ExampleHeaderError() {
	b := rpcrdma.AppendHeader(nil, &rpcrdma.Header{XID: 7, Vers: 3, Credit: 1})

	var h rpcrdma.Header
	_, err := rpcrdma.ConsumeHeader(b, &h, nil)
	fmt.Println(err)
	var bad *rpcrdma.HeaderError
	if errors.As(err, &bad) && bad.Answer(&h, 1) {
		fmt.Println(h.Proc, h.Err, h.VersLow, h.VersHigh)
	}
	// Output:
	// rpcrdma: malformed RDMA_MSG xid 0x00000007 version 3: byte 4: version is not supported
	// RDMA_ERROR ERR_VERS 1 1
}

// A client of version 2 offers properties in place of private data.
func ExampleProperties() {
	b := rpcrdma.AppendHeader(nil, &rpcrdma.Header{
		XID: 7, Vers: rpcrdma.Version2, Credit: 32, Proc: rpcrdma.ProcOptional,
		OptType: rpcrdma.OptProperties,
		OptInfo: rpcrdma.AppendProperties(nil, rpcrdma.Properties{
			Dir: rpcrdma.PropOffer, SendSize: 65536, RecvSize: 16384, RemoteInvalidation: true,
		}),
	})

	var h rpcrdma.Header
	lim := rpcrdma.Limits{Versions: rpcrdma.Range{Low: rpcrdma.Version1, High: rpcrdma.Version2}}
	if _, err := rpcrdma.ConsumeHeader(b, &h, &lim); err != nil {
		fmt.Println(err)
		return
	}
	offer, err := rpcrdma.ConsumeProperties(h.OptInfo)
	if err != nil {
		fmt.Println(err)
		return
	}
	server := rpcrdma.Properties{Dir: rpcrdma.PropAccept, SendSize: 8192, RecvSize: 32768}
	fmt.Println(h.Proc, offer.Dir, len(b))
	fmt.Println(offer.SendInline(server), server.SendInline(offer))
	// Output:
	// RDMA_OPTIONAL RDMA_PROP_OFFER 40
	// 32768 8192
}
