package pieces

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"testing/iotest"
	"testing/synctest"
	"time"

	"github.com/rpcrdma/rpcrdma/internal/testing/leak"
	"github.com/rpcrdma/rpcrdma/internal/testing/testbed"
)

func TestMain(m *testing.M) {
	testbed.OpenDevices()
	os.Exit(leak.Main(m))
}

// A store has an object, and calls that take longer the earlier they are made, so that they return in
// the opposite order.
type store struct {
	mu     sync.Mutex
	data   []byte
	calls  int
	flight atomic.Int32
	most   atomic.Int32 // calls in flight at once
	short  int          // most bytes of a call; 0: any number
	failAt int64        // offset that cannot be read or written, below zero: none
}

var errBroken = errors.New("the disk is broken")

func (s *store) call(ctx context.Context) error {
	s.mu.Lock()
	s.calls++
	d := time.Duration(100-s.calls%7) * time.Millisecond
	s.mu.Unlock()
	for n := s.flight.Add(1); ; {
		most := s.most.Load()
		if n <= most || s.most.CompareAndSwap(most, n) {
			break
		}
	}
	defer s.flight.Add(-1)
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (s *store) read(ctx context.Context, p []byte, off int64) (int, error) {
	if err := s.call(ctx); err != nil {
		return 0, err
	}
	if s.failAt >= off && s.failAt < off+int64(len(p)) {
		return 0, errBroken
	}
	if s.short > 0 {
		p = p[:min(s.short, len(p))]
	}
	return copy(p, s.data[min(off, int64(len(s.data))):]), nil
}

func (s *store) write(ctx context.Context, p []byte, off int64) error {
	if err := s.call(ctx); err != nil {
		return err
	}
	if s.failAt >= off && s.failAt < off+int64(len(p)) {
		return errBroken
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if end := int(off) + len(p); end > len(s.data) {
		s.data = append(s.data, make([]byte, end-len(s.data))...)
	}
	copy(s.data[off:], p)
	return nil
}

func text(n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(i*7 + i>>8)
	}
	return b
}

var small = Options{Size: 100, Window: 4}

// TestObjects: an object is read and written as it is, whatever its length, with as many calls at once as the
// window has, and a short object with one.
func TestObjects(t *testing.T) {
	for _, n := range []int{0, 1, 99, 100, 101, 399, 400, 1000, 2345} {
		for name, f := range map[string]func(t *testing.T, s *store, want []byte) []byte{
			"Read": func(t *testing.T, s *store, want []byte) []byte {
				s.data = want
				r := NewReader(t.Context(), s.read, small)
				defer r.Close()
				if err := iotest.TestReader(r, want); err != nil {
					t.Error(err)
				}
				return want
			},
			"Read, by calls that return less": func(t *testing.T, s *store, want []byte) []byte {
				s.data, s.short = want, 7
				r := NewReader(t.Context(), s.read, small)
				defer r.Close()
				got, err := io.ReadAll(iotest.OneByteReader(r))
				if err != nil {
					t.Error(err)
				}
				return got
			},
			"WriteTo": func(t *testing.T, s *store, want []byte) []byte {
				s.data = want
				r := NewReader(t.Context(), s.read, small)
				defer r.Close()
				var b bytes.Buffer
				if k, err := io.Copy(&b, r); k != int64(n) || err != nil {
					t.Error(k, err)
				}
				return b.Bytes()
			},
			"Write": func(t *testing.T, s *store, want []byte) []byte {
				w := NewWriter(t.Context(), s.write, small)
				for p := want; len(p) > 0; p = p[min(len(p), 33):] {
					if k, err := w.Write(p[:min(len(p), 33)]); k != min(len(p), 33) || err != nil {
						t.Fatal(k, err)
					}
				}
				if err := w.Close(); err != nil {
					t.Error(err)
				}
				return s.data
			},
			"ReadFrom": func(t *testing.T, s *store, want []byte) []byte {
				w := NewWriter(t.Context(), s.write, small)
				if k, err := io.Copy(w, iotest.HalfReader(bytes.NewReader(want))); k != int64(n) || err != nil {
					t.Error(k, err)
				}
				if err := errors.Join(w.Close(), w.Close()); err != nil {
					t.Error(err)
				}
				if _, err := w.Write([]byte("x")); err != io.ErrClosedPipe {
					t.Error(err)
				}
				return s.data
			},
		} {
			t.Run(name, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					s := &store{failAt: -1}
					if got := f(t, s, text(n)); !bytes.Equal(got, text(n)) {
						t.Errorf("of %d bytes %d are there, or they are others", n, len(got))
					}
					want := int32(small.Window)
					if n < small.Size {
						want = 1
					}
					if got := s.most.Load(); got > want || n >= 1000 && got < want {
						t.Errorf("%d calls at once for %d bytes, want %d", got, n, want)
					}
				})
			})
		}
	}
}

// TestFailures: the error of a call is that of the stream, in the order of the object when reading. Afterwards no
// call is under way.
func TestFailures(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &store{data: text(2000), failAt: 730}
		r := NewReader(t.Context(), s.read, small)
		if got, err := io.ReadAll(r); err != errBroken || !bytes.Equal(got, s.data[:700]) {
			t.Errorf("%d bytes, %v", len(got), err)
		}
		r.Close()
		w := NewWriter(t.Context(), s.write, small)
		if _, err := w.ReadFrom(bytes.NewReader(text(5000))); err != errBroken {
			t.Error(err)
		}
		if err := w.Close(); err != errBroken || w.Close() != errBroken {
			t.Error(err)
		}
		if _, err := w.Write([]byte("x")); err != errBroken {
			t.Error(err)
		}
		if n := s.flight.Load(); n != 0 {
			t.Errorf("%d calls are under way", n)
		}
	})
}

// TestGivenUp: a stream that is closed, or with a context that ends, leaves no call, and does not wait for the
// calls' time.
func TestGivenUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &store{data: text(2000), failAt: -1}
		r := NewReader(t.Context(), s.read, small)
		io.ReadFull(r, make([]byte, 150))
		start := time.Now()
		r.Close()
		if _, err := r.Read(make([]byte, 1)); err != io.ErrClosedPipe || time.Since(start) > 0 || s.flight.Load() > 0 {
			t.Errorf("%v after %v, %d calls are under way", err, time.Since(start), s.flight.Load())
		}
		ctx, cancel := context.WithTimeout(t.Context(), 250*time.Millisecond)
		defer cancel()
		w := NewWriter(ctx, s.write, small)
		if _, err := io.Copy(w, bytes.NewReader(text(5000))); err != context.DeadlineExceeded || w.Close() != err || s.flight.Load() > 0 {
			t.Errorf("%v, %d calls are under way", err, s.flight.Load())
		}
	})
}
