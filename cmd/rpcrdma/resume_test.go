package main

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/rpcrdma/rpcrdma/cmd/rpcrdma/internal/copying"
	"github.com/rpcrdma/rpcrdma/internal/testing/testutil"
)

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
			// One address for all: it is part of the copy's record.
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
				r := decodeJSON[copying.ResultJSON](t, c.stdout.String())
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
			if r := decodeJSON[copying.ResultJSON](t, c.stdout.String()); r.Bytes != 0 || r.Files != 0 || r.Unchanged != 1 {
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
	testutil.WriteFiles(t, dir, map[string]string{"large": randomText(1, copying.ResumeLeast)})
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

// Complete parts of a tree are not copied again, unless they have changed at either end.
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
			if r := decodeJSON[copying.ResultJSON](t, c.stdout.String()); r.Files != copied || r.Unchanged != unchanged || r.Links != 1 {
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
