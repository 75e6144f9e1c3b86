package rpc

import (
	"github.com/rpcrdma/rpcrdma/fabric"
	"github.com/rpcrdma/rpcrdma/internal/origin"
	"github.com/rpcrdma/rpcrdma/proto/oncrpc"
	"github.com/rpcrdma/rpcrdma/proto/xdr"
)

// A Call is one remote procedure call: what goes out, where bulk results go,
// and what came back. The caller owns it and may use it again for the next
// call, which then allocates nothing.
type Call struct {
	Prog, Vers, Proc uint32      // which procedure
	Cred, Verf       oncrpc.Auth // of the caller; the zero values are AUTH_NONE

	// Names are those of the procedures, for errors; nil if they are not known.
	Names *oncrpc.Program

	// Observed is the procedure as Observers and tracing see it, if it is not zero: see Request.Observed.
	Observed Procedure

	// Args are the XDR-encoded arguments without the data and padding of the
	// items in ReadItems; the length words of those stay in Args.
	Args []byte

	// ReadItems are arguments that may leave the caller's memory as read
	// chunks, in the order of the stream. Whether they do is decided by
	// size: what fits goes inline.
	ReadItems []ReadItem

	// WriteItems are buffers for the results that may come back through write
	// chunks, in the order of the binding. When Call returns, the memory is
	// the caller's again and the peer cannot reach it, whatever the outcome.
	WriteItems []WriteItem

	// MaxResults bounds the XDR-encoded results, without the data of the
	// write items, in bytes: what may not fit inline is given a reply chunk.
	// Zero promises that the results are small enough.
	MaxResults int

	// MaxDecoded bounds the memory that Decoder allocates for the results, in bytes, if it is not 0:
	// see [xdr.Decoder.LimitMemory] for what that is otherwise. It does not count in Config.MaxMemory:
	// the values are the caller's.
	MaxDecoded int

	// NoResend keeps a call that has been sent from being sent again when its connection
	// is lost: it fails with a *LostError instead. It is for calls that must not be
	// executed twice, at servers without a cache of replies.
	NoResend bool

	// Sign, if not nil, makes the call's verifier, which replaces Verf: what proves the caller
	// in flavors that sign the header of the call (RFC 2203 section 5.3.1). header is that, from
	// the xid, which is chosen when the call is made, to the credential; it is valid until Sign
	// returns. Sign is called by the goroutine that makes the call, again for each xid, and
	// must not block or panic. A call that is sent again has the same xid and verifier.
	Sign func(header []byte) oncrpc.Auth

	// Results are the XDR-encoded results. The data of write items with
	// Chunked set is not in it, their length words are. The memory belongs
	// to the Call: it is valid until the next call with it.
	Results []byte

	// Reply is the RPC reply header, valid until the next call with the Call.
	Reply oncrpc.ReplyHeader

	nothing [1]byte // the Buf of results that may have no data: see Receive

	state origin.State // of the transport that makes the call
}

// ObservedAs returns Observed, or the procedure of the call.
func (call *Call) ObservedAs() Procedure {
	if call.Observed != (Procedure{}) {
		return call.Observed
	}
	return Procedure{call.Prog, call.Vers, call.Proc}
}

// Receive adds a WriteItem with the memory buf, as much as the next bulk result may take. An
// empty buf is for a result without data: transports have no empty chunks.
func (call *Call) Receive(buf []byte) {
	if len(buf) == 0 {
		buf = call.nothing[:]
	}
	call.WriteItems = append(call.WriteItems, WriteItem{Buf: buf})
}

// AppendArgs appends the arguments in one piece: Args, with the data of ReadItems and its padding
// where they belong. A wrapper that signs or encrypts arguments does that to them, and makes a
// call without items (RFC 8166 section 8.2.2). It panics if the offsets of ReadItems do not ascend
// within Args, or an item is foreign memory.
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
	// Offset says where in Args the data belongs: the offset after the
	// item's length word.
	Offset int
	Data   []byte

	// Foreign, if not nil, is the data, and Data is not. It goes in a read chunk, however short, or
	// the call fails with a *ForeignError.
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
	Buf []byte // its length bounds the result

	// Foreign, if not nil, is the memory, and Buf is not. The result goes there through a write chunk;
	// a server that sends it inline makes decoding fail with a *ForeignError.
	Foreign *fabric.Foreign

	// Chunked is set when the peer placed the data in Buf: N bytes of it.
	// Otherwise the data, if any, is inline in Results.
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
