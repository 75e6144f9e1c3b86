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
	"github.com/rpcrdma/rpcrdma/rpc"
)

// maxMounts bounds the list of clients and their mounts, which is for human readers.
const maxMounts = 256

// mountList records which client has mounted what, as far as known: clients need not report an unmount.
type mountList struct {
	mu      sync.Mutex
	entries []nfs.MountEntry // latest last
}

// add records a mount, and drops the oldest if there are too many.
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

// remove removes the mounts of a host: of dir, or all if dir is empty.
func (l *mountList) remove(host, dir string) {
	l.retain(func(e nfs.MountEntry) bool { return e.Host != host || dir != "" && e.Dir != dir })
}

// retain removes the mounts for which keep returns false.
func (l *mountList) retain(keep func(nfs.MountEntry) bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.entries = slices.DeleteFunc(l.entries, func(e nfs.MountEntry) bool { return !keep(e) })
}

func (s *Server) serveMount(ctx context.Context, req *rpc.Request, res *rpc.Response) {
	c := s.begin(ctx, req, res)
	if c == nil {
		return
	}
	defer c.end()
	if req.Proc == nfs.MountProcMnt {
		place, err := s.gate.enter(ctx, c.from, req.Conn())
		if err != nil {
			res.Fail(oncrpc.SystemErr) // the connection has ended
			return
		}
		defer s.gate.leave(place)
	}
	s.mount.ServeRPC(c, req, res)
}

// mounts executes MOUNT calls. The contexts of its methods are *calls.
type mounts struct{}

// Umnt executes UMNT. RFC 1813 section 5.2.3.
func (mounts) Umnt(ctx context.Context, _ *rpc.Request, dir nfs.DirPath) error {
	c := ctx.(*call)
	if c.told.access.Name = string(dir); dir != "" {
		c.mounts.remove(c.host(), cleanDir(dir))
	}
	return nil
}

// Umntall executes UMNTALL. RFC 1813 section 5.2.4.
func (mounts) Umntall(ctx context.Context, _ *rpc.Request) error {
	c := ctx.(*call)
	c.mounts.remove(c.host(), "")
	return nil
}

// host returns the client's name in lists.
func (c *call) host() string {
	if !c.who.Host.IsValid() {
		return "unknown"
	}
	return c.who.Host.String()
}

// cleanDir returns the path that a client means.
func cleanDir(dir nfs.DirPath) string { return path.Clean("/" + string(dir)) }

// Mnt executes MNT. RFC 1813 section 5.2.1. A directory inside an export can be mounted too.
func (mounts) Mnt(ctx context.Context, _ *rpc.Request, path nfs.DirPath, r *nfs.MntRes) error {
	c := ctx.(*call)
	c.told.access.Name = string(path)
	dir := cleanDir(path)
	fh, status := nfs.FileHandle{}, nfs.StatusNoEnt
	if path != "" {
		fh, status = c.root(dir)
	}
	if r.Status = mountStatus(status); r.Status == nfs.MountOK {
		r.Handle = fh
		for _, f := range c.export.Flavors {
			r.Flavors = append(r.Flavors, uint32(f))
		}
		if len(dir) <= nfs.MaxMountPath {
			c.mounts.add(nfs.MountEntry{Host: c.host(), Dir: dir})
		}
	}
	return nil
}

// root returns the handle of a directory that is an export or in one. Like Linux's mountd, it gives the same answer if
// the directory is not exported and if it is not exported to the client.
func (c *call) root(dir string) (nfs.FileHandle, nfs.Status) {
	e, below := c.exports.find(dir)
	switch {
	case strings.ContainsRune(dir, 0):
		return nfs.FileHandle{}, nfs.StatusInval
	case e == nil || !e.permits(c.req, c.who.Host):
		return nfs.FileHandle{}, nfs.StatusAcces
	}
	c.export = e
	if e.accepts(&c.claim) {
		e.squash(&c.who, &c.claim)
	} else { // Kerberos, for example, which MOUNT does not support
		c.who.UID, c.who.GID, c.who.GIDs = e.AnonUID, e.AnonGID, nil
	}
	n, err := c.export.FS.Root(c.Context)
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
	a, err := n.Attr(c.Context, &c.who)
	switch {
	case err != nil:
		return nfs.FileHandle{}, StatusOf(err)
	case a.Type != nfs.TypeDir:
		return nfs.FileHandle{}, nfs.StatusNotDir
	}
	return c.handle(n), nfs.StatusOK
}

// enter returns the object with a name in n, which may be of any type.
func (c *call) enter(n Node, name string) (Node, error) {
	a, err := n.Attr(c.Context, &c.who)
	switch {
	case err != nil:
		return nil, err
	case a.Type != nfs.TypeDir:
		return nil, &nfs.Error{Status: nfs.StatusNotDir} // including a link, which is the client's to follow
	}
	return n.Lookup(c.Context, &c.who, name)
}

// within reports whether a clean path is dir or below it, and returns the rest.
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

// mountStatus converts a status to one of MOUNT: the numbers are the same, but there are fewer. RFC 1813 section 5.1.5.
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

// Dump executes DUMP. It returns as many entries as the client has room for. RFC 1813 section 5.2.2.
func (mounts) Dump(ctx context.Context, _ *rpc.Request, r *nfs.DumpRes) error {
	c := ctx.(*call)
	c.mounts.mu.Lock()
	defer c.mounts.mu.Unlock()
	left := c.res.Room() - xdr.Unit
	for _, e := range c.mounts.entries {
		if left -= xdr.Unit + xdr.SizeOpaque(len(e.Host)) + xdr.SizeOpaque(len(e.Dir)); left < 0 {
			break
		}
		r.Entries = append(r.Entries, e)
	}
	return nil
}

// Export executes EXPORT. It returns as many entries as the client has room for. RFC 1813 section 5.2.5.
func (mounts) Export(ctx context.Context, _ *rpc.Request, r *nfs.ExportRes) error {
	c := ctx.(*call)
	left := c.res.Room() - xdr.Unit
	for i := range c.exports.list {
		if allow := c.exports.list[i].Allow; allow != nil && len(allow) == 0 {
			continue // an export without groups would be open to everyone
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
	return nil
}
