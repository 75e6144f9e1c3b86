package main

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/rpcrdma/rpcrdma/internal/testutil"
	"github.com/rpcrdma/rpcrdma/nfs"
	"github.com/rpcrdma/rpcrdma/proto/oncrpc"
)

// fuzzMount is added to procedures of MOUNT in the conversations of FuzzServe.
const fuzzMount = 0x80

// fuzzHandles gives an export handles that are the same in every run: of the export
// itself, "file", "dir", "dir/inner", "up" and "away".
func fuzzHandles(e *export) (handles [6]nfs.FileHandle) {
	e.handles.instance = [8]byte{}
	for i, path := range [...][]string{nil, {"file"}, {"dir"}, {"dir", "inner"}, {"up"}, {"away"}} {
		handles[i], _ = nfs.NewFileHandle(e.handles.handle(path))
	}
	return handles
}

// fuzzSeeds adds calls of every procedure, alone and one after the other.
func fuzzSeeds(f *testing.F) {
	e := &export{handles: newHandleTable(maxHandles)}
	h := fuzzHandles(e)
	top, file, dir, inner, up, away := h[0], h[1], h[2], h[3], h[4], h[5]
	at := func(dir nfs.FileHandle, name string) nfs.DirOpArgs { return nfs.DirOpArgs{Dir: dir, Name: name} }
	type appender interface{ Append([]byte) []byte }
	type call struct {
		proc uint32
		args appender
	}
	path := func(s string) *nfs.DirPath { p := nfs.DirPath(s); return &p }
	where := func(w nfs.DirOpArgs) *nfs.DirOpArgs { return &w }
	seeds := [][]call{
		{{fuzzMount | nfs.MountProcMnt, path("/")}, {fuzzMount | nfs.MountProcMnt, path("/dir/../../outside")}, {fuzzMount | nfs.MountProcMnt, path("away")}},
		{{fuzzMount | nfs.MountProcUmnt, path("/")}, {fuzzMount | nfs.MountProcMnt, path("up/secret")}},
		{{nfs.ProcGetAttr, &top}, {nfs.ProcGetAttr, &away}, {nfs.ProcReadLink, &up}, {nfs.ProcReadLink, &file}},
		{{nfs.ProcFSStat, &top}, {nfs.ProcFSInfo, &dir}, {nfs.ProcPathConf, &file}},
		{{nfs.ProcLookup, where(at(top, ".."))}, {nfs.ProcLookup, where(at(up, "secret"))}, {nfs.ProcLookup, where(at(dir, "inner"))}},
		{{nfs.ProcAccess, &nfs.AccessArgs{Object: away, Access: 0x3f}}, {nfs.ProcRead, &nfs.ReadArgs{File: away, Count: 100}}},
		{{nfs.ProcRead, &nfs.ReadArgs{File: file, Offset: 1, Count: 1 << 31}}, {nfs.ProcRead, &nfs.ReadArgs{File: dir, Count: 1}}},
		{
			{nfs.ProcWrite, &nfs.WriteArgs{File: file, Offset: 3, Count: 3, Stable: nfs.FileSync, Data: []byte("abc")}},
			{nfs.ProcWrite, &nfs.WriteArgs{File: up, Count: 3, Data: []byte("abc")}}, {nfs.ProcCommit, &nfs.CommitArgs{File: file}},
		},
		{
			{nfs.ProcSymlink, &nfs.SymlinkArgs{Where: at(top, "new"), Target: []byte("../outside")}},
			{nfs.ProcLookup, where(at(top, "new"))},
			{nfs.ProcCreate, &nfs.CreateArgs{Where: at(up, "made"), Attr: nfs.SetAttr{SetMode: true, Mode: 0o644, SetSize: true, Size: 5}}},
		},
		{{nfs.ProcMkdir, &nfs.MkdirArgs{Where: at(top, "d")}}, {nfs.ProcRmdir, where(at(top, "d"))}, {nfs.ProcRemove, where(at(dir, "inner"))}, {nfs.ProcGetAttr, &inner}},
		{{nfs.ProcRename, &nfs.RenameArgs{From: at(top, "dir"), To: at(top, "moved")}}, {nfs.ProcGetAttr, &inner}, {nfs.ProcRename, &nfs.RenameArgs{From: at(top, "up"), To: at(dir, "file")}}},
		{{nfs.ProcSetAttr, &nfs.SetAttrArgs{Object: up, Attr: nfs.SetAttr{SetMode: true, Mode: 0, SetSize: true}}}, {nfs.ProcSetAttr, &nfs.SetAttrArgs{Object: file, Attr: nfs.SetAttr{SetSize: true, Size: 1 << 40}}}},
		{{nfs.ProcReadDir, &nfs.ReadDirArgs{Dir: top, Count: 4096}}, {nfs.ProcReadDirPlus, &nfs.ReadDirPlusArgs{Dir: up, DirCount: 4096, MaxCount: 4096}}},
		{{nfs.ProcReadDirPlus, &nfs.ReadDirPlusArgs{Dir: top, DirCount: 100, MaxCount: 100}}, {nfs.ProcReadDirPlus, &nfs.ReadDirPlusArgs{Dir: top, Cookie: 3, DirCount: 4096, MaxCount: 1 << 31}}},
		{{nfs.ProcLink, &nfs.LinkArgs{File: file, Link: at(up, "new")}}},
	}
	for _, calls := range seeds {
		var b []byte
		for _, c := range calls {
			b = testutil.AppendCall(b, c.proc, c.args.Append(nil))
		}
		f.Add(b)
	}
}

// FuzzServe makes conversations with the NFS and MOUNT server, each on a directory of its
// own. Each call gets a reply whose results decode, no descriptor stays open, and nothing
// outside of the directory changes.
func FuzzServe(f *testing.F) {
	fuzzSeeds(f)
	base := f.TempDir()
	outside := filepath.Join(base, "outside")
	if err := errors.Join(os.Mkdir(outside, 0o755), os.WriteFile(filepath.Join(outside, "secret"), []byte("secret"), 0o644)); err != nil {
		f.Fatal(err)
	}
	untouched, err := fuzzState(outside)
	if err != nil {
		f.Fatal(err)
	}
	n := 0
	f.Fuzz(func(t *testing.T, b []byte) {
		if len(b) > 1<<14 {
			return
		}
		n++
		dir := filepath.Join(base, fmt.Sprintf("export%d", n))
		defer os.RemoveAll(dir)
		if err := errors.Join(
			os.MkdirAll(filepath.Join(dir, "dir"), 0o755),
			os.WriteFile(filepath.Join(dir, "file"), []byte("contents"), 0o644),
			os.WriteFile(filepath.Join(dir, "dir", "inner"), nil, 0o644),
			os.Symlink("../outside", filepath.Join(dir, "up")),
			os.Symlink(filepath.Join(outside, "secret"), filepath.Join(dir, "away")),
		); err != nil {
			t.Fatal(err)
		}
		before := openFiles(t)
		e, err := newExport(dir, false)
		if err != nil {
			t.Fatal(err)
		}
		fuzzHandles(e)
		e.fsync = func(*os.File) error { return nil } // so many of them take too long
		g := newGuard(e, false, (&options{}).logger(io.Discard))
		testutil.EachCall(b, func(proc uint32, args []byte) {
			prog := uint32(nfs.Program)
			if proc >= fuzzMount {
				prog, proc = nfs.MountProgram, proc-fuzzMount
			}
			if huge(prog, proc, args) {
				return
			}
			h := oncrpc.CallHeader{XID: 5, RPCVers: oncrpc.Version, Prog: prog, Vers: 3, Proc: proc}
			record := oncrpc.AppendRecordMark(nil, h.Size()+len(args), true)
			record = append(oncrpc.AppendCall(record, &h), args...)
			reply := g.answer(&h, record, len(record)-len(args))
			size, last, n := oncrpc.ConsumeRecordMark(reply)
			if n < 0 || !last || int(size) != len(reply)-n {
				t.Fatalf("reply is not a record: %x", reply)
			}
			var r oncrpc.ReplyHeader
			at, err := oncrpc.ConsumeReply(reply[n:], &r)
			if err != nil || r.XID != h.XID {
				t.Fatalf("reply to %d: %v", r.XID, err)
			}
			if r.Err() != nil || prog != nfs.Program || proc == nfs.ProcNull {
				return
			}
			if err := decodeResults(proc, reply[n+at:]); err != nil {
				t.Fatalf("%s: results %x: %v", nfs.ProcName(proc), reply[n+at:], err)
			}
		})
		g.stop(time.Minute)
		e.Close()
		if after := openFiles(t); after > before {
			t.Errorf("%d descriptors more than before", after-before)
		}
		state, err := fuzzState(outside)
		if err != nil || !maps.Equal(state, untouched) {
			t.Fatalf("outside there is %v, %v; before %v", state, err, untouched)
		}
	})
}

// huge reports calls that are valid but would fill a disk or take long.
func huge(prog, proc uint32, args []byte) bool {
	c := &nfsCall{proc: proc}
	return prog == nfs.Program && proc == nfs.ProcWrite && c.decode(args) == nil && c.offset > 1<<30
}

// openFiles is how many descriptors this process has open, without sockets and pipes.
func openFiles(t testing.TB) (n int) {
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return 0 // a system that has no such directory
	}
	for _, e := range entries {
		if to, err := os.Readlink("/proc/self/fd/" + e.Name()); err == nil && filepath.IsAbs(to) {
			n++
		}
	}
	return n
}

// fuzzState returns the state of a tree: mode, size, time and contents by path.
func fuzzState(dir string) (map[string]string, error) {
	state := make(map[string]string)
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		var data []byte
		if info.Mode().IsRegular() {
			data, err = os.ReadFile(path)
		}
		state[path] = fmt.Sprintf("%v %d %v %q", info.Mode(), info.Size(), info.ModTime(), data)
		return err
	})
	return state, err
}
