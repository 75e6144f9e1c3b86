package dirfs

import (
	"fmt"
	"os"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rpcrdma/rpcrdma/internal/testing/testutil"
	"github.com/rpcrdma/rpcrdma/nfs"
)

// fill makes files in a new directory and returns it.
func (w *world) fill(dir string, files int) {
	w.t.Helper()
	testutil.Must(w.t, os.Mkdir(w.path(dir), 0o777), os.Chmod(w.path(dir), 0o777))
	for i := range files {
		f, err := os.OpenFile(fmt.Sprintf("%s/%06d", w.path(dir), i), os.O_CREATE|os.O_EXCL, 0o666)
		testutil.Must(w.t, err)
		f.Close()
	}
}

// A listing of a large directory, page by page, has every entry that stays exactly once, though
// others come and go meanwhile, and takes time in proportion to their number.
func TestLargeDirectory(t *testing.T) {
	files := 100_000
	if testing.Short() || raceDetector {
		files = 10_000
	}
	w := newWorld(t, modes()[2].cfg, nil)
	w.fill("dir", files)
	dir := w.lookup("dir")
	for _, plus := range []bool{false, true} {
		t.Run(fmt.Sprintf("plus=%v", plus), func(t *testing.T) {
			var done atomic.Bool
			changed := make(chan int)
			go func() { // every third file goes, and new ones come
				n := 0
				for ; n < files && !done.Load(); n += 3 {
					os.Remove(fmt.Sprintf("%s/%06d", w.path("dir"), n))
					os.WriteFile(fmt.Sprintf("%s/new%06d", w.path("dir"), n), nil, 0o666)
				}
				changed <- n
			}()
			began := time.Now()
			seen, pages := w.listAll(dir, plus)
			took := time.Since(began)
			done.Store(true)
			t.Logf("%d entries in %d pages, %v, while %d changed", len(seen), pages, took, <-changed)
			for i := range files {
				name := fmt.Sprintf("%06d", i)
				if i%3 != 0 && seen[name] != 1 {
					t.Fatalf("%s came %d times", name, seen[name])
				}
			}
			for name, n := range seen {
				if n != 1 {
					t.Fatalf("%s came %d times", name, n)
				}
			}
			if seen["."] != 1 || seen[".."] != 1 {
				t.Error("no . or ..")
			}
		})
	}
}

// listAll returns how often each name comes in a listing, and how many pages that takes.
func (w *world) listAll(dir nfs.FileHandle, plus bool) (seen map[string]int, pages int) {
	w.t.Helper()
	seen = make(map[string]int)
	args := nfs.ReadDirPlusArgs{Dir: dir, DirCount: 32 << 10, MaxCount: 32 << 10}
	for {
		var res nfs.ReadDirPlusRes
		size := 0
		if plus {
			w.must(user(), nfs.ProcReadDirPlus, &args, &res)
			size = len(res.Append(nil))
		} else {
			var names nfs.ReadDirRes
			w.must(user(), nfs.ProcReadDir, &nfs.ReadDirArgs{Dir: dir, Cookie: args.Cookie, Verf: args.Verf, Count: args.MaxCount}, &names)
			size = len(names.Append(nil))
			res.Status, res.Verf, res.EOF = names.Status, names.Verf, names.EOF
			for _, e := range names.Entries {
				res.Entries = append(res.Entries, nfs.DirEntry{FileID: e.FileID, Name: e.Name, Cookie: e.Cookie})
			}
		}
		if res.Status != nfs.StatusOK || size > int(args.MaxCount)+4 || len(res.Entries) == 0 && !res.EOF {
			w.t.Fatalf("page %d: %v, %d bytes, %d entries", pages, res.Status, size, len(res.Entries))
		}
		pages++
		for _, e := range res.Entries {
			seen[e.Name]++
			args.Cookie = e.Cookie
			if plus && e.Handle.Present && (e.Attr.Attr.FileID != e.FileID || !e.Attr.Present) {
				w.t.Fatalf("%s: %+v", e.Name, e)
			}
		}
		if args.Verf = res.Verf; res.EOF {
			return seen, pages
		}
	}
}

// A page is no longer than the client says, and holds what fits.
func TestPageSizes(t *testing.T) {
	each(t, func(t *testing.T, m mode) {
		w := newWorld(t, m.cfg, map[string]string{"sub/": "", "link": "-> x"})
		w.fill("dir", 100)
		dir := w.lookup("dir")
		for _, count := range []uint32{0, 1, 100, 127, 128, 160, 500, 4096, 1 << 20, 1<<32 - 1} {
			var res nfs.ReadDirRes
			w.must(user(), nfs.ProcReadDir, &nfs.ReadDirArgs{Dir: dir, Count: count}, &res)
			size := uint32(len(res.Append(nil))) - 4
			switch {
			case res.Status == nfs.StatusTooSmall && count < 200:
			case res.Status != nfs.StatusOK || size > count:
				t.Errorf("READDIR of %d: %v, %d bytes", count, res.Status, size)
			case !res.EOF && count-size > 40:
				t.Errorf("READDIR of %d has %d bytes only", count, size)
			}
			var plus nfs.ReadDirPlusRes
			w.must(user(), nfs.ProcReadDirPlus, &nfs.ReadDirPlusArgs{Dir: dir, DirCount: count / 4, MaxCount: count}, &plus)
			size = uint32(len(plus.Append(nil))) - 4
			switch {
			case plus.Status == nfs.StatusTooSmall && count < 400:
			case plus.Status != nfs.StatusOK || size > count:
				t.Errorf("READDIRPLUS of %d: %v, %d bytes", count, plus.Status, size)
			}
		}
		var plus nfs.ReadDirPlusRes
		w.must(user(), nfs.ProcReadDirPlus, &nfs.ReadDirPlusArgs{Dir: w.root, DirCount: 1 << 20, MaxCount: 1 << 20}, &plus)
		for _, e := range plus.Entries {
			want := w.root
			switch e.Name {
			case ".", "..":
			default:
				want = w.lookup(e.Name)
			}
			if e.Handle.Handle != want || e.FileID == 0 {
				t.Errorf("%s: %v, want %v", e.Name, e.Handle, want)
			}
		}
		if len(plus.Entries) != 5 || !plus.EOF {
			t.Errorf("%d entries", len(plus.Entries))
		}
		// Cookies that were never given out.
		for _, cookie := range []uint64{1, 2, 12345, 1 << 62, 1<<63 - 1, 1 << 63, 1<<64 - 1} {
			var res nfs.ReadDirRes
			w.must(user(), nfs.ProcReadDir, &nfs.ReadDirArgs{Dir: dir, Cookie: cookie, Verf: nfs.Verf{1}, Count: 4096}, &res)
			if res.Status != nfs.StatusOK && res.Status != nfs.StatusBadCookie {
				t.Errorf("cookie %d: %v", cookie, res.Status)
			}
		}
		var empty nfs.ReadDirRes
		w.must(user(), nfs.ProcReadDir, &nfs.ReadDirArgs{Dir: w.lookup("sub"), Count: 4096}, &empty)
		if len(empty.Entries) != 2 || !empty.EOF {
			t.Errorf("an empty directory: %+v", empty)
		}
	})
}

// Many that list one directory do not get in each other's way.
func TestParallelListings(t *testing.T) {
	w := newWorld(t, modes()[2].cfg, nil)
	w.fill("dir", 3000)
	dir := w.lookup("dir")
	results := make(chan map[string]int)
	for i := range 8 {
		go func() {
			seen, _ := w.listAll(dir, i%2 == 0)
			results <- seen
		}()
	}
	for range 8 {
		if seen := <-results; len(seen) != 3002 {
			t.Errorf("%d entries", len(seen))
		}
	}
}
