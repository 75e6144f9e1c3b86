//go:build linux && cgo

package cgotest

import (
	"fmt"
	"net/netip"
)

// A Personality describes an adapter as rdma-core's provider and the kernel's driver do: a device added with
// [Library.AddAdapter] behaves like it.
type Personality struct {
	Name  string // of the provider, and its transport if it has several
	Facts []Fact // differences from [Library.AddDevice], and facts that readers might expect to differ
	// Carries: it supports reliable connections through librdmacm.
	Carries bool
}

// A Fact is one property of an adapter, and its source.
type Fact struct {
	What, Value string
	// Source is a file of rdma-core v64.0 or of Linux 6.1, with a function or constant.
	Source string

	set func(*Device)
}

// AddAdapter adds a device that executes requests by itself, with the properties of a personality.
func (f *Library) AddAdapter(p *Personality, addr netip.Addr) *Device {
	d := f.AddDevice(p.Name, addr)
	d.Nature = &Nature{InvalidateFlag: 1 << 3}
	d.Attr.MaxSRQ = 0
	for _, fact := range p.Facts {
		fact.set(d)
	}
	return d
}

// Properties of adapters as facts.

func fact(what, value, source string, set func(*Device)) Fact { return Fact{what, value, source, set} }

func sges(n, read int, source string) Fact {
	return fact("elements of a list; of a Read", fmt.Sprintf("%d; %d", n, read), source, func(d *Device) { d.Attr.MaxSGE, d.Attr.MaxSGERd = int32(n), int32(read) })
}

func inline(n uint32, source string) Fact {
	return fact("inline data, bytes", fmt.Sprint(n), source, func(d *Device) { d.MaxInline = n })
}

func reads(ird, ord int, source string) Fact {
	return fact("Reads outstanding: as target; as source", fmt.Sprintf("%d; %d", ird, ord), source, func(d *Device) {
		d.Attr.MaxQPRdAtom, d.Attr.MaxQPInitRdAtom = int32(ird), int32(ord)
	})
}

func depth(n int, source string) Fact {
	return fact("longest queue, requests", fmt.Sprint(n), source, func(d *Device) { d.Attr.MaxQPWR = int32(n) })
}

func powerOfTwo(source string) Fact {
	return fact("length of a queue", "the next power of two", source, func(d *Device) { d.Nature.PowerOfTwo = true })
}

func windows(announced, real bool, source string) Fact {
	value := map[[2]bool]string{{true, true}: "type 2", {false, false}: "none of type 2", {true, false}: "type 2 is announced, and ibv_alloc_mw fails"}[[2]bool{announced, real}]
	return fact("memory windows", value, source, func(d *Device) {
		if !announced {
			d.Attr.CapFlags &^= windowType2B
		}
		if d.NoWindows = !real; !announced {
			d.Attr.MaxMW = 0
		}
	})
}

func invalidation(has bool, source string) Fact {
	value := "no"
	if has {
		value = "yes"
	}
	return fact("Send with Invalidate", value, source, func(d *Device) {
		if !has {
			d.Attr.CapFlags &^= memMgtExtensions
			d.Nature.Refuses |= 1 << opSendInv
		}
	})
}

// refuses is a fact about requests that the provider does not support, whatever the kernel's driver announces.
func refuses(value, source string, ops ...uint) Fact {
	return fact("requests that ibv_post_send refuses with EINVAL", value, source, func(d *Device) {
		for _, op := range ops {
			d.Nature.Refuses |= 1 << op
		}
	})
}

func sharedReceives(n int, source string) Fact {
	return fact("shared receive queues", fmt.Sprint(n > 0), source, func(d *Device) { d.Attr.MaxSRQ = int32(n) })
}

func flushesAll(source string) Fact {
	return fact("a queue that is flushed reports", "all requests, signaled or not", source, func(d *Device) { d.Nature.SilentFlush = false })
}

func cleansCQ(cleans bool, source string) Fact {
	value := "stay in the completion queue"
	if cleans {
		value = "go with it"
	}
	return fact("completions of a queue pair that is destroyed", value, source, func(d *Device) { d.CleansCQ = cleans })
}

// infiniband is the fact that the connection manager is that of InfiniBand and RoCE.
func infiniband() Fact {
	return fact("private data of a request, a reply, a rejection", "56, 196, 148 bytes, zeros at the end",
		"include/rdma/ib_cm.h IB_CM_REQ_PRIVATE_DATA_SIZE, less the 36 bytes of struct cma_hdr", func(d *Device) {
			d.Nature.Padded = true
			d.Nature.PrivateData.Request, d.Nature.PrivateData.Reply, d.Nature.PrivateData.Reject = 56, 196, 148
		})
}

func iwarp(source string) Fact {
	return fact("private data of a request, a reply, a rejection", "as given, up to 512 bytes, of which librdmacm takes 255", source, func(d *Device) {
		d.Info.Transport, d.Info.NodeType = TransportIWARP, 4
		d.Nature.ReadSinkRights = true
		d.Nature.PrivateData.Request, d.Nature.PrivateData.Reply, d.Nature.PrivateData.Reject = 255, 255, 255
	})
}

func vendor(id uint32, source string) Fact {
	return fact("vendor", fmt.Sprintf("%#x", id), source, func(d *Device) { d.Attr.VendorID = id })
}

const (
	memMgtExtensions = 1 << 21 // of enum ibv_device_cap_flags
	windowType2B     = 1 << 24
)

// Personalities are the known adapters. Immutable.
var Personalities = []Personality{
	{Name: "mlx5", Carries: true, Facts: []Fact{
		vendor(0x02c9, "drivers/infiniband/hw/mlx5/main.c mlx5_query_vendor_id: the OUI of Mellanox"),
		sges(30, 30, "drivers/infiniband/hw/mlx5/main.c mlx5_ib_query_device: what max_wqe_sz_sq of 512 bytes leaves"),
		inline(512, "providers/mlx5/verbs.c mlx5_calc_send_wqe: less than max_wqe_sz_sq"),
		reads(16, 16, "drivers/infiniband/hw/mlx5/main.c mlx5_ib_query_device: 1 << log_max_ra_req_qp, of firmware"),
		depth(32768, "drivers/infiniband/hw/mlx5/main.c mlx5_ib_query_device: 1 << log_max_qp_sz, of firmware"),
		powerOfTwo("providers/mlx5/verbs.c mlx5_calc_sq_size"),
		windows(true, true, "drivers/infiniband/hw/mlx5/main.c mlx5_ib_query_device, providers/mlx5/mlx5.c"),
		invalidation(true, "providers/mlx5/qp.c mlx5_post_send"),
		sharedReceives(1<<20, "providers/mlx5/mlx5.c create_srq"),
		flushesAll("ibv_post_send(3): the adapter reports each request that fails"),
		cleansCQ(true, "providers/mlx5/verbs.c mlx5_destroy_qp"),
		infiniband(),
	}},
	{Name: "bnxt_re", Carries: true, Facts: []Fact{
		vendor(0x14e4, "drivers/infiniband/hw/bnxt_re/ib_verbs.c bnxt_re_query_device"),
		sges(6, 6, "drivers/infiniband/hw/bnxt_re/qplib_sp.c bnxt_qplib_get_dev_attr, of chips since P5"),
		inline(96, "drivers/infiniband/hw/bnxt_re/qplib_fp.h BNXT_QPLIB_SWQE_MAX_INLINE_LENGTH"),
		reads(126, 126, "drivers/infiniband/hw/bnxt_re/qplib_sp.h BNXT_QPLIB_MAX_OUT_RD_ATOM"),
		windows(true, false, "drivers/infiniband/hw/bnxt_re/ib_verbs.c bnxt_re_query_device sets IB_DEVICE_MEM_WINDOW_TYPE_2B; providers/bnxt_re/main.c has no alloc_mw"),
		invalidation(true, "providers/bnxt_re/verbs.c bnxt_re_post_send"),
		refuses("local invalidation, bind", "providers/bnxt_re/verbs.c bnxt_re_post_send: -EINVAL", opLocalInv, opBindMW),
		sharedReceives(1<<16, "providers/bnxt_re/main.c create_srq"),
		flushesAll("providers/bnxt_re/verbs.c bnxt_re_poll_flush_wcs"),
		cleansCQ(true, "providers/bnxt_re/verbs.c bnxt_re_cleanup_cq"),
		infiniband(),
	}},
	{Name: "irdma over iWARP", Carries: true, Facts: []Fact{
		vendor(0x8086, "drivers/infiniband/hw/irdma/verbs.c irdma_query_device"),
		sges(13, 13, "drivers/infiniband/hw/irdma/user.h IRDMA_MAX_WQ_FRAGMENT_COUNT, IRDMA_MAX_SGE_RD"),
		inline(101, "drivers/infiniband/hw/irdma/user.h IRDMA_MAX_INLINE_DATA_SIZE"),
		reads(32, 64, "drivers/infiniband/hw/irdma/cm.c irdma_record_ird_ord: limits of the hardware attributes"),
		windows(false, true, "drivers/infiniband/hw/irdma/verbs.c irdma_query_device sets neither type 2A nor 2B"),
		invalidation(true, "providers/irdma/uverbs.c irdma_upost_send"),
		flushesAll("providers/irdma/uk.c irdma_uk_cq_poll_cmpl: software makes the completions up to E810"),
		cleansCQ(true, "providers/irdma/uverbs.c irdma_clean_cqes"),
		iwarp("drivers/infiniband/hw/irdma/cm.h IETF_MAX_PRIV_DATA_LEN"),
		fact("status of a rejection; of a port without a listener", "ECONNREFUSED; ECONNRESET",
			"drivers/infiniband/hw/irdma/cm.c irdma_send_cm_event: IRDMA_CM_EVENT_MPA_REJECT, IRDMA_CM_EVENT_ABORTED", func(*Device) {}),
	}},
	{Name: "irdma over RoCE", Carries: true, Facts: []Fact{
		vendor(0x8086, "drivers/infiniband/hw/irdma/verbs.c irdma_query_device"),
		sges(13, 13, "drivers/infiniband/hw/irdma/user.h IRDMA_MAX_WQ_FRAGMENT_COUNT, IRDMA_MAX_SGE_RD"),
		inline(101, "drivers/infiniband/hw/irdma/user.h IRDMA_MAX_INLINE_DATA_SIZE"),
		windows(false, true, "drivers/infiniband/hw/irdma/verbs.c irdma_query_device sets neither type 2A nor 2B"),
		invalidation(true, "providers/irdma/uverbs.c irdma_upost_send"),
		flushesAll("providers/irdma/uk.c irdma_uk_cq_poll_cmpl: software makes the completions up to E810"),
		cleansCQ(true, "providers/irdma/uverbs.c irdma_clean_cqes"),
		infiniband(),
	}},
	{Name: "ionic", Carries: true, Facts: []Fact{
		vendor(0x1dd8, "providers/ionic/ionic.c: the PCI vendor of the match table"),
		sges(8, 8, "providers/ionic/ionic_fw.h ionic_v1_send_wqe_min_size: the lists that all sizes of a WQE hold"),
		inline(32, "providers/ionic/ionic_fw.h: the payload of a WQE of the least size"),
		powerOfTwo("providers/ionic/ionic_queue.c ionic_queue_init: depth_log2"),
		windows(true, true, "providers/ionic/ionic_verbs.c ionic_v1_prep_bind"),
		invalidation(true, "providers/ionic/ionic_verbs.c ionic_v1_prep_send_rc"),
		flushesAll("providers/ionic/ionic_verbs.c ionic_flush_send"),
		cleansCQ(true, "providers/ionic/ionic_verbs.c ionic_clean_cq"),
		infiniband(),
	}},
	{Name: "hns", Carries: true, Facts: []Fact{
		vendor(0x19e5, "drivers/infiniband/hw/hns/hns_roce_main.c hns_roce_query_device"),
		sges(64, 64, "drivers/infiniband/hw/hns/hns_roce_hw_v2.h HNS_ROCE_V2_MAX_SQ_SGE_NUM"),
		inline(32, "drivers/infiniband/hw/hns/hns_roce_hw_v2.h HNS_ROCE_V2_MAX_SQ_INLINE"),
		reads(128, 128, "drivers/infiniband/hw/hns/hns_roce_hw_v2.h HNS_ROCE_V2_MAX_QP_INIT_RDMA"),
		depth(0x8000, "drivers/infiniband/hw/hns/hns_roce_hw_v2.h HNS_ROCE_V2_MAX_WQE_NUM"),
		powerOfTwo("providers/hns/hns_roce_u_verbs.c hns_roce_set_qp_params"),
		windows(false, false, "providers/hns/hns_roce_u.c has no alloc_mw; drivers/infiniband/hw/hns/hns_roce_main.c announces none"),
		invalidation(false, "drivers/infiniband/hw/hns/hns_roce_main.c hns_roce_query_device: not before HIP09"),
		refuses("local invalidation, bind", "providers/hns/hns_roce_u_hw_v2.c check_rc_opcode", opLocalInv, opBindMW),
		sharedReceives(1<<20, "providers/hns/hns_roce_u.c create_srq"),
		flushesAll("providers/hns/hns_roce_u_hw_v2.c hns_roce_flush_cqe: the hardware, for all requests after the first error"),
		cleansCQ(true, "providers/hns/hns_roce_u_hw_v2.c __hns_roce_v2_cq_clean"),
		infiniband(),
	}},
	{Name: "mana", Carries: true, Facts: []Fact{
		vendor(0x1414, "providers/mana/mana.c: the PCI vendor of Microsoft"),
		inline(0, "providers/mana/wr.c: the flag is not looked at"),
		windows(false, false, "providers/mana/wr.c is_opcode_supported"),
		invalidation(false, "providers/mana/wr.c is_opcode_supported"),
		refuses("atomics, local invalidation, bind", "providers/mana/wr.c is_opcode_supported", opCmpSwp, opFetchAdd, opLocalInv, opBindMW),
		flushesAll("providers/mana/cq.c mana_flush_completions_in_err"),
		cleansCQ(false, "providers/mana/qp.c mana_destroy_qp"),
		infiniband(),
	}},
	{Name: "efa", Facts: []Fact{
		vendor(0x1d0f, "drivers/infiniband/hw/efa/efa_verbs.c efa_query_device"),
		inline(32, "providers/efa/efa_io_defs.h EFA_IO_TX_DESC_INLINE_MAX_SIZE"),
		windows(false, false, "providers/efa/efa.c has no alloc_mw"),
		invalidation(false, "drivers/infiniband/hw/efa/efa_verbs.c efa_query_device"),
		fact("reliable connections", "none: SRD and UD only, and no connection manager", "providers/efa/verbs.c efa_create_qp_ex; drivers/infiniband/hw/efa/efa_verbs.c efa_get_port_immutable", func(d *Device) {
			d.NoConnections = true
		}),
	}},
}
