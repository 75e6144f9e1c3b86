package transport_test

import (
	"fmt"
	"sync"
	"testing"

	"github.com/rpcrdma/rpcrdma/proto/xdr"
	"github.com/rpcrdma/rpcrdma/rpc"
)

// TestTCPAllocsPerCall counts the allocations of both ends together, for calls that reuse the same Call.
func TestTCPAllocsPerCall(t *testing.T) {
	if raceEnabled {
		t.Skip("the race detector allocates")
	}
	w := startTCP(t, nil)
	cl := w.dial(t, nil)
	data, buf := make([]byte, 1<<20), make([]byte, 1<<20)
	null := rpc.Call{Prog: prog, Vers: 1}
	var small, slow, large rpc.Call
	made := rpc.Call{Prog: prog, Vers: 1, Proc: procMake, Args: xdr.AppendUint32(xdr.AppendUint32(nil, 1<<18), 0), MaxResults: 1<<18 + 4}
	for _, tt := range []struct {
		name string
		call func() error
		want float64
	}{
		{"null", func() error { return cl.Call(bg, &null) }, 0},
		{"echo of 64 bytes, inline", func() error { return echo(cl, procEcho, data[:64], buf, &small) }, 0},
		{"echo of 64 bytes, on a goroutine", func() error { return echo(cl, procSlow, data[:64], buf, &slow) }, 0},
		{"echo of 1 MiB", func() error { return echo(cl, procSlow, data, buf, &large) }, 0},
		{"256 KiB from Alloc", func() error { return cl.Call(bg, &made) }, 0},
	} {
		for range 100 {
			if err := tt.call(); err != nil {
				t.Fatal(tt.name, err)
			}
		}
		n := testing.AllocsPerRun(500, func() {
			if err := tt.call(); err != nil {
				t.Fatal(tt.name, err)
			}
		})
		if n > tt.want {
			t.Errorf("%s: %v allocations per call, want at most %v", tt.name, n, tt.want)
		}
	}
}

// BenchmarkTCP makes calls over the loopback interface, by one caller and by many.
func BenchmarkTCP(b *testing.B) {
	for _, tt := range []struct {
		name    string
		proc    uint32
		size    int
		callers int
	}{
		{"null", 0, 0, 1},
		{"echo", procEcho, 64, 1},
		{"echo/goroutine", procSlow, 64, 1},
		{"echo/goroutine", procSlow, 64, 64},
		{"echo", procEcho, 64, 64},
		{"echo", procSlow, 64 << 10, 1},
		{"echo", procSlow, 1 << 20, 1},
		{"echo", procSlow, 1 << 20, 8},
	} {
		b.Run(fmt.Sprintf("%s/size=%d/callers=%d", tt.name, tt.size, tt.callers), func(b *testing.B) {
			w := startTCP(b, nil)
			cl := w.dial(b, nil)
			b.SetBytes(int64(2 * tt.size))
			b.ReportAllocs()
			b.ResetTimer()
			var wg sync.WaitGroup
			for i := range tt.callers {
				wg.Go(func() {
					data, buf := make([]byte, tt.size), make([]byte, tt.size)
					call := rpc.Call{Prog: prog, Vers: 1}
					for range (b.N + i) / tt.callers {
						var err error
						if tt.proc == 0 {
							err = cl.Call(bg, &call)
						} else {
							err = echo(cl, tt.proc, data, buf, &call)
						}
						if err != nil {
							b.Error(err)
							return
						}
					}
				})
			}
			wg.Wait()
		})
	}
}
