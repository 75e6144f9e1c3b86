//go:build linux && cgo

package selftest

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"github.com/rpcrdma/rpcrdma/ibv"
)

// identify adds the data that identifies the adapter.
func (s *session) identify() error {
	dev, err := ibv.Open(s.device)
	if err != nil {
		return err
	}
	defer dev.Close()
	attr, err := dev.Query()
	s.adapter.VendorID, s.adapter.VendorPartID = attr.VendorID, attr.VendorPartID
	return err
}

// pairKind is a way to create two queue pairs of the device.
type pairKind struct {
	name     string
	typ      ibv.QPType
	extended bool
	shared   bool // shared receive queue
}

// exchange is one operation from a to b.
type exchange struct {
	op   ibv.Opcode
	name string
	uc   bool // supported by unreliable connections
}

var exchanges = []exchange{ // immutable
	{ibv.OpSend, "Send", true}, {ibv.OpSendWithImm, "Send with immediate data", true},
	{ibv.OpRDMAWrite, "Write", true}, {ibv.OpRDMAWriteWithImm, "Write with immediate data", true},
	{ibv.OpRDMARead, "Read", false}, {ibv.OpAtomicFetchAdd, "fetch and add", false}, {ibv.OpAtomicCmpSwp, "compare and swap", false},
}

// verbsChecks returns checks of operations between two queue pairs of the device, without a connection manager.
func (s *session) verbsChecks() (list []check) {
	if s.device == "" {
		return nil
	}
	for _, k := range []pairKind{
		{"RC", ibv.QPTypeRC, false, false}, {"RC, extended", ibv.QPTypeRC, true, false}, {"RC, shared receives", ibv.QPTypeRC, false, true},
		{"UC", ibv.QPTypeUC, false, false},
	} {
		for _, e := range exchanges {
			if k.typ == ibv.QPTypeUC && !e.uc || k.shared && e.op != ibv.OpSend {
				continue
			}
			list = append(list, check{"verbs/" + k.name + "/" + e.name, func(t *trial) { s.exchange(t, k, e) }})
		}
	}
	return append(list, check{"verbs/memory windows", s.windows})
}

const messageBytes = 1000

// looped is two queue pairs of one device, connected to each other. They share the memory.
type looped struct {
	cq   *ibv.CQ
	pd   *ibv.PD
	mr   *ibv.MR
	a, b *ibv.QP
	mem  []byte // messageBytes for a, and from 4096 on for b
	srq  *ibv.SRQ
}

// closing closes an object at the end of the trial.
func closing[T interface{ Close() error }](t *trial, o T, err error) T {
	t.must(err)
	t.Cleanup(func() {
		if err := o.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	return o
}

// lacks skips a check if the device does not support it.
func lacks(t *trial, err error) {
	if errors.Is(err, errors.ErrUnsupported) {
		t.Skipf("the device has it not: %v", err)
	}
}

func (s *session) loop(t *trial, k pairKind) *looped {
	if s.adapter.Transport == "iwarp" {
		t.Skip("queue pairs of iWARP are connected by its connection manager")
	}
	dev, err := ibv.Open(s.device)
	closing(t, dev, err)
	attr, err := dev.Query()
	t.must(err)
	access := ibv.AccessLocalWrite | ibv.AccessRemoteRead | ibv.AccessRemoteWrite
	if attr.AtomicCap != ibv.AtomicNone {
		access |= ibv.AccessRemoteAtomic
	}
	l := &looped{mem: make([]byte, 8192)}
	pd, err := dev.AllocPD()
	l.pd = closing(t, pd, err)
	cq, err := dev.CreateCQ(16, nil, 0)
	l.cq = closing(t, cq, err)
	mr, err := l.pd.RegMR(l.mem, access)
	l.mr = closing(t, mr, err)
	init := ibv.QPInitAttr{SendCQ: l.cq, RecvCQ: l.cq, Type: k.typ, Cap: ibv.QPCap{MaxSendWR: 4, MaxRecvWR: 4, MaxSendSGE: 1, MaxRecvSGE: 1}}
	if k.extended {
		for _, e := range exchanges {
			init.SendOps |= ibv.SendOpsOf(e.op)
		}
	}
	if k.shared {
		srq, err := l.pd.CreateSRQ(ibv.SRQAttr{MaxWR: 4, MaxSGE: 1})
		lacks(t, err)
		l.srq = closing(t, srq, err)
		init.SRQ = l.srq
	}
	for _, qp := range []**ibv.QP{&l.a, &l.b} {
		made, err := l.pd.CreateQP(init)
		lacks(t, err)
		*qp = closing(t, made, err)
	}
	path := ibv.PathAttr{Access: access &^ ibv.AccessLocalWrite}
	if k.typ == ibv.QPTypeUC {
		path.Access = ibv.AccessRemoteWrite
	}
	one, err := l.a.Addr(path, 1)
	t.must(err)
	two, err := l.b.Addr(path, 2)
	t.must(err)
	t.must(l.b.ConnectTo(two, one, path))
	t.must(l.a.ConnectTo(one, two, path))
	return l
}

// poll waits for n completions, all of which must succeed.
func (l *looped) poll(t *trial, n int) (got []ibv.WC) {
	deadline := time.Now().Add(5 * time.Second)
	for len(got) < n {
		var wcs [4]ibv.WC
		k, err := l.cq.Poll(wcs[:])
		t.must(err)
		for i := range wcs[:k] {
			t.must(wcs[i].Err())
			got = append(got, wcs[i])
		}
		if k == 0 && time.Now().After(deadline) {
			t.Fatalf("%d of %d completions in 5 seconds", len(got), n)
		}
	}
	return got
}

func (s *session) exchange(t *trial, k pairKind, e exchange) {
	atomic := e.op == ibv.OpAtomicFetchAdd || e.op == ibv.OpAtomicCmpSwp
	if atomic && s.adapter.Limits.Atomics == "none" {
		t.Skip("the device says that it has no atomics")
	}
	l := s.loop(t, k)
	here, there := l.mem[:messageBytes], l.mem[4096:4096+messageBytes]
	for i := range here {
		here[i], there[i] = byte(i*3), byte(i*7+1)
	}
	before, wanted := bytes.Clone(there), bytes.Clone(here)
	const imm = 0x01020304
	wr := ibv.SendWR{ID: 1, Opcode: e.op, Flags: ibv.SendSignaled, SGL: []ibv.SGE{l.mr.SGE(0, messageBytes)}, RKey: l.mr.RKey(), RemoteAddr: l.mr.Addr() + 4096, Imm: imm}
	n := 1
	switch e.op {
	case ibv.OpSend, ibv.OpSendWithImm, ibv.OpRDMAWriteWithImm:
		n = 2
		recvs := []ibv.RecvWR{{ID: 2, SGL: []ibv.SGE{l.mr.SGE(4096, messageBytes)}}}
		if l.srq != nil {
			t.must(l.srq.PostRecv(recvs))
		} else {
			t.must(l.b.PostRecv(recvs))
		}
	case ibv.OpAtomicFetchAdd, ibv.OpAtomicCmpSwp:
		wr.SGL = []ibv.SGE{l.mr.SGE(0, 8)}
		old := binary.NativeEndian.Uint64(there)
		wr.CompareAdd, wr.Swap = 5, 99
		sum := old + 5
		if e.op == ibv.OpAtomicCmpSwp {
			wr.CompareAdd, sum = old, 99
		}
		binary.NativeEndian.PutUint64(wanted, sum)
		copy(wanted[8:], there[8:])
	}
	start := time.Now()
	t.must(l.a.PostSend([]ibv.SendWR{wr}))
	got := l.poll(t, n)
	t.figures["took_us"] = round(float64(time.Since(start).Nanoseconds()) / 1000)
	for i := range got {
		if got[i].ID == 2 && e.op != ibv.OpSend && got[i].ImmData() != imm {
			t.Errorf("immediate data %#x, want %#x", got[i].ImmData(), imm)
		}
	}
	switch {
	case e.op == ibv.OpRDMARead:
		if !bytes.Equal(here, before) {
			t.Error("the data read differs from the memory")
		}
	case atomic && !bytes.Equal(here[:8], before[:8]):
		t.Error("the old value is wrong")
		fallthrough
	case !bytes.Equal(there, wanted):
		t.Error("the wrong bytes have arrived")
	}
}

// windows binds a memory window, writes through it, and tries what it must not permit: writing outside of it, and after
// its invalidation.
func (s *session) windows(t *trial) {
	if s.adapter.Limits.MaxMW == 0 {
		t.Skip("the device says that it has no memory windows")
	}
	for _, attack := range []string{"", "outside of the window", "after its invalidation"} {
		inner := &trial{name: t.name, ctx: t.ctx, figures: t.figures}
		inner.guard(func() { s.window(inner, attack) })
		for i := len(inner.cleanups) - 1; i >= 0; i-- {
			inner.guard(inner.cleanups[i])
		}
		t.said, t.failed, t.skipped = append(t.said, inner.said...), t.failed || inner.failed, t.skipped || inner.skipped
	}
}

func (s *session) window(t *trial, attack string) {
	l := s.loop(t, pairKind{typ: ibv.QPTypeRC})
	mr, err := l.pd.RegMR(l.mem, ibv.AccessLocalWrite|ibv.AccessMWBind)
	closing(t, mr, err)
	mw, err := l.pd.AllocMW(ibv.MWType2)
	lacks(t, err)
	closing(t, mw, err)
	key := mw.NextRKey()
	t.must(l.b.PostSend([]ibv.SendWR{{
		ID: 1, Opcode: ibv.OpBindMW, Flags: ibv.SendSignaled, RKey: key,
		Bind: &ibv.MWBind{MW: mw, MR: mr, Buf: l.mem[4096 : 4096+messageBytes], Access: ibv.AccessRemoteWrite},
	}}))
	l.poll(t, 1)
	wr := ibv.SendWR{ID: 2, Opcode: ibv.OpRDMAWrite, Flags: ibv.SendSignaled, SGL: []ibv.SGE{l.mr.SGE(0, messageBytes)}, RKey: key, RemoteAddr: mr.Addr() + 4096}
	for i := range l.mem[:messageBytes] {
		l.mem[i] = byte(i*5 + 1)
	}
	switch attack {
	case "":
		t.must(l.a.PostSend([]ibv.SendWR{wr}))
		l.poll(t, 1)
		if !bytes.Equal(l.mem[:messageBytes], l.mem[4096:4096+messageBytes]) {
			t.Error("a Write through a window has not arrived")
		}
		return
	case "outside of the window":
		wr.RemoteAddr += messageBytes
	default:
		t.must(l.b.PostSend([]ibv.SendWR{{ID: 3, Opcode: ibv.OpLocalInv, Flags: ibv.SendSignaled, RKey: key}}))
		l.poll(t, 1)
	}
	t.must(l.a.PostSend([]ibv.SendWR{wr}))
	var wcs [1]ibv.WC
	for deadline := time.Now().Add(5 * time.Second); time.Now().Before(deadline); {
		n, err := l.cq.Poll(wcs[:])
		t.must(err)
		if n == 0 {
			continue
		}
		if wcs[0].Status == ibv.WCSuccess {
			t.Errorf("a Write %s is executed: windows of this device do not protect memory", attack)
		}
		return
	}
	t.Error(fmt.Sprintf("a Write %s did not complete within 5 seconds", attack))
}
