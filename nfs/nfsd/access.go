package nfsd

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"time"

	"github.com/rpcrdma/rpcrdma/nfs"
	"github.com/rpcrdma/rpcrdma/proto/oncrpc"
	"github.com/rpcrdma/rpcrdma/proto/xdr"
	"github.com/rpcrdma/rpcrdma/rpc"
)

// An Access describes a call, for Config.Access. Names are the client's bytes, which may be anything.
type Access struct {
	Time     time.Time     // when the server began executing it
	Duration time.Duration // until its results were complete, including the wait for the file system

	Client           netip.AddrPort // the zero AddrPort if unknown
	Prog, Vers, Proc uint32

	// Flavor, UID and GID come from the credential. UID and GID are set only with oncrpc.FlavorSys, and are unverified
	// claims.
	Flavor   oncrpc.Flavor
	UID, GID uint32

	// Principal is the caller authenticated by RPCSEC_GSS, with the service of the call. Nil if none exists.
	Principal *rpc.Principal

	// Export is the export that the call refers to, and AsUID and AsGID are the user and group as which it was
	// executed. A nil Export means that the call was refused before that. The Export belongs to the server and does not
	// change.
	Export       *Export
	AsUID, AsGID uint32

	// Object identifies the handle in the arguments, and Made the handle in the results, for example of LOOKUP. To is
	// the target directory of RENAME and LINK. 0 means that none exists.
	Object, To, Made Object

	// Name is the name in the arguments, and NewName the one that RENAME and LINK create. For MOUNT procedures Name is
	// the path.
	Name, NewName string

	// Offset and Bytes are the range read by READ or written by WRITE.
	Offset uint64
	Bytes  int

	// Fail or Deny says why RPC refused the call, before or instead of executing it. Otherwise Status is the status in
	// the results. For MNT it is the nfs.MountStatus with the same number, and for procedures without a status it is
	// nfs.StatusOK.
	Fail   oncrpc.AcceptStat
	Deny   oncrpc.AuthStat
	Status nfs.Status
}

// An Object identifies an object of a file system. It is a hash of the object's handle without the signature, so that
// handles cannot be derived from it. It is as stable as the handle, and unique among the objects of a log, hash
// collisions aside.
type Object uint64

// String returns the number as 16 hexadecimal digits.
func (o Object) String() string { return fmt.Sprintf("%016x", uint64(o)) }

// objectOf returns the Object of a handle as clients see it. It is never 0. The hash is FNV-1a.
func objectOf(fh []byte) Object {
	const offset, prime = 14695981039346656037, 1099511628211
	h := uint64(offset)
	for i, b := range fh {
		if len(fh) > sealSize && i >= handleMAC && i < sealSize {
			continue
		}
		h = (h ^ uint64(b)) * prime
	}
	return Object(max(h, 1))
}

// told is the data that a call collects for its Access.
type told struct {
	results int // length of the results before those of the call
	access  Access
}

// begin starts the Access of a call.
func (t *told) begin(results int) { *t = told{results: results, access: Access{Time: time.Now()}} }

// tell reports the call.
func (c *call) tell() {
	t := &c.told
	a := &t.access
	a.Client, a.Prog, a.Vers, a.Proc = c.req.Conn().RemoteAddrPort(), c.req.Prog, c.req.Vers, c.req.Proc
	a.Flavor, a.Principal, a.Export = c.req.Cred.Flavor, c.claim.principal, c.export
	status := c.res.Status()
	a.Fail, a.Deny = status.AcceptStat, status.AuthStat
	if sys, ok := c.req.AuthSys(); ok {
		a.UID, a.GID = sys.UID, sys.GID
	}
	if c.export != nil {
		a.AsUID, a.AsGID = c.who.UID, c.who.GID
	}
	c.tellStatus(a)
	a.Duration = time.Since(a.Time)
	c.observe(a)
	*a = Access{} // drops its references
}

// tellStatus sets the status, which is the first word of the results.
func (c *call) tellStatus(a *Access) {
	if a.Fail != oncrpc.Success || a.Deny != oncrpc.AuthOK || a.Prog == nfs.MountProgram && a.Proc != nfs.MountProcMnt {
		return
	}
	if len(c.res.Results) < c.told.results+xdr.Unit {
		a.Fail = oncrpc.SystemErr // the file system has panicked
		return
	}
	a.Status = nfs.Status(binary.BigEndian.Uint32(c.res.Results[c.told.results:]))
}

// tellNew records the name that a call creates.
func (c *call) tellNew(at *nfs.DirOpArgs) {
	if c.observe != nil {
		c.told.access.To, c.told.access.NewName = c.objectIn(&at.Dir), at.Name
	}
}

// objectIn returns the Object of a handle in the arguments.
func (c *call) objectIn(fh *nfs.FileHandle) Object {
	c.fh = fh.Append(c.fh[:0])
	return objectOf(c.fh[xdr.Unit:][:binary.BigEndian.Uint32(c.fh)])
}
