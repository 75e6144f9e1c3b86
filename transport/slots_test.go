package transport

import (
	"errors"
	"math"
	"math/rand/v2"
	"net"
	"testing"

	"github.com/rpcrdma/rpcrdma/proto/oncrpc"
	"github.com/rpcrdma/rpcrdma/rpc"
)

// serverConfig is the default configuration of a server's connections.
func serverConfig(t *testing.T) *config {
	t.Helper()
	_, cfg, err := new(Settings).Server().settle()
	if err != nil {
		t.Fatal(err)
	}
	return cfg
}

// takeSlot returns a slot without asking for its credit.
func takeSlot(st *state) *slot {
	w := st.calls.caller()
	s := st.calls.take(w)
	s.begin(w)
	return s
}

// TestXIDsOfConnections checks that an xid is not reused for a long time, whether one slot makes all calls or
// connections follow one another. The previous connection may live on: a call that has lost it keeps its xid on the
// next one.
func TestXIDsOfConnections(t *testing.T) {
	cfg := serverConfig(t)
	made := make(map[uint32]string)
	// calls has a connection make n calls at once, a few times.
	calls := func(name string, c *conn, n int) {
		t.Helper()
		for range 5 {
			st := c.state.Lock()
			list := make([]*slot, n)
			for i := range list {
				list[i] = takeSlot(st)
				xid := list[i].xid
				if who := made[xid]; who != "" {
					t.Fatalf("%s has a call with the xid %#x of one of %s", name, xid, who)
				}
				made[xid] = name
			}
			for _, s := range list {
				st.release(s)
			}
			c.state.Unlock()
		}
	}
	next := func(from connection) *conn {
		c, _ := newConn(peerConn{newPeer(t)}, "script", cfg, roleServer, nil)
		if from != nil {
			c.inherit(from)
		}
		return c
	}
	a := next(nil)
	StartXIDs(&a.public, math.MaxUint32-7)
	calls("the first", a, 3)
	b := next(a)
	calls("the second", b, 1)
	c := next(b) // before b has made as many slots as a
	calls("the second", b, 3)
	calls("the third", c, 3)
	calls("the first", a, 5) // slots that were never used
	calls("the second", b, 5)
	calls("the third", c, 5)
	d := next(c)
	calls("the fourth", d, 6)
	ends, _ := net.Pipe()
	tcp := newTCPConn(ends, cfg, roleServer, nil)
	tcp.inherit(d)
	if tcp.counter() != a.counter() {
		t.Error("a connection over TCP does not go on with the xids")
	}

	st := d.state.Lock()
	defer d.state.Unlock()
	first := takeSlot(st)
	xid := first.xid
	st.release(first)
	for i := range 1 << 20 {
		s := takeSlot(st)
		st.release(s)
		if s.xid == xid {
			t.Fatalf("call %d has the xid of the first", i+2)
		}
	}
}

// TestXIDsUnderWay checks that replies find their calls, and that no call gets the xid of a call under way. The counter
// wraps, calls take long, and some calls bring their own xids.
func TestXIDsUnderWay(t *testing.T) {
	c, _ := newConn(peerConn{newPeer(t)}, "script", serverConfig(t), roleServer, nil)
	rng := rand.New(rand.NewPCG(1, 2))
	var list []*slot
	under := make(map[uint32]*slot)
	near := func() uint32 { // or just at a call that is under way
		if len(list) == 0 || rng.IntN(2) == 0 {
			return math.MaxUint32 - rng.Uint32N(40)
		}
		return list[rng.IntN(len(list))].xid - rng.Uint32N(4) + rng.Uint32N(3)<<rng.Uint32N(32)
	}
	StartXIDs(&c.public, math.MaxUint32-20)
	for range 50_000 {
		switch n := rng.IntN(100); {
		case n == 0:
			StartXIDs(&c.public, near())
		case n < 52 && len(list) < 100:
			st := c.state.Lock()
			s := takeSlot(st)
			c.state.Unlock()
			if n < 10 {
				xid := near()
				old := under[xid]
				if err := c.keepXID(s, xid); (err != nil) != (old != nil) || err == nil && s.xid != xid {
					t.Fatalf("a call with the xid %#x of its own, another under way %v: %v, it goes out as %#x", xid, old != nil, err, s.xid)
				}
			}
			if under[s.xid] != nil {
				t.Fatalf("%#x is under way twice", s.xid)
			}
			list, under[s.xid] = append(list, s), s
		case len(list) > 0:
			i := rng.IntN(len(list))
			s := list[i]
			list[i] = list[len(list)-1]
			list = list[:len(list)-1]
			delete(under, s.xid)
			st := c.state.Lock()
			st.release(s)
			c.state.Unlock()
		}
		xid := near()
		st := c.state.Lock()
		got := st.calls.underWay.Find(xid)
		c.state.Unlock()
		if got != under[xid] {
			t.Fatalf("%#x finds another call than its own", xid)
		}
	}
}

// TestXIDsOverTCP checks that no call gets the xid of a call under way, or its reply. This includes the case that the
// counter reaches the xid, and a signed call that is sent again.
func TestXIDsOverTCP(t *testing.T) {
	near, far := net.Pipe()
	defer far.Close()
	defer near.Close()
	c := newTCPConn(near, serverConfig(t), roleServer, nil)
	c.allow(4)
	form := func(call *rpc.Call) *tcpCall {
		cs := &c.state.Lock().calls
		w := cs.caller()
		x := cs.take(w)
		c.state.Unlock()
		x.waiter, x.xid, x.call = w, w.xid, pendingOf(call)
		if err := x.build(c.cfg); err != nil {
			t.Fatal(err)
		}
		return x
	}
	StartXIDs(&c.public, math.MaxUint32)
	var calls []*tcpCall
	for i, want := range []uint32{math.MaxUint32, 0, 1} {
		x := form(testCall())
		if err := c.register(x); err != nil || x.xid != want {
			t.Fatalf("call %d has the xid %#x, want %#x: %v", i, x.xid, want, err)
		}
		calls = append(calls, x)
		StartXIDs(&c.public, math.MaxUint32) // once around
	}
	call := testCall()
	call.Sign = func([]byte) oncrpc.Auth { return oncrpc.Auth{} }
	pendingOf(call).sent = true
	if err := c.register(form(call)); !errors.Is(err, errSameXID) {
		t.Errorf("a signed call is registered with the xid of another: %v", err)
	}
	for _, x := range calls {
		if got := c.settle(x.xid); got != x {
			t.Errorf("the reply %#x is for another call", x.xid)
		}
	}
}
