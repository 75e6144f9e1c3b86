//go:build linux && cgo

package rdmacm_test

import (
	"bytes"
	"context"
	"errors"
	"net"
	"net/netip"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/rpcrdma/rpcrdma/cgo"
	"github.com/rpcrdma/rpcrdma/cgo/cgotest"
	"github.com/rpcrdma/rpcrdma/ibv"
	"github.com/rpcrdma/rpcrdma/internal/testing/rdmatest"
	"github.com/rpcrdma/rpcrdma/rdmacm"
)

// A mailer is an ID with a queue pair for datagrams and some memory.
type mailer struct {
	t  testing.TB
	id *rdmacm.ID
	pd *ibv.PD
	cq *ibv.CQ
	mr *ibv.MR
	qp *ibv.QP

	polled []ibv.WC // and not asked for yet
}

// equipped gives a bound ID a queue pair for datagrams. All is closed with the test.
func equipped(t testing.TB, id *rdmacm.ID) *mailer {
	t.Helper()
	m := &mailer{t: t, id: id}
	dev := id.Verbs()
	closing(t, dev, nil)
	var err error
	m.pd, err = dev.AllocPD()
	closing(t, m.pd, err)
	m.cq, err = dev.CreateCQ(64, nil, 0)
	closing(t, m.cq, err)
	m.mr, err = m.pd.RegMR(make([]byte, 8192), ibv.AccessLocalWrite)
	closing(t, m.mr, err)
	m.qp, err = id.CreateQP(m.pd, ibv.QPInitAttr{
		Type: ibv.QPTypeUD, SendCQ: m.cq, RecvCQ: m.cq, Cap: ibv.QPCap{MaxSendWR: 16, MaxRecvWR: 16, MaxSendSGE: 1, MaxRecvSGE: 1},
	})
	closing(t, m.qp, err)
	return m
}

func closing(t testing.TB, c interface{ Close() error }, err error) {
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

// recv posts a receive in the second half of the memory.
func (m *mailer) recv(id uint64) {
	m.t.Helper()
	if err := m.qp.PostRecv([]ibv.RecvWR{{ID: id, SGL: []ibv.SGE{m.mr.SGE(4096, 4096)}}}); err != nil {
		m.t.Fatal(err)
	}
}

// send sends text from the first half.
func (m *mailer) send(text string, ah *ibv.AH, to rdmacm.Destination) {
	m.t.Helper()
	copy(m.mr.Bytes(), text)
	if err := m.qp.PostSend([]ibv.SendWR{{
		ID: 99, Opcode: ibv.OpSend, Flags: ibv.SendSignaled, SGL: []ibv.SGE{m.mr.SGE(0, uint32(len(text)))},
		To: &ibv.Destination{AH: ah, QPNum: to.QPNum, Qkey: to.Qkey},
	}}); err != nil {
		m.t.Fatal(err)
	}
	if wc := m.done(99); wc.Err() != nil {
		m.t.Fatalf("sending: %+v", wc)
	}
}

// done waits for the completion of a request: one's own datagram to a group may come before the
// completion of the Send.
func (m *mailer) done(id uint64) (wc ibv.WC) {
	m.t.Helper()
	comes(m.t, "a completion", func() bool {
		var wcs [4]ibv.WC
		n, err := m.cq.Poll(wcs[:])
		if err != nil {
			m.t.Fatal(err)
		}
		m.polled = append(m.polled, wcs[:n]...)
		i := slices.IndexFunc(m.polled, func(wc ibv.WC) bool { return wc.ID == id })
		if i >= 0 {
			wc = m.polled[i]
			m.polled = slices.Delete(m.polled, i, i+1)
		}
		return i >= 0
	})
	return wc
}

// got wants a datagram that says text.
func (m *mailer) got(id uint64, text string) ibv.WC {
	m.t.Helper()
	wc := m.done(id)
	if got := m.mr.Bytes()[4096+ibv.GRHSize:][:max(0, int(wc.ByteLen)-ibv.GRHSize)]; wc.Err() != nil || string(got) != text {
		m.t.Fatalf("%+v: %q, want %q", wc, got, text)
	}
	return wc
}

// to makes the address handle of a destination.
func (m *mailer) to(d rdmacm.Destination) *ibv.AH {
	m.t.Helper()
	ah, err := m.pd.CreateAH(d.AH)
	closing(m.t, ah, err)
	return ah
}

func newIDOf(t testing.TB, ch *rdmacm.EventChannel, ps rdmacm.PortSpace) *rdmacm.ID {
	t.Helper()
	id, err := ch.NewIDOf(ps)
	closing(t, id, err)
	return id
}

// TestRDMADatagrams: over RDMA_PS_UDP a client learns the server's queue pair from the reply and
// sends to it; the server answers to the address of the datagram.
func TestRDMADatagrams(t *testing.T) {
	addr := rdmatest.Device(t, "rxe")
	ch := channel(t)
	l := newIDOf(t, ch, rdmacm.PortSpaceUDP)
	if err := errors.Join(l.BindAddr(netip.AddrPortFrom(netip.MustParseAddr(addr), 0)), l.Listen(8)); err != nil {
		t.Fatal(err)
	}
	client := newIDOf(t, ch, rdmacm.PortSpaceUDP)
	if err := errors.Join(client.ResolveAddr(soon(t), netip.AddrPort{}, l.LocalAddr(), 2*time.Second), client.ResolveRoute(soon(t), 2*time.Second)); err != nil {
		t.Fatal(err)
	}
	a := equipped(t, client)
	reply := make(chan rdmacm.Event, 1)
	done := later(func() error {
		ev, err := client.Connect(soon(t), rdmacm.ConnParam{PrivateData: []byte("where?")})
		reply <- ev
		return err
	})
	id, err := l.GetRequest(soon(t))
	closing(t, id, err)
	if !bytes.HasPrefix(id.Request().PrivateData, []byte("where?")) {
		t.Errorf("the request says %q", id.Request().PrivateData)
	}
	b := equipped(t, id)
	b.recv(1)
	if err := id.AcceptDatagrams(rdmacm.ConnParam{PrivateData: []byte("here")}); err != nil {
		t.Fatal(err)
	}
	if err := arrives(t, "Connect", done); err != nil {
		t.Fatal(err)
	}
	ev := <-reply
	if to := ev.Destination; to.QPNum != b.qp.Num() || to.Qkey == 0 || !bytes.HasPrefix(ev.PrivateData, []byte("here")) {
		t.Fatalf("the reply is %+v", ev)
	}
	a.send("question", a.to(ev.Destination), ev.Destination)
	wc := b.got(1, "question")
	back, err := b.pd.CreateAHOf(id.Port(), &wc, b.mr.Bytes()[4096:])
	closing(t, back, err)
	a.recv(2)
	b.send("answer", back, rdmacm.Destination{QPNum: wc.SrcQP, Qkey: ev.Destination.Qkey})
	a.got(2, "answer")
	if err := id.Close(); !errors.Is(err, syscall.EBUSY) {
		t.Errorf("an ID is closed before its queue pair: %v", err)
	}
}

// TestRDMAMulticast: what one member of a group sends all members receive, until they leave.
func TestRDMAMulticast(t *testing.T) {
	addr := rdmatest.Device(t, "rxe")
	ch := channel(t)
	group := netip.MustParseAddr("239.7.7.7")
	var members []*mailer
	var to rdmacm.Destination
	for range 3 {
		id := newIDOf(t, ch, rdmacm.PortSpaceUDP)
		if err := id.BindAddr(netip.AddrPortFrom(netip.MustParseAddr(addr), 0)); err != nil {
			t.Fatal(err)
		}
		m := equipped(t, id)
		var err error
		if to, err = id.JoinMulticast(soon(t), group, rdmacm.JoinFull); err != nil {
			t.Fatal(err)
		}
		members = append(members, m)
	}
	if to.QPNum != ibv.MulticastQPNum || to.Qkey == 0 || !to.AH.IsGlobal {
		t.Errorf("the group is at %+v", to)
	}
	sender := members[0]
	ah := sender.to(to)
	for i, m := range members {
		m.recv(uint64(i))
	}
	sender.send("to all", ah, to)
	for i, m := range members {
		if wc := m.got(uint64(i), "to all"); wc.SrcQP != sender.qp.Num() {
			t.Errorf("member %d has it from %d", i, wc.SrcQP)
		}
	}
	if err := members[1].id.LeaveMulticast(group); err != nil {
		t.Fatal(err)
	}
	for i, m := range members {
		m.recv(uint64(10 + i))
	}
	sender.send("to the rest", ah, to)
	for i, m := range members {
		if i != 1 {
			m.got(uint64(10+i), "to the rest")
		}
	}
	var wcs [1]ibv.WC
	if n, err := members[1].cq.Poll(wcs[:]); n != 0 || err != nil {
		t.Errorf("after it has left a member gets %+v, %v", wcs[:n], err)
	}
	if err := members[1].id.LeaveMulticast(group); err == nil {
		t.Error("a group is left twice")
	}

	// Linux has no groups of IPv6 over RoCE v2, and no others than groups.
	at := newIDOf(t, ch, rdmacm.PortSpaceUDP)
	if err := at.BindAddr(netip.AddrPortFrom(netip.MustParseAddr(addr), 0)); err != nil {
		t.Fatal(err)
	}
	equipped(t, at)
	if _, err := at.JoinMulticast(soon(t), netip.MustParseAddr("ff0e::7:7"), rdmacm.JoinFull); err == nil {
		t.Error("a group of IPv6 is joined")
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if _, err := at.JoinMulticast(ctx, group, rdmacm.JoinSendOnly); err != nil && !errors.Is(err, context.Canceled) {
		t.Errorf("given up: %v", err)
	}
}

// TestFakeIDCalls: what an ID does is a call with its name, and an error with its errno.
func TestFakeIDCalls(t *testing.T) {
	lib := cgotest.New(t)
	lib.AddDevice("fake0", fakeAddr)
	ch, err := rdmacm.NewEventChannelOn(lib)
	closing(t, ch, err)
	id := newIDOf(t, ch, rdmacm.PortSpaceUDP)
	if err := id.BindAddr(netip.AddrPortFrom(fakeAddr, 0)); err != nil {
		t.Fatal(err)
	}
	group := netip.MustParseAddr("239.1.2.3")
	to, err := id.JoinMulticast(soon(t), group, rdmacm.JoinSendOnly)
	if err != nil || to.QPNum != ibv.MulticastQPNum || to.AH.GRH.DGID != ibv.GID(group.As16()) || to.Qkey != 0x01234567 {
		t.Errorf("%+v, %v", to, err)
	}
	dev := id.Verbs()
	closing(t, dev, nil)
	pd, err := dev.AllocPD()
	closing(t, pd, err)
	cq, err := dev.CreateCQ(8, nil, 0)
	closing(t, cq, err)
	create := func(ops ibv.SendOps) (*ibv.QP, error) {
		return id.CreateQP(pd, ibv.QPInitAttr{Type: ibv.QPTypeUD, SendCQ: cq, RecvCQ: cq, SendOps: ops})
	}
	for call, f := range map[string]func() error{
		"rdma_join_multicast":  func() error { _, err := id.JoinMulticast(soon(t), group, rdmacm.JoinFull); return err },
		"rdma_leave_multicast": func() error { return id.LeaveMulticast(group) },
		"rdma_create_qp":       func() error { _, err := create(0); return err },
		"rdma_create_qp_ex":    func() error { _, err := create(ibv.SendOpsOf(ibv.OpSend)); return err },
		"rdma_init_qp_attr":    func() error { _, _, err := id.InitQPAttr(ibv.QPSInit); return err },
		"rdma_establish":       id.Establish,
		"rdma_set_local_ece":   func() error { return id.SetLocalECE(ibv.ECE{}) },
		"rdma_get_remote_ece":  func() error { _, err := id.RemoteECE(); return err },
		"rdma_reject_ece":      func() error { return id.RejectECE(nil) },
		"rdma_notify":          func() error { return id.NotifyEvent(ibv.EventCommEst) },
		"rdma_accept":          func() error { return id.AcceptDatagrams(rdmacm.ConnParam{}) },
	} {
		lib.Fail(call, syscall.ENOSPC)
		lib.Calls()
		if err := f(); !errors.Is(err, syscall.ENOSPC) || !slices.Equal(lib.Calls(), []string{call}) {
			t.Errorf("%s: %v", call, err)
		}
	}
	ece := ibv.ECE{VendorID: 7, Options: 9}
	if err := id.SetLocalECE(ece); err != nil {
		t.Error(err)
	}
	if got, err := id.RemoteECE(); got != ece || err != nil {
		t.Errorf("%+v, %v", got, err)
	}
	if attr, mask, err := id.InitQPAttr(ibv.QPSRTR); err != nil || attr.State != ibv.QPSRTR || mask != ibv.AttrState {
		t.Errorf("%+v, %v, %v", attr, mask, err)
	}
	qp, err := create(ibv.SendOpsOf(ibv.OpSend))
	closing(t, qp, err)
	if err := id.Close(); !errors.Is(err, syscall.EBUSY) {
		t.Errorf("an ID is closed before its queue pair: %v", err)
	}
	if err := qp.Close(); err != nil {
		t.Fatal(err)
	}
	waiting := later(func() error {
		lib.ID(rdmacm.RawID(id)).Raise(cgo.CMEvent{Type: cgotest.MulticastError, Status: -int32(syscall.ENETUNREACH)})
		_, err := id.Event(context.Background())
		return err
	})
	if err := arrives(t, "the event", waiting); err != nil {
		t.Error(err)
	}
	if err := id.Close(); err != nil {
		t.Error(err)
	}
	if _, err := create(0); !errors.Is(err, net.ErrClosed) {
		t.Errorf("of a closed ID: %v", err)
	}
}
