package krb5

import (
	"errors"
	"fmt"

	"github.com/jcmturner/gokrb5/v8/iana/errorcode"
	"github.com/jcmturner/gokrb5/v8/messages"

	"github.com/rpcrdma/rpcrdma/rpc/rpcsec"
)

// A Code is an error code of Kerberos. RFC 4120 section 7.5.9.
type Code int32

// The codes of RFC 4120 section 7.5.9 that acceptors answer with.
const (
	CodeBadIntegrity = Code(errorcode.KRB_AP_ERR_BAD_INTEGRITY) // a ticket or an authenticator is not what its key has made
	CodeExpired      = Code(errorcode.KRB_AP_ERR_TKT_EXPIRED)   // ticket
	CodeNotYetValid  = Code(errorcode.KRB_AP_ERR_TKT_NYV)       // ticket
	CodeRepeat       = Code(errorcode.KRB_AP_ERR_REPEAT)        // authenticator
	CodeNotUs        = Code(errorcode.KRB_AP_ERR_NOT_US)        // a ticket for another service
	CodeBadMatch     = Code(errorcode.KRB_AP_ERR_BADMATCH)      // ticket and authenticator name different clients
	CodeSkew         = Code(errorcode.KRB_AP_ERR_SKEW)          // clocks differ
	CodeNoKey        = Code(errorcode.KRB_AP_ERR_NOKEY)         // in the keytab
	CodeBadVersion   = Code(errorcode.KRB_AP_ERR_BADVERSION)
	CodeMessageType  = Code(errorcode.KRB_AP_ERR_MSG_TYPE)
	CodeBadChecksum  = Code(errorcode.KRB_AP_ERR_INAPP_CKSUM) // of the authenticator
	CodeTransited    = Code(43)                               // KRB_AP_PATH_NOT_ACCEPTED: realms that the KDC has not checked
	CodeGeneric      = Code(errorcode.KRB_ERR_GENERIC)
)

// String returns the name of RFC 4120, with its meaning.
func (c Code) String() string {
	if c == CodeTransited {
		return "KRB_AP_PATH_NOT_ACCEPTED"
	}
	return errorcode.Lookup(int32(c))
}

// minorBase is where the codes of Kerberos begin among the minor status codes of the GSS-API: those of MIT's
// library, which others have taken over (RFC 1964 section 5 names no numbers).
const minorBase = 0x96c73a00

// Minor returns the code as a minor status of the GSS-API.
func (c Code) Minor() uint32 { return minorBase + uint32(c) }

// An Error is why a context is not established.
type Error struct {
	Code    Code
	Client  string // the principal of the ticket, "" if it is not known
	Service string // the principal that the ticket is for, "" if it is not known
	Err     error  // nil if the Code says it all
}

func (e *Error) Error() string {
	s := "Kerberos: " + e.Code.String()
	if e.Client != "" {
		s += ", client " + e.Client
	}
	if e.Service != "" {
		s += ", ticket for " + e.Service
	}
	if e.Err != nil {
		s += ": " + e.Err.Error()
	}
	return s
}

// Unwrap returns Err.
func (e *Error) Unwrap() error { return e.Err }

// Explain returns the Error of a minor status that a server has answered with, or nil.
func (c *initiating) Explain(minor uint32) error {
	if minor-minorBase > 255 {
		return nil
	}
	return &Error{Code: Code(minor - minorBase), Service: c.service}
}

// status returns err with the status of the GSS-API.
func status(s rpcsec.Status, e *Error) error {
	return &rpcsec.StatusError{Status: s, Minor: e.Code.Minor(), Err: e}
}

// exchangeError returns the error of an exchange with a KDC.
func exchangeError(client, service string, err error) error {
	code := CodeGeneric
	var krb messages.KRBError
	if errors.As(err, &krb) {
		code = Code(krb.ErrorCode)
	}
	return status(rpcsec.NoCred, &Error{Code: code, Client: client, Service: service, Err: fmt.Errorf("exchange with the KDC: %w", err)})
}
