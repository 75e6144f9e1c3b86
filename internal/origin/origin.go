// Package origin is shared by package rpc and the transports, and hidden from programs: where a call
// that is executed comes from, and what a transport keeps of a call that is made.
package origin

import (
	"github.com/rpcrdma/rpcrdma/proto/oncrpc"
	"github.com/rpcrdma/rpcrdma/proto/xdr"
)

// An Origin is where a call comes from and its reply goes to, as a handler's Request and Response use
// it.
type Origin interface {
	// AddItem accepts an item for the place at in the results. release, unless it is nil, is called
	// when the transport no longer uses data.
	AddItem(at int, data []byte, release func())
	AllocItem(n int) []byte // n bytes that need no release, or nil
	WhenReleased(f func())  // f is called when the transport uses no memory of the reply any more
	Items() *[]Item         // those that there are
	Room(results int) int   // what a reply with so many bytes of results has left
	ItemRoom(results int) int
	TakeValues(n int) bool                        // takes memory for decoded arguments
	LogFailed(prog, vers, proc uint32, err error) // notes that a handler has failed with err, even after the reply

	// Recall looks up whether the call has been executed for a caller. If not, its reply is to be remembered.
	Recall(caller, args []byte) Recalled
	// Remember keeps the answer to the call, for calls that come again.
	Remember(h *oncrpc.ReplyHeader, results []byte)
}

// A Recalled is what Recall has found.
type Recalled struct {
	Status  oncrpc.ReplyHeader
	Results []byte // their memory is the call's; the items are those of the Origin
	Found   bool
}

// An Item is a result that may go to a write chunk.
type Item struct {
	At      int // its place in the stream of results, which does not have it
	Data    []byte
	Key     uint32 // local key of Data
	Release func() // or nil
}

// Splice puts the data of items, with its padding, into the stream of n bytes at the start of b, which
// it then fills, from the last to the first.
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

// A State is kept in a call by the transport that makes it.
type State struct {
	Value any

	// Again says that the call was denied, as far as is known, and is made again: it keeps its xid and goes to the same
	// server, which may have executed it. A wrapper sets it for the time.
	Again bool
}

// An Outcome is an error of a transport that chooses its word in the outcomes of connections and calls.
type Outcome interface {
	error
	Outcome() string
}

// Keys of the contexts of handlers.
type (
	ConnKey   struct{} // the connection
	InlineKey struct{} // not nil for a handler that is Inline
)
