package copying

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/rpcrdma/rpcrdma/cmd/rpcrdma/internal/cmdtest"
	"github.com/rpcrdma/rpcrdma/cmd/rpcrdma/internal/remote"
	"github.com/rpcrdma/rpcrdma/cmd/rpcrdma/internal/serving"
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
	part := remote.PartName()
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
		if name := remote.PartName(); !remote.IsPart(name) {
			t.Errorf("%s is not recognized", name)
		}
	}
	good := remote.PartName()
	for _, name := range []string{"", "file", ".rpcrdma-.part", good[1:], good + "x", "x" + good, strings.ToUpper(good), ".rpcrdma-" + strings.Repeat("/", 12) + ".part", ".rpcrdma-../../../abc.part"} {
		if remote.IsPart(name) {
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

// Of a record that cannot be written nothing is left.
func TestOpenPartWithoutRecord(t *testing.T) {
	dir := t.TempDir()
	root, err := os.OpenRoot(dir)
	testutil.Must(t, err)
	defer root.Close()
	rec, err := openRecord(t.TempDir(), "from", "to", version{Size: ResumeLeast})
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
	_, addr, _ := strings.Cut(cmdtest.Serve(t, serving.New(), "--dir", dir), "listening on ")
	addr, _, _ = strings.Cut(addr, " ")
	c, err := nfs.Dial(t.Context(), iwarp.New(iwarp.Config{}), addr, nil)
	testutil.Must(t, err)
	t.Cleanup(func() { c.Close() })
	return c, "nfs://" + addr
}

// A copy with a record is made once at a time.
func TestCopyUnderWay(t *testing.T) {
	dir, local, cache := t.TempDir(), t.TempDir(), t.TempDir()
	testutil.Must(t, os.WriteFile(filepath.Join(dir, "big"), make([]byte, ResumeLeast), 0o644),
		os.MkdirAll(filepath.Join(cache, "rpcrdma", "resume"), 0o700))
	_, url := serveDir(t, dir)
	t.Setenv("XDG_CACHE_HOME", cache)
	r, err := openRecord(filepath.Join(cache, "rpcrdma", "resume"), url+"/big", filepath.Join(local, "big"), version{})
	testutil.Must(t, err)
	defer r.close(false)
	get := NewGet()
	get.SetArgs([]string{"--resume", url + "/big", filepath.Join(local, "big")})
	get.SilenceErrors, get.SilenceUsage = true, true
	if err := get.Execute(); err == nil || !strings.HasSuffix(err.Error(), "/big: another copy of it with --resume is under way") {
		t.Error(err)
	}
}

// A failing disk takes what is written to it, and cannot keep it.
type failingDisk struct{ *os.File }

func (failingDisk) Sync() error { return syscall.EIO }

// Data that has not reached the disk is not recorded as safe.
func TestRecordAfterSync(t *testing.T) {
	dir := t.TempDir()
	testutil.Must(t, os.WriteFile(filepath.Join(dir, "large"), make([]byte, ResumeLeast), 0o644))
	c, _ := serveDir(t, dir)
	tr := &transfer{Target: &remote.Target{Client: c}, meter: new(meter)}
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
