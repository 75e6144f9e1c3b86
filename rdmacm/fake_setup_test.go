//go:build linux && cgo

package rdmacm_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/rpcrdma/rpcrdma/cgo"
	"github.com/rpcrdma/rpcrdma/cgo/cgotest"
	"github.com/rpcrdma/rpcrdma/fabric"
	"github.com/rpcrdma/rpcrdma/rdmacm"
)

// connecting begins Connect, which the test has to answer.
func (l *link) connecting(ctx context.Context) <-chan error {
	l.t.Helper()
	ch := later(func() error { return l.Connect(ctx, []byte("hello")) })
	comes(l.t, "the request", func() bool { return l.id.Requested() != nil })
	return ch
}

// answered answers a Connect with an event.
func answered(t *testing.T, options []option, e cgo.CMEvent) error {
	t.Helper()
	l := newRig(t, rdmacm.Config{}, options...).resolve(fabric.ConnAttr{})
	l.r.lib.Manual = true
	connecting := l.connecting(soon(t))
	l.id.Raise(e)
	return arrives(t, "Connect", connecting)
}

// TestFakeRefused: an event in place of the connection is an error that quotes the reason of the
// peer's program, and keeps its errno.
func TestFakeRefused(t *testing.T) {
	refusal := func(status int32, data string) cgo.CMEvent {
		e := cgo.CMEvent{Type: cgotest.Rejected, Status: status, PrivateDataLen: uint8(len(data))}
		copy(e.PrivateData[:], data)
		return e
	}
	econnrefused, econnreset := -int32(syscall.ECONNREFUSED), -int32(syscall.ECONNRESET)
	for _, tc := range []struct {
		name    string
		options []option
		event   cgo.CMEvent
		program bool // a RejectError
		data    string
		errno   syscall.Errno
	}{
		{"the program", nil, refusal(28, "no"), true, "no", 0},
		{"nobody listens", nil, refusal(8, ""), false, "", syscall.ECONNREFUSED},
		{"another reason", nil, refusal(3, ""), false, "", 0},
		{"the program, iWARP", []option{asSIW}, refusal(econnrefused, "no"), true, "no", 0},
		{"the program without a word, iWARP", []option{asSIW}, refusal(econnreset, ""), true, "", 0},
		{"nobody listens, iWARP", []option{asSIW}, refusal(econnrefused, ""), false, "", syscall.ECONNREFUSED},
		{"the program without a word, iWARP in hardware", []option{asIWARP}, refusal(econnrefused, ""), true, "", 0},
		{"nobody listens, iWARP in hardware", []option{asIWARP}, refusal(econnreset, ""), false, "", syscall.ECONNRESET},
		{"unreachable", nil, cgo.CMEvent{Type: cgotest.Unreachable, Status: -int32(syscall.ETIMEDOUT)}, false, "", syscall.ETIMEDOUT},
		{"error", nil, cgo.CMEvent{Type: cgotest.ConnectError, Status: -int32(syscall.ECONNABORTED)}, false, "", syscall.ECONNABORTED},
	} {
		t.Run(tc.name, func(t *testing.T) {
			err := answered(t, tc.options, tc.event)
			var reject *fabric.RejectError
			var event *rdmacm.EventError
			switch {
			case tc.program:
				if !errors.As(err, &reject) || string(reject.PrivateData) != tc.data || reject.Addr != fakePeer {
					t.Errorf("Connect: %T %v, want a RejectError with %q", err, err, tc.data)
				}
			case !errors.As(err, &event) || tc.errno != 0 && !errors.Is(err, tc.errno):
				t.Errorf("Connect: %T %v, want an EventError with %v", err, err, tc.errno)
			}
		})
	}
}

// TestFakeGivenUp: a Connect without an answer ends with its context, with Close and with the removal
// of the device.
func TestFakeGivenUp(t *testing.T) {
	for _, tc := range []struct {
		name string
		end  func(l *link, cancel func())
		want error
	}{
		{"context", func(l *link, cancel func()) { cancel() }, context.Canceled},
		{"Close", func(l *link, cancel func()) { l.Close() }, net.ErrClosed},
		{"removal", func(l *link, cancel func()) { l.id.Raise(cgo.CMEvent{Type: cgotest.DeviceRemoval}) }, syscall.ENODEV},
	} {
		for _, device := range [][]option{nil, {asSIW}} {
			name := tc.name
			if device != nil {
				name += ", siw"
			}
			t.Run(name, func(t *testing.T) {
				r := newRig(t, rdmacm.Config{}, device...)
				l := r.resolve(fabric.ConnAttr{})
				r.lib.Manual = true
				ctx, cancel := context.WithCancel(soon(t))
				defer cancel()
				connecting := l.connecting(ctx)
				tc.end(l, cancel)
				if err := arrives(t, "Connect", connecting); !errors.Is(err, tc.want) {
					t.Errorf("Connect: %v, want %v", err, tc.want)
				}
				if _, err := l.Poll(make([]fabric.WC, 1)); !errors.Is(err, net.ErrClosed) {
					t.Errorf("Poll: %v", err)
				}
				l.Close()
				// On siw what is left goes in the background.
				comes(t, "nothing is left", func() bool { return r.p.OpenObjects() == (rdmacm.OpenObjects{}) })
			})
		}
	}
}

// TestFakeReads: as many Reads are in force as both ends agree to. siw tells the numbers
// of an answer from the other side than those of a request, so there the lesser counts.
func TestFakeReads(t *testing.T) {
	attr := fabric.ConnAttr{InboundReads: 8, OutboundReads: 6}
	for _, tc := range []struct {
		name    string
		options []option
		answer  cgo.CMEvent
		in, out int
	}{
		{"InfiniBand", nil, cgo.CMEvent{ResponderResources: 3, InitiatorDepth: 5}, 3, 5},
		{"no more than asked for", nil, cgo.CMEvent{ResponderResources: 30, InitiatorDepth: 50}, 8, 6},
		{"siw", []option{asSIW}, cgo.CMEvent{ResponderResources: 3, InitiatorDepth: 5}, 3, 3},
	} {
		t.Run(tc.name, func(t *testing.T) {
			l := newRig(t, rdmacm.Config{}, tc.options...).resolve(attr)
			l.r.lib.Manual = true
			connecting := l.connecting(soon(t))
			if p := l.id.Requested(); p.ResponderResources != 8 || p.InitiatorDepth != 6 || string(p.PrivateData) != "hello" {
				t.Errorf("asked for %+v", p)
			}
			tc.answer.Type = cgotest.Established
			l.id.Raise(tc.answer)
			if err := arrives(t, "Connect", connecting); err != nil {
				t.Fatal(err)
			}
			if c := l.Capabilities(); c.InboundReads != tc.in || c.OutboundReads != tc.out {
				t.Errorf("inbound %d, outbound %d; want %d, %d", c.InboundReads, c.OutboundReads, tc.in, tc.out)
			}
		})
	}
}

// TestFakeBadEvents: events that librdmacm cannot make sense of fail, and those after them have to be
// taken all the same: the poller would not call again.
func TestFakeBadEvents(t *testing.T) {
	l := newRig(t, rdmacm.Config{}).connect(fabric.ConnAttr{})
	l.r.lib.Fail("rdma_get_cm_event", syscall.EINTR, syscall.ENODATA, syscall.ENODATA)
	l.disconnected()
	l.ending()
}

// A door is a listener of the rig.
type door struct {
	fabric.Listener
	r  *rig
	id *cgotest.ID
}

func (r *rig) listen() *door {
	r.t.Helper()
	l, err := r.p.Listen(soon(r.t), fakeAddr.String()+":0", fabric.ConnAttr{})
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() { l.Close() })
	return &door{l, r, r.lib.ID(rdmacm.Handle(l))}
}

// knock is a peer's request.
func (d *door) knock() {
	d.id.Request(d.r.dev, netip.MustParseAddrPort(fakePeer), cgo.CMEvent{ResponderResources: 4, InitiatorDepth: 2})
}

// count is how often a call comes in a list.
func count(calls []string, call string) (n int) {
	for _, c := range calls {
		if c == call {
			n++
		}
	}
	return n
}

// TestFakeAccept: a request becomes a connection.
func TestFakeAccept(t *testing.T) {
	d := newRig(t, rdmacm.Config{}).listen()
	d.knock()
	c, err := d.Accept(soon(t))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if err := c.Accept(soon(t), nil); err != nil {
		t.Fatal(err)
	}
	if caps := c.Capabilities(); caps.InboundReads != 4 || caps.OutboundReads != 2 || c.RemoteAddr().String() != fakePeer {
		t.Errorf("from %v with %+v", c.RemoteAddr(), caps)
	}
	if err := c.Connect(soon(t), nil); !errors.Is(err, rdmacm.ErrMisuse) {
		t.Errorf("Connect of an accepted connection: %v", err)
	}
}

// TestFakeUnservable: a request that this side has no means for is turned down and
// logged with its errno, and the next one is served. If the peer has given up meanwhile,
// which shows in the rejection, it is not an error.
func TestFakeUnservable(t *testing.T) {
	for _, tc := range []struct {
		name          string
		call          string
		errno, reject syscall.Errno
		logged        string
	}{
		{"no memory", "ibv_alloc_pd", syscall.ENOMEM, 0, "ERROR connection request rejected"},
		{"no queue", "ibv_create_cq", syscall.ENOMEM, 0, "ERROR connection request rejected"},
		{"withdrawn", "rdma_create_qp", syscall.EINVAL, syscall.EINVAL, "DEBUG connection request withdrawn"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var log journal
			r := newRig(t, rdmacm.Config{Logger: slog.New(&log), MaxInline: -1})
			d := r.listen()
			d.knock()
			d.knock()
			tries := 1
			if tc.errno == syscall.EINVAL {
				tries = 5 // with fewer elements each time
			}
			r.lib.Fail(tc.call, slices.Repeat([]syscall.Errno{tc.errno}, tries)...)
			r.lib.Fail("rdma_reject", tc.reject)
			c, err := d.Accept(soon(t))
			if err != nil {
				t.Fatal(err)
			}
			c.Close()
			lines := log.take()
			if len(lines) != 1 || !strings.HasPrefix(lines[0], tc.logged) || tc.errno == syscall.ENOMEM && !strings.Contains(lines[0], tc.errno.Error()) {
				t.Errorf("logged %q", lines)
			}
			if n := count(r.lib.Calls(), "rdma_reject"); n != 1 {
				t.Errorf("%d rejections", n)
			}
		})
	}
}

// TestFakeListenerClosed: Close rejects requests that were not accepted, and one that comes while the
// listener is closing.
func TestFakeListenerClosed(t *testing.T) {
	r := newRig(t, rdmacm.Config{})
	d := r.listen()
	d.knock()
	d.knock()
	comes(t, "two requests", func() bool { return rdmacm.Requests(d.Listener) == 2 })
	waiting := later(func() error {
		for {
			c, err := d.Accept(soon(t))
			if err != nil {
				return err
			}
			c.Close()
		}
	})
	comes(t, "no request", func() bool { return rdmacm.Requests(d.Listener) == 0 })
	r.lib.Calls()
	d.Close()
	if err := arrives(t, "Accept", waiting); !errors.Is(err, net.ErrClosed) {
		t.Errorf("Accept of a closed listener: %v", err)
	}
	d2 := r.listen()
	d2.knock()
	comes(t, "a request", func() bool { return rdmacm.Requests(d2.Listener) == 1 })
	r.lib.Calls()
	d2.Close()
	calls := r.lib.Calls()
	if count(calls, "rdma_reject") != 1 || count(calls, "rdma_destroy_id") != 2 {
		t.Errorf("Close with a request calls %q", calls)
	}
}

// TestFakeListenerStays: siw drops requests that have been handed out when their
// listener goes, so there it stays until they are answered.
func TestFakeListenerStays(t *testing.T) {
	for _, tc := range []struct {
		name    string
		options []option
		stays   bool
	}{{"InfiniBand", nil, false}, {"siw", []option{asSIW}, true}} {
		t.Run(tc.name, func(t *testing.T) {
			r := newRig(t, rdmacm.Config{}, tc.options...)
			d := r.listen()
			d.knock()
			c, err := d.Accept(soon(t))
			if err != nil {
				t.Fatal(err)
			}
			r.lib.Calls()
			d.Close()
			if gone := slices.Contains(r.lib.Calls(), "rdma_destroy_id"); gone == tc.stays {
				t.Errorf("the listener has gone with its Close: %v", gone)
			}
			if err := c.Accept(soon(t), nil); err != nil {
				t.Fatal(err)
			}
			if gone := slices.Contains(r.lib.Calls(), "rdma_destroy_id"); gone != tc.stays {
				t.Errorf("the listener has gone with the answer: %v", gone)
			}
			c.Close()
		})
	}
}

// TestFakeListenerRemoved: the removal of its device ends a listener with a reason.
func TestFakeListenerRemoved(t *testing.T) {
	d := newRig(t, rdmacm.Config{}).listen()
	waiting := later(func() error { _, err := d.Accept(soon(t)); return err })
	d.id.Raise(cgo.CMEvent{Type: cgotest.DeviceRemoval})
	var dev *rdmacm.DeviceError
	if err := arrives(t, "Accept", waiting); !errors.As(err, &dev) || !errors.Is(err, syscall.ENODEV) {
		t.Errorf("Accept: %v", err)
	}
	comes(t, "nothing is left", func() bool { return d.r.p.OpenObjects() == (rdmacm.OpenObjects{}) })
}

// TestFakeListenFails: errors of Listen have their errno and leave nothing open.
func TestFakeListenFails(t *testing.T) {
	for _, call := range []string{"rdma_create_id", "rdma_bind_addr", "rdma_listen"} {
		r := newRig(t, rdmacm.Config{})
		r.lib.Fail(call, syscall.ENOSPC)
		if _, err := r.p.Listen(soon(t), fakeAddr.String()+":0", fabric.ConnAttr{}); !errors.Is(err, syscall.ENOSPC) {
			t.Errorf("%s fails: %v", call, err)
		}
	}
	r := newRig(t, rdmacm.Config{})
	if _, err := r.p.Listen(soon(t), "192.0.2.77:0", fabric.ConnAttr{}); !errors.Is(err, syscall.EADDRNOTAVAIL) {
		t.Errorf("an address of no device: %v", err)
	}
	// A port that has to be free in other places, too, is picked again.
	r.lib.Fail("rdma_listen", syscall.EADDRINUSE, syscall.EADDRINUSE)
	r.listen()
}

// TestFakeDisconnect: Disconnect waits until everything that was posted has left, even
// if nothing of it is signaled, and only then tells the peer.
func TestFakeDisconnect(t *testing.T) {
	r := newRig(t, rdmacm.Config{})
	l := r.connect(fabric.ConnAttr{})
	l.post(l.wr(1, fabric.OpSend, 8, 0), l.wr(2, fabric.OpSend, 8, 0))
	r.lib.Calls()
	done := later(func() error { return l.Disconnect(soon(t)) })
	comes(t, "a request that marks the end", func() bool { return len(l.qp.Sends()) == 3 && l.cq.Armed() })
	if err := l.Post([]fabric.SendWR{l.wr(3, fabric.OpSend, 8, 0)}); err == nil {
		t.Error("Post after Disconnect")
	}
	sends := l.qp.Sends()
	if !sends[2].Signaled() || len(sends[2].SGL) > 0 || sends[2].Opcode != verbWrite {
		t.Errorf("the end is marked by %+v", sends[2])
	}
	sends[0].Complete(cgotest.Success)
	sends[1].Complete(cgotest.Success)
	if calls := r.lib.Calls(); len(calls) > 0 {
		t.Errorf("called before all has left: %q", calls)
	}
	sends[2].Complete(cgotest.Success)
	if err := arrives(t, "Disconnect", done); err != nil {
		t.Error(err)
	}
	if n := count(r.lib.Calls(), "rdma_disconnect"); n != 1 {
		t.Errorf("rdma_disconnect is called %d times", n)
	}
	if end := l.wantEnd(); !end.Clean || end.Remote {
		t.Errorf("the end is %+v", end)
	}
}

// TestFakeDisconnectShared: Disconnect over a shared queue parks until every message has left,
// leading or not, whatever has arrived that is not polled, and ends with its context.
func TestFakeDisconnectShared(t *testing.T) {
	for _, follows := range []bool{false, true} {
		t.Run(fmt.Sprintf("follows=%v", follows), func(t *testing.T) {
			r := newRig(t, rdmacm.Config{Wait: rdmacm.WaitEvent, SharedCQ: 4096})
			l, other := r.connect(fabric.ConnAttr{}), r.connect(fabric.ConnAttr{})
			var waiting <-chan error
			if follows {
				waiting = later(other.Wait)
				comes(t, "another leader", func() bool { leads, _ := rdmacm.Waiters(other.Conn); return leads && l.cq.Armed() })
			}
			parked := func() {
				t.Helper()
				comes(t, "Disconnect parks", func() bool {
					leads, followers := rdmacm.Waiters(l.Conn)
					return l.cq.Armed() && leads == !follows && (followers == 1) == follows
				})
			}
			l.recv(1)
			l.arrive()
			l.post(l.wr(1, fabric.OpSend, 8, 0))
			ctx, cancel := context.WithCancel(soon(t))
			done := later(func() error { return l.Disconnect(ctx) })
			parked()
			l.Wake() // is for Wait
			parked()
			polls := l.Conn.(*rdmacm.Conn).Stats().Calls
			cancel()
			if err := arrives(t, "Disconnect", done); !errors.Is(err, context.Canceled) {
				t.Errorf("Disconnect, given up: %v", err)
			}
			if n := l.Conn.(*rdmacm.Conn).Stats().Calls - polls; n > 10 {
				t.Errorf("%d polls for one wake-up", n)
			}

			done = later(func() error { return l.Disconnect(soon(t)) })
			parked()
			for _, s := range l.qp.Sends() {
				s.Complete(cgotest.Success)
			}
			if err := arrives(t, "Disconnect", done); err != nil {
				t.Error(err)
			}
			if follows {
				other.Close()
				arrives(t, "Wait of the other connection", waiting)
			}
		})
	}
}

// TestFakeProviderClose: Close of a provider closes its listeners, and the event channel with
// the last connection, without the wait for another one.
func TestFakeProviderClose(t *testing.T) {
	r := newRig(t, rdmacm.Config{})
	d := r.listen()
	l := r.connect(fabric.ConnAttr{})
	r.lib.Calls()
	if err := r.p.Close(); err != nil {
		t.Error(err)
	}
	if calls := r.lib.Calls(); !slices.Equal(calls, []string{"rdma_destroy_id"}) {
		t.Errorf("Close calls %q, want the end of the listener alone", calls)
	}
	if _, err := d.Accept(soon(t)); !errors.Is(err, net.ErrClosed) {
		t.Errorf("Accept: %v", err)
	}
	if _, err := r.p.Listen(soon(t), fakeAddr.String()+":0", fabric.ConnAttr{}); !errors.Is(err, net.ErrClosed) {
		t.Errorf("Listen: %v", err)
	}
	if _, err := r.p.Resolve(soon(t), fakePeer, fabric.ConnAttr{}); !errors.Is(err, net.ErrClosed) {
		t.Errorf("Resolve: %v", err)
	}
	l.post(l.wr(1, fabric.OpSend, 8, fabric.Signaled))
	l.qp.Sends()[0].Complete(cgotest.Success)
	l.want(outcome{1, fabric.WCSend, ok})
	l.Close()
	comes(t, "the event channel is closed", func() bool {
		return slices.Contains(r.lib.Calls(), "rdma_destroy_event_channel")
	})
	if err := r.p.Close(); err != nil {
		t.Errorf("the second Close: %v", err)
	}
}

// TestFakeListenerKeepsPlug: what keeps siw's library off a page that it cannot map is made with
// a listener, so that no connection waits for it, and goes before the listener's ID, which
// keeps the device.
func TestFakeListenerKeepsPlug(t *testing.T) {
	r := newRig(t, rdmacm.Config{}, asSIW)
	r.lib.Calls()
	d := r.listen()
	if n := count(r.lib.Calls(), "ibv_create_cq"); n != 1 {
		t.Errorf("Listen creates %d completion queues", n)
	}
	for range 2 {
		d.knock()
		c, err := d.Accept(soon(t))
		if err != nil {
			t.Fatal(err)
		}
		if n := count(r.lib.Calls(), "ibv_create_cq"); n != 1 {
			t.Errorf("a connection takes %d completion queues", n)
		}
		c.Close()
		if n := count(r.lib.Calls(), "ibv_destroy_cq"); n != 1 {
			t.Errorf("the end of a connection destroys %d completion queues", n)
		}
	}
	d.Close()
	calls := r.lib.Calls()
	cq, id := slices.Index(calls, "ibv_destroy_cq"), slices.Index(calls, "rdma_destroy_id")
	if cq < 0 || id < cq {
		t.Errorf("Close calls %q", calls)
	}
}

// TestFakeMigrate: an ID that has moved to another channel, however often, gets its events
// there, whatever the numbers of other IDs are.
func TestFakeMigrate(t *testing.T) {
	lib := cgotest.New(t)
	lib.AddDevice("fake0", fakeAddr)
	var channels [2]*rdmacm.EventChannel
	for i := range channels {
		ch, err := rdmacm.NewEventChannelOn(lib)
		if err != nil {
			t.Fatal(err)
		}
		defer ch.Close()
		channels[i] = ch
	}
	for moves := range 5 {
		id, err := channels[0].NewID()
		if err != nil {
			t.Fatal(err)
		}
		defer id.Close()
		for i := range moves {
			if err := id.Migrate(channels[(i+1)%2]); err != nil {
				t.Fatal(err)
			}
		}
		if err := id.ResolveAddr(soon(t), netip.AddrPort{}, netip.MustParseAddrPort(fakePeer), time.Second); err != nil {
			t.Errorf("after %d moves: %v", moves, err)
		}
	}
	gone, err := rdmacm.NewEventChannelOn(lib)
	if err != nil {
		t.Fatal(err)
	}
	gone.Close()
	id, err := channels[0].NewID()
	if err != nil {
		t.Fatal(err)
	}
	defer id.Close()
	if err := id.Migrate(gone); !errors.Is(err, net.ErrClosed) {
		t.Errorf("to a closed channel: %v", err)
	}
}
