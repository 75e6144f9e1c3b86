//go:build linux && cgo

package main

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rpcrdma/rpcrdma/internal/testing/rdmatest"
)

// rates are those of a client at a server, per second.
type rates struct {
	write, read            float64 // MiB
	create, status, remove float64 // files
}

// measure has the client use a directory of a server.
func measure(t *testing.T, dir string, size, files int) (r rates) {
	t.Helper()
	path := filepath.Join(dir, "data")
	b := make([]byte, 1<<20)
	timed := func(n int, f func() error) float64 {
		t.Helper()
		begin := time.Now()
		if err := f(); err != nil {
			t.Fatal(err)
		}
		return float64(n) / time.Since(begin).Seconds()
	}
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	r.write = timed(size, func() error {
		for range size {
			if _, err := f.Write(b); err != nil {
				return err
			}
		}
		return f.Sync()
	})
	// Not from the client's cache.
	if err := unix.Fadvise(int(f.Fd()), 0, 0, unix.FADV_DONTNEED); err != nil {
		t.Fatal(err)
	}
	r.read = timed(size, func() error {
		for i := range size {
			if _, err := f.ReadAt(b, int64(i)<<20); err != nil {
				return err
			}
		}
		return nil
	})
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	each := func(f func(path string) error) func() error {
		return func() error {
			for i := range files {
				if err := f(filepath.Join(dir, fmt.Sprintf("file%d", i))); err != nil {
					return err
				}
			}
			return nil
		}
	}
	r.create = timed(files, each(func(path string) error {
		f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o644)
		if err != nil {
			return err
		}
		return f.Close()
	}))
	// Names and attributes, not from the client's cache.
	if err := os.WriteFile("/proc/sys/vm/drop_caches", []byte("2"), 0o200); err != nil {
		t.Fatal(err)
	}
	r.status = timed(files, each(func(path string) error {
		_, err := os.Stat(path)
		return err
	}))
	r.remove = timed(files, each(os.Remove))
	return r
}

func median(list []float64) float64 {
	slices.Sort(list)
	return list[len(list)/2]
}

// TestRDMALinuxRates compares our server with the kernel's, on the same file system and over rxe,
// in turns: files of 64 MiB, and files that are made, looked at and removed.
func TestRDMALinuxRates(t *testing.T) {
	top, _ := kernelServer(t)
	rdmatest.Device(t, "rxe")
	// A short run has to reach a part of the goals only: what it measures most of is the host.
	rounds, size, files, part := 2, 8, 40, 0.1
	if longTests() {
		rounds, size, files, part = 5, 64, 200, 1
	}
	exported := filepath.Join(top, "rates")
	if err := os.Mkdir(exported, 0o755); err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(exported)
	dirs := [2]string{mountServer(t, link{"rxe", "rdma"}, exported, 0).mount, mountKernel(t, exported)}
	var all [2][]rates
	for round := range rounds + 1 {
		for i := range dirs {
			who := (round + i) % 2
			dir := filepath.Join(dirs[who], fmt.Sprintf("of%d", who))
			if err := os.MkdirAll(dir, 0o755); err != nil {
				t.Fatal(err)
			}
			if r := measure(t, dir, size, files); round > 0 { // the first is for the caches
				all[who] = append(all[who], r)
			}
		}
	}
	for _, m := range []struct {
		what string
		of   func(r rates) float64
		goal float64
	}{
		{fmt.Sprintf("write %d MiB, MiB/s", size), func(r rates) float64 { return r.write }, 0.9},
		{fmt.Sprintf("read %d MiB, MiB/s", size), func(r rates) float64 { return r.read }, 0.9},
		{"create a file, 1/s", func(r rates) float64 { return r.create }, 0.7},
		{"stat a file, 1/s", func(r rates) float64 { return r.status }, 0.7},
		{"remove a file, 1/s", func(r rates) float64 { return r.remove }, 0.7},
	} {
		var ours, theirs, ratios []float64
		for i := range all[0] {
			a, b := m.of(all[0][i]), m.of(all[1][i])
			ours, theirs, ratios = append(ours, a), append(theirs, b), append(ratios, a/b)
		}
		t.Logf("%-24s ours %7.0f, the kernel's %7.0f, ratio %.2f (goal %.1f)", m.what, median(ours), median(theirs), median(ratios), m.goal)
		if median(ratios) < part*m.goal {
			t.Errorf("%s: the ratio is %.2f, want %.2f", m.what, median(ratios), part*m.goal)
		}
	}
}
