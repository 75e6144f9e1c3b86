package rpc

import (
	"iter"
	"net"
	"reflect"
	"slices"
	"strings"

	"github.com/rpcrdma/rpcrdma/fabric"
)

// ConnInfo is what a connection's setup agreed on.
type ConnInfo struct {
	Provider   string // "tcp" over TCP, where only addresses and credits are set
	LocalAddr  net.Addr
	RemoteAddr net.Addr
	Version    uint32 // of RPC-over-RDMA
	Properties bool   // both ends exchanged their properties, in version 2

	// PrivateData: the peer sent an RFC 8797 message; PeerSend and PeerRecv are the sizes in it, in bytes.
	PrivateData        bool
	PeerSend, PeerRecv int

	// InlineSend and InlineRecv are the effective thresholds for messages that this end sends and receives, in bytes,
	// including the transport header.
	InlineSend, InlineRecv int

	// RemoteInvalidation: both ends allow Send with Invalidate.
	RemoteInvalidation bool

	// Credits is, at a client, the latest grant (1 before the first reply), and at a server its current grant. Over TCP
	// it is the number of calls that this end has, or accepts, in flight.
	Credits int

	// BackwardCredits are the credits for calls from the server to the client: at a server the latest grant, 0 before
	// AllowBackward, and at a client its current grant, 0 without Callbacks.
	BackwardCredits int

	// Configured: the Connection Configuration Protocol was used (RFC 5666 section 6, see ConfigProtocol). PeerReads is
	// the number of concurrent RDMA Reads that the peer said it serves, where 0 means no read chunks. PeerAlign is the
	// alignment that a server recommended to its client, in bytes. ConfigError is why a server did not take part, an
	// *oncrpc.RPCError or *RDMAError.
	Configured           bool
	PeerReads, PeerAlign int
	ConfigError          error

	Capabilities fabric.Capabilities
}

// Stats are the counters of a connection, or of all connections of a client or server. Both the end that sends a call
// or reply and the end that receives it count it.
//
// [Stats.Counters] yields the name, help text and kind of each field for logs, status pages and metrics.
type Stats struct {
	Calls   uint64 `json:"calls" kind:"event" help:"Calls sent, or received and valid."`
	Replies uint64 `json:"replies" kind:"event" help:"Replies received, or sent."`

	Inline      uint64 `json:"inline" kind:"way" help:"Calls with no chunk in either direction."`
	ReadChunk   uint64 `json:"read_chunk" kind:"way" help:"Calls with arguments in read chunks."`
	LongCall    uint64 `json:"long_call" kind:"way" help:"Calls as a whole in a position-zero read chunk."`
	WriteChunk  uint64 `json:"write_chunk" kind:"way" help:"Calls with results placed in write chunks."`
	ReplyChunk  uint64 `json:"reply_chunk" kind:"way" help:"Calls with a reply placed in a reply chunk."`
	Optional    uint64 `json:"optional" help:"Optional operations of version 2."`
	Done        uint64 `json:"done" help:"RDMA_DONE messages sent (RFC 5666)."`
	Invalidated uint64 `json:"invalidated" help:"Replies that came or went with remote invalidation."`

	ReadBytes  uint64 `json:"read_bytes" help:"Bytes moved by RDMA Read for calls."`
	WriteBytes uint64 `json:"write_bytes" help:"Bytes moved by RDMA Write for replies."`

	ErrVers  uint64 `json:"err_vers" help:"RDMA_ERROR messages with ERR_VERS, sent or received."`
	ErrChunk uint64 `json:"err_chunk" help:"RDMA_ERROR messages with another code, sent or received."`
	Dropped  uint64 `json:"dropped" help:"Messages ignored: short, late or unexpected."`
	Canceled uint64 `json:"canceled" help:"Calls given up before their reply."`

	Resent   uint64 `json:"resent" kind:"event" help:"Calls sent again on a new connection."`
	Replayed uint64 `json:"replayed" kind:"event" help:"Calls that came again, answered without executing them again."`

	Conns     uint64 `json:"conns,omitempty" kind:"owner" help:"Connections accepted by a server, or made by a client."`
	OpenConns uint64 `json:"open_conns,omitempty" kind:"owner" help:"Connections that a server has open."`
}

// A Counter describes a field of Stats.
type Counter struct {
	Name string // such as "read_chunk"
	Help string // a sentence
	Kind CounterKind
}

// A CounterKind relates a counter to the events of an Observer.
type CounterKind uint8

const (
	// CountsTraffic: no Observer event reports it.
	CountsTraffic CounterKind = iota
	// CountsEvents: an Observer could count it.
	CountsEvents
	// CountsWays: calls by the chunks they have; a call may count in several ways.
	CountsWays
	// CountsConns: of a client or server, not of a connection.
	CountsConns
)

// Counters yields the description and value of each field, in order.
func (s *Stats) Counters() iter.Seq2[Counter, uint64] {
	return func(yield func(Counter, uint64) bool) {
		v := reflect.ValueOf(s).Elem()
		for i := range v.NumField() {
			tag := v.Type().Field(i).Tag
			name, _, _ := strings.Cut(tag.Get("json"), ",")
			kind := CounterKind(max(slices.Index([]string{"", "event", "way", "owner"}, tag.Get("kind")), 0))
			if !yield(Counter{name, tag.Get("help"), kind}, v.Field(i).Uint()) {
				return
			}
		}
	}
}

// Add adds the counters of o.
func (s *Stats) Add(o *Stats) {
	sum, more := reflect.ValueOf(s).Elem(), reflect.ValueOf(o).Elem()
	for i := range sum.NumField() {
		sum.Field(i).SetUint(sum.Field(i).Uint() + more.Field(i).Uint())
	}
}

// ConnStats is the current state of a connection.
type ConnStats struct {
	Stats // Conns and OpenConns are zero

	// Calls made by this end: those without a reply, and those waiting for a credit.
	InFlight, Waiting int

	// ExposedBytes is the amount of memory that the peer can reach: the memory in the chunks of this end's calls
	// without a reply. Replies in read chunks (RFC 5666) are not counted.
	ExposedBytes int64

	// HeldBytes is the part of Config.MaxMemory held by the calls that this end executes.
	HeldBytes int64

	// Adapter has the counters of the adapter, if it counts: see fabric.Counting.
	Adapter []fabric.Counter
}
