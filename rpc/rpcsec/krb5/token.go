package krb5

import (
	"encoding/binary"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/jcmturner/gokrb5/v8/iana/keyusage"
	"github.com/jcmturner/gokrb5/v8/types"

	"github.com/rpcrdma/rpcrdma/rpc/rpcsec"
)

const (
	tokenHeader = 16 // bytes. RFC 4121 section 4.2.6

	flagAcceptor = 1 << 0 // sent by the acceptor; RFC 4121 section 4.2.2
	flagSealed   = 1 << 1
	flagSubkey   = 1 << 2 // protected by the acceptor's subkey
)

// session is an established context. It makes and verifies the tokens of RFC 4121.
type session struct {
	flags, peerFlags byte // of tokens of this end and of the peer, without flagSealed
	seq              atomic.Uint64
	sign, verify     *signer
	seal, open       *sealer
	base             types.EncryptionKey // the other keys are derived from it
	peer             string
	expires          time.Time
}

// establish derives the keys of the context. subkey is set if key is the acceptor's subkey.
func (s *session) establish(initiator bool, key types.EncryptionKey, subkey bool, seq int64) (err error) {
	mine := [...]uint32{keyusage.GSSAPI_ACCEPTOR_SIGN, keyusage.GSSAPI_ACCEPTOR_SEAL}
	theirs := [...]uint32{keyusage.GSSAPI_INITIATOR_SIGN, keyusage.GSSAPI_INITIATOR_SEAL}
	s.flags, s.peerFlags = flagAcceptor, 0
	if initiator {
		mine, theirs = theirs, mine
		s.flags, s.peerFlags = s.peerFlags, s.flags
	}
	if subkey {
		s.flags |= flagSubkey
		s.peerFlags |= flagSubkey
	}
	s.base = key
	s.seq.Store(uint64(seq))
	if s.sign, err = newSigner(key, mine[0], deriveKc); err != nil {
		return err
	}
	if s.verify, err = newSigner(key, theirs[0], deriveKc); err != nil {
		return err
	}
	if s.seal, err = newSealer(key, mine[1]); err != nil {
		return err
	}
	s.open, err = newSealer(key, theirs[1])
	return err
}

// bad returns the error for an invalid token.
func bad(status rpcsec.Status, format string, args ...any) error {
	return &rpcsec.StatusError{Status: status, Err: fmt.Errorf(format, args...)}
}

// AppendMIC appends a MIC token: RFC 4121 section 4.2.6.1.
func (s *session) AppendMIC(b, msg []byte) ([]byte, error) {
	at := len(b)
	b = append(b, 4, 4, s.flags, 0xff, 0xff, 0xff, 0xff, 0xff)
	b = binary.BigEndian.AppendUint64(b, s.seq.Add(1)-1)
	return s.sign.append(b, msg, b[at:]), nil
}

// VerifyMIC verifies a MIC token.
func (s *session) VerifyMIC(msg, mic []byte) error {
	if len(mic) != tokenHeader+s.verify.size {
		return bad(rpcsec.DefectiveToken, "MIC token of %d bytes", len(mic))
	}
	if err := s.check(mic[:3], 4, s.peerFlags); err != nil {
		return err
	}
	for _, filler := range mic[3:8] {
		if filler != 0xff {
			return bad(rpcsec.DefectiveToken, "filler %#x in a MIC token", filler)
		}
	}
	if !s.verify.verify(mic[tokenHeader:], msg, mic[:tokenHeader]) {
		return bad(rpcsec.BadSig, "MIC token: %w", errIntegrity)
	}
	return nil
}

// check checks the first bytes of a token.
func (s *session) check(head []byte, id, flags byte) error {
	if head[0] != id || head[1] != 4 {
		return bad(rpcsec.DefectiveToken, "token %02x %02x, want %02x 04", head[0], head[1], id)
	}
	if head[2] != flags {
		return bad(rpcsec.DefectiveToken, "flags %#x of a token, want %#x", head[2], flags)
	}
	return nil
}

// MICSize returns the length of MIC tokens.
func (s *session) MICSize() int { return tokenHeader + s.sign.size }

// WrapHead returns how many bytes precede the message in a token.
func (s *session) WrapHead() int { return tokenHeader + confounder }

// WrapTail returns how many bytes follow the message in a token.
func (s *session) WrapTail() int { return tokenHeader + s.seal.mac.size }

// Wrap makes a token with confidentiality: RFC 4121 sections 4.2.4 and 4.2.6.2. The encrypted text ends with a copy of
// the header. EC, the number of filler bytes, and RRC, the rotation, are 0.
func (s *session) Wrap(b []byte, at int) ([]byte, error) {
	head := b[at : at+tokenHeader]
	copy(head, []byte{5, 4, s.flags | flagSealed, 0xff, 0, 0, 0, 0})
	binary.BigEndian.PutUint64(head[8:], s.seq.Add(1)-1)
	return s.seal.seal(append(b, head...), at+tokenHeader), nil
}

// Unwrap opens a token with confidentiality in place, with any rotation and filler.
func (s *session) Unwrap(token []byte) ([]byte, error) {
	if len(token) < s.WrapHead()+s.WrapTail() {
		return nil, bad(rpcsec.DefectiveToken, "wrap token of %d bytes", len(token))
	}
	head, body := token[:tokenHeader], token[tokenHeader:]
	if err := s.check(head, 5, s.peerFlags|flagSealed); err != nil {
		return nil, err
	}
	if head[3] != 0xff {
		return nil, bad(rpcsec.DefectiveToken, "filler %#x in a wrap token", head[3])
	}
	filler, rotation := int(binary.BigEndian.Uint16(head[4:])), int(binary.BigEndian.Uint16(head[6:]))
	if rotation %= len(body); rotation != 0 { // RFC 4121 section 4.2.5: rotated to the right
		cut := append([]byte(nil), body[:rotation]...)
		copy(body, body[rotation:])
		copy(body[len(body)-rotation:], cut)
	}
	text, err := s.open.open(body)
	if err != nil {
		return nil, bad(rpcsec.BadSig, "wrap token: %w", err)
	}
	n := len(text) - tokenHeader - filler
	if n < 0 {
		return nil, bad(rpcsec.DefectiveToken, "wrap token of %d bytes, with %d of filler", len(token), filler)
	}
	// RFC 4121 section 4.2.4: the inner header has an RRC of 0.
	inner := text[len(text)-tokenHeader:]
	if string(inner[:6]) != string(head[:6]) || inner[6] != 0 || inner[7] != 0 || string(inner[8:]) != string(head[8:]) {
		return nil, bad(rpcsec.BadSig, "wrap token: its header has been changed")
	}
	return text[:n], nil
}

// Peer returns the principal at the other end.
func (s *session) Peer() string { return s.peer }

// Expires returns when the ticket expires.
func (s *session) Expires() time.Time { return s.expires }

// Mechanism returns "krb5".
func (s *session) Mechanism() string { return "krb5" }
