package dirfs

import (
	"errors"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/rpcrdma/rpcrdma/internal/testutil"
	"github.com/rpcrdma/rpcrdma/nfs"
)

// mountsInside in the environment is for TestMountPoints in a namespace of its own.
const mountsInside = "DIRFS_TEST_MOUNTS"

// What is mounted below the directory is listed with its name alone, and is not entered. An
// ordinary user in namespaces of its own may mount.
func TestMountPoints(t *testing.T) {
	if os.Getenv(mountsInside) == "" {
		cmd := exec.Command(os.Args[0], "-test.run=^TestMountPoints$", "-test.v")
		cmd.Env = append(os.Environ(), mountsInside+"=1")
		cmd.SysProcAttr = &syscall.SysProcAttr{
			Cloneflags:  syscall.CLONE_NEWUSER | syscall.CLONE_NEWNS,
			UidMappings: []syscall.SysProcIDMap{{ContainerID: 1000, HostID: os.Geteuid(), Size: 1}},
			GidMappings: []syscall.SysProcIDMap{{ContainerID: 1000, HostID: os.Getegid(), Size: 1}},
			AmbientCaps: []uintptr{unix.CAP_SYS_ADMIN},
		}
		out, err := cmd.CombinedOutput()
		var denied syscall.Errno
		if errors.As(err, &denied) {
			t.Skipf("a process cannot have namespaces of its own here: %v", err)
		}
		if err != nil || !strings.Contains(string(out), "--- PASS: TestMountPoints/") {
			t.Errorf("%v\n%s", err, out)
		}
		return
	}
	each(t, func(t *testing.T, m mode) {
		w := newWorld(t, m.cfg, map[string]string{"dir/covered": "x", "bind/covered": "x", "plain/file": "x"})
		// What is known already is not entered in another place either.
		for _, name := range []string{"dir", "bind", "plain"} {
			w.lookup(name)
		}
		if err := unix.Mount("tmpfs", w.path("dir"), "tmpfs", 0, ""); err != nil {
			t.Skipf("namespaces are not enough to mount: %v", err)
		}
		defer unix.Unmount(w.path("dir"), unix.MNT_DETACH)
		w.put("dir/secret", "x")
		names := []string{"dir"}
		// Without openat2 another part of the same file system cannot be told from a directory.
		if !w.fs.at.plain {
			testutil.Must(t, unix.Mount(w.path("plain"), w.path("bind"), "", unix.MS_BIND, ""))
			defer unix.Unmount(w.path("bind"), unix.MNT_DETACH)
			names = append(names, "bind")
		}
		var list nfs.ReadDirPlusRes
		w.must(user(), nfs.ProcReadDirPlus, &nfs.ReadDirPlusArgs{Dir: w.root, DirCount: 8192, MaxCount: 8192}, &list)
		for _, name := range names {
			for _, proc := range []uint32{nfs.ProcLookup, nfs.ProcRmdir, nfs.ProcRemove} {
				if got := w.do(user(), proc, &nfs.DirOpArgs{Dir: w.root, Name: name}); got != nfs.StatusAcces && (proc != nfs.ProcRemove || got != nfs.StatusIsDir) {
					t.Errorf("%s of a mount point: %v", nfs.ProcName(proc), got)
				}
			}
			found := false
			for _, e := range list.Entries {
				if e.Name != name {
					continue
				}
				found = true
				if e.Handle.Present || e.Attr.Present {
					t.Errorf("%s is listed with %+v", name, e)
				}
			}
			if !found {
				t.Errorf("%s is not listed", name)
			}
		}
	})
}
