package nfs41

import (
	"time"

	"github.com/rpcrdma/rpcrdma/proto/oncrpc"
	"github.com/rpcrdma/rpcrdma/proto/xdr"
)

// The directory of a Server: the root, which is empty.

// rootHandle is its handle. It never changes, so it survives a restart.
func rootHandle() FileHandle { return FileHandle("root") }

// rootAttrs are its attributes.
func (s *Server) rootAttrs() *Attrs {
	at := Time{Sec: s.start.Unix(), Nsec: uint32(s.start.Nanosecond())}
	size := uint64(s.cfg.Fore.MaxRequest) / 2
	a := &Attrs{
		Supported:       KnownAttrs(),
		Type:            TypeDir,
		Change:          uint64(s.start.UnixNano()),
		Size:            4096,
		FSID:            FSID{Major: 1},
		UniqueHandles:   true,
		LeaseTime:       uint32(s.cfg.Lease / time.Second),
		CasePreserving:  true,
		FileHandle:      rootHandle(),
		FileID:          1,
		FilesTotal:      1,
		MaxFileSize:     1<<63 - 1,
		MaxLink:         2,
		MaxName:         255,
		MaxRead:         size,
		MaxWrite:        size,
		Mode:            0o555,
		NumLinks:        2,
		Owner:           "0",
		OwnerGroup:      "0",
		TimeAccess:      at,
		TimeDelta:       Time{Nsec: 1},
		TimeMetadata:    at,
		TimeModify:      at,
		MountedOnFileID: 1,
		SuppExclCreate:  Bitmap{},
	}
	a.Mask = a.Supported
	return a
}

// selected encodes the attributes of a that are in mask.
func (a *Attrs) selected(mask Bitmap) RawAttrs {
	var raw RawAttrs
	var bits []uint32
	for i, f := range a.fields() {
		n := uint32(i)
		if !mask.Has(n) || !a.Mask.Has(n) {
			continue
		}
		bits = append(bits, n)
		switch f := f.(type) {
		case *bool:
			raw.Values = xdr.AppendBool(raw.Values, *f)
		case *uint32:
			raw.Values = xdr.AppendUint32(raw.Values, *f)
		case *uint64:
			raw.Values = xdr.AppendUint64(raw.Values, *f)
		case *string:
			raw.Values = xdr.AppendString(raw.Values, *f)
		case Message:
			raw.Values = f.Append(raw.Values)
		}
	}
	raw.Mask = Bits(bits...)
	return raw
}

// onDirectory executes an operation on the current file handle, which is the root.
func (c *compound) onDirectory(b []byte, op uint32) ([]byte, Status) {
	d := &c.d
	switch op {
	case OpGetFH:
		return c.current.Append(b), StatusOK
	case OpSaveFH:
		c.saved = c.current
		return b, StatusOK
	case OpLookupP:
		return b, StatusNoEnt // RFC 8881 section 18.14.3
	case OpLookup, OpSecInfo:
		var name Name
		if name.Decode(d); d.Err() != nil {
			return b, StatusBadXDR
		}
		if name == "" {
			return b, StatusInval
		}
		return b, StatusNoEnt
	case OpGetAttr:
		var mask Bitmap
		if mask.Decode(d); d.Err() != nil {
			return b, StatusBadXDR
		}
		raw := c.s.rootAttrs().selected(mask)
		return raw.Append(b), StatusOK
	case OpAccess:
		var a AccessArgs
		if a.Decode(d); d.Err() != nil {
			return b, StatusBadXDR
		}
		const all = AccessRead | AccessLookup | AccessModify | AccessExtend | AccessDelete
		r := AccessRes{Supported: a.Access & all, Access: a.Access & (AccessRead | AccessLookup)}
		return r.Append(b), StatusOK
	case OpReadDir:
		return c.readDir(b)
	case OpSecInfoNoName:
		return c.secInfoNoName(b)
	}
	return b, StatusNotSupp
}

// readDir is READDIR. RFC 8881 section 18.23.
func (c *compound) readDir(b []byte) ([]byte, Status) {
	var a ReadDirArgs
	if a.Decode(&c.d); c.d.Err() != nil {
		return b, StatusBadXDR
	}
	if a.Cookie != 0 {
		return b, StatusBadCookie // none was returned
	}
	r := ReadDirRes{EOF: true}
	at := len(b)
	if b = r.Append(b); uint64(len(b)-at) > uint64(a.MaxCount) {
		return b, StatusTooSmall
	}
	return b, StatusOK
}

// secInfoNoName is SECINFO_NO_NAME, which clears the current file handle. RFC 8881 section
// 18.45.
func (c *compound) secInfoNoName(b []byte) ([]byte, Status) {
	var a SecInfoNoNameArgs
	if a.Decode(&c.d); c.d.Err() != nil {
		return b, StatusBadXDR
	}
	if a.Parent {
		return b, StatusNoEnt
	}
	c.current = nil
	r := SecInfoRes{Flavors: []SecInfo{{Flavor: uint32(oncrpc.FlavorSys)}, {Flavor: uint32(oncrpc.FlavorNone)}}}
	return r.Append(b), StatusOK
}
