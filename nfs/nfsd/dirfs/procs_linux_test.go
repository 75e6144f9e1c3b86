package dirfs

import (
	"bytes"
	"os"
	"syscall"
	"testing"

	"github.com/rpcrdma/rpcrdma/internal/testing/testutil"
	"github.com/rpcrdma/rpcrdma/nfs"
)

// Every procedure does on the host what RFC 1813 says, and reports it.
func TestProcedures(t *testing.T) {
	each(t, func(t *testing.T, m mode) {
		w := newWorld(t, m.cfg, map[string]string{"file": "hello", "dir/": "", "link": "-> file"})
		t.Run("GETATTR", func(t *testing.T) { testGetAttr(t, w) })
		t.Run("SETATTR", func(t *testing.T) { testSetAttr(t, w) })
		t.Run("LOOKUP", func(t *testing.T) { testLookup(t, w) })
		t.Run("READ", func(t *testing.T) { testRead(t, w) })
		t.Run("WRITE", func(t *testing.T) { testWrite(t, w) })
		t.Run("CREATE", func(t *testing.T) { testCreate(t, w) })
		t.Run("make", func(t *testing.T) { testMake(t, w) })
		t.Run("REMOVE", func(t *testing.T) { testRemove(t, w) })
		t.Run("RENAME", func(t *testing.T) { testRename(t, w) })
		t.Run("LINK", func(t *testing.T) { testLink(t, w) })
		t.Run("FSINFO", func(t *testing.T) { testInfo(t, w) })
	})
}

// hostStat returns the host's attributes of a file.
func hostStat(t testing.TB, path string) *syscall.Stat_t {
	t.Helper()
	info, err := os.Lstat(path)
	if err != nil {
		t.Fatal(err)
	}
	return info.Sys().(*syscall.Stat_t)
}

func testGetAttr(t *testing.T, w *world) {
	for name, typ := range map[string]nfs.FileType{"file": nfs.TypeReg, "dir": nfs.TypeDir, "link": nfs.TypeLnk} {
		a, status := w.getattr(w.lookup(name))
		st := hostStat(t, w.path(name))
		if status != nfs.StatusOK || a.Type != typ || a.FileID != st.Ino || a.Mode != st.Mode&0o7777 || a.UID != st.Uid ||
			a.Size != uint64(st.Size) || a.Nlink != uint32(st.Nlink) || a.MTime != (nfs.Time{Sec: uint32(st.Mtim.Sec), Nsec: uint32(st.Mtim.Nsec)}) {
			t.Errorf("%s: %v %+v, want what %+v says", name, status, a, st)
		}
	}
	var res nfs.ReadLinkRes
	link := w.lookup("link")
	if w.must(user(), nfs.ProcReadLink, &link, &res); string(res.Target) != "file" || !res.Attr.Present {
		t.Errorf("READLINK: %v %q", res.Status, res.Target)
	}
	var access nfs.AccessRes
	args := nfs.AccessArgs{Object: w.lookup("file"), Access: 0x3f}
	w.must(user(), nfs.ProcAccess, &args, &access)
	if want := nfs.AccessRead | nfs.AccessModify | nfs.AccessExtend; access.Access != want {
		t.Errorf("ACCESS to a file: %#x, want %#x", access.Access, want)
	}
	args.Object = w.lookup("dir")
	w.must(user(), nfs.ProcAccess, &args, &access)
	if want := uint32(0x1f); access.Access != want {
		t.Errorf("ACCESS to a directory: %#x, want %#x", access.Access, want)
	}
}

func testSetAttr(t *testing.T, w *world) {
	fh := w.lookup("file")
	before, _ := w.getattr(fh)
	set := nfs.SetAttrArgs{Object: fh, Attr: nfs.SetAttr{
		SetMode: true, Mode: 0o640, SetSize: true, Size: 3,
		ATimeHow: nfs.SetToClientTime, ATime: nfs.Time{Sec: 1000, Nsec: 999_999_999},
		MTimeHow: nfs.SetToClientTime, MTime: nfs.Time{Sec: 2000, Nsec: 1},
	}, Guard: true, CTime: before.CTime}
	var res nfs.WccRes
	w.must(user(), nfs.ProcSetAttr, &set, &res)
	a := res.Wcc.After.Attr
	if res.Status != nfs.StatusOK || a.Mode != 0o640 || a.Size != 3 || a.ATime != set.Attr.ATime || a.MTime != set.Attr.MTime {
		t.Errorf("%v %+v", res.Status, a)
	}
	if b := res.Wcc.Before; !b.Present || b.Size != 5 || b.CTime != before.CTime {
		t.Errorf("before: %+v, want %+v", b, before)
	}
	if st := hostStat(t, w.path("file")); st.Mode&0o7777 != 0o640 || st.Size != 3 || st.Atim.Nsec != 999_999_999 || st.Mtim.Sec != 2000 {
		t.Errorf("the host has %+v", st)
	}
	w.must(user(), nfs.ProcSetAttr, &set, &res)
	w.want("a guard that is not true any more", res.Status, nfs.StatusNotSync)

	link := nfs.SetAttrArgs{Object: w.lookup("link"), Attr: nfs.SetAttr{
		SetMode: true, Mode: 0o777, MTimeHow: nfs.SetToClientTime, MTime: nfs.Time{Sec: 5},
	}}
	w.must(user(), nfs.ProcSetAttr, &link, &res)
	if st := hostStat(t, w.path("link")); res.Status != nfs.StatusOK || st.Mtim.Sec != 5 {
		t.Errorf("a link: %v, %+v", res.Status, st)
	}
	if st := hostStat(t, w.path("file")); st.Mtim.Sec == 5 {
		t.Error("the file that a link names has got the link's time")
	}
}

func testLookup(t *testing.T, w *world) {
	var res nfs.LookupRes
	dir := w.lookup("dir")
	for _, tt := range []struct {
		dir  nfs.FileHandle
		name string
		want nfs.FileHandle
	}{{w.root, ".", w.root}, {w.root, "..", w.root}, {dir, ".", dir}, {dir, "..", w.root}, {w.root, "dir", dir}} {
		w.must(user(), nfs.ProcLookup, &nfs.DirOpArgs{Dir: tt.dir, Name: tt.name}, &res)
		if res.Status != nfs.StatusOK || res.Object != tt.want || !res.Attr.Present || !res.DirAttr.Present {
			t.Errorf("%q: %v %v", tt.name, res.Status, res.Object)
		}
	}
}

func testRead(t *testing.T, w *world) {
	ctx := t.Context()
	data := make([]byte, 3<<20)
	for i := range data {
		data[i] = byte(i * 7 >> 3)
	}
	w.put("large", string(data))
	fh := w.lookup("large")
	got := make([]byte, len(data))
	if n, err := w.ReadAt(ctx, fh, got, 0); n != len(data) || !bytes.Equal(got, data) {
		t.Errorf("%d bytes, %v", n, err)
	}
	for _, tt := range []struct {
		off   uint64
		count uint32
		want  int
		eof   bool
	}{
		{0, 10, 10, false}, {uint64(len(data)) - 5, 5, 5, true}, {uint64(len(data)) - 5, 100, 5, true},
		{uint64(len(data)), 1, 0, true}, {1 << 40, 1, 0, true}, {1<<64 - 1, 1<<32 - 1, 0, true}, {0, 0, 0, false},
		{0, 1<<32 - 1, 1 << 20, false}, // as much as FSINFO promises
	} {
		var res nfs.ReadRes
		w.must(user(), nfs.ProcRead, &nfs.ReadArgs{File: fh, Offset: tt.off, Count: tt.count}, &res)
		if res.Status != nfs.StatusOK || int(res.Count) != tt.want || len(res.Data) != tt.want || res.EOF != tt.eof || !res.Attr.Present {
			t.Errorf("%d bytes at %d: %v, %d bytes, EOF %v", tt.count, tt.off, res.Status, res.Count, res.EOF)
		}
		if tt.want > 0 && !bytes.Equal(res.Data, data[tt.off:][:tt.want]) {
			t.Errorf("%d bytes at %d: other data", tt.count, tt.off)
		}
	}
}

func testWrite(t *testing.T, w *world) {
	ctx := t.Context()
	fh := w.lookup("large")
	data := bytes.Repeat([]byte("0123456789abcdef"), 3<<16)
	if n, err := w.WriteAt(ctx, fh, data, 100); n != len(data) || err != nil {
		t.Fatalf("%d bytes, %v", n, err)
	}
	if got, _ := os.ReadFile(w.path("large")); !bytes.Equal(got[100:], data) {
		t.Error("other data on the host")
	}
	var verf nfs.Verf
	for i, stable := range []nfs.Stable{nfs.Unstable, nfs.DataSync, nfs.FileSync} {
		var res nfs.WriteRes
		args := nfs.WriteArgs{File: fh, Offset: uint64(i), Count: 1, Stable: stable, Data: []byte{byte('A' + i)}}
		w.must(user(), nfs.ProcWrite, &args, &res)
		if res.Status != nfs.StatusOK || res.Count != 1 || res.Committed < stable || !res.Wcc.After.Present {
			t.Errorf("stability %d: %+v", stable, res)
		}
		if i > 0 && res.Verf != verf {
			t.Error("another write verifier")
		}
		verf = res.Verf
	}
	var commit nfs.CommitRes
	w.must(user(), nfs.ProcCommit, &nfs.CommitArgs{File: fh}, &commit)
	if commit.Status != nfs.StatusOK || commit.Verf != verf || !commit.Wcc.After.Present {
		t.Errorf("COMMIT: %+v", commit)
	}
	var res nfs.WriteRes
	w.must(user(), nfs.ProcWrite, &nfs.WriteArgs{File: fh, Offset: 1 << 40, Count: 1, Data: []byte("x")}, &res)
	if a, _ := w.getattr(fh); res.Status != nfs.StatusOK || a.Size != 1<<40+1 || a.Used > 16<<20 {
		t.Errorf("far behind the end: %v, %d bytes, %d used", res.Status, a.Size, a.Used)
	}
	for _, args := range []nfs.WriteArgs{
		{Offset: 1<<63 - 1, Count: 1, Data: []byte("x")}, {Offset: 1 << 63, Count: 1, Data: []byte("x")},
		{Offset: 1<<64 - 1, Count: 1, Data: []byte("x")},
	} {
		args.File = fh
		if w.must(user(), nfs.ProcWrite, &args, &res); res.Status != nfs.StatusFBig {
			t.Errorf("WRITE at %d: %v", args.Offset, res.Status)
		}
	}
	for _, args := range []nfs.WriteArgs{{Count: 2, Data: []byte("x")}, {Count: 1, Data: []byte("xy")}, {Count: 1, Stable: 3, Data: []byte("x")}} {
		args.File = fh
		if w.must(user(), nfs.ProcWrite, &args, &res); res.Status != nfs.StatusInval {
			t.Errorf("WRITE of %d for %d bytes: %v", args.Count, len(args.Data), res.Status)
		}
	}
}

func testCreate(t *testing.T, w *world) {
	var res nfs.CreateRes
	create := func(name string, how nfs.CreateMode, attr nfs.SetAttr, verf byte) nfs.Status {
		t.Helper()
		w.must(user(), nfs.ProcCreate, &nfs.CreateArgs{
			Where: nfs.DirOpArgs{Dir: w.root, Name: name}, Mode: how, Attr: attr, Verf: nfs.Verf{0: 0xff, 3: verf, 7: verf},
		}, &res)
		return res.Status
	}
	w.want("UNCHECKED", create("new", nfs.Unchecked, nfs.SetAttr{SetMode: true, Mode: 0o666, SetSize: true, Size: 10}, 0), nfs.StatusOK)
	if st := hostStat(t, w.path("new")); st.Mode&0o7777 != 0o666 || st.Size != 10 || st.Uid != w.owner() {
		t.Errorf("the host has %+v", st)
	}
	if !res.Object.Present || res.Object.Handle != w.lookup("new") || !res.Attr.Present || !res.DirWcc.Before.Present || !res.DirWcc.After.Present {
		t.Errorf("results %+v", res)
	}
	made := res.Object.Handle
	w.want("UNCHECKED again", create("new", nfs.Unchecked, nfs.SetAttr{SetMode: true, Mode: 0o600, SetSize: true}, 0), nfs.StatusOK)
	if st := hostStat(t, w.path("new")); st.Size != 0 || st.Mode&0o7777 != 0o666 || res.Object.Handle != made {
		t.Errorf("after UNCHECKED the host has %+v", st)
	}
	w.want("GUARDED", create("new", nfs.Guarded, nfs.SetAttr{}, 0), nfs.StatusExist)
	w.want("GUARDED, a new one", create("new2", nfs.Guarded, nfs.SetAttr{SetMode: true, Mode: 0o400}, 0), nfs.StatusOK)
	// The user who made a file can write to it, whatever its mode.
	var wrote nfs.WriteRes
	w.must(user(), nfs.ProcWrite, &nfs.WriteArgs{File: res.Object.Handle, Count: 1, Data: []byte("x")}, &wrote)
	w.want("WRITE to a file without permission", wrote.Status, nfs.StatusOK)

	w.want("EXCLUSIVE", create("ex", nfs.Exclusive, nfs.SetAttr{}, 1), nfs.StatusOK)
	made = res.Object.Handle
	w.want("EXCLUSIVE, sent again", create("ex", nfs.Exclusive, nfs.SetAttr{}, 1), nfs.StatusOK)
	if res.Object.Handle != made {
		t.Error("the retry has another file")
	}
	w.want("EXCLUSIVE with another verifier", create("ex", nfs.Exclusive, nfs.SetAttr{}, 2), nfs.StatusExist)
	st := hostStat(t, w.path("ex"))
	w.must(user(), nfs.ProcWrite, &nfs.WriteArgs{File: made, Count: 1, Data: []byte("x")}, &wrote)
	testutil.Must(t, syscall.UtimesNano(w.path("ex"), []syscall.Timespec{st.Atim, st.Mtim}))
	w.want("EXCLUSIVE over data", create("ex", nfs.Exclusive, nfs.SetAttr{}, 1), nfs.StatusExist)
	for _, name := range []string{"dir", "link"} {
		w.want("UNCHECKED over a "+name, create(name, nfs.Unchecked, nfs.SetAttr{}, 0), nfs.StatusExist)
		w.want("EXCLUSIVE over a "+name, create(name, nfs.Exclusive, nfs.SetAttr{}, 0), nfs.StatusExist)
	}
}

func testMake(t *testing.T, w *world) {
	var res nfs.CreateRes
	attr := nfs.SetAttr{SetMode: true, Mode: 0o770, MTimeHow: nfs.SetToClientTime, MTime: nfs.Time{Sec: 77}}
	where := func(name string) nfs.DirOpArgs { return nfs.DirOpArgs{Dir: w.root, Name: name} }
	w.must(user(), nfs.ProcMkdir, &nfs.MkdirArgs{Where: where("made"), Attr: attr}, &res)
	if st := hostStat(t, w.path("made")); res.Status != nfs.StatusOK || st.Mode != syscall.S_IFDIR|0o770 || st.Mtim.Sec != 77 || res.Object.Handle != w.lookup("made") {
		t.Errorf("MKDIR: %v %+v", res.Status, st)
	}
	for _, target := range []string{"../../../etc/passwd", "/", "a\nb", "no such file"} {
		w.must(user(), nfs.ProcSymlink, &nfs.SymlinkArgs{Where: where("sym"), Target: []byte(target)}, &res)
		if got, err := os.Readlink(w.path("sym")); res.Status != nfs.StatusOK || got != target {
			t.Errorf("SYMLINK %q: %v, %q, %v", target, res.Status, got, err)
		}
		var removed nfs.WccRes
		w.must(user(), nfs.ProcRemove, &nfs.DirOpArgs{Dir: w.root, Name: "sym"}, &removed)
		w.want("REMOVE", removed.Status, nfs.StatusOK)
	}
	for _, target := range []string{"", "a\x00b"} {
		w.must(user(), nfs.ProcSymlink, &nfs.SymlinkArgs{Where: where("sym"), Target: []byte(target)}, &res)
		w.want("SYMLINK to nothing", res.Status, nfs.StatusInval)
	}
	for typ, format := range map[nfs.FileType]uint32{nfs.TypeFIFO: syscall.S_IFIFO, nfs.TypeSock: syscall.S_IFSOCK} {
		w.must(user(), nfs.ProcMknod, &nfs.MknodArgs{Where: where(typ.String()), Type: typ, Attr: attr}, &res)
		if st := hostStat(t, w.path(typ.String())); res.Status != nfs.StatusOK || st.Mode != format|0o770 || res.Attr.Attr.Type != typ {
			t.Errorf("MKNOD of %v: %v %+v", typ, res.Status, st)
		}
		// Opening it would wait for a peer, or fail.
		var read nfs.ReadRes
		w.must(user(), nfs.ProcRead, &nfs.ReadArgs{File: res.Object.Handle, Count: 1}, &read)
		w.want("READ of a "+typ.String(), read.Status, nfs.StatusInval)
		var wrote nfs.WriteRes
		w.must(user(), nfs.ProcWrite, &nfs.WriteArgs{File: res.Object.Handle, Count: 1, Data: []byte("x")}, &wrote)
		w.want("WRITE to a "+typ.String(), wrote.Status, nfs.StatusInval)
	}
	for _, typ := range []nfs.FileType{nfs.TypeReg, nfs.TypeDir, nfs.TypeLnk, 0, 99} {
		w.must(user(), nfs.ProcMknod, &nfs.MknodArgs{Where: where("bad"), Type: typ}, &res)
		w.want("MKNOD of "+typ.String(), res.Status, nfs.StatusBadType)
	}
	w.must(user(), nfs.ProcMknod, &nfs.MknodArgs{Where: where("dev"), Type: nfs.TypeChr, Spec: nfs.Device{Major: 1 << 12}}, &res)
	w.want("MKNOD of a number that Linux does not have", res.Status, nfs.StatusInval)
}

func testRemove(t *testing.T, w *world) {
	var res nfs.WccRes
	do := func(proc uint32, name string) nfs.Status {
		t.Helper()
		w.must(user(), proc, &nfs.DirOpArgs{Dir: w.root, Name: name}, &res)
		return res.Status
	}
	if err := os.MkdirAll(w.path("full/x"), 0o777); err != nil {
		t.Fatal(err)
	}
	fh := w.lookup("new")
	w.want("REMOVE", do(nfs.ProcRemove, "new"), nfs.StatusOK)
	if !res.Wcc.Before.Present || !res.Wcc.After.Present {
		t.Errorf("%+v", res.Wcc)
	}
	_, status := w.getattr(fh)
	w.want("GETATTR of what has been removed", status, nfs.StatusStale)
	w.want("REMOVE again", do(nfs.ProcRemove, "new"), nfs.StatusNoEnt)
	w.want("REMOVE of a directory", do(nfs.ProcRemove, "full"), nfs.StatusIsDir)
	w.want("RMDIR of a file", do(nfs.ProcRmdir, "file"), nfs.StatusNotDir)
	w.want("RMDIR of a full one", do(nfs.ProcRmdir, "full"), nfs.StatusNotEmpty)
	w.want("RMDIR", do(nfs.ProcRmdir, "made"), nfs.StatusOK)
	w.want("RMDIR of .", do(nfs.ProcRmdir, "."), nfs.StatusInval)
	w.want("RMDIR of ..", do(nfs.ProcRmdir, ".."), nfs.StatusExist)
}

func testRename(t *testing.T, w *world) {
	for _, name := range []string{"a", "b", "dir/x"} {
		w.put(name, name)
	}
	a, b, dir := w.lookup("a"), w.lookup("b"), w.lookup("dir")
	var res nfs.RenameRes
	do := func(from nfs.FileHandle, name string, to nfs.FileHandle, newName string) nfs.Status {
		t.Helper()
		w.must(user(), nfs.ProcRename, &nfs.RenameArgs{From: nfs.DirOpArgs{Dir: from, Name: name}, To: nfs.DirOpArgs{Dir: to, Name: newName}}, &res)
		return res.Status
	}
	w.want("RENAME over a file", do(w.root, "a", w.root, "b"), nfs.StatusOK)
	if got := w.lookup("b"); got != a {
		t.Error("the handle has not followed the file")
	}
	_, status := w.getattr(b)
	w.want("GETATTR of what has been replaced", status, nfs.StatusStale)
	w.want("RENAME to another directory", do(w.root, "b", dir, "c"), nfs.StatusOK)
	if w.lookup("dir/c") != a || !res.FromWcc.After.Present || !res.ToWcc.After.Present || !res.ToWcc.Before.Present {
		t.Errorf("%+v", res)
	}
	w.want("RENAME of a directory into itself", do(w.root, "dir", dir, "dir"), nfs.StatusInval)
	testutil.Must(t, os.Mkdir(w.path("empty"), 0o777))
	w.want("RENAME of a file over a directory", do(dir, "c", w.root, "empty"), nfs.StatusIsDir)
	w.want("RENAME of a file over the directory that it is in", do(dir, "c", w.root, "dir"), nfs.StatusNotEmpty)
	w.want("RENAME of a directory over a file", do(w.root, "dir", w.root, "file"), nfs.StatusNotDir)
	w.want("RENAME of a directory over a full one", do(w.root, "dir", w.root, "full"), nfs.StatusNotEmpty)
	w.want("RENAME of nothing", do(w.root, "nothing", w.root, "x"), nfs.StatusNoEnt)
	w.want("RENAME of ..", do(dir, "..", w.root, "x"), nfs.StatusInval)
	w.want("RENAME to .", do(w.root, "file", w.root, "."), nfs.StatusInval)
	w.want("RENAME in a file", do(a, "x", w.root, "y"), nfs.StatusNotDir)
	w.want("RENAME to the same name", do(w.root, "file", w.root, "file"), nfs.StatusOK)
}

func testLink(t *testing.T, w *world) {
	var res nfs.LinkRes
	file, link := w.lookup("file"), w.lookup("link")
	do := func(fh nfs.FileHandle, name string) nfs.Status {
		t.Helper()
		w.must(user(), nfs.ProcLink, &nfs.LinkArgs{File: fh, Link: nfs.DirOpArgs{Dir: w.root, Name: name}}, &res)
		return res.Status
	}
	w.want("LINK", do(file, "hard"), nfs.StatusOK)
	if w.lookup("hard") != file || res.Attr.Attr.Nlink != 2 || !res.DirWcc.After.Present {
		t.Errorf("%+v", res)
	}
	w.want("LINK again", do(file, "hard"), nfs.StatusExist)
	w.want("LINK to a symbolic link", do(link, "hardlink"), nfs.StatusOK)
	if got, err := os.Readlink(w.path("hardlink")); got != "file" || err != nil {
		t.Errorf("%q, %v", got, err)
	}
	w.want("LINK to a directory", do(w.lookup("dir"), "dir2"), nfs.StatusPerm)
	var removed nfs.WccRes
	w.must(user(), nfs.ProcRemove, &nfs.DirOpArgs{Dir: w.root, Name: "file"}, &removed)
	a, status := w.getattr(file)
	if w.want("GETATTR by the other name", status, nfs.StatusOK); a.Nlink != 1 {
		t.Errorf("%d links", a.Nlink)
	}
}

func testInfo(t *testing.T, w *world) {
	ctx := t.Context()
	info, err := w.FSInfo(ctx, w.root)
	if err != nil || info.RTMax != 1<<20 || info.MaxFileSize != 1<<63-1 || info.TimeDelta.Nsec != 1 ||
		info.Properties != nfs.FSFLink|nfs.FSFSymlink|nfs.FSFHomogeneous|nfs.FSFCanSetTime {
		t.Errorf("FSINFO: %+v, %v", info, err)
	}
	var st syscall.Statfs_t
	if err := syscall.Statfs(w.dir, &st); err != nil {
		t.Fatal(err)
	}
	stat, err := w.FSStat(ctx, w.root)
	if err != nil || stat.TotalBytes != st.Blocks*uint64(st.Bsize) || stat.TotalFiles != st.Files {
		t.Errorf("FSSTAT: %+v, %v, want %+v", stat, err, st)
	}
	conf, err := w.PathConf(ctx, w.root)
	if err != nil || conf.NameMax != uint32(st.Namelen) || !conf.NoTrunc || !conf.ChownRestricted || conf.CaseInsensitive || !conf.CasePreserving {
		t.Errorf("PATHCONF: %+v, %v", conf, err)
	}
}
