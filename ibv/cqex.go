//go:build linux && cgo

package ibv

import (
	"syscall"
	"time"
	"unsafe"

	"github.com/rpcrdma/rpcrdma/cgo"
)

// WCFields are the fields of completions that an extended completion queue reports, see ibv_create_cq_ex(3). ID, Status
// and VendorErr are always reported, and Opcode and Flags for successful requests.
type WCFields uint64

// Fields of completions.
const (
	WCWithByteLen      WCFields = 1 << 0
	WCWithImmData      WCFields = 1 << 1 // or the invalidated key
	WCWithQPNum        WCFields = 1 << 2 // also for failures
	WCWithSrcQP        WCFields = 1 << 3
	WCWithSLID         WCFields = 1 << 4
	WCWithSL           WCFields = 1 << 5
	WCWithDLIDPathBits WCFields = 1 << 6
	WCWithTimestamp    WCFields = 1 << 7
	WCWithCVLAN        WCFields = 1 << 8
	WCWithFlowTag      WCFields = 1 << 9
	WCWithTMInfo       WCFields = 1 << 10
	WCWithWallClock    WCFields = 1 << 11

	// WCStandardFields are the fields of [WC].
	WCStandardFields = WCWithByteLen | WCWithImmData | WCWithQPNum | WCWithSrcQP | WCWithSLID | WCWithSL | WCWithDLIDPathBits
)

func (f WCFields) String() string {
	return flagString(uint32(f), []string{
		"IBV_WC_EX_WITH_BYTE_LEN", "IBV_WC_EX_WITH_IMM", "IBV_WC_EX_WITH_QP_NUM", "IBV_WC_EX_WITH_SRC_QP", "IBV_WC_EX_WITH_SLID",
		"IBV_WC_EX_WITH_SL", "IBV_WC_EX_WITH_DLID_PATH_BITS", "IBV_WC_EX_WITH_COMPLETION_TIMESTAMP", "IBV_WC_EX_WITH_CVLAN",
		"IBV_WC_EX_WITH_FLOW_TAG", "IBV_WC_EX_WITH_TM_INFO", "IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK",
	})
}

// CQFlags are properties of an extended completion queue, see ibv_create_cq_ex(3).
type CQFlags uint32

// Properties of completion queues.
const (
	CQSingleThreaded CQFlags = 1 << 0 // only one goroutine at a time uses the queue, so the library needs no lock
	CQIgnoreOverrun  CQFlags = 1 << 1 // completions that do not fit are dropped, and the queue stays usable
)

func (f CQFlags) String() string {
	return flagString(uint32(f), []string{"IBV_CREATE_CQ_ATTR_SINGLE_THREADED", "IBV_CREATE_CQ_ATTR_IGNORE_OVERRUN"})
}

// A CQInitAttr holds the attributes of an extended completion queue, see ibv_create_cq_ex(3).
type CQInitAttr struct {
	Entries int          // minimum capacity, in completions
	Channel *CompChannel // may be nil
	Vector  int          // completion vector, see [Context.NumCompVectors]
	Fields  WCFields
	Flags   CQFlags
}

// CreateCQEx creates an extended completion queue. [CQ.PollEx] takes its completions, with the fields requested here.
// CreateCQEx fails if the device cannot report one of them.
//
// Implements: struct ibv_cq_ex *ibv_create_cq_ex(struct ibv_context *context, struct ibv_cq_init_attr_ex *cq_attr)
// Implements: struct ibv_cq *ibv_cq_ex_to_cq(struct ibv_cq_ex *cq)
func (c *Context) CreateCQEx(attr CQInitAttr) (*CQ, error) {
	cq, err := c.createCQ("ibv_create_cq_ex", attr.Entries, attr.Channel, func(ch *cgo.CompChannel) (*cgo.CQ, syscall.Errno) {
		return c.lib.CreateCQEx(c.raw, attr.Entries, ch, attr.Vector, uint64(attr.Fields), uint32(attr.Flags))
	})
	if err != nil {
		return nil, err
	}
	cq.extended, cq.fields = true, attr.Fields
	return cq, nil
}

// A WCEx is a completion of an extended completion queue. Fields that the queue was not created with
// are zero.
type WCEx struct {
	WC
	Timestamp uint64 // ticks of the device's clock, see [WCWithTimestamp]
	WallClock uint64 // nanoseconds since 1970, see [WCEx.Time]
	Tag       uint64 // of the message that matched, with [WCWithTMInfo]
	TagPriv   uint32 // the application's part of the tag
	FlowTag   uint32 // of the flow that a packet matched
	CVLAN     uint16 // priority, CFI and VLAN of a packet
	_         [3]uint16
}

// WCEx has the layout of cgo.WCEx, so C fills it in. A test compares the layout with the C compiler's.
const (
	_ = uint(unsafe.Sizeof(WCEx{}) - unsafe.Sizeof(cgo.WCEx{}))
	_ = uint(unsafe.Sizeof(cgo.WCEx{}) - unsafe.Sizeof(WCEx{}))
)

// Time returns the device's time at which the request completed, with [WCWithWallClock].
func (wc *WCEx) Time() time.Time { return time.Unix(0, int64(wc.WallClock)) }

// PollEx is [CQ.Poll] for an extended completion queue: one call into C takes up to len(wcs) completions. On any other
// queue it fails with EINVAL.
//
// Implements: int ibv_start_poll(struct ibv_cq_ex *cq, struct ibv_poll_cq_attr *attr)
// Implements: int ibv_next_poll(struct ibv_cq_ex *cq)
// Implements: void ibv_end_poll(struct ibv_cq_ex *cq)
// Implements: enum ibv_wc_opcode ibv_wc_read_opcode(struct ibv_cq_ex *cq)
// Implements: uint32_t ibv_wc_read_vendor_err(struct ibv_cq_ex *cq)
// Implements: uint32_t ibv_wc_read_byte_len(struct ibv_cq_ex *cq)
// Implements: __be32 ibv_wc_read_imm_data(struct ibv_cq_ex *cq)
// Implements: uint32_t ibv_wc_read_invalidated_rkey(struct ibv_cq_ex *cq)
// Implements: uint32_t ibv_wc_read_qp_num(struct ibv_cq_ex *cq)
// Implements: uint32_t ibv_wc_read_src_qp(struct ibv_cq_ex *cq)
// Implements: unsigned int ibv_wc_read_wc_flags(struct ibv_cq_ex *cq)
// Implements: uint32_t ibv_wc_read_slid(struct ibv_cq_ex *cq)
// Implements: uint8_t ibv_wc_read_sl(struct ibv_cq_ex *cq)
// Implements: uint8_t ibv_wc_read_dlid_path_bits(struct ibv_cq_ex *cq)
// Implements: uint64_t ibv_wc_read_completion_ts(struct ibv_cq_ex *cq)
// Implements: uint64_t ibv_wc_read_completion_wallclock_ns(struct ibv_cq_ex *cq)
// Implements: uint16_t ibv_wc_read_cvlan(struct ibv_cq_ex *cq)
// Implements: uint32_t ibv_wc_read_flow_tag(struct ibv_cq_ex *cq)
// Implements: void ibv_wc_read_tm_info(struct ibv_cq_ex *cq, struct ibv_wc_tm_info *tm_info)
func (cq *CQ) PollEx(wcs []WCEx) (int, error) {
	const call = "ibv_start_poll"
	if err := cq.enter(call); err != nil {
		return 0, err
	}
	defer cq.leave()
	if !cq.extended {
		return 0, &Error{Call: call, Device: cq.device, Err: syscall.EINVAL}
	}
	fields := uint64(cq.fields)
	if cq.ctx.rxe {
		// If ibv_next_poll of rxe finds no further completion, it has advanced and unlocked the queue, and ibv_end_poll
		// does so again (rdma-core 44 to 60).
		fields |= cgo.OneByOne
	}
	n, errno := cgo.PollEx(cq.ctx.lib, cq.raw, fields, unsafe.Slice((*cgo.WCEx)(unsafe.Pointer(unsafe.SliceData(wcs))), len(wcs)))
	if cq.ctx.rxe {
		for i := range wcs[:n] {
			wcs[i].Flags = userFlags(wcs[i].Flags)
		}
	}
	if errno != 0 {
		return n, &Error{Call: call, Device: cq.device, Err: errno}
	}
	return n, nil
}

// Moderate delays the events of the queue until count completions have arrived, or period has passed since the first of
// them. period is rounded to microseconds, at most 65,535.
//
// Implements: int ibv_modify_cq(struct ibv_cq *cq, struct ibv_modify_cq_attr *attr)
func (cq *CQ) Moderate(count uint16, period time.Duration) error {
	const call = "ibv_modify_cq"
	if err := cq.enter(call); err != nil {
		return err
	}
	defer cq.leave()
	us := period.Round(time.Microsecond).Microseconds()
	if us != int64(uint16(us)) {
		return &Error{Call: call, Device: cq.device, Err: syscall.EINVAL}
	}
	if errno := cq.ctx.lib.ModifyCQ(cq.raw, count, uint16(us)); errno != 0 {
		return &Error{Call: call, Device: cq.device, Err: errno}
	}
	return nil
}
