package transport

import (
	"crypto/tls"
	"fmt"
	"log/slog"
	"math"
	"math/rand/v2"
	"time"

	"github.com/rpcrdma/rpcrdma/fabric"
	"github.com/rpcrdma/rpcrdma/proto/oncrpc"
	"github.com/rpcrdma/rpcrdma/proto/rpcrdma"
	"github.com/rpcrdma/rpcrdma/proto/xdr"
	"github.com/rpcrdma/rpcrdma/rpc"
	"github.com/rpcrdma/rpcrdma/transport/internal/plan"
)

// Defaults and limits.
const (
	DefaultInline     = 4096     // bytes; what Linux uses
	DefaultCredits    = 128      // calls in flight
	DefaultBackward   = 16       // calls in flight from a server to its client; Linux grants as many
	DefaultMaxMessage = 4 << 20  // bytes
	MaxCredits        = 16384    // Linux's limit
	DefaultBounceMax  = 64 << 10 // bytes
)

// A Config is the common part of ClientConfig and ServerConfig: the settings of either end of a connection. The zero
// value selects the defaults.
type Config struct {
	// InlineSend and InlineRecv are the largest Sends that this end makes and accepts, in bytes, including the
	// transport header. This end offers them in the private data (RFC 8797 section 4.2), rounded down to a multiple of
	// 1024 between 1024 and 262144. ConnInfo has the agreed values. Zero is DefaultInline.
	InlineSend, InlineRecv int

	// Credits is, at a client, the number of calls in flight to ask for, and at a server the maximum grant for one
	// connection (RFC 5666 section 3.3). A connection starts with fewer, and is granted more as it uses them and fewer
	// when it does not. The grant is lower while calls wait for memory. It drops to as few as 16 while several
	// connections wait for processors, if all programs that the connection calls are Independent (see Program). Zero is
	// DefaultCredits.
	Credits int

	// MaxMessage is the longest RPC message made or accepted, in bytes, with everything in chunks included. Zero is
	// DefaultMaxMessage. A generated program with longer messages is refused: see Program.Names.
	MaxMessage int

	// MaxMemory bounds the memory, in bytes, held by the calls of one connection at a server, or at a client with
	// Callbacks: arguments pulled from the peer, and bulk results until they have been sent. Before a call runs it
	// reserves the memory of its pulled arguments, and the size of the chunks that it offers for results, up to twice
	// MaxMessage. Once it is answered it holds only the memory of its reply. Each piece counts as the next power of
	// two, so it may count for up to twice its length. A call for which there is no room waits, but one call is always
	// admitted. Calls without chunks wait only while a single call holds more than MaxMemory. A connection starts with
	// 4 times MaxMessage. Its bound doubles each time its peer has taken replies of that size, and returns to the start
	// after 2 seconds in which the peer takes nothing. Zero is 16 times MaxMessage.
	//
	// Memory that Request.Decoder allocates beyond 64 KiB per call counts separately, until the handler has returned.
	// The calls of a connection may together have MaxMemory of it, or a single call more. A call that needs more than
	// that gets SYSTEM_ERR, because it cannot wait: see Request.LimitMemory.
	MaxMemory int

	// MaxSegment splits exposed memory into segments of at most MaxSegment bytes. Zero: one segment for each piece of
	// memory.
	MaxSegment int

	// BounceMax is the largest item of a call, in bytes, that is copied through a bounce buffer instead of being
	// registered, on adapters where calls would have to register memory (Capabilities without LocalDMA): registering
	// takes two system calls. It is also the limit for calls and replies in position-zero and reply chunks. The peer
	// then never reaches memory of the program, and with WeakRevocation a canceled call does not end the connection.
	// Without MemoryWindows the peer can read and write the connection's bounce buffers at any time, but they hold only
	// data sent to this peer or received from it. They use at most 1 MiB per connection, and are released after some
	// seconds without use. BounceMax is at most 1 MiB. Zero is DefaultBounceMax; negative means no bounce buffers.
	BounceMax int

	// Limits bound the lists in headers from the peer.
	Limits rpcrdma.Limits

	// NoPrivateData disables the RFC 8797 message: the peer then assumes 1024-byte thresholds.
	NoPrivateData bool

	// NoRemoteInvalidation clears the R bit (RFC 8797 section 4.1), so that
	// the peer leaves all invalidation to this end.
	NoRemoteInvalidation bool

	// PeerChunks are the chunks that the peers of this end accept. The zero value is safe with every peer.
	PeerChunks PeerChunks

	// BackwardCredits is the number of calls in flight from a server to its client: at a client with Callbacks its
	// grant, at a server the number it asks for. They are in addition to Credits. Zero is DefaultBackward.
	BackwardCredits int

	// ReplyCache bounds the duplicate-request cache of a server, or of a client with Callbacks. The default is 4096
	// replies and 16 MiB.
	ReplyCache ReplyCache

	// Version selects the versions of RPC-over-RDMA. With VersionAuto a client asks for version 2 when it connects, and
	// a server answers both versions.
	Version Version

	// Operations are the optional operations of version 2 that this end supports, in addition to the transport's own:
	// see Operation.
	Operations []Operation

	// RFC5666 enables what RFC 8166 removed from the protocol. Nil enables nothing.
	RFC5666 *RFC5666

	// TLS encrypts connections over TCP. Connections over RDMA are encrypted by their provider, for instance with
	// iwarp.Config.TLS. If TLS is set and not Optional, using a provider that does not encrypt is an error, unless it
	// is a fabric.Private. Nil: connections are in plain text, and a client that asks for TLS is refused.
	TLS *TLS

	// HostBits is the number of bits of an IPv6 address, 1 to 128, that identify a host in the per-host shares of
	// memory, connections, the reply cache and processors. A machine that has one address of a network can usually use
	// any other, so a limit for each address would limit nothing. All 32 bits of an IPv4 address count. Zero is 64.
	HostBits int

	// SetupTimeout bounds the setup of a connection at a server, and of a reconnection at a client. Dial's context
	// bounds a client's first connection. Zero is 10 seconds.
	SetupTimeout time.Duration

	// StallTimeout is how long a peer may go without taking any of the replies sent to it, or answering any RDMA Read
	// of its memory, before its connection is closed with a *StallError. Only whole requests count as progress: with 30
	// seconds a message of 4 MiB needs a rate of 140 kB/s. Zero is 30 seconds, negative is forever.
	StallTimeout time.Duration

	// Middleware wraps the handlers of all programs that this end executes, the first outermost, as if each
	// Program.Handler were Chain(Handler, Middleware...). It is applied once, when a program is registered or a bridge
	// is made: see Server.Bridge. The transport's own programs are not wrapped.
	Middleware []rpc.Middleware

	// Logger gets a record for each error that a handler returns, each panic of a handler, each connection of a server
	// that ends with an error, and the first reply of a connection that could not be sent. Each kind is limited to 10
	// records per second with bursts of 20; the attribute "omitted" of the next record counts those left out. Nil is
	// slog.Default(), as in net/http. To log nothing, set a Logger with slog.DiscardHandler.
	Logger *slog.Logger

	// Observer observes the connections and calls. Nil costs nothing.
	Observer rpc.Observer

	random func() uint64 // nil: math/rand; set by tests that need reproducible numbers
}

// config is the configuration of one end's connections: a Config with the defaults filled in, and values derived from
// it.
type config struct {
	Config
	tls       *tls.Config // with TLS
	callbacks bool        // the client executes calls from its server

	xids *xids // for a client's calls; nil: each connection has its own

	observation *observation // nil: no Observer
	journal     *journal

	sendSize, recvSize int // of buffers: the maximum over all versions
}

// rand returns a random number.
func (c *Config) rand() uint64 {
	if c.random != nil {
		return c.random()
	}
	return rand.Uint64()
}

// PeerChunks selects the chunks that a peer can parse.
type PeerChunks uint8

const (
	// LinuxChunks are the chunks that Linux, and every simpler peer, accepts. The read list of a call has one position;
	// Linux 6.1 misreads lists with more. Calls from the server to the client, and their replies, have no chunks (RFC
	// 8167 section 5.3): they fit inline or fail. Linux 6.1's client posts new receives only when it gets replies to
	// its own calls, so about thirty calls to it without such a reply end its connection.
	LinuxChunks PeerChunks = iota
	// AllChunks is everything that RFC 8166 and RFC 8167 allow: read chunks at several positions, also beside a
	// position-zero chunk, and chunks in both directions. A Server and a Client of this package accept them if both are
	// configured with AllChunks.
	AllChunks
)

// totalMemory returns the default of MaxTotalMemory, which also applies to a client with callbacks.
func totalMemory(c *Config) int { return times(8, c.MaxMemory) }

// times returns the product of positive numbers, or the largest int: 32 bits are not enough for the defaults with long
// messages.
func times(a, b int) int {
	if b > math.MaxInt/a {
		return math.MaxInt
	}
	return a * b
}

// settle returns c with its defaults filled in. owner is the type that contains it, for messages.
func (c Config) settle(owner string) (*config, error) {
	setDefault(&c.InlineSend, DefaultInline)
	setDefault(&c.InlineRecv, DefaultInline)
	setDefault(&c.Credits, DefaultCredits)
	setDefault(&c.MaxMessage, DefaultMaxMessage)
	setDefault(&c.MaxMemory, times(16, c.MaxMessage))
	setDefault(&c.BackwardCredits, DefaultBackward)
	setDefault(&c.BounceMax, DefaultBounceMax)
	setDefault(&c.ReplyCache.Entries, defaultCacheEntries)
	setDefault(&c.ReplyCache.Bytes, defaultCacheBytes)
	setDefault(&c.HostBits, 64)
	setDefault(&c.SetupTimeout, 10*time.Second)
	setDefault(&c.StallTimeout, 30*time.Second)
	if err := within(owner, []limit{
		{"InlineSend", c.InlineSend, 1024, 262144},
		{"InlineRecv", c.InlineRecv, 1024, 262144},
		{"Credits", c.Credits, 1, MaxCredits},
		{"MaxMessage", c.MaxMessage, 1024, 1 << 30},
		{"MaxMemory", c.MaxMemory, int64(c.MaxMessage), 1 << 40},
		{"MaxSegment", c.MaxSegment, 0, 1 << 32},
		{"BounceMax", c.BounceMax, math.MinInt, bounceMemory},
		{"BackwardCredits", c.BackwardCredits, 1, MaxCredits},
		{"ReplyCache.Entries", c.ReplyCache.Entries, 1, 1 << 20},
		{"ReplyCache.Bytes", c.ReplyCache.Bytes, 1, 1 << 40},
		{"HostBits", c.HostBits, 1, 128},
		{"PeerChunks", int(c.PeerChunks), int64(LinuxChunks), int64(AllChunks)},
	}); err != nil {
		return nil, err
	}
	if c.RFC5666 != nil {
		o, err := c.RFC5666.settle()
		if err != nil {
			return nil, err
		}
		c.RFC5666 = o
	}
	c.InlineSend &^= 1023
	c.InlineRecv &^= 1023
	if c.MaxSegment == 0 || c.MaxSegment > maxSegment {
		c.MaxSegment = maxSegment
	}
	conns := &config{Config: c, observation: observe(c.Observer), journal: newJournal(c.Logger)}
	if c.TLS != nil {
		var err error
		if conns.tls, err = c.TLS.settle(owner); err != nil {
			return nil, err
		}
	}
	if err := conns.settleVersions(owner); err != nil {
		return nil, err
	}
	return conns, nil
}

// A limit is the range of a field.
type limit struct {
	field    string
	value    int
	min, max int64
}

// within returns an error that names the first field out of range.
func within(owner string, limits []limit) error {
	for _, l := range limits {
		if v := int64(l.value); v < l.min || v > l.max {
			return fmt.Errorf("transport: %s.%s is %d, want %d to %d", owner, l.field, l.value, l.min, l.max)
		}
	}
	return nil
}

// maxSegment is the longest segment: its length field has 32 bits, which may be more than an int has.
const maxSegment = math.MaxInt & (1<<32 - 4)

// role is the end of a connection. The client is the end that opened it.
type role uint8

const (
	roleClient role = iota
	roleServer
)

// Queue sizes. A message is at most a handful of work requests unless the peer splits its chunks. Requests that do not
// fit wait in the connection's own list.
const (
	postBatch    = 64 // maximum number of work requests in one Post
	maxReads     = 16 // RDMA Reads in flight
	initialGrant = plan.Start

	// Receives are reposted in batches: recvBatch, or leastBatch if there are receives for at most fewMessages
	// messages. A larger batch saves calls of the adapter, but each receive that waits costs an idle connection memory.
	recvBatch, leastBatch = 4, 2
	fewMessages           = 8

	setupReads = 16 // IRD and ORD offered
	doneSlack  = 3  // receives for RDMA_DONE beyond the grants
)

// mostSlack returns the maximum number of receives beyond the grants.
func (c *config) mostSlack(r role) int { return c.slack(r, fewMessages+1) }

// slack returns the number of receives beyond those for n calls and replies: all but one of a batch may be waiting to
// be reposted, and one is for an RDMA_ERROR.
func (c *config) slack(r role, n int) int {
	if r == roleServer && c.RFC5666 != nil {
		return batchOf(n) + doneSlack
	}
	return batchOf(n)
}

// batchOf returns the batch in which receives are reposted if there are receives for n calls and replies.
func batchOf(n int) int {
	if n <= fewMessages {
		return leastBatch
	}
	return recvBatch
}

// backward returns the number of calls from server to client that an end provides for.
func (c *config) backward(r role) int {
	switch {
	case r == roleServer || c.callbacks:
		return c.BackwardCredits
	case c.Version != Version1:
		return 1 // for a call to a program that does not exist
	}
	return 0
}

// firstBuffers returns the initial number of receives of a connection, and of its own messages in addition.
func (c *config) firstBuffers(r role) int {
	n, own := min(initialGrant, c.Credits), 3 // providers report deferred replies by twos
	if r == roleClient {
		n, own = firstReplies+c.backward(r), 1
	}
	return n + c.slack(r, n) + own
}

// connAttr returns the attributes of connections, with receives for all calls that may be in flight. The provider
// chooses the length of the send queue: requests that do not fit wait in the connection's own list.
func (c *config) connAttr(r role) fabric.ConnAttr {
	return fabric.ConnAttr{
		RecvDepth:     c.Credits + c.backward(r) + c.mostSlack(r),
		InboundReads:  setupReads,
		OutboundReads: setupReads,
	}
}

// headers is the largest size of an RPC message without its arguments or results.
const headers = 10*xdr.Unit + 2*oncrpc.MaxAuthBody

// fits returns an error if messages of a version of a program may be longer than MaxMessage.
func (c *config) fits(p *oncrpc.Program) error {
	if p == nil || p.Longest <= c.MaxMessage-headers {
		return nil
	}
	return &rpc.SizeError{
		What: fmt.Sprintf("the longest message of %s v%d, which Config.MaxMessage bounds,", p.Name, p.Vers), Size: p.Longest + headers, Limit: c.MaxMessage,
	}
}
