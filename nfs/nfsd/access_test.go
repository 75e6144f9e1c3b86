package nfsd

import (
	"context"
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/rpcrdma/rpcrdma/internal/testing/testutil"
	"github.com/rpcrdma/rpcrdma/nfs"
	"github.com/rpcrdma/rpcrdma/proto/oncrpc"
	"github.com/rpcrdma/rpcrdma/rpc"
)

// raw is arguments that are bytes.
type raw []byte

func (r raw) Append(b []byte) []byte { return append(b, r...) }

// Config.Access gets each call and its outcome.
func TestAccess(t *testing.T) {
	told := make(chan Access, 1)
	f, closed := new(failing), newPlain()
	f.plain.objects = newPlain().objects
	for _, o := range f.objects {
		o.fs = &f.plain
	}
	c := newSite(t, &Config{Exports: []Export{
		{Name: "/", FS: f, Squash: SquashAll, AnonUID: 70, AnonGID: 80},
		{Name: "/closed", FS: closed, Allow: []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24")}},
	}, Access: func(a *Access) {
		if a.Time.IsZero() || time.Since(a.Time) > time.Minute || a.Duration <= 0 || !a.Client.Addr().IsLoopback() || a.Client.Port() == 0 || a.Vers != 3 {
			t.Errorf("a call at %v for %v from %v of version %d", a.Time, a.Duration, a.Client, a.Vers)
		}
		told <- *a
	}})
	root, foreign := c.mnt("/").Handle, nfs.FileHandle{}
	mnt := <-told
	file := c.lookup(root, "top")
	lookup := <-told
	if mnt.Made == 0 || lookup.Object != mnt.Made || lookup.Made == 0 || lookup.Made == mnt.Made || lookup.Made.String() != fmt.Sprintf("%016x", uint64(lookup.Made)) {
		t.Fatalf("%+v, then %+v", mnt, lookup)
	}
	objects := map[Object]string{0: "-", mnt.Made: "root", lookup.Made: "file"}
	handle, _ := nfs.NewFileHandle(c.server.seal.append(nil, c.server.exports.Load().list[1].ID, closed.objects[0]))
	in := func(fh nfs.FileHandle, name string) nfs.DirOpArgs { return nfs.DirOpArgs{Dir: fh, Name: name} }
	where := in(root, "x\n\x1b")
	path := nfs.DirPath("/none")
	for _, tt := range []struct {
		prog, proc uint32
		args       message
		want       string
	}{
		{nfs.MountProgram, nfs.MountProcMnt, &path, `MOUNT 1 1000/1001 as 70/80 in / - - - "/none" "" 0+0 MNT3ERR_NOENT`},
		{nfs.MountProgram, nfs.MountProcUmnt, &path, `MOUNT 3 1000/1001 as 0/0 in ? - - - "/none" "" 0+0 MNT3_OK`},
		{nfs.MountProgram, nfs.MountProcDump, nil, `MOUNT 2 1000/1001 as 0/0 in ? - - - "" "" 0+0 MNT3_OK`},
		{nfs.MountProgram, 9, nil, `MOUNT 9 1000/1001 as 0/0 in ? - - - "" "" 0+0 PROC_UNAVAIL`},
		{nfs.Program, nfs.ProcGetAttr, &root, `GETATTR 1000/1001 as 70/80 in / root - - "" "" 0+0 NFS3_OK`},
		{nfs.Program, nfs.ProcGetAttr, &handle, `GETATTR 1000/1001 as 0/0 in ? other - - "" "" 0+0 NFS3ERR_STALE`},
		{nfs.Program, nfs.ProcGetAttr, &foreign, `GETATTR 1000/1001 as 0/0 in ? other - - "" "" 0+0 NFS3ERR_BADHANDLE`},
		{nfs.Program, nfs.ProcGetAttr, raw{0, 0, 0, 1}, `GETATTR 1000/1001 as 0/0 in ? - - - "" "" 0+0 GARBAGE_ARGS`},
		{nfs.Program, nfs.ProcSetAttr, &nfs.SetAttrArgs{Object: file}, `SETATTR 1000/1001 as 70/80 in / file - - "" "" 0+0 NFS3ERR_NOTSUPP`},
		{nfs.Program, nfs.ProcLookup, &where, `LOOKUP 1000/1001 as 70/80 in / root - - "x\n\x1b" "" 0+0 NFS3ERR_NOENT`},
		{nfs.Program, nfs.ProcAccess, &nfs.AccessArgs{Object: file}, `ACCESS 1000/1001 as 70/80 in / file - - "" "" 0+0 NFS3_OK`},
		{nfs.Program, nfs.ProcReadLink, &file, `READLINK 1000/1001 as 70/80 in / file - - "" "" 0+0 NFS3ERR_INVAL`},
		{nfs.Program, nfs.ProcRead, &nfs.ReadArgs{File: file, Offset: 1, Count: 100}, `READ 1000/1001 as 70/80 in / file - - "" "" 1+4 NFS3_OK`},
		{nfs.Program, nfs.ProcWrite, &nfs.WriteArgs{File: file, Offset: 9, Count: 3, Data: []byte("abc")}, `WRITE 1000/1001 as 70/80 in / file - - "" "" 9+3 NFS3_OK`},
		{nfs.Program, nfs.ProcWrite, &nfs.WriteArgs{File: file, Offset: 9, Count: 4, Data: []byte("abc")}, `WRITE 1000/1001 as 70/80 in / file - - "" "" 9+0 NFS3ERR_INVAL`},
		{nfs.Program, nfs.ProcCreate, &nfs.CreateArgs{Where: in(root, "c")}, `CREATE 1000/1001 as 70/80 in / root - - "c" "" 0+0 NFS3ERR_NOTSUPP`},
		{nfs.Program, nfs.ProcMkdir, &nfs.MkdirArgs{Where: in(root, "d")}, `MKDIR 1000/1001 as 70/80 in / root - - "d" "" 0+0 NFS3ERR_NOTSUPP`},
		{nfs.Program, nfs.ProcSymlink, &nfs.SymlinkArgs{Where: in(root, "s"), Target: []byte("t")}, `SYMLINK 1000/1001 as 70/80 in / root - - "s" "" 0+0 NFS3ERR_NOTSUPP`},
		{nfs.Program, nfs.ProcMknod, &nfs.MknodArgs{Where: in(root, "f"), Type: nfs.TypeFIFO}, `MKNOD 1000/1001 as 70/80 in / root - - "f" "" 0+0 NFS3ERR_NOTSUPP`},
		{nfs.Program, nfs.ProcRemove, &where, `REMOVE 1000/1001 as 70/80 in / root - - "x\n\x1b" "" 0+0 NFS3ERR_NOTSUPP`},
		{nfs.Program, nfs.ProcRmdir, &where, `RMDIR 1000/1001 as 70/80 in / root - - "x\n\x1b" "" 0+0 NFS3ERR_NOTSUPP`},
		{nfs.Program, nfs.ProcRename, &nfs.RenameArgs{From: in(root, "a"), To: in(handle, "b")}, `RENAME 1000/1001 as 70/80 in / root other - "a" "b" 0+0 NFS3ERR_STALE`},
		{nfs.Program, nfs.ProcLink, &nfs.LinkArgs{File: file, Link: in(root, "l")}, `LINK 1000/1001 as 70/80 in / file root - "" "l" 0+0 NFS3ERR_NOTSUPP`},
		{nfs.Program, nfs.ProcReadDir, &nfs.ReadDirArgs{Dir: root, Count: 1000}, `READDIR 1000/1001 as 70/80 in / root - - "" "" 0+0 NFS3_OK`},
		{nfs.Program, nfs.ProcReadDirPlus, &nfs.ReadDirPlusArgs{Dir: file, DirCount: 1000, MaxCount: 1000}, `READDIRPLUS 1000/1001 as 70/80 in / file - - "" "" 0+0 NFS3ERR_NOTDIR`},
		{nfs.Program, nfs.ProcFSStat, &root, `FSSTAT 1000/1001 as 70/80 in / root - - "" "" 0+0 NFS3_OK`},
		{nfs.Program, nfs.ProcFSInfo, &root, `FSINFO 1000/1001 as 70/80 in / root - - "" "" 0+0 NFS3_OK`},
		{nfs.Program, nfs.ProcPathConf, &root, `PATHCONF 1000/1001 as 70/80 in / root - - "" "" 0+0 NFS3_OK`},
		{nfs.Program, nfs.ProcCommit, &nfs.CommitArgs{File: file}, `COMMIT 1000/1001 as 70/80 in / file - - "" "" 0+0 NFS3_OK`},
	} {
		c.call(someone(), tt.prog, tt.proc, tt.args, new(statusRes)) // the reported Access has errors
		if got := describe(<-told, objects); got != tt.want {
			t.Errorf("%s\nwant %s", got, tt.want)
		}
	}
	for _, cred := range []oncrpc.Auth{{}, {Flavor: oncrpc.FlavorSys}, {Flavor: 99}} {
		c.call(cred, nfs.Program, nfs.ProcGetAttr, &root, new(statusRes))
		a := <-told
		if a.Flavor != cred.Flavor || a.UID != 0 || (a.Deny == oncrpc.AuthBadCred) != (cred.Flavor != oncrpc.FlavorNone) {
			t.Errorf("credential %v: %+v", cred.Flavor, a)
		}
	}
}

func describe(a Access, objects map[Object]string) string {
	name := func(o Object) string {
		if s, ok := objects[o]; ok {
			return s
		}
		return "other"
	}
	proc, status, export := nfs.ProcName(a.Proc), a.Status.String(), "?"
	if a.Prog == nfs.MountProgram {
		proc, status = fmt.Sprintf("MOUNT %d", a.Proc), nfs.MountStatus(a.Status).String()
	}
	if a.Fail != oncrpc.Success {
		status = a.Fail.String()
	}
	if a.Export != nil {
		export = a.Export.Name
	}
	return fmt.Sprintf("%s %d/%d as %d/%d in %s %s %s %s %q %q %d+%d %s", proc, a.UID, a.GID, a.AsUID, a.AsGID, export,
		name(a.Object), name(a.To), name(a.Made), a.Name, a.NewName, a.Offset, a.Bytes, status)
}

// A call that panics in a file system is reported, too.
func TestAccessOfPanic(t *testing.T) {
	told := make(chan Access, 1)
	f := newPlain()
	c := newSite(t, &Config{Exports: []Export{{Name: "/", FS: f}}, Access: func(a *Access) { told <- *a }})
	root := c.mnt("/").Handle
	<-told
	f.panics = true
	err := c.call(someone(), nfs.Program, nfs.ProcGetAttr, &root, new(statusRes))
	if a := <-told; a.Fail != oncrpc.SystemErr || a.Proc != nfs.ProcGetAttr || err == nil {
		t.Errorf("%+v, %v", a, err)
	}
	testutil.Must(t, c.rpc.Null(t.Context(), nfs.Program, nfs.Version))
}

// The Object in a log shows nothing of the signature of its handle.
func TestObjectOf(t *testing.T) {
	one, other := newSealer([]byte("0123456789abcdef")), newSealer([]byte("another key, 16 b"))
	seen := make(map[Object]bool)
	for _, handle := range [][]byte{{1}, {2}, {1, 2}, make([]byte, MaxHandle)} {
		for export := range uint32(3) {
			o := objectOf(one.appendBytes(nil, export, handle))
			if o != objectOf(other.appendBytes(nil, export, handle)) {
				t.Errorf("%x in export %d depends on the key", handle, export)
			}
			if o == 0 || seen[o] {
				t.Errorf("%x in export %d is %v, as another is", handle, export, o)
			}
			seen[o] = true
		}
	}
	if objectOf(nil) == 0 || objectOf(make([]byte, sealSize)) == objectOf(make([]byte, 3)) {
		t.Error("handles of others all look alike")
	}
}

// A call allocates as much with Access as without.
func TestAccessAllocates(t *testing.T) {
	if raceDetector {
		t.Skip("the race detector makes pools forget some of what they are given")
	}
	allocs := func(access func(*Access)) float64 {
		c := newSite(t, &Config{Exports: []Export{{Name: "/", FS: newPlain()}}, Access: access})
		root := c.mnt("/").Handle
		call := rpc.Call{Prog: nfs.Program, Vers: 3, Proc: nfs.ProcGetAttr, Cred: someone(), Args: root.Append(nil)}
		return testing.AllocsPerRun(2000, func() { testutil.Must(t, c.rpc.Call(context.Background(), &call)) })
	}
	told := 0
	without, with := allocs(nil), allocs(func(a *Access) { told++ })
	if with > without+0.5 || told < 2000 {
		t.Errorf("%v allocations with Access, of %d calls; %v without", with, told, without)
	}
}
