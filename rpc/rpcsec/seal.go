package rpcsec

import (
	"bytes"
	"context"
	"crypto/aes"
	"crypto/cipher"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"math"

	"github.com/rpcrdma/rpcrdma/proto/oncrpc"
	"github.com/rpcrdma/rpcrdma/proto/xdr"
	"github.com/rpcrdma/rpcrdma/rpc"
)

// Sealing says whether the items of calls with rpc.ServicePrivacy are sealed: see the package documentation.
type Sealing uint8

const (
	SealOff      Sealing = iota // never seal
	SealOptional                // seal if the server supports it
	SealRequired                // seal, or fail the call with ErrNotSealed
)

const (
	serviceSealed rpc.Service = oncrpc.ServiceSealed

	sealPiece = 64 << 10 // bytes covered by one tag
	sealTag   = 16
	sealLeast = 4 << 10 // a call is sealed if one of its items may have this many bytes
)

// ---- keys

// hello begins the arguments of an offer to seal, and its answer. 32 random bytes follow.
const hello = "rpcrdma: seals 1"

const helloSize = len(hello) + 32

func makeHello() []byte {
	b := append(make([]byte, 0, helloSize), hello...)
	b = b[:helloSize]
	rand.Read(b[len(hello):])
	return b
}

func isHello(b []byte) bool { return len(b) == helloSize && string(b[:len(hello)]) == hello }

// sealKeys seal the items of a context. Each end has a key for what it sends.
type sealKeys struct{ args, results cipher.AEAD }

// newSealKeys derives keys from a context and the messages of both ends. No other keys are derived from these.
func newSealKeys(gss Context, offer, answer []byte) (*sealKeys, error) {
	var k sealKeys
	for label, aead := range map[string]*cipher.AEAD{"arguments": &k.args, "results": &k.results} {
		key, err := gss.(Deriver).PseudoRandom(bytes.Join([][]byte{offer, answer, []byte(label)}, nil), 32)
		if err != nil {
			return nil, err
		}
		block, err := aes.NewCipher(key)
		if err != nil {
			return nil, err
		}
		if *aead, err = cipher.NewGCM(block); err != nil {
			return nil, err
		}
	}
	return &k, nil
}

// agree asks the server whether it seals, by procedure 0, in the first call of a context. Only an encrypted reply
// counts as an answer; a server that does not seal returns an empty one. Everything else is an error, because an
// attacker could cause it.
func (c *Client) agree(ctx context.Context, next rpc.Caller, s *session, p program) (*sealKeys, error) {
	if _, ok := s.gss.(Deriver); !ok {
		return nil, nil
	}
	offer := makeHello()
	call := rpc.Call{Prog: p.prog, Vers: p.vers, Args: offer, MaxResults: helloSize}
	if err := c.call(ctx, next, s, &call, controlData); err != nil || !isHello(call.Results) {
		return nil, err
	}
	return newSealKeys(s.gss, offer, call.Results)
}

// agree answers an offer to seal. Only the first offer in a context counts.
func (e *entry) agree(offer, results []byte) []byte {
	if _, ok := e.gss.(Deriver); !ok || !isHello(offer) {
		return results
	}
	answer := makeHello()
	if k, err := newSealKeys(e.gss, offer, answer); err != nil || !e.seal.CompareAndSwap(nil, k) {
		return results
	}
	return append(results, answer...)
}

// ---- pieces

// box seals and opens the items of a call. It is reused to save allocations.
type box struct {
	manifest
	aead  cipher.AEAD
	nonce [12]byte // number of the manifest, item, piece
	about [36]byte // program, version, procedure, direction, sequence number, items, item, item length, piece
	piece []byte   // see private
	data  [][]byte // data of the results
}

// begin prepares b for the manifest's items, of the arguments or of the results.
func (b *box) begin(aead cipher.AEAD, prog, vers, proc uint32, results bool, seq uint32) {
	b.aead = aead
	binary.BigEndian.PutUint64(b.nonce[:], b.number)
	direction := uint32(0)
	if results {
		direction = 1
	}
	for i, w := range [...]uint32{prog, vers, proc, direction, seq, uint32(len(b.items))} {
		binary.BigEndian.PutUint32(b.about[i*4:], w)
	}
}

// at prepares b for a piece of item i, which has n bytes.
func (b *box) at(i, n, piece int) {
	binary.BigEndian.PutUint16(b.nonce[8:], uint16(i))      // below oncrpc.MaxSealed
	binary.BigEndian.PutUint16(b.nonce[10:], uint16(piece)) // below 2^15: see decode
	for j, w := range [...]int{i, n, piece} {
		binary.BigEndian.PutUint32(b.about[24+j*4:], uint32(w))
	}
}

// seal encrypts src, item i, to dst. It returns the rest of tags.
func (b *box) seal(i int, dst, src, tags []byte) []byte {
	for from := 0; from < len(src); from += sealPiece {
		to := min(from+sealPiece, len(src))
		b.at(i, len(src), from/sealPiece)
		out := dst[from:from] // leaves room for the tag where the next piece begins
		room := to+sealTag <= len(dst)
		if !room {
			out = b.private()[:0]
		}
		out = b.aead.Seal(out, b.nonce[:], src[from:to], b.about[:])
		if !room {
			copy(dst[from:to], out)
		}
		tags = tags[copy(tags, out[len(out)-sealTag:]):]
	}
	return tags
}

// private returns a buffer for a piece and its tag that no peer can access.
func (b *box) private() []byte {
	if b.piece == nil {
		b.piece = make([]byte, sealPiece+sealTag)
	}
	return b.piece
}

// open decrypts src, item i, to dst. It returns the rest of tags. A peer may write to src meanwhile, so open copies
// each piece before reading it. If a piece does not decrypt, open clears dst.
func (b *box) open(i int, dst, src, tags []byte) ([]byte, *SealError) {
	piece := b.private()
	for from := 0; from < len(src); from += sealPiece {
		to := min(from+sealPiece, len(src))
		n := copy(piece, src[from:to])
		n += copy(piece[n:], tags[:sealTag])
		b.at(i, len(src), from/sealPiece)
		if _, err := b.aead.Open(dst[from:from:to], b.nonce[:], piece[:n], b.about[:]); err != nil {
			clear(dst)
			return nil, &SealError{Item: i, Piece: from / sealPiece, Err: err}
		}
		tags = tags[sealTag:]
	}
	return tags, nil
}

// ---- manifests

// manifest lists the items of a message. It precedes the arguments or results, without the items, in the encrypted
// body:
//
//	unsigned hyper number;                        what the key has sealed no other message with
//	unsigned rooms<>;                             how long results may be, in the order of the write chunks
//	struct { unsigned at, length; } items<>;      in the order of the message. at is after the length word
//	opaque tags[];                                16 bytes for each 64 KiB of an item, or less
type manifest struct {
	number uint64
	rooms  []uint32
	items  []sealedItem
	tags   []byte
}

type sealedItem struct{ at, n uint32 }

// tagsOf returns the total length of the tags of an item of n bytes.
func tagsOf(n int) int { return (n + sealPiece - 1) / sealPiece * sealTag }

// size returns the length of the manifest, in bytes.
func (m *manifest) size() int {
	n := 16 + 4*len(m.rooms)
	for _, it := range m.items {
		n += 8 + tagsOf(int(it.n))
	}
	return n
}

// replySize returns the largest total length of the manifest and the length words in a reply to a call with the rooms
// of m.
func (m *manifest) replySize() int {
	n := 16
	for _, room := range m.rooms {
		n += 12 + tagsOf(int(room))
	}
	return n
}

// append appends the manifest to b, which must have the capacity. The sealer fills in the tags.
func (m *manifest) append(b []byte) []byte {
	b = binary.BigEndian.AppendUint64(b, m.number)
	b = binary.BigEndian.AppendUint32(b, uint32(len(m.rooms)))
	for _, room := range m.rooms {
		b = binary.BigEndian.AppendUint32(b, room)
	}
	b = binary.BigEndian.AppendUint32(b, uint32(len(m.items)))
	tags := 0
	for _, it := range m.items {
		b = binary.BigEndian.AppendUint32(binary.BigEndian.AppendUint32(b, it.at), it.n)
		tags += tagsOf(int(it.n))
	}
	at := len(b)
	b = b[:at+tags]
	m.tags = b[at:]
	return b
}

var errManifest = errors.New("its list of items is malformed")

// decode decodes the manifest at the start of b. It returns the rest, in which each item has only a length word.
func (m *manifest) decode(b []byte) (body []byte, err error) {
	d := xdr.NewDecoder(b)
	m.number, m.rooms, m.items = d.Uint64(), m.rooms[:0], m.items[:0]
	longest := uint32(0)
	for range d.Count(oncrpc.MaxSealed, 4) {
		m.rooms = append(m.rooms, d.Uint32())
		longest = max(longest, m.rooms[len(m.rooms)-1])
	}
	tags := 0
	for range d.Count(oncrpc.MaxSealed, 8) {
		it := sealedItem{d.Uint32(), d.Uint32()}
		m.items = append(m.items, it)
		longest = max(longest, it.n)
		tags += tagsOf(int(it.n & math.MaxInt32))
	}
	m.tags = d.FixedOpaque(tags)
	body = d.Rest()
	if d.Err() != nil || longest > math.MaxInt32 || m.misplaced(body) >= 0 {
		return nil, errManifest
	}
	return body, nil
}

// misplaced returns the index of the first item that does not follow a length word with its length, or -1.
func (m *manifest) misplaced(body []byte) int {
	from := uint32(0)
	for i, it := range m.items {
		if it.at < from+4 || int64(it.at) > int64(len(body)) || binary.BigEndian.Uint32(body[it.at-4:]) != it.n {
			return i
		}
		from = it.at
	}
	return -1
}

// sealedBody unwraps the opaque of the privacy service in place, and returns the body.
func sealedBody(gss Context, seq uint32, wrapped []byte) ([]byte, error) {
	body, err := gss.Unwrap(wrapped)
	if err != nil {
		return nil, err
	}
	return ofSequence(body, seq)
}
