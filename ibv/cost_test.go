//go:build linux && cgo

package ibv

import (
	"fmt"
	"net/netip"
	"syscall"
	"testing"

	"github.com/rpcrdma/rpcrdma/cgo"
	"github.com/rpcrdma/rpcrdma/cgo/cgotest"
)

// A counter counts the calls of the data path: each is one call into C.
type counter struct {
	*cgotest.Library
	calls int
}

func (c *counter) Progress(qp *cgo.QP, srq *cgo.SRQ, cq *cgo.CQ, ch *cgo.CompChannel, recvs []cgo.RecvWR, sends []cgo.SendWR, sges []cgo.SGE, wcs []cgo.WC, flags uint32, out *cgo.Outcome) {
	c.calls++
	c.Library.Progress(qp, srq, cq, ch, recvs, sends, sges, wcs, flags, out)
}

func (c *counter) PollEx(cq *cgo.CQ, fields uint64, wcs []cgo.WCEx) (int, syscall.Errno) {
	c.calls++
	return c.Library.PollEx(cq, fields, wcs)
}

// TestFakeCrossings: a list of requests, and all completions that there are, are one call into C each.
func TestFakeCrossings(t *testing.T) {
	lib := &counter{Library: cgotest.New(t)}
	lib.AddDevice("fake0", netip.MustParseAddr("192.0.2.1"))
	c := must[*Context](t)(open(lib, "fake0"))
	pd := must[*PD](t)(c.AllocPD())
	for _, extended := range []bool{false, true} {
		attr := QPInitAttr{Cap: QPCap{MaxSendWR: 64, MaxRecvWR: 64}}
		if extended {
			attr.SendOps = SendOpsOf(OpSend)
			attr.SendCQ = must[*CQ](t)(c.CreateCQEx(CQInitAttr{Entries: 64}))
		} else {
			attr.SendCQ = must[*CQ](t)(c.CreateCQ(64, nil, 0))
		}
		attr.RecvCQ = attr.SendCQ
		qp := must[*QP](t)(pd.CreateQP(attr))
		for _, k := range []int{1, 2, 64} {
			sends := make([]SendWR, k)
			for i := range sends {
				sends[i] = SendWR{Opcode: OpSend, Flags: SendSignaled}
			}
			lib.calls = 0
			if err := qp.PostSend(sends); err != nil {
				t.Fatal(err)
			}
			for _, send := range lib.QP(qp.Raw()).Sends() {
				send.Complete(cgotest.Success)
			}
			var n int
			var err error
			if extended {
				n, err = attr.SendCQ.PollEx(make([]WCEx, 64))
			} else {
				n, err = attr.SendCQ.Poll(make([]WC, 64))
			}
			if n != k || err != nil || lib.calls != 2 {
				t.Errorf("extended %t: %d requests have %d completions, %v, in %d calls", extended, k, n, err, lib.calls)
			}
		}
	}
}

// TestAllocsOfTypesRDMA: posting and polling allocate nothing, in any type of queue pairs.
func TestAllocsOfTypesRDMA(t *testing.T) {
	onDevices(t, []string{"rxe"}, func(t *testing.T, c *Context) {
		pd := must[*PD](t)(c.AllocPD())
		for _, typ := range []QPType{QPTypeRC, QPTypeUC, QPTypeUD} {
			for _, extended := range []bool{false, true} {
				t.Run(fmt.Sprintf("%v extended=%t", typ, extended), func(t *testing.T) {
					newEnd := func() *end { return newTypedEnd(t, pd, nil, typ) }
					if extended {
						newEnd = func() *end { return newExtendedEnd(t, pd, typ) }
					}
					p := &pair{c: c, pd: pd, a: newEnd(), b: newEnd()}
					wr := SendWR{ID: 1, Opcode: OpSendWithImm, Flags: SendSignaled, SGL: p.a.sge(0, 500)}
					if typ == QPTypeUD {
						wr.To = startDatagrams(t, p)
					} else {
						connect(t, p.a.qp, p.b.qp)
						connect(t, p.b.qp, p.a.qp)
					}
					sends, recvs := []SendWR{wr, wr}, []RecvWR{{ID: 2, SGL: p.b.sge(0, 1000)}, {ID: 2, SGL: p.b.sge(1000, 2000)}}
					var plain [8]WC
					var ex [8]WCEx
					poll := func(e *end) (n int, err error) {
						if extended {
							return e.cq.PollEx(ex[:])
						}
						return e.cq.Poll(plain[:])
					}
					round := func() {
						if err := p.b.qp.PostRecv(recvs); err != nil {
							t.Fatal(err)
						}
						if err := p.a.qp.PostSend(sends); err != nil {
							t.Fatal(err)
						}
						for _, e := range [2]*end{p.a, p.b} {
							for got := 0; got < 2; {
								n, err := poll(e)
								if err != nil {
									t.Fatal(err)
								}
								got += n
							}
						}
					}
					round()
					if n := testing.AllocsPerRun(50, round); n != 0 {
						t.Errorf("%v allocations for two messages", n)
					}
				})
			}
		}
	})
}

// startDatagrams starts both ends, and returns where b is.
func startDatagrams(t *testing.T, p *pair) *Destination {
	t.Helper()
	_, port, row, gid, err := new(PathAttr).source(p.c)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range []*end{p.a, p.b} {
		if err := e.qp.StartDatagrams(port, testQkey, 0); err != nil {
			t.Fatal(err)
		}
	}
	ah := must[*AH](t)(p.pd.CreateAH(AHAttr{IsGlobal: true, PortNum: port, GRH: GlobalRoute{DGID: gid, SGIDIndex: uint8(row), HopLimit: 64}}))
	return &Destination{AH: ah, QPNum: p.b.qp.Num(), Qkey: testQkey}
}

// TestBatchesRDMA: polling for more completions than there are returns each of them once, also after the
// queues have wrapped.
func TestBatchesRDMA(t *testing.T) {
	onQueues(t, func(t *testing.T, p *pair) {
		const list, rounds = 5, 300
		var wcs [8]WC
		all := func(e *end, first uint64) {
			for got := uint64(0); got < list; {
				n, err := e.poll(wcs[:])
				if err != nil {
					t.Fatal(err)
				}
				for i := range wcs[:n] {
					if err := wcs[i].Err(); err != nil || wcs[i].ID != first+got {
						t.Fatalf("completion of %d, %v; want %d", wcs[i].ID, err, first+got)
					}
					got++
				}
			}
		}
		for round := range uint64(rounds) {
			sends, recvs := make([]SendWR, list), make([]RecvWR, list)
			for i := range uint64(list) {
				id := round*list + i
				sends[i] = SendWR{ID: id, Opcode: OpSend, Flags: SendSignaled, SGL: p.a.sge(0, 10)}
				recvs[i] = RecvWR{ID: id, SGL: p.b.sge(0, 10)}
			}
			if err := p.b.qp.PostRecv(recvs); err != nil {
				t.Fatal(err)
			}
			if err := p.a.qp.PostSend(sends); err != nil {
				t.Fatal(err)
			}
			all(p.b, round*list)
			all(p.a, round*list)
		}
	})
}
