package iwarp

import (
	"crypto/aes"
	"crypto/cipher"
	crand "crypto/rand"
	"encoding/binary"
	"math/rand/v2"
)

// A token is the secret part of a handle: the key of its STag and the tagged offset of its
// first byte. Both are drawn for each use of a table entry, so the handles that a peer knows
// reveal nothing about other handles. docs/adr/0019 has the arithmetic.
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
// Key and start are random. The permutation has a secret key, so that the slot is indistinguishable from a
// random one.
type token struct {
	key  uint16
	base uint64
}

// A tweak makes the permutation of an entry differ from those of other entries.
type tweak uint64

// tokens draws tokens. It is a part of entries.
type tokens struct {
	rnd   rand.ChaCha8
	slots permutation
}

// newTokens returns tokens with a seed from the system: neither later nor earlier tokens can be guessed from the ones a
// peer knows.
func newTokens() *tokens {
	var seed [32]byte
	crand.Read(seed[:]) // documented never to fail
	return seededTokens(seed)
}

func seededTokens(seed [32]byte) *tokens {
	t := new(tokens)
	t.rnd.Seed(seed)
	var key [16]byte
	binary.BigEndian.PutUint64(key[:8], t.rnd.Uint64())
	binary.BigEndian.PutUint64(key[8:], t.rnd.Uint64())
	t.slots = newPermutation(key)
	return t
}

// tweak draws a tweak.
func (t *tokens) tweak() tweak { return tweak(t.rnd.Uint64()) }

// draw returns the token for use number n of an entry, with size bytes, of which there must be less than 2^32. The key
// differs from last, the key of the previous use, so that an access with the previous STag is refused even if it does
// not use the tagged offset.
func (t *tokens) draw(w tweak, n, size uint32, last uint16) token {
	r := t.rnd.Uint64()
	step := 1 + (r>>32)*keyMask>>32                           // 1 to keyMask
	start := uint64(uint32(r)) * (1<<32 - uint64(size)) >> 32 // 0 to 2^32 - 1 - size
	slot := t.slots.permute(w, n)
	return token{
		key:  uint16((uint64(last) + step) & keyMask),
		base: uint64(slot)<<32 | start,
	}
}

// rounds is the number of rounds of FF1 in NIST SP 800-38G, which is a Feistel network of the same kind.
const rounds = 10

// A permutation is a Feistel network on 32 bits. The function of its rounds is AES-128 with a secret key, applied to the
// tweak, the number of the round, and one half. The network is a permutation whatever that function is, so tokens do not
// repeat for any key. docs/adr/0019 explains why it cannot be predicted.
type permutation struct {
	aes cipher.Block
	in  [aes.BlockSize]byte // tweak, round and half
	out [aes.BlockSize]byte
}

func newPermutation(key [16]byte) permutation {
	block, err := aes.NewCipher(key[:])
	if err != nil {
		panic(err) // the length of the key is wrong
	}
	return permutation{aes: block}
}

func (p *permutation) permute(w tweak, n uint32) uint32 {
	binary.BigEndian.PutUint64(p.in[:], uint64(w))
	left, right := uint16(n>>16), uint16(n)
	for round := range byte(rounds) {
		p.in[8] = round
		binary.BigEndian.PutUint16(p.in[9:], right)
		p.aes.Encrypt(p.out[:], p.in[:])
		left, right = right, left^binary.BigEndian.Uint16(p.out[:])
	}
	return uint32(left)<<16 | uint32(right)
}
