package nfsd

import (
	"bytes"
	"context"

	"github.com/rpcrdma/rpcrdma/nfs"
	"github.com/rpcrdma/rpcrdma/rpc"
)

// Lookup executes LOOKUP. RFC 1813 section 3.3.3.
func (procedures) Lookup(ctx context.Context, _ *rpc.Request, a *nfs.DirOpArgs, r *nfs.LookupRes) error {
	of := lookups
	if a.Name == ".." {
		of = climbs
	}
	c := ctx.(*call)
	if err := c.start(of, &a.Dir, a.Name); err != nil {
		return err
	}
	var dir Node
	if dir, r.Status = c.node(&a.Dir); r.Status == nfs.StatusOK {
		defer dir.Release()
		r.DirAttr = c.post(dir)
		if r.Status = c.named(&r.DirAttr, a.Name); r.Status == nfs.StatusOK {
			n, err := dir.Lookup(c.Context, &c.who, a.Name)
			if r.Status = c.status(err); r.Status == nfs.StatusOK {
				r.Object, r.Attr = c.handle(n), c.post(n)
				n.Release()
			}
		}
	}
	return nil
}

// named checks that a belongs to a directory, and that name is a valid name in it.
func (c *call) named(a *nfs.PostOpAttr, name string) nfs.Status {
	switch {
	case !a.Present:
		return nfs.StatusStale
	case a.Attr.Type != nfs.TypeDir:
		return nfs.StatusNotDir
	}
	return checkName(c.req.Proc, name)
}

// making executes a procedure that creates an object with f. RFC 1813 sections 3.3.8 to 3.3.11.
func (c *call) making(where *nfs.DirOpArgs, attr *nfs.SetAttr, r *nfs.CreateRes, f func(dir Node) (Node, error)) error {
	if err := c.start(updates, &where.Dir, where.Name); err != nil {
		return err
	}
	var dir Node
	if dir, r.Status = c.changing(&where.Dir); r.Status == nfs.StatusOK {
		defer dir.Release()
		was := c.altered(dir)
		attr.Mode &= 0o7777
		if r.Status = c.named(&was, where.Name); r.Status == nfs.StatusOK {
			r.Status = validSet(attr)
		}
		if r.Status == nfs.StatusOK {
			n, err := f(dir)
			if r.Status = c.status(err); r.Status == nfs.StatusOK {
				r.Object = nfs.PostOpHandle{Present: true, Handle: c.handle(n)}
				r.Attr = c.post(n)
				n.Release()
			}
		}
		r.DirWcc = c.wcc(&was, dir)
	}
	return nil
}

// notSupported returns the error of a file system that lacks an ability.
func notSupported() error { return &nfs.Error{Status: nfs.StatusNotSupp} }

// Create executes CREATE. RFC 1813 section 3.3.8.
func (procedures) Create(ctx context.Context, _ *rpc.Request, a *nfs.CreateArgs, r *nfs.CreateRes) error {
	c := ctx.(*call)
	return c.making(&a.Where, &a.Attr, r, func(dir Node) (Node, error) {
		d, ok := dir.(Creator)
		if !ok {
			return nil, notSupported()
		}
		attr := &a.Attr
		if a.Mode == nfs.Exclusive {
			attr = nil
		}
		return d.Create(c.Context, &c.who, a.Where.Name, a.Mode, attr, a.Verf)
	})
}

// Mkdir executes MKDIR. RFC 1813 section 3.3.9.
func (procedures) Mkdir(ctx context.Context, _ *rpc.Request, a *nfs.MkdirArgs, r *nfs.CreateRes) error {
	c := ctx.(*call)
	return c.making(&a.Where, &a.Attr, r, func(dir Node) (Node, error) {
		d, ok := dir.(Creator)
		if !ok {
			return nil, notSupported()
		}
		return d.Mkdir(c.Context, &c.who, a.Where.Name, &a.Attr)
	})
}

// Symlink executes SYMLINK. RFC 1813 section 3.3.10.
func (procedures) Symlink(ctx context.Context, _ *rpc.Request, a *nfs.SymlinkArgs, r *nfs.CreateRes) error {
	c := ctx.(*call)
	return c.making(&a.Where, &a.Attr, r, func(dir Node) (Node, error) {
		d, ok := dir.(Symlinker)
		switch {
		case !ok:
			return nil, notSupported()
		case len(a.Target) == 0 || bytes.IndexByte(a.Target, 0) >= 0:
			return nil, &nfs.Error{Status: nfs.StatusInval}
		}
		return d.Symlink(c.Context, &c.who, a.Where.Name, string(a.Target), &a.Attr)
	})
}

// Mknod executes MKNOD. RFC 1813 section 3.3.11.
func (procedures) Mknod(ctx context.Context, _ *rpc.Request, a *nfs.MknodArgs, r *nfs.CreateRes) error {
	c := ctx.(*call)
	return c.making(&a.Where, &a.Attr, r, func(dir Node) (Node, error) {
		switch a.Type {
		case nfs.TypeChr, nfs.TypeBlk, nfs.TypeSock, nfs.TypeFIFO:
		default:
			return nil, &nfs.Error{Status: nfs.StatusBadType}
		}
		d, ok := dir.(Mknoder)
		if !ok {
			return nil, notSupported()
		}
		return d.Mknod(c.Context, &c.who, a.Where.Name, a.Type, a.Spec, &a.Attr)
	})
}

// Remove executes REMOVE. RFC 1813 section 3.3.12.
func (procedures) Remove(ctx context.Context, _ *rpc.Request, a *nfs.DirOpArgs, r *nfs.WccRes) error {
	c := ctx.(*call)
	return c.removing(a, r, func(dir Creator) error { return dir.Remove(c.Context, &c.who, a.Name) })
}

// Rmdir executes RMDIR. RFC 1813 section 3.3.13.
func (procedures) Rmdir(ctx context.Context, _ *rpc.Request, a *nfs.DirOpArgs, r *nfs.WccRes) error {
	c := ctx.(*call)
	return c.removing(a, r, func(dir Creator) error { return dir.Rmdir(c.Context, &c.who, a.Name) })
}

// removing executes a procedure that removes a name with f.
func (c *call) removing(a *nfs.DirOpArgs, r *nfs.WccRes, f func(dir Creator) error) error {
	if err := c.start(updates, &a.Dir, a.Name); err != nil {
		return err
	}
	var dir Node
	if dir, r.Status = c.changing(&a.Dir); r.Status == nfs.StatusOK {
		defer dir.Release()
		was := c.altered(dir)
		if r.Status = c.named(&was, a.Name); r.Status == nfs.StatusOK {
			if d, ok := dir.(Creator); ok {
				r.Status = c.status(f(d))
			} else {
				r.Status = nfs.StatusNotSupp
			}
		}
		r.Wcc = c.wcc(&was, dir)
	}
	return nil
}

// Rename executes RENAME. RFC 1813 section 3.3.14.
func (procedures) Rename(ctx context.Context, _ *rpc.Request, a *nfs.RenameArgs, r *nfs.RenameRes) error {
	c := ctx.(*call)
	if err := c.start(updates, &a.From.Dir, a.From.Name); err != nil {
		return err
	}
	c.tellNew(&a.To)
	var from Node
	if from, r.Status = c.changing(&a.From.Dir); r.Status == nfs.StatusOK {
		defer from.Release()
		was := c.altered(from)
		var to Node
		if to, r.Status = c.changing(&a.To.Dir); r.Status == nfs.StatusOK {
			defer to.Release()
			toWas := c.altered(to)
			if r.Status = c.named(&was, a.From.Name); r.Status == nfs.StatusOK {
				r.Status = c.named(&toWas, a.To.Name)
			}
			if d, ok := from.(Creator); r.Status == nfs.StatusOK && ok {
				r.Status = c.status(d.Rename(c.Context, &c.who, a.From.Name, to, a.To.Name))
			} else if r.Status == nfs.StatusOK {
				r.Status = nfs.StatusNotSupp
			}
			r.ToWcc = c.wcc(&toWas, to)
		}
		r.FromWcc = c.wcc(&was, from)
	}
	return nil
}

// Link executes LINK. RFC 1813 section 3.3.15.
func (procedures) Link(ctx context.Context, _ *rpc.Request, a *nfs.LinkArgs, r *nfs.LinkRes) error {
	c := ctx.(*call)
	if err := c.start(updates, &a.File, ""); err != nil {
		return err
	}
	c.tellNew(&a.Link)
	var n Node
	if n, r.Status = c.changing(&a.File); r.Status == nfs.StatusOK {
		defer n.Release()
		var dir Node
		if dir, r.Status = c.changing(&a.Link.Dir); r.Status == nfs.StatusOK {
			defer dir.Release()
			was := c.altered(dir)
			if r.Status = c.named(&was, a.Link.Name); r.Status == nfs.StatusOK {
				if l, ok := n.(Linker); ok {
					r.Status = c.status(l.Link(c.Context, &c.who, dir, a.Link.Name))
				} else {
					r.Status = nfs.StatusNotSupp
				}
			}
			r.DirWcc = c.wcc(&was, dir)
		}
		r.Attr = c.post(n)
	}
	return nil
}
