package dirfs

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rpcrdma/rpcrdma/internal/testing/testutil"
	"github.com/rpcrdma/rpcrdma/nfs"
	"github.com/rpcrdma/rpcrdma/nfs/nfsd"
)

// A memStore is a Store that lives as long as a test.
type memStore struct {
	mu    sync.Mutex
	pairs map[string][]byte
	fail  error
	gets  int
}

func (s *memStore) Get(key []byte) ([]byte, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.gets++
	return slices.Clone(s.pairs[string(key)]), s.fail
}

func (s *memStore) Put(pairs []Pair) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.fail != nil {
		return s.fail
	}
	if s.pairs == nil {
		s.pairs = make(map[string][]byte)
	}
	for _, p := range pairs {
		if len(p.Key) > 42 || len(p.Value) > 512 {
			return fmt.Errorf("a pair of %d and %d bytes", len(p.Key), len(p.Value))
		}
		if p.Value == nil {
			delete(s.pairs, string(p.Key))
		} else {
			s.pairs[string(p.Key)] = slices.Clone(p.Value)
		}
	}
	return nil
}

// Handles live on when the server is started again, wherever files have been moved meanwhile,
// and are stale when their files are gone. That holds with a Store, and without one, when they
// have to be searched.
func TestHandlesSurvive(t *testing.T) {
	for _, stored := range []bool{false, true} {
		t.Run(fmt.Sprintf("stored=%v", stored), func(t *testing.T) {
			each(t, func(t *testing.T, m mode) {
				store := new(memStore)
				if stored {
					m.cfg.Store = store
				}
				w := newWorld(t, m.cfg, map[string]string{
					"a/b/same": "same", "a/b/renamed": "renamed", "a/b/moved": "moved", "a/b/deleted": "deleted",
					"a/b/replaced": "replaced", "c/": "", "dir/deep/file": "deep", "linked": "linked",
				})
				testutil.Must(t, os.Link(w.path("linked"), w.path("c/second")))
				handles := make(map[string]nfs.FileHandle)
				for _, name := range []string{"a/b/same", "a/b/renamed", "a/b/moved", "a/b/deleted", "a/b/replaced", "dir/deep/file", "dir", "linked"} {
					handles[name] = w.lookup(name)
				}
				move := func() {
					testutil.Must(t,
						os.Rename(w.path("a/b/renamed"), w.path("a/b/other")),
						os.Rename(w.path("a/b/moved"), w.path("c/moved")),
						os.Remove(w.path("a/b/deleted")),
						os.Rename(w.path("dir"), w.path("c/dir")),
						os.Remove(w.path("linked")),
						os.Remove(w.path("a/b/replaced")))
					w.put("a/b/replaced", "another file")
				}
				check := func() {
					t.Helper()
					for name, fh := range handles {
						a, status := w.getattr(fh)
						want := nfs.StatusOK
						if name == "a/b/deleted" || name == "a/b/replaced" {
							want = nfs.StatusStale
						}
						if status != want || status == nfs.StatusOK && a.Type == nfs.TypeReg && a.Size == 0 {
							t.Errorf("%s: %v, %d bytes, want %v", name, status, a.Size, want)
						}
					}
				}
				move()
				check() // with descriptors open
				w.fs.cache.clear()
				check()
				w.restart(m.cfg)
				check()
				if got := w.lookup("c/dir/deep/file"); got != handles["dir/deep/file"] {
					t.Errorf("the handle is now %v, was %v", got, handles["dir/deep/file"])
				}
				if stored && !m.cfg.noHandles && opensByHandle(t, w.dir) && len(store.pairs) > 0 {
					t.Error("the Store is used though there is no need")
				}
			})
		})
	}
}

// opensByHandle reports whether this process may open files of a directory by the handles of the
// kernel. In most containers root may not, and their file systems do not have that.
func opensByHandle(t *testing.T, dir string) bool {
	t.Helper()
	handle, _, err := unix.NameToHandleAt(unix.AT_FDCWD, dir, 0)
	if err != nil {
		return false
	}
	mount, err := os.Open(dir)
	testutil.Must(t, err)
	defer mount.Close()
	fd, err := unix.OpenByHandleAt(int(mount.Fd()), handle, unix.O_PATH)
	if err != nil {
		t.Log("the kernel's handles cannot be used here: ", err)
		return false
	}
	unix.Close(fd)
	return true
}

// Another key makes all handles stale, and so does another directory of the same name.
func TestHandlesOfAnother(t *testing.T) {
	w := newWorld(t, modes()[2].cfg, map[string]string{"file": "x"})
	fh := w.lookup("file")
	key := w.key
	w.key = bytes.Repeat([]byte{7}, 32)
	w.restart(w.fs.cfg)
	_, status := w.getattr(fh)
	w.want("with another key", status, nfs.StatusStale)
	w.key = key
	w.restart(w.fs.cfg)
	_, status = w.getattr(fh)
	w.want("with the first key again", status, nfs.StatusOK)
	w.close()
	testutil.Must(t, os.Rename(w.dir, w.dir+".old"), os.Mkdir(w.dir, 0o777))
	w.put("file", "y")
	w.start(w.fs.cfg, nil)
	_, status = w.getattr(fh)
	w.want("of another directory", status, nfs.StatusStale)
}

// An open file that is renamed on the host goes on being read and written.
func TestRenameWhileOpen(t *testing.T) {
	each(t, func(t *testing.T, m mode) {
		w := newWorld(t, m.cfg, map[string]string{"a": "0123456789"})
		fh := w.lookup("a")
		buf := make([]byte, 10)
		for i := range 20 {
			from, to := fmt.Sprint("f", i), fmt.Sprint("f", i+1)
			if i == 0 {
				from = "a"
			}
			testutil.Must(t, os.Rename(w.path(from), w.path(to)))
			if n, err := w.ReadAt(t.Context(), fh, buf, 0); n != 10 || err != nil {
				t.Fatalf("after %d renames: %d bytes, %v", i+1, n, err)
			}
			if _, err := w.WriteAt(t.Context(), fh, []byte{'a'}, int64(i%10)); err != nil {
				t.Fatal(err)
			}
			if i%3 == 0 {
				w.fs.cache.clear()
			}
		}
		if got, _ := os.ReadFile(w.path("f20")); string(got) != "aaaaaaaaaa" {
			t.Errorf("the host has %q", got)
		}
	})
}

// A FS keeps at most as many places as it may, and a client that brings up many loses its own.
func TestPlacesShares(t *testing.T) {
	dir := t.TempDir()
	store := new(memStore)
	f, err := Open(dir, &Config{noHandles: true, asProcess: true, MaxPlaces: 100 * (placeSize + 6), Store: store})
	testutil.Must(t, err)
	modest := &nfsd.Caller{Net: netip.MustParsePrefix("192.0.2.1/32")}
	greedy := func(n uint64) *nfsd.Caller { // a host with many addresses
		addr := netip.AddrFrom16([16]byte{0: 0x20, 1: 1, 2: 0xd, 3: 0xb8, 14: byte(n >> 8), 15: byte(n)})
		return &nfsd.Caller{Host: addr, Net: netip.MustParsePrefix("2001:db8::/64")}
	}
	made := func(n uint64) *id { return &id{ino: 1000 + n, typ: 1, size: 8} }
	for n := range uint64(10) {
		f.places.note(made(n), &f.root.id, fmt.Sprint("m", n), modest)
	}
	for n := range uint64(5000) {
		f.places.note(made(100+n), &f.root.id, fmt.Sprint("g", n), greedy(n))
		if f.places.size > f.places.max {
			t.Fatalf("%d bytes of %d", f.places.size, f.places.max)
		}
	}
	size, count := 0, 0
	for _, s := range f.places.clients {
		size += s.size
		for at := s.ring.next; at != &s.ring; at = at.next {
			count++
		}
	}
	if size != f.places.size || count != len(f.places.byID) {
		t.Errorf("%d bytes in %d places, counted %d in %d", f.places.size, len(f.places.byID), size, count)
	}
	for n := range uint64(10) {
		if f.places.byID[*made(n)] == nil {
			t.Errorf("place %d of the modest client is forgotten", n)
		}
	}
	if f.places.byID[*made(100)] != nil {
		t.Error("the greedy client's first place is still there")
	}
	if _, name, ok := f.places.get(made(100)); !ok || name != "g0" {
		t.Errorf("the first place is %q, %v: the Store does not have it", name, ok)
	}
	f.places.forget(made(101), &f.root.id, "g1")
	if _, name, ok := f.places.get(made(101)); ok {
		t.Errorf("a place that is not true any more: %q", name)
	}
	testutil.Must(t, f.Close())
	if len(store.pairs) != 5009 {
		t.Errorf("%d pairs are stored, want 5009", len(store.pairs))
	}
	for key, value := range store.pairs {
		if _, ok := f.parseHandle([]byte(key)); !ok {
			t.Errorf("key %x", key)
		}
		if at, name, ok := parsePlace(value); !ok || at != f.root.id || name == "" {
			t.Errorf("value %x", value)
		}
	}
}

// A Store that fails costs searches, and nothing else.
func TestStoreFails(t *testing.T) {
	store := &memStore{fail: errors.New("broken")}
	cfg := Config{noHandles: true, asProcess: true, MaxPlaces: 4 * placeSize, Store: store}
	w := newWorld(t, cfg, map[string]string{"a/b/c/d/e/file": "x", "a/b/c/d/e/2": "x", "a/b/c/d/e/3": "x"})
	fh := w.lookup("a/b/c/d/e/file")
	w.lookup("a/b/c/d/e/2")
	w.lookup("a/b/c/d/e/3")
	w.fs.cache.clear()
	_, status := w.getattr(fh)
	w.want("GETATTR", status, nfs.StatusOK)
	w.stop[2] = func() {
		if err := w.fs.Close(); err == nil {
			t.Error("Close does not tell")
		}
	}
}

// A file that is found in another way during a search is not gone when the search ends.
func TestFoundMeanwhile(t *testing.T) {
	f, err := Open(t.TempDir(), &Config{noHandles: true, asProcess: true})
	testutil.Must(t, err)
	defer f.Close()
	s := f.seeker
	found, again, missing := &id{ino: 1}, &id{ino: 2}, &id{ino: 3}
	f.places.note(found, &f.root.id, "found", nil) // where it will be again
	quests := make(map[id]*quest)
	for _, i := range []*id{found, again, missing} {
		quests[*i] = &quest{ended: make(chan struct{})}
		s.wanted[*i] = quests[*i]
	}
	f.places.note(found, &f.root.id, "found", nil)
	f.places.note(again, &f.root.id, "again", nil)
	s.wanted[*again] = &quest{ended: make(chan struct{})} // for the next search
	s.settle(maps.Clone(quests), true)
	if s.gone[*found] || s.gone[*again] || !s.gone[*missing] || s.wanted[*again] == nil || len(s.wanted) != 1 {
		t.Errorf("gone are %v, wanted %v", s.gone, s.wanted)
	}
	for i, q := range quests {
		<-q.ended
		if want := s.gone[i]; (q.err == unix.ESTALE) != want || (q.err == nil) == want {
			t.Errorf("%d: %v", i.ino, q.err)
		}
	}
}

// A host that asks for many stale handles has its answers at once, and keeps no other host from
// finding a file.
func TestSearchShares(t *testing.T) {
	dir := t.TempDir()
	testutil.WriteFiles(t, dir, map[string]string{"file": "x", "sub/": ""})
	synctest.Test(t, func(t *testing.T) {
		store := new(memStore)
		f, err := Open(dir, &Config{noHandles: true, asProcess: true, Store: store})
		testutil.Must(t, err)
		defer f.Close()
		n, err := f.root.Lookup(t.Context(), &f.process, "file")
		testutil.Must(t, err)
		file := n.(*node).id
		n.Release()
		f.cache.clear()
		testutil.Must(t, os.Rename(dir+"/file", dir+"/sub/moved"))

		const many = 300
		greedy, modest := netip.MustParsePrefix("2001:db8::/64"), netip.MustParsePrefix("192.0.2.1/32")
		ask := func(host netip.Prefix, i id) error {
			n, err := f.locate(t.Context(), host, &i)
			if err == nil {
				n.Release()
			}
			return err
		}
		later := func(host netip.Prefix, i id) chan error {
			answer := make(chan error, 1)
			go func() { answer <- ask(host, i) }()
			synctest.Wait()
			return answer
		}
		stale := func(k uint64) id { return id{ino: 1<<40 + k, typ: 1, size: 8} }
		began := time.Now()
		atOnce := func(what string, host netip.Prefix, i id, want error) {
			t.Helper()
			before := time.Now()
			if err := ask(host, i); err != want || time.Since(before) > 0 {
				t.Errorf("%s: %v after %v, want %v at once", what, err, time.Since(before), want)
			}
		}
		s := f.seeker
		s.running = true // no search begins
		first := later(greedy, stale(0))
		for k := range uint64(many) {
			atOnce("while one waits", greedy, stale(k), unix.EAGAIN)
		}
		found := later(modest, file)
		var others []chan error
		for k := range byte(maxWaiting - 2) {
			others = append(others, later(netip.PrefixFrom(netip.AddrFrom4([4]byte{192, 0, 2, 10 + k}), 32), stale(0)))
		}
		atOnce("while as many wait as may", netip.Prefix{}, stale(0), unix.EAGAIN)
		s.done.Go(s.run)
		if err := <-found; err != nil {
			t.Errorf("the file that can be found: %v", err)
		}
		for _, answer := range append(others, first) {
			if err := <-answer; err != unix.ESTALE {
				t.Errorf("who waited for a stale handle: %v", err)
			}
		}
		if took := time.Since(began); took >= patience {
			t.Errorf("the search took %v", took)
		}
		gets := store.gets
		for k := range uint64(many) {
			atOnce("after the search", greedy, stale(k), unix.ESTALE)
		}
		if store.gets > gets {
			t.Errorf("places of what is gone are read %d times", store.gets-gets)
		}

		time.Sleep(patience) // that is the end of the search
		s.mu.Lock()
		s.running = true
		s.mu.Unlock()
		later(greedy, stale(many))
		for k := range uint64(2 * maxWanted) {
			ask(greedy, stale(many+k))
		}
		later(modest, stale(0x10000))
		atOnce("of a full table", modest, stale(0x10001), unix.EAGAIN)
		atOnce("of a full table, with the most", greedy, stale(0x10002), unix.EAGAIN)
		one, other := stale(0x10000), stale(0x10001)
		if s.wanted[one] == nil || s.wanted[other] == nil || len(s.wanted) != maxWanted || s.asked[greedy] != maxWanted-2 || s.asked[modest] != 2 {
			t.Errorf("%d are looked for, of %v", len(s.wanted), s.asked)
		}
		time.Sleep(patience)
	})
}

// An inode that gets the number of one that is gone has another id.
func TestInodeReused(t *testing.T) {
	each(t, func(t *testing.T, m mode) {
		w := newWorld(t, m.cfg, nil)
		old := make(map[uint64]nfs.FileHandle)
		again := 0
		for i := range 200 {
			w.put("file", "x")
			fh := w.lookup("file")
			a, _ := w.getattr(fh)
			if before, ok := old[a.FileID]; ok {
				again++
				if before == fh {
					t.Fatalf("file %d has the handle of an earlier one", i)
				}
				_, status := w.getattr(before)
				w.want("the earlier handle", status, nfs.StatusStale)
			}
			old[a.FileID] = fh
			testutil.Must(t, os.Remove(w.path("file")))
			w.fs.cache.clear() // or else the inode would stay in use
		}
		t.Logf("%d numbers were used again", again)
	})
}

// Directories that are moved out of the export have no way up from there.
func TestParentOutside(t *testing.T) {
	each(t, func(t *testing.T, m mode) {
		w := newWorld(t, m.cfg, map[string]string{"dir/sub/file": "x"})
		sub := w.lookup("dir/sub")
		var res nfs.LookupRes
		up := func() nfs.Status {
			w.must(user(), nfs.ProcLookup, &nfs.DirOpArgs{Dir: sub, Name: ".."}, &res)
			return res.Status
		}
		w.want("inside", up(), nfs.StatusOK)
		if res.Object != w.lookup("dir") {
			t.Error("the parent has another handle")
		}
		testutil.Must(t, os.Rename(w.path("dir"), w.dir+".out"))
		w.want("outside", up(), nfs.StatusStale)
		testutil.Must(t, os.Rename(w.dir+".out", w.path("back")))
		w.want("inside again", up(), nfs.StatusOK)
	})
}

// The way up from a directory far below is as safe, and takes few system calls.
func TestParentFarBelow(t *testing.T) {
	each(t, func(t *testing.T, m mode) {
		const levels = 300
		w := newWorld(t, m.cfg, map[string]string{"dir/": "", "elsewhere/": ""})
		at, err := unix.Open(w.path("dir"), unix.O_PATH, 0)
		testutil.Must(t, err)
		for range levels {
			testutil.Must(t, unix.Mkdirat(at, "d", 0o777))
			below, err := unix.Openat(at, "d", unix.O_PATH, 0)
			testutil.Must(t, err)
			unix.Close(at)
			at = below
		}
		defer func() { unix.Close(at) }()
		inside := func(what string, want error) {
			t.Helper()
			if got := w.fs.inside(at); got != want {
				t.Errorf("%s: %v, want %v", what, got, want)
			}
		}
		before := w.descriptors()
		inside("below the export", nil)
		testutil.Must(t, os.Rename(w.path("dir"), w.path("elsewhere/dir")))
		inside("at another depth", nil)
		testutil.Must(t, os.Rename(w.path("elsewhere/dir"), w.dir+".out"))
		inside("outside", unix.ESTALE)
		testutil.Must(t, os.Rename(w.dir+".out", w.path("dir")), os.Mkdir(w.dir+".above", 0o777), os.Rename(w.dir, w.dir+".above/moved"))
		inside("below the export, which has been moved itself", nil)
		testutil.Must(t, os.Rename(w.dir+".above/moved", w.dir))
		if open := w.descriptors(); open > before {
			t.Errorf("%d descriptors are open, %d were before", open, before)
		}
		began := time.Now()
		for range 10 {
			inside("again", nil)
		}
		t.Logf("%v a time", time.Since(began)/10)
		w.fs.at.climbs = new(atomic.Int64)
		inside("with a count", nil)
		if n := w.fs.at.climbs.Load(); n > 100 {
			t.Errorf("%d system calls for %d levels", n, levels)
		}
	})
}

// An inode is known by its number and its device: the root of a subvolume of btrfs is not the top of
// the file system, though both have the same number.
func TestSameInode(t *testing.T) {
	a := unix.Stat_t{Ino: 256, Dev: 1}
	for _, b := range []unix.Stat_t{{Ino: 256, Dev: 1}, {Ino: 256, Dev: 2}, {Ino: 257, Dev: 1}} {
		if got := same(&a, &b); got != (a == b) {
			t.Errorf("inode %d of device %d: %v", b.Ino, b.Dev, got)
		}
	}
}

func TestIDs(t *testing.T) {
	f, err := Open(t.TempDir(), &Config{asProcess: true})
	testutil.Must(t, err)
	defer f.Close()
	var st unix.Stat_t
	testutil.Must(t, fstat(f.root.path, &st))
	for _, ids := range []identifier{f.ids, {birth: true}} {
		i, err := ids.of(f.root.path, "", &st)
		again, ok := parseID(i.append(nil))
		if err != nil || !ok || again != i || i.ino != st.Ino || i.size == 0 {
			t.Errorf("%+v: %+v, %v, %v", ids, i, again, err)
		}
		if n := len(f.appendHandle(nil, &i)); n > nfsd.MaxHandle {
			t.Errorf("a handle of %d bytes", n)
		}
	}
	for _, n := range []int{0, idHead - 1, idHead + maxKernel + 1, 100} {
		if i, ok := parseID(make([]byte, n)); ok {
			t.Errorf("%d bytes are %+v", n, i)
		}
	}
}
