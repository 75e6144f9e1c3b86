package rpcsec

import (
	"context"
	"fmt"
	"time"
)

// An Initiator begins security contexts as a client, with the credentials of one principal and for one server. Its
// methods must be safe for concurrent use.
type Initiator interface {
	// Initiate returns a new context. ctx bounds requests that it makes, for instance for a ticket.
	Initiate(ctx context.Context) (Context, error)
}

// An Acceptor accepts security contexts as a server. Its methods must be safe for concurrent use.
type Acceptor interface {
	// Accept returns a new context.
	Accept() (Context, error)
}

// A Context is a security context of a GSS-API mechanism (RFC 2743 section 1.1.3). Until the context is established,
// only one goroutine at a time calls Step. The other methods are called after that, and concurrently. They must not
// detect replays or gaps by the sequence numbers of tokens, because RPCSEC_GSS has its own (RFC 2203 section 5.2.2).
type Context interface {
	// Step is GSS_Init_sec_context or GSS_Accept_sec_context. It consumes the peer's token, which is nil for an
	// initiator's first step. It returns the token for the peer, if any, and whether the context is established at this
	// end. If the error is or wraps a *StatusError, the peer receives its status.
	Step(token []byte) (out []byte, done bool, err error)

	// AppendMIC is GSS_GetMIC: it appends a token that signs msg to b.
	AppendMIC(b, msg []byte) ([]byte, error)

	// VerifyMIC is GSS_VerifyMIC: it returns nil if mic signs msg.
	VerifyMIC(msg, mic []byte) error

	// MICSize returns the length of the tokens of AppendMIC, in bytes.
	MICSize() int

	// Wrap is GSS_Wrap with confidentiality. b[at:] is WrapHead bytes of any content, followed by the message. Wrap
	// replaces both with the token. It allocates only if the capacity of b does not suffice.
	Wrap(b []byte, at int) ([]byte, error)

	// WrapHead returns how many bytes of a Wrap token precede the message. A token is no longer than WrapHead, the
	// message and WrapTail together.
	WrapHead() int

	// WrapTail returns how many bytes of a Wrap token may follow the message.
	WrapTail() int

	// Unwrap is GSS_Unwrap: it returns the message of an encrypted token. It may modify the token, and the message may
	// refer to the token's memory.
	Unwrap(token []byte) ([]byte, error)

	// Mechanism returns the name of the mechanism as NFS spells it: "krb5".
	Mechanism() string

	// Peer returns the principal at the other end in the mechanism's text form: "alice@EXAMPLE.COM".
	Peer() string

	// Expires returns when the context expires. The zero time means never.
	Expires() time.Time
}

// A Deriver is a Context that implements GSS_Pseudo_random (RFC 4401). Items are sealed only in contexts that are
// Derivers.
type Deriver interface {
	// PseudoRandom returns n bytes derived from in, which only the two ends of the context can compute, with
	// GSS_C_PRF_KEY_FULL.
	PseudoRandom(in []byte, n int) ([]byte, error)
}

// An Explainer is a Context that can interpret the minor status codes of its mechanism.
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
	DuplicateToken     Status = 1 << 1 // the token was accepted before
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

// String returns the name in RFC 2744.
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
	Err    error  // the cause
}

func (e *StatusError) Error() string {
	if e.Err == nil {
		return e.Status.String()
	}
	return fmt.Sprintf("%v: %v", e.Status, e.Err)
}

// Unwrap returns Err.
func (e *StatusError) Unwrap() error { return e.Err }
