package rpc

import (
	"github.com/rpcrdma/rpcrdma/fabric"
	"github.com/rpcrdma/rpcrdma/internal/origin"
	"github.com/rpcrdma/rpcrdma/proto/oncrpc"
	"github.com/rpcrdma/rpcrdma/proto/xdr"
)

// A Call is one remote procedure call: its arguments, the memory for bulk results, and the reply. The caller owns it
// and may reuse it for the next call, which then allocates nothing.
type Call struct {
	Prog, Vers, Proc uint32      // the procedure
	Cred, Verf       oncrpc.Auth // the caller's; the zero values are AUTH_NONE

	// Names are the names of the procedures, for errors; nil if they are not known.
	Names *oncrpc.Program

	// Observed is the procedure that Observers and tracing see, unless it is zero: see Request.Observed.
	Observed Procedure

	// Args are the XDR-encoded arguments without the data and padding of the items in ReadItems. The items' length
	// words stay in Args.
	Args []byte

	// ReadItems are arguments that may be sent as read chunks, in stream order. The transport decides by size:
	// arguments that fit are sent inline.
	ReadItems []ReadItem

	// WriteItems are buffers for the results that may be returned in write chunks, in the order of the binding. When
	// Call returns, the memory is the caller's again and the peer cannot reach it, whatever the outcome.
	WriteItems []WriteItem

	// MaxResults bounds the XDR-encoded results in bytes, without the data of the write items. Results that may not fit
	// inline get a reply chunk. Zero promises that the results are small enough.
	MaxResults int

	// MaxDecoded bounds the memory, in bytes, that Decoder allocates for the results, unless it is 0:
	// [xdr.Decoder.LimitMemory] describes the default. The memory does not count in Config.MaxMemory, because the
	// values belong to the caller.
	MaxDecoded int

	// NoResend prevents a sent call from being sent again when its connection is lost; it fails with a *LostError
	// instead. Use it for calls that must not be executed twice, to servers without a reply cache.
	NoResend bool

	// Sign, if not nil, makes the call's verifier, which replaces Verf and proves the caller in flavors that sign the
	// header of the call (RFC 2203 section 5.3.1). header is the call header from the xid, which is chosen when the
	// call is made, to the credential; it is valid until Sign returns. Sign is called on the goroutine that makes the
	// call, once for each xid, and must not block or panic. A call that is sent again keeps its xid and verifier.
	Sign func(header []byte) oncrpc.Auth

	// Results are the XDR-encoded results. They contain the length words of write items with Chunked set, but not their
	// data. The memory belongs to the Call and is valid until the Call is used again.
	Results []byte

	// Reply is the RPC reply header. It is valid until the Call is used again.
	Reply oncrpc.ReplyHeader

	nothing [1]byte // the Buf of results that may have no data: see Receive

	state origin.State // of the transport that makes the call
}

// ObservedAs returns Observed or, if that is zero, the procedure of the call.
func (call *Call) ObservedAs() Procedure {
	if call.Observed != (Procedure{}) {
		return call.Observed
	}
	return Procedure{call.Prog, call.Vers, call.Proc}
}

// Receive adds a WriteItem with the memory buf. Its length bounds the next bulk result. Pass an empty buf for a result
// without data: transports have no empty chunks.
func (call *Call) Receive(buf []byte) {
	if len(buf) == 0 {
		buf = call.nothing[:]
	}
	call.WriteItems = append(call.WriteItems, WriteItem{Buf: buf})
}

// AppendArgs appends the arguments in one piece: Args, with the data of ReadItems and its padding inserted. A wrapper
// that signs or encrypts arguments applies that to the result and makes a call without items (RFC 8166 section 8.2.2).
// AppendArgs panics if the offsets of ReadItems do not ascend within Args, or if an item is foreign memory.
func (call *Call) AppendArgs(b []byte) []byte {
	from := 0
	for i := range call.ReadItems {
		it := &call.ReadItems[i]
		if it.Foreign != nil {
			panic(&ForeignError{Index: i, Len: it.Len(), Reason: "the arguments are wanted in one piece"})
		}
		b = append(append(b, call.Args[from:it.Offset]...), it.Data...)
		b = append(b, make([]byte, xdr.Pad(len(it.Data)))...)
		from = it.Offset
	}
	return append(b, call.Args[from:]...)
}

// A ReadItem is the data of one opaque argument. The memory belongs to the
// call until Call returns and must not change meanwhile.
type ReadItem struct {
	// Offset is where in Args the data belongs: the offset after the item's length word.
	Offset int
	Data   []byte

	// Foreign, if not nil, holds the data in place of Data. It is sent in a read chunk, however short; otherwise the
	// call fails with a *ForeignError.
	Foreign *fabric.Foreign
}

// Len returns the length of the data in bytes.
func (it *ReadItem) Len() int {
	data := it.SGE()
	return data.Len()
}

// SGE returns the data as an element of a gather list, without a key.
func (it *ReadItem) SGE() fabric.SGE { return fabric.SGE{Buf: it.Data, Foreign: it.Foreign} }

// A WriteItem is the memory for the data of one opaque result.
type WriteItem struct {
	Buf []byte // bounds the length of the result

	// Foreign, if not nil, is the memory, in place of Buf. The result is returned in a write chunk; if a server sends
	// it inline, decoding fails with a *ForeignError.
	Foreign *fabric.Foreign

	// Chunked is set if the peer placed N bytes of data in Buf. Otherwise the data, if any, is inline in Results.
	Chunked bool
	N       int
}

// Len returns the length of the memory in bytes.
func (w *WriteItem) Len() int {
	mem := w.SGE()
	return mem.Len()
}

// SGE returns the memory as an element of a scatter list, without a key.
func (w *WriteItem) SGE() fabric.SGE { return fabric.SGE{Buf: w.Buf, Foreign: w.Foreign} }
