package nfs

import (
	"errors"
	"fmt"
	"io/fs"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/rpcrdma/rpcrdma/internal/testing/testbed"
	"github.com/rpcrdma/rpcrdma/rpc"
)

func testStat(t *testing.T, b *testbed.Bed) {
	s, c := pair(t, b)
	s.add("dir/file", TypeReg, "12345")
	s.add("dir/sub/deep", TypeReg, "1")
	s.add("rel", TypeLnk, "dir/file")
	s.add("dir/sub/up", TypeLnk, "../../rel")
	s.add("abs", TypeLnk, "/export/dir//./sub/deep")
	s.add("here", TypeLnk, ".")
	s.add("dirlink", TypeLnk, "dir/sub/")
	s.add("top", TypeLnk, "/export")
	s.add("outside", TypeLnk, "/etc/passwd")
	s.add("nearly", TypeLnk, "/exported/x")
	s.add("dir/above", TypeLnk, "../../etc/passwd")
	s.add("sneaky", TypeLnk, "/export/../etc/passwd")
	s.add("loop", TypeLnk, "loop")
	s.add("ping", TypeLnk, "pong")
	s.add("pong", TypeLnk, "dir/../ping")
	s.add("dangling", TypeLnk, "nothing")
	s.add("empty", TypeLnk, "")
	s.add("nul", TypeLnk, "a\x00b")
	for i := range 41 {
		s.add(fmt.Sprintf("chain%d", i), TypeLnk, fmt.Sprintf("chain%d", i+1))
	}
	s.add("chain41", TypeReg, "end")

	for _, bare := range []bool{false, true} {
		s.set(func() { s.bare = bare })
		for _, test := range []struct {
			path string
			size uint64
			typ  FileType
			err  error
		}{
			{"/export", 0, TypeDir, nil},
			{"/export/dir/file", 5, TypeReg, nil},
			{"/export//dir/./sub/../file/", 5, TypeReg, nil},
			{"/export/rel", 5, TypeReg, nil},
			{"/export/dir/sub/up", 5, TypeReg, nil},
			{"/export/abs", 1, TypeReg, nil},
			{"/export/here/here/rel", 5, TypeReg, nil},
			{"/export/dirlink/deep", 1, TypeReg, nil},
			{"/export/top/dir", 0, TypeDir, nil},
			{"/export/chain1", 3, TypeReg, nil}, // 40 links
			{"/export/chain0", 0, 0, ErrSymlinkLoop},
			{"/export/loop", 0, 0, ErrSymlinkLoop},
			{"/export/ping/x", 0, 0, ErrSymlinkLoop},
			{"/export/outside", 0, 0, ErrSymlinkEscape},
			{"/export/nearly", 0, 0, ErrSymlinkEscape},
			{"/export/dir/above", 0, 0, ErrSymlinkEscape},
			{"/export/sneaky", 0, 0, ErrSymlinkEscape},
			{"/export/dangling", 0, 0, fs.ErrNotExist},
			{"/export/empty", 0, 0, fs.ErrInvalid},
			{"/export/nul", 0, 0, fs.ErrInvalid},
			{"/export/none", 0, 0, fs.ErrNotExist},
			{"/export/none/none", 0, 0, fs.ErrNotExist},
		} {
			n, err := c.Stat(t.Context(), test.path)
			if !errors.Is(err, test.err) || err == nil && (n.Attr.Size != test.size || n.Attr.Type != test.typ) {
				t.Errorf("%s: %+v, %v; want %d bytes, %v", test.path, n, err, test.size, test.err)
			}
			if err != nil && !strings.Contains(err.Error(), test.path) {
				t.Errorf("%s: error does not name the path: %v", test.path, err)
			}
		}
	}
	if _, err := c.Stat(t.Context(), "/export/dir/file/x"); !isStatus(err, StatusNotDir) {
		t.Errorf("below a file: %v", err)
	}
	if _, err := c.Stat(t.Context(), "/export/"+strings.Repeat("x", 2000)); !isStatus(err, StatusNameTooLong) {
		t.Errorf("a long name: %v", err)
	}
	n, err := c.Lstat(t.Context(), "/export/here/rel")
	if err != nil || n.Attr.Type != TypeLnk || n.Attr.FileMode().Type() != fs.ModeSymlink {
		t.Errorf("Lstat: %+v, %v", n, err)
	}
	for path, want := range map[string]string{
		"/export": "/export", "/export/dir/sub/up": "/export/dir/file", "/export/here/here/rel": "/export/dir/file",
		"/export/abs": "/export/dir/sub/deep", "/export/chain1": "/export/chain41", "/export/dirlink/deep": "/export/dir/sub/deep",
	} {
		if got, err := c.RealPath(t.Context(), path); err != nil || got != want {
			t.Errorf("%s is %s, %v, want %s", path, got, err, want)
		}
	}
	if got, err := c.RealPath(t.Context(), "/export/dangling"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a link to nothing is %s, %v", got, err)
	}
}

func names(entries []DirEntry) []string {
	var l []string
	for _, e := range entries {
		l = append(l, e.Name)
	}
	return l
}

func testReadDir(t *testing.T, b *testbed.Bed) {
	s, c := pair(t, b)
	ctx := t.Context()
	want := make([]string, 0, 100)
	for i := range 100 {
		want = append(want, fmt.Sprintf("file%03d", i))
		s.add("dir/"+want[i], TypeReg, "x")
	}
	s.add("link", TypeLnk, "dir")
	for _, page := range []int{0, 1, 7, 1000} {
		for _, bare := range []bool{false, true} {
			s.set(func() { s.page, s.bare = page, bare })
			entries, err := c.ReadDir(ctx, "/export/link")
			if err != nil || !reflect.DeepEqual(names(entries), want) {
				t.Errorf("pages of %d: %v, %v", page, names(entries), err)
			}
			for _, e := range entries {
				if !e.Attr.Present || e.Attr.Attr.Size != 1 || !e.Handle.Present {
					t.Errorf("pages of %d: %+v", page, e)
				}
			}
		}
	}
	s.set(func() { s.page, s.bare = 9, false })

	// A server without READDIRPLUS.
	s.answer(ProcReadDirPlus, &ReadDirPlusRes{Status: StatusNotSupp})
	if entries, err := c.ReadDir(ctx, "/export/dir"); err != nil || !reflect.DeepEqual(names(entries), want) {
		t.Errorf("READDIR: %v, %v", names(entries), err)
	}
	if s.count(ProcReadDir) == 0 {
		t.Error("READDIR was not used")
	}

	// A directory that changes meanwhile is read again.
	failed := false
	s.set(func() {
		s.override[ProcReadDirPlus] = func(args []byte, res *rpc.Response) bool {
			var a ReadDirPlusArgs
			if decode(args, &a) != nil || a.Cookie < 50 || failed {
				return false
			}
			failed = true
			res.Results = (&ReadDirPlusRes{Status: StatusBadCookie}).Append(res.Results)
			return true
		}
	})
	if entries, err := c.ReadDir(ctx, "/export/dir"); err != nil || !reflect.DeepEqual(names(entries), want) || !failed {
		t.Errorf("after BAD_COOKIE: %v, %v", names(entries), err)
	}
	s.answer(ProcReadDirPlus, &ReadDirPlusRes{Status: StatusBadCookie})
	if _, err := c.ReadDir(ctx, "/export/dir"); !isStatus(err, StatusBadCookie) {
		t.Errorf("BAD_COOKIE for ever: %v", err)
	}
	if _, err := c.ReadDir(ctx, "/export/dir/file000"); !isStatus(err, StatusNotDir) {
		t.Errorf("a file: %v", err)
	}
}

// Directories without end, or with invalid names.
func testHostileDirectory(t *testing.T, b *testbed.Bed) {
	s, c := pair(t, b)
	ctx := t.Context()
	c.opts.MaxDirEntries = 200
	root := s.root.handle()
	page := func(f func(cookie uint64) *ReadDirPlusRes) {
		s.set(func() {
			s.override[ProcReadDirPlus] = func(args []byte, res *rpc.Response) bool {
				var a ReadDirPlusArgs
				if decode(args, &a) != nil {
					return false
				}
				res.Results = f(a.Cookie).Append(res.Results)
				return true
			}
		})
	}
	entry := func(name string, cookie uint64) DirEntry {
		return DirEntry{Name: name, Cookie: cookie, Attr: tPostAttr, Handle: tPostFH}
	}
	for _, test := range []struct {
		name string
		f    func(cookie uint64) *ReadDirPlusRes
		err  error
		good []string // that are listed all the same
	}{
		{"a cookie that comes back", func(cookie uint64) *ReadDirPlusRes {
			return &ReadDirPlusRes{Entries: []DirEntry{entry("a", (cookie+1)%5)}}
		}, ErrDirectory, nil},
		{"the same cookie", func(uint64) *ReadDirPlusRes {
			return &ReadDirPlusRes{Entries: []DirEntry{entry("a", 7)}}
		}, ErrDirectory, nil},
		{"no end", func(cookie uint64) *ReadDirPlusRes {
			return &ReadDirPlusRes{Entries: []DirEntry{entry("a", cookie+1)}}
		}, ErrDirectory, nil},
		{"no end, and nothing but dots", func(cookie uint64) *ReadDirPlusRes {
			return &ReadDirPlusRes{Entries: []DirEntry{entry(".", cookie+1)}}
		}, ErrDirectory, nil},
		{"an empty page", func(uint64) *ReadDirPlusRes { return &ReadDirPlusRes{} }, ErrDirectory, nil},
		{"a name with '/'", func(uint64) *ReadDirPlusRes {
			return &ReadDirPlusRes{Entries: []DirEntry{entry("ok", 1), entry("../../etc/passwd", 2), entry("fine", 3)}, EOF: true}
		}, fs.ErrInvalid, []string{"fine", "ok"}},
		{"a name with NUL", func(uint64) *ReadDirPlusRes {
			return &ReadDirPlusRes{Entries: []DirEntry{entry("a\x00", 1)}, EOF: true}
		}, fs.ErrInvalid, nil},
		{"an empty name", func(uint64) *ReadDirPlusRes {
			return &ReadDirPlusRes{Entries: []DirEntry{entry("", 1)}, EOF: true}
		}, fs.ErrInvalid, nil},
	} {
		page(test.f)
		entries, err := c.ListDir(ctx, root)
		if !errors.Is(err, test.err) || !slices.Equal(names(entries), test.good) {
			t.Errorf("%s: %v, %v", test.name, names(entries), err)
		}
	}
	// "." and ".." are omitted at any position.
	page(func(uint64) *ReadDirPlusRes {
		return &ReadDirPlusRes{Entries: []DirEntry{entry("b", 1), entry("..", 2), entry("a", 3), entry(".", 4)}, EOF: true}
	})
	if entries, err := c.ListDir(ctx, root); err != nil || !reflect.DeepEqual(names(entries), []string{"a", "b"}) {
		t.Errorf("%v, %v", names(entries), err)
	}

	// An invalid name does not prevent the others from being visited.
	page(func(uint64) *ReadDirPlusRes {
		return &ReadDirPlusRes{Entries: []DirEntry{entry("a", 1), entry("x/../..", 2), entry("b", 3)}, EOF: true}
	})
	var visited []string
	if err := c.Walk(ctx, "/export", func(n Node, err error) error {
		var bad *NameError
		if errors.As(err, &bad) {
			visited = append(visited, n.Path+" has "+bad.Name)
			return nil
		}
		visited = append(visited, n.Path)
		return err
	}); err != nil || !slices.Equal(visited, []string{"/export", "/export/a", "/export/b", "/export has x/../.."}) {
		t.Errorf("Walk: %q, %v", visited, err)
	}

	// Without a bound an endless directory is detected by its cookies or by its empty pages;
	// the entries before are returned.
	count := func() (n int, err error) {
		var e DirEntry
		for e, err = range c.Entries(ctx, root) {
			if err == nil {
				if n++; n > 10_000 {
					break // it would continue forever
				}
			} else if e.Name != "" {
				t.Errorf("%q: %v", e.Name, err)
			}
		}
		return n, err
	}
	for _, cycle := range []uint64{1, 2, 100, 1000} {
		page(func(cookie uint64) *ReadDirPlusRes {
			if cookie++; cookie == cycle+20 {
				cookie = 20
			}
			return &ReadDirPlusRes{Entries: []DirEntry{entry("a", cookie)}}
		})
		if n, err := count(); !errors.Is(err, ErrDirectory) || n < int(cycle)+19 || n > 4*(int(cycle)+20) {
			t.Errorf("a cycle of %d cookies: %d entries, %v", cycle, n, err)
		}
	}
	page(func(cookie uint64) *ReadDirPlusRes {
		return &ReadDirPlusRes{Entries: []DirEntry{entry(".", cookie+1)}}
	})
	if n, err := count(); !errors.Is(err, ErrDirectory) || n != 0 {
		t.Errorf("nothing but dots: %d entries, %v", n, err)
	}

	// A large directory is in the server's order, is returned page by page, and has no bound.
	const perPage, pages = 100, 800
	sent := 0
	page(func(cookie uint64) *ReadDirPlusRes {
		r := &ReadDirPlusRes{EOF: cookie == perPage*(pages-1)}
		for i := range uint64(perPage) {
			r.Entries = append(r.Entries, entry(fmt.Sprintf("%08d", perPage*pages-cookie-i), cookie+i+1))
		}
		sent++
		return r
	})
	n, unsorted, early := 0, 0, false
	last := ""
	for e, err := range c.Entries(ctx, root) {
		if err != nil {
			t.Fatal(err)
		}
		if n++; e.Name < last {
			unsorted++
		}
		last = e.Name
		s.set(func() { early = early || n == sortedEntries && sent < pages })
	}
	if n != perPage*pages || !early || unsorted != n-(sortedEntries/perPage+1)*perPage {
		t.Errorf("%d entries, %d of them unsorted, before the end: %v", n, unsorted, early)
	}

	// A directory that contains itself.
	page(func(uint64) *ReadDirPlusRes {
		e := entry("again", 1)
		e.Handle.Handle = root
		e.Attr.Attr.Type = TypeDir
		return &ReadDirPlusRes{Entries: []DirEntry{e}, EOF: true}
	})
	if err := c.Walk(ctx, "/export", func(_ Node, err error) error { return err }); !errors.Is(err, ErrDirectory) {
		t.Errorf("Walk: %v", err)
	}
}

func testWalk(t *testing.T, b *testbed.Bed) {
	s, c := pair(t, b)
	ctx := t.Context()
	for _, p := range []string{"a/1", "a/2", "b/c/3", "b/4", "d"} {
		s.add(p, TypeReg, "x")
	}
	s.add("b/link", TypeLnk, "../a")
	walk := func(root string, on map[string]error) ([]string, error) {
		var seen []string
		err := c.Walk(ctx, root, func(n Node, err error) error {
			if err != nil {
				return err
			}
			seen = append(seen, strings.TrimPrefix(n.Path, "/export"))
			return on[n.Path]
		})
		return seen, err
	}
	all := []string{"", "/a", "/a/1", "/a/2", "/b", "/b/4", "/b/c", "/b/c/3", "/b/link", "/d"}
	sentinel := errors.New("stop")
	for _, test := range []struct {
		name string
		root string
		on   map[string]error
		want []string
		err  error
	}{
		{"all", "/export", nil, all, nil},
		{"a part", "/export/b/c", nil, []string{"/b/c", "/b/c/3"}, nil},
		{"a file", "/export/d", nil, []string{"/d"}, nil},
		{"a directory is skipped", "/export", map[string]error{"/export/b": fs.SkipDir},
			[]string{"", "/a", "/a/1", "/a/2", "/b", "/d"}, nil},
		{"the rest of a directory is skipped", "/export", map[string]error{"/export/a/1": fs.SkipDir, "/export/b/4": fs.SkipDir},
			[]string{"", "/a", "/a/1", "/b", "/b/4", "/d"}, nil},
		{"everything else is skipped", "/export", map[string]error{"/export/a/1": fs.SkipAll}, []string{"", "/a", "/a/1"}, nil},
		{"an error", "/export", map[string]error{"/export/a/1": sentinel}, []string{"", "/a", "/a/1"}, sentinel},
		{"nothing there", "/export/none", nil, nil, fs.ErrNotExist},
	} {
		seen, err := walk(test.root, test.on)
		if !reflect.DeepEqual(seen, test.want) || !errors.Is(err, test.err) || test.err == nil && err != nil {
			t.Errorf("%s: %q, %v; want %q, %v", test.name, seen, err, test.want, test.err)
		}
	}

	// A directory that cannot be listed is reported, and can be skipped.
	s.set(func() {
		b := s.root.kids["b"]
		s.override[ProcReadDirPlus] = func(args []byte, res *rpc.Response) bool {
			var a ReadDirPlusArgs
			if decode(args, &a) != nil || a.Dir != b.handle() {
				return false
			}
			res.Results = (&ReadDirPlusRes{Status: StatusAcces}).Append(res.Results)
			return true
		}
	})
	var failed []string
	err := c.Walk(ctx, "/export", func(n Node, err error) error {
		if err != nil {
			failed = append(failed, n.Path)
			if !errors.Is(err, fs.ErrPermission) {
				t.Error(err)
			}
		}
		return nil
	})
	if err != nil || !reflect.DeepEqual(failed, []string{"/export/b"}) {
		t.Errorf("%v, %v", failed, err)
	}
}

func testPathChanges(t *testing.T, b *testbed.Bed) {
	s, c := pair(t, b)
	ctx := t.Context()
	old := s.add("old", TypeReg, "contents")
	s.add("link", TypeLnk, "old")
	for _, bare := range []bool{false, true} {
		s.set(func() { s.bare = bare })
		if n, err := c.MakeDir(ctx, "/export/dir", 0o750); err != nil || n.Attr.Mode != 0o750 || !n.IsDir() {
			t.Errorf("MakeDir: %+v, %v", n, err)
		}
		if _, err := c.MakeDir(ctx, "/export/dir", 0o750); !errors.Is(err, fs.ErrExist) {
			t.Errorf("MakeDir again: %v", err)
		}
		f, err := c.CreateFile(ctx, "/export/dir/new", 0o640)
		if err != nil || f.Attr.Mode != 0o640 || f.Attr.Type != TypeReg || f.Path != "/export/dir/new" {
			t.Errorf("CreateFile: %+v, %v", f, err)
		}
		if err := c.RemovePath(ctx, "/export/dir"); !isStatus(err, StatusNotEmpty) {
			t.Errorf("RemovePath of a full directory: %v", err)
		}
		if err := c.RenamePath(ctx, "/export/dir/new", "/export/moved"); err != nil {
			t.Errorf("RenamePath: %v", err)
		}
		for _, p := range []string{"/export/dir", "/export/moved"} {
			if err := c.RemovePath(ctx, p); err != nil {
				t.Errorf("RemovePath: %v", err)
			}
			if err := c.RemovePath(ctx, p); !errors.Is(err, fs.ErrNotExist) {
				t.Errorf("RemovePath again: %v", err)
			}
		}
	}
	// An existing file is truncated, also through a link.
	if f, err := c.CreateFile(ctx, "/export/link", 0o600); err != nil || f.Handle != old.handle() || len(old.data) != 0 {
		t.Errorf("CreateFile: %+v, %v", f, err)
	}
	if err := c.RemovePath(ctx, "/export/link"); err != nil || s.root.kids["old"] == nil {
		t.Errorf("RemovePath of a link: %v", err)
	}
	if _, err := c.CreateFile(ctx, "/export/none/x", 0o600); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("CreateFile without a directory: %v", err)
	}
	if _, err := c.CreateFile(ctx, "/export", 0o600); !isStatus(err, StatusIsDir) {
		t.Errorf("CreateFile of a directory: %v", err)
	}
	if _, err := c.Open(ctx, "/export"); !isStatus(err, StatusIsDir) {
		t.Errorf("Open of a directory: %v", err)
	}
	s.add("pipe", TypeFIFO, "")
	if _, err := c.Open(ctx, "/export/pipe"); !errors.Is(err, fs.ErrInvalid) {
		t.Errorf("Open of a FIFO: %v", err)
	}
	if err := c.RemovePath(ctx, "/"); !errors.Is(err, fs.ErrInvalid) {
		t.Errorf("RemovePath of /: %v", err)
	}
}

func TestFileMode(t *testing.T) {
	for _, test := range []struct {
		attr Attr
		want string
	}{
		{Attr{Type: TypeReg, Mode: 0o644}, "-rw-r--r--"},
		{Attr{Type: TypeDir, Mode: 0o1777}, "dtrwxrwxrwx"},
		{Attr{Type: TypeReg, Mode: 0o6755}, "ugrwxr-xr-x"},
		{Attr{Type: TypeLnk, Mode: 0o777}, "Lrwxrwxrwx"},
		{Attr{Type: TypeChr, Mode: 0o600}, "Dcrw-------"},
		{Attr{Type: TypeBlk, Mode: 0o600}, "Drw-------"},
		{Attr{Type: TypeSock}, "S---------"},
		{Attr{Type: TypeFIFO}, "p---------"},
		{Attr{Type: 99}, "?---------"},
	} {
		if got := test.attr.FileMode().String(); got != test.want {
			t.Errorf("%+v: %s, want %s", test.attr, got, test.want)
		}
	}
}
