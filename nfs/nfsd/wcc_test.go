package nfsd

import (
	"context"
	"sync/atomic"
	"testing"

	"github.com/rpcrdma/rpcrdma/nfs"
)

// A spool is a plain with a clock that ticks with every change, and is the time of all objects.
type spool struct {
	plain
	clock  atomic.Uint32
	during func() // runs once, within the next change
}

type spoolNode struct {
	*object
	fs *spool
}

func newSpool() *spool {
	f := new(spool)
	f.plain.objects = newPlain().objects
	for _, o := range f.objects {
		o.fs = &f.plain
	}
	return f
}

func (f *spool) Root(ctx context.Context) (Node, error) { return f.node(0) }

func (f *spool) Node(ctx context.Context, handle []byte) (Node, error) {
	return f.node(int(handle[0]))
}

func (f *spool) node(i int) (Node, error) {
	n, err := f.plain.node(i)
	return spoolNode{n.(*object), f}, err
}

// change is common to all changes.
func (f *spool) change() error {
	during := f.during
	if f.during = nil; during != nil {
		during()
	}
	f.clock.Add(1)
	return nil
}

func (f *spool) make() (Node, error) {
	f.change()
	return f.node(3)
}

func (n spoolNode) Attr(ctx context.Context, who *Caller) (nfs.Attr, error) {
	a, err := n.object.Attr(ctx, who)
	a.CTime.Sec = n.fs.clock.Load()
	return a, err
}

func (n spoolNode) Open(ctx context.Context, who *Caller, _ uint32) (nfs.Attr, error) {
	return n.Attr(ctx, who)
}

func (n spoolNode) ReadAt(ctx context.Context, who *Caller, b []byte, off int64) (int, error) {
	if n.fs.during != nil {
		n.fs.change()
	}
	return n.object.ReadAt(ctx, who, b, off)
}

func (n spoolNode) WriteAt(_ context.Context, _ *Caller, b []byte, _ int64, s nfs.Stable) (int, nfs.Stable, error) {
	return len(b), s, n.fs.change()
}

func (n spoolNode) Commit(context.Context, *Caller, uint64, uint32) error { return nil }

func (n spoolNode) SetAttr(_ context.Context, who *Caller, _ *nfs.SetAttr, _ *nfs.Time) error {
	return who.Wait(n.fs.change)
}

func (n spoolNode) Create(context.Context, *Caller, string, nfs.CreateMode, *nfs.SetAttr, nfs.Verf) (Node, error) {
	return n.fs.make()
}

func (n spoolNode) Mkdir(context.Context, *Caller, string, *nfs.SetAttr) (Node, error) {
	return n.fs.make()
}

func (n spoolNode) Symlink(context.Context, *Caller, string, string, *nfs.SetAttr) (Node, error) {
	return n.fs.make()
}

func (n spoolNode) Mknod(context.Context, *Caller, string, nfs.FileType, nfs.Device, *nfs.SetAttr) (Node, error) {
	return n.fs.make()
}

func (n spoolNode) Remove(context.Context, *Caller, string) error { return n.fs.change() }

func (n spoolNode) Rmdir(context.Context, *Caller, string) error { return n.fs.change() }

func (n spoolNode) Rename(context.Context, *Caller, string, Node, string) error { return n.fs.change() }

func (n spoolNode) Link(context.Context, *Caller, Node, string) error { return n.fs.change() }

// The attributes before and after a change do not enclose the changes of other calls, whichever of two
// begins first, and by whichever export they come: a client would take them for its own. Alone, they
// enclose the change.
func TestChangesOfOthers(t *testing.T) {
	f := newSpool()
	c := newSite(t, &Config{Exports: []Export{{Name: "/a", FS: f}, {Name: "/b", FS: f}}})
	root, other := c.mnt("/a").Handle, c.mnt("/b").Handle
	dir, file, otherDir, otherFile := c.lookup(root, "dir"), c.lookup(root, "top"), c.lookup(other, "dir"), c.lookup(other, "top")
	x := nfs.DirOpArgs{Dir: root, Name: "x"}
	set := func(fh nfs.FileHandle) (r nfs.WccRes) {
		c.nfs(nfs.ProcSetAttr, &nfs.SetAttrArgs{Object: fh}, &r)
		return r
	}
	var create nfs.CreateRes
	var change nfs.WccRes
	var rename nfs.RenameRes
	var link nfs.LinkRes
	for _, tt := range []struct {
		name  string
		proc  uint32
		args  message
		res   result
		wcc   *nfs.Wcc
		other nfs.FileHandle // an alias of the object that it changes
	}{
		{"CREATE", nfs.ProcCreate, &nfs.CreateArgs{Where: x}, &create, &create.DirWcc, other},
		{"MKDIR", nfs.ProcMkdir, &nfs.MkdirArgs{Where: x}, &create, &create.DirWcc, other},
		{"SYMLINK", nfs.ProcSymlink, &nfs.SymlinkArgs{Where: x, Target: []byte("t")}, &create, &create.DirWcc, other},
		{"MKNOD", nfs.ProcMknod, &nfs.MknodArgs{Where: x, Type: nfs.TypeFIFO}, &create, &create.DirWcc, other},
		{"REMOVE", nfs.ProcRemove, &x, &change, &change.Wcc, other},
		{"RMDIR", nfs.ProcRmdir, &x, &change, &change.Wcc, other},
		{"RENAME, from", nfs.ProcRename, &nfs.RenameArgs{From: x, To: nfs.DirOpArgs{Dir: dir, Name: "y"}}, &rename, &rename.FromWcc, other},
		{"RENAME, to", nfs.ProcRename, &nfs.RenameArgs{From: x, To: nfs.DirOpArgs{Dir: dir, Name: "y"}}, &rename, &rename.ToWcc, otherDir},
		{"RENAME in one directory", nfs.ProcRename, &nfs.RenameArgs{From: x, To: nfs.DirOpArgs{Dir: root, Name: "y"}}, &rename, &rename.ToWcc, other},
		{"LINK", nfs.ProcLink, &nfs.LinkArgs{File: file, Link: x}, &link, &link.DirWcc, other},
		{"SETATTR", nfs.ProcSetAttr, &nfs.SetAttrArgs{Object: file}, &change, &change.Wcc, otherFile},
	} {
		want := func(when string, wcc *nfs.Wcc, before bool, was uint32) {
			t.Helper()
			if wcc.Before.Present != before || before && wcc.Before.CTime.Sec != was || !wcc.After.Present || wcc.After.Attr.CTime.Sec != f.clock.Load() {
				t.Errorf("%s %s, from %d to %d: before %+v, after %d", tt.name, when, was, f.clock.Load(), wcc.Before, wcc.After.Attr.CTime.Sec)
			}
		}
		was := f.clock.Load()
		c.nfs(tt.proc, tt.args, tt.res)
		want("alone", tt.wcc, true, was)

		was = f.clock.Load()
		f.during = func() {
			second := set(tt.other)
			want("of the other", &second.Wcc, false, 0)
		}
		c.nfs(tt.proc, tt.args, tt.res)
		want("beside another", tt.wcc, false, was)
	}

	// WRITE has no attributes from before, and SETATTR nothing that WRITEs have done.
	f.during = func() {
		var r nfs.WriteRes
		c.nfs(nfs.ProcWrite, &nfs.WriteArgs{File: file, Count: 1, Data: []byte("x")}, &r)
		if r.Status != nfs.StatusOK || r.Wcc.Before.Present || !r.Wcc.After.Present {
			t.Errorf("WRITE: %+v", r)
		}
	}
	if r := set(file); r.Status != nfs.StatusOK || r.Wcc.Before.Present {
		t.Errorf("SETATTR with a WRITE in it: %+v", r)
	}
	if n := len(c.server.changes.now); n != 0 {
		t.Errorf("%d objects are still being changed", n)
	}
}

// READ has no attributes if the file changes while it is read: neither those from before nor those from after
// are of this data.
func TestReadOfChangingFile(t *testing.T) {
	f := newSpool()
	c := newSite(t, &Config{Exports: []Export{{Name: "/", FS: f}}})
	args := nfs.ReadArgs{File: c.lookup(c.mnt("/").Handle, "top"), Count: 100}
	for _, change := range []func(){nil, func() {}} {
		f.during = change
		var r nfs.ReadRes
		if c.nfs(nfs.ProcRead, &args, &r); r.Status != nfs.StatusOK || string(r.Data) != "world" || r.Attr.Present != (change == nil) {
			t.Errorf("changed %v: %+v", change != nil, r)
		}
	}
}
