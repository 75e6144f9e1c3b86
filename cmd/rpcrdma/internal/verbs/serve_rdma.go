//go:build linux && cgo

package verbs

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"time"

	"github.com/rpcrdma/rpcrdma/cmd/rpcrdma/internal/provider"
	"github.com/rpcrdma/rpcrdma/ibv"
	"github.com/rpcrdma/rpcrdma/rdmacm"
)

// maxTests limits the concurrent tests of a server.
const maxTests = 16

// serve serves clients of l until ctx ends, with the device called name, or else the one that a client's connection
// leads to. log is called with the reason why a test ended.
func serve(ctx context.Context, l net.Listener, name string, log func(format string, args ...any)) error {
	devices, err := provider.Devices()
	if err != nil {
		return err
	}
	stop := context.AfterFunc(ctx, func() { l.Close() })
	defer stop()
	var tests sync.WaitGroup
	defer tests.Wait()
	room := make(chan struct{}, maxTests)
	for {
		c, err := l.Accept()
		if err != nil {
			if ctx.Err() != nil {
				return nil
			}
			return err
		}
		room <- struct{}{}
		tests.Go(func() {
			defer func() { <-room }()
			t := newTalk(c)
			hangUp := context.AfterFunc(ctx, func() { t.Close() })
			err := serveOne(ctx, t, devices, name)
			hangUp()
			t.Close()
			if ctx.Err() != nil {
				return
			}
			if err != nil {
				log("test of %s ended: %v", c.RemoteAddr(), err)
			}
		})
	}
}

// serveOne serves one test.
func serveOne(ctx context.Context, t *talk, devices []provider.Device, name string) (err error) {
	var h hello
	if err := t.hear(&h); err != nil {
		return err
	}
	refuse := func(err error) error { return errors.Join(err, t.say(answer{Error: err.Error()})) }
	if err := h.check(); err != nil {
		return refuse(err)
	}
	d, err := device(ctx, devices, name, t.LocalAddr())
	if err != nil {
		return refuse(err)
	}
	if d.Transport == "iwarp" {
		return serveCM(ctx, t, h, d, refuse)
	}
	dev, err := ibv.Open(d.Name)
	if err != nil {
		return refuse(err)
	}
	defer func() { err = errors.Join(err, dev.Close()) }()
	e, err := newEnd(dev, h)
	if err != nil {
		return refuse(err)
	}
	defer func() { err = errors.Join(err, e.close()) }()
	if err := e.createQP(); err != nil {
		return refuse(err)
	}
	if err := e.connectTo(h.Addr); err != nil {
		return refuse(err)
	}
	if err := e.expect(); err != nil {
		return refuse(err)
	}
	text, err := e.addr.MarshalText()
	if err != nil {
		return refuse(err)
	}
	if err := t.say(answer{Addr: string(text), Remote: e.mr.Addr(), RKey: e.mr.RKey()}); err != nil {
		return err
	}
	ctx, stop := t.watch(ctx)
	defer stop()
	return why(ctx, e.respond(ctx))
}

// why returns the reason for the end of a test: the context's cause if the context has ended, or is about to, because a
// client that hangs up ends its queue pair first. Hanging up is the regular end.
func why(ctx context.Context, err error) error {
	if wc := (*ibv.WCError)(nil); errors.As(err, &wc) {
		select {
		case <-ctx.Done():
		case <-time.After(time.Second):
		}
	}
	if err != nil && ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	if errors.Is(err, errHungUp) {
		return nil
	}
	return err
}

// serveCM is serveOne through the connection manager, which is the only way to connect iWARP queue pairs.
func serveCM(ctx context.Context, t *talk, h hello, d *provider.Device, refuse func(error) error) (err error) {
	if err := h.overIWARP(d.Name); err != nil {
		return refuse(err)
	}
	ch, err := rdmacm.NewEventChannel()
	if err != nil {
		return refuse(err)
	}
	defer func() { err = errors.Join(err, ch.Close()) }()
	l, err := ch.NewID()
	if err != nil {
		return refuse(err)
	}
	defer func() { err = errors.Join(err, l.Close()) }()
	at, err := netip.ParseAddr(d.Addresses[0].Address)
	if err == nil {
		err = errors.Join(l.BindAddr(netip.AddrPortFrom(at, 0)), l.Listen(1))
	}
	if err != nil {
		return refuse(err)
	}
	e, err := newEnd(l.Verbs(), h)
	if err != nil {
		return refuse(err)
	}
	defer func() { err = errors.Join(err, e.close()) }()
	if err := t.say(answer{CM: l.LocalAddr().String(), Remote: e.mr.Addr(), RKey: e.mr.RKey()}); err != nil {
		return err
	}
	ctx, stop := t.watch(ctx)
	defer stop()
	id, err := l.GetRequest(ctx)
	if err == nil {
		err = e.own(id)
	}
	if err == nil {
		err = e.expect()
	}
	if err == nil {
		_, err = id.Accept(ctx, e.param())
	}
	if err == nil {
		err = e.respond(ctx)
	}
	return why(ctx, err)
}

// expect posts the receives of a server.
func (e *end) expect() error {
	for i := range e.mem {
		e.mem[i] = pattern(i)
	}
	if atomic(e.h.Op) {
		clear(e.out())
	}
	if !messages(e.h.Op) {
		return nil
	}
	return e.receive(e.h.Depth + batch)
}

// pattern returns the contents of the server's memory, for the client to read.
func pattern(i int) byte { return byte(i*7 + i>>8) }

// respond serves until the client hangs up: it reposts receives, and sends replies if the test requires them.
func (e *end) respond(ctx context.Context) error {
	if !messages(e.h.Op) {
		<-ctx.Done()
		return context.Cause(ctx)
	}
	again, outstanding, since := 0, 0, 0
	for {
		wcs, err := e.await(ctx)
		if err != nil {
			return err
		}
		for i := range wcs {
			if wcs[i].ID == sendID {
				outstanding--
				continue
			}
			if again++; again == min(batch, e.h.Depth) {
				if err := e.receive(again); err != nil {
					return err
				}
				again = 0
			}
			since++
			if !e.h.Echo && (e.h.Ack == 0 || since < e.h.Ack) {
				continue
			}
			if outstanding++; outstanding > e.h.Depth+batch {
				return fmt.Errorf("the client sends more than %d messages at once", e.h.Depth)
			}
			length := 1
			if since = 0; e.h.Echo {
				copy(e.out(), e.in())
				length = e.h.Size
			}
			if err := e.send(length); err != nil {
				return err
			}
		}
	}
}
