//go:build unix

package pollfd

import (
	"errors"
	"os"
	"syscall"
	"testing"

	"github.com/rpcrdma/rpcrdma/internal/testing/leak"
)

func TestMain(m *testing.M) { os.Exit(leak.Main(m)) }

func pipe(t *testing.T) (*FD, int, int) {
	t.Helper()
	var p [2]int
	if err := syscall.Pipe(p[:]); err != nil {
		t.Fatal(err)
	}
	fd, err := New(p[0], "pipe")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { fd.Close(); syscall.Close(p[0]); syscall.Close(p[1]) })
	return fd, p[0], p[1]
}

func TestAwaitReadable(t *testing.T) {
	fd, r, w := pipe(t)
	for i := range 100 {
		go syscall.Write(w, []byte{byte(i)})
		var b [1]byte
		calls := 0
		if err := fd.Await(func() bool {
			calls++
			n, err := syscall.Read(r, b[:])
			if n != 1 && err != syscall.EAGAIN {
				t.Errorf("read: %d, %v", n, err)
			}
			return n == 1
		}); err != nil {
			t.Fatal(err)
		}
		if b[0] != byte(i) || calls > 3 {
			t.Fatalf("round %d: read %d in %d calls", i, b[0], calls)
		}
	}
}

func TestWake(t *testing.T) {
	fd, _, w := pipe(t)
	never := func() bool { return false }
	fd.Wake()
	if err := fd.Await(never); err != ErrWoken {
		t.Fatalf("woken before: %v", err)
	}
	for range 1000 {
		parked := make(chan struct{})
		done := make(chan error)
		go func() {
			done <- fd.Await(func() bool {
				select {
				case <-parked:
				default:
					close(parked)
				}
				return false
			})
		}()
		select {
		case <-parked:
			fd.Wake()
		case err := <-done: // the last wake once more
			if err != ErrWoken {
				t.Fatalf("woken twice: %v", err)
			}
			continue
		}
		if err := <-done; err != ErrWoken {
			t.Fatalf("woken while waiting: %v", err)
		}
	}
	// A wake that showed twice is over now, and the descriptor still works.
	syscall.Write(w, []byte{1})
	for {
		err := fd.Await(func() bool { return true })
		if err == nil {
			return
		}
		if err != ErrWoken {
			t.Fatal(err)
		}
	}
}

func TestClose(t *testing.T) {
	fd, _, _ := pipe(t)
	parked := make(chan struct{})
	done := make(chan error)
	go func() {
		done <- fd.Await(func() bool {
			select {
			case <-parked:
			default:
				close(parked)
			}
			return false
		})
	}()
	<-parked
	fd.Close()
	if err := <-done; !errors.Is(err, os.ErrClosed) {
		t.Errorf("while waiting: %v", err)
	}
	if err := fd.Await(func() bool { return true }); !errors.Is(err, os.ErrClosed) {
		t.Errorf("afterwards: %v", err)
	}
}

func TestAwaitAllocs(t *testing.T) {
	fd, _, _ := pipe(t)
	try := func() bool { return true }
	if n := testing.AllocsPerRun(100, func() { fd.Await(try) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func TestNotPollable(t *testing.T) {
	f, err := os.CreateTemp(t.TempDir(), "")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if fd, err := New(int(f.Fd()), "file"); err == nil {
		fd.Close()
		t.Error("a regular file was taken")
	}
}
