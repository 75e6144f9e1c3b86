package dirfs

import (
	"bytes"
	"fmt"
	"os"
	"testing"

	"github.com/rpcrdma/rpcrdma/internal/testing/testutil"
	"github.com/rpcrdma/rpcrdma/nfs"
	"github.com/rpcrdma/rpcrdma/nfs/nfsd"
)

// The cost of calls from the client's procedure to the file system and back, over the software
// adapter on one machine: client and server share its processors.
func BenchmarkCalls(b *testing.B) {
	for _, m := range modes() {
		if m.root && os.Geteuid() != 0 {
			continue
		}
		b.Run(m.name, func(b *testing.B) {
			// The cost of the disk is not measured.
			m.cfg.Async = true
			w := newWorld(b, m.cfg, map[string]string{"dir/": ""})
			w.put("file", string(bytes.Repeat([]byte("x"), 1<<20)))
			w.fill("full", 1000)
			benchmarkCalls(b, w)
		})
	}
}

func benchmarkCalls(b *testing.B, w *world) {
	ctx := b.Context()
	file, dir := w.lookup("file"), w.lookup("dir")
	for _, size := range []int{64 << 10, 1 << 20} {
		buf := make([]byte, size)
		b.Run(fmt.Sprintf("READ/%dKiB", size>>10), func(b *testing.B) {
			b.SetBytes(int64(size))
			b.ReportAllocs()
			for b.Loop() {
				if n, _, err := w.Read(ctx, file, 0, buf); n != size || err != nil {
					b.Fatal(n, err)
				}
			}
		})
		b.Run(fmt.Sprintf("WRITE/%dKiB", size>>10), func(b *testing.B) {
			b.SetBytes(int64(size))
			b.ReportAllocs()
			for b.Loop() {
				if _, err := w.Write(ctx, file, 0, buf, nfs.Unstable); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
	b.Run("GETATTR", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if _, err := w.GetAttr(ctx, file); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("LOOKUP", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if _, _, err := w.Lookup(ctx, w.root, "file"); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("CREATE+REMOVE", func(b *testing.B) {
		b.ReportAllocs()
		args := nfs.CreateArgs{Where: nfs.DirOpArgs{Dir: dir, Name: "new"}, Mode: nfs.Guarded, Attr: nfs.SetAttr{SetMode: true, Mode: 0o644}}
		for b.Loop() {
			_, _, err := w.Create(ctx, &args)
			testutil.Must(b, err, w.Remove(ctx, dir, "new"))
		}
	})
	full := w.lookup("full")
	b.Run("READDIRPLUS/1000", func(b *testing.B) {
		b.ReportAllocs()
		var res nfs.ReadDirPlusRes
		for b.Loop() {
			args, n := nfs.ReadDirPlusArgs{Dir: full, DirCount: 64 << 10, MaxCount: 64 << 10}, 0
			for res.EOF = false; !res.EOF; n += len(res.Entries) {
				if err := w.ReadDirPlus(ctx, &args, &res); err != nil {
					b.Fatal(err)
				}
				args.Cookie, args.Verf = res.Entries[len(res.Entries)-1].Cookie, res.Verf
			}
			if n != 1002 {
				b.Fatal(n)
			}
		}
	})
}

// The cost of acting as a caller: one, two that come in turns, and one from many goroutines.
func BenchmarkAs(b *testing.B) {
	if os.Geteuid() != 0 {
		b.Skip("only root can take the identity of callers")
	}
	s, err := newSelf()
	testutil.Must(b, err)
	defer s.close()
	callers := []*nfsd.Caller{{UID: 1000, GID: 1000, GIDs: []uint32{4, 5}}, {UID: 1001, GID: 1001}}
	nothing := func() error { return nil }
	for n := range callers {
		b.Run(fmt.Sprintf("callers=%d", n+1), func(b *testing.B) {
			for i := 0; b.Loop(); i++ {
				testutil.Must(b, s.as(callers[i%(n+1)], nothing))
			}
		})
	}
	b.Run("parallel", func(b *testing.B) {
		b.SetParallelism(8)
		b.RunParallel(func(pb *testing.PB) {
			for pb.Next() {
				testutil.Must(b, s.as(callers[0], nothing))
			}
		})
	})
}
