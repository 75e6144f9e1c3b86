//go:build linux && cgo

package interop

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/rpcrdma/rpcrdma/ibv"
	"github.com/rpcrdma/rpcrdma/internal/testing/rdmatest"
)

// A couple is two queue pairs of a device, which talk to each other.
type couple struct{ a, b *end }

// A form is how the queues of a couple are made.
type form struct {
	typ     ibv.QPType
	ops     ibv.SendOps // of extended queue pairs
	cqEx    bool
	events  bool
	access  ibv.Access // of the memory; zero: everything
	qpRight ibv.Access // of the queue pairs; zero: everything remote
}

const everything = ibv.AccessLocalWrite | ibv.AccessRemoteWrite | ibv.AccessRemoteRead | ibv.AccessRemoteAtomic | ibv.AccessMWBind

const coupleSize = 1000

func newCouple(t *testing.T, dev *ibv.Context, f form) *couple {
	t.Helper()
	pd := must(dev.AllocPD())(t)
	closing(t, pd, nil)
	if f.access == 0 {
		f.access = everything
	}
	if f.qpRight == 0 {
		f.qpRight = everything &^ (ibv.AccessLocalWrite | ibv.AccessMWBind)
	}
	c := &couple{a: f.end(t, dev, pd), b: f.end(t, dev, pd)}
	path := ibv.PathAttr{Access: f.qpRight, Depth: 8}
	ends := []*end{c.a, c.b}
	var addrs []ibv.QPAddr
	for _, e := range ends {
		addrs = append(addrs, must(e.qps[0].Addr(path, rand.Uint32()))(t))
	}
	for i, e := range ends {
		var err error
		if f.typ == ibv.QPTypeUD {
			err = e.qps[0].StartDatagrams(0, qkey, addrs[i].PSN)
			ah := must(pd.CreateAH(e.ahTo(addrs[1-i])))(t)
			closing(t, ah, nil)
			e.peer = &ibv.Destination{AH: ah, QPNum: addrs[1-i].QPNum, Qkey: qkey}
		} else {
			err = e.qps[0].ConnectTo(addrs[i], addrs[1-i], path)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	return c
}

func (f form) end(t *testing.T, dev *ibv.Context, pd *ibv.PD) *end {
	t.Helper()
	e := &end{t: t, dev: dev, pd: pd, half: coupleSize + ibv.GRHSize}
	var err error
	if f.events {
		e.ch, err = dev.CreateCompChannel()
		closing(t, e.ch, err)
	}
	if f.cqEx {
		e.cq, err = dev.CreateCQEx(ibv.CQInitAttr{Entries: 64, Channel: e.ch, Fields: ibv.WCStandardFields})
	} else {
		e.cq, err = dev.CreateCQ(64, e.ch, 0)
	}
	closing(t, e.cq, err)
	e.cqEx = f.cqEx
	e.mr, err = pd.RegMR(make([]byte, 2*e.half), f.access)
	closing(t, e.mr, err)
	attr := e.attr(f.typ)
	attr.SendOps = f.ops
	e.add(pd.CreateQP(attr))
	return e
}

// exchange sends a message there and one back, a few times.
func (c *couple) exchange(op ibv.Opcode) {
	for round := range uint32(10) {
		for _, way := range [][2]*end{{c.a, c.b}, {c.b, c.a}} {
			from, to := way[0], way[1]
			size := int(round) * 111
			room := size + to.header()
			to.receive(to.qps[0], 2, room)
			for i := range from.sent(size) {
				from.sent(size)[i] = byte(rand.Uint32())
			}
			wr := from.sendWR(1, size)
			wr.Opcode, wr.Imm, wr.To = op, round, from.peer
			from.post(from.qps[0], wr)
			from.done(1, 1)
			wc := to.done(2, 1)
			if op == ibv.OpSendWithImm && wc.ImmData() != round || int(wc.ByteLen) != room || !bytes.Equal(to.received(size), from.sent(size)) {
				from.t.Fatalf("round %d: %+v, or other bytes", round, wc)
			}
		}
	}
}

// one executes a request of a. The memory at its end is the target.
func (c *couple) one(wr ibv.SendWR) {
	wr.ID, wr.RKey = 1, c.b.mr.RKey()
	wr.RemoteAddr += c.b.mr.Addr()
	if wr.SGL == nil {
		wr.SGL = []ibv.SGE{c.a.mr.SGE(0, coupleSize)}
	}
	wr.Flags = ibv.SendSignaled
	c.a.post(c.a.qps[0], wr)
}

// fails executes a request that the device or the peer refuses.
func (c *couple) fails(wr ibv.SendWR, want ...ibv.WCStatus) {
	c.a.t.Helper()
	c.one(wr)
	if wc := c.a.take(); !slices.Contains(want, wc.Status) {
		c.a.t.Errorf("the status is %v, want one of %v", wc.Status, want)
	}
}

// word is the 8 bytes that atomics are about, in host byte order: of b they are the target.
func (e *end) word() []byte { return e.mr.Bytes()[:8] }

func atomicWR(op ibv.Opcode, c *couple, compareAdd, swap uint64) ibv.SendWR {
	return ibv.SendWR{Opcode: op, CompareAdd: compareAdd, Swap: swap, SGL: []ibv.SGE{c.a.mr.SGE(0, 8)}}
}

func (c *couple) atomics(op ibv.Opcode) {
	const before, compare, swap = 7, 7, 100
	binary.NativeEndian.PutUint64(c.b.word(), before)
	c.one(atomicWR(op, c, compare, swap))
	c.a.done(1, 1)
	after := uint64(swap)
	if op == ibv.OpAtomicFetchAdd {
		after = before + compare
	}
	if got, now := binary.NativeEndian.Uint64(c.a.word()), binary.NativeEndian.Uint64(c.b.word()); got != before || now != after {
		c.a.t.Errorf("it has found %d and left %d", got, now)
	}
}

var (
	rc       = form{typ: ibv.QPTypeRC}
	rcEx     = form{typ: ibv.QPTypeRC, ops: ibv.SendOpsOf(ibv.OpSend, ibv.OpSendWithImm, ibv.OpRDMAWrite, ibv.OpRDMAWriteWithImm, ibv.OpRDMARead, ibv.OpAtomicCmpSwp, ibv.OpAtomicFetchAdd, ibv.OpBindMW, ibv.OpLocalInv, ibv.OpSendWithInv)}
	udEx     = form{typ: ibv.QPTypeUD, ops: ibv.SendOpsOf(ibv.OpSend, ibv.OpSendWithImm)}
	accesses = []ibv.WCStatus{ibv.WCRemAccessErr, ibv.WCRemInvReqErr}
)

// A scenario is a test of rdma-core's own, of its Python binding, by the same name: file and test.
type scenario struct {
	name string
	run  func(t *testing.T, dev *ibv.Context)
}

func on(f form, run func(c *couple)) func(*testing.T, *ibv.Context) {
	return func(t *testing.T, dev *ibv.Context) { run(newCouple(t, dev, f)) }
}

func refuses(f func(dev *ibv.Context) error, want ...error) func(*testing.T, *ibv.Context) {
	return func(t *testing.T, dev *ibv.Context) {
		err := f(dev)
		if err == nil || len(want) > 0 && !slices.ContainsFunc(want, func(w error) bool { return errors.Is(err, w) }) {
			t.Errorf("it is %v", err)
		}
	}
}

// scenarios are those that pass on rxe, of rdma-core 44 and Linux 6.1.
func scenarios() []scenario { return slices.Concat(ofObjects(), ofMemory(), ofTypes()) }

func ofObjects() []scenario {
	return []scenario{
		{"test_addr/test_create_ah", addressHandle},
		{"test_addr/test_create_ah_roce", addressHandle},
		{"test_addr/test_destroy_ah", addressHandle},

		{"test_atomic/test_atomic_cmp_and_swap", on(rc, func(c *couple) { c.atomics(ibv.OpAtomicCmpSwp) })},
		{"test_atomic/test_atomic_fetch_and_add", on(rc, func(c *couple) { c.atomics(ibv.OpAtomicFetchAdd) })},
		{"test_atomic/test_atomic_invalid_lkey", on(rc, func(c *couple) {
			wr := atomicWR(ibv.OpAtomicFetchAdd, c, 1, 0)
			wr.SGL[0].LKey += 10
			c.fails(wr, ibv.WCLocProtErr)
		})},
		{"test_atomic/test_atomic_invalid_rkey", on(rc, func(c *couple) {
			wr := atomicWR(ibv.OpAtomicFetchAdd, c, 1, 0)
			wr.ID, wr.Flags, wr.RemoteAddr, wr.RKey = 1, ibv.SendSignaled, c.b.mr.Addr(), c.b.mr.RKey()+10
			c.a.post(c.a.qps[0], wr)
			if wc := c.a.take(); !slices.Contains(accesses, wc.Status) {
				c.a.t.Errorf("%v", wc.Status)
			}
		})},
		{"test_atomic/test_atomic_invalid_mr_access", on(form{typ: ibv.QPTypeRC, access: ibv.AccessLocalWrite | ibv.AccessRemoteWrite}, func(c *couple) {
			c.fails(atomicWR(ibv.OpAtomicFetchAdd, c, 1, 0), accesses...)
		})},
		{"test_atomic/test_atomic_invalid_qp_access", on(form{typ: ibv.QPTypeRC, qpRight: ibv.AccessRemoteWrite}, func(c *couple) {
			c.fails(atomicWR(ibv.OpAtomicFetchAdd, c, 1, 0), accesses...)
		})},
		{"test_atomic/test_atomic_non_aligned_addr", on(rc, func(c *couple) {
			wr := atomicWR(ibv.OpAtomicFetchAdd, c, 1, 0)
			wr.RemoteAddr, wr.RKey = c.b.mr.Addr()+1, c.b.mr.RKey()
			if err := c.a.qps[0].PostSend([]ibv.SendWR{wr}); !errors.Is(err, syscall.EINVAL) {
				c.a.t.Errorf("it is %v", err)
			}
		})},

		{"test_cq/test_create_cq", func(t *testing.T, dev *ibv.Context) {
			for _, n := range []int{1, 64, must(dev.Query())(t).MaxCQE} {
				closing(t, must(dev.CreateCQ(n, nil, dev.NumCompVectors()-1))(t), nil)
			}
		}},
		{"test_cq/test_create_cq_bad_flow", refuses(func(dev *ibv.Context) error { _, err := dev.CreateCQ(math.MaxInt32, nil, 0); return err }, syscall.EINVAL, syscall.ENOMEM)},
		{"test_cq/test_create_cq_with_comp_channel", on(form{typ: ibv.QPTypeRC, events: true}, func(*couple) {})},
		{"test_cq/test_resize_cq", on(rc, func(c *couple) {
			if err := c.a.cq.Resize(500); err != nil || c.a.cq.Size() < 500 {
				c.a.t.Errorf("%d, %v", c.a.cq.Size(), err)
			}
			c.exchange(ibv.OpSend)
		})},
		{"test_cq_events/test_cq_events_rc", on(form{typ: ibv.QPTypeRC, events: true}, func(c *couple) { c.exchange(ibv.OpSend) })},
		{"test_cq_events/test_cq_events_ud", on(form{typ: ibv.QPTypeUD, events: true}, func(c *couple) { c.exchange(ibv.OpSend) })},
		{"test_cqex/test_create_cq_ex", on(form{typ: ibv.QPTypeRC, cqEx: true}, func(*couple) {})},
		{"test_cqex/test_create_cq_ex_bad_flow", refuses(func(dev *ibv.Context) error {
			_, err := dev.CreateCQEx(ibv.CQInitAttr{Entries: math.MaxInt32})
			return err
		})},
		{"test_cqex/test_rc_traffic_cq_ex", on(form{typ: ibv.QPTypeRC, cqEx: true}, func(c *couple) { c.exchange(ibv.OpSend) })},
		{"test_cqex/test_ud_traffic_cq_ex", on(form{typ: ibv.QPTypeUD, cqEx: true}, func(c *couple) { c.exchange(ibv.OpSend) })},

		{"test_device/test_dev_list", func(t *testing.T, dev *ibv.Context) {
			if infos := must(ibv.Devices())(t); !slices.Contains(infos, dev.Info()) {
				t.Errorf("%+v", infos)
			}
		}},
		{"test_device/test_open_dev", func(t *testing.T, dev *ibv.Context) {
			again := must(ibv.Open(dev.Info().Name))(t)
			closing(t, again, nil)
		}},
		{"test_device/test_phys_port_cnt_ex", func(t *testing.T, dev *ibv.Context) {
			a, x := must(dev.Query())(t), must(dev.QueryEx())(t)
			if x.PhysPorts != 0 && x.PhysPorts != a.PhysPortCount {
				t.Errorf("%d ports, and %d", a.PhysPortCount, x.PhysPorts)
			}
		}},
		{"test_device/test_query_device", func(t *testing.T, dev *ibv.Context) {
			if a := must(dev.Query())(t); a.MaxQP == 0 || a.MaxMRSize == 0 || a.PhysPortCount != 1 {
				t.Errorf("%+v", a)
			}
		}},
		{"test_device/test_query_device_ex", func(t *testing.T, dev *ibv.Context) { must(dev.QueryEx())(t) }},
		{"test_device/test_query_gid", gids},
		{"test_device/test_query_gid_table", gids},
		{"test_device/test_query_gid_ex", gids},
		{"test_device/test_query_gid_ex_bad_flow", refuses(func(dev *ibv.Context) error { _, err := dev.GID(1, 100_000); return err })},
		{"test_device/test_query_gid_table_bad_flow", refuses(func(dev *ibv.Context) error { _, err := dev.GID(99, 0); return err })},
		{"test_device/test_query_pkey", func(t *testing.T, dev *ibv.Context) {
			if key := must(dev.QueryPkey(1, 0))(t); key != 0xffff || must(dev.PkeyIndex(1, key))(t) != 0 {
				t.Errorf("the key is %#x", key)
			}
		}},
		{"test_device/test_query_port", func(t *testing.T, dev *ibv.Context) {
			if p := must(dev.QueryPort(1))(t); p.State != ibv.PortActive || p.ActiveMTU == 0 {
				t.Errorf("%+v", p)
			}
		}},
		{"test_device/test_query_port_bad_flow", refuses(func(dev *ibv.Context) error { _, err := dev.QueryPort(99); return err })},
		{"test_fork/test_is_fork_initialized", func(t *testing.T, _ *ibv.Context) {
			if s := ibv.IsForkInitialized(); s < ibv.ForkDisabled || s > ibv.ForkUnneeded {
				t.Errorf("%v", s)
			}
		}},
	}
}

func ofMemory() []scenario {
	return []scenario{
		{"test_mr/test_mw_type1", on(rc, func(c *couple) { c.window(ibv.MWType1, nil) })},
		{"test_mr/test_invalidate_mw_type1", on(rc, func(c *couple) {
			c.window(ibv.MWType1, func(mw *ibv.MW) { c.bind(mw, 0) })
		})},
		{"test_mr/test_mw_type2", on(rc, func(c *couple) { c.window(ibv.MWType2, nil) })},
		{"test_mr/test_mw_type2_invalidate_dealloc", on(rc, func(c *couple) {
			c.window(ibv.MWType2, func(mw *ibv.MW) {
				if err := mw.Close(); err != nil {
					c.b.t.Error(err)
				}
			})
		})},
		{"test_mr/test_mw_type2_invalidate_local", on(rc, func(c *couple) {
			c.window(ibv.MWType2, func(mw *ibv.MW) {
				c.b.post(c.b.qps[0], ibv.SendWR{ID: 5, Opcode: ibv.OpLocalInv, RKey: mw.RKey(), Flags: ibv.SendSignaled})
				c.b.done(5, 1)
			})
		})},
		{"test_mr/test_mw_type2_invalidate_remote", on(rc, func(c *couple) {
			c.window(ibv.MWType2, func(mw *ibv.MW) {
				c.b.receive(c.b.qps[0], 6, 100)
				c.a.post(c.a.qps[0], ibv.SendWR{ID: 7, Opcode: ibv.OpSendWithInv, RKey: mw.RKey(), Flags: ibv.SendSignaled})
				c.a.done(7, 1)
				if wc := c.b.done(6, 1); wc.InvalidatedRKey() != mw.RKey() {
					c.b.t.Errorf("%+v", wc)
				}
			})
		})},
		{"test_mr/test_reg_mr_bad_flags", on(rc, func(c *couple) {
			for _, access := range []ibv.Access{ibv.AccessRemoteWrite, ibv.AccessRemoteAtomic} {
				if mr, err := c.a.pd.RegMR(make([]byte, 100), access); err == nil {
					closing(c.a.t, mr, nil)
					c.a.t.Errorf("%v without local writes is granted", access)
				}
			}
		})},
		{"test_mr/test_reg_mw_wrong_type", on(rc, func(c *couple) {
			if _, err := c.a.pd.AllocMW(3); err == nil {
				c.a.t.Error("a window of type 3 is allocated")
			}
		})},

		{"test_pd/test_alloc_pd", domains(1)},
		{"test_pd/test_dealloc_pd", domains(1)},
		{"test_pd/test_destroy_pd_twice", domains(1)},
		{"test_pd/test_multiple_pd_creation", domains(50)},

		{"test_qp/test_modify_ud_qp", on(form{typ: ibv.QPTypeUD}, func(c *couple) {
			qp := c.a.qps[0]
			if err := qp.Modify(ibv.QPAttr{Qkey: 7}, ibv.AttrQkey); err != nil || must(qp.Query(ibv.AttrQkey))(c.a.t).Qkey != 7 {
				c.a.t.Errorf("the key, %v", err)
			}
		})},
		{"test_qp/test_query_data_in_order", on(rc, func(c *couple) { must(c.a.qps[0].DataInOrder(ibv.OpRDMAWrite))(c.a.t) })},

		{"test_qpex/test_qp_ex_rc_send", on(rcEx, func(c *couple) { c.exchange(ibv.OpSend) })},
		{"test_qpex/test_qp_ex_rc_send_imm", on(rcEx, func(c *couple) { c.exchange(ibv.OpSendWithImm) })},
		{"test_qpex/test_qp_ex_ud_send", on(udEx, func(c *couple) { c.exchange(ibv.OpSend) })},
		{"test_qpex/test_qp_ex_ud_send_imm", on(udEx, func(c *couple) { c.exchange(ibv.OpSendWithImm) })},
		{"test_qpex/test_qp_ex_ud_zero_size", on(udEx, func(c *couple) { c.exchange(ibv.OpSend) })}, // the first round has no bytes
		{"test_qpex/test_qp_ex_rc_atomic_cmp_swp", on(rcEx, func(c *couple) { c.atomics(ibv.OpAtomicCmpSwp) })},
		{"test_qpex/test_qp_ex_rc_atomic_fetch_add", on(rcEx, func(c *couple) { c.atomics(ibv.OpAtomicFetchAdd) })},
		{"test_qpex/test_qp_ex_rc_bind_mw", on(rcEx, func(c *couple) { c.window(ibv.MWType2, nil) })},
		{"test_qpex/test_qp_ex_rc_rdma_write", on(rcEx, func(c *couple) { c.moves(ibv.OpRDMAWrite, coupleSize) })},
		{"test_qpex/test_qp_ex_rc_rdma_write_imm", on(rcEx, func(c *couple) { c.moves(ibv.OpRDMAWriteWithImm, coupleSize) })},
		{"test_qpex/test_qp_ex_rc_rdma_write_zero_length", on(rcEx, func(c *couple) { c.moves(ibv.OpRDMAWrite, 0) })},
		{"test_qpex/test_qp_ex_rc_rdma_read", on(rcEx, func(c *couple) { c.moves(ibv.OpRDMARead, coupleSize) })},
		{"test_qpex/test_qp_ex_rc_rdma_read_zero_size", on(rcEx, func(c *couple) { c.moves(ibv.OpRDMARead, 0) })},
		{"test_qpex/test_post_receive_qp_state_bad_flow", unconnected(func(e *end) error { return e.qps[0].PostRecv([]ibv.RecvWR{{}}) })},
		{"test_qpex/test_post_send_qp_state_bad_flow", unconnected(func(e *end) error { return e.qps[0].PostSend([]ibv.SendWR{e.sendWR(1, 1)}) })},
		{"test_qpex/test_full_rq_bad_flow", on(rc, func(c *couple) {
			qp := c.a.qps[0]
			var pe *ibv.PostError
			if err := qp.PostRecv(make([]ibv.RecvWR, 1000)); !errors.As(err, &pe) || pe.Index < 64 {
				c.a.t.Errorf("1000 receives: %v", err)
			}
		})},
		{"test_qpex/test_rq_with_larger_sgl_bad_flow", on(rc, func(c *couple) {
			wr := ibv.RecvWR{SGL: slices.Repeat([]ibv.SGE{c.a.mr.SGE(0, 1)}, 100)}
			if err := c.a.qps[0].PostRecv([]ibv.RecvWR{wr}); err == nil {
				c.a.t.Error("a receive of 100 buffers is posted")
			}
		})},

		{"test_relaxed_ordering/test_ro_rc_traffic", on(form{typ: ibv.QPTypeRC, access: everything | ibv.AccessRelaxedOrdering}, func(c *couple) { c.exchange(ibv.OpSend) })},
		{"test_relaxed_ordering/test_ro_ud_traffic", on(form{typ: ibv.QPTypeUD, access: everything | ibv.AccessRelaxedOrdering}, func(c *couple) { c.exchange(ibv.OpSend) })},
	}
}

// ofTypes are the same for each type of queue pairs, or each limit.
func ofTypes() (list []scenario) {
	for typ, name := range map[ibv.QPType]string{ibv.QPTypeRC: "rc", ibv.QPTypeUC: "uc", ibv.QPTypeUD: "ud"} {
		f := form{typ: typ}
		ex := form{typ: typ, ops: ibv.SendOpsOf(ibv.OpSend)}
		list = append(list,
			scenario{"test_qp/test_create_" + name + "_qp_no_attr", unconnected(func(*end) error { return syscall.EINVAL }, f)},
			scenario{"test_qp/test_create_" + name + "_qp_with_attr", on(f, func(*couple) {})},
			scenario{"test_qp/test_create_" + name + "_qp_ex_no_attr", unconnected(func(*end) error { return syscall.EINVAL }, ex)},
			scenario{"test_qp/test_create_" + name + "_qp_ex_with_attr", on(ex, func(*couple) {})},
			scenario{"test_qp/test_query_" + name + "_qp", on(f, func(c *couple) {
				if a := must(c.a.qps[0].Query(ibv.AttrState | ibv.AttrCap))(c.a.t); a.State != ibv.QPSRTS || a.Cap.MaxSendWR < 64 {
					c.a.t.Errorf("%+v", a)
				}
			})})
	}
	for _, limit := range []string{"send_wr", "recv_wr", "send_sge", "recv_sge"} {
		list = append(list, scenario{"test_qp/test_create_raw_qp_ex_with_illegal_caps_max_" + limit, func(t *testing.T, dev *ibv.Context) {
			e := newEnd(t, dev, 100)
			attr := e.attr(ibv.QPTypeRawPacket)
			const much = 1 << 30
			switch limit {
			case "send_wr":
				attr.Cap.MaxSendWR = much
			case "recv_wr":
				attr.Cap.MaxRecvWR = much
			case "send_sge":
				attr.Cap.MaxSendSGE = much
			default:
				attr.Cap.MaxRecvSGE = much
			}
			if _, err := e.pd.CreateQP(attr); err == nil {
				t.Error("it is created")
			}
		}})
	}
	return list
}

// moves is a Write or a Read of size bytes.
func (c *couple) moves(op ibv.Opcode, size uint32) {
	from, to := c.a, c.b
	if op == ibv.OpRDMARead {
		from, to = c.b, c.a
	}
	for i := range from.sent(int(size)) {
		from.sent(int(size))[i] = byte(rand.Uint32())
	}
	c.b.receive(c.b.qps[0], 2, 1)
	c.one(ibv.SendWR{Opcode: op, Imm: 9, SGL: []ibv.SGE{c.a.mr.SGE(0, size)}})
	c.a.done(1, 1)
	if op == ibv.OpRDMAWriteWithImm {
		if wc := c.b.done(2, 1); wc.ImmData() != 9 || wc.ByteLen != size {
			c.b.t.Errorf("%+v", wc)
		}
	}
	if !bytes.Equal(to.sent(int(size)), from.sent(int(size))) {
		c.a.t.Error("other bytes have arrived")
	}
}

// bind binds a window to b's memory, or to nothing.
func (c *couple) bind(mw *ibv.MW, length uint64) {
	b := ibv.MWBind{MW: mw, MR: c.b.mr, Addr: c.b.mr.Addr(), Length: length, Access: ibv.AccessRemoteWrite}
	if mw.Type() == ibv.MWType1 {
		if err := c.b.qps[0].BindMW1(4, ibv.SendSignaled, b); err != nil {
			c.b.t.Fatal(err)
		}
	} else {
		c.b.post(c.b.qps[0], ibv.SendWR{ID: 4, Opcode: ibv.OpBindMW, Flags: ibv.SendSignaled, Bind: &b})
	}
	c.b.done(4, 1)
}

// window writes through a window, which fails once it has been invalidated.
func (c *couple) window(typ ibv.MWType, invalidate func(*ibv.MW)) {
	mw := must(c.b.pd.AllocMW(typ))(c.b.t)
	closing(c.b.t, mw, nil)
	c.bind(mw, coupleSize)
	write := ibv.SendWR{ID: 1, Opcode: ibv.OpRDMAWrite, Flags: ibv.SendSignaled, RemoteAddr: c.b.mr.Addr(), RKey: mw.RKey(), SGL: []ibv.SGE{c.a.mr.SGE(0, 10)}}
	c.a.post(c.a.qps[0], write)
	c.a.done(1, 1)
	if invalidate == nil {
		return
	}
	invalidate(mw)
	c.a.post(c.a.qps[0], write)
	if wc := c.a.take(); !slices.Contains(accesses, wc.Status) {
		c.a.t.Errorf("through an invalidated window: %v", wc.Status)
	}
}

func addressHandle(t *testing.T, dev *ibv.Context) {
	e := newEnd(t, dev, 1)
	attr := e.ahTo(ibv.QPAddr{})
	attr.GRH.DGID = must(dev.GID(attr.PortNum, int(attr.GRH.SGIDIndex)))(t).GID
	ah := must(e.pd.CreateAH(attr))(t)
	if err := errors.Join(ah.Close(), ah.Close()); err != nil {
		t.Error(err)
	}
}

// gids: each row of the table is the one that a query of it returns.
func gids(t *testing.T, dev *ibv.Context) {
	table := must(dev.GIDTable())(t)
	for _, row := range table {
		if got := must(dev.GID(row.Port, row.Index))(t); got.GID != row.GID {
			t.Errorf("%+v, and %+v", row, got)
		}
	}
	if len(table) == 0 {
		t.Error("the table is empty")
	}
}

func domains(n int) func(*testing.T, *ibv.Context) {
	return func(t *testing.T, dev *ibv.Context) {
		for range n {
			pd := must(dev.AllocPD())(t)
			closing(t, pd, nil)
			closing(t, pd, nil) // which is harmless
		}
	}
}

// unconnected wants an error of a queue pair that has only been created.
func unconnected(f func(e *end) error, forms ...form) func(*testing.T, *ibv.Context) {
	return func(t *testing.T, dev *ibv.Context) {
		how := rc
		if len(forms) > 0 {
			how = forms[0]
		}
		pd := must(dev.AllocPD())(t)
		closing(t, pd, nil)
		e := how.end(t, dev, pd)
		if state := must(e.qps[0].State())(t); state != ibv.QPSReset {
			t.Errorf("the state is %v", state)
		}
		if err := f(e); !errors.Is(err, syscall.EINVAL) {
			t.Errorf("it is %v", err)
		}
	}
}

// TestRDMAPyverbs: whatever rdma-core's own tests do on rxe package ibv does. docs/reports/pyverbs.md has
// both side by side.
func TestRDMAPyverbs(t *testing.T) {
	kind := "rxe"
	rdmatest.Device(t, kind)
	seen := make(map[string]bool)
	for _, s := range scenarios() {
		if seen[s.name] || strings.Count(s.name, "/") != 1 {
			t.Fatal(fmt.Sprint("two are called ", s.name))
		}
		seen[s.name] = true
		t.Run(s.name, func(t *testing.T) { s.run(t, device(t, kind)) })
	}
	if len(seen) != 86 {
		t.Errorf("%d scenarios, want 86", len(seen))
	}
}

// TestPyverbsReport: docs/reports/pyverbs.md lists the scenarios, and no others, as those that pass in both.
func TestPyverbsReport(t *testing.T) {
	b, err := os.ReadFile("../../../docs/reports/pyverbs.md")
	if err != nil {
		t.Fatal(err)
	}
	_, both, _ := strings.Cut(string(b), "## Pass in both")
	both, _, _ = strings.Cut(both, "## Skipped")
	var listed, want []string
	for line := range strings.Lines(both) {
		file, tests, ok := strings.Cut(strings.TrimPrefix(line, "| "), " | ")
		for _, name := range regexp.MustCompile("`([a-z0-9_]+)`").FindAllStringSubmatch(tests, -1) {
			if ok {
				listed = append(listed, file+"/"+name[1])
			}
		}
	}
	for _, s := range scenarios() {
		want = append(want, s.name)
	}
	slices.Sort(listed)
	slices.Sort(want)
	if !slices.Equal(listed, want) {
		t.Errorf("the report lists\n%q\nwant\n%q", listed, want)
	}
}
