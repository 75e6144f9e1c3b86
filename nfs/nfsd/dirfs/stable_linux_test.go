package dirfs

import (
	"fmt"
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/rpcrdma/rpcrdma/nfs"
)

// What a reply says to be on the disk has been put there before; what cannot be is an error.
func TestStableStorage(t *testing.T) {
	for _, async := range []bool{false, true} {
		t.Run(fmt.Sprintf("async=%v", async), func(t *testing.T) {
			cfg := modes()[2].cfg
			cfg.Async = async
			w := newWorld(t, cfg, map[string]string{"file": "", "dir/": ""})
			var failure error
			synced := w.synced(func() error { return failure })
			file, dir := w.lookup("file"), w.lookup("dir")
			write := func(off uint64, text string, stable nfs.Stable) func() nfs.Status {
				return func() nfs.Status {
					var res nfs.WriteRes
					args := nfs.WriteArgs{File: file, Offset: off, Count: uint32(len(text)), Stable: stable, Data: []byte(text)}
					w.must(user(), nfs.ProcWrite, &args, &res)
					if res.Status == nfs.StatusOK && res.Committed != stable {
						t.Errorf("a WRITE with %d is as stable as %d", stable, res.Committed)
					}
					return res.Status
				}
			}
			do := func(proc uint32, args message) func() nfs.Status {
				return func() nfs.Status { return w.do(user(), proc, args) }
			}
			in := func(dir nfs.FileHandle, name string) nfs.DirOpArgs { return nfs.DirOpArgs{Dir: dir, Name: name} }
			at := func(dir nfs.FileHandle, name string) *nfs.DirOpArgs { w := in(dir, name); return &w }
			for _, step := range []struct {
				what   string
				do     func() nfs.Status
				synced []string
			}{
				{"an unstable WRITE", write(0, "a", nfs.Unstable), nil},
				{"a WRITE with DATA_SYNC", write(1, "b", nfs.DataSync), []string{"file=ab"}},
				{"a WRITE with FILE_SYNC", write(2, "c", nfs.FileSync), []string{"file=abc"}},
				{"another unstable WRITE", write(3, "d", nfs.Unstable), nil},
				{"COMMIT", do(nfs.ProcCommit, &nfs.CommitArgs{File: file}), []string{"file=abcd"}},
				{"SETATTR", do(nfs.ProcSetAttr, &nfs.SetAttrArgs{Object: file, Attr: nfs.SetAttr{SetSize: true, Size: 1}}), []string{"file=a"}},
				{"CREATE", do(nfs.ProcCreate, &nfs.CreateArgs{Where: in(dir, "new")}), []string{"dir", "dir/new="}},
				{"MKDIR", do(nfs.ProcMkdir, &nfs.MkdirArgs{Where: in(dir, "sub")}), []string{"dir", "dir/sub"}},
				{"SYMLINK", do(nfs.ProcSymlink, &nfs.SymlinkArgs{Where: in(dir, "link"), Target: []byte("x")}), []string{"dir"}},
				{"MKNOD", do(nfs.ProcMknod, &nfs.MknodArgs{Where: in(dir, "fifo"), Type: nfs.TypeFIFO}), []string{"dir"}},
				{"LINK", do(nfs.ProcLink, &nfs.LinkArgs{File: file, Link: in(dir, "hard")}), []string{"dir"}},
				{"RENAME", do(nfs.ProcRename, &nfs.RenameArgs{From: in(dir, "new"), To: in(w.root, "new")}), []string{"", "dir"}},
				{"REMOVE", do(nfs.ProcRemove, at(dir, "link")), []string{"dir"}},
				{"RMDIR", do(nfs.ProcRmdir, at(dir, "sub")), []string{"dir"}},
				{"GETATTR", do(nfs.ProcGetAttr, &file), nil},
			} {
				want := step.synced
				if async {
					want = nil
				}
				if status := step.do(); status != nfs.StatusOK {
					t.Errorf("%s: %v", step.what, status)
				}
				if got := synced(); !slices.Equal(got, want) {
					t.Errorf("%s has put %q on the disk, want %q", step.what, got, want)
				}
			}
			failure = unix.EIO
			for _, step := range []func() nfs.Status{write(0, "x", nfs.FileSync), do(nfs.ProcCommit, &nfs.CommitArgs{File: file}), do(nfs.ProcRemove, at(dir, "hard"))} {
				if status := step(); (status == nfs.StatusIO) == async {
					t.Errorf("when the disk fails: %v", status)
				}
			}
		})
	}
}
