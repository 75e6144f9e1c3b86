package bench

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"math/big"
	"net"
	"strings"
	"time"
)

// selfSigned returns a TLS 1.3 configuration with a self-signed certificate, which the other end does not verify:
// verification is part of the setup, which is not measured.
func selfSigned() (*tls.Config, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	c := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(24 * time.Hour)}
	der, err := x509.CreateCertificate(rand.Reader, c, c, &key.PublicKey, key)
	if err != nil {
		return nil, err
	}
	return &tls.Config{
		MinVersion:         tls.VersionTLS13,
		Certificates:       []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: key}},
		InsecureSkipVerify: true,
	}, nil
}

// OverTLS returns the workload of a socket over crypto/tls.
func (w Workload) OverTLS() Workload {
	s := *w.Server
	s.TLS = true
	w.Server = &s
	w.Name += "/net=tls"
	return w
}

// tlsPrefix begins an address at which a server speaks TLS.
const tlsPrefix = "tls:"

// tlsListener has addresses with tlsPrefix.
type tlsListener struct {
	net.Listener
	addr tlsAddr
}

type tlsAddr struct{ net.Addr }

func (a tlsAddr) String() string { return tlsPrefix + a.Addr.String() }

func (l tlsListener) Addr() net.Addr { return l.addr }

func listenTLS(l net.Listener, err error) (net.Listener, error) {
	if err != nil {
		return nil, err
	}
	cfg, err := selfSigned()
	if err != nil {
		l.Close()
		return nil, err
	}
	return tlsListener{tls.NewListener(l, cfg), tlsAddr{l.Addr()}}, nil
}

// dialTLS connects to an address with tlsPrefix.
func dialTLS(addr string) (net.Conn, error) {
	return tls.Dial("tcp", strings.TrimPrefix(addr, tlsPrefix), &tls.Config{MinVersion: tls.VersionTLS13, InsecureSkipVerify: true})
}
