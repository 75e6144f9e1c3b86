package dirfs

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/rpcrdma/rpcrdma/internal/testing/testutil"
	"github.com/rpcrdma/rpcrdma/nfs"
)

// mountsInside in the environment is for TestMountPoints in a namespace of its own.
const mountsInside = "DIRFS_TEST_MOUNTS"

// A file system mounted below the directory is listed with its name alone, and is not entered. An
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
		// A known mount is not entered in another place either.
		for _, name := range []string{"dir", "bind", "plain"} {
			w.lookup(name)
		}
		if err := unix.Mount("tmpfs", w.path("dir"), "tmpfs", 0, ""); err != nil {
			t.Skipf("namespaces are not enough to mount: %v", err)
		}
		defer unix.Unmount(w.path("dir"), unix.MNT_DETACH)
		w.put("dir/secret", "x")
		names := []string{"dir"}
		// Without openat2 another part of the same file system looks like a directory.
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

// overlayInside in the environment is for TestOverlay in a namespace of its own.
const overlayInside = "DIRFS_TEST_OVERLAY"

// On an overlay file system, as containers have it, files and directories keep their handles when
// they are copied to the upper layer, and when the server is started again.
func TestOverlay(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root can mount an overlay")
	}
	if os.Getenv(overlayInside) == "" {
		cmd := exec.Command(os.Args[0], "-test.run=^TestOverlay$", "-test.v")
		cmd.Env = append(os.Environ(), overlayInside+"=1")
		cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNS}
		out, err := cmd.CombinedOutput()
		var denied syscall.Errno
		if errors.As(err, &denied) || strings.Contains(string(out), "--- SKIP: TestOverlay") {
			t.Skipf("no overlay here: %v\n%s", err, out)
		}
		if err != nil || !strings.Contains(string(out), "--- PASS: TestOverlay/") {
			t.Errorf("%v\n%s", err, out)
		}
		return
	}
	testutil.Must(t, unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""))
	top := t.TempDir()
	testutil.WriteFiles(t, top, map[string]string{"lower/file": "x", "lower/dir/file": "x", "upper/": "", "work/": "", "merged/": ""})
	for _, name := range []string{"lower/file", "lower/dir", "lower/dir/file"} {
		testutil.Must(t, os.Chown(top+"/"+name, 1000, 1000))
	}
	options := fmt.Sprintf("lowerdir=%[1]s/lower,upperdir=%[1]s/upper,workdir=%[1]s/work", top)
	if err := unix.Mount("overlay", top+"/merged", "overlay", 0, options); err != nil {
		t.Skipf("an overlay cannot be mounted: %v", err)
	}
	defer unix.Unmount(top+"/merged", unix.MNT_DETACH)
	fd, err := unix.Open(top+"/merged", unix.O_PATH, 0)
	testutil.Must(t, err)
	var h kernelHandle
	_, err = nameToHandle(fd, "", &h, unix.AT_EMPTY_PATH|atHandleFID)
	unix.Close(fd)
	if err != nil {
		t.Skipf("the kernel has no handles of overlays, Linux 6.5 has: %v", err)
	}
	each(t, func(t *testing.T, m mode) {
		w := newWorld(t, m.cfg, nil)
		w.close()
		w.dir = top + "/merged"
		w.start(m.cfg, nil)
		file, dir := w.lookup("file"), w.lookup("dir")
		w.want("WRITE", w.do(user(), nfs.ProcWrite, &nfs.WriteArgs{File: file, Count: 1, Data: []byte("y")}), nfs.StatusOK)
		where := nfs.DirOpArgs{Dir: dir, Name: "new"}
		w.want("CREATE", w.do(user(), nfs.ProcCreate, &nfs.CreateArgs{Where: where}), nfs.StatusOK)
		for _, when := range []string{"when descriptors were closed", "after a restart"} {
			w.fs.cache.clear()
			for _, fh := range []nfs.FileHandle{file, dir} {
				testutil.Eventually(t, "the server finds the file "+when, func() bool {
					_, status := w.getattr(fh)
					if status != nfs.StatusOK && status != nfs.StatusJukebox {
						t.Fatalf("GETATTR %s: %v", when, status)
					}
					return status == nfs.StatusOK
				})
			}
			w.restart(m.cfg)
		}
	})
}

// A file system that identifies inodes by their numbers alone is warned of.
func TestWeakIdentity(t *testing.T) {
	for _, ids := range []identifier{{}, {birth: true}, {birth: true, weak: true}} {
		var log strings.Builder
		f := &FS{mount: -1, ids: ids, cfg: Config{Logger: slog.New(slog.NewTextHandler(&log, nil))}}
		f.warn("/srv")
		if got := strings.Contains(log.String(), "level=WARN"); got != ids.weak {
			t.Errorf("%+v: %q", ids, log.String())
		}
	}
	h := kernelHandle{typ: typeGeneric, size: 12}
	if !h.generic() {
		t.Error("a handle without a generation is taken for one that tells files apart")
	}
	if h.b[9] = 1; h.generic() {
		t.Error("a handle with a generation is taken for one without")
	}
}
