//go:build linux && cgo

package rdmacm

import (
	"errors"
	"syscall"

	"github.com/rpcrdma/rpcrdma/cgo"
	"github.com/rpcrdma/rpcrdma/ibv"
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

	ids lockorder.Value[ids]
}

// ids are the IDs of an EventChannel, guarded by EventChannel.ids. Only the holder of this lock gets events from the
// library.
type ids struct {
	by     map[uint64]*ID // by number, which is the ID's context in the library
	last   uint64
	closed bool
	left   bool // close the channel with its last ID
}

// NewEventChannel opens a channel. The caller closes it after its IDs. If the machine has no RDMA device, the error
// wraps syscall.ENODEV.
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
	ch := &EventChannel{lib: lib, raw: raw, fd: fd, done: make(chan struct{})}
	ch.ids.Init(lockorder.RdmacmChannel).by = make(map[uint64]*ID)
	go ch.demux()
	return ch, nil
}

// whyNotOpen opens the device file itself to find the errno. Without permission the library tries other ways, and
// reports the errno of the last one.
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

// demux gets events until Close and delivers each to its ID. It drops the events of closed IDs. Numbers are never
// reused.
//
// Implements: int rdma_get_cm_event(struct rdma_event_channel *channel, struct rdma_cm_event **event)
// Implements: int rdma_ack_cm_event(struct rdma_cm_event *event)
func (ch *EventChannel) demux() {
	defer close(ch.done)
	var e cgo.CMEvent
	take := func() bool {
		// Skip events that the library fails to process. The poller is edge-triggered and would not report the events
		// after them.
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

// next returns the next event and looks up its ID. Both happen in one critical section because of Migrate, so that an
// event belongs to an ID as soon as it is taken.
func (ch *EventChannel) next(e *cgo.CMEvent) (deliver func(), errno syscall.Errno) {
	all := ch.ids.Lock()
	defer ch.ids.Unlock()
	if errno := ch.lib.GetCMEvent(ch.raw, e); errno != 0 {
		return nil, errno
	}
	ev := Event{
		Type: EventType(e.Type), Status: int(e.Status),
		ResponderResources: int(e.ResponderResources), InitiatorDepth: int(e.InitiatorDepth),
	}
	if e.Qkey != 0 {
		ev.Destination = Destination{AH: ibv.AHAttrOf(&e.AH), QPNum: e.QPNum, Qkey: e.Qkey}
	}
	if e.PrivateDataLen > 0 {
		ev.PrivateData = append([]byte(nil), e.PrivateData[:e.PrivateDataLen]...)
	}
	id := all.by[e.Context]
	if ev.Type != EventConnectRequest {
		return func() {
			if id != nil {
				id.deliver(ev)
			}
		}, 0
	}
	child := all.adopt(ch, cgo.IDOf(e))
	child.request = ev
	child.stranger.Store(true)
	return func() {
		if id == nil || !id.requested(child) {
			// The listener was closed.
			child.Reject(nil)
			child.Close()
		}
	}, 0
}

// adopt creates the Go object of the library's ID raw. raw is nil if the library's ID does not exist yet.
func (all *ids) adopt(ch *EventChannel, raw *cgo.CMID) *ID {
	all.last++
	id := &ID{lib: ch.lib, ch: ch, num: all.last, raw: raw, wake: make(chan struct{}, 1), gone: make(chan struct{})}
	id.box.Init(lockorder.RdmacmID)
	if raw != nil {
		ch.lib.SetContext(raw, id.num)
	}
	all.by[id.num] = id
	return id
}

// enter registers id under a number of at least num and removes the number old. It returns zero if the channel is
// closed.
func (ch *EventChannel) enter(id *ID, old, num uint64) uint64 {
	all := ch.ids.Lock()
	defer ch.ids.Unlock()
	if all.closed {
		return 0
	}
	delete(all.by, old)
	all.last = max(all.last+1, num)
	all.by[all.last] = id
	return all.last
}

// forget removes the ID with this number. It reports whether the channel must be closed with it.
func (ch *EventChannel) forget(num uint64) (last bool) {
	all := ch.ids.Lock()
	defer ch.ids.Unlock()
	delete(all.by, num)
	return all.left && len(all.by) == 0
}

// leave closes the channel, at once or with its last ID. An ID may remain for a connection request that arrived while
// its listener was closing.
func (ch *EventChannel) leave() {
	ch.ids.Lock().left = true
	ch.ids.Unlock()
	_ = ch.Close() // if busy, ID.Close closes it
}

// Close closes the channel. Its IDs must be closed first: otherwise the error wraps syscall.EBUSY and the channel stays
// open. Closing twice is harmless.
//
// Implements: void rdma_destroy_event_channel(struct rdma_event_channel *channel)
func (ch *EventChannel) Close() error {
	all := ch.ids.Lock()
	open, closed := 0, all.closed
	for _, id := range all.by {
		if !id.stranger.Load() { // the channel's goroutine closes strangers before it ends
			open++
		}
	}
	all.closed = closed || open == 0
	ch.ids.Unlock()
	switch {
	case open > 0:
		return callError("rdma_destroy_event_channel", "with open IDs", syscall.EBUSY)
	case closed:
		return nil
	}
	ch.fd.Close()
	<-ch.done
	ch.lib.DestroyEventChannel(ch.raw)
	return nil
}
