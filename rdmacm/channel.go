//go:build linux && cgo

package rdmacm

import (
	"errors"
	"sync"
	"syscall"

	"github.com/rpcrdma/rpcrdma/cgo"
	"github.com/rpcrdma/rpcrdma/internal/pollfd"
)

// An EventChannel reports the events of its IDs. A goroutine waits for its
// descriptor in Go's poller and gives each event to the ID that it is about; it
// ends with Close.
type EventChannel struct {
	lib  cgo.Library
	raw  *cgo.EventChannel
	fd   *pollfd.FD
	done chan struct{} // the goroutine has ended

	mu     sync.Mutex
	ids    map[uint64]*ID // by the number that is each ID's context
	last   uint64
	closed bool
	left   bool // to be closed with its last ID
}

// NewEventChannel opens a channel. It fails with an error that is
// syscall.ENODEV when the machine has no RDMA device.
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
	go ch.demux()
	return ch, nil
}

// whyNotOpen looks at the device's file itself: the library goes on searching when it
// may not open it, and tells the errno of its last try.
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

// demux takes events until Close and hands each to its ID. An event of an ID that
// has been closed meanwhile finds nobody; numbers are never used twice.
//
// Implements: int rdma_get_cm_event(struct rdma_event_channel *channel, struct rdma_cm_event **event)
// Implements: int rdma_ack_cm_event(struct rdma_cm_event *event)
func (ch *EventChannel) demux() {
	defer close(ch.done)
	var e cgo.CMEvent
	take := func() bool {
		// An event that the library could not make sense of is passed over: the
		// poller would not call again for those behind it.
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

// maxBad is how many failures in a row mean that the channel itself has failed.
const maxBad = 64

// next takes an event and finds out whose it is, in one step for Migrate: an event
// that the library has given away is known to be somebody's.
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

// adopt makes the Go side of an ID of librdmacm. mu is held.
func (ch *EventChannel) adopt(raw *cgo.CMID) *ID {
	ch.last++
	id := &ID{lib: ch.lib, ch: ch, num: ch.last, raw: raw, wake: make(chan struct{}, 1), gone: make(chan struct{})}
	if raw != nil {
		ch.lib.SetContext(raw, id.num)
	}
	ch.ids[id.num] = id
	return id
}

// leave closes the channel, at once or with its last ID: that of a connection request
// which has come for a listener that was just being closed.
func (ch *EventChannel) leave() {
	ch.mu.Lock()
	ch.left = true
	ch.mu.Unlock()
	_ = ch.Close() // busy: ID.Close does it
}

// Close ends the channel. Its IDs have to be closed before: else it fails with
// syscall.EBUSY and nothing has happened. Closing twice is harmless.
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
