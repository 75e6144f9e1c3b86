//go:build linux && cgo

package rdmacm

import (
	"fmt"
	"syscall"

	"github.com/rpcrdma/rpcrdma/cgo"
)

// EventType is the type of an event, see enum rdma_cm_event_type.
type EventType int32

// Events of a connection. See rdma_get_cm_event(3).
const (
	EventAddrResolved    EventType = 0
	EventAddrError       EventType = 1
	EventRouteResolved   EventType = 2
	EventRouteError      EventType = 3
	EventConnectRequest  EventType = 4
	EventConnectResponse EventType = 5
	EventConnectError    EventType = 6
	EventUnreachable     EventType = 7
	EventRejected        EventType = 8
	EventEstablished     EventType = 9
	EventDisconnected    EventType = 10
	EventDeviceRemoval   EventType = 11
	EventMulticastJoin   EventType = 12
	EventMulticastError  EventType = 13
	EventAddrChange      EventType = 14
	EventTimewaitExit    EventType = 15
)

// String returns librdmacm's name of the event.
//
// Implements: const char *rdma_event_str(enum rdma_cm_event_type event)
func (t EventType) String() string { return cgo.EventString(int32(t)) }

// An Event is an event of an ID: the result of an operation or a change of the
// connection.
type Event struct {
	Type EventType // what happened

	// Status is zero, a negative errno or, for a rejection over InfiniBand, the reason code (volume 1, 12.6.7.2).
	Status int

	// PrivateData is what the peer sent with its request or reply. InfiniBand pads it
	// with zeros to a fixed length. The receiver owns it.
	PrivateData []byte

	// ResponderResources is the number of Reads and atomics that the peer wants to have outstanding towards this side,
	// and InitiatorDepth the number that it will serve.
	ResponderResources, InitiatorDepth int

	// Destination is where datagrams are sent. It is set in EventEstablished and EventMulticastJoin.
	Destination Destination
}

// errno returns the status as an error number, or 0.
func (e *Event) errno() syscall.Errno {
	if e.Status < 0 {
		return syscall.Errno(-e.Status)
	}
	return 0
}

// Reasons for a rejection over InfiniBand that this package handles (volume 1, 12.6.7.2).
const (
	rejectNoService = 8  // no listener
	rejectConsumer  = 28 // rejected by the peer's program
)

// An EventError is an unexpected event in place of the expected one. It unwraps to the event's errno, if there is one.
type EventError struct {
	Op    string // the operation, such as "connecting to"
	Addr  string // of the peer, or the listening address
	Event Event
}

func (e *EventError) Error() string {
	what := ""
	switch errno := e.Unwrap(); {
	case errno == syscall.ENODEV || errno == syscall.ENETUNREACH:
		what = ": no RDMA device has a route to this address ('rpcrdma devices' lists what there is; the loopback interface is no RDMA device)"
	case e.Event.Type == EventUnreachable || errno == syscall.ETIMEDOUT:
		what = ": the peer does not answer"
	case errno == syscall.ECONNREFUSED:
		what = ": nobody listens there"
	case errno == syscall.ECONNRESET:
		what = ": connection reset by peer (adapters for iWARP say so of a port without a listener, too)"
	case errno != nil:
		what = ": " + errno.Error()
	case e.Event.Status != 0:
		what = fmt.Sprintf(": status %d", e.Event.Status)
	}
	return fmt.Sprintf("rdmacm: %s %s: %v%s", e.Op, e.Addr, e.Event.Type, what)
}

// Unwrap returns the errno that the event carries.
func (e *EventError) Unwrap() error {
	if e.Event.Type == EventRejected && e.Event.Status == rejectNoService {
		return syscall.ECONNREFUSED
	}
	if errno := e.Event.errno(); errno != 0 {
		return errno
	}
	return nil
}
