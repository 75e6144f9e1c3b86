package krb5

import (
	"crypto/aes"
	"crypto/hmac"
	"crypto/sha1"
	"encoding/binary"

	"github.com/jcmturner/gokrb5/v8/crypto"
	"github.com/jcmturner/gokrb5/v8/iana/etypeID"
	"github.com/jcmturner/gokrb5/v8/types"
)

// PseudoRandom implements GSS_Pseudo_random with GSS_C_PRF_KEY_FULL: RFC 7802 section 2, which counts from 0.
func (s *session) PseudoRandom(in []byte, n int) ([]byte, error) {
	var out []byte
	for i := uint32(0); len(out) < n; i++ {
		var err error
		if out, err = pseudoRandom(out, s.base, append(binary.BigEndian.AppendUint32(nil, i), in...)); err != nil {
			return nil, err
		}
	}
	return out[:n], nil
}

// pseudoRandom appends the output of the encryption type's pseudo-random function: RFC 3961 section 5.3, RFC 8009
// section 5.
func pseudoRandom(b []byte, k types.EncryptionKey, in []byte) ([]byte, error) {
	et, err := crypto.GetEtype(k.KeyType)
	if err != nil {
		return nil, err
	}
	if k.KeyType == etypeID.AES256_CTS_HMAC_SHA384_192 || k.KeyType == etypeID.AES128_CTS_HMAC_SHA256_128 {
		h := hmac.New(et.GetHashFunc(), k.KeyValue)
		h.Write([]byte("\x00\x00\x00\x01prf\x00"))
		h.Write(in)
		h.Write(binary.BigEndian.AppendUint32(nil, uint32(8*h.Size())))
		return h.Sum(b), nil
	}
	key, err := et.DeriveKey(k.KeyValue, []byte("prf"))
	if err != nil {
		return nil, err
	}
	block, err := aes.NewCipher(key)
	if err != nil {
		return nil, err
	}
	sum := sha1.Sum(in)
	block.Encrypt(sum[:aes.BlockSize], sum[:aes.BlockSize]) // for one block, ciphertext stealing makes no difference
	return append(b, sum[:aes.BlockSize]...), nil
}
