package fabrictest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"runtime"
	"sync"
	"time"

	"github.com/rpcrdma/rpcrdma/fabric"
)

// attr has the default attributes of the checks.
var attr = fabric.ConnAttr{SendDepth: 128, RecvDepth: 128, InboundReads: 8, OutboundReads: 8}

func setupChecks() []check {
	return []check{
		{"ResolveOffersNothing", resolveOffersNothing},
		{"Addresses", addresses},
		{"PrivateData", privateData},
		{"PrivateDataTooLong", privateDataTooLong},
		{"Reject", reject},
		{"NobodyListens", nobodyListens},
		{"ReceivesPostedBefore", receivesPostedBefore},
		{"ReadLimitsAgree", readLimitsAgree},
		{"TooDeepQueue", tooDeepQueue},
		{"ConnectCanceled", connectCanceled},
		{"ConnectClosed", connectClosed},
		{"AcceptCanceled", acceptCanceled},
		{"AnswerCanceled", answerCanceled},
		{"ListenerClose", listenerClose},
		{"ListenerCloseDropsRequests", listenerCloseDropsRequests},
		{"ConnsOutliveListener", connsOutliveListener},
		{"ProviderClose", providerClose},
		{"StalledPeer", stalledPeer},
		{"ManyAtOnce", manyAtOnce},
	}
}

// listen opens a listener, which is closed at the end of the check.
func (s *scene) listen(a fabric.ConnAttr) fabric.Listener {
	s.Helper()
	l, err := s.p.Listen(s.ctx(), s.cfg.Addr, a)
	if err != nil {
		s.Fatalf("listen at %s: %v", s.cfg.Addr, err)
	}
	s.Cleanup(func() {
		s.within("Listener.Close", func() error { l.Close(); return nil }) // the check may have closed it already
	})
	return l
}

// resolve prepares a connection to l, which is closed at the end of the check.
func (s *scene) resolve(l fabric.Listener) fabric.Conn {
	s.Helper()
	c, err := s.p.Resolve(s.ctx(), l.Addr().String(), attr)
	if err != nil {
		s.Fatalf("resolve %s: %v", l.Addr(), err)
	}
	s.Cleanup(func() {
		s.within("Close", c.Close)
	})
	return c
}

// request accepts the next connection request from l.
func (s *scene) request(l fabric.Listener) fabric.Conn {
	s.Helper()
	c, err := l.Accept(s.ctx())
	if err != nil {
		s.Fatalf("accept from the listener: %v", err)
	}
	s.Cleanup(func() {
		s.within("Close", c.Close)
	})
	return c
}

// later runs f on a goroutine and returns a channel for its result.
func later(f func() error) <-chan error {
	c := make(chan error, 1)
	go func() { c <- f() }()
	return c
}

// result waits for and returns a result of later.
func (s *scene) result(what string, c <-chan error) error {
	s.Helper()
	timer := time.NewTimer(s.cfg.Timeout)
	defer timer.Stop()
	select {
	case err := <-c:
		return err
	case <-timer.C:
		s.Fatalf("%s has not returned after %v", what, s.cfg.Timeout)
		return nil
	}
}

// A stage configures pair.
type stage struct {
	client, server fabric.ConnAttr
	beforeConnect  func(*Endpoint)
	beforeAccept   func(*Endpoint)
	idle           bool // do not start the Endpoints
}

// pair connects two Endpoints and starts them.
func (s *scene) pair(st stage) (client, server *Endpoint) {
	s.Helper()
	if st.server == (fabric.ConnAttr{}) {
		st.server = attr
	}
	return s.pairAt(s.listen(st.server), st)
}

// pairAt is pair with an existing listener.
func (s *scene) pairAt(l fabric.Listener, st stage) (client, server *Endpoint) {
	s.Helper()
	set := Setup{Client: st.client}
	if set.Client == (fabric.ConnAttr{}) {
		set.Client = attr
	}
	set.BeforeConnect = func(c fabric.Conn) {
		client = s.endpoint("client", c)
		if st.beforeConnect != nil {
			st.beforeConnect(client)
		}
	}
	set.BeforeAccept = func(c fabric.Conn) {
		server = s.endpoint("server", c)
		if s.cfg.Limits.ClientFirst {
			server.Receives(1, 8)
		}
		if st.beforeAccept != nil {
			st.beforeAccept(server)
		}
	}
	if _, _, err := join(s.ctx(), s.p, l, set); err != nil {
		s.Fatal(err)
	}
	if s.cfg.Limits.ClientFirst {
		const what = "the word that lets the server speak"
		word := client.Message(nil)
		client.Post(what, word)
		s.turns(what, func() bool { return len(client.sent) == 1 && len(server.rcvd) == 1 }, client, server)
		client.WantSent(what, word.ID)
		server.WantMessage(what, nil)
	}
	if !st.idle {
		client.Start()
		server.Start()
	}
	return client, server
}

func (s *scene) endpoint(name string, c fabric.Conn) *Endpoint {
	e := NewEndpoint(s.TB, name, c)
	e.Timeout = s.cfg.Timeout
	return e
}

// exchange verifies that a connection works in both directions.
func (s *scene) exchange(what string, a, b *Endpoint) {
	s.Helper()
	ping, pong := Pattern(40, 1), Pattern(90, 2)
	b.Receives(1, 64)
	a.Receives(1, 128)
	a.Send("a ping "+what, ping)
	b.WantMessage("the ping "+what, ping)
	b.Send("a pong "+what, pong)
	a.WantMessage("the pong "+what, pong)
}

// resolveOffersNothing: Resolve sends no request. The first request that the listener receives is from a later Conn that
// connects.
func resolveOffersNothing(s *scene) {
	l := s.listen(attr)
	first, second := s.resolve(l), s.resolve(l)
	for _, c := range []struct {
		conn fabric.Conn
		says string
	}{{second, "second"}, {first, "first"}} {
		connected := later(func() error { return c.conn.Connect(s.ctx(), []byte(c.says)) })
		server := s.request(l)
		s.wantPrivate("in the request", server.PeerPrivateData(), []byte(c.says))
		if err := server.Accept(s.ctx(), nil); err != nil {
			s.Fatalf("accept: %v", err)
		}
		if err := s.result("Connect", connected); err != nil {
			s.Fatalf("connect: %v", err)
		}
	}
}

func (s *scene) wantPrivate(where string, got, want []byte) {
	s.Helper()
	if s.cfg.Limits.PaddedPrivateData {
		if !bytes.Contains(got, want) {
			s.Fatalf("private data %s: %s, want %s in it", where, brief(got), brief(want))
		}
		return
	}
	if !bytes.Equal(got, want) {
		s.Fatalf("private data %s: %s, want %s", where, brief(got), brief(want))
	}
}

// addresses: listeners on port 0 have different addresses, and both ends know both addresses.
func addresses(s *scene) {
	l, other := s.listen(attr), s.listen(attr)
	if l.Addr().String() == other.Addr().String() {
		s.Errorf("two listeners on port 0 are both at %v", l.Addr())
	}
	if _, port, err := net.SplitHostPort(l.Addr().String()); l.Addr().Network() != "unix" && (err != nil || port == "0") {
		s.Errorf("the listener's address is %v", l.Addr())
	}
	if second, err := s.p.Listen(s.ctx(), l.Addr().String(), attr); err == nil {
		second.Close()
		s.Errorf("two listeners share the address %v", l.Addr())
	}
	client, server := s.pairAt(l, stage{})
	if got, want := client.Conn.RemoteAddr().String(), l.Addr().String(); got != want {
		s.Errorf("the client is connected to %s, want %s", got, want)
	}
	if got, want := server.Conn.RemoteAddr().String(), client.Conn.LocalAddr().String(); got != want {
		s.Errorf("the server is connected to %s, want the client's %s", got, want)
	}
	if got, want := server.Conn.LocalAddr().String(), l.Addr().String(); got != want {
		s.Errorf("the server is at %s, want %s", got, want)
	}
}

// privateData: private data of every length up to the limit arrives, in both directions.
func privateData(s *scene) {
	l := s.listen(attr)
	c := s.resolve(l)
	most := c.Capabilities().MaxPrivateData
	if most <= 0 {
		s.Fatalf("MaxPrivateData is %d", most)
	}
	for _, n := range []int{0, 1, 8, most - 1, most} {
		request, reply := Pattern(n, 3), Pattern(n, 4)
		c := s.resolve(l)
		connected := later(func() error { return c.Connect(s.ctx(), request) })
		server := s.request(l)
		s.wantPrivate("in the request", server.PeerPrivateData(), request)
		if err := server.Accept(s.ctx(), reply); err != nil {
			s.Fatalf("accept with %d bytes of private data: %v", n, err)
		}
		if err := s.result("Connect", connected); err != nil {
			s.Fatalf("connect with %d bytes of private data: %v", n, err)
		}
		s.wantPrivate("in the answer", c.PeerPrivateData(), reply)
		s.wantPrivate("in the request, afterwards", server.PeerPrivateData(), request)
	}
}

// privateDataTooLong: private data over the limit is refused locally; the peer does not
// receive a request.
func privateDataTooLong(s *scene) {
	l := s.listen(attr)
	c := s.resolve(l)
	long := make([]byte, c.Capabilities().MaxPrivateData+1)
	s.wantLacking("Connect with too much private data", s.result("Connect",
		later(func() error { return c.Connect(s.ctx(), long) })))

	c = s.resolve(l)
	connected := later(func() error { return c.Connect(s.ctx(), []byte("short")) })
	server := s.request(l)
	s.wantPrivate("in the first request", server.PeerPrivateData(), []byte("short"))
	s.wantLacking("Accept with too much private data", server.Accept(s.ctx(), long))
	server.Close()
	if err := s.result("Connect", connected); err == nil {
		s.Error("Connect succeeded, and the peer has not accepted")
	}

	c = s.resolve(l)
	connected = later(func() error { return c.Connect(s.ctx(), nil) })
	server = s.request(l)
	s.wantLacking("Reject with too much private data", server.Reject(long))
	server.Close()
	if err := s.result("Connect", connected); err == nil {
		s.Error("Connect succeeded, and the peer has not accepted")
	}
}

// wantLacking expects a CapabilityError.
func (s *scene) wantLacking(what string, err error) {
	s.Helper()
	var ce *fabric.CapabilityError
	if !errors.As(err, &ce) || !errors.Is(err, fabric.ErrNotSupported) {
		s.Fatalf("%s: %T (%v), want a *fabric.CapabilityError", what, err, err)
	}
}

// reject: a rejection arrives as a RejectError, with its private data, and the listener still
// works.
func reject(s *scene) {
	l := s.listen(attr)
	most := s.resolve(l).Capabilities().MaxPrivateData
	for _, n := range []int{0, 12, most} {
		why := Pattern(n, 5)
		c := s.resolve(l)
		connected := later(func() error { return c.Connect(s.ctx(), []byte("please")) })
		server := s.request(l)
		if err := server.Reject(why); err != nil {
			s.Fatalf("reject: %v", err)
		}
		err := s.result("Connect", connected)
		var re *fabric.RejectError
		if !errors.As(err, &re) {
			s.Fatalf("connect to a peer that rejects: %T (%v), want a *fabric.RejectError", err, err)
		}
		s.wantPrivate("in the rejection", re.PrivateData, why)
		if re.Addr == "" {
			s.Error("the rejection does not say whose it is")
		}
		s.wantOver("Post on the rejected end", c.Post([]fabric.SendWR{{Op: fabric.OpSend}}))
		s.wantOver("Post on the rejecting end", server.Post([]fabric.SendWR{{Op: fabric.OpSend}}))
		if err := server.Close(); err != nil {
			s.Errorf("Close after Reject: %v", err)
		}
	}
	a, b := s.pairAt(l, stage{})
	s.exchange("after rejections", a, b)
}

// wantOver expects the error of a connection that has ended.
func (s *scene) wantOver(what string, err error) {
	s.Helper()
	var ce *fabric.ConnError
	if !errors.As(err, &ce) || !errors.Is(err, net.ErrClosed) {
		s.Fatalf("%s: %T (%v), want a *fabric.ConnError that unwraps to net.ErrClosed", what, err, err)
	}
}

// nobodyListens: Connect fails if nothing listens.
func nobodyListens(s *scene) {
	l := s.listen(attr)
	addr := l.Addr().String()
	if err := l.Close(); err != nil {
		s.Fatalf("close the listener: %v", err)
	}
	c, err := s.p.Resolve(s.ctx(), addr, attr)
	if err != nil {
		return // already checked
	}
	defer c.Close()
	if err := s.result("Connect", later(func() error { return c.Connect(s.ctx(), nil) })); err == nil {
		s.Error("connected to an address on which nothing listens")
	}
}

// receivesPostedBefore: the first message of either side uses the receives posted before Connect or Accept.
func receivesPostedBefore(s *scene) {
	hello := Pattern(64, 6)
	l := s.listen(attr)
	for range repeat(30) {
		client, server := s.pairAt(l, stage{
			beforeConnect: func(e *Endpoint) { e.Receives(2, 64) },
			beforeAccept:  func(e *Endpoint) { e.Receives(2, 64) },
		})
		server.Send("the server's first word", hello)
		client.WantMessage("the server's first word", hello)
		client.Send("the client's first word", hello[:5])
		server.WantMessage("the client's first word", hello[:5])
		client.Close()
		server.Close()
	}
}

// readLimitsAgree: the ORD of one end is at most the IRD of the other, and at most its own
// attribute.
func readLimitsAgree(s *scene) {
	client, server := s.pair(stage{
		client: fabric.ConnAttr{SendDepth: 16, RecvDepth: 16, InboundReads: 2, OutboundReads: 4},
		server: fabric.ConnAttr{SendDepth: 16, RecvDepth: 16, InboundReads: 3, OutboundReads: 8},
	})
	c, v := client.Conn.Capabilities(), server.Conn.Capabilities()
	for _, d := range []struct {
		who         string
		reader, src fabric.Capabilities
		asked       int
	}{{"client", c, v, 3}, {"server", v, c, 2}} {
		if n := d.reader.OutboundReads; n < 1 || n > d.asked || n > d.src.InboundReads {
			s.Errorf("the %s may have %d Reads outstanding; its peer serves %d, and was asked for no more than %d",
				d.who, n, d.src.InboundReads, d.asked)
		}
	}
	if c.MaxMessage < 1<<20 || c.MaxSendSGE < 1 || c.MaxReadSGE < 1 {
		s.Errorf("unusable: %+v", c)
	}
}

// tooDeepQueue: queue depths that no adapter supports are refused when the Conn is made.
func tooDeepQueue(s *scene) {
	l := s.listen(attr)
	for _, a := range []fabric.ConnAttr{{SendDepth: 1 << 30}, {RecvDepth: 1 << 30}} {
		c, err := s.p.Resolve(s.ctx(), l.Addr().String(), a)
		if err == nil {
			c.Close()
		}
		s.wantLacking(fmt.Sprintf("Resolve with %+v", a), err)
	}
}

// connectCanceled: Connect ends with its context.
func connectCanceled(s *scene) {
	l := s.listen(attr)

	c := s.resolve(l)
	ctx, cancel := context.WithCancel(s.ctx())
	connected := later(func() error { return c.Connect(ctx, nil) })
	server := s.request(l) // so Connect is waiting for the reply
	cancel()
	if err := s.result("Connect", connected); !errors.Is(err, context.Canceled) {
		s.Errorf("Connect with a context that was canceled: %v", err)
	}
	c.Close()
	server.Close()

	c = s.resolve(l)
	ctx, cancel = context.WithTimeout(s.ctx(), 20*time.Millisecond)
	defer cancel()
	err := s.result("Connect", later(func() error { return c.Connect(ctx, nil) }))
	if !errors.Is(err, context.DeadlineExceeded) {
		s.Errorf("Connect with a deadline, to a peer that does not answer: %v", err)
	}
	c.Close()

	ctx, cancel = context.WithCancel(s.ctx())
	cancel()
	if c, err := s.p.Resolve(ctx, l.Addr().String(), attr); err == nil {
		if err := s.result("Connect", later(func() error { return c.Connect(ctx, nil) })); !errors.Is(err, context.Canceled) {
			s.Errorf("Connect with a context canceled before: %v", err)
		}
		c.Close()
	} else if !errors.Is(err, context.Canceled) {
		s.Errorf("Resolve with a context canceled before: %v", err)
	}
}

// connectClosed: Close unblocks Connect.
func connectClosed(s *scene) {
	l := s.listen(attr)
	c := s.resolve(l)
	connected := later(func() error { return c.Connect(s.ctx(), nil) })
	s.request(l)
	s.within("Close", c.Close)
	if err := s.result("Connect", connected); !errors.Is(err, net.ErrClosed) {
		s.Errorf("Connect of a Conn that was closed meanwhile: %v, want net.ErrClosed", err)
	}
}

// acceptCanceled: Listener.Accept ends with its context. The end of the context has no other effect.
func acceptCanceled(s *scene) {
	l := s.listen(attr)
	ctx, cancel := context.WithCancel(s.ctx())
	accept := func() error {
		c, err := l.Accept(ctx)
		if err == nil {
			c.Close()
		}
		return err
	}
	accepted := later(accept)
	cancel()
	if err := s.result("Accept", accepted); !errors.Is(err, context.Canceled) {
		s.Errorf("Accept with a context that was canceled: %v", err)
	}
	ctx, cancel = context.WithTimeout(s.ctx(), 10*time.Millisecond)
	defer cancel()
	if err := s.result("Accept", later(accept)); !errors.Is(err, context.DeadlineExceeded) {
		s.Errorf("Accept with a deadline: %v", err)
	}
	a, b := s.pairAt(l, stage{})
	s.exchange("after canceled accepts", a, b)
}

// answerCanceled: Conn.Accept with a context that has ended returns, with success or failure,
// and so does the peer's Connect.
func answerCanceled(s *scene) {
	l := s.listen(attr)
	c := s.resolve(l)
	connected := later(func() error { return c.Connect(s.ctx(), nil) })
	server := s.request(l)
	ctx, cancel := context.WithCancel(s.ctx())
	cancel()
	err := s.result("Accept", later(func() error { return server.Accept(ctx, nil) }))
	if err != nil && !errors.Is(err, context.Canceled) {
		s.Errorf("Accept of a Conn with a context canceled before: %v", err)
	}
	server.Close()
	if cerr := s.result("Connect", connected); cerr == nil && err != nil {
		// The reply may have been sent before the context was checked. Then the end of the connection must follow.
		e := s.endpoint("client", c)
		e.Start()
		e.WantEnd("as the server has given up")
	}
}

// listenerClose: after Close, current and later calls of Accept fail.
func listenerClose(s *scene) {
	l := s.listen(attr)
	const waiting = 3
	var accepted [waiting]<-chan error
	for i := range accepted {
		accepted[i] = later(func() error { _, err := l.Accept(s.ctx()); return err })
	}
	runtime.Gosched()
	s.within("Listener.Close", l.Close)
	for i := range accepted {
		if err := s.result("Accept", accepted[i]); !errors.Is(err, net.ErrClosed) {
			s.Errorf("Accept of a listener that was closed: %v, want net.ErrClosed", err)
		}
	}
	if _, err := l.Accept(s.ctx()); !errors.Is(err, net.ErrClosed) {
		s.Errorf("Accept of a closed listener: %v, want net.ErrClosed", err)
	}
	s.within("the second Listener.Close", func() error { l.Close(); return nil })
}

// listenerCloseDropsRequests: Close drops the requests that Accept has not returned, and no others.
func listenerCloseDropsRequests(s *scene) {
	for range repeat(20) {
		l := s.listen(attr)
		taken, left := s.resolve(l), s.resolve(l)
		first := later(func() error { return taken.Connect(s.ctx(), nil) })
		server := s.request(l)
		second := later(func() error { return left.Connect(s.ctx(), nil) })
		for range 10 { // in some of the rounds the request will have arrived
			runtime.Gosched()
		}
		s.within("Listener.Close", l.Close)
		if err := s.result("Connect", second); err == nil {
			s.Error("connected through a listener that was closed before it took the request")
		}
		if err := server.Accept(s.ctx(), nil); err != nil {
			s.Fatalf("accept a request taken before the listener was closed: %v", err)
		}
		if err := s.result("Connect", first); err != nil {
			s.Fatalf("connect: %v", err)
		}
	}
}

// connsOutliveListener: connections outlive their listener.
func connsOutliveListener(s *scene) {
	l := s.listen(attr)
	a, b := s.pairAt(l, stage{})
	s.exchange("before", a, b)
	if err := l.Close(); err != nil {
		s.Fatalf("close the listener: %v", err)
	}
	s.exchange("after the listener's end", a, b)
}

// providerClose: Close of a provider, which may be called concurrently, closes its listeners. Afterwards Resolve and
// Listen fail. Established Conns continue to work, and a resolved Conn finds no listener to connect to.
func providerClose(s *scene) {
	l := s.listen(attr)
	a, b := s.pairAt(l, stage{})
	resolved := s.resolve(l)
	accepted := later(func() error { _, err := l.Accept(s.ctx()); return err })
	runtime.Gosched()
	var closed [3]<-chan error
	for i := range closed {
		closed[i] = later(s.p.Close)
	}
	for i := range closed {
		if err := s.result("Close of the provider", closed[i]); err != nil {
			s.Errorf("Close of the provider: %v", err)
		}
	}
	if err := s.result("Accept", accepted); !errors.Is(err, net.ErrClosed) {
		s.Errorf("Accept of a provider that was closed: %v, want net.ErrClosed", err)
	}
	if c, err := s.p.Resolve(s.ctx(), l.Addr().String(), attr); !errors.Is(err, net.ErrClosed) {
		s.Errorf("Resolve of a closed provider: %v, want net.ErrClosed", err)
		if err == nil {
			c.Close()
		}
	}
	if l, err := s.p.Listen(s.ctx(), s.cfg.Addr, attr); !errors.Is(err, net.ErrClosed) {
		s.Errorf("Listen of a closed provider: %v, want net.ErrClosed", err)
		if err == nil {
			l.Close()
		}
	}
	if err := s.result("Connect", later(func() error { return resolved.Connect(s.ctx(), nil) })); err == nil {
		s.Error("connected to a listener of a provider that was closed")
	}
	s.exchange("after the provider's end", a, b)
}

// stalledPeer: a peer that never completes its request does not block others.
func stalledPeer(s *scene) {
	if s.cfg.Stall == nil {
		s.Skip("Config.Stall is not given")
	}
	l := s.listen(attr)
	for range 3 {
		stalled := s.cfg.Stall(s.TB, l.Addr().String())
		defer stalled.Close()
	}
	a, b := s.pairAt(l, stage{})
	s.exchange("beside stalled peers", a, b)
	s.within("Listener.Close with stalled peers", l.Close)
}

// manyAtOnce: many peers connect at once, and each gets its own connection.
func manyAtOnce(s *scene) {
	const peers = 16
	l := s.listen(attr)
	var wg sync.WaitGroup
	defer wg.Wait()
	clients := make([]fabric.Conn, peers)
	for i := range clients {
		clients[i] = s.resolve(l)
	}
	errs := make(chan error, peers)
	for i, c := range clients {
		wg.Go(func() {
			if err := c.Connect(s.ctx(), []byte{0xc5, byte(i)}); err != nil {
				errs <- err
				return
			}
			want := []byte{0xa5, byte(i)}
			if got := c.PeerPrivateData(); !bytes.Contains(got, want) {
				errs <- fmt.Errorf("connection %d got the answer %x", i, got)
				return
			}
			errs <- nil
		})
	}
	for range peers {
		server := s.request(l)
		said := server.PeerPrivateData()
		at := bytes.IndexByte(said, 0xc5)
		if at < 0 || at+1 >= len(said) {
			s.Fatalf("private data in the request: %s", brief(said))
		}
		if err := server.Accept(s.ctx(), []byte{0xa5, said[at+1]}); err != nil {
			s.Fatalf("accept: %v", err)
		}
	}
	for range peers {
		if err := s.result("Connect", errs); err != nil {
			s.Errorf("connect: %v", err)
		}
	}
}
