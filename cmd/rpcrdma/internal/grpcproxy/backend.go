package grpcproxy

import (
	"context"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/rpcrdma/rpcrdma/grpcrdma"
)

// backend is the connection to a server over RDMA. It is made when a call needs it, so that the proxy and the server
// can start in any order. Afterwards the transport reestablishes it when it is lost.
type backend struct {
	dial   func(ctx context.Context, news bool) (*grpcrdma.ClientConn, error) // errors are statuses
	ctx    context.Context                                                    // for attempts
	cancel context.CancelFunc
	trying sync.WaitGroup

	mu     sync.Mutex
	latest *attempt // nil: none yet
}

// attempt is an attempt to connect, shared by all calls that wait for it.
type attempt struct {
	done chan struct{} // closed when the attempt ends
	cc   *grpcrdma.ClientConn
	err  error
	at   time.Time // when it failed
}

// again is how long calls fail immediately after an attempt has failed.
const again = time.Second

func newBackend(dial func(ctx context.Context, news bool) (*grpcrdma.ClientConn, error)) *backend {
	b := &backend{dial: dial}
	b.ctx, b.cancel = context.WithCancel(context.Background())
	return b
}

// begin returns the attempt that a call should wait for.
func (b *backend) begin() *attempt {
	b.mu.Lock()
	defer b.mu.Unlock()
	last := b.latest
	if last != nil && !last.stale() || b.ctx.Err() != nil {
		return last
	}
	a := &attempt{done: make(chan struct{})}
	b.latest = a
	b.trying.Go(func() {
		a.cc, a.err = b.dial(b.ctx, last == nil)
		a.at = time.Now()
		close(a.done)
	})
	return a
}

// stale reports whether an attempt failed some time ago.
func (a *attempt) stale() bool {
	select {
	case <-a.done:
		return a.err != nil && time.Since(a.at) >= again
	default:
		return false
	}
}

// get returns the connection, waiting for it if necessary. Errors are statuses.
func (b *backend) get(ctx context.Context) (grpc.ClientConnInterface, error) {
	a := b.begin()
	if a == nil {
		return nil, status.Error(codes.Unavailable, "grpc-proxy: it is stopping")
	}
	select {
	case <-a.done:
	case <-ctx.Done():
		return nil, status.FromContextError(ctx.Err()).Err()
	}
	if a.err != nil {
		return nil, a.err
	}
	return a.cc, nil
}

// Close ends the connection or the attempt to make it.
func (b *backend) Close() error {
	b.mu.Lock()
	b.cancel()
	b.mu.Unlock()
	b.trying.Wait()
	if a := b.latest; a != nil && a.cc != nil {
		return a.cc.Close()
	}
	return nil
}
