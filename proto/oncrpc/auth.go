package oncrpc

import (
	"encoding/binary"
	"fmt"
	"os"
	"strconv"
	"time"

	"github.com/rpcrdma/rpcrdma/proto/xdr"
)

// A Flavor is an authentication mechanism. RFC 5531 section 8.2.
type Flavor uint32

const (
	FlavorNone  Flavor = 0 // AUTH_NONE, RFC 5531 section 10.1
	FlavorSys   Flavor = 1 // AUTH_SYS, RFC 5531 appendix A
	FlavorShort Flavor = 2 // AUTH_SHORT, RFC 5531 appendix A
	FlavorDH    Flavor = 3 // AUTH_DH, RFC 5531 section 8.2
	FlavorGSS   Flavor = 6 // RPCSEC_GSS, RFC 2203
	FlavorTLS   Flavor = 7 // AUTH_TLS, RFC 9289 section 4.1
)

// Pseudo-flavors of NFS: RPCSEC_GSS with Kerberos and a service, RFC 2623 section 4.2. They appear in lists of what a
// server accepts, never in a call.
const (
	FlavorKrb5  Flavor = 390003 // calls are authenticated
	FlavorKrb5i Flavor = 390004 // and integrity-protected
	FlavorKrb5p Flavor = 390005 // and encrypted
)

// String returns the RFC's spelling.
func (f Flavor) String() string {
	switch f {
	case FlavorNone:
		return "AUTH_NONE"
	case FlavorSys:
		return "AUTH_SYS"
	case FlavorShort:
		return "AUTH_SHORT"
	case FlavorDH:
		return "AUTH_DH"
	case FlavorGSS:
		return "RPCSEC_GSS"
	case FlavorTLS:
		return "AUTH_TLS"
	case FlavorKrb5:
		return "krb5"
	case FlavorKrb5i:
		return "krb5i"
	case FlavorKrb5p:
		return "krb5p"
	}
	return number("AUTH", uint32(f))
}

// number formats an enumeration value that has no name.
func number(kind string, v uint32) string {
	return kind + "(" + strconv.FormatUint(uint64(v), 10) + ")"
}

// MaxAuthBody is the largest body of a credential or verifier in bytes.
// RFC 5531 section 8.2.
const MaxAuthBody = 400

// An Auth is a credential or a verifier: opaque_auth of RFC 5531 section 8.2. The
// zero value is AUTH_NONE with an empty body.
//
//	0       4        8
//	+-------+--------+----------------+-----+
//	| flavor| length | body, <= 400   | pad |
//	+-------+--------+----------------+-----+
type Auth struct {
	Flavor Flavor
	Body   []byte // at most MaxAuthBody bytes
}

// Size returns the encoded size in bytes.
func (a *Auth) Size() int { return 4 + xdr.SizeOpaque(len(a.Body)) }

// Services of RPCSEC_GSS. RFC 2203 section 5.3.1.
const (
	gssNone      = 1
	gssIntegrity = 2
	gssPrivacy   = 3
)

// ServiceSealed is an RPCSEC_GSS service defined by this project, for ends that have agreed on it. The arguments or the
// results are the opaque of the privacy service, followed by an opaque for each data item, which is encrypted
// separately and may be a chunk. See package rpcsec.
const ServiceSealed = 0x7365616c

// MaxSealed is the largest number of items in the arguments, or the results, of a call with [ServiceSealed].
const MaxSealed = 256

// Protected reports whether the credential means that the arguments and results of its call are signed or encrypted:
// RPCSEC_GSS with integrity or privacy. The upper layer's data items are then inside the envelope of the security
// service, and none of them may be moved to a chunk. RFC 2203 sections 5.3.2 and 5.3.3; RFC 8166 section 8.2.2.
func (a *Auth) Protected() bool {
	s := a.service()
	return s == gssIntegrity || s == gssPrivacy
}

// Sealed reports whether the credential means that the arguments and results of its call are encrypted, with each data
// item encrypted separately: RPCSEC_GSS with [ServiceSealed].
func (a *Auth) Sealed() bool { return a.service() == ServiceSealed }

// service returns the service of an RPCSEC_GSS call, or 0.
func (a *Auth) service() uint32 {
	// version, procedure, sequence number, service
	if a.Flavor != FlavorGSS || len(a.Body) < 16 || binary.BigEndian.Uint32(a.Body) != 1 || binary.BigEndian.Uint32(a.Body[4:]) != 0 {
		return 0
	}
	return binary.BigEndian.Uint32(a.Body[12:])
}

// appendAuth panics if the body is longer than any receiver may accept. Truncating it would turn a programming error
// into an authentication failure elsewhere.
func appendAuth(b []byte, a *Auth) []byte {
	if len(a.Body) == 0 { // the usual case
		return binary.BigEndian.AppendUint64(b, uint64(a.Flavor)<<32)
	}
	if len(a.Body) > MaxAuthBody {
		panic(fmt.Sprintf("oncrpc: %v body of %d bytes, limit is %d", a.Flavor, len(a.Body), MaxAuthBody))
	}
	b = binary.BigEndian.AppendUint32(b, uint32(a.Flavor))
	return xdr.AppendOpaque(b, a.Body)
}

// consumeAuth reads an Auth. n is negative if it is truncated or too long. An empty body is nil, so that AUTH_NONE
// decodes to the zero Auth.
func consumeAuth(b []byte, a *Auth) (n int) {
	if len(b) < 8 {
		return -1
	}
	a.Flavor, a.Body = Flavor(binary.BigEndian.Uint32(b)), nil
	if binary.BigEndian.Uint32(b[4:]) == 0 {
		return 8
	}
	a.Body, n = xdr.ConsumeOpaque(b[4:], MaxAuthBody)
	if n < 0 {
		return -1
	}
	return 4 + n
}

// Limits of AUTH_SYS. RFC 5531 appendix A.
const (
	MaxMachineName = 255 // bytes in AuthSys.Machine
	MaxGIDs        = 16  // entries in AuthSys.GIDs
)

// An AuthSys is the body of an AUTH_SYS credential: authsys_parms of RFC 5531 appendix A. None of it is authenticated:
// a server that believes it trusts the client's machine and the network in between.
//
//	0       4                     .      +4     +8       +12
//	+-------+---------------------+------+------+--------+- - - - -+
//	| stamp | machine, string<255>| uid  | gid  | number | gids    |
//	+-------+---------------------+------+------+--------+- - - - -+
type AuthSys struct {
	Stamp    uint32 // arbitrary; distinguishes calls of the same caller
	Machine  string // the caller's name for its machine, at most MaxMachineName bytes
	UID, GID uint32 // effective user and group
	GIDs     []uint32
}

// ProcessAuthSys returns the credential of the process: its host name, and its effective user and group with the first
// MaxGIDs other groups. On systems without numeric users, user and group are 65534.
func ProcessAuthSys() *AuthSys {
	id := func(n int) uint32 {
		const nobody = 65534
		if n < 0 {
			return nobody
		}
		return uint32(n)
	}
	host, _ := os.Hostname()
	groups, _ := os.Getgroups()
	a := &AuthSys{
		Stamp: uint32(time.Now().Unix()), Machine: host[:min(len(host), MaxMachineName)],
		UID: id(os.Geteuid()), GID: id(os.Getegid()),
	}
	for _, g := range groups[:min(len(groups), MaxGIDs)] {
		a.GIDs = append(a.GIDs, id(g))
	}
	return a
}

// Size returns the encoded size in bytes, at most 340.
func (a *AuthSys) Size() int {
	return 4 + xdr.SizeOpaque(len(a.Machine)) + 4 + 4 + 4 + 4*len(a.GIDs)
}

// AppendAuthSys appends the body of an AUTH_SYS credential. It panics if the machine name or
// the list of groups exceeds its limit.
func AppendAuthSys(b []byte, a *AuthSys) []byte {
	if len(a.Machine) > MaxMachineName || len(a.GIDs) > MaxGIDs {
		panic(fmt.Sprintf("oncrpc: AUTH_SYS with a machine name of %d bytes and %d groups, limits are %d and %d",
			len(a.Machine), len(a.GIDs), MaxMachineName, MaxGIDs))
	}
	b = xdr.AppendUint32(b, a.Stamp)
	b = xdr.AppendString(b, a.Machine)
	b = xdr.AppendUint32(b, a.UID)
	b = xdr.AppendUint32(b, a.GID)
	b = xdr.AppendUint32(b, uint32(len(a.GIDs)))
	for _, gid := range a.GIDs {
		b = xdr.AppendUint32(b, gid)
	}
	return b
}

// Auth returns the credential, with a encoded in a newly allocated body. A client calls it
// once, not for every call.
func (a *AuthSys) Auth() Auth {
	return Auth{Flavor: FlavorSys, Body: AppendAuthSys(make([]byte, 0, a.Size()), a)}
}

// ConsumeAuthSys reads the body of an AUTH_SYS credential into a and returns the number of bytes consumed. It reuses
// the storage of a.GIDs, and a.Machine if the name is unchanged, so that decoding the calls of a single client does not
// allocate. The error is a [*xdr.DecodeError].
func ConsumeAuthSys(b []byte, a *AuthSys) (n int, err error) {
	d := xdr.NewDecoder(b)
	a.Stamp = d.Uint32()
	if machine := d.Opaque(MaxMachineName); string(machine) != a.Machine {
		a.Machine = string(machine)
	}
	a.UID = d.Uint32()
	a.GID = d.Uint32()
	a.GIDs = a.GIDs[:0]
	for range d.Count(MaxGIDs, 4) {
		a.GIDs = append(a.GIDs, d.Uint32())
	}
	if err := d.Err(); err != nil {
		return 0, err
	}
	return d.Offset(), nil
}
