package nfsd

import (
	"context"
	"path"
	"slices"
	"strings"
	"sync"

	"github.com/rpcrdma/rpcrdma/nfs"
	"github.com/rpcrdma/rpcrdma/proto/oncrpc"
	"github.com/rpcrdma/rpcrdma/proto/xdr"
	"github.com/rpcrdma/rpcrdma/transport"
)

// maxMounts bounds the list of clients and what they have mounted, which is for people to look at.
const maxMounts = 256

// A mountList is which client has mounted what, as far as it is known: clients need not tell when they
// stop.
type mountList struct {
	mu      sync.Mutex
	entries []nfs.MountEntry // latest last
}

// add notes a mount, and forgets the oldest when there are too many.
func (l *mountList) add(e nfs.MountEntry) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if i := slices.Index(l.entries, e); i >= 0 {
		l.entries = slices.Delete(l.entries, i, i+1)
	} else if len(l.entries) == maxMounts {
		l.entries = slices.Delete(l.entries, 0, 1)
	}
	l.entries = append(l.entries, e)
}

// remove forgets mounts of a host: of dir, or all if it is empty.
func (l *mountList) remove(host, dir string) {
	l.retain(func(e nfs.MountEntry) bool { return e.Host != host || dir != "" && e.Dir != dir })
}

// retain forgets the mounts that are not to be kept.
func (l *mountList) retain(keep func(nfs.MountEntry) bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.entries = slices.DeleteFunc(l.entries, func(e nfs.MountEntry) bool { return !keep(e) })
}

func (s *Server) serveMount(ctx context.Context, req *transport.Request, res *transport.Response) {
	c := s.begin(ctx, req, res)
	if c == nil {
		return
	}
	defer c.end()
	switch req.Proc {
	case nfs.MountProcMnt:
		place, err := s.gate.enter(ctx, c.from, req.Conn())
		if err != nil {
			c.fail(oncrpc.SystemErr) // to a connection that has ended
			return
		}
		defer s.gate.leave(place)
		c.doMnt()
	case nfs.MountProcUmnt:
		if c.decode(&c.mnt) && c.mnt != "" {
			s.mounts.remove(c.host(), cleanDir(c.mnt))
		}
	case nfs.MountProcUmntAll:
		if c.decode(nothing{}) {
			s.mounts.remove(c.host(), "")
		}
	case nfs.MountProcDump:
		if c.decode(nothing{}) {
			c.dump()
		}
	case nfs.MountProcExport:
		if c.decode(nothing{}) {
			c.exportList()
		}
	default:
		c.fail(oncrpc.ProcUnavail)
	}
}

// nothing is the arguments of a procedure that has none.
type nothing struct{}

// Decode reads nothing.
func (nothing) Decode(*xdr.Decoder) {}

// host is how the client is called in lists.
func (c *call) host() string {
	if !c.who.Host.IsValid() {
		return "unknown"
	}
	return c.who.Host.String()
}

// cleanDir is the path that a client means.
func cleanDir(dir nfs.DirPath) string { return path.Clean("/" + string(dir)) }

// doMnt executes MNT. RFC 1813 section 5.2.1. A directory in an export can be mounted, too.
func (c *call) doMnt() {
	if !c.decode(&c.mnt) {
		return
	}
	var r nfs.MntRes
	dir := cleanDir(c.mnt)
	fh, status := c.mount(dir)
	if r.Status = mountStatus(status); r.Status == nfs.MountOK {
		r.Handle = fh
		r.Flavors = []uint32{uint32(oncrpc.FlavorSys), uint32(oncrpc.FlavorNone)}
		c.mounts.add(nfs.MountEntry{Host: c.host(), Dir: dir})
	}
	c.res.Results = r.Append(c.res.Results)
}

// mount returns the handle of a directory, which is that of an export or in it. Linux's mountd
// answers what is not exported, and what is but not to the client, in the same way.
func (c *call) mount(dir string) (nfs.FileHandle, nfs.Status) {
	e, below := c.exports.find(dir)
	switch {
	case c.mnt == "":
		return nfs.FileHandle{}, nfs.StatusNoEnt
	case strings.ContainsRune(dir, 0):
		return nfs.FileHandle{}, nfs.StatusInval
	case e == nil || !e.allows(c.who.Host):
		return nfs.FileHandle{}, nfs.StatusAcces
	}
	c.export = e
	c.export.squash(&c.who, &c.cred, c.flavor)
	n, err := c.export.FS.Root(c.ctx)
	for name := range strings.SplitSeq(below, "/") {
		if err != nil || name == "" {
			break
		}
		var next Node
		next, err = c.enter(n, name)
		n.Release()
		n = next
	}
	if err != nil {
		return nfs.FileHandle{}, StatusOf(err)
	}
	defer n.Release()
	a, err := n.Attr(c.ctx, &c.who)
	switch {
	case err != nil:
		return nfs.FileHandle{}, StatusOf(err)
	case a.Type != nfs.TypeDir:
		return nfs.FileHandle{}, nfs.StatusNotDir
	}
	return c.handle(n), nfs.StatusOK
}

// enter returns what n, which may be anything, has under a name.
func (c *call) enter(n Node, name string) (Node, error) {
	a, err := n.Attr(c.ctx, &c.who)
	switch {
	case err != nil:
		return nil, err
	case a.Type != nfs.TypeDir:
		return nil, &nfs.Error{Status: nfs.StatusNotDir} // a link among them: it is the client's to follow
	}
	return n.Lookup(c.ctx, &c.who, name)
}

// within reports whether a clean path is dir or below it, and what follows.
func within(p, dir string) (rest string, ok bool) {
	if dir == "/" {
		return p[1:], true
	}
	rest, ok = strings.CutPrefix(p, dir)
	if !ok || rest != "" && rest[0] != '/' {
		return "", false
	}
	return strings.TrimPrefix(rest, "/"), true
}

// mountStatus is a status as MOUNT knows it: the numbers are the same, but there are fewer. RFC
// 1813 section 5.1.5.
func mountStatus(s nfs.Status) nfs.MountStatus {
	switch m := nfs.MountStatus(s); m {
	case nfs.MountOK, nfs.MountPerm, nfs.MountNoEnt, nfs.MountIO, nfs.MountAcces, nfs.MountNotDir, nfs.MountInval,
		nfs.MountNameTooLong, nfs.MountNotSupp, nfs.MountServerFault:
		return m
	}
	if s == nfs.StatusStale {
		return nfs.MountNoEnt
	}
	return nfs.MountServerFault
}

// dump writes the results of DUMP, as much of them as the client has room for. RFC 1813 section
// 5.2.2.
func (c *call) dump() {
	c.mounts.mu.Lock()
	defer c.mounts.mu.Unlock()
	left := c.res.Room() - xdr.Unit
	n := 0
	for _, e := range c.mounts.entries {
		if left -= xdr.Unit + xdr.SizeOpaque(len(e.Host)) + xdr.SizeOpaque(len(e.Dir)); left < 0 {
			break
		}
		n++
	}
	r := nfs.DumpRes{Entries: c.mounts.entries[:n]}
	c.res.Results = r.Append(c.res.Results)
}

// exportList writes the results of EXPORT, as much of them as the client has room for. RFC 1813
// section 5.2.5.
func (c *call) exportList() {
	left := c.res.Room() - xdr.Unit
	var r nfs.ExportRes
	for i := range c.exports.list {
		if allow := c.exports.list[i].Allow; allow != nil && len(allow) == 0 {
			continue // an export without groups is everybody's
		}
		e := nfs.Export{Dir: c.exports.list[i].Name}
		left -= 2*xdr.Unit + xdr.SizeOpaque(len(e.Dir))
		for _, p := range c.exports.list[i].Allow {
			e.Groups = append(e.Groups, p.String())
			left -= xdr.Unit + xdr.SizeOpaque(len(p.String()))
		}
		if left < 0 {
			break
		}
		r.Exports = append(r.Exports, e)
	}
	c.res.Results = r.Append(c.res.Results)
}
