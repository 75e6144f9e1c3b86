//go:build linux

package main

import (
	"bytes"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

// cpioEntry is a file as the kernel reads it.
type cpioEntry struct {
	mode, links int64
	content     string
}

// readCpio reads an archive by the kernel's rules: names and contents are at
// multiples of four.
func readCpio(t *testing.T, archive []byte) map[string]cpioEntry {
	t.Helper()
	entries := map[string]cpioEntry{}
	for at := 0; ; {
		if string(archive[at:at+6]) != "070701" {
			t.Fatalf("no entry at byte %d: %q", at, archive[at:at+6])
		}
		field := func(i int) int64 {
			n, err := strconv.ParseInt(string(archive[at+6+8*i:at+14+8*i]), 16, 64)
			if err != nil {
				t.Fatal(err)
			}
			return n
		}
		e := cpioEntry{mode: field(1), links: field(4)}
		size, nameSize := int(field(6)), int(field(11))
		name := string(archive[at+110 : at+110+nameSize-1])
		if archive[at+110+nameSize-1] != 0 {
			t.Fatalf("the name %q does not end", name)
		}
		at = (at + 110 + nameSize + 3) &^ 3
		e.content = string(archive[at : at+size])
		at = (at + size + 3) &^ 3
		if name == "TRAILER!!!" {
			if at != len(archive) {
				t.Errorf("%d bytes behind the end", len(archive)-at)
			}
			return entries
		}
		entries[name] = e
	}
}

func unzip(t *testing.T, packed []byte) []byte {
	t.Helper()
	z, err := gzip.NewReader(bytes.NewReader(packed))
	if err != nil {
		t.Fatal(err)
	}
	text, err := io.ReadAll(z)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// TestPackInitrd: what guest/init expects is there, for contents of all remainders by four.
func TestPackInitrd(t *testing.T) {
	modules := []module{{"virtio.ko", []byte("v")}, {"9p.ko", []byte("9p")}, {"overlay.ko", []byte("ovl")}}
	got := readCpio(t, unzip(t, packInitrd([]byte("#!/bin/busybox sh\n"), []byte("busy"), modules)))
	want := map[string]cpioEntry{
		"init":               {0o100755, 1, "#!/bin/busybox sh\n"},
		"bin/busybox":        {0o100755, 1, "busy"},
		"modules/virtio.ko":  {0o100644, 1, "v"},
		"modules/9p.ko":      {0o100644, 1, "9p"},
		"modules/overlay.ko": {0o100644, 1, "ovl"},
		"modules/order":      {0o100644, 1, "virtio.ko\n9p.ko\noverlay.ko\n"},
	}
	for _, dir := range initrdDirs {
		want[dir] = cpioEntry{0o040755, 2, ""}
	}
	if !maps.Equal(got, want) {
		t.Errorf("got  %v\nwant %v", got, want)
	}
}

// TestCpioReadsOurs: the program cpio unpacks what we write.
func TestCpioReadsOurs(t *testing.T) {
	if _, err := exec.LookPath("cpio"); err != nil {
		t.Skip("cpio is not installed, as a second opinion")
	}
	cmd := exec.Command("cpio", "-i", "--to-stdout", "--quiet", "modules/order")
	cmd.Stdin = bytes.NewReader(unzip(t, packInitrd([]byte("init"), []byte("busybox"), []module{{"a.ko", []byte("1")}})))
	if out, err := cmd.CombinedOutput(); err != nil || string(out) != "a.ko\n" {
		t.Errorf("%q, %v", out, err)
	}
}

type brokenWriter struct{ left int }

func (w *brokenWriter) Write(p []byte) (int, error) {
	if w.left -= len(p); w.left < 0 {
		return 0, io.ErrShortWrite
	}
	return len(p), nil
}

func TestCpioErrorsStick(t *testing.T) {
	c := &cpioWriter{w: &brokenWriter{left: 130}}
	c.dir("bin")
	c.file("init", 0o755, []byte("init"))
	if err := c.close(); !errors.Is(err, io.ErrShortWrite) {
		t.Errorf("%v", err)
	}
}

// TestInitrdName: every part of the content counts, and where it ends.
func TestInitrdName(t *testing.T) {
	seen := map[string]string{}
	for _, c := range []struct {
		init, busybox string
		modules       []string
	}{
		{"init", "busybox", []string{"9p"}},
		{"init2", "busybox", []string{"9p"}},
		{"init", "2busybox", []string{"9p"}},
		{"init", "busybox", []string{"9p", "overlay"}},
		{"init", "busybox", []string{"9p overlay"}},
	} {
		name := initrdName([]byte(c.init), []byte(c.busybox), c.modules)
		if other, ok := seen[name]; ok {
			t.Errorf("%v has the name of %s", c, other)
		}
		seen[name] = fmt.Sprint(c)
		if again := initrdName([]byte(c.init), []byte(c.busybox), c.modules); again != name {
			t.Errorf("%s, and %s the next time", name, again)
		}
	}
}

// TestInitrd packs once, for a kernel with modules of several formats.
func TestInitrd(t *testing.T) {
	h, k := fakeHost(t)
	fakePrograms(t, map[string]string{"busybox": "", "xz": `sed s/packed/plain/ "$2"` + "\n"})
	write(t, filepath.Join(k.modules(), "modules.dep"),
		"a/9pnet_virtio.ko:\na/9p.ko.xz: a/netfs.ko\na/netfs.ko:\na/overlay.ko:\n")
	write(t, filepath.Join(k.modules(), "modules.builtin"), "a/virtio_pci.ko\n")
	for _, name := range []string{"9pnet_virtio.ko", "9p.ko.xz", "netfs.ko", "overlay.ko"} {
		write(t, filepath.Join(k.modules(), "a", name), "packed "+name)
	}
	old, recent := filepath.Join(k.dir, "initrd-old"), filepath.Join(k.dir, "initrd-recent")
	write(t, old, "x")
	write(t, recent, "x")
	before := time.Now().Add(-72 * time.Hour)
	if err := os.Chtimes(old, before, before); err != nil {
		t.Fatal(err)
	}

	file, err := h.initrd(t.Context(), k)
	if err != nil {
		t.Fatal(err)
	}
	packed, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	files := readCpio(t, unzip(t, packed))
	if got, want := strings.Fields(files["modules/order"].content), []string{"9pnet_virtio.ko", "netfs.ko", "9p.ko", "overlay.ko"}; !slices.Equal(got, want) {
		t.Errorf("modules %v, want %v", got, want)
	}
	if got := files["modules/9p.ko"].content; got != "plain 9p.ko.xz" {
		t.Errorf("the compressed module is %q", got)
	}
	if exists(old) || !exists(recent) {
		t.Error("of the others, only the old one had to go")
	}
	write(t, file, "kept")
	if again, err := h.initrd(t.Context(), k); err != nil || again != file {
		t.Errorf("%s, %v; want %s", again, err, file)
	}
	if text, _ := os.ReadFile(file); string(text) != "kept" {
		t.Error("it was packed again")
	}
}
