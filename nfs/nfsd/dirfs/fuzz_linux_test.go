package dirfs

import (
	"encoding/binary"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/rpcrdma/rpcrdma/internal/testing/testutil"
	"github.com/rpcrdma/rpcrdma/nfs"
	"github.com/rpcrdma/rpcrdma/proto/oncrpc"
	"github.com/rpcrdma/rpcrdma/proto/xdr"
	"github.com/rpcrdma/rpcrdma/rpc"
)

// results decodes what a procedure has to return.
func results(proc uint32) result {
	switch proc {
	case nfs.ProcGetAttr:
		return new(nfs.GetAttrRes)
	case nfs.ProcSetAttr, nfs.ProcRemove, nfs.ProcRmdir:
		return new(nfs.WccRes)
	case nfs.ProcLookup:
		return new(nfs.LookupRes)
	case nfs.ProcAccess:
		return new(nfs.AccessRes)
	case nfs.ProcReadLink:
		return new(nfs.ReadLinkRes)
	case nfs.ProcRead:
		return new(nfs.ReadRes)
	case nfs.ProcWrite:
		return new(nfs.WriteRes)
	case nfs.ProcCreate, nfs.ProcMkdir, nfs.ProcSymlink, nfs.ProcMknod:
		return new(nfs.CreateRes)
	case nfs.ProcRename:
		return new(nfs.RenameRes)
	case nfs.ProcLink:
		return new(nfs.LinkRes)
	case nfs.ProcReadDir:
		return new(nfs.ReadDirRes)
	case nfs.ProcReadDirPlus:
		return new(nfs.ReadDirPlusRes)
	case nfs.ProcFSStat:
		return new(nfs.FSStatRes)
	case nfs.ProcFSInfo:
		return new(nfs.FSInfoRes)
	case nfs.ProcPathConf:
		return new(nfs.PathConfRes)
	case nfs.ProcCommit:
		return new(nfs.CommitRes)
	}
	return nothing{}
}

// nothing is the results of NULL.
type nothing struct{}

func (nothing) Decode(*xdr.Decoder) {}

// fuzzed are the arguments of a procedure with the fuzzer's values.
func fuzzed(proc uint32, fh, to nfs.FileHandle, name string, a, b uint64, data []byte) message {
	where := nfs.DirOpArgs{Dir: fh, Name: name}
	set := nfs.SetAttr{
		SetMode: a&1 != 0, Mode: uint32(b), SetUID: a&2 != 0, UID: uint32(b), SetGID: a&4 != 0, GID: uint32(b >> 32),
		// Not more than a disk has for a file without holes, should a file system have none.
		SetSize: a&8 != 0 && (b < 1<<20 || int64(b) < 0), Size: b,
		ATimeHow: nfs.TimeHow(a >> 8 & 3), ATime: nfs.Time{Sec: uint32(b), Nsec: uint32(a >> 32)},
		MTimeHow: nfs.TimeHow(a >> 10 & 3), MTime: nfs.Time{Sec: uint32(b >> 32), Nsec: uint32(a >> 16)},
	}
	switch proc {
	case nfs.ProcSetAttr:
		return &nfs.SetAttrArgs{Object: fh, Attr: set, Guard: a&16 != 0, CTime: set.ATime}
	case nfs.ProcAccess:
		return &nfs.AccessArgs{Object: fh, Access: uint32(a)}
	case nfs.ProcRead:
		return &nfs.ReadArgs{File: fh, Offset: a, Count: uint32(b)}
	case nfs.ProcWrite:
		return &nfs.WriteArgs{File: fh, Offset: a, Count: uint32(len(data)) + uint32(b&1), Stable: nfs.Stable(b >> 1 & 3), Data: data}
	case nfs.ProcCreate:
		return &nfs.CreateArgs{Where: where, Mode: nfs.CreateMode(a >> 12 & 3), Attr: set, Verf: nfs.Verf(binary.BigEndian.AppendUint64(nil, b))}
	case nfs.ProcMkdir:
		return &nfs.MkdirArgs{Where: where, Attr: set}
	case nfs.ProcSymlink:
		return &nfs.SymlinkArgs{Where: where, Attr: set, Target: data}
	case nfs.ProcMknod:
		return &nfs.MknodArgs{Where: where, Type: nfs.FileType(a >> 12 & 15), Attr: set, Spec: nfs.Device{Major: uint32(b), Minor: uint32(b >> 32)}}
	case nfs.ProcLookup, nfs.ProcRemove, nfs.ProcRmdir:
		return &where
	case nfs.ProcRename:
		return &nfs.RenameArgs{From: where, To: nfs.DirOpArgs{Dir: to, Name: string(data)}}
	case nfs.ProcLink:
		return &nfs.LinkArgs{File: to, Link: where}
	case nfs.ProcReadDir:
		return &nfs.ReadDirArgs{Dir: fh, Cookie: a, Verf: nfs.Verf{byte(b)}, Count: uint32(b)}
	case nfs.ProcReadDirPlus:
		return &nfs.ReadDirPlusArgs{Dir: fh, Cookie: a, DirCount: uint32(b >> 32), MaxCount: uint32(b)}
	case nfs.ProcCommit:
		return &nfs.CommitArgs{File: fh, Offset: a, Count: uint32(b)}
	}
	return &fh
}

// Whatever a client sends, every reply is one that its procedure has, and nothing happens
// outside of the directory.
func FuzzCalls(f *testing.F) {
	outer := f.TempDir()
	testutil.WriteFiles(f, outer, map[string]string{"secret": "secret"})
	w := newWorld(f, modes()[2].cfg, nil)
	base := map[string]string{"file": "hello", "dir/file": "x", "link": "-> " + outer, "dir/up": "-> ../..", "full/dir/": ""}
	for proc := range uint8(22) {
		f.Add(proc, uint8(0), uint8(3), "file", uint64(0), uint64(1000), []byte("data"), uint16(0))
		f.Add(proc, uint8(1), uint8(1), "..", uint64(1<<64-1), uint64(1<<63), []byte("../x"), uint16(0))
		f.Add(proc, uint8(2), uint8(0), "a/b", uint64(1<<63), uint64(1<<64-1), []byte{0}, uint16(9))
		f.Add(proc, uint8(4), uint8(2), "\x00", uint64(0xfff), uint64(7), []byte(nil), uint16(40))
	}
	f.Fuzz(func(t *testing.T, proc, which, other uint8, name string, a, b uint64, data []byte, garble uint16) {
		if len(name) > 2000 || len(data) > 5000 {
			return
		}
		if proc == uint8(nfs.ProcWrite) && a > 1<<20 && int64(a) >= 0 && a < 1<<63-1<<20 {
			return // a file as large as a disk
		}
		w.t = t
		handles := w.reset(base)
		args := fuzzed(uint32(proc), handles[int(which)%len(handles)], handles[int(other)%len(handles)], name, a, b, data).Append(nil)
		if garble != 0 && len(args) > 0 {
			args[int(garble)%len(args)] ^= byte(garble>>8) | 1
		}
		err := w.callBytes(user(), uint32(proc), args, results(uint32(proc)))
		var refused *oncrpc.RPCError
		if err != nil && !errors.As(err, &refused) {
			t.Fatalf("%s with %x: %v", nfs.ProcName(uint32(proc)), args, err)
		}
		if got, err := os.ReadFile(outer + "/secret"); err != nil || string(got) != "secret" {
			t.Fatalf("%s with %x: what is outside is now %q, %v", nfs.ProcName(uint32(proc)), args, got, err)
		}
		if list, err := os.ReadDir(outer); err != nil || len(list) != 1 {
			t.Fatalf("%s with %x: outside there is now %v, %v", nfs.ProcName(uint32(proc)), args, list, err)
		}
	})
}

// Whatever follows a handle, the arguments are refused or the reply is one that the procedure has.
func FuzzArguments(f *testing.F) {
	w := newWorld(f, modes()[2].cfg, map[string]string{"file": "hello", "dir/file": "x", "link": "-> file"})
	handles := []nfs.FileHandle{w.root, w.lookup("file"), w.lookup("dir"), w.lookup("link")}
	for proc, args := range procs(w.root, "name") {
		f.Add(uint8(proc), uint8(0), args.Append(nil)[len(w.root.Append(nil)):])
	}
	f.Add(uint8(nfs.ProcWrite), uint8(1), []byte{16: 0xff, 17: 0xff, 18: 0xff, 19: 0xff})
	f.Fuzz(func(t *testing.T, proc, which uint8, rest []byte) {
		if len(rest) > 5000 || uint32(proc) == nfs.ProcWrite || uint32(proc) == nfs.ProcSetAttr || uint32(proc) == nfs.ProcCreate {
			return // files as large as a disk: FuzzCalls has these procedures
		}
		w.t = t
		args := append(handles[int(which)%len(handles)].Append(nil), rest...)
		err := w.callBytes(user(), uint32(proc), args, results(uint32(proc)))
		var refused *oncrpc.RPCError
		if err != nil && !errors.As(err, &refused) {
			t.Fatalf("%s with %x: %v", nfs.ProcName(uint32(proc)), args, err)
		}
	})
}

// Whatever a client says to MOUNT, every reply is one that the procedure has, and what can be
// mounted is a directory of the export.
func FuzzMount(f *testing.F) {
	outer := f.TempDir()
	w := newWorld(f, modes()[2].cfg, map[string]string{"dir/sub/": "", "file": "x", "link": "-> " + outer, "dir/up": "-> ../.."})
	inside := make(map[uint64]string)
	for _, dir := range []string{"", "dir", "dir/sub"} {
		inside[hostStat(f, w.path(dir)).Ino] = dir
	}
	for proc := range uint8(7) {
		for _, path := range []string{"/export", "/export/dir/sub/", "/export/../..", "/export/link", "/export/dir/up/x", "//export//dir/./", "", "/", "/export\x00"} {
			f.Add(proc, path, uint16(0))
		}
		f.Add(proc, "/export", uint16(3))
	}
	f.Fuzz(func(t *testing.T, proc uint8, path string, garble uint16) {
		w.t = t
		call := rpc.Call{Prog: nfs.MountProgram, Vers: nfs.MountVersion, Proc: uint32(proc), Cred: user().Auth(), MaxResults: 64 << 10}
		if proc != uint8(nfs.MountProcDump) && proc != uint8(nfs.MountProcExport) && proc != uint8(nfs.MountProcUmntAll) || garble != 0 {
			call.Args = xdr.AppendOpaque(nil, []byte(path))
			call.Args[int(garble)%len(call.Args)] ^= byte(garble >> 8)
		}
		err := w.raw.Call(t.Context(), &call)
		var refused *oncrpc.RPCError
		if errors.As(err, &refused) {
			return
		}
		var mnt nfs.MntRes
		res := map[uint32]result{nfs.MountProcMnt: &mnt, nfs.MountProcDump: new(nfs.DumpRes), nfs.MountProcExport: new(nfs.ExportRes)}[uint32(proc)]
		if res == nil {
			res = nothing{}
		}
		d := xdr.NewDecoder(call.Results)
		if res.Decode(&d); err != nil || d.End() != nil {
			t.Fatalf("procedure %d with %x: %v, %v", proc, call.Args, err, d.Err())
		}
		if uint32(proc) != nfs.MountProcMnt || mnt.Status != nfs.MountOK {
			return
		}
		a, status := w.getattr(mnt.Handle)
		if _, ok := inside[a.FileID]; !ok || status != nfs.StatusOK || a.Type != nfs.TypeDir {
			t.Fatalf("MNT of %x leads to %v, %+v", call.Args, status, a)
		}
	})
}

// reset makes the directory what it was, and returns handles.
func (w *world) reset(files map[string]string) []nfs.FileHandle {
	w.t.Helper()
	testutil.Must(w.t, os.Chmod(w.dir, 0o777))
	clear := func(dir string, want ...string) {
		list, _ := os.ReadDir(w.path(dir))
		for _, e := range list {
			if !slices.Contains(want, e.Name()) || e.Type().IsDir() != (e.Name() == "dir" || e.Name() == "full") {
				testutil.Must(w.t, os.RemoveAll(filepath.Join(w.path(dir), e.Name())))
			}
		}
	}
	clear(".", "file", "dir", "link", "full")
	clear("dir", "file", "up")
	for name, text := range files {
		if _, err := os.Lstat(w.path(name)); err != nil {
			testutil.WriteFiles(w.t, w.dir, map[string]string{name: text})
		}
	}
	handles := []nfs.FileHandle{w.root}
	for _, name := range []string{"file", "dir", "link", "dir/file", "dir/up", "full"} {
		handles = append(handles, w.lookup(name))
	}
	forged, _ := nfs.NewFileHandle(make([]byte, 60))
	return append(handles, forged)
}

// The value of a place in a Store, which may have been damaged, is read or refused.
func FuzzPlace(f *testing.F) {
	dir := id{ino: 5, typ: 1, size: 8}
	f.Add(appendPlace(nil, &dir, "name"))
	f.Add([]byte{})
	f.Add([]byte{200, 1, 2})
	f.Add([]byte{10, 0, 0, 0, 0, 0, 0, 0, 1, 0, 1})
	f.Fuzz(func(t *testing.T, b []byte) {
		dir, name, ok := parsePlace(b)
		if !ok {
			return
		}
		if again := appendPlace(nil, &dir, name); string(again) != string(b) {
			t.Errorf("%x is read as %+v, %q", b, dir, name)
		}
	})
}
