package nfs

import (
	"fmt"

	"github.com/rpcrdma/rpcrdma/proto/xdr"
)

// RPC numbers of the MOUNT version 3 program and its procedures. RFC 1813
// section 5.
const (
	MountProgram uint32 = 100005
	MountVersion uint32 = 3

	MountProcNull    uint32 = 0
	MountProcMnt     uint32 = 1
	MountProcDump    uint32 = 2
	MountProcUmnt    uint32 = 3
	MountProcUmntAll uint32 = 4
	MountProcExport  uint32 = 5
)

// Limits of MOUNT. RFC 1813 section 5.1, which does not limit flavors.
const (
	MaxMountPath = 1024 // MNTPATHLEN, in bytes
	MaxMountName = 255  // MNTNAMLEN, in bytes
	maxFlavors   = 64
)

// MountStatus is mountstat3. RFC 1813 section 5.1.5.
type MountStatus uint32

// Results of MNT.
const (
	MountOK          MountStatus = 0
	MountPerm        MountStatus = 1
	MountNoEnt       MountStatus = 2
	MountIO          MountStatus = 5
	MountAcces       MountStatus = 13
	MountNotDir      MountStatus = 20
	MountInval       MountStatus = 22
	MountNameTooLong MountStatus = 63
	MountNotSupp     MountStatus = 10004
	MountServerFault MountStatus = 10006
)

// String is the RFC's name, such as "MNT3ERR_NOENT".
func (s MountStatus) String() string {
	switch s {
	case MountOK:
		return "MNT3_OK"
	case MountPerm:
		return "MNT3ERR_PERM"
	case MountNoEnt:
		return "MNT3ERR_NOENT"
	case MountIO:
		return "MNT3ERR_IO"
	case MountAcces:
		return "MNT3ERR_ACCES"
	case MountNotDir:
		return "MNT3ERR_NOTDIR"
	case MountInval:
		return "MNT3ERR_INVAL"
	case MountNameTooLong:
		return "MNT3ERR_NAMETOOLONG"
	case MountNotSupp:
		return "MNT3ERR_NOTSUPP"
	case MountServerFault:
		return "MNT3ERR_SERVERFAULT"
	}
	return fmt.Sprintf("mountstat3 %d", uint32(s))
}

// A DirPath is dirpath, the argument of MNT and UMNT. RFC 1813 section 5.1.4.
type DirPath string

// Append appends the encoding to b.
func (p *DirPath) Append(b []byte) []byte { return xdr.AppendString(b, string(*p)) }

// Decode reads the path, as a copy.
func (p *DirPath) Decode(d *xdr.Decoder) { *p = DirPath(d.String(MaxMountPath)) }

// MntRes is mountres3, the results of MNT. RFC 1813 section 5.2.1.
type MntRes struct {
	Status MountStatus

	// The other fields are valid with MountOK only.
	Handle  FileHandle
	Flavors []uint32 // authentication flavors that the server accepts
}

// Append appends the encoding to b.
func (r *MntRes) Append(b []byte) []byte {
	b = xdr.AppendUint32(b, uint32(r.Status))
	if r.Status != MountOK {
		return b
	}
	b = r.Handle.Append(b)
	b = xdr.AppendUint32(b, uint32(len(r.Flavors)))
	for _, f := range r.Flavors {
		b = xdr.AppendUint32(b, f)
	}
	return b
}

// Decode reads the results. Flavors are appended to r.Flavors[:0].
func (r *MntRes) Decode(d *xdr.Decoder) {
	*r = MntRes{Status: MountStatus(d.Uint32()), Flavors: r.Flavors[:0]}
	if r.Status != MountOK {
		return
	}
	r.Handle.Decode(d)
	for n := d.Count(maxFlavors, xdr.Unit); n > 0; n-- {
		r.Flavors = append(r.Flavors, d.Uint32())
	}
}

// An Export is one exportnode: a directory that the server offers.
// RFC 1813 section 5.2.5.
type Export struct {
	Dir    string
	Groups []string // hosts and groups that may mount it; empty: all
}

// ExportRes is the results of EXPORT. RFC 1813 section 5.2.5.
type ExportRes struct {
	Exports []Export
}

// Append appends the encoding to b.
func (r *ExportRes) Append(b []byte) []byte {
	for _, e := range r.Exports {
		b = xdr.AppendBool(b, true)
		b = xdr.AppendString(b, e.Dir)
		for _, g := range e.Groups {
			b = xdr.AppendBool(b, true)
			b = xdr.AppendString(b, g)
		}
		b = xdr.AppendBool(b, false)
	}
	return xdr.AppendBool(b, false)
}

// Decode reads the results into a new list.
func (r *ExportRes) Decode(d *xdr.Decoder) {
	r.Exports = nil
	for d.Optional() {
		e := Export{Dir: d.String(MaxMountPath)}
		for d.Optional() {
			e.Groups = append(e.Groups, d.String(MaxMountName))
		}
		r.Exports = append(r.Exports, e)
	}
}

// A MountEntry is one mountbody: a client and what it has mounted. RFC 1813 section 5.2.2.
type MountEntry struct {
	Host string
	Dir  string
}

// DumpRes is the results of DUMP. RFC 1813 section 5.2.2.
type DumpRes struct {
	Entries []MountEntry
}

// Append appends the encoding to b.
func (r *DumpRes) Append(b []byte) []byte {
	for _, e := range r.Entries {
		b = xdr.AppendBool(b, true)
		b = xdr.AppendString(b, e.Host)
		b = xdr.AppendString(b, e.Dir)
	}
	return xdr.AppendBool(b, false)
}

// Decode reads the results into a new list.
func (r *DumpRes) Decode(d *xdr.Decoder) {
	r.Entries = nil
	for d.Optional() {
		e := MountEntry{Host: d.String(MaxMountName), Dir: d.String(MaxMountPath)}
		r.Entries = append(r.Entries, e)
	}
}
