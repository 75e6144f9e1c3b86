package posixtest

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// newBed is a bed of two directories of one local file system, which must not differ.
func newBed(t *testing.T) Bed {
	t.Helper()
	top := t.TempDir()
	if err := os.Chmod(filepath.Dir(top), 0o755); err != nil {
		t.Fatal(err)
	}
	b := Bed{Oracle: filepath.Join(top, "oracle"), Export: filepath.Join(top, "export")}
	b.Mount = b.Export
	for _, dir := range []string{b.Oracle, b.Export} {
		if err := os.Mkdir(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	return b
}

// want fails the test for all that differs.
func want(t *testing.T, least int) func(count int, list []Difference, err error) {
	return func(count int, list []Difference, err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range list {
			t.Error(d)
		}
		if count < least {
			t.Errorf("%d checks, want at least %d", count, least)
		}
		t.Logf("%d checks", count)
	}
}

// TestSame: a local file system does not differ from itself, so what checks compare depends on
// nothing else.
func TestSame(t *testing.T) {
	b := newBed(t)
	t.Run("table", func(t *testing.T) { want(t, 300)(b.Table(13)) })
	t.Run("listing", func(t *testing.T) { want(t, 100)(b.Listing(200)) })
	t.Run("random", func(t *testing.T) { want(t, 500)(b.Random(1, 500)) })
	for _, side := range b.sides() {
		if left, err := os.ReadDir(side); err != nil || len(left) > 0 {
			t.Errorf("%d entries are left in %s, %v", len(left), side, err)
		}
	}
}

func TestNamesDiffer(t *testing.T) {
	names := Names()
	slices.Sort(names)
	for i := range names {
		if i > 0 && names[i] == names[i-1] {
			t.Errorf("two checks are named %q", names[i])
		}
	}
}

// TestDifferences: what a check compares is noticed when it differs.
func TestDifferences(t *testing.T) {
	people, leave := enter()
	defer leave()
	// The side is known by its name.
	other := func(p *program) bool { return strings.Contains(p.dir, "/export/") }
	for what, do := range map[string]func(p *program){
		"calls": func(p *program) {
			if other(p) {
				p.did("stat", unix.ENOENT)
			}
		},
		"what is left": func(p *program) {
			if other(p) {
				must(unix.Chmod(p.at("x"), 0o600))
			} else {
				must(unix.Chmod(p.at("x"), 0o644)) // the times change, too
			}
		},
		"times that change": func(p *program) {
			if other(p) {
				must(unix.Chmod(p.at("x"), 0o644))
			}
		},
		"contents": func(p *program) {
			text := "Hello, world"
			if other(p) {
				text = "Hello, earth"
			}
			must(os.WriteFile(p.at("x"), []byte(text), 0o644))
		},
	} {
		b := newBed(t)
		list, err := b.run([]*check{{
			name: "broken", who: people.root, times: true, do: do,
			prepare: func(dir string) { (&maker{dir: dir, alone: people.alone}).file("x", ownerID, 0o644) },
		}})
		if err != nil || len(list) != 1 || list[0].What != what {
			t.Errorf("%s: %v, %v", what, list, err)
		}
	}
}

func TestBothRefuse(t *testing.T) {
	for _, tt := range []struct {
		want, got string
		same      bool
	}{
		{"rmdir: EACCES", "rmdir: ENOTDIR", true},
		{"rmdir: EEXIST", "rmdir: EPERM", true},
		{"rmdir: EACCES", "rmdir: ok", false},
		{"rmdir: ENOENT", "rmdir: ENOTDIR", false},
		{"open: ok; read: EACCES", "open: EACCES; read: ENOTDIR", false},
		{"lchown 1:1: EPERM", "lchown 1:1: EROFS", true},
		{"", "", false},
	} {
		if bothRefuse(tt.want, tt.got) != tt.same {
			t.Errorf("%q and %q", tt.want, tt.got)
		}
	}
}
