//go:build linux

package iwarp

import (
	"testing"

	"github.com/rpcrdma/rpcrdma/internal/llp"
)

// A full is a socket that always has bytes to read, and never room.
type full struct{ llp.Stream }

func (full) Writev([]iovec) (int, error)  { return 0, errAgain }
func (full) Readv(v []iovec) (int, error) { return len(iovecBytes(&v[0])), nil }

// TestFlood: a peer that asks for key updates and reads no answer loses the connection. What this end has to
// send counts for nothing there.
func TestFlood(t *testing.T) {
	r := &records{below: full{}}
	r.hold(true)
	for range 100 {
		r.Write(make([]byte, recordLen)) // of encrypt
	}
	r.hold(false)
	answer := make([]byte, 27)
	for n := 0; ; n += len(answer) {
		_, err := r.Read(make([]byte, 1))
		if err != nil {
			if err != errFlood || n <= mostAnswered || n > mostAnswered+len(answer) {
				t.Errorf("%v after %d bytes", err, n)
			}
			return
		}
		if n > 10*mostAnswered {
			t.Fatalf("no end after %d bytes", n)
		}
		r.Write(answer)
	}
}
