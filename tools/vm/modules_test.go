//go:build linux

package main

import (
	"errors"
	"path/filepath"
	"slices"
	"testing"
)

// modulesDir is a directory as depmod leaves it, with the modules that are needed.
func modulesDir(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	write(t, filepath.Join(dir, "modules.dep"), `kernel/fs/overlayfs/overlay.ko:
kernel/fs/9p/9p.ko: kernel/net/9p/9pnet.ko kernel/fs/netfs/netfs.ko
kernel/net/9p/9pnet.ko: kernel/fs/netfs/netfs.ko
kernel/fs/netfs/netfs.ko:
kernel/net/9p/9pnet_virtio.ko: kernel/net/9p/9pnet.ko kernel/fs/netfs/netfs.ko
kernel/drivers/virtio/virtio-ring.ko.xz: kernel/drivers/virtio/b.ko kernel/drivers/virtio/a.ko
kernel/drivers/virtio/a.ko:
kernel/drivers/virtio/b.ko:
kernel/sound/soundcore.ko:
`)
	write(t, filepath.Join(dir, "modules.builtin"), "kernel/drivers/virtio/virtio_pci.ko\n")
	return dir
}

// TestClosure: each module comes once, after the modules it needs. What a module needs comes in the
// order of modprobe, from the end of the list.
func TestClosure(t *testing.T) {
	tree, err := readModules(modulesDir(t))
	if err != nil {
		t.Fatal(err)
	}
	got, err := tree.closure("virtio_pci", "9pnet_virtio", "9p", "virtio_ring", "overlay")
	want := []string{
		"kernel/fs/netfs/netfs.ko", "kernel/net/9p/9pnet.ko", "kernel/net/9p/9pnet_virtio.ko", "kernel/fs/9p/9p.ko",
		"kernel/drivers/virtio/a.ko", "kernel/drivers/virtio/b.ko", "kernel/drivers/virtio/virtio-ring.ko.xz", "kernel/fs/overlayfs/overlay.ko",
	}
	if err != nil || !slices.Equal(got, want) {
		t.Errorf("%v, %v\nwant %v", got, err, want)
	}
	var missing *moduleError
	if _, err := tree.closure("siw"); !errors.As(err, &missing) || missing.name != "siw" {
		t.Errorf("a missing module: %v", err)
	}
}
