package rpc

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net"
	"strings"

	"github.com/rpcrdma/rpcrdma/fabric"
	"github.com/rpcrdma/rpcrdma/proto/oncrpc"
)

// A Peer is what is known of the other end of a connection and, if it is a request's, of the caller.
// The fields differ in what an attacker can do about them: TLS, Certificate, Process and Principal are
// proved, Addr is as good as the network, and Sys is whatever the caller has chosen to send. It is
// shared with other calls: what it points to must not be modified.
type Peer struct {
	// Addr is the other end's address, nil if the transport has none. With TLS a host on the way can
	// neither read nor change what is sent, whatever Addr is.
	Addr net.Addr

	// TLS is the state of an encrypted connection (RFC 9289, or TLS below iWARP), nil without. Its
	// PeerCertificates prove nothing by themselves: tls.Config may ask for certificates that are not
	// verified. See Certificate.
	TLS *tls.ConnectionState

	// Certificate has the names of the certificate that the peer has proved to own, which has been
	// verified (tls.ConnectionState.VerifiedChains): see [CertificateNames]. Nil without one.
	Certificate []string

	// Process is the process at the other end, for which the kernel vouches, as over shared memory.
	// Nil if the kernel does not know it.
	Process *fabric.Process

	// Principal is the caller that a security flavor has authenticated, nil without: see
	// [Request.SetPrincipal].
	Principal *Principal

	// Sys is the AUTH_SYS credential of the call, nil without. It is a claim, whatever else is proved:
	// see [Request.AuthSys] for how long it is valid.
	Sys *oncrpc.AuthSys
}

// Proved reports whether anything proves the identity of the peer: a certificate, the kernel or a security flavor.
func (p *Peer) Proved() bool {
	return p.Principal != nil || len(p.Certificate) > 0 || p.Process != nil
}

// Private reports whether the call and its reply are encrypted by TLS or the caller's security flavor,
// or do not leave the machine.
func (p *Peer) Private() bool {
	return p.TLS != nil || p.Process != nil || p.Principal != nil && p.Principal.Service == ServicePrivacy
}

// A Principal is a caller that a security flavor has authenticated. It is constant, and shared by the
// calls of a security context.
type Principal struct {
	Mechanism string  // that has proved it, such as "krb5"
	Name      string  // as the mechanism writes names, such as "alice@EXAMPLE.COM"
	Service   Service // of the call
}

// A Service is what RPCSEC_GSS protects of a call (RFC 2203 section 5.3.1).
type Service uint32

const (
	ServiceNone      Service = 1 // the header
	ServiceIntegrity Service = 2 // arguments and results, too, from changes
	ServicePrivacy   Service = 3 // and from being read
)

// String returns "none", "integrity" or "privacy".
func (s Service) String() string {
	switch s {
	case ServiceNone:
		return "none"
	case ServiceIntegrity:
		return "integrity"
	case ServicePrivacy:
		return "privacy"
	}
	return fmt.Sprintf("service(%d)", uint32(s))
}

// CertificateNames returns the names of a certificate, each with its kind: the alternative names (RFC
// 5280 section 4.2.1.6) as "DNS:", in lower case, "URI:", "email:" and "IP:", and then the subject as
// "subject:CN=alice,O=Example", in the form of RFC 2253. Kinds keep one name from passing for another.
func CertificateNames(c *x509.Certificate) (names []string) {
	for _, s := range c.DNSNames {
		names = append(names, "DNS:"+strings.ToLower(s))
	}
	for _, u := range c.URIs {
		names = append(names, "URI:"+u.String())
	}
	for _, s := range c.EmailAddresses {
		names = append(names, "email:"+s)
	}
	for _, ip := range c.IPAddresses {
		names = append(names, "IP:"+ip.String())
	}
	if s := c.Subject.String(); s != "" {
		names = append(names, "subject:"+s)
	}
	return names
}

// Peer returns what is known of the caller, and of the connection that the call came by. It allocates
// nothing beyond what AuthSys does, and once for the connection.
func (r *Request) Peer() Peer {
	p := r.c.Peer()
	p.Principal = r.principal
	p.Sys, _ = r.AuthSys()
	return p
}

// SetPrincipal sets the Principal of the request's Peer, for wrappers and functions in Program.Auth that
// have verified the credential and the verifier of a security flavor. Nothing else is proof: code that
// calls it vouches for p. p must not be modified afterwards.
func (r *Request) SetPrincipal(p *Principal) { r.principal = p }
