package rdmatest

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
)

// A spy is a test with an end that is looked at.
type spy struct {
	testing.TB
	skipped, failed string
}

func (s *spy) Skip(args ...any) { s.skipped = fmt.Sprint(args...); runtime.Goexit() }

func (s *spy) Fatalf(format string, args ...any) {
	s.failed = fmt.Sprintf(format, args...)
	runtime.Goexit()
}

// end returns the outcome of a test.
func end(t *testing.T, f func(t testing.TB) string) (addr string, s *spy) {
	s = &spy{TB: t}
	done := make(chan struct{})
	go func() {
		defer close(done)
		addr = f(s)
	}()
	<-done
	return addr, s
}

func TestDevice(t *testing.T) {
	t.Setenv("RPCRDMA_RXE_ADDR", "192.0.2.1")
	t.Setenv("RPCRDMA_RXE_ADDR6", "")
	t.Setenv("RPCRDMA_SIW_ADDR", "")
	t.Setenv("RPCRDMA_SIW_ADDR6", "2001:db8::1")
	device := func(kind string) func(testing.TB) string {
		return func(t testing.TB) string { return Device(t, kind) }
	}
	device6 := func(kind string) func(testing.TB) string {
		return func(t testing.TB) string { return Device6(t, kind) }
	}
	for _, tt := range []struct {
		what, require string
		find          func(testing.TB) string
		addr          string
		skips, fails  bool
	}{
		{"there", "", device("rxe"), "192.0.2.1", false, false},
		{"there, as it has to", "rxe,siw", device("rxe"), "192.0.2.1", false, false},
		{"not there", "", device("siw"), "", true, false},
		{"another has to be there", "rxe", device("siw"), "", true, false},
		{"not there, and has to", "rxe,siw", device("siw"), "", false, true},
		{"of version 6", "", device6("siw"), "2001:db8::1", false, false},
		{"not of version 6", "rxe", device6("rxe"), "", true, false},
	} {
		t.Setenv("RPCRDMA_REQUIRE", tt.require)
		addr, s := end(t, tt.find)
		if addr != tt.addr || (s.skipped != "") != tt.skips || strings.HasPrefix(s.failed, "RPCRDMA_REQUIRE names ") != tt.fails {
			t.Errorf("%s: %q, skipped %q, failed %q", tt.what, addr, s.skipped, s.failed)
		}
	}
	if addrs := Addrs(); !slices.Equal(addrs, []string{"192.0.2.1"}) {
		t.Errorf("addresses are %q", addrs)
	}
}

// The reason is a true one: a machine with devices is not said to have none.
func TestLack(t *testing.T) {
	dir := t.TempDir()
	for _, none := range []string{dir, filepath.Join(dir, "missing")} {
		if what := lack("X", none); what != "no RDMA device is on this machine ("+none+" is empty): run it with scripts/vm" {
			t.Error(what)
		}
	}
	if err := os.Mkdir(filepath.Join(dir, "rxe0"), 0o755); err != nil {
		t.Fatal(err)
	}
	if what := lack("X", dir); what != "X does not tell an address of a device" {
		t.Error(what)
	}
}

func TestOnDevices(t *testing.T) {
	t.Setenv("RPCRDMA_RXE_ADDR", "192.0.2.1")
	t.Setenv("RPCRDMA_SIW_ADDR", "192.0.2.2")
	var got []string
	OnDevices(t, func(t *testing.T, kind, addr string) { got = append(got, t.Name()+" "+kind+" "+addr) })
	if want := []string{"TestOnDevices/rxe rxe 192.0.2.1", "TestOnDevices/siw siw 192.0.2.2"}; !slices.Equal(got, want) {
		t.Errorf("ran %q, want %q", got, want)
	}
}
