//go:build linux && cgo

package main

import (
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/rpcrdma/rpcrdma/internal/posixtest"
)

// posixBed is the two sides of the checks on one file system, without the client.
func posixBed(t *testing.T) posixtest.Bed {
	t.Helper()
	top := ext4(t, 1024)
	b := posixtest.Bed{Oracle: filepath.Join(top, "oracle"), Export: filepath.Join(top, "export")}
	for _, dir := range []string{b.Oracle, b.Export} {
		if err := os.Mkdir(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	return b
}

// TestRDMALinuxPosix: what programs see of our server, mounted by the kernel's client, is what
// they see of a local file system, but for what NFS version 3 cannot do.
func TestRDMALinuxPosix(t *testing.T) {
	every := 1
	if !longTests() {
		every = 3
	}
	if s := os.Getenv("RPCRDMA_POSIX_EVERY"); s != "" {
		every, _ = strconv.Atoi(s)
	}
	onLinks(t, func(t *testing.T, l link) {
		b := posixBed(t)
		b.Mount = mountServer(t, l, b.Export, 0).mount
		begin := time.Now()
		count, list, err := b.Table(every)
		t.Logf("table: %d checks, %d differ, in %v", count, len(list), time.Since(begin).Round(time.Second))
		report(t, list, err)
		begin = time.Now()
		count, list, err = b.Listing(10_000)
		t.Logf("directory of 10,000 entries: %d checks, %d differ, in %v", count, len(list), time.Since(begin).Round(time.Second))
		report(t, list, err)
		begin = time.Now()
		count, list, err = b.Random(1, 1000)
		t.Logf("random operations: %d checks, %d differ, in %v", count, len(list), time.Since(begin).Round(time.Second))
		report(t, list, err)
	})
}

// TestRDMALinuxPosixKernel has the kernel's own server do the same, which tells what NFS
// version 3 and its client make different.
func TestRDMALinuxPosixKernel(t *testing.T) {
	if !longTests() {
		t.Skip("it is about the kernel's server: set RPCRDMA_LINUX_LONG")
	}
	b := posixBed(t)
	b.Mount = mountKernel(t, b.Export)
	every := 1
	if s := os.Getenv("RPCRDMA_POSIX_EVERY"); s != "" {
		every, _ = strconv.Atoi(s)
	}
	count, list, err := b.Table(every)
	t.Logf("table: %d checks, %d differ", count, len(list))
	report(t, list, err)
}

// report fails the test for what differs.
func report(t *testing.T, list []posixtest.Difference, err error) {
	t.Helper()
	if err != nil {
		t.Error(err)
	}
	for _, d := range list {
		t.Error(d)
	}
}
