package testutil

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// An Authority issues certificates for tests.
type Authority struct {
	tls.Certificate // its certificate, with those above it
}

// NewAuthority returns an Authority that trusts itself.
func NewAuthority(t testing.TB) *Authority { return new(Authority).Below(t) }

// Below returns an Authority with a certificate issued by a, or self-signed if a has none.
func (a *Authority) Below(t testing.TB) *Authority {
	return &Authority{a.Issue(t, func(c *x509.Certificate) { c.IsCA, c.KeyUsage = true, x509.KeyUsageCertSign }, "subject:authority")}
}

// Issue returns a certificate for names in the form of rpc.CertificateNames, including "subject:" for a common name.
// edit may be nil.
func (a *Authority) Issue(t testing.TB, edit func(c *x509.Certificate), names ...string) tls.Certificate {
	t.Helper()
	serial, _ := rand.Int(rand.Reader, big.NewInt(1<<62))
	c := &x509.Certificate{
		SerialNumber: serial, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		BasicConstraintsValid: true, KeyUsage: x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	for _, name := range names {
		kind, name, _ := strings.Cut(name, ":")
		switch kind {
		case "DNS":
			c.DNSNames = append(c.DNSNames, name)
		case "IP":
			c.IPAddresses = append(c.IPAddresses, net.ParseIP(name))
		case "URI":
			u, err := url.Parse(name)
			Must(t, err)
			c.URIs = append(c.URIs, u)
		case "email":
			c.EmailAddresses = append(c.EmailAddresses, name)
		default:
			c.Subject = pkix.Name{CommonName: name}
		}
	}
	if edit != nil {
		edit(c)
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	Must(t, err)
	parent, signer := c, any(key)
	if a.Leaf != nil {
		parent, signer = a.Leaf, a.PrivateKey
	}
	der, err := x509.CreateCertificate(rand.Reader, c, parent, &key.PublicKey, signer)
	Must(t, err)
	leaf, err := x509.ParseCertificate(der)
	Must(t, err)
	return tls.Certificate{Certificate: append([][]byte{der}, a.Certificate.Certificate...), PrivateKey: key, Leaf: leaf}
}

// Pool returns a pool that trusts a.
func (a *Authority) Pool() *x509.CertPool {
	p := x509.NewCertPool()
	p.AddCert(a.Leaf)
	return p
}

// WriteCert writes a certificate with its chain, and its key, to files in dir, and returns the file names.
func WriteCert(t testing.TB, dir, name string, c tls.Certificate) (certFile, keyFile string) {
	t.Helper()
	var chain []byte
	for _, der := range c.Certificate {
		chain = append(chain, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})...)
	}
	key, err := x509.MarshalPKCS8PrivateKey(c.PrivateKey)
	Must(t, err)
	certFile, keyFile = filepath.Join(dir, name+".pem"), filepath.Join(dir, name+".key")
	Must(t, os.WriteFile(certFile, chain, 0o644), os.WriteFile(keyFile, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: key}), 0o600))
	return certFile, keyFile
}
