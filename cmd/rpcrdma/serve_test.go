package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/rpcrdma/rpcrdma/cmd/rpcrdma/internal/copying"
	"github.com/rpcrdma/rpcrdma/cmd/rpcrdma/internal/look"
	"github.com/rpcrdma/rpcrdma/cmd/rpcrdma/internal/tree"
	"github.com/rpcrdma/rpcrdma/internal/testing/testutil"
	"github.com/rpcrdma/rpcrdma/nfs"
	"github.com/rpcrdma/rpcrdma/rpc"
)

func randomText(seed uint64, n int) string {
	b := make([]byte, n)
	rand.NewChaCha8([32]byte{byte(seed)}).Read(b)
	return string(b)
}

// A tree is copied to a server and back, with one call in flight and with many.
func TestTreeRoundTrip(t *testing.T) {
	dir := t.TempDir()
	source := filepath.Join(dir, "source")
	files := map[string]string{
		"empty":                    "",
		"one":                      "1",
		"with space/and %41":       "2",
		"odd/\"quoted\"\n\x1b[31m": "3",
		"ünïcödé/文件":               "4",
		strings.Repeat("n", 230):   "5",
		"read-only":                "6",
		"dir/deep/deeper/deepest":  randomText(1, 65537),
		"nothing/":                 "",
		"link":                     "-> dir/deep",
		"dir/up":                   "-> ../one",
		"dir/dangling":             "-> not there",
	}
	for _, size := range []int{3, 4, 1023, 4095, 4096, 4097, 1<<20 - 1, 1 << 20, 1<<20 + 1, 3<<20 + 5} {
		files[fmt.Sprintf("sizes/%d", size)] = randomText(uint64(size), size)
	}
	testutil.WriteFiles(t, source, files)
	os.Chmod(filepath.Join(source, "read-only"), 0o444)
	os.Chmod(filepath.Join(source, "one"), 0o751)

	target := filepath.Join(dir, "target")
	os.Mkdir(target, 0o755)
	s := startServer(t, "--dir", target)
	for parallel, conns := range map[string]string{"1": "1", "32": "3"} {
		up, back := "/up"+parallel, filepath.Join(dir, "back"+parallel)
		if out := mustRun(t, "put", "-r", "-P", parallel, "--connections", conns, source, s.url(up)); out != "" {
			t.Errorf("put says %q", out)
		}
		wantTree(t, target+up, source)
		r := decodeJSON[copying.ResultJSON](t, mustRun(t, "get", "-r", "-P", parallel, "--connections", conns, "--json", s.url(up), back))
		wantTree(t, back, source)
		if r.Files != 18 || r.Links != 3 || r.Directories != 8 || r.Skipped != 0 || r.Stats.WriteChunk == 0 {
			t.Errorf("get -r -P %s: %+v", parallel, r)
		}
	}
	// The second time everything exists already.
	r := decodeJSON[copying.ResultJSON](t, mustRun(t, "put", "-r", "--json", source, s.url("/up1")))
	wantTree(t, target+"/up1", source)
	if r.Stats.ReadChunk == 0 {
		t.Errorf("put: %+v", r)
	}
}

// A directory that is put into itself through a local server is copied as it was before.
func TestPutIntoItself(t *testing.T) {
	dir, was := t.TempDir(), t.TempDir()
	files := map[string]string{"one": "1", "sub/two": "2", "sub/link": "-> two", "empty/": ""}
	testutil.WriteFiles(t, dir, files)
	testutil.WriteFiles(t, was, files)
	s := startServer(t, "--dir", dir)
	mustRun(t, "put", "-r", dir, s.url("/sub/copy"))
	wantTree(t, filepath.Join(dir, "sub", "copy"), was)
	mustRun(t, "put", "-r", dir, s.url("/"))
	wantTree(t, filepath.Join(dir, "sub", "copy"), was)
}

// Directories of thousands of files are read page by page.
func TestLargeDirectory(t *testing.T) {
	dir := t.TempDir()
	var want strings.Builder
	for i := range 3000 {
		name := fmt.Sprintf("%s-%04d", strings.Repeat("x", i%40), i)
		if err := os.WriteFile(filepath.Join(dir, name), nil, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		fmt.Fprintln(&want, e.Name())
	}
	s := startServer(t, "--dir", dir, "--read-only")
	if got := mustRun(t, "ls", s.url("/")); got != want.String() {
		t.Errorf("%d bytes of names, want %d", len(got), want.Len())
	}
	c := s.dialNFS(t)
	if all, err := c.ReadDir(t.Context(), "/"); err != nil || len(all) != len(entries) || c.Transport().Stats().ReplyChunk == 0 {
		t.Errorf("READDIRPLUS has %d names, want %d, %v, %d in reply chunks", len(all), len(entries), err, c.Transport().Stats().ReplyChunk)
	}
	// READDIR, in the smallest pages.
	var res nfs.ReadDirRes
	names, cookie, verf := 0, uint64(0), nfs.Verf{}
	for fh := root(t, c); !res.EOF; {
		if err := c.ReadDirNames(t.Context(), &nfs.ReadDirArgs{Dir: fh, Cookie: cookie, Verf: verf, Count: 4096}, &res); err != nil {
			t.Fatal(err)
		}
		for _, e := range res.Entries {
			cookie = e.Cookie
			if e.Name != "." && e.Name != ".." {
				names++
			}
		}
		verf = res.Verf
	}
	if names != len(entries) {
		t.Errorf("READDIR has %d names, want %d", names, len(entries))
	}
}

func TestLs(t *testing.T) {
	dir := t.TempDir()
	testutil.WriteFiles(t, dir, map[string]string{"file": "12345", "dir/inner": "x", "link": "-> file", "a\nb": ""})
	os.Chmod(filepath.Join(dir, "file"), 0o640)
	s := startServer(t, "--dir", dir)
	for _, tt := range []struct{ args, want string }{
		{"/", "\"a\\nb\"\ndir/\nfile\nlink\n"},
		{"/dir", "inner\n"},
		{"/dir/inner", "inner\n"},
		{"/file", "file\n"},
		{"/link", "link\n"},
		{"-r /", "\"a\\nb\"\ndir/\ndir/inner\nfile\nlink\n"},
	} {
		args := strings.Fields(tt.args)
		args[len(args)-1] = s.url(args[len(args)-1])
		if got := mustRun(t, append([]string{"ls"}, args...)...); got != tt.want {
			t.Errorf("ls %s prints %q, want %q", tt.args, got, tt.want)
		}
	}
	long := mustRun(t, "ls", "-l", s.url("/"))
	for _, want := range []string{"-rw-r-----   1 ", " 5 2", "lrwxrwxrwx ", " link -> file\n", "drwxr-xr-x ", " dir/\n"} {
		if !strings.Contains(long, want) {
			t.Errorf("ls -l lacks %q:\n%s", want, long)
		}
	}
	type listing struct {
		URL     string           `json:"url"`
		Entries []tree.EntryJSON `json:"entries"`
	}
	l := decodeJSON[listing](t, mustRun(t, "ls", "--json", "-r", s.url("/")))
	if len(l.Entries) != 5 || l.Entries[4].Target != "file" || l.Entries[3].Size != 5 || l.Entries[3].Mode != "-rw-r-----" || l.Entries[1].Type != "directory" {
		t.Errorf("ls --json -r: %+v", l)
	}
	if l := decodeJSON[listing](t, mustRun(t, "ls", "--json", s.url("/dir"))); len(l.Entries) != 1 || l.URL != s.url("/dir") {
		t.Errorf("ls --json: %+v", l)
	}
}

func TestFileRoundTrip(t *testing.T) {
	dir, local := t.TempDir(), t.TempDir()
	testutil.WriteFiles(t, dir, map[string]string{"file": "contents", "there/": ""})
	testutil.WriteFiles(t, local, map[string]string{"new": "new contents", "dir/": ""})
	s := startServer(t, "--dir", dir, "--async")
	in := func(name string) string { return filepath.Join(local, name) }
	want := func(name, text string) {
		t.Helper()
		if b, err := os.ReadFile(name); err != nil || string(b) != text {
			t.Errorf("%s: %q, %v, want %q", name, b, err, text)
		}
	}
	mustRun(t, "get", s.url("/file"), in("copy"))
	want(in("copy"), "contents")
	mustRun(t, "get", s.url("/file"), in("dir"))
	want(in("dir/file"), "contents")
	mustRun(t, "get", "-r", s.url("/file"), in("copy2"))
	want(in("copy2"), "contents")
	mustRun(t, "put", in("new"), s.url("/file"))
	want(filepath.Join(dir, "file"), "new contents")
	mustRun(t, "get", s.url("/file"), in("copy"))
	want(in("copy"), "new contents")
	mustRun(t, "put", in("new"), s.url("/there"))
	want(filepath.Join(dir, "there/new"), "new contents")
	mustRun(t, "put", in("new"), s.url("/there/renamed%20file"))
	want(filepath.Join(dir, "there/renamed file"), "new contents")

	// A directory below the export can be mounted.
	c := s.dialNFS(t)
	fh, err := c.Mnt(t.Context(), "/there")
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err := c.Lookup(t.Context(), fh, "new"); err != nil {
		t.Error(err)
	}
	for path, want := range map[string]nfs.MountStatus{"/nowhere": nfs.MountNoEnt, "/file": nfs.MountNotDir} {
		_, err := c.Mnt(t.Context(), path)
		var me *nfs.MountError
		if !errors.As(err, &me) || me.Status != want {
			t.Errorf("MNT %s: %v, want %v", path, err, want)
		}
	}
}

func TestMessages(t *testing.T) {
	dir, local := t.TempDir(), t.TempDir()
	testutil.WriteFiles(t, dir, map[string]string{
		"file": "x", "dir/file": "x", "way/file/": "", "loop": "-> loop", "away": "-> /etc", "dangling": "-> nowhere",
	})
	testutil.WriteFiles(t, local, map[string]string{"file": "x", "dir/file": "x"})
	s := startServer(t, "--dir", dir)
	lost := startProxy(t, "127.0.0.1:1", 0, true) // no server listens there
	in := func(name string) string { return filepath.Join(local, name) }
	for _, tt := range []struct {
		status int
		text   string
		args   []string
	}{
		{1, "get " + s.url("/nope") + ": no such file (NFS3ERR_NOENT)", []string{"get", s.url("/nope"), in("x")}},
		{1, "not a directory (NFS3ERR_NOTDIR)", []string{"get", s.url("/file/x"), in("x")}},
		{1, "is a directory (-r copies it)", []string{"get", s.url("/dir"), in("x")}},
		{1, "too many symbolic links", []string{"get", s.url("/loop"), in("x")}},
		{1, "no such file", []string{"get", s.url("/dangling"), in("x")}},
		{1, "local file " + in("no/such") + ": no such file or directory", []string{"get", s.url("/file"), in("no/such/dir")}},
		{1, "file: not a directory", []string{"get", "-r", s.url("/dir"), in("file")}},
		{1, "is a directory", []string{"put", in("dir"), s.url("/x")}},
		{1, "no such file or directory", []string{"put", in("nope"), s.url("/x")}},
		{1, "no such file (NFS3ERR_NOENT)", []string{"put", in("file"), s.url("/no/such/dir")}},
		{1, "no such file (NFS3ERR_NOENT)", []string{"put", in("file"), s.url("/nope/")}},
		{1, "not a directory (NFS3ERR_NOTDIR)", []string{"put", in("file"), s.url("/file/")}},
		{1, "not a directory (NFS3ERR_NOTDIR)", []string{"put", "-r", in("dir"), s.url("/file")}},
		{1, "ls " + s.url("/nope") + ": no such file", []string{"ls", s.url("/nope")}},
		{1, "connection refused", []string{"ls", "nfs://127.0.0.1:1/"}},
		{1, "connection refused", []string{"ping", "127.0.0.1:1"}},
		{1, "probe: no connection to " + lost.addr, []string{"probe", lost.addr}},
		{1, "version 3 only, not 4 (PROG_MISMATCH)", []string{"ping", "--vers", "4", s.addr}},
		{1, "the server does not have program 300000 (PROG_UNAVAIL)", []string{"ping", "--prog", "300000", s.addr}},
		{1, "no such file or directory", []string{"serve", "--dir", in("nope"), "--addr", "127.0.0.1:0"}},
		{1, "serve: listening on " + s.addr + ": address already in use: stop what has it, or give ", []string{"serve", "--dir", dir, "--addr", s.addr}},
		{1, "serve: listening on " + s.addr + ": address already in use: stop what has it, or give ", []string{"serve", "--dir", dir, "--addr", "127.0.0.1:0", "--tcp-addr", s.addr}},
		{1, "serve: listening on nobody.invalid:1: no such host: check the name, or give an address\n", []string{"serve", "--dir", dir, "--addr", "nobody.invalid:1"}},
		{2, "want nfs://HOST[:PORT]/EXPORT/PATH", []string{"ls", "somewhere"}},
		{2, "want nfs://HOST[:PORT]/EXPORT/PATH", []string{"ls", s.addr + "/"}},
		{2, "want nfs://HOST[:PORT]/EXPORT/PATH", []string{"ls", "http://host/"}},
		{2, "want iwarp, rdma, auto or tcp", []string{"ping", "--provider", "carrier-pigeon", s.addr}},
		{2, "want HOST or HOST:PORT", []string{"ping", "::1:x:20049"}},
		{2, "want HOST or HOST:PORT", []string{"probe", ""}},
		{1, "ping: no connection to nobody.invalid:20049 over iwarp: no such host", []string{"ping", "nobody.invalid"}},
		{1, "no connection to nobody.invalid:20049", []string{"bench", "nobody.invalid"}},
		{2, "- is not for -r and --json", []string{"get", "-r", s.url("/dir"), "-"}},
		{1, "is a directory", []string{"get", s.url("/dir"), "-"}},
		{2, "--count is 0", []string{"ping", "-c", "0", s.addr}},
		{2, "--parallel is 0", []string{"get", "-P", "0", s.url("/file"), in("x")}},
		{2, "want 1 to 64", []string{"get", "--connections", "0", s.url("/file"), in("x")}},
		{2, "want 1 to 64", []string{"bench", "--connections", "65", s.addr}},
		{2, "argument URL is missing", []string{"get"}},
		{2, "--dir DIR is missing", []string{"serve"}},
		{2, "unknown flag", []string{"put", "--no-such-flag"}},
	} {
		mustFail(t, tt.status, tt.text, tt.args...)
	}
	mustSkip(t, []string{"file skipped: a local file is in the way of this directory"}, "get", "-r", s.url("/way"), in("dir"))
	// Everything else is copied.
	r := runCommand(t, "get", "-r", s.url("/"), in("all"))
	for _, want := range []string{"away skipped: it is a link that leads out, to /etc\n", ": 1 thing was skipped, everything else is copied\n"} {
		if r.status != 1 || !strings.Contains(r.stderr, want) {
			t.Errorf("get -r: status %d, lacks %q:\n%s", r.status, want, r.stderr)
		}
	}
	if len(describe(t, in("all"))) != 7 {
		t.Errorf("copied: %q", describe(t, in("all")))
	}
	os.Remove(filepath.Join(dir, "fifo"))
	os.Remove(filepath.Join(dir, "away"))
	// -v logs the connection.
	if r := runCommand(t, "ls", "-v", s.url("/")); r.status != 0 || !strings.Contains(r.stderr, "msg=connected provider=iwarp") || !strings.Contains(r.stderr, "msg=statistics calls=") {
		t.Errorf("ls -v: status %d\n%s", r.status, r.stderr)
	}
}

func TestPingAndProbe(t *testing.T) {
	s := startServer(t, "--dir", t.TempDir())
	out := mustRun(t, "ping", "-c", "20", s.addr)
	if !strings.Contains(out, "20 NULL calls to NFS version 3 at "+s.addr+" over iwarp\nmin ") {
		t.Errorf("ping prints\n%s", out)
	}
	mustRun(t, "ping", "--prog", "0x20524442", "--vers", "1", "-c", "1", s.addr)
	mustRun(t, "ping", "--prog", "100005", s.addr)
	p := decodeJSON[struct {
		Address  string  `json:"address"`
		Provider string  `json:"provider"`
		Program  uint32  `json:"program"`
		Version  uint32  `json:"version"`
		RDMA     uint32  `json:"rdma_version"`
		Calls    int     `json:"calls"`
		Min      float64 `json:"min_us"`
		Median   float64 `json:"median_us"`
		P99      float64 `json:"p99_us"`
		Max      float64 `json:"max_us"`
	}](t, mustRun(t, "ping", "--json", "-c", "50", s.addr))
	if p.RDMA != 2 || p.Calls != 50 || p.Min <= 0 || p.Min > p.Median || p.Median > p.P99 || p.P99 > p.Max {
		t.Errorf("ping --json: %+v", p)
	}

	out = mustRun(t, "probe", s.addr)
	for _, want := range []string{"provider ", "iwarp\n", "private data ", "remote invalidation ", "credits granted "} {
		if !strings.Contains(out, want) {
			t.Errorf("probe lacks %q:\n%s", want, out)
		}
	}
	mustRun(t, "ping", "--version", "2", s.addr)
	if i := decodeJSON[look.InfoJSON](t, mustRun(t, "probe", "--json", "--version", "1", s.addr)); i.Version != 1 || i.Properties {
		t.Errorf("probe --version 1: %+v", i)
	}
	mustFail(t, 2, "want auto, 1 or 2", "probe", "--version", "3", s.addr)
	i := decodeJSON[look.InfoJSON](t, mustRun(t, "probe", "--json", s.addr))
	if i.Provider != "iwarp" || i.Version != 2 || !i.Properties || !i.PrivateData || i.InlineSend != 4096 || i.InlineRecv != 4096 || i.Credits <= 1 || i.Remote != s.addr || i.NullCall != "answered" {
		t.Errorf("probe --json: %+v", i)
	}
}

// A read-only server refuses every change with NFS3ERR_ROFS.
func TestReadOnly(t *testing.T) {
	dir, local := t.TempDir(), t.TempDir()
	testutil.WriteFiles(t, dir, map[string]string{"file": "x", "dir/": "", "link": "-> file"})
	testutil.WriteFiles(t, local, map[string]string{"file": "y"})
	before := describe(t, dir)
	s := startServer(t, "--dir", dir, "--read-only")
	mustFail(t, 1, "the server is read-only (NFS3ERR_ROFS)", "put", filepath.Join(local, "file"), s.url("/file"))
	mustFail(t, 1, "the server is read-only (NFS3ERR_ROFS)", "put", "-r", local, s.url("/new"))

	c, ctx := s.dialNFS(t), t.Context()
	top := root(t, c)
	file, _, err := c.Lookup(ctx, top, "file")
	if err != nil {
		t.Fatal(err)
	}
	changes := map[string]func() error{
		"SETATTR": func() error { return c.SetAttr(ctx, file, &nfs.SetAttr{SetSize: true}) },
		"WRITE":   func() error { _, err := c.Write(ctx, file, 0, []byte("z"), nfs.Unstable); return err },
		"CREATE": func() error {
			_, _, err := c.Create(ctx, &nfs.CreateArgs{Where: nfs.DirOpArgs{Dir: top, Name: "new"}})
			return err
		},
		"MKDIR":   func() error { _, _, err := c.Mkdir(ctx, top, "new", &nfs.SetAttr{}); return err },
		"SYMLINK": func() error { _, _, err := c.Symlink(ctx, top, "new", "x", &nfs.SetAttr{}); return err },
		"REMOVE":  func() error { return c.Remove(ctx, top, "file") },
		"RMDIR":   func() error { return c.Rmdir(ctx, top, "dir") },
		"RENAME":  func() error { return c.Rename(ctx, top, "file", top, "new") },
		"LINK":    func() error { return c.Link(ctx, file, top, "new") },
		"COMMIT":  func() error { _, err := c.Commit(ctx, file, 0, 0); return err },

		// NFS3ERR_ROFS comes before errors in the arguments.
		"REMOVE of nothing":     func() error { return c.Remove(ctx, top, "nothing") },
		"REMOVE of a directory": func() error { return c.Remove(ctx, top, "dir") },
		"RMDIR of a file":       func() error { return c.Rmdir(ctx, top, "file") },
	}
	for name, change := range changes {
		wantStatus(t, name, change(), nfs.StatusROFS)
	}
	access, err := c.Access(ctx, file, nfs.AccessRead|nfs.AccessModify|nfs.AccessExtend|nfs.AccessDelete)
	if err != nil || access != nfs.AccessRead {
		t.Errorf("ACCESS grants %#x, %v", access, err)
	}
	after := describe(t, dir)
	for name := range before {
		if before[name] != after[name] {
			t.Errorf("%s has changed", name)
		}
	}
	if len(after) != len(before) {
		t.Errorf("%d things, %d before", len(after), len(before))
	}
}

func wantStatus(t *testing.T, what string, err error, want nfs.Status) {
	t.Helper()
	if want == nfs.StatusOK {
		if err != nil {
			t.Errorf("%s: %v", what, err)
		}
		return
	}
	var e *nfs.Error
	if !errors.As(err, &e) || e.Status != want {
		t.Errorf("%s: %v, want %v", what, err, want)
	}
}

// No name, link or handle leads out of the directory.
func TestEscape(t *testing.T) {
	dir := t.TempDir()
	export := filepath.Join(dir, "export")
	const secret = "what nobody outside may read"
	testutil.WriteFiles(t, dir, map[string]string{
		"secret":              secret,
		"outside/secret":      secret,
		"export/file":         "open",
		"export/dir/file":     "open",
		"export/absolute":     "-> " + filepath.Join(dir, "secret"),
		"export/relative":     "-> ../secret",
		"export/dir/relative": "-> ../../secret",
		"export/chain":        "-> dir/chain",
		"export/dir/chain":    "-> ../chain2",
		"export/chain2":       "-> ../outside/secret",
		"export/outside":      "-> ../outside",
		"export/inside":       "-> dir",
	})
	s := startServer(t, "--dir", export)
	c, ctx := s.dialNFS(t), t.Context()
	top := root(t, c)
	lookup := func(dir nfs.FileHandle, name string) nfs.FileHandle {
		t.Helper()
		fh, _, err := c.Lookup(ctx, dir, name)
		if err != nil {
			t.Fatalf("LOOKUP %q: %v", name, err)
		}
		return fh
	}
	inner := lookup(top, "dir")

	if up := lookup(top, ".."); up != top {
		t.Error("LOOKUP .. of the root is not the root")
	}
	if up := lookup(inner, ".."); up != top {
		t.Error("LOOKUP .. of a directory is not its parent")
	}
	for _, name := range []string{"../secret", "/etc/passwd", "dir/../../secret", "outside/secret", "", "a\x00b", "./file", "dir/"} {
		_, _, err := c.Lookup(ctx, top, name)
		wantStatus(t, fmt.Sprintf("LOOKUP %q", name), err, nfs.StatusInval)
		_, _, err = c.Create(ctx, &nfs.CreateArgs{Where: nfs.DirOpArgs{Dir: top, Name: name}})
		wantStatus(t, fmt.Sprintf("CREATE %q", name), err, nfs.StatusInval)
		_, _, err = c.Mkdir(ctx, top, name, &nfs.SetAttr{})
		wantStatus(t, fmt.Sprintf("MKDIR %q", name), err, nfs.StatusInval)
		_, _, err = c.Symlink(ctx, top, name, "x", &nfs.SetAttr{})
		wantStatus(t, fmt.Sprintf("SYMLINK %q", name), err, nfs.StatusInval)
		wantStatus(t, fmt.Sprintf("REMOVE %q", name), c.Remove(ctx, top, name), nfs.StatusInval)
		wantStatus(t, fmt.Sprintf("RMDIR %q", name), c.Rmdir(ctx, top, name), nfs.StatusInval)
		wantStatus(t, fmt.Sprintf("RENAME to %q", name), c.Rename(ctx, top, "file", top, name), nfs.StatusInval)
		wantStatus(t, fmt.Sprintf("RENAME from %q", name), c.Rename(ctx, top, name, top, "new"), nfs.StatusInval)
	}
	wantStatus(t, "RENAME to ..", c.Rename(ctx, top, "file", top, ".."), nfs.StatusInval)
	wantStatus(t, "RMDIR .", c.Rmdir(ctx, top, "."), nfs.StatusInval)
	wantStatus(t, "REMOVE ..", c.Remove(ctx, inner, ".."), nfs.StatusInval)

	for _, name := range []string{"absolute", "relative", "chain", "chain2"} {
		link := lookup(top, name)
		attr, err := c.GetAttr(ctx, link)
		if err != nil || attr.Type != nfs.TypeLnk {
			t.Errorf("GETATTR %s: %v, %v, want a link", name, attr.Type, err)
		}
		if target, err := c.ReadLink(ctx, link); err != nil || !strings.Contains(target, "secret") && !strings.Contains(target, "chain") {
			t.Errorf("READLINK %s: %q, %v", name, target, err)
		}
		_, _, err = c.Read(ctx, link, 0, make([]byte, 100))
		wantStatus(t, "READ of link "+name, err, nfs.StatusInval)
		_, err = c.Write(ctx, link, 0, []byte("overwritten"), nfs.FileSync)
		wantStatus(t, "WRITE to link "+name, err, nfs.StatusInval)
		if err := c.SetAttr(ctx, link, &nfs.SetAttr{SetSize: true}); err == nil {
			t.Errorf("SETATTR of link %s changes a size", name)
		}
		_ = c.SetAttr(ctx, link, &nfs.SetAttr{SetMode: true, Mode: 0o777})
		_, _, err = c.Create(ctx, &nfs.CreateArgs{Where: nfs.DirOpArgs{Dir: top, Name: name}, Attr: nfs.SetAttr{SetSize: true}})
		if err == nil {
			t.Errorf("CREATE over link %s succeeds", name)
		}
	}
	// A link to a directory is not a directory.
	for _, name := range []string{"outside", "inside"} {
		link := lookup(top, name)
		_, _, err := c.Lookup(ctx, link, "secret")
		wantStatus(t, "LOOKUP in link "+name, err, nfs.StatusNotDir)
		_, err = c.ListDir(ctx, link)
		wantStatus(t, "READDIRPLUS of link "+name, err, nfs.StatusNotDir)
		_, _, err = c.Create(ctx, &nfs.CreateArgs{Where: nfs.DirOpArgs{Dir: link, Name: "new"}})
		if name == "outside" && err == nil {
			t.Errorf("CREATE in link %s succeeds", name)
		}
		_, err = c.Mnt(ctx, "/"+name)
		var me *nfs.MountError
		if !errors.As(err, &me) || me.Status != nfs.MountNotDir {
			t.Errorf("MNT of link %s: %v", name, err)
		}
	}
	if _, err := c.Mnt(ctx, "/outside/"); err == nil {
		t.Error("MNT /outside/ succeeds")
	}
	if _, err := c.Mnt(ctx, "/../outside"); err == nil {
		t.Error("MNT /../outside succeeds")
	}

	// Forged handles are refused.
	file := lookup(top, "file")
	b := file.Bytes()
	for i := range b {
		forged := append([]byte(nil), b...)
		forged[i] ^= 0x80
		fh, _ := nfs.NewFileHandle(forged)
		_, err := c.GetAttr(ctx, fh)
		want := nfs.StatusStale
		if i == 0 {
			want = nfs.StatusBadHandle // the version
		}
		wantStatus(t, "GETATTR of a forged handle", err, want)
	}
	for _, n := range []int{0, 1, 15, 17, 64} {
		fh, _ := nfs.NewFileHandle(make([]byte, n))
		_, err := c.GetAttr(ctx, fh)
		wantStatus(t, "GETATTR of a handle of another size", err, nfs.StatusBadHandle)
	}

	// A local process replaces a directory by a link that leads out.
	innerFile := lookup(inner, "file")
	if err := os.Rename(filepath.Join(export, "dir"), filepath.Join(export, "was-dir")); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("../outside", filepath.Join(export, "dir")); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "outside", "file"), []byte(secret), 0o644); err != nil {
		t.Fatal(err)
	}
	// Handles stay with their files, and the link is a link.
	buf := make([]byte, 100)
	if n, _, err := c.Read(ctx, innerFile, 0, buf); err != nil || string(buf[:n]) != "open" {
		t.Errorf("READ of a file in an exchanged directory: %q, %v", buf[:n], err)
	}
	if _, err := c.Write(ctx, innerFile, 0, []byte("more"), nfs.FileSync); err != nil {
		t.Error(err)
	}
	if b, err := os.ReadFile(filepath.Join(export, "was-dir", "file")); err != nil || string(b) != "more" {
		t.Errorf("WRITE through an exchanged directory: the file is %q, %v", b, err)
	}
	if _, _, err := c.Mkdir(ctx, inner, "new", &nfs.SetAttr{}); err != nil {
		t.Error(err)
	}
	if _, err := os.Lstat(filepath.Join(export, "was-dir", "new")); err != nil {
		t.Errorf("MKDIR through an exchanged directory: %v", err)
	}
	exchanged := lookup(top, "dir")
	_, _, err := c.Lookup(ctx, exchanged, "file")
	wantStatus(t, "LOOKUP through an exchanged directory", err, nfs.StatusNotDir)
	wantStatus(t, "REMOVE through an exchanged directory", c.Remove(ctx, exchanged, "file"), nfs.StatusNotDir)
	_, _, err = c.Mkdir(ctx, exchanged, "new", &nfs.SetAttr{})
	wantStatus(t, "MKDIR through an exchanged directory", err, nfs.StatusNotDir)
	wantStatus(t, "RENAME through an exchanged directory", c.Rename(ctx, top, "file", exchanged, "file"), nfs.StatusNotDir)

	// The client follows links in URLs, and stays inside, too.
	mustFail(t, 1, "symbolic link leaves the export", "get", s.url("/relative"), filepath.Join(dir, "out"))
	mustFail(t, 1, "symbolic link leaves the export", "ls", s.url("/outside/"))
	for _, name := range []string{"secret", "outside/secret", "outside/file"} {
		if b, err := os.ReadFile(filepath.Join(dir, name)); err != nil || string(b) != secret {
			t.Errorf("%s is %q now, %v", name, b, err)
		}
	}
	if info, err := os.Stat(filepath.Join(dir, "secret")); err != nil || info.Mode().Perm() != 0o644 {
		t.Errorf("secret has mode %v, %v", info.Mode(), err)
	}
}

// Existing links in a local tree do not lead a get out of it.
func TestGetStaysInLocal(t *testing.T) {
	dir, local := t.TempDir(), t.TempDir()
	testutil.WriteFiles(t, dir, map[string]string{"sub/file": "from the server", "top": "from the server"})
	testutil.WriteFiles(t, local, map[string]string{
		"outside/file": "mine", "mine": "mine",
		"copy/sub": "-> ../outside", "copy2/top": "-> ../mine",
	})
	s := startServer(t, "--dir", dir)
	mustSkip(t, []string{"sub skipped: local file sub: path escapes from parent"}, "get", "-r", s.url("/"), filepath.Join(local, "copy"))
	mustRun(t, "get", "-r", s.url("/"), filepath.Join(local, "copy2")) // replaces the link
	for _, name := range []string{"outside/file", "mine"} {
		if b, err := os.ReadFile(filepath.Join(local, name)); err != nil || string(b) != "mine" {
			t.Errorf("%s is %q now, %v", name, b, err)
		}
	}
}

// Procedures that the commands do not use.
func TestProcedures(t *testing.T) {
	dir := t.TempDir()
	testutil.WriteFiles(t, dir, map[string]string{"file": "0123456789", "dir/file": "x"})
	s := startServer(t, "--dir", dir)
	c, ctx := s.dialNFS(t), t.Context()
	top := root(t, c)
	where := func(name string) nfs.DirOpArgs { return nfs.DirOpArgs{Dir: top, Name: name} }

	info, err := c.FSInfo(ctx, top)
	if err != nil || info.RTMax != 1<<20 || info.WTPref != 1<<20 || info.Properties&nfs.FSFLink == 0 || info.Properties&nfs.FSFSymlink == 0 {
		t.Errorf("FSINFO: %+v, %v", info, err)
	}
	stat, err := c.FSStat(ctx, top)
	if err != nil || stat.TotalBytes == 0 || stat.TotalBytes == 1<<62 || stat.Invarsec != 0 {
		t.Errorf("FSSTAT: %+v, %v", stat, err)
	}
	if conf, err := c.PathConf(ctx, top); err != nil || conf.NameMax != 255 {
		t.Errorf("PATHCONF: %+v, %v", conf, err)
	}
	own, err := os.Stat(dir) // by the umask
	testutil.Must(t, err)
	if attr, err := c.GetAttr(ctx, top); err != nil || attr.Type != nfs.TypeDir || attr.Mode != uint32(own.Mode().Perm()) {
		t.Errorf("GETATTR: %v %#o, %v", attr.Type, attr.Mode, err)
	}

	// CREATE truncates a file only if it has a size.
	fh, _, err := c.Create(ctx, &nfs.CreateArgs{Where: where("file")})
	if err != nil {
		t.Fatal(err)
	}
	if attr, err := c.GetAttr(ctx, fh); err != nil || attr.Size != 10 {
		t.Errorf("CREATE of a file that is there leaves %d bytes, %v", attr.Size, err)
	}
	_, _, err = c.Create(ctx, &nfs.CreateArgs{Where: where("file"), Mode: nfs.Guarded})
	wantStatus(t, "guarded CREATE", err, nfs.StatusExist)
	_, _, err = c.Create(ctx, &nfs.CreateArgs{Where: where("new"), Mode: nfs.Exclusive})
	wantStatus(t, "exclusive CREATE", err, nfs.StatusOK)
	_, _, err = c.Create(ctx, &nfs.CreateArgs{Where: where("dir"), Mode: nfs.Unchecked})
	wantStatus(t, "CREATE over a directory", err, nfs.StatusExist)
	_, _, err = c.Create(ctx, &nfs.CreateArgs{Where: where(strings.Repeat("x", 256))})
	wantStatus(t, "CREATE with a long name", err, nfs.StatusNameTooLong)
	if _, _, err := c.Create(ctx, &nfs.CreateArgs{Where: where("read-only"), Attr: nfs.SetAttr{SetMode: true, Mode: 0o400}}); err != nil {
		t.Error(err)
	}

	// The server commits as stably as it was asked to.
	res, err := c.Write(ctx, fh, 10, []byte("abc"), nfs.Unstable)
	if err != nil || res.Count != 3 || res.Committed != nfs.Unstable {
		t.Errorf("unstable WRITE: %+v, %v", res, err)
	}
	verf, err := c.Commit(ctx, fh, 0, 0)
	if err != nil || verf != res.Verf {
		t.Errorf("COMMIT: verifier %x, the WRITE's is %x, %v", verf, res.Verf, err)
	}
	if res, err := c.Write(ctx, fh, 1<<20, []byte("end"), nfs.FileSync); err != nil || res.Committed != nfs.FileSync {
		t.Errorf("stable WRITE: %+v, %v", res, err)
	}
	buf := make([]byte, 2<<20)
	if n, eof, err := c.Read(ctx, fh, 0, buf); err != nil || n != 1<<20 || eof || string(buf[:13]) != "0123456789abc" {
		t.Errorf("long READ: %d bytes, end %v, %v", n, eof, err)
	}
	if n, eof, err := c.Read(ctx, fh, 1<<40, buf); err != nil || n != 0 || !eof {
		t.Errorf("READ behind the end: %d bytes, end %v, %v", n, eof, err)
	}
	if n, eof, err := c.Read(ctx, fh, 1<<63, buf); err != nil || n != 0 || !eof {
		t.Errorf("READ at 1<<63: %d bytes, end %v, %v", n, eof, err)
	}
	_, err = c.Write(ctx, fh, 1<<63-2, []byte("abc"), nfs.Unstable)
	wantStatus(t, "WRITE at 1<<63-2", err, nfs.StatusFBig)

	var refused *nfs.Error
	if err := c.SetAttr(ctx, fh, &nfs.SetAttr{SetSize: true, Size: 1<<63 - 1}); err != nil && !errors.As(err, &refused) {
		t.Errorf("SETATTR of a size that no disk has: %v", err)
	} else if err == nil {
		c.SetAttr(ctx, fh, &nfs.SetAttr{SetSize: true, Size: 1<<20 + 3})
	}
	err = c.SetAttr(ctx, fh, &nfs.SetAttr{SetSize: true, Size: 1 << 63})
	wantStatus(t, "SETATTR of size 1<<63", err, nfs.StatusFBig)

	// Handles follow renames, and become stale with the file.
	if err := c.Rename(ctx, top, "file", top, "renamed"); err != nil {
		t.Fatal(err)
	}
	if attr, err := c.GetAttr(ctx, fh); err != nil || attr.Size != 1<<20+3 {
		t.Errorf("after RENAME: %d bytes, %v", attr.Size, err)
	}
	if err := c.Remove(ctx, top, "renamed"); err != nil {
		t.Fatal(err)
	}
	_, err = c.GetAttr(ctx, fh)
	wantStatus(t, "GETATTR after REMOVE", err, nfs.StatusStale)
	_, _, err = c.Lookup(ctx, top, "renamed")
	wantStatus(t, "LOOKUP after REMOVE", err, nfs.StatusNoEnt)

	wantStatus(t, "REMOVE of a directory", c.Remove(ctx, top, "dir"), nfs.StatusIsDir)
	wantStatus(t, "RMDIR of a file", c.Rmdir(ctx, top, "read-only"), nfs.StatusNotDir)
	wantStatus(t, "RMDIR of a full directory", c.Rmdir(ctx, top, "dir"), nfs.StatusNotEmpty)
	wantStatus(t, "REMOVE of nothing", c.Remove(ctx, top, "nothing"), nfs.StatusNoEnt)
	wantStatus(t, "RENAME of nothing", c.Rename(ctx, top, "nothing", top, "x"), nfs.StatusNoEnt)
	wantStatus(t, "RENAME over a directory", c.Rename(ctx, top, "read-only", top, "dir"), nfs.StatusIsDir)
	wantStatus(t, "LINK", c.Link(ctx, fhOf(t, c, top, "read-only"), top, "x"), nfs.StatusOK)
	_, _, err = c.Mkdir(ctx, top, "dir", &nfs.SetAttr{})
	wantStatus(t, "MKDIR over a directory", err, nfs.StatusExist)
	_, _, err = c.Mkdir(ctx, top, "read-only", &nfs.SetAttr{})
	wantStatus(t, "MKDIR over a file", err, nfs.StatusExist)
	_, _, err = c.Symlink(ctx, top, "link", strings.Repeat("x", 4096), &nfs.SetAttr{})
	wantStatus(t, "SYMLINK to a long path", err, nfs.StatusNameTooLong)
	target := strings.Repeat("x", 3000)
	link, _, err := c.Symlink(ctx, top, "link", target, &nfs.SetAttr{})
	if err != nil {
		t.Fatal(err)
	}
	if got, err := c.ReadLink(ctx, link); err != nil || got != target {
		t.Errorf("READLINK: %d bytes, %v", len(got), err)
	}
	sub, _, err := c.Mkdir(ctx, top, "sub", &nfs.SetAttr{})
	if err != nil {
		t.Fatal(err)
	}
	if attr, err := c.GetAttr(ctx, sub); err != nil || attr.Mode != 0o777 {
		t.Errorf("MKDIR without a mode gives %#o, %v", attr.Mode, err)
	}

	// MOUNT's lists.
	if exports, err := c.Exports(ctx); err != nil || len(exports) != 1 || exports[0].Dir != "/" {
		t.Errorf("EXPORT: %+v, %v", exports, err)
	}
	if mounts, err := c.Mounts(ctx); err != nil || len(mounts) != 1 || mounts[0].Dir != "/" {
		t.Errorf("DUMP: %+v, %v", mounts, err)
	}
	if err := c.Umnt(ctx, "/"); err != nil {
		t.Error(err)
	}
}

func fhOf(t *testing.T, c *nfs.Client, dir nfs.FileHandle, name string) nfs.FileHandle {
	t.Helper()
	fh, _, err := c.Lookup(t.Context(), dir, name)
	if err != nil {
		t.Fatal(err)
	}
	return fh
}

// A get that loses its connection leaves no file at all.
func TestFailedGetLeavesNothing(t *testing.T) {
	dir, local := t.TempDir(), t.TempDir()
	testutil.WriteFiles(t, dir, map[string]string{"large": randomText(1, 8<<20), "tree/large": randomText(2, 8<<20)})
	s := startServer(t, "--dir", dir)
	for _, limit := range []int64{0, 100, 5000, 3 << 20} {
		mustFail(t, 1, "connection", "get", "nfs://"+startProxy(t, s.addr, limit, true).addr+"/large", filepath.Join(local, "large"))
		if entries, _ := os.ReadDir(local); len(entries) != 0 {
			t.Fatalf("left behind after %d bytes: %v", limit, entries)
		}
	}
	mustFail(t, 1, "connection", "get", "-r", "nfs://"+startProxy(t, s.addr, 3<<20, true).addr+"/tree", filepath.Join(local, "tree"))
	err := filepath.WalkDir(local, func(path string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			t.Errorf("left behind: %s", path)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

// A put that fails leaves no file, whether the server refuses a step or it is interrupted.
func TestFailedPutCleansUp(t *testing.T) {
	dir, local := t.TempDir(), t.TempDir()
	testutil.WriteFiles(t, dir, map[string]string{"refused/name/in the way": "x"})
	testutil.WriteFiles(t, local, map[string]string{"tree/name": "a file here, a directory there", "links/name": "-> a link here"})
	s := startServer(t, "--dir", dir, "--async")
	before := describe(t, dir)
	for _, tree := range []string{"tree", "links"} {
		mustSkip(t, []string{"name skipped: is a directory (NFS3ERR_ISDIR)"}, "put", "-r", filepath.Join(local, tree), s.url("/refused"))
		if after := describe(t, dir); !maps.Equal(before, after) {
			t.Errorf("put -r %s leaves %q, before %q", tree, after, before)
		}
	}

	// The file is so large that the put takes minutes.
	large := filepath.Join(local, "large")
	if err := os.WriteFile(large, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(large, 1<<40); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), testTimeout)
	defer cancel()
	cmd := command(ctx, "put", large, s.url("/copy"))
	var stderr strings.Builder
	cmd.Stderr = &stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	testutil.Eventually(t, "the put is under way", func() bool {
		parts, err := filepath.Glob(filepath.Join(dir, ".rpcrdma-*.part"))
		if err != nil || len(parts) == 0 {
			return false
		}
		info, err := os.Stat(parts[0])
		return err == nil && info.Size() > 0
	})
	cmd.Process.Signal(syscall.SIGINT)
	cmd.Wait()
	if code := cmd.ProcessState.ExitCode(); code != 1 || !strings.HasSuffix(stderr.String(), "/copy: interrupted\n") {
		t.Errorf("interrupted: status %d\n%s", code, &stderr)
	}
	if after := describe(t, dir); !maps.Equal(before, after) {
		t.Errorf("an interrupted put leaves %d things, %d before: %s", len(after), len(before), &stderr)
	}
}

// A put that loses its connection changes nothing under the name, and removes its temporary file over
// a new connection.
func TestFailedPutChangesNothing(t *testing.T) {
	dir, local := t.TempDir(), t.TempDir()
	testutil.WriteFiles(t, dir, map[string]string{"large": "what was there before"})
	testutil.WriteFiles(t, local, map[string]string{"large": randomText(1, 8<<20)})
	s := startServer(t, "--dir", dir)
	p := newProxy(t, s.addr, 2000, true, true)
	mustFail(t, 1, "connection lost", "put", filepath.Join(local, "large"), "nfs://"+p.addr+"/large")
	if b, err := os.ReadFile(filepath.Join(dir, "large")); err != nil || string(b) != "what was there before" {
		t.Errorf("the server has %d bytes, %v", len(b), err)
	}
	if entries, err := os.ReadDir(dir); err != nil || len(entries) != 1 {
		t.Errorf("left behind: %v, %v", entries, err)
	}
}

// The wait for a silent server ends with the timeout or an interrupt.
func TestSilentServer(t *testing.T) {
	dir, local := t.TempDir(), t.TempDir()
	testutil.WriteFiles(t, dir, map[string]string{"large": randomText(1, 8<<20)})
	s := startServer(t, "--dir", dir)
	const half = 3 << 20
	mustFail(t, 1, "no answer from the server for 300ms", "get", "--timeout", "300ms",
		"nfs://"+startProxy(t, s.addr, half, false).addr+"/large", filepath.Join(local, "large"))
	mustFail(t, 1, "no answer from the server for 300ms", "ls", "--timeout", "300ms",
		"nfs://"+startProxy(t, s.addr, 0, false).addr+"/")
	mustFail(t, 1, "no answer from the server for 300ms: connecting to 127.0.0.1:", "ping", "--timeout", "300ms", startProxy(t, s.addr, 0, false).addr)

	p := startProxy(t, s.addr, half, false)
	ctx, cancel := context.WithTimeout(t.Context(), testTimeout)
	defer cancel()
	cmd := command(ctx, "get", "nfs://"+p.addr+"/large", filepath.Join(local, "large"))
	var stderr strings.Builder
	cmd.Stderr = &stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	<-p.reached
	cmd.Process.Signal(syscall.SIGINT)
	cmd.Wait()
	if code := cmd.ProcessState.ExitCode(); code != 1 || !strings.HasSuffix(stderr.String(), "/large: interrupted\n") {
		t.Errorf("interrupted: status %d\n%s", code, &stderr)
	}
	if entries, _ := os.ReadDir(local); len(entries) != 0 {
		t.Errorf("left behind: %v", entries)
	}
}

// At SIGTERM the server ends with status 0 although clients are connected, and with --json
// it prints its counters.
func TestServerStops(t *testing.T) {
	dir := t.TempDir()
	testutil.WriteFiles(t, dir, map[string]string{"file": "x"})
	s := startServer(t, "--dir", dir, "--tcp-addr", "127.0.0.1:0")
	c := s.dialNFS(t)
	fh := fhOf(t, c, root(t, c), "file")
	tcp := dialRPC(t, s.tcp)
	tcp.call(nfs.Program, nfs.Version, nfs.ProcNull, nil)
	if err := s.stop(); err != nil {
		t.Fatalf("serve: %v\n%s", err, &s.stderr)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	if _, err := c.GetAttr(ctx, fh); !errors.Is(err, net.ErrClosed) {
		t.Errorf("a call after the end: %v", err)
	}
	mustFail(t, 1, "connection refused", "ping", s.addr)
}

func TestServeJSON(t *testing.T) {
	cmd := command(t.Context(), "serve", "--json", "--addr", "127.0.0.1:0", "--dir", t.TempDir())
	var stdout strings.Builder
	cmd.Stdout = &stdout
	stderr, err := cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	line := make([]byte, 1000)
	n, _ := stderr.Read(line)
	match := listening.FindStringSubmatch(string(line[:n]))
	if match == nil {
		t.Fatalf("serve says %q", line[:n])
	}
	mustRun(t, "ping", "-c", "9", match[1])
	cmd.Process.Signal(syscall.SIGINT)
	if err := cmd.Wait(); err != nil {
		t.Fatal(err)
	}
	if s := decodeJSON[rpc.Stats](t, stdout.String()); s.Calls != 10 || s.Replies != 10 || s.Optional != 0 || s.Conns != 1 {
		t.Errorf("serve --json: %+v", s)
	}
}
