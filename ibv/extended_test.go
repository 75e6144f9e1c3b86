//go:build linux && cgo

package ibv

import (
	"errors"
	"syscall"
	"testing"
	"time"

	"github.com/rpcrdma/rpcrdma/cgo"
)

// TestFakeExtendedPost: an extended queue pair takes a list as a whole or not at all, and only the
// operations that it was created with: the library would call through a null pointer for others.
func TestFakeExtendedPost(t *testing.T) {
	s := newSet(t)
	qp := must[*QP](t)(s.pd.CreateQP(QPInitAttr{
		SendCQ: s.cq, RecvCQ: s.cq, Cap: QPCap{MaxSendWR: 4, MaxSendSGE: 2}, SendOps: SendOpsOf(OpSend, OpBindMW, OpAtomicWrite),
	}))
	dev := s.lib.QP(qp.Raw())
	send, bind := SendWR{Opcode: OpSend}, SendWR{Opcode: OpBindMW, Bind: &MWBind{MW: s.mw, MR: s.mr, Buf: s.mr.Bytes()}}
	write := func(n int) SendWR {
		return SendWR{Opcode: OpAtomicWrite, SGL: []SGE{{Buf: s.mr.Bytes()[:n], LKey: s.mr.LKey()}}}
	}
	s.lib.Fail("ibv_wr_complete", syscall.EIO)
	for _, tc := range []struct {
		name string
		list []SendWR
		want error
	}{
		{"the device fails", []SendWR{send}, syscall.EIO},
		{"an operation that it was not created with", []SendWR{send, bind, {Opcode: OpRDMAWrite}}, syscall.EOPNOTSUPP},
		{"an operation that there is not", []SendWR{send, {Opcode: 99}}, syscall.EOPNOTSUPP},
		{"an address", []SendWR{send, {Opcode: OpSend, To: new(Destination)}}, syscall.EISCONN},
		{"a bind of nothing", []SendWR{bind, {Opcode: OpBindMW}}, syscall.EINVAL},
		{"an atomic write of 7 bytes", []SendWR{write(7)}, syscall.EINVAL},
		{"more than the queue holds", []SendWR{send, send, send, bind, send}, syscall.ENOMEM},
	} {
		key := s.mw.RKey()
		var e *PostError
		if err := qp.PostSend(tc.list); !errors.As(err, &e) || e.Index != 0 || e.Call != "ibv_wr_complete" || !errors.Is(err, tc.want) {
			t.Errorf("%s: %v", tc.name, err)
		}
		if got := dev.Sends(); len(got) != 0 || s.mw.RKey() != key {
			t.Errorf("%s: the device has %d requests of the list", tc.name, len(got))
		}
	}
	if err := qp.PostSend([]SendWR{send, bind, write(8), send}); err != nil {
		t.Fatal(err)
	}
	for _, send := range dev.Sends() {
		send.Complete(0)
	}
	s.mw.Close() // before the queue pair, which it holds
}

// TestFakeExtendedPoll: an extended completion queue has the fields that it was created with, and
// the same events and end as another.
func TestFakeExtendedPoll(t *testing.T) {
	s := newSet(t)
	const fields = WCStandardFields | WCWithWallClock | WCWithTMInfo
	cq := must[*CQ](t)(s.c.CreateCQEx(CQInitAttr{Entries: 8, Channel: s.ch, Fields: fields, Flags: CQIgnoreOverrun}))
	dev := s.lib.CQ(cq.Raw())
	if err := cq.Arm(false); err != nil {
		t.Fatal(err)
	}
	when := time.Unix(1_700_000_000, 5)
	dev.AddEx(cgo.WCEx{WC: cgo.WC{ID: 7, Flags: uint32(WCWithImm), Imm: htonl(9)}, WallClock: uint64(when.UnixNano()), Tag: 1 << 40, TagPriv: 3})
	dev.Add(cgo.WC{ID: 8, Status: int32(WCWRFlushErr)})
	if got, err := s.ch.GetEvent(soon(t)); got != cq || err != nil {
		t.Fatalf("the event is of %v, %v", got, err)
	}
	var wcs [4]WCEx
	n, err := cq.PollEx(wcs[:])
	if n != 2 || err != nil || wcs[0].ID != 7 || wcs[0].ImmData() != 9 || !wcs[0].Time().Equal(when) || wcs[0].Tag != 1<<40 || wcs[0].TagPriv != 3 {
		t.Errorf("%d completions, %v: %+v", n, err, wcs[0])
	}
	if err := wcs[1].Err(); err == nil || wcs[1].ID != 8 {
		t.Errorf("%+v", wcs[1])
	}
	dev.Add(cgo.WC{ID: 9})
	var plain [1]WC
	if n, err := cq.Poll(plain[:]); n != 1 || err != nil || plain[0].ID != 9 {
		t.Errorf("polled as any other: %d, %v, %+v", n, err, plain[0])
	}

	s.lib.Fail("ibv_start_poll", syscall.EIO)
	closed := must[*CQ](t)(s.c.CreateCQEx(CQInitAttr{Entries: 1}))
	closed.Close()
	for _, tc := range []struct {
		name string
		do   func() error
		want error
	}{
		{"the device fails", func() error { _, err := cq.PollEx(wcs[:]); return err }, syscall.EIO},
		{"a queue that is not extended", func() error { _, err := s.cq.PollEx(wcs[:]); return err }, syscall.EINVAL},
		{"a closed queue", func() error { _, err := closed.PollEx(wcs[:]); return err }, ErrClosed},
		{"a long period", func() error { return cq.Moderate(1, time.Second) }, syscall.EINVAL},
		{"a negative period", func() error { return cq.Moderate(1, -time.Second) }, syscall.EINVAL},
		{"moderation of a closed queue", func() error { return closed.Moderate(1, 0) }, ErrClosed},
		{"moderation", func() error { return cq.Moderate(16, 65*time.Millisecond) }, nil},
	} {
		if err := tc.do(); !errors.Is(err, tc.want) {
			t.Errorf("%s: %v, want %v", tc.name, err, tc.want)
		}
	}
}

// TestExtendedRDMA: completions of rxe have the fields that are asked for and no others, and what a
// device cannot do is an error at once.
func TestExtendedRDMA(t *testing.T) {
	onDevices(t, nil, func(t *testing.T, c *Context) {
		if kindOf(c.Info().Name) != "rxe" {
			if _, err := c.CreateCQEx(CQInitAttr{Entries: 1}); !errors.Is(err, syscall.EOPNOTSUPP) {
				t.Errorf("extended queues: %v", err)
			}
			return
		}
		pd := must[*PD](t)(c.AllocPD())
		p := &pair{c: c, pd: pd, a: newExtendedEnd(t, pd, QPTypeRC), b: newEnd(t, pd, nil)}
		bare := must[*CQ](t)(c.CreateCQEx(CQInitAttr{Entries: 8, Fields: WCWithByteLen, Flags: CQSingleThreaded}))
		p.b.qp = must[*QP](t)(pd.CreateQP(QPInitAttr{SendCQ: bare, RecvCQ: bare, Cap: QPCap{MaxRecvWR: 8, MaxRecvSGE: 1}}))
		connect(t, p.a.qp, p.b.qp)
		connect(t, p.b.qp, p.a.qp)
		p.b.recv(5, 0, 100)
		p.a.post(SendWR{ID: 6, Opcode: OpSendWithImm, Imm: 1, SGL: p.a.sge(0, 10)})
		p.a.done(6, WCSend)
		var wcs [2]WCEx
		for end := time.Now().Add(patience); ; {
			n, err := bare.PollEx(wcs[:])
			if err != nil || time.Now().After(end) {
				t.Fatal("no completion: ", err)
			}
			if n == 1 {
				break
			}
		}
		if wc := wcs[0]; wc.ID != 5 || wc.ByteLen != 10 || wc.Opcode != WCRecv || wc.Flags&WCWithImm == 0 || wc.QPNum != 0 || wc.ImmData() != 0 {
			t.Errorf("with the length alone: %+v", wc)
		}
		if _, err := c.CreateCQEx(CQInitAttr{Entries: 1, Fields: WCWithTMInfo}); !errors.Is(err, syscall.EOPNOTSUPP) && !errors.Is(err, syscall.EINVAL) {
			t.Errorf("tag matching: %v", err)
		}
		if err := bare.Moderate(1, 0); !errors.Is(err, syscall.EOPNOTSUPP) {
			t.Errorf("moderation: %v", err)
		}
		if _, err := pd.CreateQP(QPInitAttr{SendCQ: bare, RecvCQ: bare, Type: QPTypeUD, SendOps: SendOpsOf(OpRDMARead)}); err == nil {
			t.Error("datagrams read memory")
		}
	})
}
