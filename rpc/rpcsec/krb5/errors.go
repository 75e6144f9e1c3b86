package krb5

import (
	"errors"
	"fmt"

	"github.com/jcmturner/gokrb5/v8/iana/errorcode"
	"github.com/jcmturner/gokrb5/v8/messages"

	"github.com/rpcrdma/rpcrdma/rpc/rpcsec"
)

// A Code is a Kerberos error code. RFC 4120 section 7.5.9.
type Code int32

// Codes of RFC 4120 section 7.5.9 that acceptors reply with.
const (
	CodeBadIntegrity = Code(errorcode.KRB_AP_ERR_BAD_INTEGRITY) // a ticket or an authenticator does not decrypt
	CodeExpired      = Code(errorcode.KRB_AP_ERR_TKT_EXPIRED)   // the ticket
	CodeNotYetValid  = Code(errorcode.KRB_AP_ERR_TKT_NYV)       // the ticket
	CodeRepeat       = Code(errorcode.KRB_AP_ERR_REPEAT)        // the authenticator was used before
	CodeNotUs        = Code(errorcode.KRB_AP_ERR_NOT_US)        // the ticket is for another service
	CodeBadMatch     = Code(errorcode.KRB_AP_ERR_BADMATCH)      // ticket and authenticator name different clients
	CodeSkew         = Code(errorcode.KRB_AP_ERR_SKEW)          // clocks differ
	CodeNoKey        = Code(errorcode.KRB_AP_ERR_NOKEY)         // the key is not in the keytab
	CodeBadVersion   = Code(errorcode.KRB_AP_ERR_BADVERSION)
	CodeMessageType  = Code(errorcode.KRB_AP_ERR_MSG_TYPE)
	CodeBadChecksum  = Code(errorcode.KRB_AP_ERR_INAPP_CKSUM) // in the authenticator
	CodeTransited    = Code(43)                               // KRB_AP_PATH_NOT_ACCEPTED: the KDC has not checked the transited realms
	CodeGeneric      = Code(errorcode.KRB_ERR_GENERIC)
)

// String returns the name in RFC 4120, and its meaning.
func (c Code) String() string {
	if c == CodeTransited {
		return "KRB_AP_PATH_NOT_ACCEPTED"
	}
	return errorcode.Lookup(int32(c))
}

// minorBase is the base of the Kerberos codes among the minor status codes of the GSS-API. It is MIT's, which other
// libraries have adopted; RFC 1964 section 5 assigns no numbers.
const minorBase = 0x96c73a00

// Minor returns the code as a minor status of the GSS-API.
func (c Code) Minor() uint32 { return minorBase + uint32(c) }

// An Error says why a context could not be established.
type Error struct {
	Code    Code
	Client  string // principal of the ticket, "" if unknown
	Service string // principal that the ticket is for, "" if unknown
	Err     error  // nil if Code says it all
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

// Explain returns the Error for a minor status from a server, or nil.
func (c *initiating) Explain(minor uint32) error {
	if minor-minorBase > 255 {
		return nil
	}
	return &Error{Code: Code(minor - minorBase), Service: c.service}
}

// status wraps err in a StatusError with the GSS-API status s.
func status(s rpcsec.Status, e *Error) error {
	return &rpcsec.StatusError{Status: s, Minor: e.Code.Minor(), Err: e}
}

// exchangeError returns the error for a failed exchange with a KDC.
func exchangeError(client, service string, err error) error {
	code := CodeGeneric
	var krb messages.KRBError
	if errors.As(err, &krb) {
		code = Code(krb.ErrorCode)
	}
	return status(rpcsec.NoCred, &Error{Code: code, Client: client, Service: service, Err: fmt.Errorf("exchange with the KDC: %w", err)})
}
