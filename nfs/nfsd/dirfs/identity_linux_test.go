package dirfs

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/rpcrdma/rpcrdma/internal/testing/testutil"
	"github.com/rpcrdma/rpcrdma/nfs"
	"github.com/rpcrdma/rpcrdma/nfs/nfsd"
	"github.com/rpcrdma/rpcrdma/proto/oncrpc"
)

// needRoot skips a test that takes the identity of callers.
func needRoot(t *testing.T) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("only root can take the identity of callers")
	}
}

func sys(uid, gid uint32, groups ...uint32) *oncrpc.AuthSys {
	return &oncrpc.AuthSys{Machine: "test", UID: uid, GID: gid, GIDs: groups}
}

// As root, callers can do what their user and groups may, and nothing more.
func TestPermissions(t *testing.T) {
	needRoot(t)
	w := newWorld(t, Config{}, map[string]string{"private": "x", "group": "x", "exec": "x", "closed/file": "x", "sticky/theirs": "x"})
	owner, member, other, root := sys(1000, 1000), sys(2000, 2000, 5, 3000, 7), sys(4000, 4000), sys(0, 0)
	testutil.Must(t, os.Chmod(w.path("private"), 0o600), os.Chown(w.path("group"), 1000, 3000), os.Chmod(w.path("group"), 0o060),
		os.Chmod(w.path("exec"), 0o711), os.Chown(w.path("closed"), 1000, 3000), os.Chmod(w.path("closed"), 0o750), os.Chmod(w.path("sticky"), 0o777|os.ModeSticky))
	ok, acces, perm := nfs.StatusOK, nfs.StatusAcces, nfs.StatusPerm
	read := func(name string) func(*oncrpc.AuthSys) nfs.Status {
		fh := w.lookup(name)
		return func(who *oncrpc.AuthSys) nfs.Status {
			return w.do(who, nfs.ProcRead, &nfs.ReadArgs{File: fh, Count: 1})
		}
	}
	write := func(name string) func(*oncrpc.AuthSys) nfs.Status {
		fh := w.lookup(name)
		return func(who *oncrpc.AuthSys) nfs.Status {
			return w.do(who, nfs.ProcWrite, &nfs.WriteArgs{File: fh, Count: 1, Data: []byte("y")})
		}
	}
	in := func(proc uint32, dir, name string) func(*oncrpc.AuthSys) nfs.Status {
		fh := w.lookup(dir)
		return func(who *oncrpc.AuthSys) nfs.Status {
			args := procs(fh, name)[proc]
			return w.do(who, proc, args)
		}
	}
	set := func(name string, attr nfs.SetAttr) func(*oncrpc.AuthSys) nfs.Status {
		fh := w.lookup(name)
		return func(who *oncrpc.AuthSys) nfs.Status {
			return w.do(who, nfs.ProcSetAttr, &nfs.SetAttrArgs{Object: fh, Attr: attr})
		}
	}
	for _, tt := range []struct {
		what                       string
		do                         func(*oncrpc.AuthSys) nfs.Status
		owner, member, other, root nfs.Status // root is squashed
	}{
		{"READ of a private file", read("private"), ok, acces, acces, acces},
		{"WRITE to it", write("private"), ok, acces, acces, acces},
		{"READ of a group's file, which the owner may always", read("group"), ok, ok, acces, acces},
		{"WRITE to it", write("group"), ok, ok, acces, acces},
		{"READ of what can only be executed", read("exec"), ok, ok, ok, ok},
		{"WRITE to it", write("exec"), ok, acces, acces, acces},
		{"LOOKUP in a closed directory", in(nfs.ProcLookup, "closed", "file"), ok, ok, acces, acces},
		{"READDIR of it", in(nfs.ProcReadDir, "closed", ""), ok, ok, acces, acces},
		{"READDIRPLUS of it", in(nfs.ProcReadDirPlus, "closed", ""), ok, ok, acces, acces},
		{"MKDIR in it", in(nfs.ProcMkdir, "closed", "new"), ok, acces, acces, acces},
		{"RMDIR of that", in(nfs.ProcRmdir, "closed", "new"), ok, acces, acces, acces},
		{"SETATTR of the mode", set("private", nfs.SetAttr{SetMode: true, Mode: 0o600}), ok, perm, perm, perm},
		{"SETATTR of the owner", set("private", nfs.SetAttr{SetUID: true, UID: 4000}), perm, perm, perm, perm},
		{"SETATTR of the group to one that the owner is not in", set("private", nfs.SetAttr{SetGID: true, GID: 3000}), perm, perm, perm, perm},
		{"SETATTR of the size", set("private", nfs.SetAttr{SetSize: true, Size: 1}), ok, acces, acces, acces},
		{"SETATTR of the size and the time of it", set("group", nfs.SetAttr{SetSize: true, Size: 1, MTimeHow: nfs.SetToServerTime}), ok, ok, acces, acces},
		{"SETATTR of the time", set("private", nfs.SetAttr{MTimeHow: nfs.SetToClientTime}), ok, perm, perm, perm},
		{"REMOVE of another's file in a sticky directory", in(nfs.ProcRemove, "sticky", "theirs"), ok, perm, perm, perm},
	} {
		// The owner last: it may do it.
		for _, who := range []struct {
			name string
			auth *oncrpc.AuthSys
			want nfs.Status
		}{{"member", member, tt.member}, {"other", other, tt.other}, {"nobody", nil, tt.other}, {"root", root, tt.root}, {"owner", owner, tt.owner}} {
			if got := tt.do(who.auth); got != who.want {
				t.Errorf("%s by %s: %v, want %v", tt.what, who.name, got, who.want)
			}
		}
	}
	w.checkThreads()
}

// do calls a procedure and returns its status.
func (w *world) do(who *oncrpc.AuthSys, proc uint32, args message) nfs.Status {
	w.t.Helper()
	var res status
	w.must(who, proc, args, &res)
	return res.Status
}

// checkThreads looks at all threads of the process for one that is not as it was, except those
// that act as callers and nothing else.
func (w *world) checkThreads() {
	w.t.Helper()
	wrong := ""
	defer func() {
		if wrong != "" {
			w.t.Log(wrong)
		}
	}()
	// A thread that no longer acts may not have ended yet.
	testutil.Eventually(w.t, "no thread has another identity", func() bool {
		wrong = w.strangeThread()
		return wrong == ""
	})
}

// strangeThread reports a thread that checkThreads finds.
func (w *world) strangeThread() string {
	acting := make(map[int]bool)
	w.fs.self.mu.Lock()
	for _, a := range w.fs.self.idle {
		a.jobs <- job{&nfsd.Caller{}, func() error { acting[unix.Gettid()] = true; return nil }}
		<-a.done
	}
	w.fs.self.mu.Unlock()
	threads, err := os.ReadDir("/proc/self/task")
	testutil.Must(w.t, err)
	want := ""
	for _, thread := range threads {
		text, err := os.ReadFile("/proc/self/task/" + thread.Name() + "/status")
		if tid, _ := strconv.Atoi(thread.Name()); err != nil || acting[tid] {
			continue // it has ended, or acts
		}
		var got []string
		for line := range strings.Lines(string(text)) {
			for _, field := range []string{"Uid:", "Gid:", "Groups:", "CapEff:", "CapPrm:"} {
				if strings.HasPrefix(line, field) {
					got = append(got, strings.Join(strings.Fields(line), " "))
				}
			}
		}
		if want == "" {
			want = strings.Join(got, "; ")
		}
		if text := strings.Join(got, "; "); text != want || !strings.Contains(text, "Uid: 0 0 0 0") {
			return fmt.Sprintf("a thread has %s, others %s", text, want)
		}
	}
	return ""
}

// A change of the mode is in force at the next call.
func TestPermissionsChange(t *testing.T) {
	needRoot(t)
	w := newWorld(t, Config{}, map[string]string{"file": "x", "dir/file": "x"})
	file, dir, other := w.lookup("file"), w.lookup("dir"), sys(4000, 4000)
	for range 20 {
		for mode, want := range map[os.FileMode]nfs.Status{0o777: nfs.StatusOK, 0o700: nfs.StatusAcces} {
			testutil.Must(t, os.Chmod(w.path("file"), mode), os.Chmod(w.path("dir"), mode))
			w.want("READ", w.do(other, nfs.ProcRead, &nfs.ReadArgs{File: file, Count: 1}), want)
			w.want("WRITE", w.do(other, nfs.ProcWrite, &nfs.WriteArgs{File: file, Count: 1, Data: []byte("x")}), want)
			w.want("LOOKUP", w.do(other, nfs.ProcLookup, &nfs.DirOpArgs{Dir: dir, Name: "file"}), want)
		}
	}
}

// Files belong to the user who makes them; setgid directories pass their group on; setuid bits go
// when another user writes; and umask and squash are as they have to be.
func TestOwnership(t *testing.T) {
	needRoot(t)
	defer syscall.Umask(syscall.Umask(0o077))
	w := newWorld(t, Config{}, map[string]string{"dir/": "", "setgid/": "", "suid": "x"})
	testutil.Must(t, os.Chmod(w.path("dir"), 0o777), os.Chown(w.path("setgid"), 1000, 3000), os.Chmod(w.path("setgid"), 0o777|os.ModeSetgid), os.Chmod(w.path("suid"), 0o777|os.ModeSetuid|os.ModeSetgid))
	dir := w.lookup("dir")
	attr := nfs.SetAttr{SetMode: true, Mode: 0o666, SetUID: true, UID: 5, SetGID: true, GID: 6}
	n := 0
	make := func(who *oncrpc.AuthSys, in nfs.FileHandle, f func(where nfs.DirOpArgs) (uint32, message)) *syscall.Stat_t {
		t.Helper()
		n++
		name := fmt.Sprint("new", n)
		proc, args := f(nfs.DirOpArgs{Dir: in, Name: name})
		var res nfs.CreateRes
		w.must(who, proc, args, &res)
		if res.Status != nfs.StatusOK {
			t.Fatalf("%s by %+v: %v", nfs.ProcName(proc), who, res.Status)
		}
		sub := "dir"
		if in != dir {
			sub = "setgid"
		}
		return hostStat(t, w.path(sub+"/"+name))
	}
	kinds := map[string]func(where nfs.DirOpArgs) (uint32, message){
		"CREATE": func(where nfs.DirOpArgs) (uint32, message) {
			return nfs.ProcCreate, &nfs.CreateArgs{Where: where, Attr: attr, Mode: nfs.Guarded}
		},
		"MKDIR": func(where nfs.DirOpArgs) (uint32, message) {
			return nfs.ProcMkdir, &nfs.MkdirArgs{Where: where, Attr: attr}
		},
		"MKNOD": func(where nfs.DirOpArgs) (uint32, message) {
			return nfs.ProcMknod, &nfs.MknodArgs{Where: where, Attr: attr, Type: nfs.TypeFIFO}
		},
		"SYMLINK": func(where nfs.DirOpArgs) (uint32, message) {
			return nfs.ProcSymlink, &nfs.SymlinkArgs{Where: where, Attr: attr, Target: []byte("x")}
		},
	}
	setgid := w.lookup("setgid")
	for kind, f := range kinds {
		for _, tt := range []struct {
			who      *oncrpc.AuthSys
			in       nfs.FileHandle
			uid, gid uint32
		}{
			{sys(2000, 2001, 2002), dir, 2000, 2001}, {sys(2000, 2001), setgid, 2000, 3000},
			{sys(0, 0), dir, nfsd.Nobody, nfsd.Nobody}, {sys(0, 2001), dir, nfsd.Nobody, 2001}, {sys(2000, 0), dir, 2000, nfsd.Nobody},
			{nil, dir, nfsd.Nobody, nfsd.Nobody}, {sys(1<<32-1, 5), dir, nfsd.Nobody, nfsd.Nobody}, {sys(5, 1<<32-1), dir, nfsd.Nobody, nfsd.Nobody},
		} {
			st := make(tt.who, tt.in, f)
			if st.Uid != tt.uid || st.Gid != tt.gid {
				t.Errorf("%s by %+v belongs to %d, %d, want %d, %d", kind, tt.who, st.Uid, st.Gid, tt.uid, tt.gid)
			}
			if kind != "SYMLINK" && st.Mode&0o777 != 0o666 {
				t.Errorf("%s by %+v has mode %o", kind, tt.who, st.Mode)
			}
			if kind == "MKDIR" && tt.in == setgid && st.Mode&syscall.S_ISGID == 0 {
				t.Error("a directory in a setgid directory is none itself")
			}
		}
	}
	suid := w.lookup("suid")
	w.want("WRITE", w.do(sys(4000, 4000), nfs.ProcWrite, &nfs.WriteArgs{File: suid, Count: 1, Data: []byte("x")}), nfs.StatusOK)
	if st := hostStat(t, w.path("suid")); st.Mode&(syscall.S_ISUID|syscall.S_ISGID) != 0 {
		t.Errorf("after a WRITE the mode is %o", st.Mode)
	}
	w.close()
	w.start(Config{}, func(e *nfsd.Export) { e.Squash = nfsd.SquashNone })
	testutil.Must(t, os.Chmod(w.path("dir"), 0o700))
	if st := make(sys(0, 0), dir, kinds["CREATE"]); st.Uid != 5 || st.Gid != 6 {
		t.Errorf("what root makes and gives away belongs to %d, %d", st.Uid, st.Gid)
	}
	w.close()
	testutil.Must(t, os.Chmod(w.path("dir"), 0o777))
	w.start(Config{}, func(e *nfsd.Export) { e.Squash, e.AnonUID, e.AnonGID = nfsd.SquashAll, 42, 43 })
	if st := make(sys(2000, 2001), dir, kinds["CREATE"]); st.Uid != 42 || st.Gid != 43 {
		t.Errorf("squashed, files belong to %d, %d", st.Uid, st.Gid)
	}
	w.checkThreads()
}

// An object that has taken the name of a new one before it is looked at does not get the new one's
// mode, unless it is the caller's.
func TestMadeAnother(t *testing.T) {
	needRoot(t)
	w := newWorld(t, Config{}, map[string]string{"dir/": "", "file": "x"})
	testutil.Must(t, os.Chown(w.path("dir"), 0, 0), os.Chown(w.path("file"), 0, 0), os.Chmod(w.path("dir"), 0o700), os.Chmod(w.path("file"), 0o600))
	who := &nfsd.Caller{UID: 1000, GID: 1000}
	for _, name := range []string{"dir", "file"} {
		child, err := w.fs.root.child(who, name)
		testutil.Must(t, err)
		before := hostStat(t, w.path(name)).Mode
		if _, err := w.fs.root.made(who, child, name, 0o777, &nfs.SetAttr{SetSize: true, Size: 5}); err == nil {
			t.Errorf("%s belongs to another, and can be changed", name)
		}
		if st := hostStat(t, w.path(name)); st.Mode != before || st.Size == 5 {
			t.Errorf("%s has mode %o and %d bytes", name, st.Mode, st.Size)
		}
	}
}

// A default ACL has its say about the mode of new files.
func TestDefaultACL(t *testing.T) {
	needRoot(t)
	w := newWorld(t, Config{}, map[string]string{"dir/": ""})
	// u::rwx g::r-x o::--- in the layout of linux/posix_acl_xattr.h.
	acl := []byte{2, 0, 0, 0, 1, 0, 7, 0, 0xff, 0xff, 0xff, 0xff, 4, 0, 5, 0, 0xff, 0xff, 0xff, 0xff, 0x20, 0, 0, 0, 0xff, 0xff, 0xff, 0xff}
	if err := unix.Setxattr(w.path("dir"), "system.posix_acl_default", acl, 0); errors.Is(err, unix.ENOTSUP) {
		t.Skip("the file system has no ACLs")
	} else if err != nil {
		t.Fatal(err)
	}
	args := nfs.CreateArgs{Where: nfs.DirOpArgs{Dir: w.lookup("dir"), Name: "new"}, Attr: nfs.SetAttr{SetMode: true, Mode: 0o666}}
	w.want("CREATE", w.do(user(), nfs.ProcCreate, &args), nfs.StatusOK)
	if st := hostStat(t, w.path("dir/new")); st.Mode&0o777 != 0o640 {
		t.Errorf("mode %o, want 640", st.Mode&0o777)
	}
}

// An ACL lets in users whom the mode keeps out, as long as it says so.
func TestACL(t *testing.T) {
	needRoot(t)
	w := newWorld(t, Config{}, map[string]string{"file": "x"})
	testutil.Must(t, os.Chmod(w.path("file"), 0o600))
	// u::rw- u:4000:r-- g::--- m::r-- o::---
	acl := []byte{
		2, 0, 0, 0, 1, 0, 6, 0, 0xff, 0xff, 0xff, 0xff, 2, 0, 4, 0, 0xa0, 0x0f, 0, 0, 4, 0, 0, 0, 0xff, 0xff, 0xff, 0xff,
		0x10, 0, 4, 0, 0xff, 0xff, 0xff, 0xff, 0x20, 0, 0, 0, 0xff, 0xff, 0xff, 0xff,
	}
	if err := unix.Setxattr(w.path("file"), "system.posix_acl_access", acl, 0); errors.Is(err, unix.ENOTSUP) {
		t.Skip("the file system has no ACLs")
	} else if err != nil {
		t.Fatal(err)
	}
	fh := w.lookup("file")
	for uid, want := range map[uint32]nfs.Status{4000: nfs.StatusOK, 4001: nfs.StatusAcces} {
		w.want(fmt.Sprint("READ by ", uid), w.do(sys(uid, uid), nfs.ProcRead, &nfs.ReadArgs{File: fh, Count: 1}), want)
		var res nfs.AccessRes
		w.must(sys(uid, uid), nfs.ProcAccess, &nfs.AccessArgs{Object: fh, Access: 0x3f}, &res)
		if granted := res.Access != 0; granted != (want == nfs.StatusOK) || res.Access&^nfs.AccessRead != 0 {
			t.Errorf("ACCESS by %d: %#x", uid, res.Access)
		}
	}
	// Access that an ACL no longer grants is refused before long, though the mode is the same.
	read := &nfs.ReadArgs{File: fh, Count: 1}
	w.want("READ", w.do(sys(4000, 4000), nfs.ProcRead, read), nfs.StatusOK)
	acl[14] = 0 // u:4000:---
	testutil.Must(t, unix.Setxattr(w.path("file"), "system.posix_acl_access", acl, 0))
	testutil.Eventually(t, "what the ACL took away is refused", func() bool {
		return w.do(sys(4000, 4000), nfs.ProcRead, read) == nfs.StatusAcces
	})
}

// Operations of many callers at once never get each other's identity, and no thread keeps one.
func TestIdentities(t *testing.T) {
	needRoot(t)
	w := newWorld(t, Config{}, map[string]string{"dir/": ""})
	testutil.Must(t, os.Chmod(w.path("dir"), 0o777))
	dir := w.lookup("dir")
	const callers, files = 16, 50
	var wg sync.WaitGroup
	for c := range uint32(callers) {
		wg.Go(func() {
			for i := range files {
				args := nfs.CreateArgs{Where: nfs.DirOpArgs{Dir: dir, Name: fmt.Sprintf("%d-%d", 5000+c, i)}, Attr: nfs.SetAttr{SetMode: true, Mode: 0o600}}
				var res nfs.CreateRes
				if err := w.call(sys(5000+c, 6000+c, 7000+c), nfs.ProcCreate, &args, &res); err != nil || res.Status != nfs.StatusOK {
					t.Errorf("CREATE by %d: %v, %v", 5000+c, res.Status, err)
				}
			}
		})
	}
	wg.Wait()
	entries, err := os.ReadDir(w.path("dir"))
	testutil.Must(t, err)
	if len(entries) != callers*files {
		t.Errorf("%d files", len(entries))
	}
	for _, e := range entries {
		st := hostStat(t, w.path("dir/"+e.Name()))
		if uid, _, _ := strings.Cut(e.Name(), "-"); uid != fmt.Sprint(st.Uid) || st.Gid != st.Uid+1000 {
			t.Errorf("%s belongs to %d, %d", e.Name(), st.Uid, st.Gid)
		}
	}
	w.checkThreads()
}

// A thread that acts for one caller after the other has nothing left of the one before, also
// after a panic, which says where it was.
func TestActors(t *testing.T) {
	needRoot(t)
	f, err := Open(t.TempDir(), nil)
	testutil.Must(t, err)
	defer f.Close()
	f.self.most = 1
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	own := unix.Gettid()
	tid := 0 // of the thread that acts: always the same
	less := []int{
		unix.CAP_SYS_RESOURCE, unix.CAP_DAC_OVERRIDE, unix.CAP_DAC_READ_SEARCH, unix.CAP_FOWNER,
		unix.CAP_FSETID, unix.CAP_CHOWN, unix.CAP_MKNOD,
	}
	as := func(who *nfsd.Caller, end func() error) error {
		t.Helper()
		return f.as(who, func() error {
			if now := unix.Gettid(); now == own || tid != 0 && now != tid {
				t.Errorf("thread %d acts, %d did before", now, tid)
			}
			tid = unix.Gettid()
			uid, _ := unix.SetfsuidRetUid(-1)
			gid, _ := unix.SetfsgidRetGid(-1)
			groups, _ := unix.Getgroups()
			if got, want := fmt.Sprint(uid, gid, groups), fmt.Sprint(who.UID, who.GID, who.GIDs); got != want {
				t.Errorf("the thread is %s, want %s", got, want)
			}
			var caps [2]unix.CapUserData
			unix.Capget(capHeader(), &caps[0])
			if who.UID == 0 && caps != f.self.caps {
				t.Errorf("as user 0 it has the capabilities %x, want %x", caps, f.self.caps)
			}
			for _, c := range less {
				if who.UID != 0 && caps[c/32].Effective&(1<<(c%32)) != 0 {
					t.Errorf("as user %d it has capability %d", who.UID, c)
				}
			}
			return end()
		})
	}
	fine := func() error { return nil }
	for _, who := range []*nfsd.Caller{
		{UID: 4000, GID: 4001, GIDs: []uint32{4002}}, {UID: 4000, GID: 4001, GIDs: []uint32{4002}},
		{UID: 4000, GID: 4001, GIDs: []uint32{4003}}, {UID: 4000, GID: 4001}, {UID: 4000, GID: 4004}, {UID: 4005, GID: 4004},
		{GID: 5, GIDs: []uint32{6}}, {GID: 5}, {UID: 4000, GID: 5},
	} {
		testutil.Must(t, as(who, fine))
	}
	func() {
		defer func() {
			err, ok := recover().(error)
			var cause *os.SyscallError
			if !ok || !errors.As(err, &cause) || !strings.Contains(err.Error(), "inTheJob") {
				t.Errorf("it panics with %v", err)
			}
		}()
		as(&nfsd.Caller{UID: 4006, GID: 4006}, inTheJob)
	}()
	testutil.Must(t, as(&nfsd.Caller{GID: 5}, fine), as(&nfsd.Caller{UID: 4007, GID: 5}, fine))
	if err := f.as(&nfsd.Caller{UID: noID, GID: 1}, inTheJob); err != unix.EACCES {
		t.Error(err)
	}
	one, other := &nfsd.Caller{UID: 4007, GID: 5}, &nfsd.Caller{UID: 4008, GID: 5}
	testutil.Must(t, as(one, fine), as(other, fine))
	// A caller that comes again is given the same thread, if there may be as many.
	f.self.most = 2
	first := tid
	for _, who := range []*nfsd.Caller{one, other, one, other} {
		tid = 0
		testutil.Must(t, as(who, fine))
		if (tid == first) != (who == other) {
			t.Errorf("thread %d acts as user %d, and %d did as %d", tid, who.UID, first, other.UID)
		}
	}
	if n := len(f.self.idle); n != 2 {
		t.Errorf("%d threads wait for jobs", n)
	}
}

// The capability that overrides quotas, which setfsuid leaves, goes with the identity and comes back
// with it. Root lacks it in many containers: one that root needs to become another user stands for
// it.
func TestCapabilityGoes(t *testing.T) {
	needRoot(t)
	f, err := Open(t.TempDir(), nil)
	testutil.Must(t, err)
	defer f.Close()
	f.self.most = 1
	if f.self.less[unix.CAP_SYS_RESOURCE/32].Effective&(1<<(unix.CAP_SYS_RESOURCE%32)) != 0 {
		t.Error("callers keep CAP_SYS_RESOURCE")
	}
	f.self.less[0].Effective &^= 1 << unix.CAP_SETUID
	for _, who := range []*nfsd.Caller{{UID: 4000, GID: 4000}, {GID: 5}, {UID: 4001, GID: 4001}, {UID: 4002, GID: 4002}, {GID: 6}} {
		testutil.Must(t, f.as(who, func() error {
			var caps [2]unix.CapUserData
			if err := unix.Capget(capHeader(), &caps[0]); err != nil {
				return err
			}
			if has := caps[0].Effective&(1<<unix.CAP_SETUID) != 0; has != (who.UID == 0) {
				t.Errorf("as user %d it has the capability: %v", who.UID, has)
			}
			return nil
		}))
	}
}

// inTheJob has to be in the stack of a panic.
func inTheJob() error { panic(os.NewSyscallError("job", unix.EIO)) }

// An ordinary user is one, and can serve.
func TestOrdinaryUser(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("all tests run as an ordinary user already")
	}
	dir := t.TempDir()
	self, err := os.ReadFile("/proc/self/exe")
	testutil.Must(t, err)
	testutil.Must(t, os.WriteFile(dir+"/dirfs.test", self, 0o755), os.Mkdir(dir+"/tmp", 0o777), os.Chmod(dir+"/tmp", 0o777))
	for at := dir; at != "/"; at = filepath.Dir(at) {
		info, err := os.Stat(at)
		testutil.Must(t, err)
		if info.Mode().Perm()&0o005 != 0o005 { // the directory for all temporary files stays as it is
			testutil.Must(t, os.Chmod(at, 0o755))
		}
	}
	cmd := exec.Command(dir+"/dirfs.test", "-test.run=Procedures|HandlesSurvive|HandlesOfAnother|RenameWhileOpen|HostileNames|PageSizes|OwnFiles", "-test.v")
	cmd.Dir = dir + "/tmp"
	cmd.Env = append(os.Environ(), "TMPDIR="+dir+"/tmp", "GOTMPDIR="+dir+"/tmp")
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nfsd.Nobody, Gid: nfsd.Nobody}}
	out, err := cmd.CombinedOutput()
	if err != nil || !strings.Contains(string(out), "--- PASS: TestProcedures/places,_as_an_ordinary_user") {
		t.Errorf("%v\n%s", err, out)
	}
}

// An ordinary user's files can be read and written by everyone who may call, whatever their mode:
// they are the server's. Files of other users cannot.
func TestOwnFiles(t *testing.T) {
	if os.Geteuid() == 0 {
		t.Skip("runs as an ordinary user, in TestOrdinaryUser")
	}
	w := newWorld(t, Config{}, map[string]string{"closed": "x", "dir/file": "x"})
	testutil.Must(t, os.Chmod(w.path("closed"), 0))
	fh := w.lookup("closed")
	before := hostStat(t, w.path("closed"))
	for range 2 {
		w.want("READ", w.do(sys(1, 1), nfs.ProcRead, &nfs.ReadArgs{File: fh, Count: 1}), nfs.StatusOK)
		w.want("WRITE", w.do(nil, nfs.ProcWrite, &nfs.WriteArgs{File: fh, Count: 1, Data: []byte("y")}), nfs.StatusOK)
		w.fs.cache.clear()
	}
	if st := hostStat(t, w.path("closed")); st.Mode != before.Mode {
		t.Errorf("the mode is %o, was %o", st.Mode, before.Mode)
	}
	for _, mode := range []uint32{0o644, 0, 0o200, 0o4444} {
		w.fs.cache.clear() // the change has to open the file, to put it on the disk
		w.want("SETATTR of the mode", w.do(user(), nfs.ProcSetAttr, &nfs.SetAttrArgs{Object: fh, Attr: nfs.SetAttr{SetMode: true, Mode: mode}}), nfs.StatusOK)
		if got := hostStat(t, w.path("closed")).Mode & 0o7777; got != mode {
			t.Errorf("the mode is %o, want %o", got, mode)
		}
	}
	w.want("SETATTR of the owner", w.do(sys(0, 0), nfs.ProcSetAttr, &nfs.SetAttrArgs{Object: fh, Attr: nfs.SetAttr{SetUID: true, UID: 1}}), nfs.StatusPerm)
	dir := w.lookup("dir")
	testutil.Must(t, os.Chmod(w.path("dir"), 0))
	w.want("LOOKUP in a closed directory", w.do(user(), nfs.ProcLookup, &nfs.DirOpArgs{Dir: dir, Name: "file"}), nfs.StatusAcces)
	w.want("READDIR", w.do(user(), nfs.ProcReadDir, &nfs.ReadDirArgs{Dir: dir, Count: 4096}), nfs.StatusAcces)
	testutil.Must(t, os.Chmod(w.path("dir"), 0o700))
}
