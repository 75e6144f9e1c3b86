//go:build linux && cgo

package main

import (
	"fmt"
	"maps"
	"net"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"
)

// cacheTime is how long the mounts of twoMounts believe the attributes of a directory.
const cacheTime = time.Second

// twoMounts mounts source twice. Each mount has a cache of its own, as if it were on another machine.
func twoMounts(t *testing.T, source, options string) (mounts [2]string) {
	t.Helper()
	for i := range mounts {
		mounts[i] = publicDir(t)
		sh(t, "mount", "-t", "nfs", "-o", options+",nosharecache,acdirmin=1,acdirmax=1", source, mounts[i])
		t.Cleanup(func() { sh(t, "umount", mounts[i]) })
	}
	return mounts
}

// staleViews has two clients change one directory until end, and returns how many names they have
// looked up, and how many a client had wrong after it no longer believed its attributes.
//
// In each round a client first caches that the names of the other do not exist. Then both make theirs
// at the same time. A client that takes the change of the other for its own keeps what it has cached.
func staleViews(t *testing.T, exported string, mounts [2]string, end time.Time) (looked, stale int) {
	t.Helper()
	const files = 16
	name := func(who, i int) string { return fmt.Sprintf("of%d-%d", who, i) }
	// both has both clients do something at the same time.
	both := func(f func(who int) error) {
		t.Helper()
		var wg sync.WaitGroup
		var errs [2]error
		for who := range mounts {
			wg.Go(func() { errs[who] = f(who) })
		}
		wg.Wait()
		for who, err := range errs {
			if err != nil {
				t.Fatalf("client %d: %v", who, err)
			}
		}
	}
	for round := 0; round == 0 || time.Now().Before(end); round++ {
		dir := fmt.Sprintf("round%d", round)
		if err := os.Mkdir(filepath.Join(mounts[0], dir), 0o777); err != nil {
			t.Fatal(err)
		}
		time.Sleep(cacheTime + cacheTime/4)
		there := make(map[string]bool) // what there is at the server
		check := func() {
			t.Helper()
			time.Sleep(cacheTime + cacheTime/4)
			for who, m := range mounts {
				list, err := os.ReadDir(filepath.Join(m, dir))
				if err != nil {
					t.Fatal(err)
				}
				listed := make(map[string]bool)
				for _, e := range list {
					listed[e.Name()] = true
				}
				if looked++; !maps.Equal(listed, there) {
					stale++
					t.Logf("round %d: client %d lists %v, there are %v", round, who, slices.Sorted(maps.Keys(listed)), slices.Sorted(maps.Keys(there)))
				}
				for i := range files {
					other := name(1-who, i)
					_, err := os.Lstat(filepath.Join(m, dir, other))
					if looked++; (err == nil) != there[other] {
						stale++
						t.Logf("round %d: client %d, %s: %v", round, who, other, err)
					}
				}
			}
		}
		check() // and caches that nothing is there
		both(func(who int) error {
			for i := range files {
				if err := os.WriteFile(filepath.Join(mounts[who], dir, name(who, i)), nil, 0o666); err != nil {
					return err
				}
			}
			return nil
		})
		for i := range files {
			there[name(0, i)], there[name(1, i)] = true, true
		}
		check()
		both(func(who int) error {
			for i := range files / 2 {
				if err := os.Remove(filepath.Join(mounts[who], dir, name(who, i))); err != nil {
					return err
				}
				if err := os.Rename(filepath.Join(mounts[who], dir, name(who, files/2+i)), filepath.Join(mounts[who], dir, name(who, i))); err != nil {
					return err
				}
			}
			return nil
		})
		for i := range files / 2 {
			delete(there, name(0, files/2+i))
			delete(there, name(1, files/2+i))
		}
		check()
		if err := os.RemoveAll(filepath.Join(exported, dir)); err != nil {
			t.Fatal(err)
		}
	}
	return looked, stale
}

// TestRDMALinuxTwoClients: two clients that change one directory see what the other has done, as with
// the kernel's own server (RFC 1813 section 2.6, wcc_data).
func TestRDMALinuxTwoClients(t *testing.T) {
	kernelServer(t)
	window := 5 * time.Second
	if longTests() {
		window = 10 * time.Minute
	}
	exported := ext4(t, 256) // a disk that takes its time to sync
	s := mountServer(t, link{"rxe", "rdma"}, exported, 0)
	host, rdmaPort, _ := net.SplitHostPort(s.addr)
	_, mountPort, _ := net.SplitHostPort(s.tcp)
	ours := twoMounts(t, host+":/", mountOptions(rdmaPort, mountPort))
	source, options := exportKernel(t, exported)
	kernels := twoMounts(t, source, options)
	for _, server := range []struct {
		name   string
		mounts [2]string
	}{{"ours", ours}, {"the kernel's", kernels}} {
		looked, stale := staleViews(t, exported, server.mounts, time.Now().Add(window))
		t.Logf("%s: %d of %d lookups and listings are stale", server.name, stale, looked)
		if stale > 0 && server.mounts == ours {
			t.Errorf("%s: %d of %d lookups and listings are stale", server.name, stale, looked)
		}
	}
}
