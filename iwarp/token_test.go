//go:build linux

package iwarp

import (
	"bytes"
	"encoding/binary"
	"math"
	"math/rand/v2"
	"slices"
	"syscall"
	"testing"

	"github.com/rpcrdma/rpcrdma/fabric"
	"github.com/rpcrdma/rpcrdma/proto/ddp"
	"github.com/rpcrdma/rpcrdma/proto/rdmap"
)

// TestPermutation: computed with openssl enc -aes-128-ecb, a round at a time; and it has an inverse.
func TestPermutation(t *testing.T) {
	p := newPermutation([16]byte{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15})
	if got := p.permute(0x1011121314151617, 0x18191a1b); got != 0xd686651f {
		t.Errorf("permuted to %#x", got)
	}
	inverse := func(w tweak, n uint32) uint32 {
		left, right := uint16(n>>16), uint16(n)
		for round := rounds - 1; round >= 0; round-- {
			block := binary.BigEndian.AppendUint64(nil, uint64(w))
			block = append(binary.BigEndian.AppendUint16(append(block, byte(round)), left), 0, 0, 0, 0, 0)
			p.aes.Encrypt(block, block)
			left, right = right^binary.BigEndian.Uint16(block), left
		}
		return uint32(left)<<16 | uint32(right)
	}
	for n := range uint32(1000) {
		if n, w := n*0x01000193, tweak(n%3); inverse(w, p.permute(w, n)) != n {
			t.Fatalf("%#x with tweak %d does not come back", n, w)
		}
	}
}

// TestTokensDiffer: tables do not share their secrets, nor do entries.
func TestTokensDiffer(t *testing.T) {
	seen := map[uint64]string{}
	slots := map[uint32]string{}
	for _, who := range []string{"one table", "another"} {
		tok := newTokens()
		for _, entry := range []string{"one entry", "another entry"} {
			w := tok.tweak()
			for n := range uint32(4) {
				is := who + ", " + entry
				tk := tok.draw(w, n, 4096, 0)
				if was, again := seen[tk.base]; again {
					t.Errorf("%s has the offset %#x, as has %s", is, tk.base, was)
				}
				seen[tk.base] = is
				// The probability of a collision is 120 / 2^32.
				slot := uint32(tk.base >> 32)
				if was, again := slots[slot]; again {
					t.Errorf("%s has the slot %#x, as has %s", is, slot, was)
				}
				slots[slot] = is
			}
		}
	}
}

// TestTokenBits: tokens look random, individually and compared with earlier ones. The seed is
// fixed, and so is the outcome.
func TestTokenBits(t *testing.T) {
	const (
		draws = 1 << 16
		// The limit is five standard deviations of fair coins, each half of the square root of
		// draws.
		off = 5 * 128
	)
	tok := seededTokens([32]byte{1})
	w := tok.tweak()
	var ones, flips, carries [64 + stagKeyBits]int
	count := func(into *[64 + stagKeyBits]int, base uint64, key uint16) {
		for i := range into {
			if i < 64 {
				into[i] += int(base >> i & 1)
			} else {
				into[i] += int(key >> (i - 64) & 1)
			}
		}
	}
	var steps [keyMask + 1]int
	bases := map[uint64]bool{}
	var last token
	for n := range uint32(draws) {
		tk := tok.draw(w, n, 4096, last.key)
		if tk.key > keyMask {
			t.Fatalf("key %#x of more than %d bits", tk.key, stagKeyBits)
		}
		bases[tk.base] = true
		steps[(tk.key-last.key)&keyMask]++
		count(&ones, tk.base, tk.key)
		count(&flips, tk.base^last.base, tk.key^last.key)
		count(&carries, tk.base-last.base, (tk.key-last.key)&keyMask)
		last = tk
	}
	if len(bases) != draws {
		t.Errorf("%d draws gave %d offsets", draws, len(bases))
	}
	for _, c := range []struct {
		what string
		of   *[64 + stagKeyBits]int
	}{{"is set", &ones}, {"has changed", &flips}, {"of the difference to the one before is set", &carries}} {
		for i, n := range c.of {
			if n < draws/2-off || n > draws/2+off {
				t.Errorf("bit %d %s %d times in %d", i, c.what, n, draws)
			}
		}
	}
	// A key is followed by any other key, about 16 times each.
	if steps[0] != 0 {
		t.Errorf("a key is followed by itself, %d times", steps[0])
	}
	if lo, hi := slices.Min(steps[1:]), slices.Max(steps[1:]); lo < 1 || hi > 48 {
		t.Errorf("a step from key to key comes about %d to %d times, want 16 or so", lo, hi)
	}
}

// TestSlots: no two uses of an entry have the same slot. Of as many random 32-bit numbers
// about eight pairs would be equal.
func TestSlots(t *testing.T) {
	tok := seededTokens([32]byte{2})
	w := tok.tweak()
	slots := make([]uint32, 1<<18)
	for n := range slots {
		slots[n] = uint32(tok.draw(w, uint32(n), 4096, 0).base >> 32)
	}
	slices.Sort(slots)
	if n := len(slots) - len(slices.Compact(slots)); n != 0 {
		t.Errorf("%d of %d uses have a slot that another one has", n, 1<<18)
	}
}

// A life is the handle of one use of an entry.
type life struct {
	stag       uint32
	base, size uint64
}

// lives uses one entry of a table n times, and calls a function after each use. The memory may
// have any size, since it is not accessed.
func lives(t *testing.T, c *Conn, uses int, what func(now life)) {
	t.Helper()
	const most = min(math.MaxUint32, math.MaxInt/4) // of address space, on 32-bit machines
	mem, err := syscall.Mmap(-1, 0, most, syscall.PROT_NONE, syscall.MAP_PRIVATE|syscall.MAP_ANON|syscall.MAP_NORESERVE)
	if err != nil {
		t.Fatalf("no address space of %d bytes: %v", most, err)
	}
	defer syscall.Munmap(mem)
	mw, err := c.AllocMW()
	if err != nil {
		t.Fatal(err)
	}
	sizes := []int{1, 4096, 1 << 20, most - 1, most}
	for i := range uses {
		buf := mem[:sizes[i%len(sizes)]]
		var seg fabric.Segment
		var end func()
		if i%3 > 0 {
			// A window, until it is unbound.
			if seg, err = mw.Prepare(fabric.SGE{Buf: buf}, fabric.AccessRemoteRead); err != nil {
				t.Fatal(err)
			}
			if !c.stags.bind(mw.(*MW)) {
				t.Fatal("not bound")
			}
			end = func() { c.stags.invalidate(seg.Handle, false) }
		} else {
			// A region with the same entry.
			mw.Close()
			mr, err := c.RegMR(buf, fabric.AccessRemoteRead)
			if err != nil {
				t.Fatal(err)
			}
			seg = mr.Segment()
			end = func() {
				mr.Close()
				if mw, err = c.AllocMW(); err != nil {
					t.Fatal(err)
				}
			}
		}
		now := life{seg.Handle, seg.Offset, uint64(len(buf))}
		if seg.Length != uint32(now.size) || now.stag>>stagKeyBits != 1 {
			t.Fatalf("use %d has the segment %+v", i, seg)
		}
		what(now)
		end()
	}
	mw.Close()
}

// TestStaleHandles: an expired handle is invalid, however often its entry is reused. For as
// many uses as there are slots the number of hits is 0, whatever the random numbers:
// docs/adr/0019.
func TestStaleHandles(t *testing.T) {
	const uses = 25_000
	c := New(Config{}).newConn(fabric.ConnAttr{}, &setup{})
	defer c.Close()
	var past []life
	attempts, hits := 0, 0
	rnd := rand.New(rand.NewPCG(1, 2))
	try := func(stag uint32, to uint64) {
		attempts++
		if _, _, flt := c.stags.remote(stag, to, 1, fabric.AccessRemoteRead); flt == faultNone {
			hits++
		}
	}
	lives(t, c, uses, func(now life) {
		if _, _, flt := c.stags.remote(now.stag, now.base, uint32(now.size), fabric.AccessRemoteRead); flt != faultNone {
			t.Fatalf("a handle of %d bytes at %#x does not open them: %v", now.size, now.base, flt)
		}
		if now.base>>32 != (now.base+now.size)>>32 {
			t.Fatalf("%d bytes at %#x leave their slot", now.size, now.base)
		}
		// Recent and old handles; first byte, last byte and the middle; with the old and the
		// current STag.
		for i := range min(len(past), 20) {
			was := past[len(past)-1-i]
			if i >= 10 {
				was = past[rnd.IntN(len(past))]
			}
			for _, at := range []uint64{0, was.size / 2, was.size - 1} {
				try(was.stag, was.base+at)
				try(now.stag, was.base+at)
			}
		}
		if n := len(past); n > 0 && past[n-1].stag == now.stag {
			t.Fatalf("STag %#x twice in a row", now.stag)
		}
		past = append(past, now)
	})
	if hits != 0 || attempts < 100*uses {
		t.Errorf("%d of %d stale handles have opened something", hits, attempts)
	}
	// No two lives share an offset.
	slices.SortFunc(past, func(a, b life) int {
		if a.base < b.base {
			return -1
		}
		return 1
	})
	for i := 1; i < len(past); i++ {
		if a, b := past[i-1], past[i]; a.base+a.size > b.base {
			t.Fatalf("%d bytes at %#x and %d at %#x were both given out", a.size, a.base, b.size, b.base)
		}
	}
	t.Logf("%d attempts, %d hits; %d pairs of uses, none with an offset in common", attempts, hits, uses*(uses-1)/2)
}

// TestAllUses: after 2^32 uses of an entry its slots are permuted differently.
func TestAllUses(t *testing.T) {
	c := New(Config{}).newConn(fabric.ConnAttr{}, &setup{})
	defer c.Close()
	one := func() entry { return look(&c.stags.entries, func(t *entries) entry { return t.e[1] }) }
	slot := func(now life) uint32 { return uint32(now.base >> 32) }
	var first []uint32
	tweaks := map[tweak]bool{0: true}
	lives(t, c, 3, func(now life) {
		first = append(first, slot(now))
		tweaks[one().tweak] = true
	})
	if len(tweaks) != 2 {
		t.Errorf("the tweaks of three uses are %v, want the same, and not zero", tweaks)
	}
	c.stags.entries.Lock().e[1].uses = 1<<32 - 3
	c.stags.entries.Unlock()
	var then []uint32
	lives(t, c, 6, func(now life) { then = append(then, slot(now)) })
	if n := one().uses; n != 3 {
		t.Fatalf("counted %d uses, want 3 since the last one of 2^32", n)
	}
	for i, s := range then {
		if slices.Contains(first, s) {
			t.Errorf("slot %#x, of the first three uses, comes again as %d of the last three and first three", s, i)
		}
	}
}

// TestGuesses: a peer that knows everything but the token has one guess: a wrong one ends the
// stream, and nothing after it is processed, even if it is right. So each guess needs a
// connection. With the slot known a fraction of 2^-32 would hit, otherwise 2^-64, and none if
// the handle is an old one.
func TestGuesses(t *testing.T) {
	p := New(Config{})
	rnd := rand.New(rand.NewPCG(3, 4))
	guesses := 1500
	if testing.Short() {
		guesses = 100
	}
	for i := range guesses {
		c, peer := streamPair(t, p, fabric.ConnAttr{}, false)
		mem := bytes.Repeat([]byte{guard}, 3*4096)
		mw, err := c.AllocMW()
		if err != nil {
			t.Fatal(err)
		}
		expose := func() fabric.Segment {
			seg, err := mw.Prepare(fabric.SGE{Buf: mem[4096:8192]}, fabric.AccessRemoteWrite|fabric.AccessRemoteRead)
			if err != nil {
				t.Fatal(err)
			}
			post(t, c, fabric.SendWR{Op: fabric.OpBindMW, MW: mw})
			return seg
		}
		// First some uses that the peer has seen and ended itself.
		var seen []fabric.Segment
		for range rnd.IntN(4) {
			seg := expose()
			seen = append(seen, seg)
			postRecv(t, c, nil)
			peer.write(peer.fpdu(ddp.AppendUntagged(nil, &ddp.Untagged{Last: true, ULP: rdmap.Control(rdmap.OpSendInv),
				ULP32: seg.Handle, MSN: uint32(len(seen))})))
			if wc := next(t, c); !wc.WithInv {
				t.Fatalf("received %+v", wc)
			}
		}
		real := expose()
		guess := real
		switch how := rnd.IntN(3); {
		case how == 0 && len(seen) > 0: // an old one
			guess = seen[rnd.IntN(len(seen))]
		case how == 1: // the right slot
			guess.Handle = real.Handle&^keyMask | rnd.Uint32()&keyMask
			guess.Offset = real.Offset&^0xffffffff | uint64(rnd.Uint32())
		default:
			guess.Handle = real.Handle&^keyMask | rnd.Uint32()&keyMask
			guess.Offset = rnd.Uint64() >> 1
		}
		var wrong, right []byte
		if i%2 == 0 {
			wrong = peer.fpdu(tagged(rdmap.OpWrite, true, guess.Handle, guess.Offset), garbage[:1])
			right = peer.fpdu(tagged(rdmap.OpWrite, true, real.Handle, real.Offset), garbage[:4096])
		} else {
			wrong = peer.fpdu(readRequest(1, rdmap.ReadRequest{SinkSTag: 1, Size: 1, SrcSTag: guess.Handle, SrcTO: guess.Offset}))
			right = peer.fpdu(readRequest(2, rdmap.ReadRequest{SinkSTag: 1, Size: 1, SrcSTag: real.Handle, SrcTO: real.Offset}))
		}
		peer.write(wrong, right)
		_, end := drive(t, c)
		if _, ok := end.Cause.(*ProtocolError); !ok {
			t.Fatalf("guess %+v of %+v ended with %v", guess, real, end)
		}
		if s := peer.wantAny("a Terminate message"); s.op != rdmap.OpTerminate {
			t.Fatalf("guess %+v of %+v was answered with a %v", guess, real, s.op)
		}
		if bytes.Count(mem, []byte{guard}) != len(mem) {
			t.Fatalf("guess %+v of %+v, or what came behind it, has written", guess, real)
		}
		c.Close()
		peer.c.Close()
	}
}
