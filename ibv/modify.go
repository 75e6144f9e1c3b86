//go:build linux && cgo

package ibv

import (
	"fmt"
	"strings"
	"syscall"

	"github.com/rpcrdma/rpcrdma/cgo"
)

// A QPState is the state of a queue pair, see ibv_modify_qp(3).
type QPState int32

// States of queue pairs.
const (
	QPSReset   QPState = 0
	QPSInit    QPState = 1 // receives can be posted
	QPSRTR     QPState = 2 // ready to receive
	QPSRTS     QPState = 3 // ready to send
	QPSSQD     QPState = 4 // the send queue is drained
	QPSSQE     QPState = 5 // the send queue failed; not for reliable connections
	QPSErr     QPState = 6 // everything posted is flushed
	QPSUnknown QPState = 7
)

func (s QPState) String() string {
	return name([]string{
		"IBV_QPS_RESET", "IBV_QPS_INIT", "IBV_QPS_RTR", "IBV_QPS_RTS", "IBV_QPS_SQD", "IBV_QPS_SQE", "IBV_QPS_ERR", "IBV_QPS_UNKNOWN",
	}, int32(s), "ibv_qp_state")
}

// A MigState is the state of path migration, see ibv_modify_qp(3).
type MigState int32

// States of path migration.
const (
	MigMigrated MigState = 0
	MigRearm    MigState = 1
	MigArmed    MigState = 2
)

func (s MigState) String() string {
	return name([]string{"IBV_MIG_MIGRATED", "IBV_MIG_REARM", "IBV_MIG_ARMED"}, int32(s), "ibv_mig_state")
}

// An AttrMask is a set of fields of a [QPAttr], see ibv_modify_qp(3).
type AttrMask uint32

// Fields of a QPAttr with the same names. AttrAltPath covers all fields with names that begin with Alt.
const (
	AttrState            AttrMask = 1 << 0
	AttrCurState         AttrMask = 1 << 1
	AttrEnSQDAsyncNotify AttrMask = 1 << 2
	AttrAccessFlags      AttrMask = 1 << 3
	AttrPkeyIndex        AttrMask = 1 << 4
	AttrPort             AttrMask = 1 << 5
	AttrQkey             AttrMask = 1 << 6
	AttrAV               AttrMask = 1 << 7 // AH
	AttrPathMTU          AttrMask = 1 << 8
	AttrTimeout          AttrMask = 1 << 9
	AttrRetryCnt         AttrMask = 1 << 10
	AttrRNRRetry         AttrMask = 1 << 11
	AttrRQPSN            AttrMask = 1 << 12
	AttrMaxQPRdAtomic    AttrMask = 1 << 13 // MaxRdAtomic
	AttrAltPath          AttrMask = 1 << 14
	AttrMinRNRTimer      AttrMask = 1 << 15
	AttrSQPSN            AttrMask = 1 << 16
	AttrMaxDestRdAtomic  AttrMask = 1 << 17
	AttrPathMigState     AttrMask = 1 << 18
	AttrCap              AttrMask = 1 << 19
	AttrDestQPN          AttrMask = 1 << 20
	AttrRateLimit        AttrMask = 1 << 25
)

func (m AttrMask) String() string {
	return flagString(uint32(m), []string{
		"IBV_QP_STATE", "IBV_QP_CUR_STATE", "IBV_QP_EN_SQD_ASYNC_NOTIFY", "IBV_QP_ACCESS_FLAGS", "IBV_QP_PKEY_INDEX", "IBV_QP_PORT",
		"IBV_QP_QKEY", "IBV_QP_AV", "IBV_QP_PATH_MTU", "IBV_QP_TIMEOUT", "IBV_QP_RETRY_CNT", "IBV_QP_RNR_RETRY", "IBV_QP_RQ_PSN",
		"IBV_QP_MAX_QP_RD_ATOMIC", "IBV_QP_ALT_PATH", "IBV_QP_MIN_RNR_TIMER", "IBV_QP_SQ_PSN", "IBV_QP_MAX_DEST_RD_ATOMIC",
		"IBV_QP_PATH_MIG_STATE", "IBV_QP_CAP", "IBV_QP_DEST_QPN", 25: "IBV_QP_RATE_LIMIT",
	})
}

// A GlobalRoute is the route to a GID, see ibv_create_ah(3).
type GlobalRoute struct {
	DGID         GID
	FlowLabel    uint32
	SGIDIndex    uint8 // GIDEntry.Index of the local address
	HopLimit     uint8
	TrafficClass uint8
}

// An AHAttr is the address of a peer, see ibv_create_ah(3).
type AHAttr struct {
	GRH         GlobalRoute
	IsGlobal    bool // GRH is used; always set on RoCE
	DLID        uint16
	SL          uint8
	SrcPathBits uint8
	StaticRate  Rate
	PortNum     uint8
}

// A QPAttr describes a queue pair, see ibv_modify_qp(3).
type QPAttr struct {
	State            QPState
	CurState         QPState // the assumed current state
	PathMTU          MTU
	PathMigState     MigState
	RQPSN            uint32 // packet sequence number of the peer's first packet, 24 bits
	SQPSN            uint32 // packet sequence number of this side's first packet
	DestQPNum        uint32
	Qkey             uint32 // required in datagrams to this queue pair
	Access           Access // remote rights of the peer through this queue pair
	Cap              QPCap
	AH               AHAttr
	AltAH            AHAttr
	PkeyIndex        uint16
	AltPkeyIndex     uint16
	EnSQDAsyncNotify bool  // EventSQDrained is requested
	SQDraining       bool  // query only
	MaxRdAtomic      uint8 // RDMA Reads and atomics in flight to the peer
	MaxDestRdAtomic  uint8 // RDMA Reads and atomics in flight from the peer
	MinRNRTimer      uint8 // how long the peer waits if no receive is posted; encoded: 12 is 0.64 ms
	PortNum          uint8
	Timeout          uint8 // how long to wait for an acknowledgement: 4.096 us << Timeout; 0 means forever
	RetryCnt         uint8 // retransmissions without an acknowledgement, up to 7
	RNRRetry         uint8 // retransmissions if the peer has no receive posted; 7 means no limit
	AltPortNum       uint8
	AltTimeout       uint8
	RateLimit        uint32 // kbit/s
}

// A transition is a change of state of a queue pair, or no change.
type transition struct {
	from, to           QPState
	required, optional AttrMask // besides AttrState
}

// rcTransitions are the state changes that InfiniBand defines for reliable connections. Every state also has
// transitions to QPSReset and QPSErr, which need no attributes.
var rcTransitions = []transition{
	{QPSReset, QPSInit, AttrPkeyIndex | AttrPort | AttrAccessFlags, 0},
	{QPSInit, QPSInit, 0, AttrPkeyIndex | AttrPort | AttrAccessFlags},
	{
		QPSInit, QPSRTR, AttrAV | AttrPathMTU | AttrDestQPN | AttrRQPSN | AttrMaxDestRdAtomic | AttrMinRNRTimer,
		AttrAltPath | AttrAccessFlags | AttrPkeyIndex,
	},
	{QPSRTR, QPSRTS, AttrTimeout | AttrRetryCnt | AttrRNRRetry | AttrSQPSN | AttrMaxQPRdAtomic, whileRunning},
	{QPSRTS, QPSRTS, 0, whileRunning},
	{QPSRTS, QPSSQD, 0, AttrEnSQDAsyncNotify},
	{QPSSQD, QPSRTS, 0, whileRunning},
	{
		QPSSQD, QPSSQD, 0, AttrPort | AttrAV | AttrTimeout | AttrRetryCnt | AttrRNRRetry | AttrMaxQPRdAtomic | AttrMaxDestRdAtomic |
			AttrAltPath | AttrAccessFlags | AttrPkeyIndex | AttrMinRNRTimer | AttrPathMigState,
	},
	{QPSSQE, QPSRTS, 0, 0},
}

// ucTransitions are the state changes of unreliable connections.
var ucTransitions = []transition{
	{QPSReset, QPSInit, AttrPkeyIndex | AttrPort | AttrAccessFlags, 0},
	{QPSInit, QPSInit, 0, AttrPkeyIndex | AttrPort | AttrAccessFlags},
	{QPSInit, QPSRTR, AttrAV | AttrPathMTU | AttrDestQPN | AttrRQPSN, AttrAltPath | AttrAccessFlags | AttrPkeyIndex},
	{QPSRTR, QPSRTS, AttrSQPSN, AttrCurState | AttrAltPath | AttrAccessFlags | AttrPathMigState},
	{QPSRTS, QPSRTS, 0, AttrCurState | AttrAltPath | AttrAccessFlags | AttrPathMigState},
	{QPSRTS, QPSSQD, 0, AttrEnSQDAsyncNotify},
	{QPSSQD, QPSRTS, 0, AttrCurState | AttrAltPath | AttrAccessFlags | AttrPathMigState},
	{QPSSQD, QPSSQD, 0, AttrAV | AttrAltPath | AttrAccessFlags | AttrPkeyIndex | AttrPathMigState},
	{QPSSQE, QPSRTS, 0, AttrCurState | AttrAccessFlags},
}

// udTransitions are the state changes of datagram queue pairs.
var udTransitions = []transition{
	{QPSReset, QPSInit, AttrPkeyIndex | AttrPort | AttrQkey, 0},
	{QPSInit, QPSInit, 0, AttrPkeyIndex | AttrPort | AttrQkey},
	{QPSInit, QPSRTR, 0, AttrPkeyIndex | AttrQkey},
	{QPSRTR, QPSRTS, AttrSQPSN, AttrCurState | AttrQkey},
	{QPSRTS, QPSRTS, 0, AttrCurState | AttrQkey},
	{QPSRTS, QPSSQD, 0, AttrEnSQDAsyncNotify},
	{QPSSQD, QPSRTS, 0, AttrCurState | AttrQkey},
	{QPSSQD, QPSSQD, 0, AttrPkeyIndex | AttrQkey},
	{QPSSQE, QPSRTS, 0, AttrCurState | AttrQkey},
}

// transitions returns the state changes of a transport service.
func (t QPType) transitions() []transition {
	switch t {
	case QPTypeUC:
		return ucTransitions
	case QPTypeUD:
		return udTransitions
	}
	return rcTransitions
}

const whileRunning = AttrCurState | AttrAltPath | AttrAccessFlags | AttrMinRNRTimer | AttrPathMigState

// judge returns which attributes of mask are missing or invalid for a state change, and whether such a change exists.
func judge(typ QPType, from, to QPState, mask AttrMask) (missing, invalid AttrMask, possible bool) {
	mask &^= AttrState
	if to == QPSReset || to == QPSErr {
		return 0, mask, true
	}
	for _, t := range typ.transitions() {
		if t.from == from && t.to == to {
			return t.required &^ mask, mask &^ (t.required | t.optional), true
		}
	}
	return 0, 0, false
}

// A ModifyError is the error of a rejected [QP.Modify]. It unwraps to the errno.
type ModifyError struct {
	Device   string
	From, To QPState
	Mask     AttrMask // as requested
	Missing  AttrMask // also required by this change of state
	Invalid  AttrMask // not permitted with this change of state
	Err      error

	reason string
}

func (e *ModifyError) Error() string {
	return fmt.Sprintf("ibv: ibv_modify_qp on %s: %v to %v: %v: %s", e.Device, e.From, e.To, e.Err, e.reason)
}

func (e *ModifyError) Unwrap() error { return e.Err }

// modifyError returns the error for an EINVAL, with the likely reason.
func modifyError(device string, transport Transport, typ QPType, from, to QPState, mask AttrMask, errno syscall.Errno) *ModifyError {
	e := &ModifyError{Device: device, From: from, To: to, Mask: mask, Err: errno}
	if transport != TransportIB {
		e.reason = "the rules of which attributes go with which state are the device's own"
		return e
	}
	var possible bool
	e.Missing, e.Invalid, possible = judge(typ, from, to, mask)
	var parts []string
	if e.Missing != 0 {
		parts = append(parts, "missing "+e.Missing.String())
	}
	if e.Invalid != 0 {
		parts = append(parts, "not allowed "+e.Invalid.String())
	}
	switch {
	case !possible:
		e.reason = "there is no such change of state"
	case len(parts) == 0:
		e.reason = "the mask is right, so a value in it is not"
	default:
		e.reason = strings.Join(parts, "; ")
	}
	return e
}

// Modify changes the fields in mask. A queue pair is connected in three steps: to QPSInit, to QPSRTR with the peer's
// address and number, and to QPSRTS. A datagram queue pair has a Q_Key in place of the peer. The error of an invalid
// step is a [*ModifyError], which says what is missing.
//
// Implements: int ibv_modify_qp(struct ibv_qp *qp, struct ibv_qp_attr *attr, int attr_mask)
func (qp *QP) Modify(attr QPAttr, mask AttrMask) error {
	const call = "ibv_modify_qp"
	if err := qp.enter(call); err != nil {
		return err
	}
	defer qp.leave()
	raw := attr.raw()
	errno := qp.ctx.lib.ModifyQP(qp.raw, &raw, int(mask))
	switch errno {
	case 0:
		return nil
	case syscall.EINVAL:
		from := QPSUnknown
		if now, _, errno := qp.ctx.lib.QueryQP(qp.raw, int(AttrState)); errno == 0 {
			from = QPState(now.State)
		}
		if mask&AttrCurState != 0 {
			from = attr.CurState
		}
		to := from
		if mask&AttrState != 0 {
			to = attr.State
		}
		return modifyError(qp.device, qp.ctx.info.Transport, qp.typ, from, to, mask, errno)
	}
	return &Error{Call: call, Device: qp.device, Err: errno}
}

// Query returns the fields in mask; a device may fill in others, too.
//
// Implements: int ibv_query_qp(struct ibv_qp *qp, struct ibv_qp_attr *attr, int attr_mask, struct ibv_qp_init_attr *init_attr)
func (qp *QP) Query(mask AttrMask) (QPAttr, error) {
	const call = "ibv_query_qp"
	if err := qp.enter(call); err != nil {
		return QPAttr{}, err
	}
	defer qp.leave()
	a, _, errno := qp.ctx.lib.QueryQP(qp.raw, int(mask))
	if errno != 0 {
		return QPAttr{}, &Error{Call: call, Device: qp.device, Err: errno}
	}
	return QPAttrOf(&a), nil
}

// State returns the state of the queue pair.
func (qp *QP) State() (QPState, error) {
	a, err := qp.Query(AttrState)
	if err != nil {
		return QPSUnknown, err
	}
	return a.State, nil
}

func (a *QPAttr) raw() cgo.QPAttr {
	return cgo.QPAttr{
		State: int32(a.State), CurState: int32(a.CurState), PathMTU: int32(a.PathMTU), PathMigState: int32(a.PathMigState),
		Qkey: a.Qkey, RQPSN: a.RQPSN, SQPSN: a.SQPSN, DestQPNum: a.DestQPNum, Access: uint32(a.Access), Cap: cgo.QPCap(a.Cap),
		AH: a.AH.raw(), AltAH: a.AltAH.raw(), PkeyIndex: a.PkeyIndex, AltPkeyIndex: a.AltPkeyIndex,
		EnSQDAsyncNotify: bit(a.EnSQDAsyncNotify), MaxRdAtomic: a.MaxRdAtomic, MaxDestRdAtomic: a.MaxDestRdAtomic,
		MinRNRTimer: a.MinRNRTimer, PortNum: a.PortNum, Timeout: a.Timeout, RetryCnt: a.RetryCnt, RNRRetry: a.RNRRetry,
		AltPortNum: a.AltPortNum, AltTimeout: a.AltTimeout, RateLimit: a.RateLimit,
	}
}

// QPAttrOf converts attributes of package cgo.
func QPAttrOf(a *cgo.QPAttr) QPAttr {
	return QPAttr{
		State: QPState(a.State), CurState: QPState(a.CurState), PathMTU: MTU(a.PathMTU), PathMigState: MigState(a.PathMigState),
		Qkey: a.Qkey, RQPSN: a.RQPSN, SQPSN: a.SQPSN, DestQPNum: a.DestQPNum, Access: Access(a.Access), Cap: QPCap(a.Cap),
		AH: AHAttrOf(&a.AH), AltAH: AHAttrOf(&a.AltAH), PkeyIndex: a.PkeyIndex, AltPkeyIndex: a.AltPkeyIndex,
		EnSQDAsyncNotify: a.EnSQDAsyncNotify != 0, SQDraining: a.SQDraining != 0, MaxRdAtomic: a.MaxRdAtomic, MaxDestRdAtomic: a.MaxDestRdAtomic,
		MinRNRTimer: a.MinRNRTimer, PortNum: a.PortNum, Timeout: a.Timeout, RetryCnt: a.RetryCnt, RNRRetry: a.RNRRetry,
		AltPortNum: a.AltPortNum, AltTimeout: a.AltTimeout, RateLimit: a.RateLimit,
	}
}

func (h *AHAttr) raw() cgo.AHAttr {
	return cgo.AHAttr{
		DGID: h.GRH.DGID, FlowLabel: h.GRH.FlowLabel, SGIDIndex: h.GRH.SGIDIndex, HopLimit: h.GRH.HopLimit, TrafficClass: h.GRH.TrafficClass,
		DLID: h.DLID, SL: h.SL, SrcPathBits: h.SrcPathBits, StaticRate: uint8(h.StaticRate), IsGlobal: bit(h.IsGlobal), PortNum: h.PortNum,
	}
}

// AHAttrOf converts an address of package cgo.
func AHAttrOf(h *cgo.AHAttr) AHAttr {
	return AHAttr{
		GRH:  GlobalRoute{DGID: h.DGID, FlowLabel: h.FlowLabel, SGIDIndex: h.SGIDIndex, HopLimit: h.HopLimit, TrafficClass: h.TrafficClass},
		DLID: h.DLID, SL: h.SL, SrcPathBits: h.SrcPathBits, StaticRate: Rate(h.StaticRate), IsGlobal: h.IsGlobal != 0, PortNum: h.PortNum,
	}
}

func bit(b bool) uint8 {
	if b {
		return 1
	}
	return 0
}
