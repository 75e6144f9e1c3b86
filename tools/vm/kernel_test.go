//go:build linux

package main

import (
	"archive/tar"
	"bytes"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

func TestSourcePackage(t *testing.T) {
	for release, want := range map[string]string{
		"6.1.0-48-amd64":     "linux-source-6.1",
		"7.2.13+deb14-amd64": "linux-source-7.2",
		"6.12-cloud":         "linux-source-6.12",
	} {
		if got := sourcePackage(release); got != want {
			t.Errorf("%s: %s, want %s", release, got, want)
		}
	}
}

func TestRelocated(t *testing.T) {
	got := relocated([]byte("# generated\ninclude /usr/src/linux-headers-6.1-common/Makefile\n"), "/build/files")
	if want := "include /build/files/usr/src/linux-headers-6.1-common/Makefile\n"; string(got) != want {
		t.Errorf("%q, want %q", got, want)
	}
}

// archive is a tar file with the given names; each file contains its name.
func archive(t *testing.T, names ...string) io.Reader {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, name := range names {
		h := &tar.Header{Name: name, Typeflag: tar.TypeReg, Mode: 0o644, Size: int64(len(name))}
		if strings.HasSuffix(name, "/") {
			h.Typeflag, h.Size = tar.TypeDir, 0
		}
		if err := w.WriteHeader(h); err != nil {
			t.Fatal(err)
		}
		if h.Size > 0 {
			if _, err := w.Write([]byte(name)); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return &b
}

func TestTarEntry(t *testing.T) {
	const pattern = "usr/src/linux-source-*.tar.xz"
	r, err := tarEntry(archive(t, "./", "./usr/share/doc/linux-source-6.1.tar.xz", "./usr/src/linux-source-6.1.tar.xz", "./z"), pattern)
	if err != nil {
		t.Fatal(err)
	}
	if text, err := io.ReadAll(r); err != nil || string(text) != "./usr/src/linux-source-6.1.tar.xz" {
		t.Errorf("%q, %v", text, err)
	}
	if _, err := tarEntry(archive(t, "./usr/src/patch.xz"), pattern); err == nil {
		t.Error("an archive without the file is no error")
	}
}

func TestExtract(t *testing.T) {
	const from = "drivers/infiniband/sw/siw"
	dir := filepath.Join(t.TempDir(), "siw")
	err := extract(archive(t, "linux-6.1/", "linux-6.1/"+from+"/", "linux-6.1/"+from+"/siw.h", "linux-6.1/"+from+"/Makefile",
		"linux-6.1/drivers/infiniband/sw/rxe/rxe.h", "linux-6.1/README"), from, dir)
	if err != nil {
		t.Fatal(err)
	}
	files, _ := os.ReadDir(dir)
	if len(files) != 2 || files[0].Name() != "Makefile" || files[1].Name() != "siw.h" {
		t.Errorf("%v", files)
	}
	if text, _ := os.ReadFile(filepath.Join(dir, "siw.h")); string(text) != "linux-6.1/"+from+"/siw.h" {
		t.Errorf("%q", text)
	}
	if err := extract(archive(t, "linux-6.1/README"), from, filepath.Join(t.TempDir(), "none")); err == nil {
		t.Error("a source without the directory is no error")
	}
}

func TestHasModule(t *testing.T) {
	dir := t.TempDir()
	write(t, filepath.Join(dir, "kernel", "siwx.ko"), "")
	if hasModule(dir, "siw") {
		t.Error("another module counts")
	}
	write(t, filepath.Join(dir, "kernel", "sw", "siw.ko.xz"), "")
	if !hasModule(dir, "siw") {
		t.Error("a compressed module is not found")
	}
}

// TestUncompress: what follows the boot code is an xz stream, and more follows that.
func TestUncompress(t *testing.T) {
	if _, err := exec.LookPath("xz"); err != nil {
		t.Skip("xz is not installed, which packs the kernel")
	}
	pack := func(text string) []byte {
		cmd := exec.Command("xz", "-c")
		cmd.Stdin = strings.NewReader(text)
		out, err := cmd.Output()
		if err != nil {
			t.Fatal(err)
		}
		return append(append([]byte("boot code"), out...), "trailer"...)
	}
	for name, c := range map[string]struct{ image, want []byte }{
		"a kernel":             {pack("\x7fELF kernel"), []byte("\x7fELF kernel")},
		"xz of something else": {pack("no kernel"), pack("no kernel")},
		"another format":       {[]byte("boot code, zstd"), []byte("boot code, zstd")},
	} {
		file := filepath.Join(t.TempDir(), "kernel")
		write(t, file, string(c.image))
		if err := uncompress(t.Context(), file); err != nil {
			t.Fatal(err)
		}
		if got, _ := os.ReadFile(file); !bytes.Equal(got, c.want) {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
}

// TestKernelFromCache: a kernel that is there is neither fetched nor locked, and its path
// has no link.
func TestKernelFromCache(t *testing.T) {
	h := &host{cache: realTemp(t)}
	write(t, filepath.Join(h.cache, "6.1.0-48-amd64", "kernel"), "kernel")
	if err := relink("6.1.0-48-amd64", filepath.Join(h.cache, "linux-image-amd64")); err != nil {
		t.Fatal(err)
	}
	k, err := h.kernel(t.Context(), "linux-image-amd64")
	if err != nil || k.dir != filepath.Join(h.cache, "6.1.0-48-amd64") || k.release() != "6.1.0-48-amd64" {
		t.Errorf("%+v, %v", k, err)
	}
	if exists(filepath.Join(h.cache, "lock")) {
		t.Error("it was locked")
	}
	write(t, filepath.Join(h.cache, "7.2", "kernel"), "kernel")
	if err := relink("7.2", filepath.Join(h.cache, "linux-image-amd64")); err != nil {
		t.Fatal(err)
	}
	if k, err = h.kernel(t.Context(), "linux-image-amd64"); err != nil || k.release() != "7.2" {
		t.Errorf("after the link has changed: %+v, %v", k, err)
	}
}

func TestNoKernelInDirectoryWithSpace(t *testing.T) {
	h := &host{cache: filepath.Join(t.TempDir(), "my cache")}
	if err := h.canBuild(); err == nil || !strings.Contains(err.Error(), "RPCRDMA_VM_CACHE") {
		t.Errorf("%v", err)
	}
}
