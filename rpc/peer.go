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

// A Peer describes the other end of a connection and, if it belongs to a request, the caller. How far an attacker can
// forge it differs by field: TLS, Certificate, Process and Principal are proved, Addr is as trustworthy as the network,
// and Sys is whatever the caller chose to send. A Peer is shared among calls: the memory that it refers to must not be
// modified.
type Peer struct {
	// Addr is the other end's address, nil if the transport has none. With TLS no host on the path can read or change
	// the data, whatever Addr is.
	Addr net.Addr

	// TLS is the state of an encrypted connection (RFC 9289, or TLS below iWARP), otherwise nil. Its PeerCertificates
	// prove nothing by themselves: tls.Config may ask for certificates without verifying them. See Certificate.
	TLS *tls.ConnectionState

	// Certificate has the names of the peer's certificate. The certificate was verified
	// (tls.ConnectionState.VerifiedChains), and the peer proved that it owns it: see [CertificateNames]. Nil without
	// one.
	Certificate []string

	// Process is the process at the other end, vouched for by the kernel, as over shared memory. Nil if the kernel does
	// not know it.
	Process *fabric.Process

	// Principal is the caller that a security flavor has authenticated, otherwise nil: see [Request.SetPrincipal].
	Principal *Principal

	// Sys is the AUTH_SYS credential of the call, nil without. It is a claim, whatever else is proved.
	// [Request.AuthSys] describes how long it is valid.
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

// A Principal is a caller that a security flavor has authenticated. It is immutable, and shared by the calls of a
// security context.
type Principal struct {
	Mechanism string  // that authenticated it, such as "krb5"
	Name      string  // in the mechanism's notation, such as "alice@EXAMPLE.COM"
	Service   Service // of the call
}

// A Service is the protection that RPCSEC_GSS gives a call (RFC 2203 section 5.3.1).
type Service uint32

const (
	ServiceNone      Service = 1 // of the header
	ServiceIntegrity Service = 2 // also of arguments and results, against changes
	ServicePrivacy   Service = 3 // and against being read
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

// CertificateNames returns the names of a certificate, each prefixed with its kind: the alternative names (RFC 5280
// section 4.2.1.6) as "DNS:", in lower case, "URI:", "email:" and "IP:", and then the subject as
// "subject:CN=alice,O=Example", in the form of RFC 2253. The prefixes keep a name from passing for one of another kind.
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

// Peer returns what is known about the caller, and about the connection on which the call arrived. It allocates nothing
// beyond what AuthSys does, and once for the connection.
func (r *Request) Peer() Peer {
	p := r.c.Peer()
	p.Principal = r.principal
	p.Sys, _ = r.AuthSys()
	return p
}

// SetPrincipal sets the Principal of the request's Peer. It is for wrappers and Program.Auth functions that have
// verified the credential and the verifier of a security flavor. There is no other proof: the caller vouches for p. p
// must not be modified afterwards.
func (r *Request) SetPrincipal(p *Principal) { r.principal = p }
