package llp

import (
	"context"
	"net"
	"sync"

	"github.com/rpcrdma/rpcrdma/fabric"
)

// A Backlog holds the connection requests of a listener until Accept takes them.
type Backlog struct {
	requests chan fabric.Conn
	closed   chan struct{}
	once     *sync.Once
}

// NewBacklog returns a Backlog of up to n requests.
func NewBacklog(n int) Backlog {
	return Backlog{make(chan fabric.Conn, n), make(chan struct{}), new(sync.Once)}
}

// Add passes c to Accept, or rejects it if there is no room.
func (b *Backlog) Add(c fabric.Conn) {
	select {
	case b.requests <- c:
	default:
		c.Reject(nil)
	}
}

// Accept implements fabric.Listener.
func (b *Backlog) Accept(ctx context.Context) (fabric.Conn, error) {
	select {
	case <-b.closed:
		return nil, net.ErrClosed
	default:
	}
	select {
	case c := <-b.requests:
		return c, nil
	default:
	}
	select {
	case c := <-b.requests:
		return c, nil
	case <-b.closed:
		return nil, net.ErrClosed
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// Closed returns a channel that Close closes.
func (b *Backlog) Closed() <-chan struct{} { return b.closed }

// Close ends Accept. It calls stop, after which nothing may call Add, and closes the requests that have not been
// accepted. A second call waits for the first one.
func (b *Backlog) Close(stop func()) {
	b.once.Do(func() {
		close(b.closed)
		stop()
		for {
			select {
			case c := <-b.requests:
				c.Close()
			default:
				return
			}
		}
	})
}
