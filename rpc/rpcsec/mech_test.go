package rpcsec_test

import (
	"context"
	"crypto/aes"
	"crypto/cipher"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"time"

	"github.com/rpcrdma/rpcrdma/rpc/rpcsec"
)

// A psk is a mechanism for tests, with a key that both ends have. A set-up has 1 call, or as many as there
// are steps: nonces go back and forth, and the keys of the context are made of them.
type psk struct {
	secret  []byte
	name    string
	steps   int
	expires func() time.Time
}

func (p psk) Initiate(context.Context) (rpcsec.Context, error) {
	return &pskContext{psk: p, initiator: true}, nil
}

func (p psk) Accept() (rpcsec.Context, error) { return &pskContext{psk: p}, nil }

type pskContext struct {
	psk
	initiator bool
	taken     int
	script    []byte // of all tokens
	peer      string
	mac       []byte
	aead      cipher.AEAD
	prf       []byte
}

var errPSK = errors.New("made with another key")

// A token is a MAC, a nonce, and the name of its sender.
func (c *pskContext) Step(token []byte) (out []byte, done bool, err error) {
	if token != nil {
		if len(token) < sha256.Size+16 || !hmac.Equal(token[:sha256.Size], c.sum(token[sha256.Size:])) {
			return nil, false, &rpcsec.StatusError{Status: rpcsec.DefectiveToken, Minor: 7, Err: errPSK}
		}
		c.script = append(c.script, token[sha256.Size:]...)
		c.peer = string(token[sha256.Size+16:])
		c.taken++
	}
	if c.initiator && c.taken == c.steps {
		return nil, true, c.derive()
	}
	body := make([]byte, 16, 64)
	rand.Read(body)
	body = append(body, c.name...)
	out = append(c.sum(body), body...)
	c.script = append(c.script, body...)
	if !c.initiator && c.taken == c.steps {
		return out, true, c.derive()
	}
	return out, false, nil
}

func (c *pskContext) sum(parts ...[]byte) []byte {
	h := hmac.New(sha256.New, c.secret)
	for _, p := range parts {
		h.Write(p)
	}
	return h.Sum(nil)
}

func (c *pskContext) derive() error {
	c.mac, c.prf = c.sum([]byte("mac"), c.script), c.sum([]byte("prf"), c.script)
	block, err := aes.NewCipher(c.sum([]byte("aead"), c.script))
	if err == nil {
		c.aead, err = cipher.NewGCM(block)
	}
	return err
}

func (c *pskContext) AppendMIC(b, msg []byte) ([]byte, error) {
	h := hmac.New(sha256.New, c.mac)
	h.Write(msg)
	return h.Sum(b), nil
}

func (c *pskContext) VerifyMIC(msg, mic []byte) error {
	if want, _ := c.AppendMIC(nil, msg); !hmac.Equal(mic, want) {
		return &rpcsec.StatusError{Status: rpcsec.BadSig, Err: errPSK}
	}
	return nil
}

func (c *pskContext) MICSize() int  { return sha256.Size }
func (c *pskContext) WrapHead() int { return 12 }
func (c *pskContext) WrapTail() int { return 16 }

func (c *pskContext) Wrap(b []byte, at int) ([]byte, error) {
	head := b[at : at+12]
	rand.Read(head)
	return b[:at+12+len(c.aead.Seal(b[at+12:at+12], head, b[at+12:], nil))], nil
}

func (c *pskContext) Unwrap(token []byte) ([]byte, error) {
	if len(token) < 12 {
		return nil, errPSK
	}
	return c.aead.Open(token[12:12], token[:12], token[12:], nil)
}

func (c *pskContext) PseudoRandom(in []byte, n int) ([]byte, error) {
	h := hmac.New(sha256.New, c.prf)
	h.Write(in)
	return h.Sum(nil)[:n], nil
}

func (c *pskContext) Mechanism() string { return "psk" }

func (c *pskContext) Peer() string { return c.peer }

func (c *pskContext) Expires() time.Time {
	if c.expires == nil {
		return time.Time{}
	}
	return c.expires()
}

// number returns the XDR of n.
func number(n uint32) []byte { return binary.BigEndian.AppendUint32(nil, n) }
