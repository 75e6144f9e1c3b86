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

// An Access is a call, as Config.Access sees it. Names are the client's bytes, whatever
// they are.
type Access struct {
	Time     time.Time     // when the server began with it
	Duration time.Duration // until there were results; the wait for the file system's turn is in it

	Client           netip.AddrPort // the zero AddrPort: it is not known
	Prog, Vers, Proc uint32

	// Flavor is that of the credential, and UID and GID are from it: a claim, and nothing without
	// oncrpc.FlavorSys.
	Flavor   oncrpc.Flavor
	UID, GID uint32

	// Principal is the caller that RPCSEC_GSS has authenticated, with the service of the call. Nil: none.
	Principal *rpc.Principal

	// Export is the export that the call was about, and AsUID and AsGID are the user and group that it was executed as
	// there. Nil: the call did not get that far, and was not executed. It belongs to the
	// server and does not change.
	Export       *Export
	AsUID, AsGID uint32

	// Object is that of the handle in the arguments, and Made that of the handle in the results: of
	// LOOKUP, for example. To is the directory that RENAME and LINK put a name in. 0: none was named.
	Object, To, Made Object

	// Name is the name in the arguments, and NewName the one that RENAME and LINK make. Of MOUNT's
	// procedures Name is the path.
	Name, NewName string

	// Offset and Bytes are the range that READ read or WRITE wrote.
	Offset uint64
	Bytes  int

	// Fail or Deny say why the call was refused by RPC, before or instead of its execution.
	// Otherwise Status is that of the results. That of MNT is the nfs.MountStatus of the same number;
	// procedures without one have nfs.StatusOK.
	Fail   oncrpc.AcceptStat
	Deny   oncrpc.AuthStat
	Status nfs.Status
}

// An Object stands for an object of a file system: a hash of its handle without the signature, so
// that it shows nothing that handles could be made from. It is the same as long as the handle is, and
// unique among the objects of a log, as far as a hash can be.
type Object uint64

// String is the number in hexadecimal, 16 digits.
func (o Object) String() string { return fmt.Sprintf("%016x", uint64(o)) }

// objectOf returns the Object of a handle as clients see it, never 0. The hash is FNV-1a.
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

// told is collected by a call for its Access.
type told struct {
	results int // length of the results before the call's own
	access  Access
}

// begin is called when a call begins that has an Access.
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
	*a = Access{} // its references
}

// tellStatus fills in the status, which is the first word of the results.
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

// tellNew notes the name that a call makes.
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
