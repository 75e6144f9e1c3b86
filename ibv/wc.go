//go:build linux && cgo

package ibv

import (
	"fmt"
	"math/bits"
	"strings"
	"unsafe"

	"github.com/rpcrdma/rpcrdma/cgo"
)

// A WCStatus is the status of a completion, see ibv_poll_cq(3).
type WCStatus int32

// Statuses of completions.
const (
	WCSuccess          WCStatus = 0
	WCLocLenErr        WCStatus = 1 // a message exceeds its buffers, or the limit of the device
	WCLocQPOpErr       WCStatus = 2 // a malformed work request
	WCLocEECOpErr      WCStatus = 3
	WCLocProtErr       WCStatus = 4  // an SGE is not in its region
	WCWRFlushErr       WCStatus = 5  // the queue pair was in the error state
	WCMWBindErr        WCStatus = 6  // a window could not be bound
	WCBadRespErr       WCStatus = 7  // the peer's device sent an invalid response
	WCLocAccessErr     WCStatus = 8  // a local protection error while the peer wrote
	WCRemInvReqErr     WCStatus = 9  // the peer's device found the request invalid
	WCRemAccessErr     WCStatus = 10 // the access to the peer's memory was not permitted
	WCRemOpErr         WCStatus = 11 // the peer could not complete the operation
	WCRetryExcErr      WCStatus = 12 // the peer did not acknowledge
	WCRNRRetryExcErr   WCStatus = 13 // the peer had no receive posted
	WCLocRDDViolErr    WCStatus = 14
	WCRemInvRdReqErr   WCStatus = 15
	WCRemAbortErr      WCStatus = 16
	WCInvEECNErr       WCStatus = 17
	WCInvEECStateErr   WCStatus = 18
	WCFatalErr         WCStatus = 19
	WCRespTimeoutErr   WCStatus = 20
	WCGeneralErr       WCStatus = 21
	WCTMErr            WCStatus = 22
	WCTMRndvIncomplete WCStatus = 23
)

var wcStatusNames = []string{
	"IBV_WC_SUCCESS", "IBV_WC_LOC_LEN_ERR", "IBV_WC_LOC_QP_OP_ERR", "IBV_WC_LOC_EEC_OP_ERR", "IBV_WC_LOC_PROT_ERR",
	"IBV_WC_WR_FLUSH_ERR", "IBV_WC_MW_BIND_ERR", "IBV_WC_BAD_RESP_ERR", "IBV_WC_LOC_ACCESS_ERR", "IBV_WC_REM_INV_REQ_ERR",
	"IBV_WC_REM_ACCESS_ERR", "IBV_WC_REM_OP_ERR", "IBV_WC_RETRY_EXC_ERR", "IBV_WC_RNR_RETRY_EXC_ERR", "IBV_WC_LOC_RDD_VIOL_ERR",
	"IBV_WC_REM_INV_RD_REQ_ERR", "IBV_WC_REM_ABORT_ERR", "IBV_WC_INV_EECN_ERR", "IBV_WC_INV_EEC_STATE_ERR", "IBV_WC_FATAL_ERR",
	"IBV_WC_RESP_TIMEOUT_ERR", "IBV_WC_GENERAL_ERR", "IBV_WC_TM_ERR", "IBV_WC_TM_RNDV_INCOMPLETE",
}

func (s WCStatus) String() string { return name(wcStatusNames, int32(s), "ibv_wc_status") }

// Text returns the library's description of the status.
//
// Implements: const char *ibv_wc_status_str(enum ibv_wc_status status)
func (s WCStatus) Text() string { return cgo.WCStatusString(int32(s)) }

// A WCOpcode is the operation that was completed, see ibv_poll_cq(3).
type WCOpcode int32

// Completed operations. Those of receives contain the bit WCRecv.
const (
	WCSend            WCOpcode = 0
	WCRDMAWrite       WCOpcode = 1
	WCRDMARead        WCOpcode = 2
	WCCompSwap        WCOpcode = 3
	WCFetchAdd        WCOpcode = 4
	WCBindMW          WCOpcode = 5
	WCLocalInv        WCOpcode = 6
	WCRecv            WCOpcode = 128
	WCRecvRDMAWithImm WCOpcode = 129
)

// IsRecv reports whether a receive was completed.
func (o WCOpcode) IsRecv() bool { return o&WCRecv != 0 }

func (o WCOpcode) String() string {
	switch o {
	case WCRecv:
		return "IBV_WC_RECV"
	case WCRecvRDMAWithImm:
		return "IBV_WC_RECV_RDMA_WITH_IMM"
	}
	return name([]string{
		"IBV_WC_SEND", "IBV_WC_RDMA_WRITE", "IBV_WC_RDMA_READ", "IBV_WC_COMP_SWAP", "IBV_WC_FETCH_ADD", "IBV_WC_BIND_MW", "IBV_WC_LOCAL_INV",
	}, int32(o), "ibv_wc_opcode")
}

// WCFlags report which other fields of a completion are valid, see ibv_poll_cq(3).
type WCFlags uint32

// Flags of completions.
const (
	WCGRH     WCFlags = 1 << 0
	WCWithImm WCFlags = 1 << 1 // ImmData
	WCWithInv WCFlags = 1 << 3 // InvalidatedRKey
)

func (f WCFlags) String() string {
	return flagString(uint32(f), []string{"IBV_WC_GRH", "IBV_WC_WITH_IMM", "IBV_WC_IP_CSUM_OK", "IBV_WC_WITH_INV"})
}

// A WC is a completion, see ibv_poll_cq(3). Unless Status is WCSuccess, only ID, Status, VendorErr and QPNum are valid.
type WC struct {
	ID           uint64 // of the work request
	Status       WCStatus
	Opcode       WCOpcode
	VendorErr    uint32 // a code of the device's vendor
	ByteLen      uint32 // of the received message, or of the data read
	imm          uint32 // in network byte order, or a key
	QPNum        uint32 // of the queue pair on this side
	SrcQP        uint32
	Flags        WCFlags
	PkeyIndex    uint16
	SLID         uint16
	SL           uint8
	DLIDPathBits uint8
	_            [2]uint8
}

// WC has the layout of cgo.WC, so C fills it in. A test compares the layout with the C compiler's.
const (
	_ = uint(unsafe.Sizeof(WC{}) - unsafe.Sizeof(cgo.WC{}))
	_ = uint(unsafe.Sizeof(cgo.WC{}) - unsafe.Sizeof(WC{}))
)

// ImmData returns the immediate data that came with the message, if Flags has WCWithImm.
func (wc *WC) ImmData() uint32 { return htonl(wc.imm) }

// InvalidatedRKey returns the key that the message invalidated, if Flags has WCWithInv.
func (wc *WC) InvalidatedRKey() uint32 { return wc.imm }

// Err returns nil for success and otherwise a [*WCError].
func (wc *WC) Err() error {
	if wc.Status == WCSuccess {
		return nil
	}
	return &WCError{ID: wc.ID, Status: wc.Status, VendorErr: wc.VendorErr, QPNum: wc.QPNum}
}

// A WCError is a failed work request: the valid fields of its completion.
type WCError struct {
	ID        uint64
	Status    WCStatus
	VendorErr uint32
	QPNum     uint32
}

func (e *WCError) Error() string {
	s := fmt.Sprintf("ibv: work request %#x of queue pair %d: %v: %s", e.ID, e.QPNum, e.Status, e.Status.Text())
	if e.VendorErr != 0 {
		s += fmt.Sprintf(" (vendor error %#x)", e.VendorErr)
	}
	return s
}

// name returns the name of a number. If the number has no name, it returns the enum and the number.
func name(names []string, n int32, enum string) string {
	if n >= 0 && int(n) < len(names) && names[n] != "" {
		return names[n]
	}
	return fmt.Sprintf("%s %d", enum, n)
}

// flagString joins the names of the bits of a set.
func flagString(set uint32, names []string) string {
	if set == 0 {
		return "0"
	}
	var parts []string
	for ; set != 0; set &= set - 1 {
		bit := bits.TrailingZeros32(set)
		if bit < len(names) && names[bit] != "" {
			parts = append(parts, names[bit])
		} else {
			parts = append(parts, fmt.Sprintf("1<<%d", bit))
		}
	}
	return strings.Join(parts, "|")
}
