package nfsd

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net/netip"
	"strings"
	"syscall"
	"testing"

	"github.com/rpcrdma/rpcrdma/internal/testing/testutil"
	"github.com/rpcrdma/rpcrdma/nfs"
	"github.com/rpcrdma/rpcrdma/proto/oncrpc"
	"github.com/rpcrdma/rpcrdma/proto/xdr"
	"github.com/rpcrdma/rpcrdma/rpc"
)

// A file system that can do nothing but be read is exported as one: what it cannot do is neither
// promised nor tried.
func TestPlain(t *testing.T) {
	f := newPlain()
	c := newSite(t, &Config{Exports: []Export{{Name: "/", FS: f}}})
	root := c.mnt("/").Handle
	file := c.lookup(root, "dir", "file")
	var read nfs.ReadRes
	c.nfs(nfs.ProcRead, &nfs.ReadArgs{File: file, Offset: 1, Count: 100}, &read)
	if read.Status != nfs.StatusOK || string(read.Data) != "ello" || !read.EOF {
		t.Errorf("READ: %+v", read)
	}
	var list nfs.ReadDirPlusRes
	c.nfs(nfs.ProcReadDirPlus, &nfs.ReadDirPlusArgs{Dir: root, DirCount: 4096, MaxCount: 4096}, &list)
	if len(list.Entries) != 2 || list.Entries[0].Handle.Present || list.Entries[1].Handle.Handle != c.lookup(root, "top") || !list.EOF {
		t.Errorf("READDIRPLUS: %+v", list)
	}
	var info nfs.FSInfoRes
	c.nfs(nfs.ProcFSInfo, &root, &info)
	if info.Properties != nfs.FSFHomogeneous || info.RTMax != 1<<20 || info.MaxFileSize != 1<<63-1 || info.TimeDelta.Nsec != 1 {
		t.Errorf("FSINFO: %+v", info)
	}
	var conf nfs.PathConfRes
	c.nfs(nfs.ProcPathConf, &root, &conf)
	if conf.LinkMax != 1 || conf.NameMax != 255 || !conf.NoTrunc || !conf.ChownRestricted || !conf.CasePreserving {
		t.Errorf("PATHCONF: %+v", conf)
	}
	var stat nfs.FSStatRes
	c.nfs(nfs.ProcFSStat, &root, &stat)
	if stat.Status != nfs.StatusOK || stat.TotalBytes != 0 {
		t.Errorf("FSSTAT: %+v", stat)
	}
	var access nfs.AccessRes
	c.nfs(nfs.ProcAccess, &nfs.AccessArgs{Object: root, Access: 0x3f}, &access)
	if access.Access != nfs.AccessRead|nfs.AccessLookup {
		t.Errorf("ACCESS: %#x", access.Access)
	}
	// RFC 1813 section 3.3.17: dircount is "the maximum number of bytes of directory information", but a page
	// has an entry at least.
	c.nfs(nfs.ProcReadDirPlus, &nfs.ReadDirPlusArgs{Dir: root, DirCount: 1, MaxCount: 4096}, &list)
	if list.Status != nfs.StatusOK || len(list.Entries) != 1 || list.EOF {
		t.Errorf("READDIRPLUS with a dircount below one entry: %+v", list)
	}
	// -1 leaves the owner or group as it is in chown(2), and cannot be asked for.
	for _, set := range []nfs.SetAttr{{SetUID: true, UID: 1<<32 - 1}, {SetGID: true, GID: 1<<32 - 1}} {
		if got := c.status(nfs.ProcSetAttr, &nfs.SetAttrArgs{Object: file, Attr: set}); got != nfs.StatusInval {
			t.Errorf("SETATTR of %+v: %v", set, got)
		}
	}
	where := nfs.DirOpArgs{Dir: root, Name: "x"}
	for proc, args := range map[uint32]message{
		nfs.ProcSetAttr: &nfs.SetAttrArgs{Object: file}, nfs.ProcWrite: &nfs.WriteArgs{File: file, Count: 1, Data: []byte("x")},
		nfs.ProcCreate: &nfs.CreateArgs{Where: where}, nfs.ProcMkdir: &nfs.MkdirArgs{Where: where},
		nfs.ProcSymlink: &nfs.SymlinkArgs{Where: where, Target: []byte("x")}, nfs.ProcMknod: &nfs.MknodArgs{Where: where, Type: nfs.TypeFIFO},
		nfs.ProcRemove: &where, nfs.ProcRmdir: &where, nfs.ProcRename: &nfs.RenameArgs{From: where, To: where},
		nfs.ProcLink: &nfs.LinkArgs{File: file, Link: where}, nfs.ProcCommit: &nfs.CommitArgs{File: file},
	} {
		if got := c.status(proc, args); got != nfs.StatusNotSupp {
			t.Errorf("%s: %v", nfs.ProcName(proc), got)
		}
	}
	testutil.Eventually(t, "every node is released", func() bool { return f.uses.Load() == 0 })
}

// status calls a procedure and returns its status alone.
func (c *site) status(proc uint32, args message) nfs.Status {
	c.t.Helper()
	var s statusRes
	c.nfs(proc, args, &s)
	return nfs.Status(s)
}

// Exports differ in who may use them, as which user, and for what.
func TestExports(t *testing.T) {
	open, closed, written, squashed := newPlain(), newPlain(), new(failing), newPlain()
	written.plain = plain{objects: newPlain().objects}
	for _, o := range written.objects {
		o.fs = &written.plain
	}
	c := newSite(t, &Config{Exports: []Export{
		{Name: "/srv", FS: open, Allow: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8"), netip.MustParsePrefix("127.0.0.0/8")}},
		{Name: "srv/closed/", FS: closed, Allow: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}},
		{Name: "/srv/ro", FS: written, ReadOnly: true},
		{Name: "/all", FS: squashed, Squash: SquashAll, AnonUID: 7, AnonGID: 8},
		{Name: "/nobody", FS: open, Allow: []netip.Prefix{}},
	}})
	for dir, want := range map[string]nfs.MountStatus{
		"/srv": nfs.MountOK, "/srv/": nfs.MountOK, "//srv//dir/.": nfs.MountOK, "/srv/dir": nfs.MountOK, "srv": nfs.MountOK,
		"/srv/dir/file": nfs.MountNotDir, "/srv/dir/file/x": nfs.MountNotDir, "/srv/none": nfs.MountNoEnt, "/srv/../..": nfs.MountAcces,
		"/srv/closed": nfs.MountAcces, "/srv/closed/dir": nfs.MountAcces, "/srv/closed/none": nfs.MountAcces, "/srv/closedx": nfs.MountNoEnt,
		"/": nfs.MountAcces, "": nfs.MountNoEnt, "/al": nfs.MountAcces, "/alll": nfs.MountAcces, "/srv/ro/dir": nfs.MountOK, "/srv/a\x00": nfs.MountInval,
		"/nobody": nfs.MountAcces,
	} {
		if got := c.mnt(dir); got.Status != want || want == nfs.MountOK && len(got.Flavors) != 2 {
			t.Errorf("MNT of %q: %v, want %v", dir, got.Status, want)
		}
	}
	root, ro := c.mnt("/srv").Handle, c.mnt("/srv/ro").Handle
	if c.mnt("/srv/dir").Handle != c.lookup(root, "dir") {
		t.Error("a mounted directory has another handle")
	}

	// The handles of an export are good for no other client. Linux's server answers so, too.
	handle, _ := nfs.NewFileHandle(c.server.seal.append(nil, c.server.exports.Load().list[1].ID, closed.objects[0]))
	if got := c.status(nfs.ProcGetAttr, &handle); got != nfs.StatusStale {
		t.Errorf("the handle of a closed export: %v", got)
	}
	intoClosed := nfs.RenameArgs{From: nfs.DirOpArgs{Dir: root, Name: "a"}, To: nfs.DirOpArgs{Dir: handle, Name: "b"}}
	if got := c.status(nfs.ProcRename, &intoClosed); got != nfs.StatusStale {
		t.Errorf("RENAME into a closed export: %v", got)
	}
	handle, _ = nfs.NewFileHandle(c.server.seal.append(nil, 12345, closed.objects[0]))
	if got := c.status(nfs.ProcGetAttr, &handle); got != nfs.StatusStale {
		t.Errorf("the handle of an export that is gone: %v", got)
	}
	file := c.lookup(ro, "top")
	for proc, args := range map[uint32]message{
		nfs.ProcSetAttr: &nfs.SetAttrArgs{Object: file}, nfs.ProcWrite: &nfs.WriteArgs{File: file, Count: 1, Data: []byte("x")},
		nfs.ProcCommit: &nfs.CommitArgs{File: file}, nfs.ProcRemove: &nfs.DirOpArgs{Dir: ro, Name: "top"},
	} {
		if got := c.status(proc, args); got != nfs.StatusROFS {
			t.Errorf("%s in a read-only export: %v", nfs.ProcName(proc), got)
		}
	}
	var access nfs.AccessRes
	c.nfs(nfs.ProcAccess, &nfs.AccessArgs{Object: file, Access: 0x3f}, &access)
	if access.Access != nfs.AccessRead {
		t.Errorf("ACCESS in a read-only export: %#x", access.Access)
	}
	rename := nfs.RenameArgs{From: nfs.DirOpArgs{Dir: root, Name: "a"}, To: nfs.DirOpArgs{Dir: c.mnt("/all").Handle, Name: "b"}}
	if got := c.status(nfs.ProcRename, &rename); got != nfs.StatusXDev {
		t.Errorf("RENAME from export to export: %v", got)
	}
	var list nfs.ExportRes
	if err := c.call(someone(), nfs.MountProgram, nfs.MountProcExport, nil, &list); err != nil || len(list.Exports) != 4 ||
		list.Exports[1].Dir != "/srv/closed" || fmt.Sprint(list.Exports[0].Groups) != "[10.0.0.0/8 127.0.0.0/8]" || list.Exports[3].Groups != nil {
		t.Errorf("EXPORT: %+v, %v", list, err)
	}
}

// A roomy is a plain that has space.
type roomy struct{ *plain }

func (roomy) Space(context.Context, *Caller) (Space, error) { return Space{6, 5, 4, 3, 2, 1}, nil }

// FSSTAT of a read-only export has the available space, as others may write there.
func TestSpaceOfReadOnly(t *testing.T) {
	c := newSite(t, &Config{Exports: []Export{{Name: "/", FS: roomy{newPlain()}, ReadOnly: true}}})
	root := c.mnt("/").Handle
	var r nfs.FSStatRes
	c.nfs(nfs.ProcFSStat, &root, &r)
	if got := (Space{r.TotalBytes, r.FreeBytes, r.AvailBytes, r.TotalFiles, r.FreeFiles, r.AvailFiles}); got != (Space{6, 5, 4, 3, 2, 1}) {
		t.Errorf("%+v", got)
	}
}

// Who a caller is for a file system depends on its credential and the export.
func TestSquash(t *testing.T) {
	plains := make(map[Squash]*plain)
	var cfg Config
	for _, s := range []Squash{SquashRoot, SquashNone, SquashAll} {
		plains[s] = newPlain()
		cfg.Exports = append(cfg.Exports, Export{Name: "/" + s.String(), FS: plains[s], Squash: s, AnonUID: 70, AnonGID: 80})
	}
	c := newSite(t, &cfg)
	sys := func(uid, gid uint32, gids ...uint32) oncrpc.Auth {
		return (&oncrpc.AuthSys{UID: uid, GID: gid, GIDs: gids}).Auth()
	}
	for _, tt := range []struct {
		cred            oncrpc.Auth
		root, none, all string
	}{
		{sys(1000, 1001, 5, 0), "1000 1001 [5 80]", "1000 1001 [5 0]", "70 80 []"},
		{sys(0, 0, 0), "70 80 [80]", "0 0 [0]", "70 80 []"},
		{sys(0, 5), "70 5 []", "0 5 []", "70 80 []"},
		{sys(5, 0), "5 80 []", "5 0 []", "70 80 []"},
		{sys(1<<32-1, 0), "70 80 []", "70 80 []", "70 80 []"},
		{sys(5, 1<<32-1), "70 80 []", "70 80 []", "70 80 []"},
		{sys(5, 6, 1<<32-1), "5 6 [80]", "5 6 [80]", "70 80 []"},
		{oncrpc.Auth{}, "70 80 []", "70 80 []", "70 80 []"},
	} {
		for s, want := range map[Squash]string{SquashRoot: tt.root, SquashNone: tt.none, SquashAll: tt.all} {
			var res nfs.GetAttrRes
			root := c.mnt("/" + s.String()).Handle
			if err := c.call(tt.cred, nfs.Program, nfs.ProcGetAttr, &root, &res); err != nil {
				t.Fatal(err)
			}
			who := plains[s].last.Load()
			if got := fmt.Sprint(who.UID, who.GID, who.GIDs); got != want || who.Host != netip.MustParseAddr("127.0.0.1") || who.Net != netip.MustParsePrefix("127.0.0.1/32") {
				t.Errorf("%x with squash %v is %s of %v, want %s", tt.cred.Body, s, got, who.Host, want)
			}
			export := Export{Squash: s, AnonUID: 70, AnonGID: 80}
			if caller, ok := export.Caller(requestOf(tt.cred)); !ok || fmt.Sprint(caller.UID, caller.GID, caller.GIDs) != want || caller.Host != who.Host {
				t.Errorf("%x with squash %v is the caller %+v, %v, want %s", tt.cred.Body, s, caller, ok, want)
			}
		}
	}
	root := c.mnt("/root").Handle
	for _, cred := range []oncrpc.Auth{
		{Flavor: oncrpc.FlavorSys}, {Flavor: oncrpc.FlavorSys, Body: append(sys(1, 2).Body, 0, 0, 0, 0)},
		{Flavor: oncrpc.FlavorGSS, Body: []byte{0, 0, 0, 1}}, {Flavor: 99},
	} {
		for _, prog := range []uint32{nfs.Program, nfs.MountProgram} {
			err := c.call(cred, prog, 1, &root, new(nfs.GetAttrRes))
			var refused *oncrpc.RPCError
			if !errors.As(err, &refused) || refused.AuthStat != oncrpc.AuthBadCred {
				t.Errorf("program %d with credential %v %x: %v", prog, cred.Flavor, cred.Body, err)
			}
		}
	}
}

// from is a connection from 127.0.0.1.
type from struct{ rpc.Conn }

func (from) RemoteAddrPort() netip.AddrPort { return netip.MustParseAddrPort("127.0.0.1:5") }
func (from) Host() netip.Prefix             { return netip.MustParsePrefix("127.0.0.1/32") }
func (from) Peer() rpc.Peer                 { return rpc.Peer{} }

func requestOf(cred oncrpc.Auth) *rpc.Request {
	req := new(rpc.Request)
	rpc.Arrived(req, from{}, nil, &oncrpc.CallHeader{Cred: cred}, nil, 0, xdr.Padding{}, false)
	return req
}

// Other programs refuse the clients that calls of NFS are refused to, and squash root by default.
func TestExportCaller(t *testing.T) {
	sys := (&oncrpc.AuthSys{UID: 5, GID: 6}).Auth()
	for _, tt := range []struct {
		allow []netip.Prefix
		cred  oncrpc.Auth
		want  bool
	}{
		{nil, sys, true}, {nil, oncrpc.Auth{}, true}, {nil, oncrpc.Auth{Flavor: 99}, false}, {nil, oncrpc.Auth{Flavor: oncrpc.FlavorSys}, false},
		{[]netip.Prefix{}, sys, false}, {[]netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}, sys, false}, {[]netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}, sys, true},
	} {
		if _, ok := (&Export{Allow: tt.allow}).Caller(requestOf(tt.cred)); ok != tt.want {
			t.Errorf("%v with %v: %v", tt.allow, tt.cred, ok)
		}
	}
	if who, _ := new(Export).Caller(requestOf((&oncrpc.AuthSys{}).Auth())); who.UID != Nobody || who.GID != Nobody {
		t.Errorf("root is %+v", who)
	}
}

// DUMP lists the clients and their mounts, for as many mounts as there is room for.
func TestMountList(t *testing.T) {
	c := newSite(t, &Config{Exports: []Export{{Name: "/", FS: newPlain()}}})
	dump := func() string {
		var res nfs.DumpRes
		if err := c.call(someone(), nfs.MountProgram, nfs.MountProcDump, nil, &res); err != nil {
			t.Fatal(err)
		}
		return fmt.Sprint(res.Entries)
	}
	c.mnt("/")
	c.mnt("/dir")
	c.mnt("/")
	c.mnt("/none")
	if got := dump(); got != "[{127.0.0.1 /dir} {127.0.0.1 /}]" {
		t.Error(got)
	}
	dir := nfs.DirPath("/dir/")
	if err := c.call(someone(), nfs.MountProgram, nfs.MountProcUmnt, &dir, nil); err != nil || dump() != "[{127.0.0.1 /}]" {
		t.Error(err, dump())
	}
	if err := c.call(someone(), nfs.MountProgram, nfs.MountProcUmntAll, nil, nil); err != nil || dump() != "[]" {
		t.Error(err, dump())
	}
	for i := range 2 * maxMounts {
		c.server.mounts.add(nfs.MountEntry{Host: "192.0.2.1", Dir: strings.Repeat("x", i)})
	}
	if n := len(c.server.mounts.entries); n != maxMounts {
		t.Errorf("%d mounts are listed", n)
	}
	var res nfs.DumpRes
	if err := c.call(someone(), nfs.MountProgram, nfs.MountProcDump, nil, &res); err != nil || len(res.Entries) == 0 || len(res.Entries) == maxMounts {
		t.Errorf("%d mounts in a reply of 64 KiB, %v", len(res.Entries), err)
	}
}

// Data that has been lost changes the write verifier of its export, so that clients write it again. A
// WRITE that fails has lost nothing.
func TestWriteVerifier(t *testing.T) {
	var log bytes.Buffer
	f := newFailing()
	exports := []Export{{Name: "/", FS: f}, {Name: "/other", FS: f}}
	c := newSite(t, &Config{Exports: exports, Logger: slog.New(slog.NewTextHandler(&log, nil))})
	file, other := c.lookup(c.mnt("/").Handle, "top"), c.lookup(c.mnt("/other").Handle, "top")
	write := func(file nfs.FileHandle, stable nfs.Stable) (r nfs.WriteRes) {
		c.nfs(nfs.ProcWrite, &nfs.WriteArgs{File: file, Count: 4, Stable: stable, Data: []byte("data")}, &r)
		return r
	}
	commit := func() (r nfs.CommitRes) {
		c.nfs(nfs.ProcCommit, &nfs.CommitArgs{File: file}, &r)
		return r
	}
	first, elsewhere := write(file, nfs.Unstable), write(other, nfs.Unstable)
	if second := commit(); first.Status != nfs.StatusOK || first.Count != 4 || second.Verf != first.Verf {
		t.Errorf("%+v, %+v", first, second)
	}
	for _, err := range []error{syscall.EIO, syscall.ENOSPC, errors.New("what?")} {
		f.commit = err
		if r := commit(); r.Status != StatusOf(err) {
			t.Errorf("COMMIT that fails with %v: %v", err, r.Status)
		}
		f.commit = nil
		after := write(file, nfs.Unstable)
		if after.Verf == first.Verf {
			t.Errorf("the verifier is the same after a COMMIT failed with %v", err)
		}
		first = after
	}
	if r := write(other, nfs.Unstable); r.Verf != elsewhere.Verf || r.Verf == first.Verf {
		t.Errorf("the verifier of another export is %x, before %x", r.Verf, elsewhere.Verf)
	}
	f.commit = syscall.ESTALE
	commit()
	for _, f.write = range []error{syscall.ENOSPC, syscall.EDQUOT, syscall.EIO} {
		for stable := nfs.Unstable; stable <= nfs.FileSync; stable++ {
			if r := write(file, stable); r.Status != StatusOf(f.write) {
				t.Errorf("%+v", r)
			}
		}
	}
	f.write, f.short = nil, true
	_, err := c.server.SetExports(exports)
	testutil.Must(t, err)
	if r := write(file, nfs.FileSync); r.Verf != first.Verf || r.Count != 2 || r.Committed != nfs.FileSync {
		t.Errorf("the verifier changes though nothing is lost: %+v, before %x", r, first.Verf)
	}
	if n := strings.Count(log.String(), "written data may be lost"); n != 3 {
		t.Errorf("the log has\n%s", log.String())
	}
}

// Data that was read before an error is not the end of the file; without an error it is.
func TestReadError(t *testing.T) {
	f := newFailing()
	c := newSite(t, &Config{Exports: []Export{{Name: "/", FS: f}}})
	file := c.lookup(c.mnt("/").Handle, "top")
	f.short = true
	for _, tt := range []struct {
		err    error
		count  uint32
		status nfs.Status
		data   string
		eof    bool
	}{
		{nil, 100, nfs.StatusOK, "wo", true}, {syscall.EIO, 100, nfs.StatusOK, "wo", false},
		{syscall.EIO, 4, nfs.StatusOK, "wo", false}, {syscall.EIO, 1, nfs.StatusIO, "", false},
	} {
		f.read = tt.err
		var r nfs.ReadRes
		c.nfs(nfs.ProcRead, &nfs.ReadArgs{File: file, Count: tt.count}, &r)
		if r.Status != tt.status || string(r.Data) != tt.data || int(r.Count) != len(tt.data) || r.EOF != tt.eof {
			t.Errorf("READ of %d bytes with %v: %+v", tt.count, tt.err, r)
		}
	}
}

func TestStatusOf(t *testing.T) {
	for _, tt := range []struct {
		err  error
		want nfs.Status
	}{
		{nil, nfs.StatusOK}, {syscall.ENOENT, nfs.StatusNoEnt}, {fmt.Errorf("a: %w", syscall.EDQUOT), nfs.StatusDQuot},
		{&fs.PathError{Err: syscall.EROFS}, nfs.StatusROFS}, {fs.ErrNotExist, nfs.StatusNoEnt}, {fs.ErrExist, nfs.StatusExist},
		{fs.ErrPermission, nfs.StatusAcces}, {fs.ErrInvalid, nfs.StatusInval}, {errors.ErrUnsupported, nfs.StatusNotSupp},
		{&nfs.Error{Status: nfs.StatusBadType}, nfs.StatusBadType}, {fmt.Errorf("b: %w", &nfs.Error{Status: nfs.StatusNotSync}), nfs.StatusNotSync},
		{syscall.EMFILE, nfs.StatusJukebox}, {context.Canceled, nfs.StatusJukebox}, {errors.New("x"), nfs.StatusIO},
		{syscall.EPIPE, nfs.StatusIO}, {&nfs.Error{}, nfs.StatusIO},
	} {
		if got := StatusOf(tt.err); got != tt.want {
			t.Errorf("%v: %v, want %v", tt.err, got, tt.want)
		}
	}
	for _, tt := range []struct {
		proc      uint32
		got, want nfs.Status
	}{
		{nfs.ProcGetAttr, nfs.StatusNoEnt, nfs.StatusStale}, {nfs.ProcLookup, nfs.StatusNoEnt, nfs.StatusNoEnt},
		{nfs.ProcLookup, nfs.StatusXDev, nfs.StatusAcces}, {nfs.ProcRename, nfs.StatusNotEmpty, nfs.StatusNotEmpty},
		{nfs.ProcRmdir, nfs.StatusNotEmpty, nfs.StatusNotEmpty}, {nfs.ProcRename, nfs.StatusXDev, nfs.StatusXDev},
	} {
		if got := fits(tt.proc, tt.got); got != tt.want {
			t.Errorf("%v of %s: %v, want %v", tt.got, nfs.ProcName(tt.proc), got, tt.want)
		}
	}
}

func TestModeAccess(t *testing.T) {
	r, l, m, e, d, x := nfs.AccessRead, nfs.AccessLookup, nfs.AccessModify, nfs.AccessExtend, nfs.AccessDelete, nfs.AccessExecute
	for _, tt := range []struct {
		typ      nfs.FileType
		mode     uint32
		uid, gid uint32
		want     uint32
	}{
		{nfs.TypeReg, 0o640, 10, 99, r | m | e}, {nfs.TypeReg, 0o640, 11, 20, r}, {nfs.TypeReg, 0o640, 11, 99, 0},
		{nfs.TypeReg, 0o007, 10, 99, 0}, {nfs.TypeReg, 0o007, 11, 20, 0}, {nfs.TypeReg, 0o007, 11, 99, r | m | e | x},
		{nfs.TypeReg, 0, 0, 0, r | m | e}, {nfs.TypeReg, 0o100, 0, 0, r | m | e | x},
		{nfs.TypeDir, 0o300, 10, 99, l | m | e | d}, {nfs.TypeDir, 0o200, 10, 99, m | e}, {nfs.TypeDir, 0, 0, 0, r | l | m | e | d},
	} {
		a := nfs.Attr{Type: tt.typ, Mode: tt.mode, UID: 10, GID: 20}
		if got := ModeAccess(&a, &Caller{UID: tt.uid, GID: tt.gid, GIDs: []uint32{30}}, 0x3f); got != tt.want {
			t.Errorf("%v %o for %d, %d: %#x, want %#x", tt.typ, tt.mode, tt.uid, tt.gid, got, tt.want)
		}
	}
	if !(&Caller{GID: 1, GIDs: []uint32{2, 3}}).Member(3) || (&Caller{GID: 1, GIDs: []uint32{2, 3}}).Member(0) {
		t.Error("Member")
	}
}

func TestNewErrors(t *testing.T) {
	f := newPlain()
	for name, cfg := range map[string]Config{
		"no exports":       {},
		"no file system":   {Exports: []Export{{Name: "/"}}},
		"a short key":      {Exports: []Export{{Name: "/", FS: f}}, Key: []byte("short")},
		"the same name":    {Exports: []Export{{Name: "/a", FS: f}, {Name: "a/", FS: f}}},
		"the same ID":      {Exports: []Export{{Name: "/a", FS: f, ID: 1}, {Name: "/b", FS: f, ID: 1}}},
		"a zero byte":      {Exports: []Export{{Name: "/a\x00", FS: f}}},
		"a long name":      {Exports: []Export{{Name: strings.Repeat("a", 1024), FS: f}}},
		"unknown squash":   {Exports: []Export{{Name: "/", FS: f, Squash: 9}}},
		"a bad network":    {Exports: []Export{{Name: "/", FS: f, Allow: make([]netip.Prefix, 1)}}},
		"a negative limit": {Exports: []Export{{Name: "/", FS: f}}, MaxCalls: -1},
		"a large transfer": {Exports: []Export{{Name: "/", FS: f}}, MaxTransfer: maxTransfer + 1},
	} {
		if s, err := New(&cfg); err == nil {
			t.Errorf("%s: %+v", name, s)
		}
	}
}
