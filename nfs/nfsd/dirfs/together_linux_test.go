package dirfs

import (
	"fmt"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rpcrdma/rpcrdma/internal/testing/testutil"
	"github.com/rpcrdma/rpcrdma/nfs"
	"golang.org/x/sys/unix"
)

// Of many that create the same file in a way that does not allow for another, one wins.
func TestCreateRace(t *testing.T) {
	each(t, func(t *testing.T, m mode) {
		w := newWorld(t, m.cfg, nil)
		for round := range 20 {
			for _, how := range []nfs.CreateMode{nfs.Guarded, nfs.Exclusive} {
				name := fmt.Sprint("file", round, how)
				const racers = 16
				var res [racers]nfs.CreateRes
				var wg sync.WaitGroup
				for i := range racers {
					wg.Go(func() {
						args := nfs.CreateArgs{Where: nfs.DirOpArgs{Dir: w.root, Name: name}, Mode: how, Verf: nfs.Verf{3: byte(round), 7: byte(i + 1)}}
						if err := w.call(user(), nfs.ProcCreate, &args, &res[i]); err != nil {
							t.Error(err)
						}
					})
				}
				wg.Wait()
				won := 0
				for i := range res {
					switch res[i].Status {
					case nfs.StatusOK:
						won++
					case nfs.StatusExist:
					default:
						t.Errorf("racer %d: %v", i, res[i].Status)
					}
				}
				if won != 1 {
					t.Fatalf("%s: %d racers have won", name, won)
				}
			}
		}
	})
}

// Guarded changes of attributes that begin with the same ctime: one is made.
func TestGuardRace(t *testing.T) {
	w := newWorld(t, modes()[2].cfg, map[string]string{"file": "x"})
	fh := w.lookup("file")
	for range 20 {
		a, _ := w.getattr(fh)
		testutil.Eventually(t, "the clock of the file system ticks", func() bool { // so that ctime can tell them apart
			w.put("tick", "")
			return uint32(hostStat(t, w.path("tick")).Ctim.Nsec) != a.CTime.Nsec
		})
		var mu sync.Mutex
		made := 0
		var wg sync.WaitGroup
		for i := range uint32(8) {
			wg.Go(func() {
				args := nfs.SetAttrArgs{Object: fh, Attr: nfs.SetAttr{SetMode: true, Mode: 0o600 + i}, Guard: true, CTime: a.CTime}
				var res nfs.WccRes
				if err := w.call(user(), nfs.ProcSetAttr, &args, &res); err != nil {
					t.Error(err)
				}
				if res.Status == nfs.StatusOK {
					mu.Lock()
					made++
					mu.Unlock()
				} else if res.Status != nfs.StatusNotSync {
					t.Errorf("%v", res.Status)
				}
			})
		}
		wg.Wait()
		if made != 1 {
			t.Fatalf("%d changes were made", made)
		}
	}
}

// At most as many descriptors stay open as may, they are closed when they are not used, and those of
// removed files at once.
func TestDescriptors(t *testing.T) {
	each(t, func(t *testing.T, m mode) {
		m.cfg.MaxOpen, m.cfg.Idle = 50, 200*time.Millisecond
		w := newWorld(t, m.cfg, nil)
		before := w.descriptors()
		files := often(300)
		w.fill("dir", files)
		for i := range files {
			name := fmt.Sprintf("dir/%06d", i)
			testutil.Must(t, os.Chmod(w.path(name), 0o666))
			fh := w.lookup(name)
			w.want("WRITE", w.do(user(), nfs.ProcWrite, &nfs.WriteArgs{File: fh, Count: 1, Data: []byte("x")}), nfs.StatusOK)
			w.want("READ", w.do(user(), nfs.ProcRead, &nfs.ReadArgs{File: fh, Count: 1}), nfs.StatusOK)
			if open := w.descriptors() - before; open > 60 {
				t.Fatalf("%d descriptors are open", open)
			}
		}
		w.checkCount()
		last := fmt.Sprintf("%06d", files-1)
		fh := w.lookup("dir/" + last)
		w.want("READ", w.do(user(), nfs.ProcRead, &nfs.ReadArgs{File: fh, Count: 1}), nfs.StatusOK)
		if n := w.openFor(last); n == 0 {
			t.Error("a file that has just been read is not open")
		}
		w.want("REMOVE", w.do(user(), nfs.ProcRemove, &nfs.DirOpArgs{Dir: w.lookup("dir"), Name: last}), nfs.StatusOK)
		if n := w.openFor(last); n != 0 {
			t.Errorf("%d descriptors of a removed file are open", n)
		}
		w.listAll(w.lookup("dir"), true)
		testutil.Eventually(t, "descriptors are closed", func() bool { return w.descriptors() <= before })
		w.checkCount()
	})
}

// descriptors is how many the process has open for files in the directory.
func (w *world) descriptors() int { return w.openFor(w.dir) }

// openFor returns how many descriptors the process has open for files with text in their path.
func (w *world) openFor(text string) (n int) {
	list, err := os.ReadDir("/proc/self/fd")
	testutil.Must(w.t, err)
	for _, fd := range list {
		if to, err := os.Readlink("/proc/self/fd/" + fd.Name()); err == nil && strings.Contains(to, text) {
			n++
		}
	}
	return n
}

// checkCount compares what the cache believes to be open with what is.
func (w *world) checkCount() {
	w.t.Helper()
	c := w.fs.cache
	c.mu.Lock()
	defer c.mu.Unlock()
	n := 0
	for _, node := range c.nodes {
		n += node.descriptors()
	}
	if n != c.open {
		w.t.Errorf("the cache has %d descriptors and counts %d", n, c.open)
	}
}

// Everything at once, for the race detector.
func TestMixture(t *testing.T) {
	each(t, func(t *testing.T, m mode) {
		m.cfg.MaxOpen, m.cfg.MaxPlaces, m.cfg.Store = 20, 20*placeSize, new(memStore)
		w := newWorld(t, m.cfg, map[string]string{"a/": "", "b/": ""})
		dirs := []nfs.FileHandle{w.lookup("a"), w.lookup("b")}
		var wg sync.WaitGroup
		for i := range 8 {
			wg.Go(func() {
				for n := range 60 {
					here, there := dirs[n%2], dirs[(n+1)%2]
					name, other := fmt.Sprint(n%5), fmt.Sprint((n+i)%5)
					for _, c := range []struct {
						proc uint32
						args message
					}{
						{nfs.ProcCreate, &nfs.CreateArgs{Where: nfs.DirOpArgs{Dir: here, Name: name}, Attr: nfs.SetAttr{SetMode: true, Mode: 0o666}}},
						{nfs.ProcRename, &nfs.RenameArgs{From: nfs.DirOpArgs{Dir: here, Name: name}, To: nfs.DirOpArgs{Dir: there, Name: other}}},
						{nfs.ProcReadDirPlus, &nfs.ReadDirPlusArgs{Dir: there, DirCount: 4096, MaxCount: 4096}},
						{nfs.ProcRemove, &nfs.DirOpArgs{Dir: there, Name: other}},
					} {
						var res status
						if err := w.call(user(), c.proc, c.args, &res); err != nil {
							t.Error(err)
						}
						switch res.Status {
						case nfs.StatusOK, nfs.StatusNoEnt, nfs.StatusExist, nfs.StatusJukebox:
						default:
							t.Errorf("%s: %v", nfs.ProcName(c.proc), res.Status)
						}
					}
				}
			})
		}
		wg.Wait()
		w.fs.cache.clear()
		w.checkCount()
	})
}

// A file that is created exclusively is never there without what tells the same call again that it is
// its own, so that a server that is killed at any moment leaves none.
func TestExclusiveAtOnce(t *testing.T) {
	each(t, func(t *testing.T, m mode) {
		w := newWorld(t, m.cfg, nil)
		if fd, err := unix.Open(w.path(""), unix.O_TMPFILE|unix.O_RDWR, 0o600); err == nil {
			unix.Close(fd)
		} else {
			t.Skipf("this file system has no files without a name: %v", err)
		}
		for round := range often(200) {
			name := fmt.Sprint("file", round)
			var ended atomic.Bool
			var wg sync.WaitGroup
			wg.Go(func() {
				for {
					over := ended.Load()
					var st unix.Stat_t
					if unix.Stat(w.path(name), &st) == nil {
						if st.Atim.Sec != 5 || st.Mtim.Sec != 3 {
							t.Errorf("%s is there with the times %d and %d, want 5 and 3", name, st.Atim.Sec, st.Mtim.Sec)
						}
						return
					}
					if over {
						t.Errorf("%s is not there", name)
						return
					}
				}
			})
			var res nfs.CreateRes
			args := nfs.CreateArgs{Where: nfs.DirOpArgs{Dir: w.root, Name: name}, Mode: nfs.Exclusive, Verf: nfs.Verf{3: 3, 7: 5}}
			w.must(user(), nfs.ProcCreate, &args, &res)
			w.want("CREATE", res.Status, nfs.StatusOK)
			ended.Store(true)
			wg.Wait()
		}
	})
}

// A file that is replaced after its name was opened is the old or the new one to LOOKUP and CREATE,
// and no handle that is stale. A name that is gone is no name.
func TestReplacedMeanwhile(t *testing.T) {
	each(t, func(t *testing.T, m mode) {
		w := newWorld(t, m.cfg, nil)
		replaced := 0
		replace := func(name string) {
			if name == "file" && replaced < 3 {
				replaced++
				w.put("new", "new")
				testutil.Must(t, os.Rename(w.path("new"), w.path("file")))
			}
		}
		where := nfs.DirOpArgs{Dir: w.root, Name: "file"}
		for _, tt := range []struct {
			what  string
			there bool
			proc  uint32
			args  message
		}{
			{"LOOKUP", true, nfs.ProcLookup, &where},
			{"CREATE of a file that is there", true, nfs.ProcCreate, &nfs.CreateArgs{Where: where}},
			{"CREATE", false, nfs.ProcCreate, &nfs.CreateArgs{Where: where, Mode: nfs.Guarded}},
		} {
			os.Remove(w.path("file"))
			if tt.there {
				w.put("file", "old")
			}
			w.fs.cache.clear()
			replaced, w.fs.opened = 0, replace
			w.want(tt.what, w.do(user(), tt.proc, tt.args), nfs.StatusOK)
			w.fs.opened = nil
			if replaced != 3 {
				t.Errorf("%s: the file was replaced %d times", tt.what, replaced)
			}
		}
		w.fs.cache.clear()
		w.fs.opened = func(string) { os.Remove(w.path("file")) }
		w.want("LOOKUP of a file that is removed", w.do(user(), nfs.ProcLookup, &where), nfs.StatusNoEnt)
		w.fs.opened = nil
	})
}

// A file that gets a name just before the name is removed does not stay open.
func TestReplacedBeforeRemove(t *testing.T) {
	w := newWorld(t, Config{Idle: time.Hour}, map[string]string{"file": "old", "new": "new", "stays": "x"})
	for _, name := range []string{"file", "new", "stays"} {
		testutil.Must(t, os.Chmod(w.path(name), 0o666))
		w.want("READ", w.do(user(), nfs.ProcRead, &nfs.ReadArgs{File: w.lookup(name), Count: 1}), nfs.StatusOK)
	}
	w.fs.opened = func(string) { testutil.Must(t, os.Rename(w.path("new"), w.path("file"))) }
	w.want("REMOVE", w.do(user(), nfs.ProcRemove, &nfs.DirOpArgs{Dir: w.root, Name: "file"}), nfs.StatusOK)
	w.fs.opened = nil
	testutil.Eventually(t, "the removed file is closed", func() bool { return w.openFor(w.path("file")) == 0 })
	if w.openFor(w.path("stays")) == 0 {
		t.Error("a file that is there is not open any more")
	}
	w.checkCount()
}

// Opening a file as its owner leaves no descriptor when its mode cannot be set back.
func TestModeNotSetBack(t *testing.T) {
	w := newWorld(t, modes()[2].cfg, map[string]string{"file": "x"})
	n := w.node("file", 0)
	calls := 0
	w.fs.chmod = func(path string, mode uint32) error {
		if calls++; calls == 2 {
			return unix.EIO
		}
		return unix.Chmod(path, mode)
	}
	before := w.openFor("file")
	n.opening.Lock()
	_, err := n.asOwner(func() (int, error) { return unix.Open(w.path("file"), unix.O_RDONLY|unix.O_CLOEXEC, 0) })
	n.opening.Unlock()
	if open := w.openFor("file"); err != unix.EIO || open != before {
		t.Errorf("%v, and %d descriptors are open, %d were before", err, open, before)
	}
}
