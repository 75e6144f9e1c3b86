// Package tlsproto makes crypto/tls strict about a protocol: it requires version 1.3, and peers that name the protocol
// (RFC 7301), so that TLS meant for another protocol is rejected.
package tlsproto

import (
	"context"
	"crypto/tls"
	"errors"
)

// Config returns a copy of cfg for a protocol. The restrictions also apply to the results of cfg.GetConfigForClient.
func Config(cfg *tls.Config, proto string) *tls.Config {
	cfg = cfg.Clone()
	cfg.MinVersion = max(cfg.MinVersion, tls.VersionTLS13)
	if len(cfg.NextProtos) == 0 {
		cfg.NextProtos = []string{proto}
	}
	if choose := cfg.GetConfigForClient; choose != nil {
		cfg.GetConfigForClient = func(h *tls.ClientHelloInfo) (*tls.Config, error) {
			c, err := choose(h)
			if c != nil {
				c = Config(c, proto)
			}
			return c, err
		}
	}
	return cfg
}

// ErrUnnamed is the error of a handshake with a peer that names no protocol, which crypto/tls accepts.
var ErrUnnamed = errors.New("the peer's TLS names no protocol (ALPN)")

// Handshake performs the handshake of a connection with a Config of this package.
func Handshake(ctx context.Context, c *tls.Conn) error {
	err := c.HandshakeContext(ctx)
	if err == nil && c.ConnectionState().NegotiatedProtocol == "" {
		err = ErrUnnamed
	}
	return err
}
