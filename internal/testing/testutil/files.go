package testutil

import (
	"bytes"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// update is the flag of every test binary that links this package.
var update = flag.Bool("update", false, "write the golden files anew")

// Patience is how long a condition may take to become true.
const Patience = 20 * time.Second

// Must ends the test at the first error that is not nil.
func Must(t testing.TB, errs ...error) {
	t.Helper()
	for _, err := range errs {
		if err != nil {
			t.Fatal(err)
		}
	}
}

// Eventually waits until f returns true. It ends the test if that takes longer than [Patience].
func Eventually(t testing.TB, what string, f func() bool) {
	t.Helper()
	for end := time.Now().Add(Patience); !f(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("after %v still not true: %s", Patience, what)
		}
	}
}

// WriteFiles creates files below dir, including parent directories, from slash-separated names and contents. A name
// that ends in a slash creates a directory, and contents that begin with "-> " create a symbolic link.
func WriteFiles(t testing.TB, dir string, files map[string]string) {
	t.Helper()
	for name, text := range files {
		path := filepath.Join(dir, filepath.FromSlash(name))
		Must(t, os.MkdirAll(filepath.Dir(path), 0o755))
		switch target, link := strings.CutPrefix(text, "-> "); {
		case link:
			Must(t, os.Symlink(target, path))
		case strings.HasSuffix(name, "/"):
			Must(t, os.MkdirAll(path, 0o755))
		default:
			Must(t, os.WriteFile(path, []byte(text), 0o644))
		}
	}
}

// Golden compares got with the contents of a file. With -update, it writes the file instead.
func Golden(t testing.TB, file string, got []byte) {
	t.Helper()
	if *update {
		Must(t, os.WriteFile(file, got, 0o666))
		return
	}
	want, err := os.ReadFile(file)
	Must(t, err)
	if !bytes.Equal(got, want) {
		t.Errorf("differs from %s; got\n%s", file, got)
	}
}
