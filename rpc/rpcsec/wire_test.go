package rpcsec

import (
	"bytes"
	"math/rand/v2"
	"net/netip"
	"testing"
	"time"

	"github.com/rpcrdma/rpcrdma/proto/oncrpc"
	"github.com/rpcrdma/rpcrdma/rpc"
)

// TestWindow: each number is accepted once, and those that are too old never.
func TestWindow(t *testing.T) {
	w := newWindow(128)
	for _, tt := range []struct {
		seq  uint32
		want bool
	}{
		{1, true}, {1, false}, {3, true}, {2, true}, {2, false}, {129, true}, {1, false}, {2, false}, {130, true}, {4, true},
		{131, true}, {3, false}, {1000, true}, {873, true}, {872, false}, {873, false}, {1000, false},
		{maxSeq, true}, {1000, false}, {maxSeq - 127, true}, {maxSeq - 128, false}, {maxSeq, false},
	} {
		if got := w.take(tt.seq); got != tt.want {
			t.Errorf("take(%d) is %v", tt.seq, got)
		}
	}
	w, seen, last := newWindow(64), map[uint32]bool{}, uint32(0)
	for range 100_000 {
		seq := last + uint32(rand.N(100)) - min(last, 80)
		want := !seen[seq] && (seq > last || last-seq < 64)
		if got := w.take(seq); got != want {
			t.Fatalf("take(%d) is %v after %d", seq, got, last)
		}
		seen[seq], last = true, max(last, seq)
	}
}

// TestTable: a host has no more than its share, and makes room for itself first.
func TestTable(t *testing.T) {
	var tb table
	tb.init(16)
	hosts := make([]netip.Prefix, 8)
	for i := range hosts {
		hosts[i] = netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 0, 0, byte(i)}), 32)
	}
	first := &entry{}
	tb.add(first, hosts[7])
	for range 100 {
		tb.add(&entry{}, hosts[0])
	}
	if n := len(tb.shares[hosts[0]].entries); n != 4 || tb.use(first.handle[:]) != first {
		t.Errorf("%d entries of a host of 16", n)
	}
	for i := range 100 {
		tb.add(&entry{}, hosts[i%6])
	}
	if tb.len() != 16 || tb.use(first.handle[:]) != first {
		t.Errorf("%d entries, and the oldest, of another host: %v", tb.len(), tb.use(first.handle[:]))
	}
	old, expired := &entry{}, &entry{expires: time.Now().Add(-1)}
	tb.add(old, hosts[6])
	tb.add(expired, hosts[6])
	if tb.use(expired.handle[:]) != nil || tb.use(old.handle[:]) != old || tb.remove(expired) || !tb.remove(old) || tb.take(old.handle[:]) != nil {
		t.Error("entries that have ended")
	}
	for _, s := range tb.shares {
		if len(s.entries) == 0 {
			t.Error("a share without entries")
		}
	}
}

func FuzzCred(f *testing.F) {
	f.Add((&cred{controlData, 7, rpc.ServicePrivacy, []byte("handle")}).append(nil))
	f.Fuzz(func(t *testing.T, b []byte) {
		var c cred
		if c.decode(b) == oncrpc.AuthOK && len(c.append(nil)) != len(b) {
			t.Errorf("%x decodes as %+v", b, c)
		}
	})
}

func FuzzInitResult(f *testing.F) {
	f.Add((&initResult{[]byte("handle"), 1, 2, 3, []byte("token")}).append(nil))
	f.Fuzz(func(t *testing.T, b []byte) {
		var r, again initResult
		if r.decode(b) != nil {
			return
		}
		if err := again.decode(r.append(nil)); err != nil || !bytes.Equal(r.handle, again.handle) || !bytes.Equal(r.token, again.token) || r.window != again.window {
			t.Errorf("%x decodes as %+v, and then as %+v, %v", b, r, again, err)
		}
	})
}
