package nfsd

import (
	"github.com/rpcrdma/rpcrdma/nfs"
)

// doGetAttr executes GETATTR. RFC 1813 section 3.3.1.
func (c *call) doGetAttr() {
	if !c.decode(&c.object) {
		return
	}
	var r nfs.GetAttrRes
	var n Node
	if n, r.Status = c.node(&c.object); r.Status == nfs.StatusOK {
		defer n.Release()
		var err error
		r.Attr, err = n.Attr(c.ctx, &c.who)
		r.Status = c.status(err)
	}
	c.res.Results = r.Append(c.res.Results)
}

// doSetAttr executes SETATTR. RFC 1813 section 3.3.2.
func (c *call) doSetAttr() {
	if !c.decode(&c.setAttr) {
		return
	}
	a := &c.setAttr
	var r nfs.WccRes
	var n Node
	if n, r.Status = c.changing(&a.Object); r.Status == nfs.StatusOK {
		defer n.Release()
		r.Status = c.set(n, a, &r.Wcc)
	}
	c.res.Results = r.Append(c.res.Results)
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
	return c.status(setter.SetAttr(c.ctx, &c.who, &a.Attr, guard))
}

// doAccess executes ACCESS. RFC 1813 section 3.3.4.
func (c *call) doAccess() {
	if !c.decode(&c.access) {
		return
	}
	var r nfs.AccessRes
	var n Node
	if n, r.Status = c.node(&c.access.Object); r.Status == nfs.StatusOK {
		defer n.Release()
		r.Attr = c.post(n)
		r.Access, r.Status = c.rights(n, &r.Attr)
	}
	c.res.Results = r.Append(c.res.Results)
}

// changes are the rights that no caller has to a read-only export.
const changes = nfs.AccessModify | nfs.AccessExtend | nfs.AccessDelete

func (c *call) rights(n Node, a *nfs.PostOpAttr) (granted uint32, status nfs.Status) {
	want := c.access.Access
	if c.export.ReadOnly {
		want &^= changes
	}
	if accesser, ok := n.(Accesser); ok {
		granted, err := accesser.Access(c.ctx, &c.who, want)
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

// doReadLink executes READLINK. RFC 1813 section 3.3.5.
func (c *call) doReadLink() {
	if !c.decode(&c.object) {
		return
	}
	var r nfs.ReadLinkRes
	var n Node
	var target string
	if n, r.Status = c.node(&c.object); r.Status == nfs.StatusOK {
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
			var err error
			target, err = reader.ReadLink(c.ctx, &c.who)
			if r.Status = c.status(err); err == nil && len(target) > nfs.MaxPath {
				r.Status = nfs.StatusServerFault
			}
		}
	}
	if c.res.Results = r.AppendHead(c.res.Results); r.Status == nfs.StatusOK {
		c.res.AddItem([]byte(target), nil)
	}
}
