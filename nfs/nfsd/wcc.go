package nfsd

import (
	"sync"

	"github.com/rpcrdma/rpcrdma/nfs"
)

// A changeSet is the objects that calls are changing at the moment.
//
// "The server will need to be able to get the pre-operation attributes for the object, perform the intended
// modify operation, and then get the post-operation attributes atomically": RFC 1813 section 2.6. A client
// that knows an object as it was before takes every difference after the operation for its own work, and
// keeps the names and data that it has cached. A lock would have to be held until the disk has the change,
// so a reply leaves the attributes of before out instead if another call changed the object meanwhile.
// Changes by programs on the server's host are not seen.
type changeSet struct {
	mu  sync.Mutex
	now map[inode]change // as many as there are calls that change something, twice for RENAME
}

// An inode identifies an object. Handles do not: a directory may be in several exports.
type inode struct{ fsid, fileID uint64 }

// A change is made by calls that overlap in time.
type change struct {
	calls  int
	shared bool // there was more than one
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
	cs.now[i] = ch // shared as before
}

func (cs *changeSet) shared(i inode) bool {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	return cs.now[i].shared
}

// change notes that the call changes the object with these attributes from now on, until the call ends.
func (c *call) change(a *nfs.Attr) {
	i := inodeOf(a)
	for _, known := range c.inodes[:c.changed] {
		if known == i {
			return // RENAME in one directory
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

// altered is post for an object that the call is about to change. Its attributes are not older than
// the note that the call changes it.
func (c *call) altered(n Node) nfs.PostOpAttr {
	was := c.post(n)
	if !was.Present {
		return was
	}
	c.change(&was.Attr)
	return c.post(n)
}

// wcc returns what results say of n, which had the attributes was before the call changed it.
func (c *call) wcc(was *nfs.PostOpAttr, n Node) (w nfs.Wcc) {
	w.After = c.post(n)
	if was.Present && !c.changes.shared(inodeOf(&was.Attr)) {
		w.Before = nfs.PreOpAttr{Present: true, Size: was.Attr.Size, MTime: was.Attr.MTime, CTime: was.Attr.CTime}
	}
	return w
}
