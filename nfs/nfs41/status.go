package nfs41

import "fmt"

// Status is nfsstat4, the result of an operation or of a whole COMPOUND. RFC 8881
// section 15.1.
type Status uint32

// Results of operations.
const (
	StatusOK                    Status = 0
	StatusPerm                  Status = 1
	StatusNoEnt                 Status = 2
	StatusIO                    Status = 5
	StatusNXIO                  Status = 6
	StatusAccess                Status = 13
	StatusExist                 Status = 17
	StatusXDev                  Status = 18
	StatusNotDir                Status = 20
	StatusIsDir                 Status = 21
	StatusInval                 Status = 22
	StatusFBig                  Status = 27
	StatusNoSpc                 Status = 28
	StatusROFS                  Status = 30
	StatusMLink                 Status = 31
	StatusNameTooLong           Status = 63
	StatusNotEmpty              Status = 66
	StatusDQuot                 Status = 69
	StatusStale                 Status = 70
	StatusBadHandle             Status = 10001
	StatusBadCookie             Status = 10003
	StatusNotSupp               Status = 10004
	StatusTooSmall              Status = 10005
	StatusServerFault           Status = 10006
	StatusBadType               Status = 10007
	StatusDelay                 Status = 10008
	StatusSame                  Status = 10009
	StatusDenied                Status = 10010
	StatusExpired               Status = 10011
	StatusLocked                Status = 10012
	StatusGrace                 Status = 10013
	StatusFHExpired             Status = 10014
	StatusShareDenied           Status = 10015
	StatusWrongSec              Status = 10016
	StatusClidInUse             Status = 10017
	StatusResource              Status = 10018
	StatusMoved                 Status = 10019
	StatusNoFileHandle          Status = 10020
	StatusMinorVersMismatch     Status = 10021
	StatusStaleClientID         Status = 10022
	StatusStaleStateID          Status = 10023
	StatusOldStateID            Status = 10024
	StatusBadStateID            Status = 10025
	StatusBadSeqID              Status = 10026
	StatusNotSame               Status = 10027
	StatusLockRange             Status = 10028
	StatusSymlink               Status = 10029
	StatusRestoreFH             Status = 10030
	StatusLeaseMoved            Status = 10031
	StatusAttrNotSupp           Status = 10032
	StatusNoGrace               Status = 10033
	StatusReclaimBad            Status = 10034
	StatusReclaimConflict       Status = 10035
	StatusBadXDR                Status = 10036
	StatusLocksHeld             Status = 10037
	StatusOpenMode              Status = 10038
	StatusBadOwner              Status = 10039
	StatusBadChar               Status = 10040
	StatusBadName               Status = 10041
	StatusBadRange              Status = 10042
	StatusLockNotsupp           Status = 10043
	StatusOpIllegal             Status = 10044
	StatusDeadlock              Status = 10045
	StatusFileOpen              Status = 10046
	StatusAdminRevoked          Status = 10047
	StatusCBPathDown            Status = 10048
	StatusBadIOMode             Status = 10049
	StatusBadLayout             Status = 10050
	StatusBadSessionDigest      Status = 10051
	StatusBadSession            Status = 10052
	StatusBadSlot               Status = 10053
	StatusCompleteAlready       Status = 10054
	StatusConnNotBoundToSession Status = 10055
	StatusDelegAlreadyWanted    Status = 10056
	StatusBackChanBusy          Status = 10057
	StatusLayoutTryLater        Status = 10058
	StatusLayoutUnavailable     Status = 10059
	StatusNomatchingLayout      Status = 10060
	StatusRecallConflict        Status = 10061
	StatusUnknownLayouttype     Status = 10062
	StatusSeqMisordered         Status = 10063
	StatusSequencePos           Status = 10064
	StatusReqTooBig             Status = 10065
	StatusRepTooBig             Status = 10066
	StatusRepTooBigToCache      Status = 10067
	StatusRetryUncachedRep      Status = 10068
	StatusUnsafeCompound        Status = 10069
	StatusTooManyOps            Status = 10070
	StatusOpNotInSession        Status = 10071
	StatusHashAlgUnsupp         Status = 10072
	StatusClientIDBusy          Status = 10074
	StatusPNFSIOHole            Status = 10075
	StatusSeqFalseRetry         Status = 10076
	StatusBadHighSlot           Status = 10077
	StatusDeadSession           Status = 10078
	StatusEncrAlgUnsupp         Status = 10079
	StatusPNFSNoLayout          Status = 10080
	StatusNotOnlyOp             Status = 10081
	StatusWrongCred             Status = 10082
	StatusWrongType             Status = 10083
	StatusDirDelegUnavail       Status = 10084
	StatusRejectDeleg           Status = 10085
	StatusReturnConflict        Status = 10086
	StatusDelegRevoked          Status = 10087
)

// String is the RFC's name, such as "NFS4ERR_BADSESSION".
func (s Status) String() string {
	switch s {
	case StatusOK:
		return "NFS4_OK"
	case StatusPerm:
		return "NFS4ERR_PERM"
	case StatusNoEnt:
		return "NFS4ERR_NOENT"
	case StatusIO:
		return "NFS4ERR_IO"
	case StatusNXIO:
		return "NFS4ERR_NXIO"
	case StatusAccess:
		return "NFS4ERR_ACCESS"
	case StatusExist:
		return "NFS4ERR_EXIST"
	case StatusXDev:
		return "NFS4ERR_XDEV"
	case StatusNotDir:
		return "NFS4ERR_NOTDIR"
	case StatusIsDir:
		return "NFS4ERR_ISDIR"
	case StatusInval:
		return "NFS4ERR_INVAL"
	case StatusFBig:
		return "NFS4ERR_FBIG"
	case StatusNoSpc:
		return "NFS4ERR_NOSPC"
	case StatusROFS:
		return "NFS4ERR_ROFS"
	case StatusMLink:
		return "NFS4ERR_MLINK"
	case StatusNameTooLong:
		return "NFS4ERR_NAMETOOLONG"
	case StatusNotEmpty:
		return "NFS4ERR_NOTEMPTY"
	case StatusDQuot:
		return "NFS4ERR_DQUOT"
	case StatusStale:
		return "NFS4ERR_STALE"
	case StatusBadHandle:
		return "NFS4ERR_BADHANDLE"
	case StatusBadCookie:
		return "NFS4ERR_BAD_COOKIE"
	case StatusNotSupp:
		return "NFS4ERR_NOTSUPP"
	case StatusTooSmall:
		return "NFS4ERR_TOOSMALL"
	case StatusServerFault:
		return "NFS4ERR_SERVERFAULT"
	case StatusBadType:
		return "NFS4ERR_BADTYPE"
	case StatusDelay:
		return "NFS4ERR_DELAY"
	case StatusSame:
		return "NFS4ERR_SAME"
	case StatusDenied:
		return "NFS4ERR_DENIED"
	case StatusExpired:
		return "NFS4ERR_EXPIRED"
	case StatusLocked:
		return "NFS4ERR_LOCKED"
	case StatusGrace:
		return "NFS4ERR_GRACE"
	case StatusFHExpired:
		return "NFS4ERR_FHEXPIRED"
	case StatusShareDenied:
		return "NFS4ERR_SHARE_DENIED"
	case StatusWrongSec:
		return "NFS4ERR_WRONGSEC"
	case StatusClidInUse:
		return "NFS4ERR_CLID_INUSE"
	case StatusResource:
		return "NFS4ERR_RESOURCE"
	case StatusMoved:
		return "NFS4ERR_MOVED"
	case StatusNoFileHandle:
		return "NFS4ERR_NOFILEHANDLE"
	case StatusMinorVersMismatch:
		return "NFS4ERR_MINOR_VERS_MISMATCH"
	case StatusStaleClientID:
		return "NFS4ERR_STALE_CLIENTID"
	case StatusStaleStateID:
		return "NFS4ERR_STALE_STATEID"
	case StatusOldStateID:
		return "NFS4ERR_OLD_STATEID"
	case StatusBadStateID:
		return "NFS4ERR_BAD_STATEID"
	case StatusBadSeqID:
		return "NFS4ERR_BAD_SEQID"
	case StatusNotSame:
		return "NFS4ERR_NOT_SAME"
	case StatusLockRange:
		return "NFS4ERR_LOCK_RANGE"
	case StatusSymlink:
		return "NFS4ERR_SYMLINK"
	case StatusRestoreFH:
		return "NFS4ERR_RESTOREFH"
	case StatusLeaseMoved:
		return "NFS4ERR_LEASE_MOVED"
	case StatusAttrNotSupp:
		return "NFS4ERR_ATTRNOTSUPP"
	case StatusNoGrace:
		return "NFS4ERR_NO_GRACE"
	case StatusReclaimBad:
		return "NFS4ERR_RECLAIM_BAD"
	case StatusReclaimConflict:
		return "NFS4ERR_RECLAIM_CONFLICT"
	case StatusBadXDR:
		return "NFS4ERR_BADXDR"
	case StatusLocksHeld:
		return "NFS4ERR_LOCKS_HELD"
	case StatusOpenMode:
		return "NFS4ERR_OPENMODE"
	case StatusBadOwner:
		return "NFS4ERR_BADOWNER"
	case StatusBadChar:
		return "NFS4ERR_BADCHAR"
	case StatusBadName:
		return "NFS4ERR_BADNAME"
	case StatusBadRange:
		return "NFS4ERR_BAD_RANGE"
	case StatusLockNotsupp:
		return "NFS4ERR_LOCK_NOTSUPP"
	case StatusOpIllegal:
		return "NFS4ERR_OP_ILLEGAL"
	case StatusDeadlock:
		return "NFS4ERR_DEADLOCK"
	case StatusFileOpen:
		return "NFS4ERR_FILE_OPEN"
	case StatusAdminRevoked:
		return "NFS4ERR_ADMIN_REVOKED"
	case StatusCBPathDown:
		return "NFS4ERR_CB_PATH_DOWN"
	case StatusBadIOMode:
		return "NFS4ERR_BADIOMODE"
	case StatusBadLayout:
		return "NFS4ERR_BADLAYOUT"
	case StatusBadSessionDigest:
		return "NFS4ERR_BAD_SESSION_DIGEST"
	case StatusBadSession:
		return "NFS4ERR_BADSESSION"
	case StatusBadSlot:
		return "NFS4ERR_BADSLOT"
	case StatusCompleteAlready:
		return "NFS4ERR_COMPLETE_ALREADY"
	case StatusConnNotBoundToSession:
		return "NFS4ERR_CONN_NOT_BOUND_TO_SESSION"
	case StatusDelegAlreadyWanted:
		return "NFS4ERR_DELEG_ALREADY_WANTED"
	case StatusBackChanBusy:
		return "NFS4ERR_BACK_CHAN_BUSY"
	case StatusLayoutTryLater:
		return "NFS4ERR_LAYOUTTRYLATER"
	case StatusLayoutUnavailable:
		return "NFS4ERR_LAYOUTUNAVAILABLE"
	case StatusNomatchingLayout:
		return "NFS4ERR_NOMATCHING_LAYOUT"
	case StatusRecallConflict:
		return "NFS4ERR_RECALLCONFLICT"
	case StatusUnknownLayouttype:
		return "NFS4ERR_UNKNOWN_LAYOUTTYPE"
	case StatusSeqMisordered:
		return "NFS4ERR_SEQ_MISORDERED"
	case StatusSequencePos:
		return "NFS4ERR_SEQUENCE_POS"
	case StatusReqTooBig:
		return "NFS4ERR_REQ_TOO_BIG"
	case StatusRepTooBig:
		return "NFS4ERR_REP_TOO_BIG"
	case StatusRepTooBigToCache:
		return "NFS4ERR_REP_TOO_BIG_TO_CACHE"
	case StatusRetryUncachedRep:
		return "NFS4ERR_RETRY_UNCACHED_REP"
	case StatusUnsafeCompound:
		return "NFS4ERR_UNSAFE_COMPOUND"
	case StatusTooManyOps:
		return "NFS4ERR_TOO_MANY_OPS"
	case StatusOpNotInSession:
		return "NFS4ERR_OP_NOT_IN_SESSION"
	case StatusHashAlgUnsupp:
		return "NFS4ERR_HASH_ALG_UNSUPP"
	case StatusClientIDBusy:
		return "NFS4ERR_CLIENTID_BUSY"
	case StatusPNFSIOHole:
		return "NFS4ERR_PNFS_IO_HOLE"
	case StatusSeqFalseRetry:
		return "NFS4ERR_SEQ_FALSE_RETRY"
	case StatusBadHighSlot:
		return "NFS4ERR_BAD_HIGH_SLOT"
	case StatusDeadSession:
		return "NFS4ERR_DEADSESSION"
	case StatusEncrAlgUnsupp:
		return "NFS4ERR_ENCR_ALG_UNSUPP"
	case StatusPNFSNoLayout:
		return "NFS4ERR_PNFS_NO_LAYOUT"
	case StatusNotOnlyOp:
		return "NFS4ERR_NOT_ONLY_OP"
	case StatusWrongCred:
		return "NFS4ERR_WRONG_CRED"
	case StatusWrongType:
		return "NFS4ERR_WRONG_TYPE"
	case StatusDirDelegUnavail:
		return "NFS4ERR_DIRDELEG_UNAVAIL"
	case StatusRejectDeleg:
		return "NFS4ERR_REJECT_DELEG"
	case StatusReturnConflict:
		return "NFS4ERR_RETURNCONFLICT"
	case StatusDelegRevoked:
		return "NFS4ERR_DELEG_REVOKED"
	}
	return fmt.Sprintf("nfsstat4 %d", uint32(s))
}
