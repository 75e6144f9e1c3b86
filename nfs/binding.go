package nfs

import (
	"math"

	"github.com/rpcrdma/rpcrdma/proto/xdr"
	"github.com/rpcrdma/rpcrdma/transport"
)

// Binding is the upper-layer binding of NFS version 3 and MOUNT version 3 (RFC 8267 section 4,
// RFC 5667 section 4). These data items may be sent as chunks:
//
//	READ      the file's data, in the results    write chunk
//	READLINK  the link's path, in the results    write chunk
//	WRITE     the file's data, in the arguments  read chunk
//	SYMLINK   the link's path, in the arguments  read chunk
//
// MOUNT has none. Messages of other programs and versions, and messages that do not decode
// completely, have none either.
type Binding struct{}

var (
	_ transport.Binding     = Binding{}
	_ transport.Idempotence = Binding{}
)

// Encoded sizes in bytes. RFC 1813 section 2.5.
const (
	maxData    = 1<<32 - 1
	sizeAttr   = 84                     // fattr3
	sizePostOp = xdr.Unit + sizeAttr    // post_op_attr
	sizePreOp  = xdr.Unit + 24          // pre_op_attr
	sizeWcc    = sizePreOp + sizePostOp // wcc_data
	sizeHandle = xdr.Unit + MaxHandle   // nfs_fh3
	sizePostFH = xdr.Unit + sizeHandle  // post_op_fh3
)

// Bounds on results, in bytes.
const (
	// maxTransfer limits the counts of READ, READDIR and READDIRPLUS when they are used as a
	// bound on the results: the caller may set any 32-bit count, but servers stop at their
	// rtmax.
	maxTransfer = 16 << 20

	// maxMountList bounds the results of EXPORT and DUMP, whose length is not known in
	// advance.
	maxMountList = 64 << 10
)

// resultBound is the longest encoding of the results of each procedure, without
// chunk data and directory entries. The sums follow the XDR of RFC 1813 section
// 3.3, status first.
var resultBound = [...]int{
	ProcNull:        0,
	ProcGetAttr:     4 + sizeAttr,
	ProcSetAttr:     4 + sizeWcc,
	ProcLookup:      4 + sizeHandle + 2*sizePostOp,
	ProcAccess:      4 + sizePostOp + 4,
	ProcReadLink:    4 + sizePostOp + 4,
	ProcRead:        4 + sizePostOp + 4 + 4 + 4,
	ProcWrite:       4 + sizeWcc + 4 + 4 + VerfSize,
	ProcCreate:      4 + sizePostFH + sizePostOp + sizeWcc,
	ProcMkdir:       4 + sizePostFH + sizePostOp + sizeWcc,
	ProcSymlink:     4 + sizePostFH + sizePostOp + sizeWcc,
	ProcMknod:       4 + sizePostFH + sizePostOp + sizeWcc,
	ProcRemove:      4 + sizeWcc,
	ProcRmdir:       4 + sizeWcc,
	ProcRename:      4 + 2*sizeWcc,
	ProcLink:        4 + sizePostOp + sizeWcc,
	ProcReadDir:     4 + sizePostOp + VerfSize + 4 + 4,
	ProcReadDirPlus: 4 + sizePostOp + VerfSize + 4 + 4,
	ProcFSStat:      4 + sizePostOp + 6*8 + 4,
	ProcFSInfo:      4 + sizePostOp + 7*4 + 8 + 8 + 4,
	ProcPathConf:    4 + sizePostOp + 6*4,
	ProcCommit:      4 + sizeWcc + VerfSize,
}

// mountBound is resultBound for MOUNT. RFC 1813 section 5.2.
var mountBound = [...]int{
	MountProcNull:    0,
	MountProcMnt:     4 + sizeHandle + 4 + 4*maxFlavors,
	MountProcDump:    maxMountList,
	MountProcUmnt:    0,
	MountProcUmntAll: 0,
	MountProcExport:  maxMountList,
}

// Call finds the data of WRITE and the path of SYMLINK, and derives a bound of the results
// from the arguments.
func (Binding) Call(p transport.Procedure, args []byte, items []transport.Range) ([]transport.Range, transport.ReplyBounds) {
	items = items[:0]
	var bounds transport.ReplyBounds
	switch {
	case p.Prog == MountProgram && p.Vers == MountVersion:
		if p.Proc < uint32(len(mountBound)) {
			bounds.MaxResults = mountBound[p.Proc]
		}
		return items, bounds
	case p.Prog != Program || p.Vers != Version || p.Proc >= uint32(len(resultBound)):
		return items, bounds
	}
	bounds.MaxResults = resultBound[p.Proc]

	d := xdr.NewDecoder(args)
	switch p.Proc {
	case ProcReadLink:
		bounds.Items[0], bounds.NumItems = MaxPath, 1
	case ProcRead:
		skipHandle(&d)
		d.Uint64() // offset
		if count := d.Uint32(); d.End() == nil {
			bounds.Items[0], bounds.NumItems = transferBound(count), 1
		}
	case ProcReadDir:
		skipHandle(&d)
		d.Uint64() // cookie
		d.FixedOpaque(VerfSize)
		if count := d.Uint32(); d.End() == nil {
			bounds.MaxResults += transferBound(count)
		}
	case ProcReadDirPlus:
		skipHandle(&d)
		d.Uint64() // cookie
		d.FixedOpaque(VerfSize)
		dircount, maxcount := d.Uint32(), d.Uint32()
		if d.End() == nil {
			// maxcount limits the whole result, but some servers use dircount instead, so take
			// the larger one.
			bounds.MaxResults += transferBound(max(dircount, maxcount))
		}
	case ProcWrite:
		skipHandle(&d)
		d.Uint64() // offset
		d.Uint32() // count
		d.Uint32() // stable
		items = lastItem(&d, items)
	case ProcSymlink:
		skipHandle(&d)
		d.Opaque(maxData) // name
		skipSetAttr(&d)
		items = lastItem(&d, items)
	}
	return items, bounds
}

// Reply finds the data of READ and the path of READLINK, or, in reduced results, their
// position.
func (Binding) Reply(p transport.Procedure, results []byte, reduced bool, items []transport.Range) []transport.Range {
	items = items[:0]
	if p.Prog != Program || p.Vers != Version {
		return items
	}
	d := xdr.NewDecoder(results)
	switch p.Proc {
	case ProcRead:
		if !skipToData(&d) {
			return items
		}
		d.Uint32() // count
		d.Bool()   // eof
	case ProcReadLink:
		if !skipToData(&d) {
			return items
		}
	default:
		return items
	}
	if reduced {
		return lastLength(&d, items)
	}
	return lastItem(&d, items)
}

func transferBound(count uint32) int { return xdr.Padded(int(min(count, maxTransfer))) }

// skipToData reads status and post_op_attr. Only NFS3_OK is followed by data.
func skipToData(d *xdr.Decoder) bool {
	ok := Status(d.Uint32()) == StatusOK
	if d.Optional() {
		d.FixedOpaque(sizeAttr)
	}
	return ok
}

func skipHandle(d *xdr.Decoder) { d.Opaque(MaxHandle) }

func skipSetAttr(d *xdr.Decoder) {
	var s SetAttr
	s.Decode(d)
}

// lastItem appends the opaque item at the Decoder's position if it is the last item and
// decoding has not failed.
func lastItem(d *xdr.Decoder, items []transport.Range) []transport.Range {
	r := transport.Range{Offset: d.Offset() + xdr.Unit}
	r.Length = len(d.Opaque(maxData))
	if d.End() != nil {
		return items
	}
	return append(items, r)
}

// lastLength is lastItem for an item of which only the length word is in the stream. The
// length is not checked; a length that no chunk matches is treated as no item.
func lastLength(d *xdr.Decoder, items []transport.Range) []transport.Range {
	size := d.Uint32()
	if d.End() != nil || size > math.MaxInt32-xdr.Unit {
		return items
	}
	return append(items, transport.Range{Offset: d.Offset(), Length: int(size)})
}

// Idempotent reports whether a procedure may be executed again: those that change nothing, and
// WRITE and COMMIT, whose repetition changes nothing. RFC 1813 section 4.5.
func (Binding) Idempotent(p transport.Procedure) bool {
	if p.Prog != Program || p.Vers != Version {
		return p.Prog == MountProgram
	}
	switch p.Proc {
	case ProcSetAttr, ProcCreate, ProcMkdir, ProcSymlink, ProcMknod, ProcRemove, ProcRmdir, ProcRename, ProcLink:
		return false
	}
	return p.Proc < uint32(len(resultBound))
}

// Idempotent is Binding.Idempotent for transport.GroupConfig: which calls may be made again by way
// of another connection. A WRITE that was outstanding when its connection was lost may be executed
// once more after it has been answered; a client that writes to the same place again meanwhile has
// to know that, as it has to when a single connection is made again.
func Idempotent(prog, vers, proc uint32) bool {
	return Binding{}.Idempotent(transport.Procedure{Prog: prog, Vers: vers, Proc: proc})
}
