package transport

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"

	"github.com/rpcrdma/rpcrdma/fabric"
	"github.com/rpcrdma/rpcrdma/rpc"
)

// A DialError is a failed attempt to connect. It unwraps to the cause.
type DialError struct {
	Provider string
	Addr     string
	Err      error
}

func (e *DialError) Error() string {
	return fmt.Sprintf("connect to %s over %s: %s", e.Addr, e.Provider, e.cause())
}

// cause returns the text of Err without the parts that Error adds itself: the name of the provider, or of its package,
// at the beginning; the address; and that it was connecting.
func (e *DialError) cause() string {
	err := e.Err
	if op, ok := err.(*net.OpError); ok && op.Err != nil && (op.Addr == nil || op.Addr.String() == e.Addr) {
		err = op.Err
		if sys, ok := err.(*os.SyscallError); ok {
			err = sys.Err
		}
	}
	text := err.Error()
	if pkg, rest, ok := strings.Cut(text, ": "); ok && strings.HasPrefix(pkg, e.Provider) && !strings.Contains(pkg, " ") {
		text = rest
	}
	text = strings.TrimPrefix(strings.TrimPrefix(text, "connecting to "), e.Addr+": ")
	return strings.Replace(text, " "+e.Addr+": ", ": ", 1)
}

func (e *DialError) Unwrap() error { return e.Err }

// A BusyError means that a server of this package currently accepts no further connections. It unwraps to the
// rejection.
type BusyError struct {
	Addr string
	Err  error
}

func (e *BusyError) Error() string {
	return fmt.Sprintf("%s: server accepts no further connections at the moment: try again later", e.Addr)
}

func (e *BusyError) Unwrap() error { return e.Err }

// ErrServerClosed is the error of Listen, Serve, ServeTCP and ListenAndServe after Close or
// Shutdown of the server. It unwraps to net.ErrClosed.
var ErrServerClosed error = serverClosedError{}

type serverClosedError struct{}

func (serverClosedError) Error() string { return "transport: server closed" }
func (serverClosedError) Unwrap() error { return net.ErrClosed }

var (
	errOverrun    = &rpc.PeerError{Reason: "it sent more calls than it was granted"}
	errNoDone     = &rpc.PeerError{Reason: "it did not say RDMA_DONE in time"}
	errInvalidate = &rpc.PeerError{Reason: "it invalidated memory of another call"}

	// Not a *PeerError: a peer that is slow for a while has not violated the protocol, so other calls are made again.
	errStuck = errors.New("peer is not receiving; cannot revoke the memory of a canceled call")

	// Not a *PeerError either: see fabric.Capabilities.
	errWeakFence = errors.New("memory of a canceled call can only be closed with the connection")

	errMakesRoom       = errors.New("closed to make room for another connection: it was idle, or its host had the most")
	errOutdated        = errors.New("server refuses the version that was agreed on, and speaks another")
	errSilent    error = &outcomeError{"silent", "server is silent"}
	errForgotten       = errors.New("outcome of a retransmitted call is unknown")
	errInline          = errors.New("transport: a handler that is Inline cannot wait for calls")

	errNoProvider = errors.New("transport: no provider given: iwarp.New makes one that runs anywhere")
	errNoRDMA     = fmt.Errorf("transport: TCP has no RDMA, and a provider around it needs the methods of StreamProvider: %w", errors.ErrUnsupported)

	errFull      = errors.New("no room for another connection")
	errBadCall   = errors.New("it has no RPC call, or one with another xid")
	errBadChunks = errors.New("its chunk lists do not describe a call that this end takes")
	errBadMSGP   = errors.New("it is an RDMA_MSGP, which this end does not take")
	errNoRPC     = errors.New("it has no RPC message")
	errBadOption = errors.New("it is an optional operation that this end does not know, or breaks its rule")

	errMoves    error = &outcomeError{"lost", "call is to be made on another connection"}
	errSameXID        = errors.New("transport: a call with the same xid is under way")
	errClosing        = errors.New("shutting down")
	errNoMemory       = errors.New("no memory for a reply")
	errMemory         = errors.New("transport: calls hold as much memory as they may")
)

// busyMark is the private data of a rejection for lack of room.
const busyMark = "rpcrBUSY"

// busy returns a BusyError for such a rejection.
func busy(addr string, err error) error {
	var r *fabric.RejectError
	if errors.As(err, &r) && bytes.Contains(r.PrivateData, []byte(busyMark)) {
		return &BusyError{Addr: addr, Err: err}
	}
	return err
}

// unorderly returns why a connection with this end did not end in order, nil if it did.
func unorderly(end error) error {
	var closed *rpc.ClosedError
	var ce *fabric.ConnError
	if !errors.As(end, &closed) || closed.Reason == nil || errors.As(closed.Reason, &ce) && ce.Clean {
		return nil
	}
	return closed.Reason
}

// An outcomeError determines its own word in the outcomes of connections and calls: see origin.Outcome.
type outcomeError struct{ word, text string }

func (e *outcomeError) Error() string   { return e.text }
func (e *outcomeError) Outcome() string { return e.word }
