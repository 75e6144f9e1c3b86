package transport

import (
	"context"
	"crypto/tls"
	"fmt"
	"time"

	"github.com/rpcrdma/rpcrdma/proto/oncrpc"
	"github.com/rpcrdma/rpcrdma/rpc"
)

// The parts of a Config that enable something or limit it. They refer to no connection.

// Version selects the versions of RPC-over-RDMA that one end speaks.
type Version uint8

const (
	// VersionAuto is version 2 if the peer supports it, otherwise version 1.
	VersionAuto Version = iota
	// Version1 is only version 1.
	Version1
	// Version2 is only version 2: connections to other peers fail.
	Version2
)

// String returns the name used in the command's options: "auto", "1" or "2".
func (v Version) String() string {
	switch v {
	case Version1:
		return "1"
	case Version2:
		return "2"
	}
	return "auto"
}

// A ReplyCache bounds a duplicate-request cache. When a client has lost its connection and sends a call again, the
// cache answers it with the original reply. A reply is kept for two minutes, as in kernels, because xids recur. Replies
// that do not fit are dropped earlier. A call repeated after that is executed again. When the cache is full, the host
// with the largest share of it loses its oldest reply, so that a busy client does not displace the replies of others.
type ReplyCache struct {
	// Entries is the number of replies that are remembered, and of calls in flight with replies to be remembered; at
	// most a quarter of the latter may come from one host. Calls beyond that are still executed, but their replies are
	// not remembered, and their contexts end with their connections. Zero is 4096.
	Entries int

	// Bytes bounds the total size of the replies in bytes, including bulk results. Replies of more than an eighth of it
	// are not kept. Zero is 16 MiB.
	Bytes int
}

const (
	defaultCacheEntries = 4096
	defaultCacheBytes   = 16 << 20
)

// TLS encrypts connections over TCP (RPC-with-TLS, RFC 9289). A client asks for it in its first message, in plain text,
// with the credential AUTH_TLS, and the handshake of TLS 1.3 follows. Other bytes between the two end the connection.
// SetupTimeout bounds all of this, also on a client's first connection. A connection that is already a *tls.Conn, from
// DialTCPWith or a listener, is left as it is.
type TLS struct {
	// Config is cloned for each connection; its callbacks, such as GetCertificate, can renew certificates. TLS before
	// 1.3 is refused, and so is a peer that offers ALPN protocols other than that of RPC, "sunrpc", or those in
	// NextProtos; a peer that offers none, such as Linux, is accepted. A client's ServerName defaults to the host of
	// the address. A server's ClientAuth determines whether clients need certificates.
	Config *tls.Config

	// Optional lets a client continue in plain text with a server that has no TLS, and lets a server serve clients that
	// do not ask for it. It does not protect against an attacker on the path. Without Optional a client's connection
	// fails with a *TLSError, and a server answers plain-text calls with AUTH_TOOWEAK, except procedure 0, and makes no
	// calls.
	Optional bool

	// Except lists programs that a server executes in plain text anyway, over TCP: for instance MOUNT, which Linux
	// calls in plain text even where NFS has TLS. Clients ignore it.
	Except []uint32

	// Prog and Vers are the program in a client's first message, a call of procedure 0. Zero is version 3 of NFS.
	// Server ignores them.
	Prog, Vers uint32
}

// RFC5666 enables features of RFC 5666 that RFC 8166 removed from the protocol. Both ends must enable them: a peer that
// has not answers RDMA_MSGP with ERR_CHUNK, fails calls if their replies have read chunks, and ignores RDMA_DONE.
//
//   - A server accepts RDMA_MSGP for programs with Program.Padded.
//   - A server answers calls to programs with Program.ReadReplies in read chunks when a reply fits nowhere else, and
//     keeps that memory until the client sends RDMA_DONE.
//   - A client fetches such replies and sends RDMA_DONE.
//   - With ConfigProtocol the two ends agree on sizes and the number of RDMA Reads.
type RFC5666 struct {
	// Align and Thresh make a client send calls with RDMA_MSGP if their bulk arguments fit inline: the data of
	// ReadItems of at least Thresh bytes then begins at a multiple of Align, counted from the start of the RPC message
	// (section 3.9). Thresh must exceed 400, the longest credential. A call is not padded if its other arguments could
	// hold something as long. An Align of 0 or 1 disables this; but with Thresh and ConfigProtocol set, 0 uses the
	// server's recommendation, if that is at most 65536.
	Align, Thresh int

	// InflateLengths makes a server include XDR padding in the lengths of write chunks that it returns, as far as the
	// chunk has room, although it writes no padding (section 3.7).
	InflateLengths bool

	// DoneTimeout is how long a server waits for RDMA_DONE before it ends the connection, which fences off the memory
	// (section 3.8). Zero is 30 seconds.
	DoneTimeout time.Duration

	// ConfigProtocol enables the Connection Configuration Protocol (section 6). Nil: clients do not use it, and servers
	// answer PROG_UNAVAIL.
	ConfigProtocol *ConfigProtocol
}

// settle returns a copy with the defaults filled in.
func (o RFC5666) settle() (*RFC5666, error) {
	if o.Align < 0 || o.Align > maxAlign || o.Align > 1 && o.Thresh <= oncrpc.MaxAuthBody {
		return nil, fmt.Errorf("transport: RFC5666 has Align %d and Thresh %d, want at most %d, and more than %d", o.Align, o.Thresh, maxAlign, oncrpc.MaxAuthBody)
	}
	if o.ConfigProtocol != nil {
		if err := o.ConfigProtocol.check(&o); err != nil {
			return nil, err
		}
	}
	setDefault(&o.DoneTimeout, defaultDoneTimeout)
	return &o, nil
}

const (
	defaultDoneTimeout = 30 * time.Second
	maxAlign           = 1 << 16
)

// ConfigProtocol enables the Connection Configuration Protocol of RFC 5666 section 6. A client's Dial then makes its
// call before any other; if the server does not have the program, or refuses the call, the connection stays as it was.
// A server answers this program in addition to the registered ones.
//
// The protocol is useful with peers that send no private data (RFC 8797): with neither, messages have at most 1024
// bytes. After private data it can only lower the sizes. ConnInfo has the result.
//
// A server cannot state the size of its inline replies: the client assumes that the server may use the size the client
// asked for. So a server's InlineSend should be at least the InlineRecv of its clients.
//
// The call should be protected (section 11), or an attacker on the path can slow down the connection. This package
// neither makes nor verifies RPCSEC_GSS: use a credential that the server knows, or a protected link.
type ConfigProtocol struct {
	// Align is the alignment in bytes, at most 65536, that a server recommends for opaque data. 0 and 1 recommend none.
	Align int

	// MaxReads is the number of RDMA Reads that the peer may have in progress at this end. Zero, or more than the
	// adapter supports, means the adapter's limit.
	MaxReads int

	// NoReads allows the peer no Reads: neither end uses read chunks, and calls that
	// do not fit inline fail with *SizeError.
	NoReads bool

	// Cred and Verf are the credential and verifier of a client's call.
	Cred, Verf oncrpc.Auth

	// Auth decides, at a server, whether a call with this credential may configure the connection. Any result except
	// oncrpc.AuthOK rejects the call; oncrpc.AuthTooWeak is for a flavor that does not suffice. Auth must be quick and
	// must not retain the credential's memory. Nil accepts every flavor, including AUTH_NONE, except RPCSEC_GSS, which
	// is always rejected.
	Auth func(cred oncrpc.Auth) oncrpc.AuthStat
}

// configures reports whether the protocol is enabled.
func (o *RFC5666) configures() bool { return o != nil && o.ConfigProtocol != nil }

// check returns an error if a field is out of range.
func (f *ConfigProtocol) check(o *RFC5666) error {
	switch {
	case f.Align < 0 || f.Align > maxAlign:
		return fmt.Errorf("transport: ConfigProtocol.Align is %d, want at most %d", f.Align, maxAlign)
	case f.MaxReads < 0:
		return fmt.Errorf("transport: ConfigProtocol.MaxReads is %d", f.MaxReads)
	case len(f.Cred.Body) > oncrpc.MaxAuthBody || len(f.Verf.Body) > oncrpc.MaxAuthBody:
		return fmt.Errorf("transport: ConfigProtocol has a credential or verifier of more than %d bytes", oncrpc.MaxAuthBody)
	case o.Align == 0 && o.Thresh != 0 && o.Thresh <= oncrpc.MaxAuthBody:
		return fmt.Errorf("transport: RFC5666 has Thresh %d, want more than %d", o.Thresh, oncrpc.MaxAuthBody)
	}
	return nil
}

// An Operation is an optional operation that an end supports.
type Operation struct {
	// Type is rdma_opttype. The type of the transport's own properties operation is reserved.
	Type uint32

	// Payload decides whether an RPC message follows (version two section 3.2). Requests and answers
	// that break the rule are refused, with RDMA_ERR_BAD_HEADER.
	Payload PayloadRule

	// IsAnswer reports whether rdma_optinfo is that of an answer rather than a request: both ends may make requests,
	// and their xids may be equal.
	IsAnswer func(info []byte) bool

	// Handle executes a request that arrived on cn and returns the answer. Its Type is ignored. m is valid until Handle
	// returns. An error is reported as RDMA_ERR_INVAL_OPTION; put errors that the other end should understand into the
	// answer. A panic is reported in the same way, and logged like a Handler's. Nil: this end only makes requests, and
	// refuses the peer's.
	Handle func(ctx context.Context, cn rpc.Conn, m Optional) (answer Optional, err error)
}

// A PayloadRule decides whether an RPC message follows the transport header of an optional operation.
type PayloadRule uint8

const (
	PayloadMay   PayloadRule = iota // it may
	PayloadMust                     // it must
	PayloadNever                    // it must not
)

func (r PayloadRule) holds(payload []byte) bool {
	return r == PayloadMay || (r == PayloadMust) == (len(payload) > 0)
}

// An Optional is the content of an RDMA_OPTIONAL message.
type Optional struct {
	Type    uint32 // rdma_opttype
	Info    []byte // rdma_optinfo
	Payload []byte // the RPC message after it, if any
}

// setDefault gives a field that is zero its default.
func setDefault[T comparable](field *T, value T) {
	if *field == *new(T) {
		*field = value
	}
}
