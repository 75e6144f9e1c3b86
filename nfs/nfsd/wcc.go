package nfsd

import (
	"sync"

	"github.com/rpcrdma/rpcrdma/nfs"
)

// changeSet holds the objects that calls are currently changing.
//
// "The server will need to be able to get the pre-operation attributes for the object, perform the intended modify
// operation, and then get the post-operation attributes atomically": RFC 1813 section 2.6. A client that knows the
// previous state of an object attributes every difference after the operation to itself, and keeps the names and data
// that it has cached. A lock would have to be held until the change is on disk. Instead, a reply omits the
// pre-operation attributes if another call changed the object meanwhile. Changes by programs on the server's host are
// not detected.
type changeSet struct {
	mu  sync.Mutex
	now map[inode]change // as many as there are changing calls; two for RENAME
}

// inode identifies an object. Handles do not, because a directory may be in several exports.
type inode struct{ fsid, fileID uint64 }

// change counts calls that change an object at overlapping times.
type change struct {
	calls  int
	shared bool // there has been more than one
}

func inodeOf(a *nfs.Attr) inode { return inode{a.FSID, a.FileID} }

func (cs *changeSet) begin(i inode) {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	ch := cs.now[i]
	ch.calls++
	ch.shared = ch.calls > 1
	cs.now[i] = ch
}

func (cs *changeSet) end(i inode) {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	ch := cs.now[i]
	if ch.calls--; ch.calls == 0 {
		delete(cs.now, i)
		return
	}
	cs.now[i] = ch // shared is kept
}

func (cs *changeSet) shared(i inode) bool {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	return cs.now[i].shared
}

// change records that the call changes the object with these attributes from now until it ends.
func (c *call) change(a *nfs.Attr) {
	i := inodeOf(a)
	for _, known := range c.inodes[:c.changed] {
		if known == i {
			return // RENAME within one directory
		}
	}
	c.inodes[c.changed] = i
	c.changed++
	c.changes.begin(i)
}

// unchange ends the changes of the call.
func (c *call) unchange() {
	for _, i := range c.inodes[:c.changed] {
		c.changes.end(i)
	}
	c.changed = 0
}

// altered is post for an object that the call is about to change. It gets the attributes after recording the change.
func (c *call) altered(n Node) nfs.PostOpAttr {
	was := c.post(n)
	if !was.Present {
		return was
	}
	c.change(&was.Attr)
	return c.post(n)
}

// wcc returns the weak cache consistency data for n, which had the attributes was before the change.
func (c *call) wcc(was *nfs.PostOpAttr, n Node) (w nfs.Wcc) {
	w.After = c.post(n)
	if was.Present && !c.changes.shared(inodeOf(&was.Attr)) {
		w.Before = nfs.PreOpAttr{Present: true, Size: was.Attr.Size, MTime: was.Attr.MTime, CTime: was.Attr.CTime}
	}
	return w
}
