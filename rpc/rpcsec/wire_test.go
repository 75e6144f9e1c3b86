package rpcsec

import (
	"bytes"
	"crypto/aes"
	"crypto/cipher"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
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

// TestNumbers: whichever call is slow to leave, no number is below the server's window when it arrives.
func TestNumbers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const size = 64
		n, w := newNumbers(size), newWindow(size)
		var mu sync.Mutex
		arrive := func(seq uint32) {
			mu.Lock()
			if !w.take(seq) {
				t.Errorf("%d is below the window: the last is %d", seq, w.last)
			}
			mu.Unlock()
			n.leaves(seq)
		}
		first, _ := n.take()
		var wg sync.WaitGroup
		for range 8 {
			wg.Go(func() {
				for range 100 {
					seq, wait := n.take()
					for ; wait != nil; seq, wait = n.take() {
						<-wait
					}
					time.Sleep(rand.N(time.Millisecond))
					arrive(seq)
				}
			})
		}
		time.Sleep(time.Second)
		synctest.Wait() // all others wait for the first
		if last := n.last.Load(); last != size {
			t.Errorf("the last number is %d", last)
		}
		arrive(first)
		wg.Wait()
		if last := n.last.Load(); last != 801 || n.low != last {
			t.Errorf("at the end the last number is %d, and the lowest %d", last, n.low)
		}
	})
}

// TestLastNumber: a context is replaced before its numbers end.
func TestLastNumber(t *testing.T) {
	var s session
	for last, want := range map[uint32]bool{0: true, maxSeq - maxOutstanding - 1: true, maxSeq - maxOutstanding: false, maxSeq: false} {
		if s.last.Store(last); s.usable() != want {
			t.Errorf("after %d: %v", last, s.usable())
		}
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

// TestManifest: the manifest of a call as it is in the encrypted body, and each body cut short.
func TestManifest(t *testing.T) {
	m := manifest{number: 5, rooms: []uint32{70000}, items: []sealedItem{{8, 65537}, {12, 0}}}
	b := m.append(make([]byte, 0, m.size()))
	for i := range m.tags {
		m.tags[i] = 0xee
	}
	body := []byte("\x00\x00\x00\x07\x00\x01\x00\x01\x00\x00\x00\x00tail")
	b = append(b, body...)
	want := "0000000000000005" + "0000000100011170" + "00000002" + "0000000800010001" + "0000000c00000000" + strings.Repeat("ee", 32) + "0000000700010001000000007461696c"
	if got := hex.EncodeToString(b); got != want {
		t.Errorf("%s", got)
	}
	var again manifest
	if rest, err := again.decode(b); err != nil || !bytes.Equal(rest, body) || !slices.Equal(again.items, m.items) || !slices.Equal(again.rooms, m.rooms) {
		t.Errorf("%q, %v, %+v", rest, err, again)
	}
	for n := range len(b) - 4 {
		if _, err := again.decode(b[:n]); err == nil {
			t.Errorf("the first %d bytes are enough", n)
		}
	}
	if n := testing.AllocsPerRun(100, func() { again.decode(b) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

// TestOnePlace: a piece opens at its place in its call, and nowhere else.
func TestOnePlace(t *testing.T) {
	block, _ := aes.NewCipher(make([]byte, 32))
	aead, _ := cipher.NewGCM(block)
	type place struct {
		prog, vers, proc uint32
		results          bool
		seq              uint32
		number           uint64
		items, item, n   int
	}
	at := func(p place, f func(b *box, item int)) {
		var b box
		b.items, b.number = make([]sealedItem, p.items), p.number
		b.begin(aead, p.prog, p.vers, p.proc, p.results, p.seq)
		f(&b, p.item)
	}
	first := place{1, 2, 3, false, 4, 6, 2, 0, 5}
	text, out, tags := []byte("text."), make([]byte, 5), make([]byte, sealTag)
	var firstNonce [12]byte
	at(first, func(b *box, item int) { b.seal(item, out, text, tags); firstNonce = b.nonce })
	for _, p := range []place{
		first, {2, 2, 3, false, 4, 6, 2, 0, 5}, {1, 3, 3, false, 4, 6, 2, 0, 5}, {1, 2, 4, false, 4, 6, 2, 0, 5}, {1, 2, 3, true, 4, 6, 2, 0, 5},
		{1, 2, 3, false, 5, 6, 2, 0, 5}, {1, 2, 3, false, 4, 6, 3, 0, 5}, {1, 2, 3, false, 4, 6, 2, 1, 5}, {1, 2, 3, false, 4, 6, 2, 0, 4},
		{1, 2, 3, false, 4, 7, 2, 0, 5},
	} {
		got := []byte("12345")
		at(p, func(b *box, item int) {
			b.aead = looks{aead, out}
			_, err := b.open(item, got[:p.n], out[:p.n], tags)
			if same := b.nonce == firstNonce; same != (p.number == first.number && p.item == first.item) {
				t.Errorf("%+v: nonce %x, and %x", p, b.nonce, firstNonce)
			}
			if (err == nil) != (p == first) || err == nil && !bytes.Equal(got, text) || err != nil && len(bytes.Trim(got[:p.n], "\x00")) > 0 {
				t.Errorf("%+v: %v, %q", p, err, got)
			}
		})
	}
}

// looks is an AEAD that opens nothing in memory that the peer may write to.
type looks struct {
	cipher.AEAD
	exposed []byte
}

func (l looks) Open(dst, nonce, b, about []byte) ([]byte, error) {
	if &b[0] == &l.exposed[0] {
		return nil, errors.New("the peer can write to it")
	}
	return l.AEAD.Open(dst, nonce, b, about)
}

// A secret is a context with a pseudo-random function that is not one.
type secret struct{ Context }

func (secret) PseudoRandom(in []byte, n int) ([]byte, error) {
	sum := sha256.Sum256(in)
	return sum[:n], nil
}

// TestDirections: what one end seals opens with the key for what it sends, and with no other key of the context.
func TestDirections(t *testing.T) {
	k, err := newSealKeys(secret{}, makeHello(), makeHello())
	other, err2 := newSealKeys(secret{}, makeHello(), makeHello())
	if err != nil || err2 != nil {
		t.Fatal(err, err2)
	}
	nonce := make([]byte, 12)
	b := k.args.Seal(nil, nonce, []byte("text"), nil)
	for i, aead := range []cipher.AEAD{k.args, k.results, other.args, other.results} {
		if _, err := aead.Open(nil, nonce, b, nil); (err == nil) != (i == 0) {
			t.Errorf("key %d: %v", i, err)
		}
	}
}

func FuzzManifest(f *testing.F) {
	m := manifest{rooms: []uint32{5}, items: []sealedItem{{4, 7}}}
	f.Add(append(m.append(make([]byte, 0, m.size())), 0, 0, 0, 7, 1, 2))
	f.Fuzz(func(t *testing.T, b []byte) {
		var m manifest
		body, err := m.decode(b)
		if err != nil {
			return
		}
		tags := bytes.Clone(m.tags)
		again := m.append(make([]byte, 0, m.size()))
		if copy(m.tags, tags); len(m.items) > oncrpc.MaxSealed || !bytes.Equal(append(again, body...), b) {
			t.Errorf("%x decodes as %+v and %x", b, m, body)
		}
	})
}
