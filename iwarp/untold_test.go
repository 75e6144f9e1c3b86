//go:build linux

package iwarp

import (
	"slices"
	"testing"
	"time"

	"github.com/rpcrdma/rpcrdma/fabric"
)

// TestUntold: several deferred requests without a completion get one together with the
// completion of something else. It is never a reason to wake up.
func TestUntold(t *testing.T) {
	const quiet, told = fabric.Deferred, fabric.Signaled
	for _, tt := range []struct {
		name  string
		flags []fabric.SendFlags // of requests with the IDs 1, 2, ...
		alone []uint64           // completions of them without a message, if one of them is signaled
		with  []uint64           // completions of them with the next message
	}{
		{"too few", []fabric.SendFlags{quiet}, nil, nil},
		{"enough", []fabric.SendFlags{quiet, quiet}, nil, []uint64{2}},
		{"more", []fabric.SendFlags{quiet, quiet, quiet, quiet, quiet, quiet}, nil, []uint64{6}},
		{"others do not count", []fabric.SendFlags{0, quiet, 0, 0}, nil, nil},
		{"others behind them", []fabric.SendFlags{quiet, quiet, quiet, quiet, 0, 0}, nil, []uint64{4}},
		{"a signaled one stands for those before it", []fabric.SendFlags{quiet, quiet, quiet, quiet, told, quiet}, []uint64{5}, nil},
		{"enough behind a signaled one", []fabric.SendFlags{told, quiet, quiet, quiet, quiet}, []uint64{1, 5}, nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			a, b := join(t, New(Config{}), fabric.ConnAttr{})
			bufs := make([][]byte, len(tt.flags))
			for i := range bufs {
				bufs[i] = make([]byte, 8)
			}
			postRecv(t, b, bufs...)
			postRecv(t, a, make([]byte, 8))
			for i, f := range tt.flags {
				post(t, a, fabric.SendWR{ID: uint64(i) + 1, Op: fabric.OpSend, Flags: f, SGL: []fabric.SGE{{Buf: []byte("reply")}}})
			}
			if got := a.ready(); got != (len(tt.alone) > 0) {
				t.Fatalf("Wait would return: %t", got)
			}
			sent := func(wcs []fabric.WC) (ids []uint64) {
				for _, wc := range wcs {
					if wc.Status != fabric.WCSuccess {
						t.Errorf("%d completes with %v", wc.ID, wc.Status)
					}
					if wc.Op == fabric.WCSend {
						ids = append(ids, wc.ID)
					}
				}
				return ids
			}
			if got := sent(poll(t, a)); !slices.Equal(got, tt.alone) {
				t.Errorf("completions without a message: %v, want %v", got, tt.alone)
			}
			next(t, b) // from now on b may send
			post(t, b, fabric.SendWR{Op: fabric.OpSend, SGL: []fabric.SGE{{Buf: []byte("call")}}})
			var wcs []fabric.WC
			for end := time.Now().Add(patience); len(wcs) == 0; wcs = poll(t, a) {
				if time.Now().After(end) {
					t.Fatal("the message has not come")
				}
			}
			if got := sent(wcs); !slices.Equal(got, tt.with) || wcs[0].Op != fabric.WCRecv {
				t.Errorf("completions with a message: %+v, want %v behind it", wcs, tt.with)
			}
			if a.ready() || len(poll(t, a)) > 0 {
				t.Error("a completion is told twice")
			}
		})
	}

	t.Run("a poll without room", func(t *testing.T) {
		a, b := join(t, New(Config{}), fabric.ConnAttr{})
		postRecv(t, b, make([]byte, 8), make([]byte, 8), make([]byte, 8), make([]byte, 8))
		postRecv(t, a, make([]byte, 8), make([]byte, 8))
		for range tellQuiet {
			post(t, a, fabric.SendWR{ID: 7, Op: fabric.OpSend, Flags: quiet})
		}
		next(t, b)
		post(t, b, fabric.SendWR{Op: fabric.OpSend}, fabric.SendWR{Op: fabric.OpSend})
		var got []fabric.WC
		for end := time.Now().Add(patience); len(got) < 2; {
			var wc [1]fabric.WC
			n, err := a.Poll(wc[:])
			if err != nil || time.Now().After(end) {
				t.Fatalf("completions %+v: %v", got, err)
			}
			got = append(got, wc[:n]...)
		}
		for i := range got {
			if got[i].Op != fabric.WCRecv {
				t.Errorf("completion %d is %+v", i, got[i])
			}
		}
	})
}
