package llp

import (
	"context"
	"errors"
	"net"
	"sync"
	"testing"

	"github.com/rpcrdma/rpcrdma/fabric"
)

// A request counts how it ends.
type request struct {
	fabric.Conn
	rejected, closed int
}

func (r *request) Reject([]byte) error { r.rejected++; return nil }
func (r *request) Close() error        { r.closed++; return nil }

// TestBacklog: requests that fit are accepted in order, a further one is rejected, and what is left at
// the end is closed.
func TestBacklog(t *testing.T) {
	ctx := context.Background()
	b := NewBacklog(2)
	r := [4]request{}
	for i := range 3 {
		b.Add(&r[i])
	}
	if c, err := b.Accept(ctx); c != &r[0] || err != nil {
		t.Errorf("accepted %v, %v", c, err)
	}
	b.Close(func() { b.Add(&r[3]) })
	for i, want := range [4]request{{}, {closed: 1}, {rejected: 1}, {closed: 1}} {
		if r[i] != want {
			t.Errorf("request %d: %+v, want %+v", i, r[i], want)
		}
	}
	ended, cancel := context.WithCancelCause(ctx)
	why := errors.New("enough")
	cancel(why)
	empty := NewBacklog(1)
	if _, err := empty.Accept(ended); err != why {
		t.Errorf("Accept ended: %v", err)
	}
	if _, err := b.Accept(ctx); err != net.ErrClosed {
		t.Errorf("Accept after Close: %v", err)
	}
}

// TestBacklogCloses: Accept that waits while Close runs returns a request or an error.
func TestBacklogCloses(t *testing.T) {
	for range 1000 {
		b := NewBacklog(1)
		var wg sync.WaitGroup
		for range 4 {
			wg.Go(func() {
				if c, err := b.Accept(context.Background()); (c == nil) == (err == nil) {
					t.Errorf("accepted %v, %v", c, err)
				}
			})
		}
		b.Add(&request{})
		b.Close(func() {})
		wg.Wait()
	}
}
