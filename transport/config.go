package transport

import (
	"fmt"
	"log/slog"
	"math"
	"math/rand/v2"
	"time"

	"github.com/rpcrdma/rpcrdma/fabric"
	"github.com/rpcrdma/rpcrdma/proto/oncrpc"
	"github.com/rpcrdma/rpcrdma/proto/rpcrdma"
)

// Defaults and limits of a Config.
const (
	DefaultInline     = 4096    // bytes; what Linux uses
	DefaultCredits    = 128     // calls in flight
	DefaultBackward   = 16      // calls in flight from a server to its client; what Linux grants
	DefaultMaxMessage = 4 << 20 // bytes
	MaxCredits        = 16384   // as many as Linux allows
)

// A Config holds what one end of a connection can choose. The zero value and a
// nil pointer are the defaults. It is not modified, and may be shared.
type Config struct {
	// InlineSend and InlineRecv are the largest Sends this end makes and
	// accepts, in bytes, the transport header included: what it offers in the
	// private data (RFC 8797 section 4.2). They are rounded down to a multiple
	// of 1024 between 1024 and 262144. What both ends agree on is in ConnInfo.
	// Zero is DefaultInline.
	InlineSend, InlineRecv int

	// Credits is, at a client, the number of calls in flight to ask for, and
	// at a server the most it grants to one connection (RFC 5666 section
	// 3.3). A connection starts with fewer and is given more as it uses them.
	// Zero is DefaultCredits.
	Credits int

	// MaxMessage is the longest RPC message made or accepted, in bytes, with
	// everything in chunks included. Zero is DefaultMaxMessage.
	MaxMessage int

	// MaxMemory bounds what the calls of one connection hold at a server, in bytes:
	// arguments that were pulled, and bulk results until they have been sent. Before a
	// call runs it reserves what it has pulled and what the chunks that it offers for
	// results have room for, the latter up to twice MaxMessage. Once it is answered it
	// holds what its reply holds. Each piece counts as the next power of two, so it may
	// take twice its length. A call for which there is no room waits, but one call is
	// always admitted. Calls without chunks wait only while a single call holds more than
	// MaxMemory. A connection starts with 4 times MaxMessage, and its bound doubles each
	// time its peer has taken replies of that size; after 2 seconds in which the peer
	// takes nothing it is back at the start. Zero is 16 times MaxMessage.
	MaxMemory int

	// MaxTotalMemory bounds the same for all connections of a server together, in bytes,
	// mapped memory included: memory of finished calls until it is unmapped, which happens
	// within seconds, or at once when other calls need it; and the connections' own
	// buffers, which grow with the credits they use. A host may hold at most as much as it
	// leaves free for others, and a connection at most a third of what is then left for
	// its host. Calls wait for memory, one of each connection in turn; for a host that
	// holds nothing the memory only has to be free. When the connections' own buffers take
	// more than half, no connection is granted more credits, and a host with 16
	// connections gets no new one except in place of another. Results in ordinary memory
	// of the program count, garbage that the Go runtime has not collected does not. Zero
	// is 8 times MaxMemory.
	MaxTotalMemory int

	// MaxSegment splits exposed memory into segments of at most so many
	// bytes. Zero: one segment for each piece of memory.
	MaxSegment int

	// Limits bound the lists in headers from the peer.
	Limits rpcrdma.Limits

	// NoPrivateData keeps the RFC 8797 message from being sent: the peer then
	// assumes 1024-byte thresholds.
	NoPrivateData bool

	// NoRemoteInvalidation clears the R bit (RFC 8797 section 4.1), so that
	// the peer leaves all invalidation to this end.
	NoRemoteInvalidation bool

	// Peer says which chunks the other end of the connections accepts. The zero value is
	// safe with every peer.
	Peer Peer

	// Callbacks are the programs that a client executes for its server, over the
	// connection that the client has made (RFC 8167). Receives for their calls are
	// posted before the connection is. A client without any drops calls from its
	// server.
	Callbacks []Program

	// BackwardCredits is the number of calls in flight from a server to its client:
	// at a client with Callbacks what it grants, at a server the most it asks for.
	// They come on top of Credits. Zero is DefaultBackward.
	BackwardCredits int

	// NoReconnect ends a Client with its connection. Otherwise the client reconnects when
	// a call needs it or, if it has Callbacks, at once.
	NoReconnect bool

	// MaxPause is the longest pause between two attempts of a Client to reconnect. There
	// is no pause after a connection that lived for two seconds, nor after the first
	// shorter one on which calls were answered. Otherwise, and after failed attempts,
	// pauses start at 50 ms, plus or minus half at random, and double. Zero is 10 seconds:
	// a server that ends every connection at once then sees about eight attempts in the
	// first five seconds, and six a minute later on. Only its context bounds how often a
	// call is sent again.
	MaxPause time.Duration

	// OnReconnect, if not nil, is called on its own goroutine each time a Client has
	// reconnected. A client with Callbacks tells the server here that it is ready for
	// calls; what it said on the previous connection no longer counts (RFC 8167 section
	// 6). At most four calls of OnReconnect run at once; when one returns, one more
	// follows for all connections made meanwhile.
	OnReconnect func(cl *Client)

	// KeepAlive is how long a Client's server may be silent before the client calls
	// procedure 0 of the program that was called last, and how long the reply may take
	// before the connection counts as lost. Zero is a minute for a client with Callbacks
	// and no keep-alive for others; negative is none. With IdleTimeout the server is asked
	// only while calls are under way.
	KeepAlive time.Duration

	// IdleTimeout is how long a Client without Callbacks keeps an idle connection; the
	// next call makes a new one. Zero is for ever.
	IdleTimeout time.Duration

	// ReplyCache bounds the duplicate-request cache of a server, or of a client with
	// Callbacks: 4096 replies and 16 MiB, unless it says otherwise.
	ReplyCache ReplyCache

	// Version is which versions of RPC-over-RDMA are spoken. A client with VersionAuto
	// asks for version 2 when it connects, and a server with it answers both.
	Version Version

	// VersionCache remembers which servers speak version 1 alone, so that clients with
	// VersionAuto need not ask. Nil: each client has its own. See NewVersionCache.
	VersionCache *VersionCache

	// Operations are the optional operations of version 2 that this end knows, beyond
	// that of its own: see Operation.
	Operations []Operation

	// RFC5666 turns on what RFC 8166 has taken out of the protocol. Nil turns on
	// nothing.
	RFC5666 *RFC5666

	// SetupTimeout bounds the set-up of a connection at a server, and of one that a
	// client makes again. A client's first is bounded by Dial's context. Zero is 10
	// seconds.
	SetupTimeout time.Duration

	// StallTimeout is how long a peer may go without taking any of the replies sent to
	// it, or answering any RDMA Read of its memory, before its connection is closed with a
	// *StallError. Only whole requests count as progress: with 30 seconds a message of 4
	// MiB has to be transferred at 140 kB/s. Zero is 30 seconds, negative is for ever.
	StallTimeout time.Duration

	// MaxConns bounds the connections of a server, including those being set up, of which
	// there may be an eighth of it, or 16. When the bound is reached, a new connection
	// takes the place of one of the host that has the most, if that host has more than the
	// new connection's host would have. Only a connection that has been silent for a
	// second is closed: one without calls in flight if there is one, and the longest
	// silent of these. Otherwise the new connection is rejected, and a Client gets a
	// *BusyError. Zero is 4096, but at most a quarter of the descriptors that the process
	// may have open (RLIMIT_NOFILE) when NewServer is called: a connection may need three,
	// and the program opens files.
	MaxConns int

	// Logger gets a record for each connection that ends with an error, and for each
	// panic of a handler. Nil logs panics alone, to slog.Default().
	Logger *slog.Logger

	sendSize, recvSize int // of buffers: all that any version may ask for

	random func() uint64 // nil: math/rand's; set by tests that want the same again
}

// rand returns a random number.
func (c *Config) rand() uint64 {
	if c.random != nil {
		return c.random()
	}
	return rand.Uint64()
}

// A Peer is a kind of peer, by the chunks that it can take apart.
type Peer uint8

const (
	// PeerLinux is for Linux and everything simpler. The read list of a call has one
	// position; Linux 6.1 misreads lists with more. Calls from the server to the client,
	// and their replies, have no chunks (RFC 8167 section 5.3): they fit inline or fail.
	// Linux 6.1's client posts new receives only when it gets replies to its own calls, so
	// some thirty calls to it in between end its connection.
	PeerLinux Peer = iota
	// PeerFull accepts all that RFC 8166 and RFC 8167 allow: read chunks at several
	// positions, beside a position-zero chunk, too, and chunks in both directions. A
	// Server and a Client of this package do, if both are configured so.
	PeerFull
)

func (c *Config) withDefaults() (*Config, error) {
	var d Config
	if c != nil {
		d = *c
	}
	def := func(v *int, dflt int) {
		if *v == 0 {
			*v = dflt
		}
	}
	def(&d.InlineSend, DefaultInline)
	def(&d.InlineRecv, DefaultInline)
	def(&d.Credits, DefaultCredits)
	def(&d.MaxMessage, DefaultMaxMessage)
	def(&d.MaxMemory, 16*d.MaxMessage)
	def(&d.MaxTotalMemory, 8*d.MaxMemory)
	def(&d.MaxConns, defaultMaxConns(descriptors()))
	def(&d.BackwardCredits, DefaultBackward)
	def(&d.ReplyCache.Entries, defaultCacheEntries)
	def(&d.ReplyCache.Bytes, defaultCacheBytes)
	if d.SetupTimeout == 0 {
		d.SetupTimeout = 10 * time.Second
	}
	if d.MaxPause == 0 {
		d.MaxPause = defaultMaxPause
	}
	if d.StallTimeout == 0 {
		d.StallTimeout = 30 * time.Second
	}
	if d.KeepAlive == 0 && len(d.Callbacks) > 0 {
		d.KeepAlive = time.Minute
	}
	for _, f := range []struct {
		name     string
		v        int
		min, max int64
	}{
		{"InlineSend", d.InlineSend, 1024, 262144},
		{"InlineRecv", d.InlineRecv, 1024, 262144},
		{"Credits", d.Credits, 1, MaxCredits},
		{"MaxMessage", d.MaxMessage, 1024, 1 << 30},
		{"MaxMemory", d.MaxMemory, int64(d.MaxMessage), 1 << 40},
		{"MaxTotalMemory", d.MaxTotalMemory, int64(d.MaxMemory), 1 << 40},
		{"MaxSegment", d.MaxSegment, 0, 1 << 32},
		{"MaxConns", d.MaxConns, 1, 1 << 20},
		{"BackwardCredits", d.BackwardCredits, 1, MaxCredits},
		{"ReplyCache.Entries", d.ReplyCache.Entries, 1, 1 << 20},
		{"ReplyCache.Bytes", d.ReplyCache.Bytes, 1, 1 << 40},
		{"Peer", int(d.Peer), int64(PeerLinux), int64(PeerFull)},
	} {
		if v := int64(f.v); v < f.min || v > f.max {
			return nil, fmt.Errorf("transport: Config.%s is %d, want %d to %d", f.name, f.v, f.min, f.max)
		}
	}
	if d.MaxPause < 0 || d.MaxPause > time.Hour {
		return nil, fmt.Errorf("transport: Config.MaxPause is %v, want up to an hour", d.MaxPause)
	}
	if d.RFC5666 != nil {
		o := *d.RFC5666
		if o.Align < 0 || o.Align > maxAlign || o.Align > 1 && o.Thresh <= oncrpc.MaxAuthBody {
			return nil, fmt.Errorf("transport: RFC5666 has Align %d and Thresh %d, want at most 65536, and more than %d", o.Align, o.Thresh, oncrpc.MaxAuthBody)
		}
		if o.Configure != nil {
			if err := o.Configure.check(&o); err != nil {
				return nil, err
			}
		}
		if o.DoneTimeout == 0 {
			o.DoneTimeout = defaultDoneTimeout
		}
		d.RFC5666 = &o
	}
	d.InlineSend &^= 1023
	d.InlineRecv &^= 1023
	if err := d.settleVersions(); err != nil {
		return nil, err
	}
	if d.MaxSegment == 0 || d.MaxSegment > maxSegment {
		d.MaxSegment = maxSegment
	}
	return &d, nil
}

// maxSegment is the longest segment: its length field has 32 bits, and an int may have
// no more.
const maxSegment = math.MaxInt & (1<<32 - 4)

// role says which end of a connection this is. The client is the one that
// opened it.
type role uint8

const (
	roleClient role = iota
	roleServer
)

// Queue sizes. A message is at most a handful of work requests unless the peer
// splits its chunks; what does not fit waits in the connection's own list.
const (
	postBatch    = 64 // work requests posted at once, at most
	wrsPerCall   = 4
	mostSends    = 126 // a device has room for a power of two, and needs some itself
	maxReads     = 16  // RDMA Reads posted at once
	initialGrant = 4   // credits of a fresh connection
	recvBatch    = 4   // receives posted again at once

	setupReads = 16 // IRD and ORD offered

	// recvSlack is how many receives there are beyond the grant: for those that wait to
	// be posted again, and for RDMA_DONE and RDMA_ERROR. Of these a client gets only
	// what one of its calls has a receive for.
	recvSlack   = 4 + recvBatch - 1
	clientSlack = 1 + recvBatch - 1
)

func slack(r role) int {
	if r == roleClient {
		return clientSlack
	}
	return recvSlack
}

// backward is how many calls from server to client an end provides for.
func (c *Config) backward(r role) int {
	switch {
	case r == roleServer || len(c.Callbacks) > 0:
		return c.BackwardCredits
	case c.Version != Version1:
		return 1 // for a call that finds no program
	}
	return 0
}

func (c *Config) connAttr(r role) fabric.ConnAttr {
	calls := c.Credits + c.backward(r)
	return fabric.ConnAttr{
		SendDepth:     min(calls*wrsPerCall+postBatch+maxReads, mostSends),
		RecvDepth:     calls + slack(r),
		InboundReads:  setupReads,
		OutboundReads: setupReads,
	}
}
