//go:build linux && cgo

package rdmacm_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/rpcrdma/rpcrdma/fabric"
	"github.com/rpcrdma/rpcrdma/fabric/fabrictest"
	"github.com/rpcrdma/rpcrdma/internal/testing/rdmatest"
	"github.com/rpcrdma/rpcrdma/rdmacm"
)

// onAddresses runs f with an IPv4 and an IPv6 address of each kind of device.
func onAddresses(t *testing.T, f func(t *testing.T, kind, addr string)) {
	rdmatest.OnDevices(t, func(t *testing.T, kind, addr string) {
		t.Run("IPv4", func(t *testing.T) { f(t, kind, addr) })
		t.Run("IPv6", func(t *testing.T) { f(t, kind, rdmatest.Device6(t, kind)) })
	})
}

// TestRDMAManagerConnects: both ends learn each other's addresses, limits and private
// data, and that the connection is over.
func TestRDMAManagerConnects(t *testing.T) {
	onAddresses(t, func(t *testing.T, kind, addr string) {
		ch := channel(t)
		l, at := listening(t, ch, addr)
		if at.Addr() != netip.MustParseAddr(addr) || at.Port() == 0 {
			t.Errorf("the listener is at %v", at)
		}
		client := partyOn(t, resolved(t, ch, at))
		if got := client.id.PeerAddr(); got != at {
			t.Errorf("the client goes to %v, want %v", got, at)
		}
		if got := client.id.LocalAddr(); got.Addr() != at.Addr() {
			t.Errorf("the client is at %v", got)
		}
		if name := client.ctx.Info().Name; !strings.HasPrefix(name, kind) || client.id.Port() != 1 {
			t.Errorf("device %s, port %d", name, client.id.Port())
		}
		type answer struct {
			ev  rdmacm.Event
			err error
		}
		connected := make(chan answer, 1)
		go func() {
			ev, err := client.id.Connect(soon(t), rdmacm.ConnParam{
				PrivateData: []byte("may I?"), ResponderResources: 3, InitiatorDepth: 5, RetryCount: 7, RNRRetryCount: 7,
			})
			connected <- answer{ev, err}
		}()
		id, err := l.GetRequest(soon(t))
		if err != nil {
			t.Fatal(err)
		}
		req := id.Request()
		if req.Type != rdmacm.EventConnectRequest || !bytes.HasPrefix(req.PrivateData, []byte("may I?")) {
			t.Errorf("the request is %+v", req)
		}
		// Seen from here: this side serves what the peer has outstanding.
		if req.ResponderResources != 5 || req.InitiatorDepth != 3 {
			t.Errorf("the request serves %d Reads and has %d outstanding, want 5 and 3", req.ResponderResources, req.InitiatorDepth)
		}
		server := partyOn(t, id)
		if id.LocalAddr() != at || id.PeerAddr() != client.id.LocalAddr() {
			t.Errorf("the server's end is %v to %v", id.LocalAddr(), id.PeerAddr())
		}
		if _, err := server.id.Accept(soon(t), rdmacm.ConnParam{PrivateData: []byte("yes"), ResponderResources: 5, InitiatorDepth: 3, RNRRetryCount: 7}); err != nil {
			t.Fatal(err)
		}
		got := arrives(t, "Connect", connected)
		if got.err != nil || got.ev.Type != rdmacm.EventEstablished || !bytes.HasPrefix(got.ev.PrivateData, []byte("yes")) {
			t.Fatalf("Connect: %+v, %v", got.ev, got.err)
		}
		// siw tells these two the other way round.
		if in, out := got.ev.ResponderResources, got.ev.InitiatorDepth; in+out != 8 || kind == "rxe" && in != 3 {
			t.Errorf("the client serves %d Reads and has %d outstanding, want 3 and 5", in, out)
		}
		if err := client.id.Disconnect(); err != nil {
			t.Fatal(err)
		}
		wantDisconnected(t, server.id)
		// InfiniBand's connection manager wants an answer.
		if err := server.id.Disconnect(); err != nil && !errors.Is(err, syscall.EINVAL) {
			t.Error(err)
		}
		wantDisconnected(t, client.id)
	})
}

// wantDisconnected waits for the end of the connection.
func wantDisconnected(t *testing.T, id *rdmacm.ID) {
	t.Helper()
	if ev, err := id.Event(soon(t)); err != nil || ev.Type != rdmacm.EventDisconnected {
		t.Fatalf("want the end: %v, %v", ev, err)
	}
}

// TestRDMAManagerRejects: the refusal comes with what the peer has to say.
func TestRDMAManagerRejects(t *testing.T) {
	onAddresses(t, func(t *testing.T, kind, addr string) {
		ch := channel(t)
		l, at := listening(t, ch, addr)
		_, id, answer := asking(t, ch, l, at, rdmacm.ConnParam{})
		defer id.Close()
		if err := id.Reject([]byte("no, thanks")); err != nil {
			t.Fatal(err)
		}
		err := arrives(t, "Connect", answer)
		var e *rdmacm.EventError
		if !errors.As(err, &e) || e.Event.Type != rdmacm.EventRejected || !bytes.HasPrefix(e.Event.PrivateData, []byte("no, thanks")) {
			t.Errorf("%v (%+v)", err, e)
		}
	})
}

// TestRDMARequestsAreSharedOut: with many waiters each request goes to one of them.
func TestRDMARequestsAreSharedOut(t *testing.T) {
	rdmatest.OnDevices(t, func(t *testing.T, kind, addr string) {
		const waiters, clients = 4, 24
		ch := channel(t)
		l, at := listening(t, ch, addr)
		var seen sync.Map
		var wg sync.WaitGroup
		var handed atomic.Int64
		ctx, stop := context.WithCancel(soon(t))
		for range waiters {
			wg.Go(func() {
				for {
					id, err := l.GetRequest(ctx)
					if err != nil {
						if !errors.Is(err, context.Canceled) {
							t.Errorf("GetRequest: %v", err)
						}
						return
					}
					if _, twice := seen.LoadOrStore(id.PeerAddr(), true); twice {
						t.Errorf("the request of %v came twice", id.PeerAddr())
					}
					if err := id.Reject(nil); err != nil {
						t.Errorf("Reject: %v", err)
					}
					id.Close()
					handed.Add(1)
				}
			})
		}
		var answers []<-chan error
		for range clients {
			client := partyOn(t, resolved(t, ch, at))
			answers = append(answers, later(func() error {
				_, err := client.id.Connect(soon(t), rdmacm.ConnParam{})
				return err
			}))
		}
		for _, answer := range answers {
			var e *rdmacm.EventError
			if err := arrives(t, "Connect", answer); !errors.As(err, &e) || e.Event.Type != rdmacm.EventRejected {
				t.Errorf("Connect: %v", err)
			}
		}
		comes(t, "all requests are handed out", func() bool { return handed.Load() == clients })
		stop()
		returns(t, "GetRequest after its context", wg.Wait)
	})
}

// TestRDMAOptions: options that can be seen from outside, and that the others are
// taken.
func TestRDMAOptions(t *testing.T) {
	rdmatest.OnDevices(t, func(t *testing.T, kind, addr string) {
		ch := channel(t)
		ip := netip.MustParseAddr(addr)
		t.Run("ReuseAddr", func(t *testing.T) {
			first := newID(t, ch)
			if err := first.BindAddr(netip.AddrPortFrom(ip, 0)); err != nil {
				t.Fatal(err)
			}
			at := first.LocalAddr()
			again := newID(t, ch)
			if err := again.BindAddr(at); !errors.Is(err, syscall.EADDRINUSE) {
				t.Errorf("a port in use: %v", err)
			}
			first.Close()
			var both [2]*rdmacm.ID
			for i := range both {
				both[i] = newID(t, ch)
				if err := both[i].SetReuseAddr(true); err != nil {
					t.Fatal(err)
				}
				if err := both[i].BindAddr(at); err != nil {
					t.Errorf("SetReuseAddr, ID %d: %v", i, err)
				}
			}
		})
		t.Run("AFOnly", func(t *testing.T) {
			ip6 := netip.MustParseAddr(rdmatest.Device6(t, kind))
			for _, only := range []bool{false, true} {
				six, four := newID(t, ch), newID(t, ch)
				if err := six.SetAFOnly(only); err != nil {
					t.Fatal(err)
				}
				if err := errors.Join(six.BindAddr(netip.AddrPortFrom(netip.IPv6Unspecified(), 0)), six.Listen(8)); err != nil {
					t.Fatal(err)
				}
				port := six.LocalAddr().Port()
				err := four.BindAddr(netip.AddrPortFrom(netip.IPv4Unspecified(), port))
				if err == nil {
					err = four.Listen(8)
				}
				// Of addresses that are not the same but overlap the kernel says
				// EADDRNOTAVAIL.
				if only != (err == nil) || err != nil && !errors.Is(err, syscall.EADDRINUSE) && !errors.Is(err, syscall.EADDRNOTAVAIL) {
					t.Errorf("AFOnly %v: the second listener: %v", only, err)
				}
				for _, dst := range []netip.Addr{ip, ip6} {
					from := six
					switch {
					case only && dst.Is4():
						from = four
					case dst.Is4() && kind == "siw":
						continue // siw loses IPv4 requests that arrive at a socket of IPv6
					}
					requested(t, ch, from, netip.AddrPortFrom(dst, port))
				}
				six.Close()
				four.Close()
			}
		})
		t.Run("TOS", func(t *testing.T) {
			l, at := listening(t, ch, addr)
			id := newID(t, ch)
			if err := id.SetTOS(0x28); err != nil {
				t.Fatal(err)
			}
			if err := id.ResolveAddr(soon(t), netip.AddrPort{}, at, time.Second); err != nil {
				t.Fatal(err)
			}
			if err := id.ResolveRoute(soon(t), time.Second); err != nil {
				t.Fatal(err)
			}
			party := partyOn(t, id)
			answer := later(func() error { _, err := party.id.Connect(soon(t), rdmacm.ConnParam{}); return err })
			req, err := l.GetRequest(soon(t))
			if err != nil {
				t.Fatal(err)
			}
			req.Reject(nil)
			req.Close()
			arrives(t, "Connect", answer)
		})
		t.Run("AckTimeout", func(t *testing.T) {
			if kind != "rxe" {
				t.Skip("iWARP has TCP below it, whose time-outs are not ours to set")
			}
			_, at := listening(t, ch, addr)
			id := resolved(t, ch, at)
			if err := id.SetAckTimeout(14); err != nil {
				t.Error(err)
			}
		})
		t.Run("Config", func(t *testing.T) {
			p := provider(t, rdmacm.Config{TOS: 0x28, AckTimeout: 14, RetryCount: 3, RNRRetryCount: 3})
			client, server := pair(t, p, addr, fabric.ConnAttr{})
			server.Receives(1, 100)
			client.Send("a message", []byte("with options"))
			server.WantMessage("a message", []byte("with options"))
		})
	})
}

// requested wants a request to dst to arrive at that listener.
func requested(t *testing.T, ch *rdmacm.EventChannel, l *rdmacm.ID, dst netip.AddrPort) {
	t.Helper()
	client, id, answer := asking(t, ch, l, dst, rdmacm.ConnParam{})
	if id.LocalAddr() != dst {
		t.Errorf("the request came to %v, want %v", id.LocalAddr(), dst)
	}
	id.Reject(nil)
	id.Close()
	arrives(t, "Connect", answer)
	client.close()
	client.id.Close()
}

// TestRDMAListenEverywhere: an empty host listens on all devices with both families.
func TestRDMAListenEverywhere(t *testing.T) {
	rdmatest.Device(t, "rxe")
	p := provider(t, rdmacm.Config{})
	l, err := p.Listen(soon(t), ":0", fabric.ConnAttr{})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	_, port, err := net.SplitHostPort(l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	onAddresses(t, func(t *testing.T, kind, addr string) {
		c, err := p.Resolve(soon(t), net.JoinHostPort(addr, port), fabric.ConnAttr{})
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		answer := later(func() error { return c.Connect(soon(t), nil) })
		s, err := l.Accept(soon(t))
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		if err := s.Accept(soon(t), nil); err != nil {
			t.Error(err)
		}
		if err := arrives(t, "Connect", answer); err != nil {
			t.Error(err)
		}
	})
}

// TestRDMAMigrate: an ID that moves to another channel takes its events along:
// those that wait and those that come meanwhile, each of them once.
func TestRDMAMigrate(t *testing.T) {
	rdmatest.OnDevices(t, func(t *testing.T, kind, addr string) {
		t.Run("waiting", func(t *testing.T) {
			from, to := channel(t), channel(t)
			client, server := joined(t, from, addr)
			if err := server.id.Disconnect(); err != nil {
				t.Fatal(err)
			}
			wantDisconnected(t, client.id)
			if err := client.id.Disconnect(); err != nil && !errors.Is(err, syscall.EINVAL) {
				t.Fatal(err)
			}
			// The server's event has not been taken, if it has arrived.
			if err := server.id.Migrate(to); err != nil {
				t.Fatal(err)
			}
			wantDisconnected(t, server.id)
		})
		t.Run("under way", func(t *testing.T) {
			a, b := channel(t), channel(t)
			for range times(60) {
				client, server := joined(t, a, addr)
				go server.id.Disconnect()
				to := b
				for range 1 + rand.N(8) {
					if err := client.id.Migrate(to); err != nil {
						t.Fatal(err)
					}
					if to == b {
						to = a
					} else {
						to = b
					}
				}
				wantDisconnected(t, client.id)
				if ev, err := client.id.Event(briefly(t)); err == nil && ev.Type != rdmacm.EventTimewaitExit {
					t.Fatalf("behind the end: %v", ev.Type)
				}
				for _, p := range []*party{client, server} {
					p.close()
					p.id.Close()
				}
			}
		})
		// A listener that moves gets its requests on the other channel, and those that
		// it has given out stay where they are. Not so those that come meanwhile: they
		// belong to the channel that they came to, and librdmacm drops them.
		t.Run("listener", func(t *testing.T) {
			from, to, mine := channel(t), channel(t), channel(t)
			l, at := listening(t, from, addr)
			request := func() (*rdmacm.ID, <-chan error) {
				_, id, answer := asking(t, mine, l, at, rdmacm.ConnParam{})
				return id, answer
			}
			for i := range times(20) {
				before, first := request()
				if err := l.Migrate(to); err != nil {
					t.Fatal(err)
				}
				from, to = to, from
				behind, second := request()
				for j, id := range []*rdmacm.ID{before, behind} {
					if err := id.Reject(nil); err != nil {
						t.Errorf("round %d, request %d: %v", i, j, err)
					}
					id.Close()
				}
				for _, answer := range []<-chan error{first, second} {
					var e *rdmacm.EventError
					if err := arrives(t, "Connect", answer); !errors.As(err, &e) || e.Event.Type != rdmacm.EventRejected {
						t.Errorf("round %d: %v", i, err)
					}
				}
			}
			l.Close()
		})
		t.Run("closed", func(t *testing.T) {
			from, to := channel(t), channel(t)
			id := newID(t, from)
			if err := to.Close(); err != nil {
				t.Fatal(err)
			}
			if err := id.Migrate(to); !errors.Is(err, net.ErrClosed) {
				t.Errorf("to a closed channel: %v", err)
			}
			if err := id.Migrate(from); err != nil {
				t.Errorf("to its own channel: %v", err)
			}
			id.Close()
			if err := id.Migrate(from); !errors.Is(err, net.ErrClosed) {
				t.Errorf("of a closed ID: %v", err)
			}
		})
	})
}

// silent returns an address of the device's network at which nothing answers.
func silent(addr string) netip.AddrPort {
	return netip.AddrPortFrom(netip.MustParseAddr(addr[:strings.LastIndexByte(addr, '.')]+".77"), 4000)
}

// TestRDMAWaitsEnd: Close of an ID and a context that is done end whatever waits.
func TestRDMAWaitsEnd(t *testing.T) {
	rdmatest.OnDevices(t, func(t *testing.T, kind, addr string) {
		ch := channel(t)
		var connecting *party
		for _, wait := range []struct {
			name    string
			prepare func(t *testing.T) (*rdmacm.ID, func(context.Context) error)
		}{
			{"Event", func(t *testing.T) (*rdmacm.ID, func(context.Context) error) {
				id := newID(t, ch)
				return id, func(ctx context.Context) error { _, err := id.Event(ctx); return err }
			}},
			{"GetRequest", func(t *testing.T) (*rdmacm.ID, func(context.Context) error) {
				id, _ := listening(t, ch, addr)
				return id, func(ctx context.Context) error { _, err := id.GetRequest(ctx); return err }
			}},
			{"ResolveAddr", func(t *testing.T) (*rdmacm.ID, func(context.Context) error) {
				// ARP asks for the neighbor, which does not answer.
				machine(t)
				sh(t, "ip", "link", "set", netdev(kind), "arp", "on")
				t.Cleanup(func() { sh(t, "ip", "link", "set", netdev(kind), "arp", "off") })
				id := newID(t, ch)
				return id, func(ctx context.Context) error {
					return id.ResolveAddr(ctx, netip.AddrPort{}, silent(addr), limit)
				}
			}},
			{"Connect", func(t *testing.T) (*rdmacm.ID, func(context.Context) error) {
				machine(t) // elsewhere another host may have the address
				if kind == "siw" {
					t.Skip("siw connects inside rdma_connect, until TCP has given up")
				}
				party := partyOn(t, resolved(t, ch, silent(addr)))
				t.Cleanup(party.close)
				connecting = party
				return party.id, func(ctx context.Context) error {
					_, err := party.id.Connect(ctx, rdmacm.ConnParam{})
					if errors.Is(err, net.ErrClosed) || errors.Is(err, context.DeadlineExceeded) {
						party.close()
					}
					return err
				}
			}},
			{"Accept", func(t *testing.T) (*rdmacm.ID, func(context.Context) error) {
				l, at := listening(t, ch, addr)
				_, id, _ := asking(t, ch, l, at, rdmacm.ConnParam{})
				t.Cleanup(func() { id.Close() })
				return id, func(ctx context.Context) error { _, err := id.Event(ctx); return err }
			}},
		} {
			t.Run(wait.name, func(t *testing.T) {
				_, f := wait.prepare(t)
				done := later(func() error { return f(briefly(t)) })
				if err := arrives(t, "the wait with a context", done); !errors.Is(err, context.DeadlineExceeded) {
					t.Errorf("a context that is done: %v", err)
				}
			})
			t.Run(wait.name+" closed", func(t *testing.T) {
				id, f := wait.prepare(t)
				waiting := make(chan struct{})
				done := later(func() error { close(waiting); return f(soon(t)) })
				<-waiting
				time.Sleep(rand.N(10 * time.Millisecond)) // at any moment
				if wait.name != "Connect" {
					returns(t, "Close", func() { id.Close() })
					if err := arrives(t, "the wait with Close", done); !errors.Is(err, net.ErrClosed) {
						t.Errorf("after Close: %v", err)
					}
					return
				}
				// The queue pair goes before the ID.
				if err := id.Close(); !errors.Is(err, syscall.EBUSY) {
					t.Errorf("closed before its queue pair: %v", err)
				}
				connecting.qp.Close()
				returns(t, "Close", func() { id.Close() })
				if err := arrives(t, "the wait with Close", done); !errors.Is(err, net.ErrClosed) {
					t.Errorf("after Close: %v", err)
				}
			})
		}
		t.Run("afterwards", func(t *testing.T) {
			id := newID(t, ch)
			if err := errors.Join(id.Close(), id.Close()); err != nil {
				t.Errorf("Close twice: %v", err)
			}
			_, event := id.Event(soon(t))
			_, request := id.GetRequest(soon(t))
			for what, err := range map[string]error{
				"Event": event, "GetRequest": request,
				"BindAddr": id.BindAddr(netip.AddrPort{}), "Listen": id.Listen(1), "Reject": id.Reject(nil),
				"ResolveAddr": id.ResolveAddr(soon(t), netip.AddrPort{}, silent(addr), limit), "SetTOS": id.SetTOS(1),
			} {
				if !errors.Is(err, net.ErrClosed) {
					t.Errorf("%s of a closed ID: %v", what, err)
				}
			}
			if id.Verbs() != nil || id.Port() != 0 || id.LocalAddr().IsValid() || id.PeerAddr().IsValid() {
				t.Error("a closed ID has a device or an address")
			}
		})
	})
}

// TestRDMAChannelCloses: not while there are IDs, and then for good.
func TestRDMAChannelCloses(t *testing.T) {
	ch := channel(t)
	id := newID(t, ch)
	if err := ch.Close(); !errors.Is(err, syscall.EBUSY) {
		t.Errorf("with an ID: %v", err)
	}
	if err := id.Close(); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(ch.Close(), ch.Close()); err != nil {
		t.Errorf("twice: %v", err)
	}
	if _, err := ch.NewID(); !errors.Is(err, net.ErrClosed) {
		t.Errorf("a new ID: %v", err)
	}
}

// TestRDMACloseMeetsEvents: IDs that are closed at any moment of their set-up, while
// events for them come in: nothing crashes, hangs or stays.
func TestRDMACloseMeetsEvents(t *testing.T) {
	rdmatest.OnDevices(t, func(t *testing.T, kind, addr string) {
		ch := channel(t)
		l, at := listening(t, ch, addr)
		ctx, cancel := context.WithTimeout(context.Background(), 2*limit)
		defer cancel()
		var served sync.WaitGroup
		for range 2 {
			served.Go(func() {
				for {
					id, err := l.GetRequest(ctx)
					if err != nil {
						return
					}
					p, err := newParty(id, 0)
					if err == nil {
						brief, cancel := context.WithTimeout(ctx, rand.N(10*time.Millisecond))
						id.Accept(brief, rdmacm.ConnParam{})
						cancel()
						p.close()
					}
					id.Close()
				}
			})
		}
		var outcomes sync.Map
		var clients sync.WaitGroup
		for range 4 {
			clients.Go(func() {
				for range times(200) / 4 {
					id, err := ch.NewID()
					if err != nil {
						t.Error(err)
						return
					}
					// One goroutine sets up, another closes at a random moment. A
					// queue pair goes before its ID.
					var mu sync.Mutex
					var p *party
					closing := false
					done := make(chan string, 1)
					go func() {
						step, err := "ResolveAddr", id.ResolveAddr(ctx, netip.AddrPort{}, at, time.Second)
						if err == nil {
							step, err = "ResolveRoute", id.ResolveRoute(ctx, time.Second)
						}
						if err == nil {
							step = "Connect"
							mu.Lock()
							if !closing {
								p, err = newParty(id, 0)
							} else {
								err = net.ErrClosed
							}
							mu.Unlock()
						}
						if err == nil {
							if _, err = id.Connect(ctx, rdmacm.ConnParam{}); err == nil {
								step = "up"
							}
						}
						if err != nil && ctx.Err() != nil {
							t.Errorf("%s: %v", step, err)
						}
						done <- step
					}()
					time.Sleep(rand.N(12 * time.Millisecond))
					mu.Lock()
					closing = true
					if p != nil {
						p.close()
					}
					mu.Unlock()
					id.Close()
					step := <-done
					n, _ := outcomes.LoadOrStore(step, new(atomic.Int64))
					n.(*atomic.Int64).Add(1)
				}
			})
		}
		returns(t, "the clients", clients.Wait)
		cancel()
		returns(t, "the servers", served.Wait)
		l.Close()
		var how []string
		outcomes.Range(func(step, n any) bool {
			how = append(how, fmt.Sprintf("%v %d", step, n.(*atomic.Int64).Load()))
			return true
		})
		t.Logf("closed while in: %s", strings.Join(how, ", "))
	})
}

// TestRDMAWrongAddresses: errors keep their errno and tell in one line what is wrong.
func TestRDMAWrongAddresses(t *testing.T) {
	rdmatest.OnDevices(t, func(t *testing.T, kind, addr string) {
		p := provider(t, rdmacm.Config{ResolveTimeout: time.Second})
		taken, err := p.Listen(soon(t), net.JoinHostPort(addr, "0"), fabric.ConnAttr{})
		if err != nil {
			t.Fatal(err)
		}
		defer taken.Close()
		listen := func(addr string) error {
			l, err := p.Listen(soon(t), addr, fabric.ConnAttr{})
			if err == nil {
				l.Close()
			}
			return err
		}
		resolve := func(addr string) error {
			c, err := p.Resolve(soon(t), addr, fabric.ConnAttr{})
			if err == nil {
				c.Close()
			}
			return err
		}
		connect := func(addr string) error {
			c, err := p.Resolve(soon(t), addr, fabric.ConnAttr{})
			if err == nil {
				defer c.Close()
				err = c.Connect(soon(t), nil)
			}
			return err
		}
		nobody := func() string { // a port without a listener
			l, err := p.Listen(soon(t), net.JoinHostPort(addr, "0"), fabric.ConnAttr{})
			if err != nil {
				t.Fatal(err)
			}
			defer l.Close()
			return l.Addr().String()
		}()
		for _, c := range []struct {
			name, addr string
			call       func(string) error
			errnos     []syscall.Errno
			says       string
		}{
			{"port in use", taken.Addr().String(), listen, []syscall.Errno{syscall.EADDRINUSE}, "in use"},
			{"nobody's address", "192.0.2.1:4000", listen, []syscall.Errno{syscall.EADDRNOTAVAIL, syscall.ENODEV}, "no RDMA device"},
			// lo takes no RDMA device, although rxe and siw can be put on it.
			{"listen on lo", "127.0.0.1:0", listen, []syscall.Errno{syscall.ENODEV, syscall.EADDRNOTAVAIL}, "loopback"},
			{"resolve on lo", "127.0.0.1:4000", resolve, []syscall.Errno{syscall.ENODEV, syscall.ENOENT, syscall.EINVAL}, "loopback"},
			{"resolve on lo with IPv6", "[::1]:4000", resolve, []syscall.Errno{syscall.ENODEV, syscall.ENOENT, syscall.EADDRNOTAVAIL, syscall.EINVAL}, "loopback"},
			{"no route", "192.0.2.1:4000", resolve, []syscall.Errno{syscall.ENETUNREACH, syscall.ENODEV}, "no RDMA device"},
			{"nobody listens", nobody, connect, []syscall.Errno{syscall.ECONNREFUSED}, "nobody listens"},
		} {
			t.Run(c.name, func(t *testing.T) {
				err := c.call(c.addr)
				t.Logf("%v", err)
				var call *rdmacm.CallError
				var event *rdmacm.EventError
				if !errors.As(err, &call) && !errors.As(err, &event) {
					t.Fatalf("%T: %v", err, err)
				}
				known := false
				for _, errno := range c.errnos {
					known = known || errors.Is(err, errno)
				}
				host, _, _ := net.SplitHostPort(c.addr)
				if msg := err.Error(); !known || !strings.Contains(msg, c.says) || !strings.Contains(msg, host) || strings.Contains(msg, "\n") {
					t.Errorf("want one of %v, one line that says %q and names %s", c.errnos, c.says, host)
				}
			})
		}
	})
}

// TestRDMAReadLimits: neither end believes that the other serves more Reads at once
// than it does, and more than that can be posted. siw's accepting end serves as many as
// the other wants to have under way, whatever it was asked to serve itself.
func TestRDMAReadLimits(t *testing.T) {
	rdmatest.OnDevices(t, func(t *testing.T, kind, addr string) {
		p := provider(t, rdmacm.Config{})
		c, s := fabrictest.Pair(t, p, fabrictest.Setup{
			Addr: addr + ":0", Timeout: limit,
			Client: fabric.ConnAttr{InboundReads: 6, OutboundReads: 16}, Server: fabric.ConnAttr{InboundReads: 4, OutboundReads: 8},
		})
		a, b := c.Capabilities(), s.Capabilities()
		if kind == "rxe" && (a.OutboundReads != 4 || b.InboundReads != 4 || b.OutboundReads != 6 || a.InboundReads != 6) {
			t.Errorf("client %d in, %d out; server %d in, %d out", a.InboundReads, a.OutboundReads, b.InboundReads, b.OutboundReads)
		}
		client, server := fabrictest.NewEndpoint(t, "client", c), fabrictest.NewEndpoint(t, "server", s)
		client.Start()
		server.Start()
		for _, ends := range [][2]*fabrictest.Endpoint{{client, server}, {server, client}} {
			from, at := ends[0], ends[1]
			src := at.Region(8192, fabric.AccessRemoteRead)
			in := from.Region(8192, fabric.AccessLocalWrite)
			const reads = 60
			for id := range uint64(reads) {
				from.Post("a Read", fabric.SendWR{
					ID: id, Op: fabric.OpRead, Flags: fabric.Signaled,
					SGL: []fabric.SGE{fabrictest.SGE(in, 0, 8192)}, RKey: src.Segment().Handle, RemoteOffset: src.Segment().Offset,
				})
			}
			for id := range uint64(reads) {
				from.WantSent("a Read", id)
			}
		}
	})
}

// TestRDMAPrivateDataLimits: the longest private data arrives whole, anything longer
// is refused before it leaves. rdma_cm's own header leaves 56 of the 92 bytes of a
// request over RoCE. siw puts 4 bytes in front and counts the sum in a byte: 252
// bytes would become none.
func TestRDMAPrivateDataLimits(t *testing.T) {
	rdmatest.OnDevices(t, func(t *testing.T, kind, addr string) {
		want := map[string]int{"rxe": 56, "siw": 251}[kind]
		p := provider(t, rdmacm.Config{})
		data := fabrictest.Pattern(want+1, 9)
		c, s := fabrictest.Pair(t, p, fabrictest.Setup{Addr: addr + ":0", Request: data[:want], Reply: data[:want], Timeout: limit})
		if got := c.Capabilities().MaxPrivateData; got != want {
			t.Errorf("MaxPrivateData is %d, want %d", got, want)
		}
		for name, c := range map[string]fabric.Conn{"client": c, "server": s} {
			if got := c.PeerPrivateData(); !bytes.HasPrefix(got, data[:want]) {
				t.Errorf("the %s got %d bytes: %x", name, len(got), got)
			}
		}
		var lack *fabric.CapabilityError
		other, err := p.Resolve(soon(t), net.JoinHostPort(addr, "4000"), fabric.ConnAttr{})
		if err != nil {
			t.Fatal(err)
		}
		defer other.Close()
		if err := other.Connect(soon(t), data); !errors.As(err, &lack) {
			t.Errorf("Connect with %d bytes: %v", len(data), err)
		}
	})
}
