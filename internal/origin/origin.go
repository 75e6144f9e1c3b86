// Package origin is shared by package rpc and the transports, and hidden from programs. It describes where an executed
// call comes from, and what a transport keeps with an outgoing call.
package origin

import (
	"github.com/rpcrdma/rpcrdma/proto/oncrpc"
	"github.com/rpcrdma/rpcrdma/proto/xdr"
)

// An Origin is where a call comes from and its reply goes to, for use by a handler's Request and Response.
type Origin interface {
	// AddItem adds an item at offset at in the results. release, unless it is nil, is called when the transport no
	// longer uses data.
	AddItem(at int, data []byte, release func())
	AllocItem(n int) []byte // returns n bytes that need no release, or nil
	WhenReleased(f func())  // f is called when the transport no longer uses memory of the reply
	Items() *[]Item         // returns the items added
	Room(results int) int   // returns the room left in a reply with that many bytes of results
	ItemRoom(results int) int
	TakeValues(n int) bool                        // takes memory for decoded arguments
	LogFailed(prog, vers, proc uint32, err error) // records that a handler failed with err, even after the reply

	// Recall looks up whether the call has already been executed for a caller. If not, the reply will be remembered.
	Recall(caller, args []byte) Recalled
	// Remember keeps the reply to the call for retransmissions.
	Remember(h *oncrpc.ReplyHeader, results []byte)
}

// A Recalled is the result of Recall.
type Recalled struct {
	Status  oncrpc.ReplyHeader
	Results []byte // memory of the call; the items are those of the Origin
	Found   bool
}

// An Item is a result that may go to a write chunk.
type Item struct {
	At      int // offset in the stream of results, which does not contain the item
	Data    []byte
	Key     uint32 // local key of Data
	Release func() // may be nil
}

// Splice inserts the data of items, with padding, into the stream of n bytes at the start of b, which it then fills. It
// works from the last item to the first.
func Splice(b []byte, n int, items []Item) {
	end := len(b)
	for i := len(items) - 1; i >= 0; i-- {
		it := &items[i]
		tail := n - it.At
		copy(b[end-tail:end], b[it.At:n])
		end -= tail + xdr.Padded(len(it.Data))
		k := copy(b[end:], it.Data)
		clear(b[end+k : end+xdr.Padded(k)])
		n = it.At
	}
}

// A State is kept with a call by the transport that makes it.
type State struct {
	Value any

	// Again is set while a call that was apparently denied is made again: it keeps its xid and goes to the same server,
	// which may have executed it. A wrapper sets it.
	Again bool
}

// An Outcome is an error of a transport that has its own name among the outcomes of connections and calls.
type Outcome interface {
	error
	Outcome() string
}

// Context keys for handlers.
type (
	ConnKey   struct{} // the connection
	InlineKey struct{} // not nil for a handler that runs inline
)
