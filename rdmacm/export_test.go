//go:build linux && cgo

package rdmacm

import (
	"github.com/rpcrdma/rpcrdma/cgo"
	"github.com/rpcrdma/rpcrdma/fabric"
)

// Requests is how many connection requests wait at a listener.
func Requests(l fabric.Listener) int {
	id := l.(*Listener).id
	defer id.box.Unlock()
	return len(id.box.Lock().children)
}

// Channel is the provider's event channel, nil while it has none, and a channel that is
// closed when the goroutine of it has ended.
func Channel(p *Provider) (*EventChannel, <-chan struct{}) {
	h := p.held.Lock()
	defer p.held.Unlock()
	if h.channel == nil {
		return nil, nil
	}
	return h.channel, h.channel.done
}

// Left is closed when the connection manager has reported the peer's end of c.
func Left(c fabric.Conn) <-chan struct{} { return c.(*Conn).left.opened }

// NewEventChannelOn is NewEventChannel with another library than rdma-core.
func NewEventChannelOn(lib cgo.Library) (*EventChannel, error) { return newEventChannel(lib) }

// Retire closes the event channel of a provider that has no users, without the wait.
func Retire(p *Provider) { p.retire() }

// Handles returns the libraries' objects of a connection that is not closed.
func Handles(c fabric.Conn) (*cgo.QP, *cgo.CQ, *cgo.CMID) {
	conn := c.(*Conn)
	defer conn.send.Unlock()
	return conn.send.Lock().qp, conn.q.cq.Raw(), conn.id.raw
}

// Handle returns the library's ID of a listener.
func Handle(l fabric.Listener) *cgo.CMID { return l.(*Listener).id.raw }

// Waiters reports which goroutines wait on the completion queue of c: whether c leads, and how many
// follow.
func Waiters(c fabric.Conn) (leads bool, followers int) {
	conn := c.(*Conn)
	l := conn.q.polling.Lock()
	defer conn.q.polling.Unlock()
	for _, c := range l.conns {
		if c.turn.Queued() {
			followers++
		}
	}
	return l.leader == conn, followers
}

// RawID returns the library's object of an ID.
func RawID(id *ID) *cgo.CMID { return id.raw }
