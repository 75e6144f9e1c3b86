package krb5

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/hmac"
	"crypto/rand"
	"crypto/subtle"
	"errors"
	"fmt"
	"hash"
	"sync"

	"github.com/jcmturner/gokrb5/v8/crypto"
	"github.com/jcmturner/gokrb5/v8/crypto/common"
	"github.com/jcmturner/gokrb5/v8/iana/etypeID"
	"github.com/jcmturner/gokrb5/v8/types"
)

// etypes lists the supported encryption types, strongest first: RFC 8009, then RFC 3962.
var etypes = [...]int32{
	etypeID.AES256_CTS_HMAC_SHA384_192, etypeID.AES128_CTS_HMAC_SHA256_128,
	etypeID.AES256_CTS_HMAC_SHA1_96, etypeID.AES128_CTS_HMAC_SHA1_96,
}

// keySize returns the key length of an encryption type, in bytes, or 0 if the type is not supported.
func keySize(etype int32) int {
	switch etype {
	case etypeID.AES256_CTS_HMAC_SHA384_192, etypeID.AES256_CTS_HMAC_SHA1_96:
		return 32
	case etypeID.AES128_CTS_HMAC_SHA256_128, etypeID.AES128_CTS_HMAC_SHA1_96:
		return 16
	}
	return 0
}

var errEtype = errors.New("encryption type is not AES, or its key has another length")

// checkKey returns an error if the encryption type of k is not supported.
func checkKey(k types.EncryptionKey) error {
	if n := keySize(k.KeyType); n == 0 || n != len(k.KeyValue) {
		return fmt.Errorf("%w: type %d, %d bytes", errEtype, k.KeyType, len(k.KeyValue))
	}
	return nil
}

// newKey returns a random key.
func newKey(etype int32) types.EncryptionKey {
	k := types.EncryptionKey{KeyType: etype, KeyValue: make([]byte, keySize(etype))}
	rand.Read(k.KeyValue)
	return k
}

// decrypt decrypts data from a peer, with a key usage of RFC 4120 section 7.5.1.
func decrypt(d types.EncryptedData, k types.EncryptionKey, usage uint32) ([]byte, error) {
	if err := checkKey(k); err != nil {
		return nil, err
	}
	if d.EType != k.KeyType {
		return nil, fmt.Errorf("%w: type %d, for a key of type %d", errEtype, d.EType, k.KeyType)
	}
	s, err := newSealer(k, usage)
	if err != nil {
		return nil, err
	}
	return s.open(d.Cipher)
}

// signer makes and verifies checksums with one key: RFC 3961 section 5.3, with the truncated HMACs of RFC 3962 and
// 8009.
type signer struct {
	size int // of a checksum, in bytes
	free sync.Pool
}

const (
	deriveKc = 0x99 // RFC 3961 section 5.3
	deriveKe = 0xaa
	deriveKi = 0x55
)

func newSigner(k types.EncryptionKey, usage uint32, derive byte) (*signer, error) {
	et, err := crypto.GetEtype(k.KeyType)
	if err != nil {
		return nil, err
	}
	constant := common.GetUsageKc(usage)
	constant[len(constant)-1] = derive
	key, err := et.DeriveKey(k.KeyValue, constant)
	if err != nil {
		return nil, err
	}
	s := &signer{size: et.GetHMACBitLength() / 8}
	s.free.New = func() any { return &hashing{h: hmac.New(et.GetHashFunc(), key)} }
	return s, nil
}

type hashing struct {
	h   hash.Hash
	sum []byte
}

// append appends the checksum of parts to b.
func (s *signer) append(b []byte, parts ...[]byte) []byte {
	h := s.free.Get().(*hashing)
	h.h.Reset()
	for _, p := range parts {
		h.h.Write(p)
	}
	h.sum = h.h.Sum(h.sum[:0])
	b = append(b, h.sum[:s.size]...)
	s.free.Put(h)
	return b
}

// verify reports whether sum is the checksum of parts.
func (s *signer) verify(sum []byte, parts ...[]byte) bool {
	var space [64]byte
	return subtle.ConstantTimeCompare(s.append(space[:0], parts...), sum) == 1
}

// sealer encrypts with one key: RFC 3962 section 6, or RFC 8009 section 5.
type sealer struct {
	block cipher.Block
	mac   *signer
	late  bool // checksum of the ciphertext, as in RFC 8009; otherwise of the plaintext
}

// confounder is the number of random bytes before the plaintext.
const confounder = aes.BlockSize

var (
	errShort     = errors.New("too short")
	errIntegrity = errors.New("the checksum is wrong: another key, or changed on its way")
	zeroIV       [aes.BlockSize]byte // never written
)

func newSealer(k types.EncryptionKey, usage uint32) (*sealer, error) {
	mac, err := newSigner(k, usage, deriveKi)
	if err != nil {
		return nil, err
	}
	et, err := crypto.GetEtype(k.KeyType)
	if err != nil {
		return nil, err
	}
	key, err := et.DeriveKey(k.KeyValue, common.GetUsageKe(usage))
	if err != nil {
		return nil, err
	}
	block, err := aes.NewCipher(key)
	if err != nil {
		return nil, err
	}
	late := k.KeyType == etypeID.AES256_CTS_HMAC_SHA384_192 || k.KeyType == etypeID.AES128_CTS_HMAC_SHA256_128
	return &sealer{block: block, mac: mac, late: late}, nil
}

// seal encrypts b[at:], a confounder to be filled in followed by the plaintext, in place, and appends the checksum.
func (s *sealer) seal(b []byte, at int) []byte {
	text := b[at:]
	rand.Read(text[:confounder])
	if s.late {
		encryptCTS(s.block, text)
		return s.mac.append(b, zeroIV[:], text)
	}
	var space [64]byte
	sum := s.mac.append(space[:0], text)
	encryptCTS(s.block, text)
	return append(b, sum...)
}

// open decrypts b in place and returns the plaintext, a part of b.
func (s *sealer) open(b []byte) ([]byte, error) {
	n := len(b) - s.mac.size
	if n < confounder {
		return nil, errShort
	}
	text, sum := b[:n], b[n:]
	if s.late {
		if !s.mac.verify(sum, zeroIV[:], text) {
			return nil, errIntegrity
		}
		decryptCTS(s.block, text)
	} else {
		decryptCTS(s.block, text)
		if !s.mac.verify(sum, text) {
			return nil, errIntegrity
		}
	}
	return text[confounder:], nil
}

// encryptCTS encrypts b, at least one block, in place: CBC with ciphertext stealing and a zero initial vector, the last
// two blocks swapped. RFC 3962 section 5.
func encryptCTS(block cipher.Block, b []byte) {
	cbc := cipher.NewCBCEncrypter(block, zeroIV[:])
	full := (len(b) - 1) / aes.BlockSize * aes.BlockSize // without the last block, which may be short
	if full == 0 {
		cbc.CryptBlocks(b, b)
		return
	}
	cbc.CryptBlocks(b[:full], b[:full])
	var last [aes.BlockSize]byte
	tail := b[full:]
	copy(last[:], tail)
	cbc.CryptBlocks(last[:], last[:])
	before := b[full-aes.BlockSize : full]
	copy(tail, before)
	copy(before, last[:])
}

// decryptCTS is the inverse of encryptCTS.
func decryptCTS(block cipher.Block, b []byte) {
	full := (len(b) - 1) / aes.BlockSize * aes.BlockSize
	if full > 0 {
		var d [aes.BlockSize]byte
		before, tail := b[full-aes.BlockSize:full], b[full:]
		block.Decrypt(d[:], before)
		copy(before, d[:])
		copy(before, tail) // the ciphertext of the last block but one
		subtle.XORBytes(tail, tail, d[:len(tail)])
		cipher.NewCBCDecrypter(block, zeroIV[:]).CryptBlocks(b[:full], b[:full])
		return
	}
	cipher.NewCBCDecrypter(block, zeroIV[:]).CryptBlocks(b, b)
}
