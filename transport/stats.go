package transport

import (
	"net"
	"sync/atomic"

	"github.com/rpcrdma/rpcrdma/fabric"
)

// ConnInfo is what the set-up of a connection agreed on.
type ConnInfo struct {
	Provider   string // "tcp" over TCP, where what is not an address or a number of credits is zero
	LocalAddr  net.Addr
	RemoteAddr net.Addr
	Version    uint32 // of RPC-over-RDMA
	Properties bool   // the ends have told each other their properties, in version 2

	// PrivateData: the peer sent an RFC 8797 message; PeerSend and PeerRecv
	// are the sizes in it, in bytes.
	PrivateData        bool
	PeerSend, PeerRecv int

	// InlineSend and InlineRecv are the thresholds in force for messages
	// sent and received by this end, in bytes, transport header included.
	InlineSend, InlineRecv int

	// RemoteInvalidation: both ends allow Send with Invalidate.
	RemoteInvalidation bool

	// Credits is, at a client, the latest grant (1 before the first reply),
	// and at a server what it grants at the moment. Over TCP it is how many calls
	// the end has, or takes, in flight.
	Credits int

	// BackwardCredits is the same for calls from the server to the client: at a server
	// the latest grant, 0 before AllowBackward, and at a client what it grants, 0 if it
	// has no Callbacks.
	BackwardCredits int

	// Configured: the Connection Configuration Protocol has been used (RFC 5666
	// section 6, see ConfigProtocol). PeerReads is how many RDMA Reads the peer then said
	// it serves at once, 0 being that there are no read chunks, and PeerAlign the
	// alignment that a server recommended to its client, in bytes. ConfigError is why
	// a server did not take part, an *oncrpc.RPCError or *RDMAError.
	Configured           bool
	PeerReads, PeerAlign int
	ConfigError          error

	Capabilities fabric.Capabilities
}

// Stats are counters of a connection, or of all connections of a server. Calls
// and replies are counted where they are made, as well as where they arrive.
type Stats struct {
	Calls   uint64 // calls sent, or received and valid
	Replies uint64 // replies received, or sent

	Inline      uint64 // calls with no chunk in either direction
	ReadChunk   uint64 // calls with arguments in read chunks
	LongCall    uint64 // calls as a whole in a position-zero read chunk
	WriteChunk  uint64 // calls with results placed in write chunks
	ReplyChunk  uint64 // calls with a reply placed in a reply chunk
	Optional    uint64 // optional operations of version 2
	Done        uint64 // RDMA_DONE messages sent, see Config.RFC5666
	Invalidated uint64 // replies that came or went with remote invalidation

	ReadBytes  uint64 // moved by RDMA Read for calls, in bytes
	WriteBytes uint64 // moved by RDMA Write for replies, in bytes

	ErrVers   uint64 // RDMA_ERROR messages with ERR_VERS, sent or received
	ErrChunk  uint64 // RDMA_ERROR messages with another code
	Dropped   uint64 // messages ignored: short, late, unexpected, RDMA_DONE
	Cancelled uint64 // calls given up before their reply

	Resent   uint64 // calls sent again on a new connection
	Replayed uint64 // re-sent calls answered without executing them again

	Conns     uint64 // connections accepted (servers), or made (clients)
	OpenConns uint64 // connections open now (servers)
}

// add adds the counters of another connection.
func (s *Stats) add(o *Stats) {
	for _, f := range []struct {
		sum *uint64
		n   uint64
	}{
		{&s.Calls, o.Calls}, {&s.Replies, o.Replies},
		{&s.Inline, o.Inline}, {&s.ReadChunk, o.ReadChunk}, {&s.LongCall, o.LongCall},
		{&s.WriteChunk, o.WriteChunk}, {&s.ReplyChunk, o.ReplyChunk},
		{&s.Optional, o.Optional}, {&s.Done, o.Done}, {&s.Invalidated, o.Invalidated},
		{&s.ReadBytes, o.ReadBytes}, {&s.WriteBytes, o.WriteBytes},
		{&s.ErrVers, o.ErrVers}, {&s.ErrChunk, o.ErrChunk}, {&s.Dropped, o.Dropped}, {&s.Cancelled, o.Cancelled},
		{&s.Resent, o.Resent}, {&s.Replayed, o.Replayed}, {&s.Conns, o.Conns}, {&s.OpenConns, o.OpenConns},
	} {
		*f.sum += f.n
	}
}

// counters are the live form of Stats. A connection's are updated by whoever
// moves it, a server's by many.
type counters struct {
	calls, replies                                                                 atomic.Uint64
	inline, readChunk, longCall, writeChunk, replyChunk, remoteInv, done, optional atomic.Uint64
	readBytes, writeBytes                                                          atomic.Uint64
	errVers, errChunk, dropped, cancelled                                          atomic.Uint64
	resent, replayed                                                               atomic.Uint64
}

func (c *counters) snapshot() Stats {
	return Stats{
		Calls: c.calls.Load(), Replies: c.replies.Load(),
		Inline: c.inline.Load(), ReadChunk: c.readChunk.Load(), LongCall: c.longCall.Load(),
		WriteChunk: c.writeChunk.Load(), ReplyChunk: c.replyChunk.Load(), Invalidated: c.remoteInv.Load(), Done: c.done.Load(), Optional: c.optional.Load(),
		ReadBytes: c.readBytes.Load(), WriteBytes: c.writeBytes.Load(),
		ErrVers: c.errVers.Load(), ErrChunk: c.errChunk.Load(), Dropped: c.dropped.Load(), Cancelled: c.cancelled.Load(),
		Resent: c.resent.Load(), Replayed: c.replayed.Load(),
	}
}
