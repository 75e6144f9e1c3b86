package nfsd

import (
	"context"
	"math"

	"github.com/rpcrdma/rpcrdma/nfs"
	"github.com/rpcrdma/rpcrdma/rpc"
)

// Fsstat executes FSSTAT. RFC 1813 section 3.3.18.
func (procedures) Fsstat(ctx context.Context, _ *rpc.Request, fh nfs.FileHandle, r *nfs.FSStatRes) error {
	c := ctx.(*call)
	if err := c.start(lookups, &fh, ""); err != nil {
		return err
	}
	var n Node
	if n, r.Status = c.node(&fh); r.Status == nfs.StatusOK {
		defer n.Release()
		r.Attr = c.post(n)
		if spacer, ok := c.export.FS.(Spacer); ok {
			s, err := spacer.Space(c.Context, &c.who)
			r.Status = c.status(err)
			r.TotalBytes, r.FreeBytes, r.AvailBytes = s.TotalBytes, s.FreeBytes, s.AvailBytes
			r.TotalFiles, r.FreeFiles, r.AvailFiles = s.TotalFiles, s.FreeFiles, s.AvailFiles
		}
	}
	return nil
}

// limits returns the limits of an FS, with defaults for those that it does not set.
func limits(fs FS) Limits {
	var l Limits
	if limiter, ok := fs.(Limiter); ok {
		l = limiter.Limits()
	}
	if l.MaxFileSize == 0 {
		l.MaxFileSize = math.MaxInt64
	}
	if l.TimeDelta == (nfs.Time{}) {
		l.TimeDelta.Nsec = 1
	}
	l.MaxLinks = max(l.MaxLinks, 1)
	if l.MaxName == 0 {
		l.MaxName = 255
	}
	return l
}

// Fsinfo executes FSINFO. RFC 1813 section 3.3.19.
func (procedures) Fsinfo(ctx context.Context, _ *rpc.Request, fh nfs.FileHandle, r *nfs.FSInfoRes) error {
	c := ctx.(*call)
	if err := c.start(lookups, &fh, ""); err != nil {
		return err
	}
	var n Node
	if n, r.Status = c.node(&fh); r.Status == nfs.StatusOK {
		defer n.Release()
		r.Attr = c.post(n)
		r.RTMax, r.RTPref, r.RTMult = c.transfer, c.transfer, 4096
		r.WTMax, r.WTPref, r.WTMult = c.transfer, c.transfer, 4096
		r.DTPref = 64 << 10
		l := limits(c.export.FS)
		r.MaxFileSize, r.TimeDelta = l.MaxFileSize, l.TimeDelta
		r.Properties = nfs.FSFHomogeneous
		if _, ok := n.(Linker); ok {
			r.Properties |= nfs.FSFLink
		}
		if _, ok := n.(Symlinker); ok {
			r.Properties |= nfs.FSFSymlink
		}
		if _, ok := n.(Setter); ok {
			r.Properties |= nfs.FSFCanSetTime
		}
	}
	return nil
}

// Pathconf executes PATHCONF. RFC 1813 section 3.3.20.
func (procedures) Pathconf(ctx context.Context, _ *rpc.Request, fh nfs.FileHandle, r *nfs.PathConfRes) error {
	c := ctx.(*call)
	if err := c.start(lookups, &fh, ""); err != nil {
		return err
	}
	var n Node
	if n, r.Status = c.node(&fh); r.Status == nfs.StatusOK {
		defer n.Release()
		r.Attr = c.post(n)
		l := limits(c.export.FS)
		r.LinkMax, r.NameMax, r.NoTrunc = l.MaxLinks, l.MaxName, true
		r.ChownRestricted = !l.FreeChown
		r.CaseInsensitive, r.CasePreserving = l.CaseInsensitive, !l.CaseLost
	}
	return nil
}
