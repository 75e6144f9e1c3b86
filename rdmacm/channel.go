//go:build linux && cgo

package rdmacm

import (
	"errors"
	"syscall"

	"github.com/rpcrdma/rpcrdma/cgo"
	"github.com/rpcrdma/rpcrdma/internal/lockorder"
	"github.com/rpcrdma/rpcrdma/internal/pollfd"
)

// An EventChannel reports the events of its IDs. A goroutine waits for its descriptor
// in Go's poller and delivers each event to its ID. Close ends the goroutine.
type EventChannel struct {
	lib  cgo.Library
	raw  *cgo.EventChannel
	fd   *pollfd.FD
	done chan struct{} // the goroutine has ended

	mu     lockorder.Mutex
	ids    map[uint64]*ID // by number, which is the ID's context in the library
	last   uint64
	closed bool
	left   bool // to be closed with the last ID
}

// NewEventChannel opens a channel, to be closed after its IDs. If the machine has no RDMA
// device, the error wraps syscall.ENODEV.
//
// Implements: struct rdma_event_channel *rdma_create_event_channel(void)
func NewEventChannel() (*EventChannel, error) { return newEventChannel(cgo.RDMACore{}) }

func newEventChannel(lib cgo.Library) (*EventChannel, error) {
	raw, errno := lib.CreateEventChannel()
	if errno != 0 {
		return nil, callError("rdma_create_event_channel", "", whyNotOpen(errno))
	}
	fd, err := pollfd.New(lib.EventChannelFD(raw), "rdma event channel")
	if err != nil {
		lib.DestroyEventChannel(raw)
		return nil, err
	}
	ch := &EventChannel{lib: lib, raw: raw, fd: fd, done: make(chan struct{}), ids: make(map[uint64]*ID)}
	ch.mu.Init(lockorder.RdmacmChannel)
	go ch.demux()
	return ch, nil
}

// whyNotOpen tries to open the device's file itself: without permission the library tries
// other ways, and reports the errno of the last.
func whyNotOpen(errno syscall.Errno) syscall.Errno {
	fd, err := syscall.Open("/dev/infiniband/rdma_cm", syscall.O_RDWR|syscall.O_CLOEXEC, 0)
	switch err {
	case nil:
		syscall.Close(fd)
	case syscall.EACCES:
		return syscall.EACCES
	case syscall.EPERM:
		return syscall.EPERM
	}
	return errno
}

// demux takes events until Close and delivers each to its ID. Events of closed IDs are
// dropped: numbers are never reused.
//
// Implements: int rdma_get_cm_event(struct rdma_event_channel *channel, struct rdma_cm_event **event)
// Implements: int rdma_ack_cm_event(struct rdma_cm_event *event)
func (ch *EventChannel) demux() {
	defer close(ch.done)
	var e cgo.CMEvent
	take := func() bool {
		// Skip events that the library fails to process. The poller is edge-triggered
		// and would not report those behind them.
		for bad := 0; bad < maxBad; {
			switch deliver, errno := ch.next(&e); errno {
			case 0:
				deliver()
				bad = 0
			case syscall.EAGAIN:
				return false
			case syscall.EINTR:
			default:
				bad++
			}
		}
		return false
	}
	for {
		if err := ch.fd.Await(take); !errors.Is(err, pollfd.ErrWoken) {
			return
		}
	}
}

// maxBad is how many consecutive failures mean that the channel itself has failed.
const maxBad = 64

// next takes an event and looks up its ID, in one critical section because of Migrate: an
// event that has been taken has been assigned to an ID.
func (ch *EventChannel) next(e *cgo.CMEvent) (deliver func(), errno syscall.Errno) {
	ch.mu.Lock()
	defer ch.mu.Unlock()
	if errno := ch.lib.GetCMEvent(ch.raw, e); errno != 0 {
		return nil, errno
	}
	ev := Event{
		Type: EventType(e.Type), Status: int(e.Status),
		ResponderResources: int(e.ResponderResources), InitiatorDepth: int(e.InitiatorDepth),
	}
	if e.PrivateDataLen > 0 {
		ev.PrivateData = append([]byte(nil), e.PrivateData[:e.PrivateDataLen]...)
	}
	id := ch.ids[e.Context]
	if ev.Type != EventConnectRequest {
		return func() {
			if id != nil {
				id.deliver(ev)
			}
		}, 0
	}
	child := ch.adopt(cgo.IDOf(e))
	child.request = ev
	return func() {
		if id == nil || !id.requested(child) {
			// The listener has been closed.
			child.Reject(nil)
			child.Close()
		}
	}, 0
}

// adopt creates the Go object of an ID of the library, nil if that is yet to be created.
// mu is held.
func (ch *EventChannel) adopt(raw *cgo.CMID) *ID {
	ch.last++
	id := &ID{lib: ch.lib, ch: ch, num: ch.last, raw: raw, wake: make(chan struct{}, 1), gone: make(chan struct{})}
	id.mu.Init(lockorder.RdmacmID)
	if raw != nil {
		ch.lib.SetContext(raw, id.num)
	}
	ch.ids[id.num] = id
	return id
}

// leave closes the channel, at once or with its last ID. There may be one of a connection
// request that has arrived while its listener was being closed.
func (ch *EventChannel) leave() {
	ch.mu.Lock()
	ch.left = true
	ch.mu.Unlock()
	_ = ch.Close() // busy: ID.Close does it
}

// Close closes the channel, after its IDs: otherwise the error wraps syscall.EBUSY and
// the channel stays open. Closing twice is harmless.
//
// Implements: void rdma_destroy_event_channel(struct rdma_event_channel *channel)
func (ch *EventChannel) Close() error {
	ch.mu.Lock()
	if len(ch.ids) > 0 {
		ch.mu.Unlock()
		return callError("rdma_destroy_event_channel", "with open IDs", syscall.EBUSY)
	}
	if ch.closed {
		ch.mu.Unlock()
		return nil
	}
	ch.closed = true
	ch.mu.Unlock()
	ch.fd.Close()
	<-ch.done
	ch.lib.DestroyEventChannel(ch.raw)
	return nil
}
