package nfs41

import "fmt"

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

// String returns the RFC's name, such as "NFS4ERR_BADSESSION".
func (s Status) String() string {
	name := ""
	if s < Status(len(statusNames)) {
		name = statusNames[s]
	} else if n := s - firstStatus; n < Status(len(nfsStatusNames)) {
		name = nfsStatusNames[n]
	}
	if name == "" {
		return fmt.Sprintf("nfsstat4 %d", uint32(s))
	}
	return name
}

// statusNames names the statuses that have the numbers of POSIX errors.
var statusNames = [...]string{
	StatusOK:          "NFS4_OK",
	StatusPerm:        "NFS4ERR_PERM",
	StatusNoEnt:       "NFS4ERR_NOENT",
	StatusIO:          "NFS4ERR_IO",
	StatusNXIO:        "NFS4ERR_NXIO",
	StatusAccess:      "NFS4ERR_ACCESS",
	StatusExist:       "NFS4ERR_EXIST",
	StatusXDev:        "NFS4ERR_XDEV",
	StatusNotDir:      "NFS4ERR_NOTDIR",
	StatusIsDir:       "NFS4ERR_ISDIR",
	StatusInval:       "NFS4ERR_INVAL",
	StatusFBig:        "NFS4ERR_FBIG",
	StatusNoSpc:       "NFS4ERR_NOSPC",
	StatusROFS:        "NFS4ERR_ROFS",
	StatusMLink:       "NFS4ERR_MLINK",
	StatusNameTooLong: "NFS4ERR_NAMETOOLONG",
	StatusNotEmpty:    "NFS4ERR_NOTEMPTY",
	StatusDQuot:       "NFS4ERR_DQUOT",
	StatusStale:       "NFS4ERR_STALE",
}

// firstStatus is the first status number that NFS defines itself.
const firstStatus = StatusBadHandle

var nfsStatusNames = [...]string{
	StatusBadHandle - firstStatus:             "NFS4ERR_BADHANDLE",
	StatusBadCookie - firstStatus:             "NFS4ERR_BAD_COOKIE",
	StatusNotSupp - firstStatus:               "NFS4ERR_NOTSUPP",
	StatusTooSmall - firstStatus:              "NFS4ERR_TOOSMALL",
	StatusServerFault - firstStatus:           "NFS4ERR_SERVERFAULT",
	StatusBadType - firstStatus:               "NFS4ERR_BADTYPE",
	StatusDelay - firstStatus:                 "NFS4ERR_DELAY",
	StatusSame - firstStatus:                  "NFS4ERR_SAME",
	StatusDenied - firstStatus:                "NFS4ERR_DENIED",
	StatusExpired - firstStatus:               "NFS4ERR_EXPIRED",
	StatusLocked - firstStatus:                "NFS4ERR_LOCKED",
	StatusGrace - firstStatus:                 "NFS4ERR_GRACE",
	StatusFHExpired - firstStatus:             "NFS4ERR_FHEXPIRED",
	StatusShareDenied - firstStatus:           "NFS4ERR_SHARE_DENIED",
	StatusWrongSec - firstStatus:              "NFS4ERR_WRONGSEC",
	StatusClidInUse - firstStatus:             "NFS4ERR_CLID_INUSE",
	StatusResource - firstStatus:              "NFS4ERR_RESOURCE",
	StatusMoved - firstStatus:                 "NFS4ERR_MOVED",
	StatusNoFileHandle - firstStatus:          "NFS4ERR_NOFILEHANDLE",
	StatusMinorVersMismatch - firstStatus:     "NFS4ERR_MINOR_VERS_MISMATCH",
	StatusStaleClientID - firstStatus:         "NFS4ERR_STALE_CLIENTID",
	StatusStaleStateID - firstStatus:          "NFS4ERR_STALE_STATEID",
	StatusOldStateID - firstStatus:            "NFS4ERR_OLD_STATEID",
	StatusBadStateID - firstStatus:            "NFS4ERR_BAD_STATEID",
	StatusBadSeqID - firstStatus:              "NFS4ERR_BAD_SEQID",
	StatusNotSame - firstStatus:               "NFS4ERR_NOT_SAME",
	StatusLockRange - firstStatus:             "NFS4ERR_LOCK_RANGE",
	StatusSymlink - firstStatus:               "NFS4ERR_SYMLINK",
	StatusRestoreFH - firstStatus:             "NFS4ERR_RESTOREFH",
	StatusLeaseMoved - firstStatus:            "NFS4ERR_LEASE_MOVED",
	StatusAttrNotSupp - firstStatus:           "NFS4ERR_ATTRNOTSUPP",
	StatusNoGrace - firstStatus:               "NFS4ERR_NO_GRACE",
	StatusReclaimBad - firstStatus:            "NFS4ERR_RECLAIM_BAD",
	StatusReclaimConflict - firstStatus:       "NFS4ERR_RECLAIM_CONFLICT",
	StatusBadXDR - firstStatus:                "NFS4ERR_BADXDR",
	StatusLocksHeld - firstStatus:             "NFS4ERR_LOCKS_HELD",
	StatusOpenMode - firstStatus:              "NFS4ERR_OPENMODE",
	StatusBadOwner - firstStatus:              "NFS4ERR_BADOWNER",
	StatusBadChar - firstStatus:               "NFS4ERR_BADCHAR",
	StatusBadName - firstStatus:               "NFS4ERR_BADNAME",
	StatusBadRange - firstStatus:              "NFS4ERR_BAD_RANGE",
	StatusLockNotsupp - firstStatus:           "NFS4ERR_LOCK_NOTSUPP",
	StatusOpIllegal - firstStatus:             "NFS4ERR_OP_ILLEGAL",
	StatusDeadlock - firstStatus:              "NFS4ERR_DEADLOCK",
	StatusFileOpen - firstStatus:              "NFS4ERR_FILE_OPEN",
	StatusAdminRevoked - firstStatus:          "NFS4ERR_ADMIN_REVOKED",
	StatusCBPathDown - firstStatus:            "NFS4ERR_CB_PATH_DOWN",
	StatusBadIOMode - firstStatus:             "NFS4ERR_BADIOMODE",
	StatusBadLayout - firstStatus:             "NFS4ERR_BADLAYOUT",
	StatusBadSessionDigest - firstStatus:      "NFS4ERR_BAD_SESSION_DIGEST",
	StatusBadSession - firstStatus:            "NFS4ERR_BADSESSION",
	StatusBadSlot - firstStatus:               "NFS4ERR_BADSLOT",
	StatusCompleteAlready - firstStatus:       "NFS4ERR_COMPLETE_ALREADY",
	StatusConnNotBoundToSession - firstStatus: "NFS4ERR_CONN_NOT_BOUND_TO_SESSION",
	StatusDelegAlreadyWanted - firstStatus:    "NFS4ERR_DELEG_ALREADY_WANTED",
	StatusBackChanBusy - firstStatus:          "NFS4ERR_BACK_CHAN_BUSY",
	StatusLayoutTryLater - firstStatus:        "NFS4ERR_LAYOUTTRYLATER",
	StatusLayoutUnavailable - firstStatus:     "NFS4ERR_LAYOUTUNAVAILABLE",
	StatusNomatchingLayout - firstStatus:      "NFS4ERR_NOMATCHING_LAYOUT",
	StatusRecallConflict - firstStatus:        "NFS4ERR_RECALLCONFLICT",
	StatusUnknownLayouttype - firstStatus:     "NFS4ERR_UNKNOWN_LAYOUTTYPE",
	StatusSeqMisordered - firstStatus:         "NFS4ERR_SEQ_MISORDERED",
	StatusSequencePos - firstStatus:           "NFS4ERR_SEQUENCE_POS",
	StatusReqTooBig - firstStatus:             "NFS4ERR_REQ_TOO_BIG",
	StatusRepTooBig - firstStatus:             "NFS4ERR_REP_TOO_BIG",
	StatusRepTooBigToCache - firstStatus:      "NFS4ERR_REP_TOO_BIG_TO_CACHE",
	StatusRetryUncachedRep - firstStatus:      "NFS4ERR_RETRY_UNCACHED_REP",
	StatusUnsafeCompound - firstStatus:        "NFS4ERR_UNSAFE_COMPOUND",
	StatusTooManyOps - firstStatus:            "NFS4ERR_TOO_MANY_OPS",
	StatusOpNotInSession - firstStatus:        "NFS4ERR_OP_NOT_IN_SESSION",
	StatusHashAlgUnsupp - firstStatus:         "NFS4ERR_HASH_ALG_UNSUPP",
	StatusClientIDBusy - firstStatus:          "NFS4ERR_CLIENTID_BUSY",
	StatusPNFSIOHole - firstStatus:            "NFS4ERR_PNFS_IO_HOLE",
	StatusSeqFalseRetry - firstStatus:         "NFS4ERR_SEQ_FALSE_RETRY",
	StatusBadHighSlot - firstStatus:           "NFS4ERR_BAD_HIGH_SLOT",
	StatusDeadSession - firstStatus:           "NFS4ERR_DEADSESSION",
	StatusEncrAlgUnsupp - firstStatus:         "NFS4ERR_ENCR_ALG_UNSUPP",
	StatusPNFSNoLayout - firstStatus:          "NFS4ERR_PNFS_NO_LAYOUT",
	StatusNotOnlyOp - firstStatus:             "NFS4ERR_NOT_ONLY_OP",
	StatusWrongCred - firstStatus:             "NFS4ERR_WRONG_CRED",
	StatusWrongType - firstStatus:             "NFS4ERR_WRONG_TYPE",
	StatusDirDelegUnavail - firstStatus:       "NFS4ERR_DIRDELEG_UNAVAIL",
	StatusRejectDeleg - firstStatus:           "NFS4ERR_REJECT_DELEG",
	StatusReturnConflict - firstStatus:        "NFS4ERR_RETURNCONFLICT",
	StatusDelegRevoked - firstStatus:          "NFS4ERR_DELEG_REVOKED",
}
