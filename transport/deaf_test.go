package transport

import (
	"crypto/tls"
	"net"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rpcrdma/rpcrdma/internal/testing/testutil"
)

// TestTLSDeafPeer checks that ending a connection does not wait for a peer that does not read the alert.
func TestTLSDeafPeer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		authority := testutil.NewAuthority(t)
		s, err := NewServer(nil)
		testutil.Must(t, err)
		a, b := net.Pipe()
		l := &pipeListener{conns: make(chan net.Conn, 1)}
		l.conns <- tls.Server(a, &tls.Config{Certificates: []tls.Certificate{authority.Issue(t, nil, "DNS:server")}, SessionTicketsDisabled: true})
		served := make(chan error, 1)
		go func() { served <- s.ServeTCP(l) }()
		testutil.Must(t, tls.Client(b, &tls.Config{RootCAs: authority.Pool(), ServerName: "server"}).Handshake())
		synctest.Wait()
		conns := s.Conns()
		if len(conns) != 1 || conns[0].Peer().TLS == nil {
			t.Fatalf("the server has %d connections", len(conns))
		}
		began := time.Now()
		s.Close()
		if d := time.Since(began); d > alertTime {
			t.Errorf("the server waits for %v", d)
		}
		<-served
	})
}
