//go:build linux && cgo

package ibv

import (
	"context"
	"fmt"
	"syscall"

	"github.com/rpcrdma/rpcrdma/cgo"
)

// An EventType is the type of an asynchronous event, see ibv_get_async_event(3).
type EventType int32

// Asynchronous events.
const (
	EventCQErr            EventType = 0  // a completion queue overran
	EventQPFatal          EventType = 1  // a queue pair failed without a completion that reports it
	EventQPReqErr         EventType = 2  // the peer's request is invalid
	EventQPAccessErr      EventType = 3  // the peer accessed memory without permission
	EventCommEst          EventType = 4  // a message arrived before the queue pair reached RTS
	EventSQDrained        EventType = 5  // requested with EnSQDAsyncNotify
	EventPathMig          EventType = 6  // the connection has moved to the alternate path
	EventPathMigErr       EventType = 7  // the connection could not move to the alternate path
	EventDeviceFatal      EventType = 8  // the device failed: close everything
	EventPortActive       EventType = 9  // the link is up
	EventPortErr          EventType = 10 // the link is down
	EventLIDChange        EventType = 11
	EventPkeyChange       EventType = 12
	EventSMChange         EventType = 13
	EventSRQErr           EventType = 14
	EventSRQLimitReached  EventType = 15 // fewer receives than the limit are left; the limit is now 0
	EventQPLastWQEReached EventType = 16 // a queue pair in the error state has consumed its last receive from its SRQ
	EventClientReregister EventType = 17
	EventGIDChange        EventType = 18
	EventWQFatal          EventType = 19
)

func (t EventType) String() string {
	return name([]string{
		"IBV_EVENT_CQ_ERR", "IBV_EVENT_QP_FATAL", "IBV_EVENT_QP_REQ_ERR", "IBV_EVENT_QP_ACCESS_ERR", "IBV_EVENT_COMM_EST",
		"IBV_EVENT_SQ_DRAINED", "IBV_EVENT_PATH_MIG", "IBV_EVENT_PATH_MIG_ERR", "IBV_EVENT_DEVICE_FATAL", "IBV_EVENT_PORT_ACTIVE",
		"IBV_EVENT_PORT_ERR", "IBV_EVENT_LID_CHANGE", "IBV_EVENT_PKEY_CHANGE", "IBV_EVENT_SM_CHANGE", "IBV_EVENT_SRQ_ERR",
		"IBV_EVENT_SRQ_LIMIT_REACHED", "IBV_EVENT_QP_LAST_WQE_REACHED", "IBV_EVENT_CLIENT_REREGISTER", "IBV_EVENT_GID_CHANGE",
		"IBV_EVENT_WQ_FATAL",
	}, int32(t), "ibv_event_type")
}

// Text returns the library's description of the event.
//
// Implements: const char *ibv_event_type_str(enum ibv_event_type event)
func (t EventType) Text() string { return cgo.EventTypeString(int32(t)) }

// An AsyncEvent is an event of a device or of one of its objects. At most one of the fields after Type is set. None is
// set for EventDeviceFatal, or if the object has been closed since.
type AsyncEvent struct {
	Type EventType
	QP   *QP
	CQ   *CQ
	SRQ  *SRQ
	Port uint8 // from 1
}

func (e AsyncEvent) String() string {
	switch {
	case e.QP != nil:
		return fmt.Sprintf("%v of queue pair %d", e.Type, e.QP.num)
	case e.CQ != nil:
		return fmt.Sprintf("%v of a completion queue", e.Type)
	case e.SRQ != nil:
		return fmt.Sprintf("%v of a shared receive queue", e.Type)
	case e.Port != 0:
		return fmt.Sprintf("%v of port %d", e.Type, e.Port)
	}
	return e.Type.String()
}

// AsyncEvent waits for the next asynchronous event of the device, until ctx is done or the Context is closed. One
// goroutine waits at a time; others queue up. Events are kept from the time the device was opened. AsyncEvent
// acknowledges them, so that closing an object never waits for the caller to handle its events.
//
// Implements: int ibv_get_async_event(struct ibv_context *context, struct ibv_async_event *event)
// Implements: void ibv_ack_async_event(struct ibv_async_event *event)
func (c *Context) AsyncEvent(ctx context.Context) (AsyncEvent, error) {
	const call = "ibv_get_async_event"
	w, err := c.asyncWatch(call)
	if err != nil {
		return AsyncEvent{}, err
	}
	var event AsyncEvent
	var failed syscall.Errno
	err = w.next(ctx, func() bool {
		c.turnover.Lock()
		defer c.turnover.Unlock()
		var raw cgo.AsyncEvent
		for {
			switch failed = c.lib.GetAsyncEvent(c.raw, &raw); failed {
			case syscall.EINTR:
				continue
			case syscall.EAGAIN:
				return false
			case 0:
				event = c.eventOf(&raw)
			}
			return true
		}
	})
	switch {
	case err == nil && failed == 0:
		return event, nil
	case err == nil:
		err = failed
	case err != ErrClosed:
		return AsyncEvent{}, err
	}
	return AsyncEvent{}, &Error{Call: call, Device: c.device, Err: err}
}

// asyncWatch returns the watch for asynchronous events, which the first call creates.
func (c *Context) asyncWatch(call string) (*watch, error) {
	if err := c.enter(call); err != nil {
		return nil, err
	}
	defer c.leave()
	c.asyncMu.Lock()
	defer c.asyncMu.Unlock()
	if c.async == nil {
		w, err := newWatch(c.lib.AsyncFD(c.raw), "asynchronous events of "+c.device)
		if err != nil {
			return nil, err
		}
		c.async = w
	}
	return c.async, nil
}

// eventOf looks up the object of an event. The caller must hold turnover.
func (c *Context) eventOf(raw *cgo.AsyncEvent) AsyncEvent {
	e := AsyncEvent{Type: EventType(raw.Type)}
	switch e.Type {
	case EventPortActive, EventPortErr, EventLIDChange, EventPkeyChange, EventSMChange, EventClientReregister, EventGIDChange:
		e.Port = uint8(raw.Element)
		return e
	}
	object, _ := c.objects.Load(raw.Element)
	switch o := object.(type) {
	case *QP:
		e.QP = o
	case *CQ:
		e.CQ = o
	case *SRQ:
		e.SRQ = o
	}
	return e
}
