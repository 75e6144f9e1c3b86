package grpcrdma

import (
	"bytes"

	"github.com/rpcrdma/rpcrdma/grpcrdma/internal/wire"
	"github.com/rpcrdma/rpcrdma/proto/oncrpc"
	"github.com/rpcrdma/rpcrdma/proto/xdr"
	"github.com/rpcrdma/rpcrdma/rpc"
)

// Encoding of the items and bodies of calls and replies: see grpc.x.

const (
	prog = wire.GrpcProg
	vers = wire.GrpcV1
)

// addBulk gives call its items and body, after its Args. They belong to the call until it returns.
func addBulk(call *rpc.Call, items [][]byte, body []byte) {
	call.Args = xdr.AppendUint32(call.Args, uint32(len(items)))
	for _, it := range items {
		addItem(call, it)
	}
	if len(body) < wire.BodyChunk {
		call.Args = xdr.AppendOpaque(call.Args, body)
	} else {
		addItem(call, body)
	}
}

func addItem(call *rpc.Call, b []byte) {
	call.Args = xdr.AppendUint32(call.Args, uint32(len(b)))
	call.ReadItems = append(call.ReadItems, rpc.ReadItem{Offset: len(call.Args), Data: b})
}

// takeBulk decodes the items and the body of a call. They refer to the call's memory.
func takeBulk(d *xdr.Decoder) (items [][]byte, body []byte) {
	for range d.Count(wire.MaxItems, xdr.Unit) {
		it := d.Bulk(maxLength)
		items = append(items, it[:len(it):len(it)])
	}
	return items, d.Bulk(maxLength)
}

// results decodes the items and the body of results. They refer to the memory of the call's WriteItems or Results.
func results(call *rpc.Call, d *rpc.ResultDecoder) (items [][]byte, body []byte) {
	placed := 0
	next := func() []byte {
		if placed < len(call.WriteItems) {
			placed++
			return d.Item()
		}
		return bytes.Clone(d.Bulk(maxLength))
	}
	for range d.Count(wire.MaxItems, xdr.Unit) {
		it := next()
		items = append(items, it[:len(it):len(it)])
	}
	if ahead := d.Decoder; ahead.Uint32() < wire.BodyChunk {
		return items, d.Bulk(maxLength)
	}
	return items, next()
}

// maxLength is the longest opaque without a bound in XDR.
const maxLength = 1<<32 - 1

// binding is the upper-layer binding of the program: bodies and items are eligible for chunks.
type binding struct{}

var _ rpc.Binding = binding{}

func (binding) Call(p rpc.Procedure, args []byte, items []rpc.Range) (eligible []rpc.Range, reply rpc.ReplyBounds) {
	items = items[:0]
	d := xdr.NewDecoder(args)
	switch p.Proc {
	case wire.GrpcUnary, wire.GrpcPlaced:
		var r wire.Request
		r.Decode(&d)
		reply.MaxResults = longest(r.Offered)
	case wire.GrpcFetch:
		var t wire.Ticket
		t.Decode(&d)
		reply.MaxResults = longest(t.Offered)
		return items, reply
	case wire.GrpcSend, wire.GrpcLong:
	default:
		return items, reply
	}
	for range d.Count(wire.MaxItems, xdr.Unit) + 1 {
		b := d.Bulk(maxLength)
		if d.Err() != nil {
			return items[:0], reply
		}
		items = append(items, rpc.Range{Offset: d.Offset() - xdr.Padded(len(b)), Length: len(b)})
	}
	return items, reply
}

// longest returns the largest total length of the results of a call that offered these chunks.
func longest(offered wire.Offers) int {
	n := shortReply
	for _, size := range offered {
		n += xdr.Padded(int(min(size, maxOffer)))
	}
	return n
}

// maxOffer is the largest offer that is trusted, in bytes.
const maxOffer = 1 << 30

func (binding) Reply(p rpc.Procedure, results []byte, reduced bool, items []rpc.Range) []rpc.Range {
	items = items[:0]
	if p.Proc != wire.GrpcUnary && p.Proc != wire.GrpcPlaced && p.Proc != wire.GrpcFetch {
		return items
	}
	d := xdr.NewDecoder(results)
	var r wire.Reply
	r.Decode(&d)
	for i := d.Count(wire.MaxItems, xdr.Unit); i >= 0; i-- {
		n := int(d.Uint32())
		if i == 0 && n < wire.BodyChunk {
			break
		}
		items = append(items, rpc.Range{Offset: d.Offset(), Length: n})
		if !reduced {
			d.FixedOpaque(n)
		}
		if d.Err() != nil {
			return items[:0]
		}
	}
	return items
}

// names holds the names of the program. The transport's configuration bounds the message length. Immutable.
var names = &oncrpc.Program{Number: prog, Vers: vers, Name: wire.GrpcV1Names.Name, Procedures: wire.GrpcV1Names.Procedures}

// program returns the program that both ends execute.
func program(h rpc.Handler) rpc.Program {
	return rpc.Program{
		Number: prog, Low: vers, High: vers,
		Handler: h, Binding: binding{}, Padded: true,
		Names:      []*oncrpc.Program{names},
		Idempotent: rpc.Every, // calls have NoResend
		Inline:     func(_, proc uint32) bool { return proc == wire.GrpcSend || proc == wire.GrpcLong },
		Keep:       func(_, proc uint32) bool { return proc == wire.GrpcPlaced || proc == wire.GrpcLong },
	}
}
