//go:build linux && cgo

package rdmacm_test

import (
	"context"
	"sync"
	"testing"

	"github.com/rpcrdma/rpcrdma/fabric"
	"github.com/rpcrdma/rpcrdma/internal/testing/rdmatest"
	"github.com/rpcrdma/rpcrdma/rdmacm"
)

// TestRDMAChannelClosesLate: an event channel that the provider no longer uses, and that the ID of a
// late connection request still holds, goes with that ID.
func TestRDMAChannelClosesLate(t *testing.T) {
	rdmatest.OnDevices(t, func(t *testing.T, kind, addr string) {
		p := provider(t, rdmacm.Config{})
		l, err := p.Listen(soon(t), addr+":0", fabric.ConnAttr{})
		if err != nil {
			t.Fatal(err)
		}
		ch, done := rdmacm.Channel(p)
		late, err := ch.NewID() // as one that has arrived and is about to be rejected
		if err != nil {
			t.Fatal(err)
		}
		l.Close()
		comes(t, "the end of the provider's channel", func() bool { ch, _ := rdmacm.Channel(p); return ch == nil })
		select {
		case <-done:
			t.Fatal("the channel has been closed under an ID")
		default:
		}
		if err := late.Close(); err != nil {
			t.Error(err)
		}
		arrives(t, "the channel's goroutine", done)

		// And with real ones, which come while their listener goes.
		for range times(40) {
			l, err := p.Listen(soon(t), addr+":0", fabric.ConnAttr{})
			if err != nil {
				t.Fatal(err)
			}
			_, done := rdmacm.Channel(p)
			other := provider(t, rdmacm.Config{}) // else the clients hold the channel
			var dialed sync.WaitGroup
			ctx, cancel := context.WithCancel(soon(t))
			for range 3 {
				dialed.Go(func() {
					if c, err := other.Resolve(ctx, l.Addr().String(), fabric.ConnAttr{}); err == nil {
						c.Connect(ctx, nil)
						c.Close()
					}
				})
			}
			comes(t, "a request", func() bool { return rdmacm.Requests(l) > 0 })
			l.Close()
			arrives(t, "the channel's goroutine", done)
			cancel()
			returns(t, "the clients", dialed.Wait)
		}
	})
}
