package oncrpc

import (
	"encoding/binary"

	"github.com/rpcrdma/rpcrdma/proto/xdr"
)

// Version is the RPC version that this package speaks. RFC 5531 section 9.
const Version = 2

// A MsgType is the direction of a message, its second word. RFC 5531 section 9.
type MsgType uint32

const (
	Call  MsgType = 0
	Reply MsgType = 1
)

// String returns the RFC's spelling.
func (t MsgType) String() string {
	switch t {
	case Call:
		return "CALL"
	case Reply:
		return "REPLY"
	}
	return number("MSG_TYPE", uint32(t))
}

// Peek reads the first two words of a call or reply. ok is false if b is shorter than that.
// The type is not validated.
func Peek(b []byte) (xid uint32, t MsgType, ok bool) {
	if len(b) < 8 {
		return 0, 0, false
	}
	return binary.BigEndian.Uint32(b), MsgType(binary.BigEndian.Uint32(b[4:])), true
}

// PeekCall reads only the part of a call header before the credential. ok is false if b is shorter than that. The type
// and the version are not validated.
func PeekCall(b []byte) (h CallHeader, ok bool) {
	if len(b) < 24 {
		return h, false
	}
	word := func(i int) uint32 { return binary.BigEndian.Uint32(b[4*i:]) }
	return CallHeader{XID: word(0), RPCVers: word(2), Prog: word(3), Vers: word(4), Proc: word(5)}, true
}

// Sizes in bytes of headers with an AUTH_NONE credential and verifier.
const (
	MinCallSize  = 40 // call header
	MinReplySize = 24 // header of an accepted reply with SUCCESS
)

// A CallHeader is the header of a call, up to its arguments: call_body of RFC 5531 section 9.
//
//	0     4      8         12     16     20     24
//	+-----+------+---------+------+------+------+------+------+- - - - -
//	| xid | CALL | rpcvers | prog | vers | proc | cred | verf | arguments
//	+-----+------+---------+------+------+------+------+------+- - - - -
type CallHeader struct {
	XID     uint32
	RPCVers uint32 // Version, or the server answers RPC_MISMATCH
	Prog    uint32
	Vers    uint32
	Proc    uint32
	Cred    Auth
	Verf    Auth
}

// Size returns the encoded size in bytes.
func (h *CallHeader) Size() int { return 24 + h.Cred.Size() + h.Verf.Size() }

// AppendCall appends the header of a call. It panics if the body of the credential or the
// verifier exceeds [MaxAuthBody].
func AppendCall(b []byte, h *CallHeader) []byte {
	b = binary.BigEndian.AppendUint32(b, h.XID)
	b = binary.BigEndian.AppendUint32(b, uint32(Call))
	b = binary.BigEndian.AppendUint32(b, h.RPCVers)
	b = binary.BigEndian.AppendUint32(b, h.Prog)
	b = binary.BigEndian.AppendUint32(b, h.Vers)
	b = binary.BigEndian.AppendUint32(b, h.Proc)
	b = appendAuth(b, &h.Cred)
	return appendAuth(b, &h.Verf)
}

// ConsumeCall reads the header of a call into h and returns the offset of the arguments. The bodies of h.Cred and
// h.Verf are views of b.
//
// An RPC version other than [Version] is not an error, because the server must answer it with RPC_MISMATCH (RFC 5531
// section 9). The part after the version word then has an unknown format: only XID and RPCVers of h are set, and n is
// 12.
//
// The error is a [*xdr.DecodeError].
func ConsumeCall(b []byte, h *CallHeader) (n int, err error) {
	if len(b) < 12 {
		return 0, malformed(len(b), "call header is cut short")
	}
	if MsgType(binary.BigEndian.Uint32(b[4:])) != Call {
		return 0, malformed(4, "message is not a call")
	}
	*h = CallHeader{
		XID:     binary.BigEndian.Uint32(b),
		RPCVers: binary.BigEndian.Uint32(b[8:]),
	}
	if h.RPCVers != Version {
		return 12, nil
	}
	if len(b) < 24 {
		return 0, malformed(len(b), "call header is cut short")
	}
	h.Prog = binary.BigEndian.Uint32(b[12:])
	h.Vers = binary.BigEndian.Uint32(b[16:])
	h.Proc = binary.BigEndian.Uint32(b[20:])
	n = 24
	size := consumeAuth(b[n:], &h.Cred)
	if size < 0 {
		return 0, malformed(n, "credential is cut short or over 400 bytes")
	}
	n += size
	size = consumeAuth(b[n:], &h.Verf)
	if size < 0 {
		return 0, malformed(n, "verifier is cut short or over 400 bytes")
	}
	return n + size, nil
}

func malformed(offset int, what string) error {
	return &xdr.DecodeError{Offset: offset, What: what}
}

// A ReplyStat reports whether the server accepted the call. RFC 5531 section 9.
type ReplyStat uint32

const (
	MsgAccepted ReplyStat = 0
	MsgDenied   ReplyStat = 1
)

// String returns the RFC's spelling.
func (s ReplyStat) String() string {
	switch s {
	case MsgAccepted:
		return "MSG_ACCEPTED"
	case MsgDenied:
		return "MSG_DENIED"
	}
	return number("REPLY_STAT", uint32(s))
}

// An AcceptStat is the outcome of an accepted call. RFC 5531 section 9.
type AcceptStat uint32

const (
	Success      AcceptStat = 0
	ProgUnavail  AcceptStat = 1 // the server does not have the program
	ProgMismatch AcceptStat = 2 // it supports versions Low to High of the program
	ProcUnavail  AcceptStat = 3 // the program does not have the procedure
	GarbageArgs  AcceptStat = 4 // the arguments do not decode
	SystemErr    AcceptStat = 5 // anything else, such as no memory
)

// String returns the RFC's spelling.
func (s AcceptStat) String() string {
	switch s {
	case Success:
		return "SUCCESS"
	case ProgUnavail:
		return "PROG_UNAVAIL"
	case ProgMismatch:
		return "PROG_MISMATCH"
	case ProcUnavail:
		return "PROC_UNAVAIL"
	case GarbageArgs:
		return "GARBAGE_ARGS"
	case SystemErr:
		return "SYSTEM_ERR"
	}
	return number("ACCEPT_STAT", uint32(s))
}

// Error returns the same as String. A handler returns an AcceptStat as its error to answer the call with that status:
// see Response.FailWith of package transport.
func (s AcceptStat) Error() string { return s.String() }

// A RejectStat is the reason why a call was denied. RFC 5531 section 9.
type RejectStat uint32

const (
	RPCMismatch RejectStat = 0 // the server supports versions Low to High of RPC itself
	AuthError   RejectStat = 1 // see AuthStat
)

// String returns the RFC's spelling.
func (s RejectStat) String() string {
	switch s {
	case RPCMismatch:
		return "RPC_MISMATCH"
	case AuthError:
		return "AUTH_ERROR"
	}
	return number("REJECT_STAT", uint32(s))
}

// An AuthStat is the reason why authentication failed. RFC 5531 section 9.
type AuthStat uint32

const (
	AuthOK           AuthStat = 0
	AuthBadCred      AuthStat = 1  // credential malformed
	AuthRejectedCred AuthStat = 2  // the client must begin a new session
	AuthBadVerf      AuthStat = 3  // verifier malformed
	AuthRejectedVerf AuthStat = 4  // verifier expired or replayed
	AuthTooWeak      AuthStat = 5  // rejected for security reasons
	AuthInvalidResp  AuthStat = 6  // detected by the client: bad verifier in the reply
	AuthFailed       AuthStat = 7  // detected by the client: reason unknown
	AuthKerbGeneric  AuthStat = 8  // AUTH_KERB, obsolete
	AuthTimeExpire   AuthStat = 9  // AUTH_KERB, obsolete
	AuthTktFile      AuthStat = 10 // AUTH_KERB, obsolete
	AuthDecode       AuthStat = 11 // AUTH_KERB, obsolete
	AuthNetAddr      AuthStat = 12 // AUTH_KERB, obsolete
	AuthGSSCred      AuthStat = 13 // RPCSEC_GSS: no credentials for the user
	AuthGSSCtx       AuthStat = 14 // RPCSEC_GSS: problem with the context
)

// String returns the RFC's spelling.
func (s AuthStat) String() string {
	switch s {
	case AuthOK:
		return "AUTH_OK"
	case AuthBadCred:
		return "AUTH_BADCRED"
	case AuthRejectedCred:
		return "AUTH_REJECTEDCRED"
	case AuthBadVerf:
		return "AUTH_BADVERF"
	case AuthRejectedVerf:
		return "AUTH_REJECTEDVERF"
	case AuthTooWeak:
		return "AUTH_TOOWEAK"
	case AuthInvalidResp:
		return "AUTH_INVALIDRESP"
	case AuthFailed:
		return "AUTH_FAILED"
	case AuthKerbGeneric:
		return "AUTH_KERB_GENERIC"
	case AuthTimeExpire:
		return "AUTH_TIMEEXPIRE"
	case AuthTktFile:
		return "AUTH_TKT_FILE"
	case AuthDecode:
		return "AUTH_DECODE"
	case AuthNetAddr:
		return "AUTH_NET_ADDR"
	case AuthGSSCred:
		return "RPCSEC_GSS_CREDPROBLEM"
	case AuthGSSCtx:
		return "RPCSEC_GSS_CTXPROBLEM"
	}
	return number("AUTH_STAT", uint32(s))
}

// Error returns the same as String. A handler returns an AuthStat as its error to deny the call with that status: see
// Response.FailWith of package transport.
func (s AuthStat) Error() string { return s.String() }

// A ReplyHeader is the header of a reply, up to its results: reply_body of RFC 5531 section 9. Stat determines which
// fields are meaningful:
//
//	0     4       8
//	+-----+-------+--------------+------+-------------+- - - - - - - - - -
//	| xid | REPLY | MSG_ACCEPTED | verf | accept_stat | results, or low, high
//	+-----+-------+--------------+------+-------------+- - - - - - - - - -
//	+-----+-------+--------------+--------------+-----+------+
//	| xid | REPLY | MSG_DENIED   | RPC_MISMATCH | low | high |
//	+-----+-------+--------------+--------------+-----+------+
//	+-----+-------+--------------+--------------+-----------+
//	| xid | REPLY | MSG_DENIED   | AUTH_ERROR   | auth_stat |
//	+-----+-------+--------------+--------------+-----------+
//
// The zero value, with an XID, is a success.
type ReplyHeader struct {
	XID        uint32
	Stat       ReplyStat
	Verf       Auth       // MSG_ACCEPTED
	AcceptStat AcceptStat // MSG_ACCEPTED
	RejectStat RejectStat // MSG_DENIED
	AuthStat   AuthStat   // AUTH_ERROR
	Low, High  uint32     // PROG_MISMATCH, RPC_MISMATCH: versions that the server supports, inclusive
}

// Size returns the encoded size in bytes.
func (h *ReplyHeader) Size() int {
	switch h.Stat {
	case MsgAccepted:
		if h.AcceptStat == ProgMismatch {
			return 12 + h.Verf.Size() + 12
		}
		return 12 + h.Verf.Size() + 4
	case MsgDenied:
		switch h.RejectStat {
		case RPCMismatch:
			return 24
		case AuthError:
			return 20
		}
		return 16
	}
	return 12
}

// AppendReply appends the header of a reply. It omits fields that h.Stat and the status below it do not select. It
// panics if the body of the verifier exceeds [MaxAuthBody].
func AppendReply(b []byte, h *ReplyHeader) []byte {
	b = binary.BigEndian.AppendUint32(b, h.XID)
	b = binary.BigEndian.AppendUint32(b, uint32(Reply))
	b = binary.BigEndian.AppendUint32(b, uint32(h.Stat))
	switch h.Stat {
	case MsgAccepted:
		b = appendAuth(b, &h.Verf)
		b = binary.BigEndian.AppendUint32(b, uint32(h.AcceptStat))
		if h.AcceptStat == ProgMismatch {
			b = binary.BigEndian.AppendUint32(b, h.Low)
			b = binary.BigEndian.AppendUint32(b, h.High)
		}
	case MsgDenied:
		b = binary.BigEndian.AppendUint32(b, uint32(h.RejectStat))
		switch h.RejectStat {
		case RPCMismatch:
			b = binary.BigEndian.AppendUint32(b, h.Low)
			b = binary.BigEndian.AppendUint32(b, h.High)
		case AuthError:
			b = binary.BigEndian.AppendUint32(b, uint32(h.AuthStat))
		}
	}
	return b
}

// ConsumeReply reads the header of a reply into h and returns the offset of the results. The
// body of h.Verf is a view of b. An error reply decodes without error; see [ReplyHeader.Err].
// So does one with a status that RFC 5531 does not define; n is then the offset after that
// status.
//
// The error is a [*xdr.DecodeError].
func ConsumeReply(b []byte, h *ReplyHeader) (n int, err error) {
	if len(b) < 12 {
		return 0, malformed(len(b), "reply header is cut short")
	}
	if MsgType(binary.BigEndian.Uint32(b[4:])) != Reply {
		return 0, malformed(4, "message is not a reply")
	}
	*h = ReplyHeader{
		XID:  binary.BigEndian.Uint32(b),
		Stat: ReplyStat(binary.BigEndian.Uint32(b[8:])),
	}
	n = 12
	mismatch := false
	switch h.Stat {
	case MsgAccepted:
		size := consumeAuth(b[n:], &h.Verf)
		if size < 0 {
			return 0, malformed(n, "verifier is cut short or over 400 bytes")
		}
		n += size
		v, size := xdr.ConsumeUint32(b[n:])
		if size < 0 {
			return 0, malformed(n, "accept_stat is cut short")
		}
		n += size
		h.AcceptStat = AcceptStat(v)
		mismatch = h.AcceptStat == ProgMismatch
	case MsgDenied:
		v, size := xdr.ConsumeUint32(b[n:])
		if size < 0 {
			return 0, malformed(n, "reject_stat is cut short")
		}
		n += size
		h.RejectStat = RejectStat(v)
		mismatch = h.RejectStat == RPCMismatch
		if h.RejectStat == AuthError {
			v, size := xdr.ConsumeUint32(b[n:])
			if size < 0 {
				return 0, malformed(n, "auth_stat is cut short")
			}
			n += size
			h.AuthStat = AuthStat(v)
		}
	}
	if mismatch {
		if len(b)-n < 8 {
			return 0, malformed(n, "version range is cut short")
		}
		h.Low = binary.BigEndian.Uint32(b[n:])
		h.High = binary.BigEndian.Uint32(b[n+4:])
		n += 8
	}
	return n, nil
}
