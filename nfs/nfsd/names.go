package nfsd

import (
	"bytes"

	"github.com/rpcrdma/rpcrdma/nfs"
	"github.com/rpcrdma/rpcrdma/proto/oncrpc"
)

// doLookup executes LOOKUP. RFC 1813 section 3.3.3.
func (c *call) doLookup() {
	if !c.decode(&c.dirOp) {
		return
	}
	if c.dirOp.Name == ".." {
		c.endTurn()
		if c.beginTurn(climbs) != nil {
			c.fail(oncrpc.SystemErr) // to a connection that has ended
			return
		}
	}
	var r nfs.LookupRes
	var dir Node
	if dir, r.Status = c.node(&c.dirOp.Dir); r.Status == nfs.StatusOK {
		defer dir.Release()
		r.DirAttr = c.post(dir)
		if r.Status = c.named(&r.DirAttr, c.dirOp.Name); r.Status == nfs.StatusOK {
			n, err := dir.Lookup(c.ctx, &c.who, c.dirOp.Name)
			if r.Status = c.status(err); r.Status == nfs.StatusOK {
				r.Object, r.Attr = c.handle(n), c.post(n)
				n.Release()
			}
		}
	}
	c.res.Results = r.Append(c.res.Results)
}

// named checks that a is of a directory, and that a name can be in it.
func (c *call) named(a *nfs.PostOpAttr, name string) nfs.Status {
	switch {
	case !a.Present:
		return nfs.StatusStale
	case a.Attr.Type != nfs.TypeDir:
		return nfs.StatusNotDir
	}
	return checkName(c.req.Proc, name)
}

// making executes a procedure that makes an object, by f. RFC 1813 sections 3.3.8 to 3.3.11.
func (c *call) making(where *nfs.DirOpArgs, attr *nfs.SetAttr, f func(dir Node) (Node, error)) {
	var r nfs.CreateRes
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
	c.res.Results = r.Append(c.res.Results)
}

// notSupported is what a file system says that cannot do something.
func notSupported() error { return &nfs.Error{Status: nfs.StatusNotSupp} }

// doCreate executes CREATE. RFC 1813 section 3.3.8.
func (c *call) doCreate() {
	a := &c.create
	if !c.decode(a) {
		return
	}
	c.making(&a.Where, &a.Attr, func(dir Node) (Node, error) {
		d, ok := dir.(Creator)
		if !ok {
			return nil, notSupported()
		}
		attr := &a.Attr
		if a.Mode == nfs.Exclusive {
			attr = nil
		}
		return d.Create(c.ctx, &c.who, a.Where.Name, a.Mode, attr, a.Verf)
	})
}

// doMkdir executes MKDIR. RFC 1813 section 3.3.9.
func (c *call) doMkdir() {
	a := &c.mkdir
	if !c.decode(a) {
		return
	}
	c.making(&a.Where, &a.Attr, func(dir Node) (Node, error) {
		d, ok := dir.(Creator)
		if !ok {
			return nil, notSupported()
		}
		return d.Mkdir(c.ctx, &c.who, a.Where.Name, &a.Attr)
	})
}

// doSymlink executes SYMLINK. RFC 1813 section 3.3.10.
func (c *call) doSymlink() {
	a := &c.symlink
	if !c.decode(a) {
		return
	}
	c.making(&a.Where, &a.Attr, func(dir Node) (Node, error) {
		d, ok := dir.(Symlinker)
		switch {
		case !ok:
			return nil, notSupported()
		case len(a.Target) == 0 || bytes.IndexByte(a.Target, 0) >= 0:
			return nil, &nfs.Error{Status: nfs.StatusInval}
		}
		return d.Symlink(c.ctx, &c.who, a.Where.Name, string(a.Target), &a.Attr)
	})
}

// doMknod executes MKNOD. RFC 1813 section 3.3.11.
func (c *call) doMknod() {
	a := &c.mknod
	if !c.decode(a) {
		return
	}
	c.making(&a.Where, &a.Attr, func(dir Node) (Node, error) {
		switch a.Type {
		case nfs.TypeChr, nfs.TypeBlk, nfs.TypeSock, nfs.TypeFIFO:
		default:
			return nil, &nfs.Error{Status: nfs.StatusBadType}
		}
		d, ok := dir.(Mknoder)
		if !ok {
			return nil, notSupported()
		}
		return d.Mknod(c.ctx, &c.who, a.Where.Name, a.Type, a.Spec, &a.Attr)
	})
}

// doRemove executes REMOVE and RMDIR. RFC 1813 sections 3.3.12 and 3.3.13.
func (c *call) doRemove() {
	if !c.decode(&c.dirOp) {
		return
	}
	var r nfs.WccRes
	var dir Node
	if dir, r.Status = c.changing(&c.dirOp.Dir); r.Status == nfs.StatusOK {
		defer dir.Release()
		was := c.altered(dir)
		if r.Status = c.named(&was, c.dirOp.Name); r.Status == nfs.StatusOK {
			r.Status = c.status(c.remove(dir, c.dirOp.Name))
		}
		r.Wcc = c.wcc(&was, dir)
	}
	c.res.Results = r.Append(c.res.Results)
}

func (c *call) remove(dir Node, name string) error {
	d, ok := dir.(Creator)
	switch {
	case !ok:
		return notSupported()
	case c.req.Proc == nfs.ProcRmdir:
		return d.Rmdir(c.ctx, &c.who, name)
	}
	return d.Remove(c.ctx, &c.who, name)
}

// doRename executes RENAME. RFC 1813 section 3.3.14.
func (c *call) doRename() {
	a := &c.rename
	if !c.decode(a) {
		return
	}
	var r nfs.RenameRes
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
				r.Status = c.status(d.Rename(c.ctx, &c.who, a.From.Name, to, a.To.Name))
			} else if r.Status == nfs.StatusOK {
				r.Status = nfs.StatusNotSupp
			}
			r.ToWcc = c.wcc(&toWas, to)
		}
		r.FromWcc = c.wcc(&was, from)
	}
	c.res.Results = r.Append(c.res.Results)
}

// doLink executes LINK. RFC 1813 section 3.3.15.
func (c *call) doLink() {
	a := &c.link
	if !c.decode(a) {
		return
	}
	var r nfs.LinkRes
	var n Node
	if n, r.Status = c.changing(&a.File); r.Status == nfs.StatusOK {
		defer n.Release()
		var dir Node
		if dir, r.Status = c.changing(&a.Link.Dir); r.Status == nfs.StatusOK {
			defer dir.Release()
			was := c.altered(dir)
			if r.Status = c.named(&was, a.Link.Name); r.Status == nfs.StatusOK {
				if l, ok := n.(Linker); ok {
					r.Status = c.status(l.Link(c.ctx, &c.who, dir, a.Link.Name))
				} else {
					r.Status = nfs.StatusNotSupp
				}
			}
			r.DirWcc = c.wcc(&was, dir)
		}
		r.Attr = c.post(n)
	}
	c.res.Results = r.Append(c.res.Results)
}
