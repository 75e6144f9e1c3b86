//go:build linux && cgo

package interop

import (
	"errors"
	"net/netip"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/rpcrdma/rpcrdma/ibv"
	"github.com/rpcrdma/rpcrdma/internal/testing/rdmatest"
	"github.com/rpcrdma/rpcrdma/rdmacm"
)

// An end is our end of conversations with a program of others: memory, and queue pairs that send from
// its first half and receive into its second.
type end struct {
	t    *testing.T
	dev  *ibv.Context
	pd   *ibv.PD
	cq   *ibv.CQ
	mr   *ibv.MR
	half int
	srq  *ibv.SRQ         // may be nil
	ch   *ibv.CompChannel // to wait for completions, may be nil
	cqEx bool             // the completion queue is extended
	peer *ibv.Destination // of datagrams
	qps  []*ibv.QP

	polled []ibv.WC // and not asked for yet
}

// newEnd makes an end for messages of up to size bytes. All of it is closed with the test, the
// queue pairs first.
func newEnd(t *testing.T, dev *ibv.Context, size int) *end {
	t.Helper()
	e := &end{t: t, dev: dev, half: size + ibv.GRHSize}
	var err error
	e.pd, err = dev.AllocPD()
	closing(t, e.pd, err)
	e.cq, err = dev.CreateCQ(2048, nil, 0)
	closing(t, e.cq, err)
	access := ibv.AccessLocalWrite | ibv.AccessRemoteWrite | ibv.AccessRemoteRead
	if dev.Info().Transport == ibv.TransportIB {
		access |= ibv.AccessRemoteAtomic
	}
	e.mr, err = e.pd.RegMR(make([]byte, 2*e.half), access)
	closing(t, e.mr, err)
	return e
}

// attr describes the end's queue pairs of a type.
func (e *end) attr(typ ibv.QPType) ibv.QPInitAttr {
	return ibv.QPInitAttr{
		Type: typ, SendCQ: e.cq, RecvCQ: e.cq, SRQ: e.srq,
		Cap: ibv.QPCap{MaxSendWR: 64, MaxRecvWR: 128, MaxSendSGE: 1, MaxRecvSGE: 1},
	}
}

func (e *end) add(qp *ibv.QP, err error) *ibv.QP {
	e.t.Helper()
	closing(e.t, qp, err)
	e.qps = append(e.qps, qp)
	return qp
}

// sent and received are the bytes of a message, which follows a global route where there is one.
func (e *end) sent(size int) []byte     { return e.mr.Bytes()[:size] }
func (e *end) received(size int) []byte { return e.mr.Bytes()[2*e.half-size:] }

// sendWR is a Send with the number id.
func (e *end) sendWR(id uint64, size int) ibv.SendWR {
	return ibv.SendWR{ID: id, Opcode: ibv.OpSend, Flags: ibv.SendSignaled, SGL: []ibv.SGE{e.mr.SGE(0, uint32(size))}}
}

func (e *end) post(qp *ibv.QP, wrs ...ibv.SendWR) {
	e.t.Helper()
	if err := qp.PostSend(wrs); err != nil {
		e.t.Fatal(err)
	}
}

// receive posts a receive. A message of size bytes ends at the end of the memory.
func (e *end) receive(qp *ibv.QP, id uint64, size int) {
	e.t.Helper()
	post := qp.PostRecv
	if e.srq != nil {
		post = e.srq.PostRecv
	}
	if err := post([]ibv.RecvWR{{ID: id, SGL: []ibv.SGE{e.mr.SGE(uint64(2*e.half-size), uint32(size))}}}); err != nil {
		e.t.Fatal(err)
	}
}

// comes reports whether a success of the request with the number id comes in a sixth of the patience.
func (e *end) comes(id uint64) bool {
	e.t.Helper()
	for late := time.Now().Add(patience / 6); time.Now().Before(late); {
		e.poll()
		if i := slices.IndexFunc(e.polled, func(wc ibv.WC) bool { return wc.ID == id }); i >= 0 {
			if err := e.polled[i].Err(); err != nil {
				e.t.Fatal(err)
			}
			e.polled = slices.Delete(e.polled, i, i+1)
			return true
		}
	}
	return false
}

// take returns the next completion, which has to come, whatever its status.
func (e *end) take() (wc ibv.WC) {
	e.t.Helper()
	armed := false
	for late := time.Now().Add(patience); len(e.polled) == 0; {
		if e.poll(); len(e.polled) > 0 {
			break
		}
		switch {
		case time.Now().After(late):
			e.t.Fatal("no completion has come")
		case e.ch == nil:
		case !armed:
			if err := e.cq.Arm(false); err != nil {
				e.t.Fatal(err)
			}
			armed = true
		default:
			if _, err := e.ch.GetEvent(testContext(e.t)); err != nil {
				e.t.Fatal(err)
			}
			armed = false
		}
	}
	wc = e.polled[0]
	e.polled = slices.Delete(e.polled, 0, 1)
	return wc
}

// poll takes the completions that there are.
func (e *end) poll() {
	e.t.Helper()
	var err error
	var n int
	if e.cqEx {
		var wcs [16]ibv.WCEx
		n, err = e.cq.PollEx(wcs[:])
		for i := range wcs[:n] {
			e.polled = append(e.polled, wcs[i].WC)
		}
	} else {
		var wcs [16]ibv.WC
		n, err = e.cq.Poll(wcs[:])
		e.polled = append(e.polled, wcs[:n]...)
	}
	if err != nil {
		e.t.Fatal(err)
	}
}

// next is a completion that has to come, of a success.
func (e *end) next() ibv.WC {
	e.t.Helper()
	wc := e.take()
	if err := wc.Err(); err != nil {
		e.t.Fatalf("request %d: %v", wc.ID, err)
	}
	return wc
}

// done waits for n completions of requests with the number id, and leaves the others for later.
func (e *end) done(id uint64, n int) (last ibv.WC) {
	e.t.Helper()
	var others []ibv.WC
	for n > 0 {
		if wc := e.next(); wc.ID == id {
			last = wc
			n--
		} else {
			others = append(others, wc)
		}
	}
	e.polled = append(others, e.polled...)
	return last
}

func closing(t *testing.T, c interface{ Close() error }, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Errorf("closing %T: %v", c, err)
		}
	})
}

// ahTo is the way to a queue pair.
func (e *end) ahTo(peer ibv.QPAddr) ibv.AHAttr {
	e.t.Helper()
	for _, g := range must(e.dev.GIDTable())(e.t) {
		if g.Type == ibv.GIDTypeRoCEv2 && g.GID.Addr().Is4() {
			return ibv.AHAttr{PortNum: g.Port, IsGlobal: true, GRH: ibv.GlobalRoute{DGID: peer.GID, SGIDIndex: uint8(g.Index), HopLimit: 64}}
		}
	}
	e.t.Fatal("the device has no address")
	return ibv.AHAttr{}
}

// device opens a device of a kind.
func device(t *testing.T, kind string) *ibv.Context {
	t.Helper()
	dev, err := ibv.Open(rdmatest.Name(t, kind))
	closing(t, dev, err)
	return dev
}

// newID makes an ID with a channel of its own.
func newID(t *testing.T, ps rdmacm.PortSpace) *rdmacm.ID {
	t.Helper()
	ch, err := rdmacm.NewEventChannel()
	closing(t, ch, err)
	id, err := ch.NewIDOf(ps)
	closing(t, id, err)
	return id
}

// listenAt is a listener at addr, on a free port if want is zero.
func listenAt(t *testing.T, ps rdmacm.PortSpace, addr string, want uint16) (l *rdmacm.ID, port string) {
	t.Helper()
	for {
		l = newID(t, ps)
		err := l.BindAddr(netip.AddrPortFrom(netip.MustParseAddr(addr), want))
		if err == nil {
			err = l.Listen(128)
		}
		switch {
		case err == nil:
			return l, strconv.Itoa(int(l.LocalAddr().Port()))
		case !collision(err):
			t.Fatal(err)
		}
	}
}

// accepted returns the ID of a listener's next request.
func accepted(t *testing.T, l *rdmacm.ID) *rdmacm.ID {
	t.Helper()
	id, err := l.GetRequest(testContext(t))
	closing(t, id, err)
	return id
}

// endOf is an end with a queue pair of an ID.
func endOf(t *testing.T, id *rdmacm.ID, typ ibv.QPType, size int) *end {
	t.Helper()
	dev := id.Verbs()
	closing(t, dev, nil)
	e := newEnd(t, dev, size)
	e.add(id.CreateQP(e.pd, e.attr(typ)))
	return e
}

// disconnected waits until the peer has ended the connection, and ends it as well, for which it waits.
func disconnected(t *testing.T, id *rdmacm.ID) {
	t.Helper()
	for {
		ev, err := id.Event(testContext(t))
		switch {
		case err != nil:
			t.Fatalf("the peer has not disconnected: %v", err)
		case ev.Type == rdmacm.EventDisconnected:
			if err := id.Disconnect(); err != nil {
				t.Error(err)
			}
			return
		}
	}
}

// connected is an ID with a connection to a server, or that knows where its datagrams go, and an end
// that has posted its receives. Until the server listens it is rejected.
func connected(t *testing.T, ps rdmacm.PortSpace, addr, port string, size int, receives func(*end)) (*rdmacm.ID, *end, rdmacm.Event) {
	t.Helper()
	typ := ibv.QPTypeRC
	if ps == rdmacm.PortSpaceUDP {
		typ = ibv.QPTypeUD
	}
	ctx, to := testContext(t), netip.MustParseAddrPort(addr+":"+port)
	for {
		id := newID(t, ps)
		if err := errors.Join(id.ResolveAddr(ctx, netip.AddrPort{}, to, 2*time.Second), id.ResolveRoute(ctx, 2*time.Second)); err != nil {
			t.Fatal(err)
		}
		e := endOf(t, id, typ, size)
		if receives != nil {
			receives(e)
		}
		ev, err := id.Connect(ctx, rdmacm.ConnParam{ResponderResources: 1, InitiatorDepth: 1, RetryCount: 5, RNRRetryCount: 7})
		var refused *rdmacm.EventError
		switch {
		case err == nil:
			return id, e, ev
		case !errors.As(err, &refused) && !collision(err):
			t.Fatal(err)
		}
		select {
		case <-ctx.Done():
			t.Fatal(err)
		case <-time.After(10 * time.Millisecond):
		}
	}
}
