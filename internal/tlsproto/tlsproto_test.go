package tlsproto

import (
	"crypto/tls"
	"net"
	"slices"
	"testing"

	"github.com/rpcrdma/rpcrdma/internal/testing/testutil"
)

// TestConfig: no configuration gets around the version and the name, and a peer that names another protocol,
// or none, is refused.
func TestConfig(t *testing.T) {
	a := testutil.NewAuthority(t)
	plain := &tls.Config{
		Certificates: []tls.Certificate{a.Issue(t, nil, "DNS:server")}, RootCAs: a.Pool(), ServerName: "server", MinVersion: tls.VersionTLS12,
	}
	chosen := &tls.Config{GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) { return plain, nil }}
	other, old := plain.Clone(), Config(plain, "x")
	other.NextProtos = []string{"y"}
	old.MinVersion, old.MaxVersion = tls.VersionTLS12, tls.VersionTLS12
	for _, tt := range []struct {
		name           string
		client, server *tls.Config
		ok             bool
	}{
		{"both", Config(plain, "x"), Config(plain, "x"), true},
		{"chosen by the server", Config(plain, "x"), Config(chosen, "x"), true},
		{"another protocol", other, Config(plain, "x"), false},
		{"another protocol, chosen by the server", other, Config(chosen, "x"), false},
		{"no protocol", plain, Config(plain, "x"), false},
		{"no protocol, chosen by the server", plain, Config(chosen, "x"), false},
		{"TLS 1.2", old, Config(chosen, "x"), false},
	} {
		c, s := net.Pipe()
		go func() {
			tls.Client(c, tt.client).HandshakeContext(t.Context())
			c.Close()
		}()
		conn := tls.Server(s, tt.server)
		err := Handshake(t.Context(), conn)
		state := conn.ConnectionState()
		if (err == nil) != tt.ok || tt.ok && (state.Version != tls.VersionTLS13 || state.NegotiatedProtocol != "x") {
			t.Errorf("%s: %v, %+v", tt.name, err, state)
		}
		s.Close()
	}
	if slices.Contains(plain.NextProtos, "x") || plain.MinVersion != tls.VersionTLS12 {
		t.Error("the program's configuration has changed")
	}
}
