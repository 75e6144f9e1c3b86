package dirfs

import (
	"fmt"
	"io/fs"
	"path/filepath"
	"testing"

	"github.com/rpcrdma/rpcrdma/nfs"
	"github.com/rpcrdma/rpcrdma/nfs/nfsd"
)

// A read-only export refuses all that changes anything with NFS3ERR_ROFS, before it looks at
// the rest of the arguments; the other procedures work as ever, and ACCESS promises no changes.
func TestReadOnlyExport(t *testing.T) {
	changes := map[uint32]bool{
		nfs.ProcSetAttr: true, nfs.ProcWrite: true, nfs.ProcCreate: true, nfs.ProcMkdir: true, nfs.ProcSymlink: true, nfs.ProcMknod: true,
		nfs.ProcRemove: true, nfs.ProcRmdir: true, nfs.ProcRename: true, nfs.ProcLink: true, nfs.ProcCommit: true,
	}
	// The answers of the other procedures about a file, a directory and a link.
	want := map[uint32][3]nfs.Status{
		nfs.ProcLookup:      {nfs.StatusNotDir, nfs.StatusOK, nfs.StatusNotDir},
		nfs.ProcReadLink:    {nfs.StatusInval, nfs.StatusInval, nfs.StatusOK},
		nfs.ProcRead:        {nfs.StatusOK, nfs.StatusIsDir, nfs.StatusInval},
		nfs.ProcReadDir:     {nfs.StatusNotDir, nfs.StatusOK, nfs.StatusNotDir},
		nfs.ProcReadDirPlus: {nfs.StatusNotDir, nfs.StatusOK, nfs.StatusNotDir},
		nfs.ProcGetAttr:     {}, nfs.ProcAccess: {}, nfs.ProcFSStat: {}, nfs.ProcFSInfo: {}, nfs.ProcPathConf: {},
	}
	each(t, func(t *testing.T, m mode) {
		w := newWorld(t, m.cfg, map[string]string{"file": "hello", "dir/there": "x", "dir/empty/": "", "link": "-> file"})
		w.close()
		w.start(m.cfg, func(e *nfsd.Export) { e.ReadOnly = true })
		before := w.hostTree()
		for i, object := range []string{"file", "dir", "link"} {
			fh := w.lookup(object)
			for proc := range uint32(22) {
				if proc == nfs.ProcNull {
					if err := w.Null(t.Context()); err != nil {
						t.Error(err)
					}
					continue
				}
				for _, name := range []string{"there", "empty", "none", "..", "a/b", ""} {
					status := w.do(user(), proc, procs(fh, name)[proc])
					expected, known := want[proc]
					switch {
					case changes[proc]:
						w.want(fmt.Sprintf("%s of %q in a %s", nfs.ProcName(proc), name, object), status, nfs.StatusROFS)
					case !known:
						t.Errorf("nothing is said of %s", nfs.ProcName(proc))
					case name == "there":
						w.want(fmt.Sprintf("%s of a %s", nfs.ProcName(proc), object), status, expected[i])
					case status == nfs.StatusROFS:
						t.Errorf("%s changes nothing: %v", nfs.ProcName(proc), status)
					}
				}
			}
			var access nfs.AccessRes
			w.must(user(), nfs.ProcAccess, &nfs.AccessArgs{Object: fh, Access: 0x3f}, &access)
			if access.Status != nfs.StatusOK || access.Access&(nfs.AccessModify|nfs.AccessExtend|nfs.AccessDelete) != 0 || access.Access&nfs.AccessRead == 0 {
				t.Errorf("ACCESS to a %s: %v, %#x", object, access.Status, access.Access)
			}
		}
		file, dir := w.lookup("file"), w.lookup("dir")
		for _, how := range []nfs.CreateMode{nfs.Unchecked, nfs.Guarded, nfs.Exclusive} {
			for _, name := range []string{"new", "there"} {
				w.want("CREATE", w.do(user(), nfs.ProcCreate, &nfs.CreateArgs{Where: nfs.DirOpArgs{Dir: dir, Name: name}, Mode: how}), nfs.StatusROFS)
			}
		}
		w.want("WRITE of nothing", w.do(user(), nfs.ProcWrite, &nfs.WriteArgs{File: file}), nfs.StatusROFS)
		w.want("SETATTR with a guard", w.do(user(), nfs.ProcSetAttr, &nfs.SetAttrArgs{Object: file, Guard: true}), nfs.StatusROFS)
		w.want("SETATTR to 2^63", w.do(user(), nfs.ProcSetAttr, &nfs.SetAttrArgs{Object: file, Attr: nfs.SetAttr{SetSize: true, Size: 1 << 63}}), nfs.StatusROFS)
		if after := w.hostTree(); after != before {
			t.Errorf("before:\n%s\nafter:\n%s", before, after)
		}
	})
}

// hostTree describes all that is in the directory, with the times of all changes.
func (w *world) hostTree() (s string) {
	w.t.Helper()
	err := filepath.WalkDir(w.dir, func(path string, _ fs.DirEntry, err error) error {
		st := hostStat(w.t, path)
		s += fmt.Sprintln(path, st.Ino, st.Mode, st.Uid, st.Gid, st.Nlink, st.Size, st.Mtim, st.Ctim)
		return err
	})
	if err != nil {
		w.t.Fatal(err)
	}
	return s
}
