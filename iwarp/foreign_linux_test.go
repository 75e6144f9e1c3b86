package iwarp_test

import (
	"errors"
	"math"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/rpcrdma/rpcrdma/fabric"
	"github.com/rpcrdma/rpcrdma/fabric/fabrictest"
	"github.com/rpcrdma/rpcrdma/iwarp"
)

// mappings counts those of a file in this process.
func mappings(t *testing.T, name string) int {
	t.Helper()
	maps, err := os.ReadFile("/proc/self/maps")
	if err != nil {
		t.Fatal(err)
	}
	return strings.Count(string(maps), "/memfd:"+name)
}

// TestForeignMappings: a mapping ends with its region, or with the connection.
func TestForeignMappings(t *testing.T) {
	const name = "mapped by iwarp"
	fd, err := unix.MemfdCreate(name, unix.MFD_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	f := os.NewFile(uintptr(fd), name)
	defer f.Close()
	if err := f.Truncate(1 << 20); err != nil {
		t.Fatal(err)
	}
	a, _ := fabrictest.Pair(t, iwarp.New(iwarp.Config{}), fabrictest.Setup{})
	for range 3 {
		if _, err := a.RegForeign(fabric.Foreign{File: f, Addr: 100, Len: 5000}, fabric.AccessRemoteRead); err != nil {
			t.Fatal(err)
		}
	}
	mr, err := a.RegForeign(fabric.Foreign{File: f, Addr: 8192, Len: 10}, fabric.AccessLocalWrite)
	if err != nil {
		t.Fatal(err)
	}
	if n := mappings(t, name); n != 4 {
		t.Errorf("%d mappings for 4 regions", n)
	}
	mr.Close()
	mr.Close()
	if n := mappings(t, name); n != 3 {
		t.Errorf("%d mappings for 3 regions", n)
	}
	for _, tt := range []struct {
		name string
		mem  fabric.Foreign
		want error
	}{
		{"nothing", fabric.Foreign{File: f}, iwarp.ErrMisuse},
		{"more than there are addresses", fabric.Foreign{Addr: 4096, Len: math.MaxUint64}, iwarp.ErrMisuse},
		{"beyond the last offset", fabric.Foreign{File: f, Addr: math.MaxInt64 - 1, Len: 4096}, iwarp.ErrMisuse},
		{"at address 0", fabric.Foreign{Len: 4096}, iwarp.ErrMisuse},
		{"a file that cannot be mapped", fabric.Foreign{File: os.NewFile(uintptr(pipe(t)), "pipe"), Len: 4096}, unix.EACCES},
		{"a right that there is not", fabric.Foreign{File: f, Len: 4096}, fabric.ErrNotSupported},
	} {
		access := fabric.AccessRemoteRead
		if tt.want == fabric.ErrNotSupported {
			access = 1 << 7
		}
		if _, err := a.RegForeign(tt.mem, access); !errors.Is(err, tt.want) {
			t.Errorf("%s: %v, want %v", tt.name, err, tt.want)
		}
	}
	a.Close()
	if n := mappings(t, name); n != 0 {
		t.Errorf("%d mappings after Close", n)
	}
	if _, err := a.RegForeign(fabric.Foreign{File: f, Len: 10}, 0); err == nil || mappings(t, name) != 0 {
		t.Errorf("a region of a connection that is closed: %v", err)
	}
}

// pipe returns the end of a pipe to read from.
func pipe(t *testing.T) int {
	t.Helper()
	var p [2]int
	if err := unix.Pipe2(p[:], unix.O_CLOEXEC); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Close(p[1]) })
	return p[0]
}
