package nfsd

import (
	"context"
	"math"

	"github.com/rpcrdma/rpcrdma/nfs"
	"github.com/rpcrdma/rpcrdma/rpc"
)

// Read executes READ. RFC 1813 section 3.3.6. The file system reads directly into the memory that the adapter sends
// from.
func (procedures) Read(ctx context.Context, _ *rpc.Request, a *nfs.ReadArgs, r *nfs.ReadRes) error {
	c := ctx.(*call)
	if err := c.start(noTurns, &a.File, ""); err != nil {
		return err
	}
	c.told.access.Offset = a.Offset
	var n Node
	if n, r.Status = c.node(&a.File); r.Status == nfs.StatusOK {
		defer n.Release()
		r.Status = c.fill(n, a, r)
	}
	return nil
}

// fill reads the data. The reply has attributes only if the file did not change meanwhile. With attributes from before
// the read, the client would not notice that the data mixes two versions. With attributes from after it, a client that
// caches the data would believe it to be newer than it is. RFC 1813 section 3.3.6.
func (c *call) fill(n Node, args *nfs.ReadArgs, r *nfs.ReadRes) nfs.Status {
	a, err := n.Open(c.Context, &c.who, nfs.AccessRead)
	if err != nil {
		r.Attr = c.post(n)
		return c.status(err)
	}
	r.Attr = nfs.PostOpAttr{Present: true, Attr: a}
	off, left := args.Offset, uint64(0)
	if size := min(a.Size, math.MaxInt64); off < size {
		left = size - off
	}
	want := min(uint64(args.Count), left, uint64(c.transfer), uint64(c.res.ItemRoom()))
	whole := true // all available data has been read
	if want > 0 {
		if r.Data = c.res.Alloc(int(want)); r.Data == nil {
			return nfs.StatusJukebox // no memory at the moment
		}
		got, err := n.ReadAt(c.Context, &c.who, r.Data, int64(off))
		if r.Attr = c.post(n); !a.SameVersion(&r.Attr.Attr) {
			r.Attr.Present = false
		}
		if err != nil && got == 0 {
			return c.status(err)
		}
		r.Data, whole = r.Data[:got], err == nil
	}
	r.Count = uint32(len(r.Data))
	c.told.access.Bytes = len(r.Data)
	// Less than available, without an error: the file was truncated.
	r.EOF = uint64(r.Count) == left || uint64(r.Count) < want && whole
	return nfs.StatusOK
}

// Write executes WRITE. RFC 1813 section 3.3.7. The data is where the adapter placed it.
func (procedures) Write(ctx context.Context, _ *rpc.Request, w *nfs.WriteArgs, r *nfs.WriteRes) error {
	c := ctx.(*call)
	if err := c.start(noTurns, &w.File, ""); err != nil {
		return err
	}
	c.told.access.Offset = w.Offset
	var n Node
	if n, r.Status = c.changing(&w.File); r.Status == nfs.StatusOK {
		defer n.Release()
		r.Status = c.store(n, w, r)
	}
	return nil
}

// store writes the data. The reply has no attributes from before the write, because other WRITEs may come in between.
func (c *call) store(n Node, w *nfs.WriteArgs, r *nfs.WriteRes) nfs.Status {
	a, err := n.Open(c.Context, &c.who, nfs.AccessModify)
	if err != nil {
		r.Wcc.After = c.post(n)
		return c.status(err)
	}
	r.Wcc.After = nfs.PostOpAttr{Present: true, Attr: a}
	writer, ok := n.(Writer)
	switch {
	case !ok:
		return nfs.StatusNotSupp
	case uint64(w.Count) != uint64(len(w.Data)) || !w.Stable.Valid():
		return nfs.StatusInval // RFC 1813 section 3.3.7: count must equal the length of the data
	case w.Offset > math.MaxInt64-uint64(len(w.Data)):
		return nfs.StatusFBig
	}
	if w.Stable != nfs.Unstable && c.beginTurn(updates) != nil {
		return nfs.StatusJukebox // because the connection has ended
	}
	c.change(&a)
	r.Verf = c.verifier() // before the data is written, so that a later error is not missed
	count := 0
	if len(w.Data) > 0 {
		count, r.Committed, err = writer.WriteAt(c.Context, &c.who, w.Data, int64(w.Offset), w.Stable)
	} else {
		r.Committed = w.Stable
	}
	r.Wcc.After = c.post(n)
	if err != nil {
		return c.status(err) // no reply has promised that this data is stored
	}
	r.Count = uint32(count)
	c.told.access.Bytes = count
	return nfs.StatusOK
}

// Commit executes COMMIT. RFC 1813 section 3.3.21.
func (procedures) Commit(ctx context.Context, _ *rpc.Request, a *nfs.CommitArgs, r *nfs.CommitRes) error {
	c := ctx.(*call)
	if err := c.start(noTurns, &a.File, ""); err != nil {
		return err
	}
	var n Node
	if n, r.Status = c.changing(&a.File); r.Status == nfs.StatusOK {
		defer n.Release()
		r.Status = c.sync(n, a, r)
	}
	return nil
}

func (c *call) sync(n Node, a *nfs.CommitArgs, r *nfs.CommitRes) nfs.Status {
	r.Wcc.After = c.post(n)
	now := &r.Wcc.After
	writer, ok := n.(Writer)
	switch {
	case !now.Present:
		return nfs.StatusStale
	case now.Attr.Type == nfs.TypeDir:
		return nfs.StatusIsDir
	case now.Attr.Type != nfs.TypeReg:
		return nfs.StatusInval
	case !ok:
		return nfs.StatusNotSupp
	}
	err := writer.Commit(c.Context, &c.who, a.Offset, a.Count)
	r.Verf = c.verifier() // after the commit: another call may have received the error
	r.Wcc.After = c.post(n)
	if err != nil {
		c.lost(err)
	}
	return c.status(err)
}

// lost changes the write verifier of the export, because data that WRITE replies promised to keep until a COMMIT may be
// lost. RFC 1813 section 3.3.7.
func (c *call) lost(err error) {
	switch StatusOf(err) {
	case nfs.StatusIO, nfs.StatusNoSpc, nfs.StatusDQuot, nfs.StatusNXIO:
	default:
		return
	}
	c.export.verf.Add(1)
	if c.log != nil {
		c.log.Error("written data may be lost", "export", c.export.Name, "client", c.who.Host, "err", err)
	}
}
