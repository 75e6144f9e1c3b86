package krb5

import (
	"bytes"
	"encoding/binary"
	"strings"

	"github.com/jcmturner/gofork/encoding/asn1"
	"github.com/jcmturner/gokrb5/v8/asn1tools"
	"github.com/jcmturner/gokrb5/v8/iana/asnAppTag"
	"github.com/jcmturner/gokrb5/v8/iana/chksumtype"
	"github.com/jcmturner/gokrb5/v8/iana/keyusage"
	"github.com/jcmturner/gokrb5/v8/iana/msgtype"
	"github.com/jcmturner/gokrb5/v8/messages"
	"github.com/jcmturner/gokrb5/v8/types"

	"github.com/rpcrdma/rpcrdma/rpc/rpcsec"
)

// Token identifiers of the messages that establish contexts. RFC 4121 section 4.1.
const (
	tokenAPReq = 0x0100
	tokenAPRep = 0x0200
	tokenError = 0x0300
)

// oid is the encoded object identifier of the mechanism, 1.2.840.113554.1.2.2 (RFC 1964 section 1).
const oid = "\x06\x09\x2a\x86\x48\x86\xf7\x12\x01\x02\x02"

// frame returns the token for a Kerberos message. RFC 2743 section 3.1, RFC 4121 section 4.1.
func frame(id uint16, msg []byte) []byte {
	b := binary.BigEndian.AppendUint16([]byte(oid), id)
	return asn1tools.AddASNAppTag(append(b, msg...), 0)
}

// unframe is the inverse of frame.
func unframe(token []byte) (id uint16, msg []byte, err error) {
	var raw asn1.RawValue
	rest, err := asn1.Unmarshal(token, &raw)
	if err != nil || len(rest) > 0 || raw.Class != asn1.ClassApplication || raw.Tag != 0 || !raw.IsCompound {
		return 0, nil, bad(rpcsec.DefectiveToken, "token without the framing of RFC 2743")
	}
	b, ok := bytes.CutPrefix(raw.Bytes, []byte(oid))
	if !ok {
		return 0, nil, bad(rpcsec.BadMech, "token of another mechanism")
	}
	if len(b) < 2 {
		return 0, nil, bad(rpcsec.DefectiveToken, "token without an identifier")
	}
	id, msg = binary.BigEndian.Uint16(b), b[2:]
	// The library ignores the length of a message.
	if rest, err := asn1.Unmarshal(msg, &raw); err != nil || len(rest) > 0 {
		return 0, nil, bad(rpcsec.DefectiveToken, "token with a message of another length")
	}
	return id, msg, nil
}

// Flags of a context. RFC 4121 section 4.1.1.1.
const (
	ctxMutual = 2
	ctxConf   = 16
	ctxInteg  = 32
)

// bindings is the length of an authenticator's checksum without delegated credentials. RFC 4121 section 4.1.1.
const bindings = 24

// gssChecksum returns the checksum of an authenticator, without channel bindings.
func gssChecksum(flags uint32) types.Checksum {
	b := make([]byte, bindings)
	binary.LittleEndian.PutUint32(b, 16)
	binary.LittleEndian.PutUint32(b[20:], flags)
	return types.Checksum{CksumType: chksumtype.GSSAPI, Checksum: b}
}

// parseChecksum returns the flags. It ignores channel bindings, because RPCSEC_GSS version 1 has none.
func parseChecksum(c types.Checksum) (flags uint32, ok bool) {
	if c.CksumType != chksumtype.GSSAPI || len(c.Checksum) < bindings || binary.LittleEndian.Uint32(c.Checksum) != 16 {
		return 0, false
	}
	return binary.LittleEndian.Uint32(c.Checksum[20:]), true
}

// makeAPRep returns an AP-REP: RFC 4120 section 5.5.2.
func makeAPRep(part messages.EncAPRepPart, key types.EncryptionKey) ([]byte, error) {
	plain, err := asn1.Marshal(part)
	if err != nil {
		return nil, err
	}
	s, err := newSealer(key, keyusage.AP_REP_ENCPART)
	if err != nil {
		return nil, err
	}
	plain = asn1tools.AddASNAppTag(plain, asnAppTag.EncAPRepPart)
	b, err := asn1.Marshal(messages.APRep{PVNO: 5, MsgType: msgtype.KRB_AP_REP, EncPart: types.EncryptedData{
		EType: key.KeyType, Cipher: s.seal(append(make([]byte, confounder), plain...), 0),
	}})
	if err != nil {
		return nil, err
	}
	return asn1tools.AddASNAppTag(b, asnAppTag.APREP), nil
}

// openAPRep is the inverse of makeAPRep.
func openAPRep(msg []byte, key types.EncryptionKey) (part messages.EncAPRepPart, err error) {
	var rep messages.APRep
	if err := rep.Unmarshal(msg); err != nil {
		return part, bad(rpcsec.DefectiveToken, "AP-REP: %w", err)
	}
	plain, err := decrypt(rep.EncPart, key, keyusage.AP_REP_ENCPART)
	if err != nil {
		return part, bad(rpcsec.BadSig, "AP-REP: %w", err)
	}
	if err := part.Unmarshal(plain); err != nil {
		return part, bad(rpcsec.DefectiveToken, "AP-REP: %w", err)
	}
	return part, nil
}

// principal returns the text form of a principal. It escapes separators within components, and control characters that
// could affect terminals and logs. RFC 1964 section 2.1.1.
func principal(name types.PrincipalName, realm string) string {
	var b strings.Builder
	for i, c := range name.NameString {
		if i > 0 {
			b.WriteByte('/')
		}
		escape(&b, c)
	}
	b.WriteByte('@')
	escape(&b, realm)
	return b.String()
}

func escape(b *strings.Builder, s string) {
	for i := range len(s) {
		switch c := s[i]; c {
		case '/', '@', '\\':
			b.WriteByte('\\')
			b.WriteByte(c)
		case '\n':
			b.WriteString(`\n`)
		case '\t':
			b.WriteString(`\t`)
		case '\b':
			b.WriteString(`\b`)
		case 0:
			b.WriteString(`\0`)
		default:
			if c < ' ' || c == 0x7f {
				c = '?'
			}
			b.WriteByte(c)
		}
	}
}
