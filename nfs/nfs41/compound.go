package nfs41

import (
	"github.com/rpcrdma/rpcrdma/proto/oncrpc"
	"github.com/rpcrdma/rpcrdma/proto/xdr"
)

// A Message is a type with an XDR encoding. Append appends it to b. Decode decodes it and leaves its error in the
// Decoder. Byte slices that Decode stores are views of the Decoder's input; strings are copies. Decode reuses the other
// slices of its receiver within their capacity, such as the entries of a directory, so do not decode into a result that
// you keep.
type Message interface {
	Append(b []byte) []byte
	Decode(d *xdr.Decoder)
}

// An Operation is one operation of a COMPOUND or CB_COMPOUND.
type Operation struct {
	Op   uint32  // such as OpGetAttr, OpCBRecall
	Args Message // nil: no arguments

	// Result is decoded if the operation succeeds. Nil: no results other than the status.
	Result Message
}

// appendOps appends the operations with their arguments.
func appendOps(b []byte, ops []Operation) []byte {
	for i := range ops {
		b = xdr.AppendUint32(b, ops[i].Op)
		if a := ops[i].Args; a != nil {
			b = a.Append(b)
		}
	}
	return b
}

// failedOp identifies the operation that failed.
type failedOp struct {
	index  int // -1: none; len(ops): the reply ends with a failure before any operation
	status Status
}

// decodeOps decodes a whole reply to ops: COMPOUND4res or CB_COMPOUND4res. name returns the name of an operation. An
// invalid reply is a *BadReplyError.
func decodeOps(results []byte, ops []Operation, name func(uint32) string) (failedOp, error) {
	whole := name(ops[0].Op)
	d := xdr.NewDecoder(results)
	var res compoundRes
	res.Decode(&d)
	if d.Err() == nil && int64(res.Count) > int64(len(ops)) {
		return failedOp{}, &BadReplyError{whole, "more results than operations"}
	}
	for i := range int(res.Count) {
		op := &ops[i]
		number, status := d.Uint32(), Status(d.Uint32())
		if d.Err() != nil {
			break
		}
		if number != op.Op && (number != OpIllegal || status == StatusOK) {
			return failedOp{}, &BadReplyError{name(op.Op), "is answered by " + name(number)}
		}
		if status != StatusOK {
			// Some operations have results when they fail. They are ignored.
			if i+1 != int(res.Count) || res.Status != status {
				return failedOp{}, &BadReplyError{name(op.Op), "failed, and is not the last or has another status"}
			}
			return failedOp{i, status}, nil
		}
		if op.Result != nil {
			op.Result.Decode(&d)
		}
	}
	if err := d.End(); err != nil {
		return failedOp{}, &BadReplyError{whole, err.Error()}
	}
	switch {
	case res.Status != StatusOK && res.Count == 0:
		return failedOp{len(ops), res.Status}, nil
	case res.Status != StatusOK, int(res.Count) != len(ops):
		return failedOp{}, &BadReplyError{whole, "status and number of results do not fit"}
	}
	return failedOp{index: -1}, nil
}

// appendStatus appends the start of a result. The result of a failed operation has nothing else.
func appendStatus(b []byte, op uint32, status Status) []byte {
	b = xdr.AppendUint32(b, op)
	return xdr.AppendUint32(b, uint32(status))
}

// replyHeader is the size of the RPC header before the results of COMPOUND, in bytes: an
// accepted reply with AUTH_NONE.
const replyHeader = oncrpc.MinReplySize
