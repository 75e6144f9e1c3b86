//go:build linux && cgo

package verbs

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"time"

	"github.com/rpcrdma/rpcrdma/cmd/rpcrdma/internal/loadgen"
	"github.com/rpcrdma/rpcrdma/cmd/rpcrdma/internal/provider"
	"github.com/rpcrdma/rpcrdma/ibv"
	"github.com/rpcrdma/rpcrdma/rdmacm"
)

// client is the measuring end.
type client struct {
	*end
	a answer

	adds uint64 // of the peer's counter so far
}

// connectTo requests a test from the server at addr and connects to it. The returned context ends if the server hangs
// up; stop ends the test.
func connectTo(ctx context.Context, addr string, devices []provider.Device, name string, h hello) (c *client, _ context.Context, stop func() error, err error) {
	dialer := net.Dialer{Timeout: patience}
	tcp, err := dialer.DialContext(ctx, "tcp", addr)
	if err != nil {
		return nil, nil, nil, err
	}
	t := newTalk(tcp)
	c = &client{}
	var closers []func() error
	defer func() {
		if err != nil {
			t.Close()
			for i := len(closers) - 1; i >= 0; i-- {
				closers[i]()
			}
		}
	}()
	d, err := device(ctx, devices, name, tcp.LocalAddr())
	if err != nil {
		return nil, nil, nil, err
	}
	dev, err := ibv.Open(d.Name)
	if err != nil {
		return nil, nil, nil, err
	}
	closers = append(closers, dev.Close)
	cm := d.Transport == "iwarp"
	if cm {
		if err := h.overIWARP(d.Name); err != nil {
			return nil, nil, nil, err
		}
		if !h.Echo && messages(h.Op) {
			// A Send completes when TCP has accepted it, and one without a receive ends the stream.
			h.Ack, _ = lists(h.Depth)
		}
	} else {
		if c.end, err = newEnd(dev, h); err != nil {
			return nil, nil, nil, err
		}
		closers = append(closers, c.close)
		if err := c.createQP(); err != nil {
			return nil, nil, nil, err
		}
		text, err := c.addr.MarshalText()
		if err != nil {
			return nil, nil, nil, err
		}
		h.Addr = string(text)
	}
	if err := errors.Join(t.say(h), t.hear(&c.a)); err != nil {
		return nil, nil, nil, err
	}
	switch {
	case c.a.Error != "":
		return nil, nil, nil, fmt.Errorf("the server refuses: %s", c.a.Error)
	case cm != (c.a.CM != ""):
		return nil, nil, nil, errors.New("one end has an iWARP device and the other has not")
	case cm:
		err = c.connectCM(ctx, h)
		closers = append(closers, func() error {
			if c.end != nil {
				return c.close()
			}
			return nil
		})
	default:
		err = c.connectTo(c.a.Addr)
	}
	if err != nil {
		return nil, nil, nil, err
	}
	if h.Echo || h.Ack > 0 {
		if err := c.receive(h.Depth + batch); err != nil {
			return nil, nil, nil, err
		}
	}
	watched, hangUp := t.watch(ctx)
	heard, cancel := context.WithCancelCause(watched)
	c.silence = time.AfterFunc(patience, func() { cancel(errSilent) })
	return c, heard, func() (err error) {
		c.silence.Stop()
		cancel(nil)
		hangUp()
		for i := len(closers) - 1; i >= 0; i-- {
			err = errors.Join(err, closers[i]())
		}
		return err
	}, nil
}

// connectCM creates the end on the device with the route to the server.
func (c *client) connectCM(ctx context.Context, h hello) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	to, err := netip.ParseAddrPort(c.a.CM)
	if err != nil {
		return err
	}
	ch, err := rdmacm.NewEventChannel()
	if err != nil {
		return err
	}
	id, err := ch.NewID()
	if err == nil {
		if err = id.ResolveAddr(ctx, netip.AddrPort{}, to, patience); err == nil {
			err = id.ResolveRoute(ctx, patience)
		}
		if err == nil {
			c.end, err = newEnd(id.Verbs(), h)
		}
		if err != nil {
			id.Close()
		}
	}
	if err != nil {
		ch.Close()
		return err
	}
	c.closers = append([]func() error{ch.Close}, c.closers...)
	if err := c.own(id); err != nil {
		return err
	}
	_, err = id.Connect(ctx, c.param())
	return err
}

// once performs one operation and waits for its end: the completion, or the returned message.
func (c *client) once(ctx context.Context) error {
	if err := c.post(1, &c.a); err != nil {
		return err
	}
	want := 1
	if c.h.Echo {
		want = 2
	}
	for want > 0 {
		wcs, err := c.await(ctx)
		if err != nil {
			return err
		}
		want -= len(wcs)
	}
	if c.h.Echo {
		return c.receive(1)
	}
	return nil
}

// errSilent is the error of an operation that does not end, for instance because a datagram was lost.
var errSilent = fmt.Errorf("nothing has arrived for %v", patience)

// errWrongData is the error of an operation that moved the wrong bytes.
var errWrongData = errors.New("the wrong bytes have arrived")

// checked is once, and checks every byte. It returns the time of the operation alone.
func (c *client) checked(ctx context.Context, seed int) (time.Duration, error) {
	out := c.out()
	for i := range out {
		out[i] = byte(i*3 + seed)
	}
	start := time.Now()
	if err := c.once(ctx); err != nil {
		return 0, err
	}
	took := time.Since(start)
	switch {
	case c.h.Echo:
		if !bytes.Equal(c.in(), out) {
			return took, errWrongData
		}
	case c.h.Op == "read":
		for i := range out {
			if out[i] != pattern(i) {
				return took, errWrongData
			}
		}
	case c.h.Op == "fetch-add":
		if binary.NativeEndian.Uint64(out) != c.adds {
			return took, errWrongData
		}
		c.adds++
	case c.h.Op == "cmp-swap":
		if old := binary.NativeEndian.Uint64(out); old != 0 {
			return took, errWrongData
		}
	case c.h.Transport == "rc": // read back what was written
		want := bytes.Clone(out)
		back := *c.end
		back.h.Op = "read"
		if err := back.post(1, &c.a); err != nil {
			return took, err
		}
		if _, err := c.await(ctx); err != nil {
			return took, err
		}
		if !bytes.Equal(out, want) {
			return took, errWrongData
		}
	}
	return took, nil
}

// latency performs operations one after the other.
func (c *client) latency(ctx context.Context, d time.Duration) (*loadgen.Histogram, error) {
	var hist loadgen.Histogram
	for i := range 100 { // not counted
		if err := c.once(ctx); err != nil {
			return nil, fmt.Errorf("operation %d: %w", i, err)
		}
	}
	for begin, first := time.Now(), time.Now(); ; {
		if err := c.once(ctx); err != nil {
			return nil, err
		}
		now := time.Now()
		hist.Add(now.Sub(begin))
		if begin = now; now.Sub(first) >= d {
			return &hist, nil
		}
	}
}

// bandwidth keeps as many operations in flight as the depth permits, and returns how many have ended, and in what time.
func (c *client) bandwidth(ctx context.Context, d time.Duration) (n uint64, took time.Duration, err error) {
	list, lists := lists(c.h.Depth)
	under := 0
	start := time.Now()
	for {
		going := time.Since(start) < d
		if !going && under == 0 {
			return n, time.Since(start), nil
		}
		for ; going && under < lists; under++ {
			if err := c.post(list, &c.a); err != nil {
				return n, 0, err
			}
		}
		wcs, err := c.await(ctx)
		if err != nil {
			return n, 0, err
		}
		ended := len(wcs)
		if c.h.Ack > 0 { // only acknowledgments count
			ended = 0
			for i := range wcs {
				if wcs[i].ID == receiveID {
					ended++
				}
			}
			if err := c.receive(ended); err != nil {
				return n, 0, err
			}
		}
		under -= ended
		n += uint64(ended * list)
	}
}

// lists returns how operations are posted: the length of a list, and the number of lists in flight.
func lists(depth int) (list, lists int) {
	list = max(min(batch, depth/2), 1)
	return list, max(depth/list, 1)
}

// step performs one test.
func (o *options) step(ctx context.Context, mode, addr string, h hello, each func(int, time.Duration)) (row *Row, err error) {
	c, ctx, stop, err := connectTo(ctx, addr, o.devices, o.device, h)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, stop()) }()
	row = &Row{Transport: h.Transport, Op: h.Op, Size: h.Size, Depth: h.Depth}
	start := time.Now()
	switch mode {
	case "ping":
		var hist loadgen.Histogram
		for i := range o.count {
			d, err := c.checked(ctx, i)
			if err != nil {
				return nil, err
			}
			hist.Add(d)
			each(i, d)
		}
		row.times(&hist, time.Since(start))
	case "lat":
		hist, err := c.latency(ctx, o.time)
		if err != nil {
			return nil, err
		}
		row.times(hist, time.Since(start))
	default:
		n, took, err := c.bandwidth(ctx, o.time)
		if err != nil {
			return nil, err
		}
		row.Count = n
		row.over(took)
	}
	return row, nil
}
