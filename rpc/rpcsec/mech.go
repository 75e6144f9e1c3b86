package rpcsec

import (
	"context"
	"fmt"
	"time"
)

// An Initiator begins security contexts as a client: the credentials of one principal, for one server.
// Its methods may be called by many goroutines.
type Initiator interface {
	// Initiate returns a new context. ctx bounds what has to be asked for it, such as a ticket.
	Initiate(ctx context.Context) (Context, error)
}

// An Acceptor accepts security contexts as a server. Its methods may be called by many goroutines.
type Acceptor interface {
	// Accept returns a new context.
	Accept() (Context, error)
}

// A Context is a security context of a GSS-API mechanism (RFC 2743 section 1.1.3). Step is called by one
// goroutine at a time until the context is established; the other methods are called after that, by many at once.
// They must not detect replays or gaps by the sequence numbers of tokens: RPCSEC_GSS has its own (RFC 2203
// section 5.2.2).
type Context interface {
	// Step is GSS_Init_sec_context or GSS_Accept_sec_context: it consumes the peer's token, which is nil for an
	// initiator's first step, and returns the token for the peer, if there is one, and whether the context
	// is established at this end. An error that is, or wraps, a *StatusError has a status for the peer.
	Step(token []byte) (out []byte, done bool, err error)

	// AppendMIC is GSS_GetMIC: it appends the token that signs msg to b.
	AppendMIC(b, msg []byte) ([]byte, error)

	// VerifyMIC is GSS_VerifyMIC: nil if mic signs msg.
	VerifyMIC(msg, mic []byte) error

	// MICSize returns the length of the tokens of AppendMIC, in bytes.
	MICSize() int

	// Wrap is GSS_Wrap with confidentiality. b[at:] is WrapHead bytes, with any content, followed by the
	// message. Wrap replaces them by the token, and allocates only if b has no capacity for the rest of it.
	Wrap(b []byte, at int) ([]byte, error)

	// WrapHead returns how many bytes of a token of Wrap come before the message. A token is no longer than
	// WrapHead, the message and WrapTail.
	WrapHead() int

	// WrapTail returns how much longer a token may be than WrapHead and the message, in bytes.
	WrapTail() int

	// Unwrap is GSS_Unwrap: it returns the message of an encrypted token. The message may be in the memory of
	// the token, which Unwrap may change.
	Unwrap(token []byte) ([]byte, error)

	// Mechanism returns the name of the mechanism, as NFS spells it: "krb5".
	Mechanism() string

	// Peer returns the principal at the other end, as the mechanism prints it: "alice@EXAMPLE.COM".
	Peer() string

	// Expires returns when the context ends; zero is never.
	Expires() time.Time
}

// A Deriver is a Context with GSS_Pseudo_random (RFC 4401). Items are sealed only in the contexts of a Deriver.
type Deriver interface {
	// PseudoRandom returns n bytes that the ends of the context, and they alone, derive from in: with
	// GSS_C_PRF_KEY_FULL.
	PseudoRandom(in []byte, n int) ([]byte, error)
}

// An Explainer is a Context that knows the minor status codes of its mechanism.
type Explainer interface {
	// Explain returns the error that minor stands for, or nil.
	Explain(minor uint32) error
}

// A Status is a major status of the GSS-API. RFC 2744 section 3.9.1.
type Status uint32

// Major status codes. RFC 2744 section 3.9.1.
const (
	Complete           Status = 0
	ContinueNeeded     Status = 1
	DuplicateToken     Status = 1 << 1 // a token that was accepted before
	BadMech            Status = 1 << 16
	BadName            Status = 2 << 16
	BadBindings        Status = 4 << 16
	BadSig             Status = 6 << 16
	NoCred             Status = 7 << 16
	DefectiveToken     Status = 9 << 16
	CredentialsExpired Status = 11 << 16
	ContextExpired     Status = 12 << 16
	Failure            Status = 13 << 16
)

// String returns the name of RFC 2744.
func (s Status) String() string {
	switch s {
	case Complete:
		return "GSS_S_COMPLETE"
	case ContinueNeeded:
		return "GSS_S_CONTINUE_NEEDED"
	case DuplicateToken:
		return "GSS_S_DUPLICATE_TOKEN"
	case BadMech:
		return "GSS_S_BAD_MECH"
	case BadName:
		return "GSS_S_BAD_NAME"
	case BadBindings:
		return "GSS_S_BAD_BINDINGS"
	case BadSig:
		return "GSS_S_BAD_SIG"
	case NoCred:
		return "GSS_S_NO_CRED"
	case DefectiveToken:
		return "GSS_S_DEFECTIVE_TOKEN"
	case CredentialsExpired:
		return "GSS_S_CREDENTIALS_EXPIRED"
	case ContextExpired:
		return "GSS_S_CONTEXT_EXPIRED"
	case Failure:
		return "GSS_S_FAILURE"
	}
	return fmt.Sprintf("GSS status %#x", uint32(s))
}

// A StatusError is an error of a mechanism.
type StatusError struct {
	Status Status
	Minor  uint32 // the mechanism's own code
	Err    error  // what is wrong
}

func (e *StatusError) Error() string {
	if e.Err == nil {
		return e.Status.String()
	}
	return fmt.Sprintf("%v: %v", e.Status, e.Err)
}

// Unwrap returns Err.
func (e *StatusError) Unwrap() error { return e.Err }
