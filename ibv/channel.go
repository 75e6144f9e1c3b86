//go:build linux && cgo

package ibv

import (
	"context"
	"errors"
	"os"
	"sync"
	"syscall"

	"github.com/rpcrdma/rpcrdma/cgo"
)

// A CompChannel reports events of completion queues. It must be closed after them.
type CompChannel struct {
	life
	raw *cgo.CompChannel
	ctx *Context
	w   *watch

	cqs sync.Map // *CQ by *cgo.CQ
}

// CreateCompChannel creates a channel and adds its descriptor to Go's poller.
//
// Implements: struct ibv_comp_channel *ibv_create_comp_channel(struct ibv_context *context)
func (c *Context) CreateCompChannel() (*CompChannel, error) {
	if err := c.enter("ibv_create_comp_channel"); err != nil {
		return nil, err
	}
	defer c.leave()
	raw, errno := c.lib.CreateCompChannel(c.raw)
	if errno != 0 {
		return nil, &Error{Call: "ibv_create_comp_channel", Device: c.device, Err: errno}
	}
	w, err := newWatch(c.lib.CompChannelFD(raw), "completion channel of "+c.device)
	if err != nil {
		c.lib.DestroyCompChannel(raw)
		return nil, err
	}
	ch := &CompChannel{raw: raw, ctx: c, w: w}
	ch.begin(aChannel, c.device, &c.life)
	return ch, nil
}

// Raw returns the channel for package cgo, valid until Close. It is non-blocking.
func (ch *CompChannel) Raw() *cgo.CompChannel { return ch.raw }

// Await calls try until it returns true, and parks in Go's poller between calls until there is an event. It is for
// programs that take events, arm the queue and poll it in one call of [cgo.Progress]. try must do all of that: an event
// from before the first call wakes no goroutine. Events taken in this way are acknowledged with [CQ.AckEvents].
//
// Await returns nil once try has returned true, ErrClosed after Close, and another error after Wake. One Wake may end
// two calls, and the end of a GetEvent may end one, so callers check the cause and call again. One goroutine at a time
// may be in Await or GetEvent. try must not close the channel.
func (ch *CompChannel) Await(try func() bool) error {
	err := ch.w.fd.Await(try)
	if errors.Is(err, os.ErrClosed) {
		return &Error{Call: "ibv_get_cq_event", Device: ch.device, Err: ErrClosed}
	}
	return err
}

// Wake makes the current Await, or else the next one, return.
func (ch *CompChannel) Wake() { ch.w.fd.Wake() }

// GetEvent waits for the next event, until ctx is done or the channel is closed, and returns its completion queue,
// which must be armed again for another event. GetEvent acknowledges the event.
//
// Implements: int ibv_get_cq_event(struct ibv_comp_channel *channel, struct ibv_cq **cq, void **cq_context)
// Implements: void ibv_ack_cq_events(struct ibv_cq *cq, unsigned int nevents)
func (ch *CompChannel) GetEvent(ctx context.Context) (*CQ, error) {
	var cq *CQ
	var failed syscall.Errno
	err := ch.w.next(ctx, func() bool {
		for {
			raw, errno := ch.ctx.lib.GetCQEvent(ch.raw)
			switch errno {
			case 0:
			case syscall.EINTR:
				continue
			case syscall.EAGAIN:
				return false
			default:
				failed = errno
				return true
			}
			// raw cannot be destroyed until the event is acknowledged.
			if found, ok := ch.cqs.Load(raw); ok && found.(*CQ).count(1) {
				cq = found.(*CQ)
				return true
			} else if !ok {
				ch.ctx.lib.AckCQEvents(raw, 1)
			}
		}
	})
	switch {
	case err == nil && failed == 0:
		return cq, nil
	case err == nil:
		err = failed
	case err != ErrClosed:
		return nil, err
	}
	return nil, &Error{Call: "ibv_get_cq_event", Device: ch.device, Err: err}
}

// Close ends Await and GetEvent, and destroys the channel.
//
// Implements: int ibv_destroy_comp_channel(struct ibv_comp_channel *channel)
func (ch *CompChannel) Close() error {
	return ch.end("ibv_destroy_comp_channel", func() syscall.Errno {
		ch.w.fd.Close() // also waits until no goroutine is in the library
		return ch.ctx.lib.DestroyCompChannel(ch.raw)
	})
}
