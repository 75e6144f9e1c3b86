package main

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/rpcrdma/rpcrdma/internal/testing/testutil"
	"github.com/rpcrdma/rpcrdma/iwarp"
	"github.com/rpcrdma/rpcrdma/nfs"
)

// A record is believed only if it is of this copy and of this version of the original.
func TestOpenRecord(t *testing.T) {
	dir := t.TempDir()
	v := version{FileID: 7, Size: 1 << 30, MTime: nfs.Time{Sec: 1, Nsec: 2}, CTime: nfs.Time{Sec: 3, Nsec: 4}, mode: 0o644}
	open := func() *record {
		t.Helper()
		r, err := openRecord(dir, "from", "to", v)
		testutil.Must(t, err)
		return r
	}
	part := partName()
	r := open()
	if r.Part != "" || r.Done != 0 {
		t.Fatalf("a new record: %+v", r.recordJSON)
	}
	r.Part, r.PartID = part, 9
	testutil.Must(t, r.save(123<<20), r.save(99<<20)) // a shorter text
	if _, err := openRecord(dir, "from", "to", v); !errors.Is(err, errUnderWay) {
		t.Errorf("a record in use: %v", err)
	}
	r.close(true)
	path := r.path
	good, err := os.ReadFile(path)
	testutil.Must(t, err)
	restore := func() { testutil.Must(t, os.WriteFile(path, good, 0o600)) }

	if r = open(); r.Part != part || r.PartID != 9 || r.Done != 99<<20 {
		t.Errorf("a good record: %+v", r.recordJSON)
	}
	r.close(true)
	// Another mode is no other version.
	v.mode = 0o600
	if r = open(); r.Done == 0 {
		t.Error("a change of mode makes another version")
	}
	r.close(true)
	for name, edit := range map[string]func(*version){
		"file id": func(v *version) { v.FileID++ }, "size": func(v *version) { v.Size++ },
		"mtime": func(v *version) { v.MTime.Nsec++ }, "ctime": func(v *version) { v.CTime.Sec++ },
	} {
		other := v
		edit(&other)
		r, err := openRecord(dir, "from", "to", other)
		testutil.Must(t, err)
		if r.Part != "" || r.Done != 0 || !r.Source.same(other) || r.stale != part {
			t.Errorf("with another %s: %+v", name, r.recordJSON)
		}
		r.close(true)
	}
	text := string(good)
	for name, bad := range map[string]string{
		"empty": "", "cut short": text[:len(text)-1], "the end of a longer one": text + "}", "no JSON": "hello",
		"another copy":            strings.Replace(text, `"to":"to"`, `"to":"somewhere"`, 1),
		"a part elsewhere":        strings.Replace(text, part, "../"+part, 1),
		"a part of another name":  strings.Replace(text, part, "passwd", 1),
		"a part without a name":   strings.Replace(text, part, "", 1),
		"less than nothing done":  strings.Replace(text, `"done":`, `"done":-`, 1),
		"more done than there is": strings.Replace(text, `"done":`, `"done":9`, 1),
	} {
		if bad == text {
			t.Fatalf("%s: the same record", name)
		}
		testutil.Must(t, os.WriteFile(path, []byte(bad), 0o600))
		if r := open(); r.Part != "" || r.Done != 0 {
			t.Errorf("%s: %+v", name, r.recordJSON)
		} else {
			r.close(true)
		}
		restore()
	}
	// A record that is not kept is gone, and the next one is another file.
	r = open()
	r.close(false)
	if _, err := os.Stat(path); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a closed record: %v", err)
	}
	if r = open(); r.Done != 0 {
		t.Errorf("after the end of a copy: %+v", r.recordJSON)
	}
	r.close(false)
}

func TestPartNames(t *testing.T) {
	for range 100 {
		if name := partName(); !isPart(name) {
			t.Errorf("%s is not recognized", name)
		}
	}
	good := partName()
	for _, name := range []string{"", "file", ".rpcrdma-.part", good[1:], good + "x", "x" + good, strings.ToUpper(good), ".rpcrdma-" + strings.Repeat("/", 12) + ".part", ".rpcrdma-../../../abc.part"} {
		if isPart(name) {
			t.Errorf("%q is taken for an incomplete copy", name)
		}
	}
}

func TestSteps(t *testing.T) {
	for _, tt := range []struct{ done, size, calls int64 }{
		{0, 0, 0}, {0, 1, 1}, {0, resumeStep, 1}, {0, resumeStep + 1, 2}, {resumeStep, 3 * resumeStep, 2}, {5, resumeStep, 1}, {5, 2*resumeStep + 1, 3}, {7, 7, 0},
	} {
		at, calls := tt.done, int64(0)
		err := steps(tt.done, tt.size, func(from, to int64) error {
			if from != at || to <= from || to-from > resumeStep {
				t.Errorf("%+v: from %d to %d", tt, from, to)
			}
			at = to
			calls++
			return nil
		})
		if err != nil || at != tt.size || calls != tt.calls {
			t.Errorf("%+v: %d calls up to %d, %v", tt, calls, at, err)
		}
	}
	failure := errors.New("failure")
	if err := steps(0, 10, func(int64, int64) error { return failure }); err != failure {
		t.Error(err)
	}
}

// resumeSize is the size of a file of which three parts are safe one after the other, in bytes.
const resumeSize = 40<<20 + 1234

// A copy that is cut goes on where it was, if its original and what there is of it are still
// the same, and otherwise begins anew.
func TestResume(t *testing.T) {
	text := randomText(1, resumeSize)
	for _, verb := range []string{"get", "put", "cp"} {
		t.Run(verb, func(t *testing.T) {
			dir, local, cache := t.TempDir(), t.TempDir(), t.TempDir()
			s := startServer(t, "--dir", dir, "--async")
			source, target, to := filepath.Join(dir, "large"), filepath.Join(dir, "to", "copy"), filepath.Join(dir, "to")
			limit := int64(26 << 20)
			switch verb {
			case "get":
				target, to = filepath.Join(local, "copy"), local
			case "put":
				source, limit = filepath.Join(local, "large"), 9500
			case "cp":
				limit = 28 << 20
			}
			testutil.Must(t, os.MkdirAll(to, 0o755), os.WriteFile(source, []byte(text), 0o640))
			args := func(addr string) []string {
				switch verb {
				case "get":
					return []string{"get", "--resume", "--json", "nfs://" + addr + "/large", target}
				case "put":
					return []string{"put", "--resume", "--json", source, "nfs://" + addr + "/to/copy"}
				}
				return []string{"cp", "--resume", "--json", "nfs://" + addr + "/large", "nfs://" + addr + "/to/copy"}
			}
			// One address for all: it is part of what is copied.
			var addr string
			cut := func() (part string) {
				t.Helper()
				testutil.Must(t, os.RemoveAll(target))
				p := newProxy(t, s.addr, limit, true, true)
				addr = p.addr
				c := start(t, cache, args(addr)...)
				c.want(1, "connection lost", " MiB are kept, and the same command goes on from there")
				wantGone(t, target)
				parts, err := filepath.Glob(filepath.Join(to, ".rpcrdma-*.part"))
				if err != nil || len(parts) != 1 {
					t.Fatalf("%d incomplete copies, %v\n%s", len(parts), err, &c.stderr)
				}
				return parts[0]
			}
			finish := func(what string, anew bool, want string) {
				t.Helper()
				c := start(t, cache, args(addr)...)
				c.want(0)
				wantFile(t, target, want)
				r := decodeJSON[resultJSON](t, c.stdout.String())
				if (r.Bytes == int64(len(want))) != anew || r.Bytes > int64(len(want)) || r.Files != 1 {
					t.Errorf("%s: %d of %d bytes were copied, anew: want %v", what, r.Bytes, len(want), anew)
				}
				records, _ := filepath.Glob(filepath.Join(cache, "rpcrdma", "resume", "*"))
				parts, _ := filepath.Glob(filepath.Join(to, ".rpcrdma-*"))
				if len(records)+len(parts) > 0 {
					t.Errorf("%s: left behind: %v, %v", what, records, parts)
				}
				a, err := os.Stat(source)
				testutil.Must(t, err)
				b, err := os.Stat(target)
				testutil.Must(t, err)
				if !a.ModTime().Equal(b.ModTime()) || a.Mode() != b.Mode() {
					t.Errorf("%s: %v %v, the original has %v %v", what, b.Mode(), b.ModTime(), a.Mode(), a.ModTime())
				}
			}
			cut()
			finish("nothing has changed", false, text)
			c := start(t, cache, args(addr)...)
			c.want(0)
			if r := decodeJSON[resultJSON](t, c.stdout.String()); r.Bytes != 0 || r.Files != 0 || r.Unchanged != 1 {
				t.Errorf("a complete copy: %+v", r)
			}

			cut()
			other := randomText(2, resumeSize)
			testutil.Must(t, os.WriteFile(source, []byte(other), 0o640))
			finish("another original", true, other)

			part := cut()
			// By another file: the server may still be writing what came before the cut.
			replace := func(text string) {
				name := filepath.Join(to, "new")
				testutil.Must(t, os.WriteFile(name, []byte(text), 0o644), os.Rename(name, part))
			}
			replace(text[:1<<20])
			finish("a shorter copy", true, other)

			part = cut()
			if verb != "get" {
				replace(text)
				finish("another file in place of the copy", true, other)
				part = cut()
			}
			precious := filepath.Join(to, "precious")
			testutil.Must(t, os.WriteFile(precious, []byte(text), 0o644), os.Remove(part), os.Symlink("precious", part))
			finish("a link in place of the copy", true, other)
			wantFile(t, precious, text)

			cut()
			testutil.Must(t, os.WriteFile(source, []byte("small"), 0o640))
			finish("an original that has become small", true, "small")
		})
	}
}

// A copy with a record has the mode of its original, also where that is read-only.
func TestResumeMode(t *testing.T) {
	dir, local := t.TempDir(), t.TempDir()
	testutil.WriteFiles(t, dir, map[string]string{"large": randomText(1, resumeLeast)})
	testutil.Must(t, os.Chmod(filepath.Join(dir, "large"), 0o444))
	s := startServer(t, "--dir", dir, "--async")
	for _, args := range [][]string{
		{"get", "--resume", s.url("/large"), filepath.Join(local, "got")}, {"put", "--resume", filepath.Join(dir, "large"), s.url("/put")},
		{"cp", "--resume", s.url("/large"), s.url("/copy")},
	} {
		c := start(t, local, args...)
		c.want(0)
	}
	for _, name := range []string{filepath.Join(local, "got"), filepath.Join(dir, "put"), filepath.Join(dir, "copy")} {
		if info, err := os.Stat(name); err != nil || info.Mode() != 0o444 {
			t.Errorf("%s: %v, %v", name, info.Mode(), err)
		}
	}
}

// Of a record that cannot be written nothing is left.
func TestOpenPartWithoutRecord(t *testing.T) {
	dir := t.TempDir()
	root, err := os.OpenRoot(dir)
	testutil.Must(t, err)
	defer root.Close()
	rec, err := openRecord(t.TempDir(), "from", "to", version{Size: resumeLeast})
	testutil.Must(t, err, rec.file.Close()) // as good as a full disk
	f, err := openPart(localName{root, dir, "copy"}, rec, 0o644)
	if f != nil || !errors.Is(err, os.ErrClosed) {
		t.Errorf("%v, %v", f, err)
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
}

// serveDir exports a directory from this process, and returns a client of it and the server's URL.
func serveDir(t *testing.T, dir string) (c *nfs.Client, url string) {
	t.Helper()
	_, addr, _ := strings.Cut(serveHere(t, newServe(), "--dir", dir), "listening on ")
	addr, _, _ = strings.Cut(addr, " ")
	c, err := nfs.Dial(t.Context(), iwarp.New(iwarp.Config{}), addr, nil)
	testutil.Must(t, err)
	t.Cleanup(func() { c.Close() })
	return c, "nfs://" + addr
}

// A copy with a record is made once at a time.
func TestCopyUnderWay(t *testing.T) {
	dir, local, cache := t.TempDir(), t.TempDir(), t.TempDir()
	testutil.Must(t, os.WriteFile(filepath.Join(dir, "big"), make([]byte, resumeLeast), 0o644),
		os.MkdirAll(filepath.Join(cache, "rpcrdma", "resume"), 0o700))
	_, url := serveDir(t, dir)
	t.Setenv("XDG_CACHE_HOME", cache)
	r, err := openRecord(filepath.Join(cache, "rpcrdma", "resume"), url+"/big", filepath.Join(local, "big"), version{})
	testutil.Must(t, err)
	defer r.close(false)
	get := newGet()
	get.SetArgs([]string{"--resume", url + "/big", filepath.Join(local, "big")})
	get.SilenceErrors, get.SilenceUsage = true, true
	if err := get.Execute(); err == nil || !strings.HasSuffix(err.Error(), "/big: another copy of it with --resume is under way") {
		t.Error(err)
	}
}

// A failing disk takes what is written to it, and cannot keep it.
type failingDisk struct{ *os.File }

func (failingDisk) Sync() error { return syscall.EIO }

// What has not reached the disk is not recorded as safe.
func TestRecordAfterSync(t *testing.T) {
	dir := t.TempDir()
	testutil.Must(t, os.WriteFile(filepath.Join(dir, "large"), make([]byte, resumeLeast), 0o644))
	c, _ := serveDir(t, dir)
	tr := &transfer{remote: &remote{Client: c}, meter: new(meter)}
	node, err := tr.Stat(t.Context(), "/large")
	testutil.Must(t, err)
	v, err := versionOf(&node.Attr)
	testutil.Must(t, err)
	out, err := os.Create(filepath.Join(t.TempDir(), "copy"))
	testutil.Must(t, err)
	defer out.Close()
	rec, err := openRecord(t.TempDir(), "from", "to", v)
	testutil.Must(t, err)
	defer rec.close(false)
	err = tr.download(t.Context(), &node, &node.Attr, v, rec, &inTurn{file: failingDisk{out}}, 1)
	if !errors.Is(err, syscall.EIO) || rec.Done != 0 {
		t.Errorf("%d bytes are safe, %v", rec.Done, err)
	}
	if err := tr.download(t.Context(), &node, &node.Attr, v, rec, &inTurn{file: out}, 1); err != nil || rec.Done != v.Size {
		t.Errorf("on a disk that keeps it %d bytes are safe, %v", rec.Done, err)
	}
}

// What is complete of a tree is not copied again, unless it has changed at either end.
func TestResumeTree(t *testing.T) {
	dir, local, cache := t.TempDir(), t.TempDir(), t.TempDir()
	files := map[string]string{"a": "1", "b/c": "2", "b/d": "3", "e": "4", "link": "-> a"}
	testutil.WriteFiles(t, filepath.Join(dir, "tree"), files)
	testutil.WriteFiles(t, filepath.Join(local, "tree"), files)
	old := time.Unix(1_600_000_000, 987_654_321)
	for _, tree := range []string{dir, local} {
		testutil.Must(t, os.Chtimes(filepath.Join(tree, "tree", "a"), old, old))
	}
	s := startServer(t, "--dir", dir)
	for _, tt := range []struct {
		args             []string
		original, result string
	}{
		{[]string{"get", "-r", s.url("/tree"), filepath.Join(local, "got")}, filepath.Join(dir, "tree"), filepath.Join(local, "got")},
		{[]string{"put", "-r", filepath.Join(local, "tree"), s.url("/put")}, filepath.Join(local, "tree"), filepath.Join(dir, "put")},
		{[]string{"cp", "-r", s.url("/tree"), s.url("/cp")}, filepath.Join(dir, "tree"), filepath.Join(dir, "cp")},
	} {
		run := func(what string, copied, unchanged int) {
			t.Helper()
			c := start(t, cache, append(tt.args, "--resume", "--json")...)
			c.want(0)
			if r := decodeJSON[resultJSON](t, c.stdout.String()); r.Files != copied || r.Unchanged != unchanged || r.Links != 1 {
				t.Errorf("%s, %s: %+v", tt.args[0], what, r)
			}
			wantTree(t, tt.result, tt.original)
		}
		run("first", 4, 0)
		run("again", 0, 4)
		testutil.Must(t, os.Remove(filepath.Join(tt.result, "b", "d")),
			os.WriteFile(filepath.Join(tt.result, "e"), []byte("5"), 0o644),
			os.WriteFile(filepath.Join(tt.original, "a"), []byte("9"), 0o644))
		run("after changes", 3, 1)
		testutil.Must(t, os.WriteFile(filepath.Join(tt.original, "a"), []byte("1"), 0o644), os.Chtimes(filepath.Join(tt.original, "a"), old, old))
	}
	testutil.Must(t, os.WriteFile(filepath.Join(dir, "big"), nil, 0o644))
	start(t, filepath.Join(dir, "big"), "get", "--resume", s.url("/tree/a"), local).want(1, "not a directory\n")
}
