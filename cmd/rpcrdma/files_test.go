package main

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/rpcrdma/rpcrdma/cmd/rpcrdma/internal/copying"
	"github.com/rpcrdma/rpcrdma/cmd/rpcrdma/internal/tree"
	"github.com/rpcrdma/rpcrdma/internal/testing/testutil"
	"github.com/rpcrdma/rpcrdma/nfs"
)

// wantFile checks the contents of a local file.
func wantFile(t *testing.T, name, want string) {
	t.Helper()
	if b, err := os.ReadFile(name); err != nil || string(b) != want {
		t.Errorf("%s: %d bytes, %.40q, want %d, %.40q, %v", name, len(b), b, len(want), want, err)
	}
}

// wantGone checks that nothing has a name.
func wantGone(t *testing.T, name string) {
	t.Helper()
	if info, err := os.Lstat(name); err == nil {
		t.Errorf("%s is there: %v", name, info.Mode())
	}
}

// Without LOCAL, a copy has its name on the server.
func TestGetHere(t *testing.T) {
	dir, here := t.TempDir(), t.TempDir()
	testutil.WriteFiles(t, dir, map[string]string{"file": "1", "tree/a": "2"})
	s := startServer(t, "--dir", dir)
	for _, args := range [][]string{{"get", s.url("/file")}, {"get", "-r", s.url("/tree")}} {
		cmd := command(t.Context(), args...)
		cmd.Dir = here
		if out, err := cmd.CombinedOutput(); err != nil || len(out) > 0 {
			t.Errorf("%s: %v\n%s", args, err, out)
		}
	}
	wantFile(t, filepath.Join(here, "file"), "1")
	wantFile(t, filepath.Join(here, "tree/a"), "2")
}

func TestMkdir(t *testing.T) {
	dir := t.TempDir()
	testutil.WriteFiles(t, dir, map[string]string{"file": "x", "real/": "", "link": "-> real", "dangling": "-> nowhere"})
	s := startServer(t, "--dir", dir)
	mode := func(name string, want os.FileMode) {
		t.Helper()
		if info, err := os.Stat(filepath.Join(dir, name)); err != nil || info.Mode() != want|os.ModeDir {
			t.Errorf("%s: %v, %v, want %v", name, info, err, want)
		}
	}
	mustRun(t, "mkdir", s.url("/a"), s.url("/a/b"))
	mode("a/b", 0o755)
	mustRun(t, "mkdir", "-m", "0700", s.url("/private"))
	mode("private", 0o700)
	mustRun(t, "mkdir", "-p", "-m", "711", s.url("/p/q/r"), s.url("/p/q"), s.url("/"), s.url("/link/new"))
	mode("p/q/r", 0o711)
	mode("p", 0o711)
	mode("real/new", 0o711)
	mode("real", 0o755) // it was there
	for _, tt := range []struct {
		status int
		text   string
		args   []string
	}{
		{1, "/a: file exists (NFS3ERR_EXIST)\n", []string{s.url("/a")}},
		{1, "/: file exists (NFS3ERR_EXIST)\n", []string{s.url("/")}},
		{1, "/no/such: a directory above it is missing (-p makes it)\n", []string{s.url("/no/such")}},
		{1, "/file/x: not a directory (NFS3ERR_NOTDIR)\n", []string{s.url("/file/x")}},
		{1, "/file: not a directory (NFS3ERR_NOTDIR)\n", []string{"-p", s.url("/file")}},
		{1, "/file/x: /file: not a directory (NFS3ERR_NOTDIR)\n", []string{"-p", s.url("/file/x")}},
		{1, "/dangling/x: /dangling: no such file (NFS3ERR_NOENT)\n", []string{"-p", s.url("/dangling/x")}},
		{1, "name too long (NFS3ERR_NAMETOOLONG)\n", []string{s.url("/" + strings.Repeat("x", 256))}},
		{2, "argument URL is missing\n", nil},
		{2, `--mode is "rwx": want permission bits in octal, such as 0755`, []string{"-m", "rwx", s.url("/x")}},
		{2, "want permission bits", []string{"-m", "10000", s.url("/x")}},
	} {
		mustFail(t, tt.status, tt.text, append([]string{"mkdir"}, tt.args...)...)
	}
}

func TestMv(t *testing.T) {
	dir, other := t.TempDir(), t.TempDir()
	testutil.WriteFiles(t, dir, map[string]string{
		"file": "1", "second": "2", "dir/inner": "3", "empty/": "", "full/x": "4", "link": "-> dir",
	})
	testutil.WriteFiles(t, other, map[string]string{"there/": ""})
	s := startServer(t, "--export", dir+"=/one", "--export", other+"=/two")
	in := func(name string) string { return filepath.Join(dir, name) }
	u := func(name string) string { return s.url("/one" + name) }
	mustRun(t, "mv", u("/file"), u("/renamed"))
	wantFile(t, in("renamed"), "1")
	wantGone(t, in("file"))
	mustRun(t, "mv", u("/renamed"), u("/second")) // replaces it
	wantFile(t, in("second"), "1")
	mustRun(t, "mv", u("/second"), u("/dir"))
	wantFile(t, in("dir/second"), "1")
	mustRun(t, "mv", u("/dir/second"), u("/link/"))
	wantFile(t, in("dir/second"), "1")
	mustRun(t, "mv", u("/dir/second"), u("/dir/second"))
	wantFile(t, in("dir/second"), "1")
	mustRun(t, "mv", u("/dir"), u("/empty"))
	wantFile(t, in("empty/dir/second"), "1")
	mustRun(t, "mv", u("/link"), u("/link2"))
	if target, err := os.Readlink(in("link2")); err != nil || target != "dir" {
		t.Errorf("the link leads to %q, %v", target, err)
	}
	before := describe(t, dir)
	for _, tt := range []struct {
		status int
		text   string
		args   []string
	}{
		{1, "/nope: no such file (NFS3ERR_NOENT)\n", []string{u("/nope"), u("/x")}},
		{1, "the directory above /one/no/x does not exist ('rpcrdma mkdir -p' makes it)\n", []string{u("/full/x"), u("/no/x")}},
		{1, "/one/no/: no such file", []string{u("/full/x"), u("/no/")}},
		{1, "/one/empty/dir/second: not a directory", []string{u("/full/x"), u("/empty/dir/second/")}},
		{1, "cannot be moved into itself, to /one/empty/dir/empty\n", []string{u("/empty"), u("/empty/dir")}},
		{1, "/one/empty is the same directory\n", []string{u("/empty"), u("/empty")}},
		{1, "/one: is an export, which cannot be moved\n", []string{u(""), u("/x")}},
		{1, "exports /one and /two are different: copy with 'rpcrdma cp' and remove with 'rpcrdma rm'\n", []string{u("/full/x"), s.url("/two/x")}},
		{1, "/three: the server exports only /one, /two\n", []string{u("/full/x"), s.url("/three")}},
		{2, s.addr + " and localhost:1 are different servers: copy with 'rpcrdma cp' and remove with 'rpcrdma rm'\n", []string{u("/full/x"), "nfs://localhost:1/x"}},
		{2, "argument TO is missing\n", []string{u("/x")}},
		{2, "arguments FROM and TO are missing\n", nil},
		{2, "unexpected argument", []string{u("/x"), u("/y"), u("/z")}},
	} {
		want := strings.ReplaceAll(tt.text, "/one/no/:", "/one/no:")
		mustFail(t, tt.status, want, append([]string{"mv"}, tt.args...)...)
	}
	for name, was := range describe(t, dir) {
		if before[name] != was {
			t.Errorf("%s was changed by a mv that failed", name)
		}
	}
}

func TestRm(t *testing.T) {
	dir, outside := t.TempDir(), t.TempDir()
	testutil.WriteFiles(t, outside, map[string]string{"kept": "x"})
	files := map[string]string{
		"file": "1", "second": "2", "third": "3", "dir/inner": "x", "empty/": "",
		"tree/link": "-> " + outside, "tree/up": "-> ..", "tree/a/b/c/d": "x", "tree/a/e": "", "tree/\x1b[31m": "x", "link": "-> dir",
	}
	for i := range 2500 {
		files[fmt.Sprintf("tree/many/%04d", i)] = ""
	}
	testutil.WriteFiles(t, dir, files)
	s := startServer(t, "--dir", dir, "--async")
	in := func(name string) string { return filepath.Join(dir, name) }
	mustRun(t, "rm", s.url("/file"))
	wantGone(t, in("file"))
	mustRun(t, "rm", s.url("/link")) // the link itself
	wantGone(t, in("link"))
	wantFile(t, in("dir/inner"), "x")
	mustRun(t, "rm", "-f", s.url("/file"), s.url("/no/such/thing"))
	for _, tt := range []struct {
		status int
		text   string
		args   []string
	}{
		{1, "/file: no such file (NFS3ERR_NOENT)\n", []string{s.url("/file")}},
		{1, "/dir: is a directory (-r removes it)\n", []string{s.url("/dir")}},
		{1, "/empty: is a directory (-r removes it)\n", []string{"-f", s.url("/empty")}},
		{1, "/: is an export, which cannot be removed\n", []string{"-r", "-f", s.url("/")}},
		{2, "argument URL is missing\n", []string{"-r", "-f"}},
		{2, "--parallel is 0", []string{"-P", "0", s.url("/dir")}},
		{2, "want nfs://HOST[:PORT]/EXPORT/PATH", []string{s.url("/second"), in("second")}},
	} {
		mustFail(t, tt.status, tt.text, append([]string{"rm"}, tt.args...)...)
	}
	wantFile(t, in("second"), "2") // a wrong argument beside it

	// One that fails does not keep the others.
	r := runCommand(t, "rm", s.url("/second"), s.url("/nope"), s.url("/third"), "nfs://127.0.0.1:1/x")
	lines := strings.Split(r.stderr, "\n")
	if r.status != 1 || len(lines) != 4 || !strings.Contains(lines[0], "/nope: no such file") || !strings.Contains(lines[1], "connection refused") || lines[2] != "rpcrdma: rm: 2 of 4 failed" {
		t.Errorf("status %d\n%s", r.status, r.stderr)
	}
	wantGone(t, in("second"))
	wantGone(t, in("third"))

	mustRun(t, "rm", "-r", s.url("/empty"), s.url("/tree"))
	wantFile(t, filepath.Join(outside, "kept"), "x")
	if left := describe(t, dir); len(left) != 2 {
		t.Errorf("left: %q", left)
	}
	ro := startServer(t, "--dir", dir, "--read-only")
	mustFail(t, 1, "the server is read-only (NFS3ERR_ROFS)", "rm", "-r", ro.url("/dir"))
	wantFile(t, in("dir/inner"), "x")
}

func TestStat(t *testing.T) {
	dir := t.TempDir()
	testutil.WriteFiles(t, dir, map[string]string{"file": "12345", "link": "-> file", "dangling": "-> nowhere", "dir/": ""})
	testutil.Must(t, os.Chmod(filepath.Join(dir, "file"), 0o640), os.Link(filepath.Join(dir, "file"), filepath.Join(dir, "second")))
	mtime := time.Unix(1_700_000_000, 123_456_789)
	testutil.Must(t, os.Chtimes(filepath.Join(dir, "file"), mtime.Add(time.Nanosecond), mtime))
	s := startServer(t, "--dir", dir)
	st := decodeJSON[tree.StatJSON](t, mustRun(t, "stat", "--json", s.url("/file")))
	if st.Type != "file" || st.Mode != "-rw-r-----" || st.Perm != "0640" || st.Links != 2 || st.Size != 5 || st.URL != s.url("/file") ||
		!st.Mtime.Equal(mtime) || !st.Atime.Equal(mtime.Add(time.Nanosecond)) || !st.Ctime.After(mtime) || st.FileID == 0 || len(st.Handle) < 16 {
		t.Errorf("stat --json: %+v", st)
	}
	if uid, gid := os.Getuid(), os.Getgid(); st.UID != uint32(uid) || st.GID != uint32(gid) {
		t.Errorf("owner %d, group %d, want %d, %d", st.UID, st.GID, uid, gid)
	}
	out := mustRun(t, "stat", s.url("/file"), s.url("/dir"))
	for _, want := range []string{
		s.url("/file") + "\n  type         file\n  mode         -rw-r----- 0640\n  links        2\n",
		"  size         5 bytes\n", "  modified     " + mtime.Local().Format("2006-01-02 15:04:05.000000000 -0700") + "\n",
		s.url("/dir") + "\n  type         directory\n",
	} {
		if !strings.Contains(out, want) {
			t.Errorf("stat lacks %q:\n%s", want, out)
		}
	}
	if strings.Contains(out, "handle") {
		t.Errorf("stat prints handles:\n%s", out)
	}
	if r := runCommand(t, "stat", "-v", s.url("/file")); r.status != 0 || !strings.Contains(r.stdout, "  handle       "+st.Handle+"\n") {
		t.Errorf("stat -v: %d\n%s", r.status, r.stdout)
	}
	if st := decodeJSON[tree.StatJSON](t, mustRun(t, "stat", "--json", s.url("/dangling"))); st.Type != "link" || st.Target != "nowhere" {
		t.Errorf("stat of a link: %+v", st)
	}
	if st := decodeJSON[tree.StatJSON](t, mustRun(t, "stat", "-L", "--json", s.url("/link"))); st.Type != "file" || st.Size != 5 || st.Target != "" {
		t.Errorf("stat -L of a link: %+v", st)
	}
	mustFail(t, 1, "/dangling: no such file (NFS3ERR_NOENT)\n", "stat", "-L", s.url("/dangling"))
	mustFail(t, 2, "argument URL is missing\n", "stat")
	r := runCommand(t, "stat", "--json", s.url("/nope"), s.url("/dir"))
	if r.status != 1 || !strings.Contains(r.stderr, `{"error":"stat `+s.url("/nope")+`: no such file (NFS3ERR_NOENT)","status":1}`) || decodeJSON[tree.StatJSON](t, r.stdout).Type != "directory" {
		t.Errorf("stat --json of two: %d\n%s%s", r.status, r.stdout, r.stderr)
	}
}

func TestCat(t *testing.T) {
	one, two := t.TempDir(), t.TempDir()
	large := randomText(3, 9<<20+1)
	testutil.WriteFiles(t, one, map[string]string{"a": "first\n", "large": large, "dir/": "", "link": "-> a"})
	testutil.WriteFiles(t, two, map[string]string{"b": "second\n"})
	s1, s2 := startServer(t, "--dir", one), startServer(t, "--dir", two)
	if got := mustRun(t, "cat", "-P", "3", s1.url("/a"), s2.url("/b"), s1.url("/large"), s1.url("/link")); got != "first\nsecond\n"+large+"first\n" {
		t.Errorf("%d bytes", len(got))
	}
	r := runCommand(t, "cat", s1.url("/dir"), s1.url("/a"), s2.url("/nope"), s2.url("/b"))
	if r.status != 1 || r.stdout != "first\nsecond\n" || !strings.HasSuffix(r.stderr, "rpcrdma: cat: 2 of 4 failed\n") || strings.Count(r.stderr, "\n") != 3 {
		t.Errorf("status %d, %q\n%s", r.status, r.stdout, r.stderr)
	}
	mustFail(t, 1, "/dir: is a directory (NFS3ERR_ISDIR)\n", "cat", s1.url("/dir"))
	mustFail(t, 2, "argument URL is missing\n", "cat")
	if _, err := exec.LookPath("sh"); err != nil {
		t.Skip("there is no shell for a pipe whose reader leaves")
	}
	cmd := command(t.Context(), "cat", s1.url("/large"))
	out, err := cmd.StdoutPipe()
	testutil.Must(t, err, cmd.Start())
	out.Read(make([]byte, 1))
	out.Close()
	if err := cmd.Wait(); err == nil {
		t.Error("cat into a closed pipe succeeds")
	}
}

// A tree is copied on one server and between two, and once more.
func TestCp(t *testing.T) {
	one, two := t.TempDir(), t.TempDir()
	files := map[string]string{
		"empty": "", "small": "contents", "large": randomText(1, 3<<20+5), "sub/deep/er/file": "deep", "sub/sibling": "s", "nothing/": "",
		"link": "-> sub", "sub/up": "-> ../small", "away": "-> /etc", "z/last": "z", ".rpcrdma-abcdefghijkl.part": "of another copy",
	}
	testutil.WriteFiles(t, one, map[string]string{"file": "x", "second": "y", "exec": "z"})
	tree := filepath.Join(one, "tree")
	testutil.WriteFiles(t, tree, files)
	testutil.Must(t, os.Chmod(filepath.Join(one, "exec"), 0o555), os.Chmod(filepath.Join(tree, "sub"), 0o500))
	want := t.TempDir()
	t.Cleanup(func() { // only root removes what is in them as they are
		for _, dir := range []string{tree, want, filepath.Join(two, "copy1"), filepath.Join(two, "copy16"), filepath.Join(tree, "z", "copy")} {
			os.Chmod(filepath.Join(dir, "sub"), 0o700)
		}
	})
	s1, s2 := startServer(t, "--dir", one), startServer(t, "--dir", two)
	delete(files, ".rpcrdma-abcdefghijkl.part")
	testutil.WriteFiles(t, want, files)
	testutil.Must(t, os.Chmod(filepath.Join(want, "sub"), 0o500))

	mustRun(t, "cp", s1.url("/file"), s1.url("/copy"))
	wantFile(t, filepath.Join(one, "copy"), "x")
	mustRun(t, "cp", s1.url("/file"), s2.url("/"))
	wantFile(t, filepath.Join(two, "file"), "x")
	mustRun(t, "cp", s1.url("/second"), s2.url("/file"))
	wantFile(t, filepath.Join(two, "file"), "y")
	mustRun(t, "cp", s1.url("/exec"), s2.url("/exec"))
	if info, err := os.Stat(filepath.Join(two, "exec")); err != nil || info.Mode() != 0o555 {
		t.Errorf("exec: %v, %v", info.Mode(), err)
	}
	for range 2 {
		for _, parallel := range []string{"1", "16"} {
			r := decodeJSON[copying.ResultJSON](t, mustRun(t, "cp", "-r", "--json", "-P", parallel, s1.url("/tree"), s2.url("/copy"+parallel)))
			wantTree(t, filepath.Join(two, "copy"+parallel), want)
			if r.Files != 6 || r.Links != 3 || r.Directories != 5 || r.Skipped != 0 || r.From != s1.url("/tree") || r.URL != s2.url("/copy"+parallel) {
				t.Errorf("cp -r: %+v", r)
			}
		}
	}
	// Into itself: it is copied once, as it was.
	mustRun(t, "cp", "-r", s1.url("/tree"), s1.url("/tree/z/copy"))
	wantTree(t, filepath.Join(tree, "z", "copy"), want)

	for _, tt := range []struct {
		status int
		text   string
		args   []string
	}{
		{1, "/nope to " + s2.url("/x") + ": reading it: no such file (NFS3ERR_NOENT)\n", []string{s1.url("/nope"), s2.url("/x")}},
		{1, ": no such file (NFS3ERR_NOENT)\n", []string{s1.url("/file"), s2.url("/no/such")}},
		{1, ": not a directory (NFS3ERR_NOTDIR)\n", []string{s1.url("/file"), s2.url("/file/")}},
		{1, ": is a directory (-r copies it)\n", []string{s1.url("/tree"), s2.url("/x")}},
		{1, ": not a directory (NFS3ERR_NOTDIR)\n", []string{"-r", s1.url("/tree"), s2.url("/file")}},
		{1, ": both are the same\n", []string{s1.url("/file"), s1.url("/file")}},
		{1, ": both are the same\n", []string{s1.url("/file"), s1.url("/")}},
		{1, ": both are the same\n", []string{"-r", s1.url("/tree"), s1.url("/tree")}},
		{1, "cp nfs://127.0.0.1:1/x: no connection", []string{"nfs://127.0.0.1:1/x", s1.url("/x")}},
		{1, "cp nfs://127.0.0.1:1/x: no connection", []string{s1.url("/file"), "nfs://127.0.0.1:1/x"}},
		{2, "argument TO is missing\n", []string{s1.url("/file")}},
		{2, "--parallel is 0", []string{"-P", "0", s1.url("/file"), s2.url("/x")}},
		{2, "'rpcrdma get " + s1.url("/file") + " " + filepath.Join(two, "x") + "' copies that", []string{s1.url("/file"), filepath.Join(two, "x")}},
	} {
		mustFail(t, tt.status, tt.text, append([]string{"cp"}, tt.args...)...)
	}
	wantFile(t, filepath.Join(one, "file"), "x")
}

// Two servers may have the same handle for different directories.
func TestCpOfEqualHandles(t *testing.T) {
	to := t.TempDir()
	s := startServer(t, "--dir", to)
	same := string(root(t, s.dialNFS(t)).Bytes())
	h := &hostile{data: "contents", entries: map[string][]nfs.DirEntry{
		"/": {hostileEntry("sub", same, nfs.TypeDir)}, same: {hostileEntry("file", "f", nfs.TypeReg)},
	}}
	url := "nfs://" + h.start(t)
	mustRun(t, "cp", "-r", url+"/", s.url("/"))
	wantFile(t, filepath.Join(to, "sub", "file"), "contents")
	mustRun(t, "cp", "-r", url+"/sub", s.url("/"))
	wantFile(t, filepath.Join(to, "file"), "contents")

	// One server may have two addresses.
	other := func() string { return "nfs://" + startProxy(t, s.addr, 1<<40, false).addr }
	mustFail(t, 1, ": both are the same\n", "cp", "-r", s.url("/sub"), other()+"/sub")
	mustRun(t, "cp", "-r", s.url("/"), other()+"/copy")
	wantFile(t, filepath.Join(to, "copy", "sub", "file"), "contents")
	wantGone(t, filepath.Join(to, "copy", "copy"))
	for _, dir := range []string{to, filepath.Join(to, "sub"), filepath.Join(to, "copy")} {
		if parts, err := filepath.Glob(filepath.Join(dir, ".rpcrdma-*")); err != nil || len(parts) > 0 {
			t.Errorf("left behind: %v, %v", parts, err)
		}
	}
}

// An interrupt ends the work, not that with one URL.
func TestInterruptedBetweenURLs(t *testing.T) {
	dir := t.TempDir()
	testutil.WriteFiles(t, dir, map[string]string{"file": "x"})
	s := startServer(t, "--dir", dir)
	silent, err := net.Listen("tcp", "127.0.0.1:0")
	testutil.Must(t, err)
	defer silent.Close()
	c := start(t, t.TempDir(), "rm", "nfs://"+silent.Addr().String()+"/file", s.url("/file"))
	conn, err := silent.Accept()
	testutil.Must(t, err)
	defer conn.Close()
	testutil.Must(t, c.signal(os.Interrupt))
	c.want(1, "rm nfs://"+silent.Addr().String()+"/file: interrupted\n")
	wantFile(t, filepath.Join(dir, "file"), "x")
}

// A link that is asked for is followed, wherever it leads.
func TestPutOfLink(t *testing.T) {
	dir, one, two := t.TempDir(), t.TempDir(), t.TempDir()
	testutil.WriteFiles(t, one, map[string]string{"file": "x"})
	testutil.Must(t, os.Symlink(filepath.Join(one, "file"), filepath.Join(two, "absolute")))
	rel, err := filepath.Rel(two, filepath.Join(one, "file"))
	testutil.Must(t, err, os.Symlink(rel, filepath.Join(two, "relative")))
	s := startServer(t, "--dir", dir)
	for _, name := range []string{"absolute", "relative"} {
		mustRun(t, "put", filepath.Join(two, name), s.url("/"))
		wantFile(t, filepath.Join(dir, name), "x")
	}
}

// A file that is written to a symbolic link replaces the file that it leads to.
func TestPutThroughLink(t *testing.T) {
	dir, outside, local := t.TempDir(), t.TempDir(), t.TempDir()
	testutil.WriteFiles(t, local, map[string]string{"new": "new", "link": "by its own name"})
	testutil.WriteFiles(t, outside, map[string]string{"file": "outside"})
	links := map[string]string{
		"a/b/to/link": "-> ../../c/file", "way": "-> a/b/to", "absolute": "-> /a/c/second", "loop": "-> pool", "pool": "-> loop",
		"dangling": "-> nowhere", "out": "-> ../x", "far": "-> " + filepath.Join(outside, "file"), "chain": "-> way/link", "adir": "-> a/c",
	}
	testutil.WriteFiles(t, dir, links)
	testutil.WriteFiles(t, dir, map[string]string{"a/c/file": "old", "a/c/second": "old", "a/c/third": "old"})
	testutil.Must(t, os.Chmod(filepath.Join(dir, "a/c/file"), 0o600))
	s := startServer(t, "--dir", dir)
	before := describe(t, dir)
	in := func(name string) string { return filepath.Join(local, name) }
	for _, tt := range []struct {
		args       []string
		file, want string
	}{
		{[]string{"put", in("new"), s.url("/way/link")}, "a/c/file", "new"}, // where .. is another directory than in the path
		{[]string{"put", in("link"), s.url("/a/b/to/")}, "a/c/file", "by its own name"},
		{[]string{"put", "--resume", in("new"), s.url("/chain")}, "a/c/file", "new"},
		{[]string{"cp", s.url("/a/c/third"), s.url("/absolute")}, "a/c/second", "old"},
		{[]string{"put", in("new"), s.url("/adir")}, "a/c/new", "new"},
	} {
		start(t, local, tt.args...).want(0)
		wantFile(t, filepath.Join(dir, tt.file), tt.want)
	}
	c := command(t.Context(), "put", "-", s.url("/way/link"))
	c.Stdin = strings.NewReader("from standard input")
	testutil.Must(t, c.Run())
	wantFile(t, filepath.Join(dir, "a/c/file"), "from standard input")
	for _, tt := range []struct{ name, text string }{
		{"dangling", "/dangling: is a symbolic link to something that does not exist; 'rpcrdma rm' removes it\n"},
		{"loop", "too many symbolic links\n"},
		{"out", "/out: symbolic link leaves the export\n"},
		{"far", "/far: is a symbolic link to something that does not exist"}, // below the export
	} {
		mustFail(t, 1, tt.text, "put", in("new"), s.url("/"+tt.name))
	}
	mustFail(t, 1, "both are the same\n", "cp", s.url("/a/c/file"), s.url("/chain"))
	after := describe(t, dir)
	for name := range links {
		if after[name] != before[name] {
			t.Errorf("%s is %q now", name, after[name])
		}
	}
	if len(after) != len(before)+1 {
		t.Errorf("left are %q", after)
	}
	wantFile(t, filepath.Join(outside, "file"), "outside")
}

// Directories that are read-only in the original are so in the copy, at the end, and can be filled again.
func TestReadOnlyDirectories(t *testing.T) {
	dir, local, cache := t.TempDir(), t.TempDir(), t.TempDir()
	files := map[string]string{"ro/sub/file": "1", "ro/link": "-> sub/file", "ro/empty/": "", "rw/file": "2"}
	modes := []struct {
		name string
		mode os.FileMode
	}{{"ro/empty", 0o555}, {"ro/sub", 0o511}, {"ro", 0o555}, {"rw", 0o750}, {".", 0o550}}
	writable := func(tree string) {
		for _, m := range modes {
			os.Chmod(filepath.Join(tree, m.name), 0o755)
		}
	}
	originals := []string{filepath.Join(dir, "tree"), filepath.Join(local, "tree")}
	for _, tree := range originals {
		testutil.WriteFiles(t, tree, files)
		for _, m := range modes {
			testutil.Must(t, os.Chmod(filepath.Join(tree, m.name), m.mode))
		}
		t.Cleanup(func() { writable(tree) })
	}
	s := startServer(t, "--dir", dir)
	for _, tt := range []struct {
		args   []string
		result string
	}{
		{[]string{"get", "-r", s.url("/tree"), filepath.Join(local, "got")}, filepath.Join(local, "got")},
		{[]string{"put", "-r", originals[1], s.url("/put")}, filepath.Join(dir, "put")},
		{[]string{"cp", "-r", s.url("/tree"), s.url("/cp")}, filepath.Join(dir, "cp")},
	} {
		t.Cleanup(func() { writable(tt.result) })
		top := func(what string, want os.FileMode) {
			t.Helper()
			wantTree(t, tt.result, originals[0])
			if info, err := os.Stat(tt.result); err != nil || info.Mode().Perm() != want {
				t.Errorf("%s, %s: %v, %v, want %v", tt.args[0], what, info.Mode(), err, want)
			}
		}
		start(t, cache, tt.args...).want(0)
		top("first", 0o550)
		start(t, cache, tt.args...).want(0)
		top("again", 0o550)
		// As a copy that was cut leaves them.
		for _, m := range modes {
			testutil.Must(t, os.Chmod(filepath.Join(tt.result, m.name), m.mode|0o700))
		}
		start(t, cache, tt.args...).want(0)
		top("after a cut", 0o750) // which may be anybody's directory
		start(t, cache, append(tt.args, "--resume")...).want(0)
		top("resumed", 0o550)
	}
}

// More links than are kept in memory are copied as well.
func TestManyLinks(t *testing.T) {
	dir, local := t.TempDir(), t.TempDir()
	testutil.WriteFiles(t, dir, map[string]string{"tree/file": "x"})
	for i := range copying.MaxLinks + 1 {
		testutil.Must(t, os.Symlink("file", filepath.Join(dir, "tree", fmt.Sprint(i))))
	}
	s := startServer(t, "--dir", dir)
	r := decodeJSON[copying.ResultJSON](t, mustRun(t, "get", "-r", "--json", s.url("/tree"), filepath.Join(local, "tree")))
	if r.Links != copying.MaxLinks+1 || r.Files != 1 || r.Skipped != 0 {
		t.Errorf("%+v", r)
	}
	for i := range copying.MaxLinks + 1 {
		if to, err := os.Readlink(filepath.Join(local, "tree", fmt.Sprint(i))); err != nil || to != "file" {
			t.Fatalf("%d: %q, %v", i, to, err)
		}
	}
}

// Parts of a tree that the server refuses are named; everything else is copied.
func TestPartlyRefused(t *testing.T) {
	source, dir := t.TempDir(), t.TempDir()
	tree := map[string]string{"a": "a", "file": "f", "dir/x": "x", "dir/y/z": "z", "link": "-> a", "z": "z"}
	testutil.WriteFiles(t, filepath.Join(source, "tree"), tree)
	s1, s2 := startServer(t, "--dir", source), startServer(t, "--dir", dir)
	// A directory where a file shall be, and the other way round.
	for _, to := range []string{"put", "cp"} {
		testutil.WriteFiles(t, filepath.Join(dir, to), map[string]string{"file/in the way": "x", "dir": "x", "link/in the way": "x"})
		args := []string{"put", "-r", filepath.Join(source, "tree"), s2.url("/put")}
		if to == "cp" {
			args = []string{"cp", "-r", s1.url("/tree"), s2.url("/cp")}
		}
		mustSkip(t, []string{
			"file skipped: is a directory (NFS3ERR_ISDIR)", "dir skipped: a file on the server is in the way of this directory",
			"link skipped: is a directory (NFS3ERR_ISDIR)",
		}, args...)
		wantFile(t, filepath.Join(dir, to, "a"), "a")
		wantFile(t, filepath.Join(dir, to, "z"), "z")
		if left := describe(t, filepath.Join(dir, to)); len(left) != 7 {
			t.Errorf("%s leaves %q", to, left)
		}
	}
	local := filepath.Join(t.TempDir(), "local")
	testutil.WriteFiles(t, local, map[string]string{"file/in the way": "x", "dir": "x", "link/in the way": "x"})
	mustSkip(t, []string{"file skipped: local file", "dir skipped: a local file is in the way of this directory", "link skipped: local file"},
		"get", "-r", s1.url("/tree"), local)
	wantFile(t, filepath.Join(local, "a"), "a")
	wantFile(t, filepath.Join(local, "z"), "z")
	if left := describe(t, local); len(left) != 7 {
		t.Errorf("get leaves %q", left)
	}
}

// A file is made of standard input.
func TestPutFromStdin(t *testing.T) {
	dir := t.TempDir()
	testutil.WriteFiles(t, dir, map[string]string{"there": "before", "dir/": ""})
	s := startServer(t, "--dir", dir, "--async")
	put := func(input, url string) result {
		t.Helper()
		cmd := command(t.Context(), "put", "-", url)
		cmd.Stdin = strings.NewReader(input)
		var stderr strings.Builder
		cmd.Stderr = &stderr
		cmd.Run()
		return result{status: cmd.ProcessState.ExitCode(), stderr: stderr.String()}
	}
	for _, size := range []int{0, 1, copying.StreamBlock - 1, copying.StreamBlock, 2*copying.StreamBlock + 12345} {
		text := randomText(uint64(size), size)
		if r := put(text, s.url("/there")); r.status != 0 || r.stderr != "" {
			t.Fatalf("%d bytes: %+v", size, r)
		}
		wantFile(t, filepath.Join(dir, "there"), text)
	}
	for url, want := range map[string]string{
		"/dir": "is a directory: standard input needs the name of a file\n", "/new/": "is a directory: standard input", "/no/such": "no such file (NFS3ERR_NOENT)\n",
	} {
		if r := put("x", s.url(url)); r.status != 1 || !strings.Contains(r.stderr, want) {
			t.Errorf("put - %s: %+v, want %q", url, r, want)
		}
	}
	mustFail(t, 2, "- is not for -r and --resume", "put", "-r", "-", s.url("/x"))
	mustFail(t, 2, "- is not for -r and --json, nor for --resume", "get", "--resume", s.url("/there"), "-")
	if left := describe(t, dir); len(left) != 2 {
		t.Errorf("left: %q", left)
	}
}

// A file that changes while it is copied does not appear under its name, and the command says
// so. The server changes it, as many times as it has to, whenever it is read.
func TestChangedFile(t *testing.T) {
	for _, tt := range []struct {
		name    string
		times   int // READs that find it changed
		size    int
		status  int
		message string
	}{
		{"once, small", 1, 8, 0, ""},
		{"twice, small", 2, 8, 0, ""},
		{"always, small", 1 << 20, 8, 1, "it changed while it was read (mtime; ctime): read it again for one version of it\n"},
		{"once, large", 1, 2 << 20, 1, "it changed while it was read (mtime; ctime)"},
	} {
		h := &hostile{
			entries: map[string][]nfs.DirEntry{"/": {hostileEntry("file", "file", nfs.TypeReg)}},
			sizes:   map[string]int{"file": tt.size}, changes: map[string]int{"file": tt.times},
		}
		addr := h.start(t)
		local := filepath.Join(t.TempDir(), "local")
		r := runCommand(t, "get", "nfs://"+addr+"/file", local)
		if r.status != tt.status || !strings.Contains(r.stderr, tt.message) {
			t.Errorf("%s: status %d, want %d and %q\n%s", tt.name, r.status, tt.status, tt.message, r.stderr)
		}
		if tt.status == 1 {
			wantGone(t, local)
		} else if info, err := os.Stat(local); err != nil || info.Size() != int64(tt.size) {
			t.Errorf("%s: %v, %v", tt.name, info, err)
		}
	}
	// To standard output, which has it already, and to another server.
	h := &hostile{
		entries: map[string][]nfs.DirEntry{"/": {hostileEntry("file", "file", nfs.TypeReg), hostileEntry("a", "f", nfs.TypeReg)}},
		data:    "contents", sizes: map[string]int{"file": 8}, changes: map[string]int{"file": 1 << 20},
	}
	url := "nfs://" + h.start(t)
	mustFail(t, 1, "it changed while it was read (mtime; ctime)", "cat", url+"/file")
	dir := t.TempDir()
	s := startServer(t, "--dir", dir)
	mustFail(t, 1, "it changed while it was copied: copy it again\n", "cp", url+"/file", s.url("/copy"))
	mustSkip(t, []string{"file skipped: it changed while it was copied"}, "cp", "-r", url+"/", s.url("/tree"))
	if left := describe(t, dir); len(left) != 2 {
		t.Errorf("left: %q", left)
	}
}
