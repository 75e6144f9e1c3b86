package transport

import (
	"time"

	"github.com/rpcrdma/rpcrdma/proto/oncrpc"
	"github.com/rpcrdma/rpcrdma/rpc"
	"github.com/rpcrdma/rpcrdma/transport/internal/plan"
)

// A pendingCall is a program's Call while it is being made, with the transport's data for it. The program reuses it for
// successive calls, so that the next one allocates nothing.
type pendingCall struct {
	*rpc.Call
	store   []byte // the reply message
	sent    bool   // on an earlier connection, or on this one
	xid     uint32 // that it was sent with
	again   bool   // it keeps xid because it was denied: see origin.State
	via     any    // the member of a Group that made it last
	replied uint32 // protocol version of the reply, or of the refusal
	asked   int    // how often it has caused the version to be negotiated again

	ended func(error) // for a call in a Pipeline: see StartFunc

	// raw makes the call carry a whole RPC message, without the data of ReadItems, in place of a header and Args; its
	// xid is replaced. The offsets of ReadItems are then relative to the message's first byte, and Results receives the
	// whole reply message.
	raw []byte

	signed []byte     // the header for Sign
	event  *callEvent // for an Observer
	op     *operation // makes the call an optional operation, see operation.go
}

// pendingOf returns the transport's data for call. A copy of a Call has its own.
func pendingOf(call *rpc.Call) *pendingCall {
	state := rpc.StateOf(call)
	p, ok := state.Value.(*pendingCall)
	if !ok || p.Call != call {
		p = &pendingCall{Call: call}
		state.Value = p
	}
	return p
}

// begin prepares for making the call.
func (call *pendingCall) begin() { call.again, call.sent, call.asked = call.denied(), false, 0 }

// denied reports whether the call is made again after a denial.
func (call *pendingCall) denied() bool { return call.sent && rpc.StateOf(call.Call).Again }

// sign makes the verifier of a call that will be sent with xid.
func (call *pendingCall) sign(xid uint32) {
	const verf = 8 // bytes of an empty verifier
	call.signed = oncrpc.AppendCall(call.signed[:0], &oncrpc.CallHeader{
		XID: xid, RPCVers: oncrpc.Version, Prog: call.Prog, Vers: call.Vers, Proc: call.Proc, Cred: call.Cred,
	})
	call.Verf = call.Sign(call.signed[:len(call.signed)-verf])
}

// scratch is memory for planning calls, over RDMA and TCP.
type scratch struct {
	items  []plan.Item
	pieces []plan.Piece
	sizes  []int // of results
}

// An operation is a request in flight.
type operation struct {
	Optional
	answers func(info []byte) bool
	rule    PayloadRule
	answer  Optional
}

// A callEvent is the event of a call.
type callEvent struct {
	rpc.CallEvent
	sent time.Time // the last time
}
