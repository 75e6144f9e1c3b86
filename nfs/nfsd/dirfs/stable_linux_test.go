package dirfs

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/rpcrdma/rpcrdma/internal/testing/testutil"
	"github.com/rpcrdma/rpcrdma/nfs"
)

// What a reply says to be on the disk has been put there before; what cannot be is an error.
func TestStableStorage(t *testing.T) {
	for _, tt := range []struct{ async, joint bool }{{}, {joint: true}, {async: true}} {
		async := tt.async
		t.Run(fmt.Sprintf("async=%v,joint=%v", async, tt.joint), func(t *testing.T) {
			cfg := modes()[2].cfg
			cfg.Async = async
			w := newWorld(t, cfg, map[string]string{"file": "", "dir/": ""})
			w.fs.joint = tt.joint
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
				synced []string // in this order
			}{
				{"an unstable WRITE", write(0, "a", nfs.Unstable), nil},
				{"a WRITE with DATA_SYNC", write(1, "b", nfs.DataSync), []string{"file=ab"}},
				{"a WRITE with FILE_SYNC", write(2, "c", nfs.FileSync), []string{"file=abc"}},
				{"another unstable WRITE", write(3, "d", nfs.Unstable), nil},
				{"COMMIT", do(nfs.ProcCommit, &nfs.CommitArgs{File: file}), []string{"file=abcd"}},
				{"SETATTR", do(nfs.ProcSetAttr, &nfs.SetAttrArgs{Object: file, Attr: nfs.SetAttr{SetSize: true, Size: 1}}), []string{"file=a"}},
				{"CREATE", do(nfs.ProcCreate, &nfs.CreateArgs{Where: in(dir, "new")}), []string{"dir/new=", "dir"}},
				{"MKDIR", do(nfs.ProcMkdir, &nfs.MkdirArgs{Where: in(dir, "sub")}), []string{"dir/sub", "dir"}},
				{"SYMLINK", do(nfs.ProcSymlink, &nfs.SymlinkArgs{Where: in(dir, "link"), Target: []byte("x")}), []string{"dir"}},
				{"MKNOD", do(nfs.ProcMknod, &nfs.MknodArgs{Where: in(dir, "fifo"), Type: nfs.TypeFIFO}), []string{"dir"}},
				{"LINK", do(nfs.ProcLink, &nfs.LinkArgs{File: file, Link: in(dir, "hard")}), []string{"dir"}},
				{"RENAME", do(nfs.ProcRename, &nfs.RenameArgs{From: in(dir, "new"), To: in(w.root, "new")}), []string{"", "dir"}},
				{"REMOVE", do(nfs.ProcRemove, at(dir, "link")), []string{"dir"}},
				{"RMDIR", do(nfs.ProcRmdir, at(dir, "sub")), []string{"dir"}},
				{"GETATTR", do(nfs.ProcGetAttr, &file), nil},
			} {
				want := step.synced
				switch {
				case async:
					want = nil
				case tt.joint && (step.what == "CREATE" || step.what == "MKDIR"): // a journal has both together
					want = want[:1]
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

// The type of a file system is that of the mount.
func TestFileSystemType(t *testing.T) {
	for _, dir := range []string{"/proc", t.TempDir()} {
		fd, err := unix.Open(dir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
		testutil.Must(t, err)
		defer unix.Close(fd)
		var st unix.Statfs_t
		testutil.Must(t, unix.Fstatfs(fd, &st))
		name := fileSystem(fd)
		want, known := map[int64]string{
			unix.PROC_SUPER_MAGIC: "proc", unix.TMPFS_MAGIC: "tmpfs", unix.XFS_SUPER_MAGIC: "xfs", unix.BTRFS_SUPER_MAGIC: "btrfs",
			unix.EXT4_SUPER_MAGIC: "ext", unix.OVERLAYFS_SUPER_MAGIC: "overlay", 0x01021997: "9p",
		}[int64(st.Type)]
		if known && !strings.HasPrefix(name, want) || name == "" {
			t.Errorf("%s is on %q, want %q", dir, name, want)
		}
		if got, want := isJoint(fd), name == "ext3" || name == "ext4" || name == "xfs"; got != want {
			t.Errorf("%s is on %s, joint is %v", dir, name, got)
		}
	}
}

// A file system that knows no fsync of directories has nothing to lose by that.
func TestDirectoryNotSynced(t *testing.T) {
	w := newWorld(t, modes()[2].cfg, map[string]string{"dir/": "", "file": ""})
	w.synced(func() error { return unix.EINVAL })
	w.want("MKDIR", w.do(user(), nfs.ProcMkdir, &nfs.MkdirArgs{Where: nfs.DirOpArgs{Dir: w.root, Name: "new"}}), nfs.StatusOK)
	w.want("RMDIR", w.do(user(), nfs.ProcRmdir, &nfs.DirOpArgs{Dir: w.root, Name: "dir"}), nfs.StatusOK)
	w.want("COMMIT of a file", w.do(user(), nfs.ProcCommit, &nfs.CommitArgs{File: w.lookup("file")}), nfs.StatusInval)
}
