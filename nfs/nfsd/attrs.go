package nfsd

import (
	"context"

	"github.com/rpcrdma/rpcrdma/nfs"
	"github.com/rpcrdma/rpcrdma/rpc"
)

// Getattr executes GETATTR. RFC 1813 section 3.3.1.
func (procedures) Getattr(ctx context.Context, _ *rpc.Request, fh nfs.FileHandle, r *nfs.GetAttrRes) error {
	c := ctx.(*call)
	if err := c.start(lookups, &fh, ""); err != nil {
		return err
	}
	var n Node
	if n, r.Status = c.node(&fh); r.Status == nfs.StatusOK {
		defer n.Release()
		var err error
		r.Attr, err = n.Attr(c.Context, &c.who)
		r.Status = c.status(err)
	}
	return nil
}

// Setattr executes SETATTR. RFC 1813 section 3.3.2.
func (procedures) Setattr(ctx context.Context, _ *rpc.Request, a *nfs.SetAttrArgs, r *nfs.WccRes) error {
	c := ctx.(*call)
	if err := c.start(updates, &a.Object, ""); err != nil {
		return err
	}
	var n Node
	if n, r.Status = c.changing(&a.Object); r.Status == nfs.StatusOK {
		defer n.Release()
		r.Status = c.set(n, a, &r.Wcc)
	}
	return nil
}

func (c *call) set(n Node, a *nfs.SetAttrArgs, wcc *nfs.Wcc) nfs.Status {
	was := c.altered(n)
	defer func() { *wcc = c.wcc(&was, n) }()
	a.Attr.Mode &= 0o7777
	setter, ok := n.(Setter)
	switch status := validSet(&a.Attr); {
	case status != nfs.StatusOK:
		return status
	case !ok:
		return nfs.StatusNotSupp
	case a.Attr.SetSize && was.Present && was.Attr.Type != nfs.TypeReg:
		return nfs.StatusInval
	}
	var guard *nfs.Time
	if a.Guard {
		guard = &a.CTime
	}
	return c.status(setter.SetAttr(c.Context, &c.who, &a.Attr, guard))
}

// Access executes ACCESS. RFC 1813 section 3.3.4.
func (procedures) Access(ctx context.Context, _ *rpc.Request, a *nfs.AccessArgs, r *nfs.AccessRes) error {
	c := ctx.(*call)
	if err := c.start(lookups, &a.Object, ""); err != nil {
		return err
	}
	var n Node
	if n, r.Status = c.node(&a.Object); r.Status == nfs.StatusOK {
		defer n.Release()
		r.Attr = c.post(n)
		r.Access, r.Status = c.rights(n, &r.Attr, a.Access)
	}
	return nil
}

// changes are the rights that a read-only export denies to all callers.
const changes = nfs.AccessModify | nfs.AccessExtend | nfs.AccessDelete

func (c *call) rights(n Node, a *nfs.PostOpAttr, want uint32) (granted uint32, status nfs.Status) {
	if c.export.ReadOnly {
		want &^= changes
	}
	if accesser, ok := n.(Accesser); ok {
		granted, err := accesser.Access(c.Context, &c.who, want)
		return granted & want, c.status(err)
	}
	if !a.Present {
		return 0, nfs.StatusIO
	}
	if _, ok := n.(Creator); !ok && a.Attr.Type == nfs.TypeDir {
		want &^= changes
	}
	if _, ok := n.(Writer); !ok && a.Attr.Type != nfs.TypeDir {
		want &^= changes
	}
	return ModeAccess(&a.Attr, &c.who, want), nfs.StatusOK
}

// Readlink executes READLINK. RFC 1813 section 3.3.5.
func (procedures) Readlink(ctx context.Context, _ *rpc.Request, fh nfs.FileHandle, r *nfs.ReadLinkRes) error {
	c := ctx.(*call)
	if err := c.start(lookups, &fh, ""); err != nil {
		return err
	}
	var n Node
	if n, r.Status = c.node(&fh); r.Status == nfs.StatusOK {
		defer n.Release()
		r.Attr = c.post(n)
		reader, ok := n.(LinkReader)
		switch {
		case !r.Attr.Present:
			r.Status = nfs.StatusStale
		case r.Attr.Attr.Type != nfs.TypeLnk:
			r.Status = nfs.StatusInval
		case !ok:
			r.Status = nfs.StatusNotSupp
		default:
			target, err := reader.ReadLink(c.Context, &c.who)
			if r.Status = c.status(err); err == nil && len(target) > nfs.MaxPath {
				r.Status = nfs.StatusServerFault
			}
			r.Target = []byte(target)
		}
	}
	return nil
}
