package iwarp

import (
	crand "crypto/rand"
	"math/bits"
	"math/rand/v2"
)

// A token is the secret part of a handle: the key of its STag and the tagged offset of its
// first byte. Both are drawn for each use of a table entry, so the handles that a peer knows
// reveal nothing about those that it does not. docs/adr/0019 has the arithmetic.
//
// The tagged offset has two halves:
//
//	63            32 31             0
//	+---------------+---------------+
//	| slot          | start         |
//	+---------------+---------------+
//
// The slot is a permutation of the number of the use, and the exposure stays within its slot:
// start + length is less than 2^32. So no two of 2^32 uses of an entry share a tagged offset,
// and an expired handle is invalid until the entry has been used that often. For the same
// reason base + length cannot wrap.
//
// Key and start are random. The permutation is a block cipher under a secret key, so that the
// slot is indistinguishable from a random one.
type token struct {
	key  uint16
	base uint64
}

// A tweak makes the permutation of an entry its own.
type tweak struct{ in, out uint32 }

// tokens draws tokens. It is a part of entries.
type tokens struct {
	rnd   rand.ChaCha8
	slots schedule
}

// newTokens has its seed from the system: what it gives out cannot be guessed from
// what it gave out before, nor the other way round.
func newTokens() *tokens {
	var seed [32]byte
	crand.Read(seed[:]) // never fails: it says so
	return seededTokens(seed)
}

func seededTokens(seed [32]byte) *tokens {
	t := new(tokens)
	t.rnd.Seed(seed)
	t.slots = newSchedule(t.rnd.Uint64())
	return t
}

// tweak draws a tweak.
func (t *tokens) tweak() tweak {
	r := t.rnd.Uint64()
	return tweak{uint32(r >> 32), uint32(r)}
}

// draw makes the token of an entry's use number n, for size bytes, of which there
// are less than 2^32. The key is never last, which was that of the use before: a
// bare STag that has just ended is refused, too.
func (t *tokens) draw(w tweak, n, size uint32, last uint16) token {
	r := t.rnd.Uint64()
	step := 1 + (r>>32)*keyMask>>32                           // 1 to keyMask
	start := uint64(uint32(r)) * (1<<32 - uint64(size)) >> 32 // 0 to 2^32 - 1 - size
	slot := t.slots.encrypt(n^w.in) ^ w.out
	return token{
		key:  uint16((uint64(last) + step) & keyMask),
		base: uint64(slot)<<32 | start,
	}
}

// A schedule is the expanded key of Speck32/64, a block cipher of 32 bits: Beaulieu and
// others, The SIMON and SPECK Families of Lightweight Block Ciphers, 2013, section 4. It only
// has to be an unpredictable permutation of 32 bits; that tokens do not repeat holds for any
// key.
type schedule [22]uint16

func newSchedule(key uint64) (s schedule) {
	k, l := uint16(key), [3]uint16{uint16(key >> 16), uint16(key >> 32), uint16(key >> 48)}
	for i := range s {
		s[i] = k
		l[i%3], k = speckRound(l[i%3], k, uint16(i))
	}
	return s
}

func speckRound(x, y, k uint16) (uint16, uint16) {
	x = (bits.RotateLeft16(x, -7) + y) ^ k
	return x, bits.RotateLeft16(y, 2) ^ x
}

func (s *schedule) encrypt(block uint32) uint32 {
	x, y := uint16(block>>16), uint16(block)
	for _, k := range s {
		x, y = speckRound(x, y, k)
	}
	return uint32(x)<<16 | uint32(y)
}
