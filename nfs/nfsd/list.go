package nfsd

import (
	"slices"

	"github.com/rpcrdma/rpcrdma/nfs"
	"github.com/rpcrdma/rpcrdma/proto/oncrpc"
	"github.com/rpcrdma/rpcrdma/proto/xdr"
)

// Sizes of the parts of a page, in bytes. RFC 1813 sections 3.3.16 and 3.3.17.
const (
	sizeAttr = 84                                                   // fattr3
	sizeHead = xdr.Unit + sizeAttr + nfs.VerfSize                   // READDIR3resok before the entries
	sizeTail = xdr.Unit + xdr.Unit                                  // end of the list, eof
	sizePlus = xdr.Unit + sizeAttr + xdr.Unit + xdr.Unit            // name_attributes, name_handle without the handle
	minPlus  = xdr.Unit + xdr.Unit                                  // both absent
	sizeName = 8 + 8                                                // fileid, cookie
	sizePage = xdr.Unit + sizeHead + sizeTail + xdr.Unit + sizeName // the smallest usable page
)

// page holds the entries of a READDIR or READDIRPLUS as they are written to the results.
type page struct {
	c      *call
	plus   bool
	left   int // bytes for entries
	names  int // bytes that dircount limits
	listed int // number of entries
	full   bool
	ended  bool // the call's turn has ended with the connection
}

// pauseEvery is how many entries a listing writes before it checks the time. An entry with handle and attributes takes
// some microseconds.
const pauseEvery = 16

// readDir executes READDIR. RFC 1813 section 3.3.16.
func (c *call) readDir() {
	var a nfs.ReadDirArgs
	d := c.req.Decoder()
	if a.Decode(&d); d.End() != nil {
		c.res.Fail(oncrpc.GarbageArgs)
		return
	}
	c.page = page{c: c, left: pageSize(a.Count), names: maxPage}
	c.listing(&a.Dir, a.Cookie)
}

// readDirPlus executes READDIRPLUS. RFC 1813 section 3.3.17.
func (c *call) readDirPlus() {
	var a nfs.ReadDirPlusArgs
	d := c.req.Decoder()
	if a.Decode(&d); d.End() != nil {
		c.res.Fail(oncrpc.GarbageArgs)
		return
	}
	c.page = page{c: c, plus: true, left: pageSize(a.MaxCount), names: pageSize(a.DirCount)}
	c.listing(&a.Dir, a.Cookie)
}

func pageSize(count uint32) int { return int(min(count, maxPage)) }

// listing writes the results of both procedures. The cookies do not depend on anything that a verifier could detect, so
// the verifier is always zero, and is not checked.
func (c *call) listing(fh *nfs.FileHandle, cookie uint64) {
	if c.observe != nil {
		c.told.access.Object = c.objectIn(fh)
	}
	start := len(c.res.Results)
	room := c.res.Room()
	dir, status := c.node(fh)
	var attr nfs.PostOpAttr
	eof := false
	if status == nfs.StatusOK {
		defer dir.Release()
		attr = c.post(dir)
		// The size that the client accepts and has room for, without the part that is not entries.
		c.page.left = min(c.page.left, room-xdr.Unit) - sizeHead - sizeTail
		switch {
		case !attr.Present:
			status = nfs.StatusStale
		case attr.Attr.Type != nfs.TypeDir:
			status = nfs.StatusNotDir
		case c.page.left < 0:
			status = nfs.StatusTooSmall
		default:
			b := slices.Grow(c.res.Results, xdr.Unit+sizeHead+min(c.page.left, 32<<10)+sizeTail)
			b = xdr.AppendUint32(b, uint32(nfs.StatusOK))
			b = attr.Append(b)
			c.res.Results = (&nfs.Verf{}).Append(b)
			eof, status = c.entries(dir, cookie)
		}
	}
	if status == nfs.StatusOK {
		b := xdr.AppendBool(c.res.Results, false)
		c.res.Results = xdr.AppendBool(b, eof)
		return
	}
	b := xdr.AppendUint32(c.res.Results[:start], uint32(status))
	c.res.Results = attr.Append(b)
}

// entries writes the entries after a cookie, during a turn of the connection.
func (c *call) entries(dir Node, cookie uint64) (eof bool, status nfs.Status) {
	if c.listings.begin(c.Context, c.from, c.req.Conn(), &c.turn) != nil {
		return false, nfs.StatusJukebox // the client will not see it
	}
	defer func() {
		if !c.page.ended {
			c.listings.end(&c.turn)
		}
	}()
	eof, err := dir.ReadDir(c.Context, &c.who, cookie, c.page.plus, c.list)
	return eof, c.page.end(cookie, err)
}

// end returns the status of a listing. An error after some entries is left to the next page.
func (p *page) end(cookie uint64, err error) nfs.Status {
	switch {
	case p.listed > 0:
		return nfs.StatusOK
	case err != nil:
		if s := p.c.status(err); s != nfs.StatusInval || cookie == 0 {
			return s
		}
		return nfs.StatusBadCookie
	case p.full:
		return nfs.StatusTooSmall
	}
	return nfs.StatusOK
}

// add writes an entry if it fits.
func (p *page) add(e *Entry) bool {
	c := p.c
	if p.listed%pauseEvery == pauseEvery-1 && c.listings.pause(c.Context, &c.turn) != nil {
		p.ended = true
	}
	if p.ended {
		return false
	}
	name := sizeName + xdr.SizeOpaque(len(e.Name))
	size := xdr.Unit + name
	if p.plus && e.Handle != nil {
		size += sizePlus + xdr.Padded(sealSize+len(e.Handle))
	} else if p.plus {
		size += minPlus
	}
	// dircount is only a hint: a single entry may exceed it.
	if size > p.left || name > p.names && p.listed > 0 {
		p.full = true
		return false
	}
	p.left -= size
	p.names -= name
	p.listed++
	b := xdr.AppendBool(c.res.Results, true)
	b = xdr.AppendUint64(b, e.FileID)
	b = xdr.AppendOpaque(b, e.Name)
	b = xdr.AppendUint64(b, e.Cookie)
	if p.plus {
		known := e.Handle != nil
		b = xdr.AppendBool(b, known)
		if known {
			b = e.Attr.Append(b)
		}
		b = xdr.AppendBool(b, known)
		if known {
			c.fh = c.seal.appendBytes(c.fh[:0], c.export.ID, e.Handle)
			b = xdr.AppendOpaque(b, c.fh)
		}
	}
	c.res.Results = b
	return true
}
