//go:build linux

package main

import (
	"bytes"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"time"
)

// initrdModules lists the modules that the guest needs to access the host's files. Immutable.
var initrdModules = []string{"virtio_pci", "9pnet_virtio", "9p", "overlay"}

// initrdDirs lists the mount points of guest/init. Immutable.
var initrdDirs = []string{"bin", "dev", "proc", "sys", "lower", "control", "changes", "host", "modules"}

// initrd returns the path of the kernel's initial RAM disk, which it creates if the cache lacks it.
func (h *host) initrd(ctx context.Context, k kernel) (string, error) {
	busybox, err := readProgram("busybox")
	if err != nil {
		return "", err
	}
	init, err := os.ReadFile(filepath.Join(h.scripts, "guest", "init"))
	if err != nil {
		return "", err
	}
	file := filepath.Join(k.dir, initrdName(init, busybox, initrdModules))
	if exists(file) {
		return file, nil
	}
	modules, err := loadModules(ctx, k.modules(), initrdModules)
	if err != nil {
		return "", err
	}
	// Any run that uses an older one has read it by now.
	if err := removeOld(k.dir, "initrd-*", 48*time.Hour); err != nil {
		return "", err
	}
	return file, writeWhole(file, packInitrd(init, busybox, modules))
}

func readProgram(name string) ([]byte, error) {
	file, err := exec.LookPath(name)
	if err != nil {
		return nil, err
	}
	return os.ReadFile(file)
}

// initrdName names an initial RAM disk by a hash of everything that determines its content, except the kernel, which
// has its own directory.
func initrdName(init, busybox []byte, modules []string) string {
	h := sha256.New()
	for _, part := range [][]byte{init, busybox, fmt.Appendf(nil, "%q", modules)} {
		fmt.Fprintf(h, "%d\n", len(part))
		h.Write(part)
	}
	return fmt.Sprintf("initrd-%x", h.Sum(nil)[:8])
}

// module is an uncompressed kernel module: busybox's insmod loads no other.
type module struct {
	name    string // of the file
	content []byte
}

// loadModules reads modules and their dependencies, in the order in which they are loaded.
func loadModules(ctx context.Context, dir string, names []string) (modules []module, err error) {
	tree, err := readModules(dir)
	if err != nil {
		return nil, err
	}
	files, err := tree.closure(names...)
	if err != nil {
		return nil, err
	}
	for _, file := range files {
		m := module{name: path.Base(file)}
		if m.content, err = readModule(ctx, filepath.Join(dir, file)); err != nil {
			return nil, err
		}
		if ext := path.Ext(m.name); unpackers[ext] != nil {
			m.name = m.name[:len(m.name)-len(ext)]
		}
		modules = append(modules, m)
	}
	return modules, nil
}

// unpackers maps the formats of compressed modules to programs. Immutable.
var unpackers = map[string][]string{
	".xz":  {"xz", "-dc"},
	".zst": {"zstd", "-qdc"},
}

func readModule(ctx context.Context, file string) ([]byte, error) {
	unpack := unpackers[filepath.Ext(file)]
	if unpack == nil {
		return os.ReadFile(file)
	}
	return output(ctx, unpack[0], append(unpack[1:len(unpack):len(unpack)], file)...)
}

// packInitrd creates the initial RAM disk: guest/init with busybox, and the modules, with a file that lists their
// order.
func packInitrd(init, busybox []byte, modules []module) []byte {
	var packed, order bytes.Buffer
	z, _ := gzip.NewWriterLevel(&packed, gzip.BestSpeed) // fails only for an invalid level
	c := &cpioWriter{w: z}
	for _, dir := range initrdDirs {
		c.dir(dir)
	}
	c.file("init", 0o755, init)
	c.file("bin/busybox", 0o755, busybox)
	for _, m := range modules {
		c.file("modules/"+m.name, 0o644, m.content)
		fmt.Fprintln(&order, m.name)
	}
	c.file("modules/order", 0o644, order.Bytes())
	// Writing to memory does not fail.
	_ = c.close()
	_ = z.Close()
	return packed.Bytes()
}

// writeWhole writes a file that other runs may look for: it appears once it is complete.
func writeWhole(file string, content []byte) error {
	part := fmt.Sprintf("%s.%d", file, os.Getpid())
	if err := os.WriteFile(part, content, 0o666); err != nil {
		return err
	}
	return os.Rename(part, file)
}

// removeOld removes files that have not been modified for some time.
func removeOld(dir, pattern string, age time.Duration) error {
	files, err := fs.Glob(os.DirFS(dir), pattern)
	if err != nil {
		return err
	}
	old := slices.DeleteFunc(files, func(name string) bool {
		info, err := os.Stat(filepath.Join(dir, name))
		return err != nil || time.Since(info.ModTime()) < age
	})
	for _, name := range old {
		if err := os.Remove(filepath.Join(dir, name)); err != nil {
			return err
		}
	}
	return nil
}
