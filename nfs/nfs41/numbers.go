package nfs41

import (
	"fmt"
	"strings"
)

// Numbers of the NFS version 4 program, and of the callback program served by clients. RFC 8881 section 1.1 and the XDR
// of RFC 5662.
const (
	Program uint32 = 100003
	Version uint32 = 4
	Minor   uint32 = 1 // minorversion

	// CallbackVersion is the only version of the callback program. The program number is set
	// by CREATE_SESSION; RFC 5662 suggests CallbackProgram.
	CallbackVersion uint32 = 1
	CallbackProgram uint32 = 0x40000000
)

// Procedures of both programs. Number 0 is NULL and CB_NULL. RFC 8881 sections 16.1,
// 16.2, 19.1 and 19.2.
const (
	ProcNull     uint32 = 0
	ProcCompound uint32 = 1 // COMPOUND, CB_COMPOUND
)

// Operations of COMPOUND. RFC 8881 section 16.2.3; those of this package are described
// in section 18.
const (
	OpAccess            uint32 = 3
	OpClose             uint32 = 4
	OpDelegReturn       uint32 = 8
	OpGetAttr           uint32 = 9
	OpGetFH             uint32 = 10
	OpLookup            uint32 = 15
	OpLookupP           uint32 = 16
	OpOpen              uint32 = 18
	OpPutFH             uint32 = 22
	OpPutPubFH          uint32 = 23
	OpPutRootFH         uint32 = 24
	OpReadDir           uint32 = 26
	OpRestoreFH         uint32 = 31
	OpSaveFH            uint32 = 32
	OpSecInfo           uint32 = 33
	OpBindConnToSession uint32 = 41
	OpExchangeID        uint32 = 42
	OpCreateSession     uint32 = 43
	OpDestroySession    uint32 = 44
	OpSecInfoNoName     uint32 = 52
	OpSequence          uint32 = 53
	OpDestroyClientID   uint32 = 57
	OpReclaimComplete   uint32 = 58

	// OpIllegal is the operation number in the result of an unknown operation: section 18.52.
	OpIllegal uint32 = 10044
)

// Operations of CB_COMPOUND. RFC 8881 section 19.2.3; those of this package are
// described in section 20.
const (
	OpCBRecall    uint32 = 4
	OpCBRecallAny uint32 = 8
	OpCBSequence  uint32 = 11

	// OpCBIllegal is OpIllegal for callbacks: section 20.13.
	OpCBIllegal uint32 = 10044
)

// The first and last operation numbers.
const (
	firstOp, lastOp     = 3, 58
	firstCBOp, lastCBOp = 3, 14
)

// OpName returns the RFC's name of a COMPOUND operation, such as "SEQUENCE". It returns the decimal number if unknown.
func OpName(op uint32) string {
	switch {
	case op >= firstOp && op <= lastOp:
		return opNames[op-firstOp]
	case op == OpIllegal:
		return "ILLEGAL"
	}
	return fmt.Sprintf("operation %d", op)
}

var opNames = [...]string{
	"ACCESS", "CLOSE", "COMMIT", "CREATE", "DELEGPURGE", "DELEGRETURN", "GETATTR", "GETFH",
	"LINK", "LOCK", "LOCKT", "LOCKU", "LOOKUP", "LOOKUPP", "NVERIFY", "OPEN", "OPENATTR",
	"OPEN_CONFIRM", "OPEN_DOWNGRADE", "PUTFH", "PUTPUBFH", "PUTROOTFH", "READ", "READDIR",
	"READLINK", "REMOVE", "RENAME", "RENEW", "RESTOREFH", "SAVEFH", "SECINFO", "SETATTR",
	"SETCLIENTID", "SETCLIENTID_CONFIRM", "VERIFY", "WRITE", "RELEASE_LOCKOWNER",
	"BACKCHANNEL_CTL", "BIND_CONN_TO_SESSION", "EXCHANGE_ID", "CREATE_SESSION",
	"DESTROY_SESSION", "FREE_STATEID", "GET_DIR_DELEGATION", "GETDEVICEINFO",
	"GETDEVICELIST", "LAYOUTCOMMIT", "LAYOUTGET", "LAYOUTRETURN", "SECINFO_NO_NAME",
	"SEQUENCE", "SET_SSV", "TEST_STATEID", "WANT_DELEGATION", "DESTROY_CLIENTID",
	"RECLAIM_COMPLETE",
}

// CBOpName returns the RFC's name of a CB_COMPOUND operation, such as "CB_SEQUENCE". It returns the decimal number if
// unknown.
func CBOpName(op uint32) string {
	switch {
	case op >= firstCBOp && op <= lastCBOp:
		return cbOpNames[op-firstCBOp]
	case op == OpCBIllegal:
		return "CB_ILLEGAL"
	}
	return fmt.Sprintf("callback operation %d", op)
}

var cbOpNames = [...]string{
	"CB_GETATTR", "CB_RECALL", "CB_LAYOUTRECALL", "CB_NOTIFY", "CB_PUSH_DELEG",
	"CB_RECALL_ANY", "CB_RECALLABLE_OBJ_AVAIL", "CB_RECALL_SLOT", "CB_SEQUENCE",
	"CB_WANTS_CANCELLED", "CB_NOTIFY_LOCK", "CB_NOTIFY_DEVICEID",
}

// Flags of EXCHANGE_ID. RFC 8881 section 18.35.3.
const (
	exchangeSuppMovedRefer   uint32 = 0x00000001
	exchangeSuppMovedMigr    uint32 = 0x00000002
	exchangeBindPrincStateID uint32 = 0x00000100
	exchangeUseNonPNFS       uint32 = 0x00010000
	exchangeUsePNFSMDS       uint32 = 0x00020000
	exchangeUsePNFSDS        uint32 = 0x00040000
	exchangeUpdConfirmedRecA uint32 = 0x40000000 // in arguments
	exchangeConfirmedR       uint32 = 0x80000000 // in results
	exchangeArgs                    = exchangeSuppMovedRefer | exchangeSuppMovedMigr | exchangeBindPrincStateID | exchangePNFS | exchangeUpdConfirmedRecA
	exchangePNFS                    = exchangeUseNonPNFS | exchangeUsePNFSMDS | exchangeUsePNFSDS
)

// Flags of CREATE_SESSION. RFC 8881 section 18.36.3.
const (
	SessionPersist      uint32 = 1
	SessionConnBackChan uint32 = 2
	SessionConnRDMA     uint32 = 4
)

// Directions of BIND_CONN_TO_SESSION in arguments and results. RFC 8881 section 18.34.
const (
	fromClientFore       uint32 = 1 // CDFC4_FORE
	fromClientBack       uint32 = 2 // CDFC4_BACK
	fromClientForeOrBoth uint32 = 3 // CDFC4_FORE_OR_BOTH
	fromClientBackOrBoth uint32 = 7 // CDFC4_BACK_OR_BOTH

	fromServerFore uint32 = 1 // CDFS4_FORE
	fromServerBack uint32 = 2 // CDFS4_BACK
	fromServerBoth uint32 = 3 // CDFS4_BOTH
)

// Flags of SEQUENCE.
const (
	SeqCBPathDown             SeqFlags = 0x001 // no session of the client has a backchannel
	SeqCBGSSContextsExpiring  SeqFlags = 0x002
	SeqCBGSSContextsExpired   SeqFlags = 0x004
	SeqExpiredAllStateRevoked SeqFlags = 0x008
	SeqExpiredSomeRevoked     SeqFlags = 0x010
	SeqAdminStateRevoked      SeqFlags = 0x020
	SeqRecallableRevoked      SeqFlags = 0x040
	SeqLeaseMoved             SeqFlags = 0x080
	SeqRestartReclaimNeeded   SeqFlags = 0x100
	SeqCBPathDownSession      SeqFlags = 0x200 // this session has no backchannel
	SeqBackchannelFault       SeqFlags = 0x400 // the server has lost track of the backchannel's slots
)

// String returns the RFC's names of the flags, joined by "|", or "0".
func (f SeqFlags) String() string {
	if f == 0 {
		return "0"
	}
	var names []string
	for i, name := range seqFlagNames {
		if bit := SeqFlags(1) << i; f&bit != 0 {
			names = append(names, "SEQ4_STATUS_"+name)
			f &^= bit
		}
	}
	if f != 0 {
		names = append(names, fmt.Sprintf("%#x", uint32(f)))
	}
	return strings.Join(names, "|")
}

var seqFlagNames = [...]string{
	"CB_PATH_DOWN", "CB_GSS_CONTEXTS_EXPIRING", "CB_GSS_CONTEXTS_EXPIRED",
	"EXPIRED_ALL_STATE_REVOKED", "EXPIRED_SOME_STATE_REVOKED", "ADMIN_STATE_REVOKED",
	"RECALLABLE_STATE_REVOKED", "LEASE_MOVED", "RESTART_RECLAIM_NEEDED",
	"CB_PATH_DOWN_SESSION", "BACKCHANNEL_FAULT",
}
