package fabric

import (
	"errors"
	"fmt"
	"net"
	"strings"
)

// ErrQueueFull is returned by Post and PostRecv if the queue has no room for the whole list; nothing has been queued.
var ErrQueueFull = errors.New("fabric: work queue is full")

// ErrNotSupported is wrapped by errors about features that a provider lacks.
var ErrNotSupported = errors.New("fabric: not supported by this provider")

// WCStatus is the result of a work request, numbered as ibv_wc_status.
type WCStatus uint8

const (
	WCSuccess      WCStatus = 0
	WCLocLenErr    WCStatus = 1  // message longer than the receive
	WCLocQPOpErr   WCStatus = 2  // malformed work request
	WCLocProtErr   WCStatus = 4  // SGE outside its region, or without the access right
	WCFlushErr     WCStatus = 5  // the connection ended first
	WCMWBindErr    WCStatus = 6  // window not prepared, or already bound
	WCBadRespErr   WCStatus = 7  // the peer sent an invalid response
	WCLocAccessErr WCStatus = 8  // the peer accessed memory without the access right
	WCRemInvReqErr WCStatus = 9  // the peer refused the request as malformed
	WCRemAccessErr WCStatus = 10 // the peer refused access to its memory
	WCRemOpErr     WCStatus = 11 // the peer could not complete the request
	WCRetryExcErr  WCStatus = 12 // the peer does not acknowledge
	WCRNRRetryErr  WCStatus = 13 // the peer had no receive posted (RNR) until the retries were exhausted
	WCGeneralErr   WCStatus = 21
)

func (s WCStatus) String() string {
	switch s {
	case WCSuccess:
		return "success"
	case WCLocLenErr:
		return "local length error"
	case WCLocQPOpErr:
		return "local QP operation error"
	case WCLocProtErr:
		return "local protection error"
	case WCFlushErr:
		return "flushed"
	case WCMWBindErr:
		return "memory window bind error"
	case WCBadRespErr:
		return "bad response"
	case WCRetryExcErr:
		return "no acknowledgement from the peer"
	case WCRNRRetryErr:
		return "the peer has no receive posted"
	case WCLocAccessErr:
		return "local access error"
	case WCRemInvReqErr:
		return "remote invalid request error"
	case WCRemAccessErr:
		return "remote access error"
	case WCRemOpErr:
		return "remote operation error"
	case WCGeneralErr:
		return "general error"
	}
	return fmt.Sprintf("status %d", uint8(s))
}

// A ConnError is the reason that a connection ended. It unwraps to net.ErrClosed and to its Cause, if any.
type ConnError struct {
	Provider string
	Remote   bool  // the peer ended it
	Clean    bool  // by an orderly close, between messages
	Cause    error // nil for an orderly close
}

func (e *ConnError) Error() string {
	who := "this side"
	if e.Remote {
		who = "the peer"
	}
	if e.Cause == nil {
		return fmt.Sprintf("%s: connection closed by %s", e.Provider, who)
	}
	return fmt.Sprintf("%s: connection ended by %s: %s", e.Provider, who, within(e.Provider, e.Cause))
}

// within returns the text of the cause of an error that already names the provider. It removes the package name at the
// beginning of the text if that is the provider's name or begins with it.
func within(provider string, cause error) string {
	text := cause.Error()
	if pkg, rest, ok := strings.Cut(text, ": "); ok && strings.HasPrefix(pkg, provider) && !strings.Contains(pkg, " ") {
		return rest
	}
	return text
}

func (e *ConnError) Unwrap() []error {
	if e.Cause == nil {
		return []error{net.ErrClosed}
	}
	return []error{net.ErrClosed, e.Cause}
}

// A RejectError means that the peer rejected the connection request.
type RejectError struct {
	Addr        string
	PrivateData []byte // sent by the peer; the caller owns it
}

func (e *RejectError) Error() string {
	return fmt.Sprintf("%s: the peer rejected the connection", e.Addr)
}

// A CapabilityError names a capability that a provider lacks. It unwraps to ErrNotSupported.
type CapabilityError struct {
	Provider   string
	Capability string
}

func (e *CapabilityError) Error() string {
	return fmt.Sprintf("%s: no %s", e.Provider, e.Capability)
}

func (e *CapabilityError) Unwrap() error { return ErrNotSupported }
