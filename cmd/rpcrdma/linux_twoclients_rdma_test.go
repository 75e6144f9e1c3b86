//go:build linux && cgo

package main

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rpcrdma/rpcrdma/internal/testing/testutil"
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

// views count what two clients have looked at, after they no longer believed their attributes.
type views struct {
	looked  int
	stale   int // what was wrong
	oneTick int // stale after both changes of a directory got one time: no server can distinguish them
}

func (v views) String() string {
	return fmt.Sprintf("%d of %d lookups and listings are stale, of these %d after changes within a tick of the clock", v.stale, v.looked, v.oneTick)
}

// changed returns when an inode changed last, in nanoseconds. A file that has just got a name, another
// name or none has changed at the same time as the directory, or a tick before: ext4 asks the clock for each. Its
// time of birth may be earlier: a server can make a file before it gives it a name.
func changed(t *testing.T, name string) int64 {
	t.Helper()
	var x unix.Statx_t
	testutil.Must(t, unix.Statx(unix.AT_FDCWD, name, unix.AT_SYMLINK_NOFOLLOW, unix.STATX_CTIME, &x))
	return x.Ctime.Sec*1e9 + int64(x.Ctime.Nsec)
}

// staleViews has two clients change directories until end, and counts what they see of it.
//
// In each round both clients first cache that the other's name does not exist. Then each makes one file
// in each directory, at the same time as the other. A client that takes the change of the other for its
// own, as attributes before and after its own change enclose both, keeps what it has cached.
func staleViews(t *testing.T, exported string, mounts [2]string, end time.Time) (v views) {
	t.Helper()
	const dirs = 32
	var res unix.Timespec
	testutil.Must(t, unix.ClockGetres(unix.CLOCK_REALTIME_COARSE, &res)) // of the times of inodes
	tick := res.Nano()
	steps := []struct {
		what  string
		do    func(dir string, who int) error
		there [2]string // the name of each client that is there afterwards
	}{
		{"CREATE", func(dir string, who int) error {
			return os.WriteFile(filepath.Join(dir, fmt.Sprint("made", who)), nil, 0o666)
		}, [2]string{"made0", "made1"}},
		{"RENAME", func(dir string, who int) error {
			return os.Rename(filepath.Join(dir, fmt.Sprint("made", who)), filepath.Join(dir, fmt.Sprint("moved", who)))
		}, [2]string{"moved0", "moved1"}},
		{"REMOVE", func(dir string, who int) error { return os.Remove(filepath.Join(dir, fmt.Sprint("moved", who))) }, [2]string{}},
	}
	for round := 0; round == 0 || time.Now().Before(end); round++ {
		at := func(i int) string { return fmt.Sprintf("round%d-%d", round, i) }
		for i := range dirs {
			if err := os.Mkdir(filepath.Join(mounts[0], at(i)), 0o777); err != nil {
				t.Fatal(err)
			}
		}
		kept := func(i, who int) string { return filepath.Join(exported, fmt.Sprintf("kept%d-%d", i, who)) }
		var oneTick [dirs]bool // whether both have changed a directory within a tick
		wrong := func(after string, i int, format string, args ...any) {
			t.Helper()
			if v.stale++; oneTick[i] {
				v.oneTick++
				return
			}
			t.Logf("after %s in %s: %s", after, at(i), fmt.Sprintf(format, args...))
		}
		// check compares what each client sees of the other's names with what is there.
		check := func(after string, there [2]string) {
			t.Helper()
			time.Sleep(cacheTime + cacheTime/4)
			for i := range dirs {
				want := slices.DeleteFunc(there[:], func(name string) bool { return name == "" })
				for who, m := range mounts {
					for _, name := range []string{fmt.Sprint("made", 1-who), fmt.Sprint("moved", 1-who)} {
						_, err := os.Lstat(filepath.Join(m, at(i), name))
						if v.looked++; (err == nil) != slices.Contains(want, name) {
							wrong(after, i, "client %d, %s: %v", who, name, err)
						}
					}
					list, err := os.ReadDir(filepath.Join(m, at(i)))
					if err != nil {
						t.Fatal(err)
					}
					if v.looked++; !slices.EqualFunc(list, want, func(e os.DirEntry, name string) bool { return e.Name() == name }) {
						wrong(after, i, "client %d lists %v, want %v", who, list, want)
					}
				}
			}
		}
		check("MKDIR", [2]string{})
		for _, step := range steps {
			var wg sync.WaitGroup
			for who := range mounts {
				wg.Go(func() {
					for i := range dirs {
						if err := step.do(filepath.Join(mounts[who], at(i)), who); err != nil {
							t.Errorf("client %d: %v", who, err)
						}
					}
				})
			}
			wg.Wait()
			for i := range dirs {
				file := func(who int) string { return kept(i, who) }
				created := step.what == "CREATE"
				if created {
					file = func(who int) string { return filepath.Join(exported, at(i), fmt.Sprint("made", who)) }
				}
				apart := changed(t, file(0)) - changed(t, file(1))
				oneTick[i] = -tick <= apart && apart <= tick
				if created { // links show when the names are changed later
					testutil.Must(t, os.Link(file(0), kept(i, 0)), os.Link(file(1), kept(i, 1)))
				}
			}
			check(step.what, step.there)
		}
		for i := range dirs {
			testutil.Must(t, os.Remove(filepath.Join(exported, at(i))), os.Remove(kept(i, 0)), os.Remove(kept(i, 1)))
		}
	}
	return v
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
		v := staleViews(t, exported, server.mounts, time.Now().Add(window))
		t.Logf("%s: %v", server.name, v)
		if v.stale > v.oneTick && server.mounts == ours {
			t.Errorf("%s: %v", server.name, v)
		}
	}
}
