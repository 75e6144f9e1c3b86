//go:build linux && cgo

package ibv

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

func TestRegMRRDMA(t *testing.T) {
	onDevices(t, nil, func(t *testing.T, c *Context) {
		pd := must[*PD](t)(c.AllocPD())
		for what, buf := range map[string][]byte{
			"Go memory":            make([]byte, 100_000),
			"a byte":               make([]byte, 1),
			"memory from mmap":     mmapped(t, 1<<20),
			"beside a pointer":     inside(),
			"a part of it":         mmapped(t, 1<<20)[4097:9999],
			"read-only permission": mmapped(t, 4096),
		} {
			access := AccessLocalWrite | AccessRemoteRead | AccessRemoteWrite
			if strings.HasPrefix(what, "read-only") {
				access = 0
			}
			mr, err := pd.RegMR(buf, access)
			if err != nil {
				t.Errorf("%s: %v", what, err)
				continue
			}
			if &mr.Bytes()[0] != &buf[0] || len(mr.Bytes()) != len(buf) || mr.LKey() == 0 {
				t.Errorf("%s: %d bytes, key %#x", what, len(mr.Bytes()), mr.LKey())
			}
			runtime.GC()
			for range 2 {
				if err := mr.Close(); err != nil {
					t.Errorf("closing %s: %v", what, err)
				}
			}
		}
	})
}

// inside returns memory in an object that has a pointer, too.
func inside() []byte {
	p := new(struct {
		next *byte
		data [100_000]byte
	})
	p.next = new(byte)
	return p.data[:]
}

// TestRegMRErrorRDMA: what cannot be registered leaves no pin and no object.
func TestRegMRErrorRDMA(t *testing.T) {
	onDevices(t, nil, func(t *testing.T, c *Context) {
		pd := must[*PD](t)(c.AllocPD())
		for _, tt := range []struct {
			what   string
			buf    []byte
			access Access
		}{
			{"remote writing without local writing", make([]byte, 4096), AccessRemoteWrite},
			{"remote atomics without local writing", make([]byte, 4096), AccessRemoteAtomic},
			{"memory that is not there", hole(t), AccessLocalWrite},
			{"memory that cannot be written", readOnly(t), AccessLocalWrite},
		} {
			mr, err := pd.RegMR(tt.buf, tt.access)
			if err == nil {
				mr.Close()
				t.Errorf("%s can be registered", tt.what)
				continue
			}
			var e *Error
			if !errors.As(err, &e) || e.Call != "ibv_reg_mr" || e.Device != c.Info().Name || !errors.As(err, new(syscall.Errno)) {
				t.Errorf("%s: %v", tt.what, err)
			}
			t.Logf("%s: %v", tt.what, err)
		}
		// Registering nothing is the device's decision; either way nothing is left.
		mr, err := pd.RegMR(nil, AccessLocalWrite)
		t.Logf("nothing: %v", err)
		if err == nil {
			mr.Close()
		} else if !errors.As(err, new(*Error)) {
			t.Errorf("nothing: %v", err)
		}
	})
}

// hole is memory that has been given back.
func hole(t *testing.T) []byte {
	t.Helper()
	b, err := unix.Mmap(-1, 0, 1<<20, unix.PROT_NONE, unix.MAP_ANON|unix.MAP_PRIVATE|unix.MAP_NORESERVE)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Munmap(b) })
	return b
}

func readOnly(t *testing.T) []byte {
	t.Helper()
	b := mmapped(t, 4096)
	if err := unix.Mprotect(b, unix.PROT_READ); err != nil {
		t.Fatal(err)
	}
	return b
}

// TestMemlockRDMA: the error of a process that may lock nothing says so.
func TestMemlockRDMA(t *testing.T) {
	onDevices(t, nil, func(t *testing.T, c *Context) {
		pd := must[*PD](t)(c.AllocPD())
		var old unix.Rlimit
		if err := unix.Getrlimit(unix.RLIMIT_MEMLOCK, &old); err != nil {
			t.Fatal(err)
		}
		for _, limit := range []uint64{0, 64 << 10} {
			if err := unix.Setrlimit(unix.RLIMIT_MEMLOCK, &unix.Rlimit{Cur: limit, Max: old.Max}); err != nil {
				t.Fatal(err)
			}
			withoutCaps(t, func() {
				mr, err := pd.RegMR(mmapped(t, 1<<20), AccessLocalWrite)
				if err == nil {
					mr.Close()
				}
				var low *MemlockError
				if !errors.As(err, &low) {
					t.Errorf("registering 1 MiB of %d bytes: %v", limit, err)
					return
				}
				if low.Limit != limit || low.Requested != 1<<20 || !errors.As(err, new(syscall.Errno)) || strings.Contains(err.Error(), "\n") {
					t.Errorf("%+v", low)
				}
				t.Log(err)
			})
			if err := unix.Setrlimit(unix.RLIMIT_MEMLOCK, &old); err != nil {
				t.Fatal(err)
			}
		}
		// Registered memory counts.
		mr := must[*MR](t)(pd.RegMR(mmapped(t, 1<<20), AccessLocalWrite))
		if m := lockedMemory(); m.locked < 1<<20 {
			t.Errorf("%d bytes are locked, with a region of 1 MiB", m.locked)
		}
		if err := mr.Close(); err != nil {
			t.Error(err)
		}
	})
}

func TestMemlockExplains(t *testing.T) {
	low := memlock{limit: 64 << 10, locked: 60 << 10}
	for _, tt := range []struct {
		m         memlock
		errno     syscall.Errno
		requested uint64
		blames    bool
	}{
		{low, syscall.ENOMEM, 8 << 10, true},
		{low, syscall.EAGAIN, 8 << 10, true},
		{low, syscall.EPERM, 8 << 10, true},
		{memlock{}, syscall.EPERM, 1, true},
		{low, syscall.EINVAL, 8 << 10, false},
		{low, syscall.ENOMEM, 4 << 10, false},
		{memlock{limit: 64 << 10, exempt: true}, syscall.ENOMEM, 1 << 20, false},
	} {
		err := tt.m.explain("ibv_reg_mr", "rxe0", tt.errno, tt.requested)
		var e *MemlockError
		if errors.As(err, &e) != tt.blames || !errors.Is(err, tt.errno) {
			t.Errorf("%+v, %v for %d bytes: %v", tt.m, tt.errno, tt.requested, err)
		}
	}
	const want = "ibv: ibv_reg_mr on rxe0: cannot allocate memory: locked memory is limited to 65536 bytes, 61440 are in use and 8192 more were needed: " +
		"raise it with ulimit -l, LimitMEMLOCK= (systemd) or --ulimit memlock=-1 (containers), or give the process CAP_IPC_LOCK"
	if got := low.explain("ibv_reg_mr", "rxe0", syscall.ENOMEM, 8<<10).Error(); got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}

func TestPageBytes(t *testing.T) {
	page := uint64(unix.Getpagesize())
	b := mmapped(t, int(4*page))
	for _, tt := range []struct{ from, to, want uint64 }{
		{0, 0, 0}, {0, 1, 1}, {0, page, 1}, {0, page + 1, 2}, {page - 1, page + 1, 2}, {1, 3 * page, 3}, {page, 4 * page, 3},
	} {
		if got := pageBytes(b[tt.from:tt.to]); got != tt.want*page {
			t.Errorf("[%d:%d] lies in %d bytes of pages", tt.from, tt.to, got)
		}
	}
}

// TestFork: what this kernel says, and ForkInit in a process of its own: it is for
// good, and too late after the first registration.
func TestFork(t *testing.T) {
	const child = "IBV_TEST_FORK_CHILD"
	status := IsForkInitialized()
	if os.Getenv(child) != "" {
		for range 2 {
			if err := ForkInit(); err != nil {
				t.Error(err)
			}
		}
		if s := IsForkInitialized(); s != ForkEnabled && s != ForkUnneeded || s == ForkUnneeded && status != s {
			t.Errorf("%v was %v before ForkInit", s, status)
		}
		return
	}
	t.Log(status)
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, exe, "-test.run=^TestFork$")
	cmd.Env = append(os.Environ(), child+"=1")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("%v: %s", err, out)
	}
}
