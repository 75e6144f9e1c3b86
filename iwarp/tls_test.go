//go:build linux

package iwarp_test

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"net"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/rpcrdma/rpcrdma/fabric"
	"github.com/rpcrdma/rpcrdma/fabric/fabrictest"
	"github.com/rpcrdma/rpcrdma/internal/testing/leak"
	"github.com/rpcrdma/rpcrdma/internal/testing/testutil"
	"github.com/rpcrdma/rpcrdma/iwarp"
)

// mutual returns a configuration for both ends, which show certificates of one authority.
func mutual(t testing.TB, names ...string) *tls.Config {
	a := testutil.NewAuthority(t)
	return &tls.Config{
		Certificates: []tls.Certificate{a.Issue(t, nil, names...)},
		RootCAs:      a.Pool(), ClientCAs: a.Pool(), ClientAuth: tls.RequireAndVerifyClientCert,
	}
}

// TestConformanceTLS: the adapter is the same above TLS, but for allocations, of which crypto/tls makes some.
func TestConformanceTLS(t *testing.T) {
	cfg := iwarp.Config{PeerToPeer: true, CRC: true, TLS: mutual(t, "IP:127.0.0.1")}
	conformance(t, cfg, "Setup", "Message", "Memory", "Window", "Fence", "Progress", "End")
}

// A wire is a TCP proxy that keeps what it has forwarded to the server, and to the client.
type wire struct {
	l   net.Listener
	mu  sync.Mutex
	all [2]bytes.Buffer
	cut int // bytes to the client after which the proxy ends the connection, 0: none
	wg  sync.WaitGroup
}

func startWire(t *testing.T, to string, cut int) *wire {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	w := &wire{l: l, cut: cut}
	w.wg.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			s, err := net.Dial("tcp", to)
			if err != nil {
				c.Close()
				continue
			}
			w.wg.Go(func() { w.forward(0, s, c) })
			w.wg.Go(func() { w.forward(1, c, s) })
		}
	})
	t.Cleanup(func() {
		l.Close()
		w.wg.Wait()
	})
	return w
}

func (w *wire) forward(way int, to, from net.Conn) {
	defer to.(*net.TCPConn).CloseWrite()
	buf := make([]byte, 1<<16)
	for {
		n, err := from.Read(buf)
		w.mu.Lock()
		w.all[way].Write(buf[:n])
		over := way == 1 && w.cut > 0 && w.all[way].Len() >= w.cut
		w.mu.Unlock()
		if over {
			return
		}
		if n > 0 {
			if _, err := to.Write(buf[:n]); err != nil {
				return
			}
		}
		if err != nil {
			return
		}
	}
}

// ends returns two connected ends over a wire.
func ends(t *testing.T, cfg *tls.Config, cut int) (client, server *fabrictest.Endpoint, w *wire) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	p := iwarp.New(iwarp.Config{TLS: cfg})
	t.Cleanup(func() { p.Close() })
	l, err := p.Listen(ctx, "127.0.0.1:0", fabric.ConnAttr{})
	if err != nil {
		t.Fatal(err)
	}
	w = startWire(t, l.Addr().String(), cut)
	c, err := p.Resolve(ctx, w.l.Addr().String(), fabric.ConnAttr{})
	if err != nil {
		t.Fatal(err)
	}
	connected := make(chan error, 1)
	go func() { connected <- c.Connect(ctx, []byte("private marker")) }()
	s, err := l.Accept(ctx)
	if err == nil {
		err = errors.Join(s.Accept(ctx, nil), <-connected)
	}
	if err != nil {
		t.Fatal(err)
	}
	return fabrictest.NewEndpoint(t, "client", c), fabrictest.NewEndpoint(t, "server", s), w
}

// TestNoPlainText: nothing of private data, messages, Writes and Reads is readable between the ends, and
// each has the certificate of the other.
func TestNoPlainText(t *testing.T) {
	leak.Check(t)
	client, server, w := ends(t, mutual(t, "IP:127.0.0.1"), 0)
	client.Start()
	server.Start()
	marker := bytes.Repeat([]byte("private marker"), 5000)
	client.Receives(2, 64)
	server.Receives(2, 64)
	sink := client.Region(len(marker), fabric.AccessLocalWrite|fabric.AccessRemoteWrite|fabric.AccessRemoteRead)
	from := server.Region(len(marker), fabric.AccessLocalWrite)
	copy(from.Bytes(), marker)
	client.Send("a message", marker[:64])
	server.WantMessage("a message", marker[:64])
	seg := sink.Segment()
	server.Post("a Write", fabric.SendWR{ID: 1, Op: fabric.OpWrite, Flags: fabric.Signaled, SGL: []fabric.SGE{fabrictest.SGE(from, 0, len(marker))}, RKey: seg.Handle, RemoteOffset: seg.Offset})
	server.WantSent("a Write", 1)
	server.Post("a Read", fabric.SendWR{ID: 2, Op: fabric.OpRead, Flags: fabric.Signaled, SGL: []fabric.SGE{fabrictest.SGE(from, 0, len(marker))}, RKey: seg.Handle, RemoteOffset: seg.Offset})
	server.WantSent("a Read", 2)
	server.Send("the end", marker[:64])
	client.WantMessage("the end", marker[:64])
	if !bytes.Equal(sink.Bytes(), marker) || !bytes.Equal(from.Bytes(), marker) {
		t.Error("other data arrives")
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	for way := range w.all {
		if b := w.all[way].Bytes(); len(b) < len(marker) || bytes.Contains(b, []byte("marker")) || bytes.Contains(b, []byte("MPA ID")) {
			t.Errorf("way %d: of %d bytes some are plain text", way, len(b))
		}
	}
	for _, e := range []*fabrictest.Endpoint{client, server} {
		state := e.Conn.(*iwarp.Conn).TLS()
		if state == nil || state.Version != tls.VersionTLS13 || len(state.VerifiedChains) == 0 || state.NegotiatedProtocol != "iwarp" {
			t.Errorf("%s: %+v", e.Name, state)
		}
	}
}

// TestTruncated: an end of TCP that an attacker causes does not pass for a close of the peer.
func TestTruncated(t *testing.T) {
	client, server, _ := ends(t, mutual(t, "IP:127.0.0.1"), 20_000)
	client.Start()
	server.Start()
	client.Receives(20, 4096)
	server.Receives(1, 16)
	client.Send("hello", []byte("hello")) // a server waits for it: RFC 5044 section 7.1.2
	server.WantMessage("hello", []byte("hello"))
	server.Post("messages", slices.Repeat([]fabric.SendWR{{Op: fabric.OpSend, SGL: []fabric.SGE{{Buf: make([]byte, 4000)}}}}, 10)...)
	if end := client.WantEnd("a cut"); end.Clean || !errors.Is(end, io.ErrUnexpectedEOF) {
		t.Errorf("the client's end: %+v", end)
	}
}

// TestTLSRefused: another peer than the one that is meant, or one without TLS, gets no connection, with an error that
// says why; and nothing reaches Accept.
func TestTLSRefused(t *testing.T) {
	leak.Check(t)
	good := mutual(t, "IP:127.0.0.1")
	a := testutil.NewAuthority(t)
	with := func(edit func(c *tls.Config)) *tls.Config {
		c := good.Clone()
		edit(c)
		return c
	}
	expired := func(c *x509.Certificate) { c.NotAfter = time.Now().Add(-time.Minute) }
	chain := a
	for range 100 {
		chain = chain.Below(t)
	}
	var verification *tls.CertificateVerificationError
	var invalid x509.CertificateInvalidError
	var name x509.HostnameError
	var unknown x509.UnknownAuthorityError
	var stranger *iwarp.StrangerError
	var alert *net.OpError
	var record tls.RecordHeaderError
	var setup *iwarp.SetupError
	for _, tt := range []struct {
		what           string
		client, server *tls.Config
		want           []any
	}{
		{"a server for another name", with(func(c *tls.Config) { c.ServerName = "files.example" }), good, []any{&verification, &name}},
		{"a server of another authority", with(func(c *tls.Config) { c.RootCAs = a.Pool() }), good, []any{&verification, &unknown}},
		{"a server whose certificate has expired",
			with(func(c *tls.Config) { c.RootCAs = a.Pool() }),
			with(func(c *tls.Config) { c.Certificates = []tls.Certificate{a.Issue(t, expired, "IP:127.0.0.1")} }), []any{&verification, &invalid}},
		{"a server with a chain of 100",
			with(func(c *tls.Config) { c.RootCAs = a.Pool() }),
			with(func(c *tls.Config) { c.Certificates = []tls.Certificate{chain.Issue(t, nil, "IP:127.0.0.1")} }), []any{&verification}},
		{"a client without certificate", with(func(c *tls.Config) { c.Certificates = nil }), good, []any{&alert}},
		{"a client for another protocol", with(func(c *tls.Config) { c.NextProtos = []string{"h2"} }), good, []any{&alert}},
		{"a plain server", good, nil, []any{&setup}},
		{"a plain client", nil, good, []any{&stranger}},
		{"a server of another protocol, in plain text", good, new(tls.Config), []any{&record}},
	} {
		t.Run(tt.what, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
			defer cancel()
			addr := ""
			accepted := make(chan error, 1)
			if tt.server != nil && len(tt.server.Certificates) == 0 {
				l, err := net.Listen("tcp", "127.0.0.1:0")
				testutil.Must(t, err)
				defer l.Close()
				addr = l.Addr().String()
				go func() {
					if c, err := l.Accept(); err == nil {
						io.WriteString(c, "SSH-2.0-OpenSSH_9.2\r\n")
						c.Close()
					}
					accepted <- net.ErrClosed
				}()
			} else {
				p := iwarp.New(iwarp.Config{TLS: tt.server})
				defer p.Close()
				l, err := p.Listen(ctx, "127.0.0.1:0", fabric.ConnAttr{})
				testutil.Must(t, err)
				addr = l.Addr().String()
				go func() {
					c, err := l.Accept(ctx)
					if err == nil {
						c.Close()
					}
					accepted <- err
				}()
				defer func() {
					l.Close()
					if err := <-accepted; err == nil {
						t.Error("there is a request")
					}
				}()
			}
			p := iwarp.New(iwarp.Config{TLS: tt.client})
			defer p.Close()
			c, err := p.Resolve(ctx, addr, fabric.ConnAttr{})
			testutil.Must(t, err)
			defer c.Close()
			if tt.client == nil {
				// An end that does not know it is refused: at the latest by the reply.
				tt.want = append(tt.want, &setup)
			}
			err = c.Connect(ctx, nil)
			for _, want := range tt.want {
				if !errors.As(err, want) {
					t.Errorf("%v; want a %T", err, want)
				}
			}
			t.Logf("%v", err)
		})
	}
}
