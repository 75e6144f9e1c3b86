package dirfs

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rpcrdma/rpcrdma/internal/testing/testutil"
	"github.com/rpcrdma/rpcrdma/nfs"
	"github.com/rpcrdma/rpcrdma/rpc"
	"github.com/rpcrdma/rpcrdma/transport"
)

// dial connects another client.
func (w *world) dial() *transport.Client {
	w.t.Helper()
	c, err := transport.Dial(w.t.Context(), w.bed.Provider, w.addr, nil)
	testutil.Must(w.t, err)
	return c
}

// A connection that lists a huge directory 64 times at once, over and over, keeps no other from
// being answered, and costs nothing soon after it has ended.
func TestGreedyListing(t *testing.T) {
	const (
		files   = 10_000 // more than a page has
		longest = 5 * time.Second
	)
	size := uint32(1 << 20) // of a page in bytes
	if testing.Short() || raceDetector {
		size = 64 << 10
	}
	w := newWorld(t, modes()[2].cfg, nil)
	w.fill("dir", files)
	dir := w.lookup("dir")

	greedy, listings := w.dial(), new(atomic.Int64)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	args := (&nfs.ReadDirPlusArgs{Dir: dir, DirCount: size, MaxCount: size}).Append(nil)
	var wg sync.WaitGroup
	for range 64 {
		wg.Go(func() {
			call := rpc.Call{Prog: nfs.Program, Vers: nfs.Version, Proc: nfs.ProcReadDirPlus, Cred: user().Auth(), Args: args, MaxResults: 1<<20 + 1024}
			for ctx.Err() == nil && greedy.Call(ctx, &call) == nil {
				listings.Add(1)
			}
		})
	}
	testutil.Eventually(t, "directories are listed", func() bool { return listings.Load() >= 8 })
	began, before, slowest, rounds := time.Now(), listings.Load(), time.Duration(0), 0
	for ; listings.Load() < before+16; rounds++ {
		slowest = max(slowest, w.honest(20))
	}
	t.Logf("8 clients make %d calls each in %v, the slowest takes %v, beside %d listings", 20*rounds, time.Since(began), slowest, listings.Load()-before)
	if slowest > longest {
		t.Errorf("a call has taken %v", slowest)
	}
	greedy.Close()
	cancel()
	wg.Wait()
	began = time.Now()
	slowest = w.honest(100)
	t.Logf("after the end 8 clients make 100 calls each in %v, the slowest takes %v", time.Since(began), slowest)
	if slowest > longest {
		t.Errorf("after the end a call has taken %v", slowest)
	}
}

// honest has 8 clients make calls one after the other, and returns how long the slowest takes.
func (w *world) honest(calls int) time.Duration {
	w.t.Helper()
	var slowest atomic.Int64
	var wg sync.WaitGroup
	for range 8 {
		c := w.dial()
		defer c.Close()
		wg.Go(func() {
			call := rpc.Call{Prog: nfs.Program, Vers: nfs.Version, Proc: nfs.ProcGetAttr, Cred: user().Auth(), Args: w.root.Append(nil)}
			for range calls {
				began := time.Now()
				if err := c.Call(context.Background(), &call); err != nil {
					w.t.Error(err)
				}
				for took := int64(time.Since(began)); ; {
					if was := slowest.Load(); took <= was || slowest.CompareAndSwap(was, took) {
						break
					}
				}
			}
		})
	}
	wg.Wait()
	return time.Duration(slowest.Load())
}

// Sizes and offsets beyond what a file can have are refused, and change nothing.
func TestHugeSizes(t *testing.T) {
	each(t, func(t *testing.T, m mode) {
		w := newWorld(t, m.cfg, map[string]string{"file": "hello"})
		file := w.lookup("file")
		w.want("WRITE", w.do(user(), nfs.ProcWrite, &nfs.WriteArgs{File: file, Count: 1, Data: []byte("H")}), nfs.StatusOK)
		w.want("READ", w.do(user(), nfs.ProcRead, &nfs.ReadArgs{File: file, Count: 1}), nfs.StatusOK)
		huge := &nfs.SetAttrArgs{Object: file, Attr: nfs.SetAttr{SetSize: true, Size: 1<<63 - 1}}
		w.do(user(), nfs.ProcSetAttr, huge) // for which a file system may have room or not
		before := w.descriptors()
		for i := range often(200) {
			for _, size := range []uint64{1 << 63, 1<<63 + uint64(i), 1<<64 - 1} {
				set := nfs.SetAttr{SetSize: true, Size: size}
				w.want("SETATTR", w.do(user(), nfs.ProcSetAttr, &nfs.SetAttrArgs{Object: file, Attr: set}), nfs.StatusFBig)
				create := nfs.CreateArgs{Where: nfs.DirOpArgs{Dir: w.root, Name: "new"}, Attr: set}
				w.want("CREATE", w.do(user(), nfs.ProcCreate, &create), nfs.StatusFBig)
				w.want("WRITE", w.do(user(), nfs.ProcWrite, &nfs.WriteArgs{File: file, Offset: size, Count: 1, Data: []byte("x")}), nfs.StatusFBig)
				w.want("READ", w.do(user(), nfs.ProcRead, &nfs.ReadArgs{File: file, Offset: size, Count: 10}), nfs.StatusOK)
			}
			w.do(user(), nfs.ProcSetAttr, huge)
		}
		if n := w.descriptors(); n > before {
			t.Errorf("%d descriptors are open, %d before", n, before)
		}
		w.checkCount()
		if _, err := os.Lstat(w.path("new")); err == nil {
			t.Error("a file has been made with a size that it cannot have")
		}
	})
}

// A file that is replaced by another one on the host keeps its handle to itself: what is read
// through it is the file that it was given for, or nothing.
func TestReplacedFile(t *testing.T) {
	each(t, func(t *testing.T, m mode) {
		w := newWorld(t, m.cfg, nil)
		for round := range 10 {
			old := strings.Repeat("old!", 5000)
			w.put("file", old)
			fh := w.lookup("file")
			if round%2 == 0 { // the server has it open
				w.want("READ", w.do(user(), nfs.ProcRead, &nfs.ReadArgs{File: fh, Count: 10}), nfs.StatusOK)
			}
			w.put("new", strings.Repeat("new!", 5000))
			testutil.Must(t, os.Rename(w.path("new"), w.path("file")))
			for off := uint64(0); off < 20_000; off += 4096 {
				var res nfs.ReadRes
				w.must(user(), nfs.ProcRead, &nfs.ReadArgs{File: fh, Offset: off, Count: 4096}, &res)
				if res.Status != nfs.StatusStale && (res.Status != nfs.StatusOK || string(res.Data) != old[off:][:len(res.Data)]) {
					t.Fatalf("READ at %d: %v, %.8q", off, res.Status, res.Data)
				}
			}
			w.want("READ of the file that is there", w.do(user(), nfs.ProcRead, &nfs.ReadArgs{File: w.lookup("file"), Count: 10}), nfs.StatusOK)
			if w.lookup("file") == fh {
				t.Fatal("two files have one handle")
			}
		}
	})
}

// A client that looks up a great number of files uses only as much memory as it may, and no handle
// gets stale.
func TestManyLookups(t *testing.T) {
	files := 4000
	if testing.Short() || raceDetector {
		files = 1500
	}
	each(t, func(t *testing.T, m mode) {
		m.cfg.MaxOpen, m.cfg.MaxPlaces = 100, 128<<10
		w := newWorld(t, m.cfg, map[string]string{"deep/below/file": "x"})
		first := w.lookup("deep/below/file")
		w.fill("dir", files)
		dir := w.lookup("dir")
		before := heap()
		var wg sync.WaitGroup
		for part := range 8 {
			wg.Go(func() {
				for n := part; n < files; n += 8 {
					var res nfs.LookupRes
					err := w.call(user(), nfs.ProcLookup, &nfs.DirOpArgs{Dir: dir, Name: fmt.Sprintf("%06d", n)}, &res)
					if err != nil || res.Status != nfs.StatusOK {
						t.Errorf("LOOKUP: %v, %v", res.Status, err)
						return
					}
				}
			})
		}
		wg.Wait()
		if grown := heap() - before; grown > 2<<20 {
			t.Errorf("%d lookups take %d KiB", files, grown>>10)
		}
		testutil.Eventually(t, "the first handle leads to its file", func() bool {
			_, status := w.getattr(first)
			if status != nfs.StatusOK && status != nfs.StatusJukebox {
				t.Fatal(status)
			}
			return status == nfs.StatusOK
		})
	})
}

// heap is how much memory is in use, in bytes.
func heap() int64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// READ and WRITE by the owner, who may do both, leave the mode of a file as it is, however many
// come at once.
func TestModesStay(t *testing.T) {
	each(t, func(t *testing.T, m mode) {
		w := newWorld(t, m.cfg, map[string]string{"r": "x", "w": "x", "none": "x", "all": "x"})
		modes := map[string]os.FileMode{"r": 0o400, "w": 0o200, "none": 0, "all": 0o751}
		handles := make(map[string]nfs.FileHandle)
		for name, mode := range modes {
			testutil.Must(t, os.Chmod(w.path(name), mode))
			handles[name] = w.lookup(name)
		}
		var wg sync.WaitGroup
		for i := range 8 {
			for name, fh := range handles {
				wg.Go(func() {
					for range 30 {
						var res status
						err := w.call(user(), nfs.ProcRead, &nfs.ReadArgs{File: fh, Count: 10}, &res)
						if i%2 == 0 && err == nil {
							err = w.call(user(), nfs.ProcWrite, &nfs.WriteArgs{File: fh, Offset: uint64(i), Count: 1, Data: []byte("y")}, &res)
						}
						if err != nil || res.Status != nfs.StatusOK {
							t.Errorf("%s: %v, %v", name, res.Status, err)
						}
					}
				})
			}
		}
		wg.Wait()
		for name, mode := range modes {
			if got := hostStat(t, w.path(name)).Mode & 0o7777; got != uint32(mode) {
				t.Errorf("%s has mode %o, had %o", name, got, mode)
			}
		}
	})
}

// A mode that is set while another one lets the owner in for a moment stays.
func TestModeSetMeanwhile(t *testing.T) {
	w := newWorld(t, modes()[2].cfg, map[string]string{"file": "x"})
	n := w.node("file", 0)
	set := make(chan struct{})
	n.opening.Lock()
	_, err := n.asOwner(func() (int, error) {
		go func() {
			defer close(set)
			if err := n.change(&nfs.SetAttr{SetMode: true, Mode: 0o640}); err != nil {
				t.Error(err)
			}
		}()
		select {
		case <-set:
		case <-time.After(50 * time.Millisecond): // it waits, as it should
		}
		return -1, nil
	})
	n.opening.Unlock()
	<-set
	testutil.Must(t, err)
	if got := hostStat(t, w.path("file")).Mode & 0o7777; got != 0o640 {
		t.Errorf("the mode is %o, want 640", got)
	}
}

// A cookie that is no directory's, or another one's, leads to entries of this one or to none.
func TestForgedCookies(t *testing.T) {
	each(t, func(t *testing.T, m mode) {
		w := newWorld(t, m.cfg, map[string]string{"other/secret": "x"})
		w.fill("dir", 1000)
		dir := w.lookup("dir")
		var list nfs.ReadDirRes
		w.must(user(), nfs.ProcReadDir, &nfs.ReadDirArgs{Dir: w.lookup("other"), Count: 4096}, &list)
		cookies := []uint64{1, 1 << 31, 1 << 32, 1 << 62, 1<<63 - 1, 1 << 63, 1<<64 - 1}
		for _, e := range list.Entries {
			cookies = append(cookies, e.Cookie, e.Cookie+1, e.Cookie-1)
		}
		rnd := rand.New(rand.NewPCG(1, 2))
		for range often(150) {
			cookies = append(cookies, rnd.Uint64(), rnd.Uint64N(3000))
		}
		for _, cookie := range cookies {
			var res nfs.ReadDirRes
			w.must(user(), nfs.ProcReadDir, &nfs.ReadDirArgs{Dir: dir, Cookie: cookie, Verf: nfs.Verf{byte(cookie)}, Count: 2000}, &res)
			var plus nfs.ReadDirPlusRes
			w.must(user(), nfs.ProcReadDirPlus, &nfs.ReadDirPlusArgs{Dir: dir, Cookie: cookie, Verf: nfs.Verf{byte(cookie)}, DirCount: 2000, MaxCount: 8000}, &plus)
			for _, status := range []nfs.Status{res.Status, plus.Status} {
				if status != nfs.StatusOK && status != nfs.StatusBadCookie {
					t.Errorf("cookie %#x: %v", cookie, status)
				}
			}
			var names []string
			for _, e := range res.Entries {
				names = append(names, e.Name)
			}
			for _, e := range plus.Entries {
				names = append(names, e.Name)
			}
			for _, name := range names {
				if _, err := os.Lstat(w.path("dir/" + name)); err != nil {
					t.Errorf("cookie %#x leads to %q", cookie, name)
				}
			}
		}
		if seen, _ := w.listAll(dir, true); len(seen) != 1002 {
			t.Errorf("%d entries afterwards", len(seen))
		}
	})
}
