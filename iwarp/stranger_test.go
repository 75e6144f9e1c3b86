//go:build linux

package iwarp

import (
	"errors"
	"io/fs"
	"net"
	"strings"
	"syscall"
	"testing"

	"github.com/rpcrdma/rpcrdma/fabric"
	"github.com/rpcrdma/rpcrdma/proto/mpa"
)

// TestStrangers: the error says what answered instead of MPA, in bounded printable text.
func TestStrangers(t *testing.T) {
	for answer, want := range map[string]string{
		"SSH-2.0-OpenSSH_9.2p1\r\n":                  "SSH-2.0-OpenSSH_9.2p1",
		"HTTP/1.1 400 Bad Request\r\nServer: x\r\n":  "HTTP/1.1 400 Bad Request",
		"220 mail.example ESMTP \x1b[2J\r\n":         "220 mail.example ESMTP ",
		"\x1b]0;title\x07":                           "something that is not text",
		"\x00\x00\x00\x01":                           "something that is not text",
		"\xff\xfd\x18":                               "something that is not text",
		"\r\nlogin: ":                                "something that is not text",
		"\x15\x03\x03\x00\x02\x02\x0a":               "TLS",
		"\x15\x04":                                   "something that is not text",
		strings.Repeat("x", 64):                      strings.Repeat("x", 64) + "...",
		strings.Repeat("x", 63) + "\n":               strings.Repeat("x", 63),
		strings.Repeat("x", 1000):                    strings.Repeat("x", 64) + "...",
		"MPA ID Rep Frale":                           "MPA ID Rep Frale",
		"MPA ID Req Frame\x00\x01\x00\x00 and so on": "MPA ID Req Frame",
	} {
		_, peer, connected := scriptedServer(t, New(Config{}), fabric.ConnAttr{}, nil)
		peer.wantFrame("a request", mpa.Request)
		peer.write([]byte(answer))
		err := <-connected
		var s *StrangerError
		if !errors.As(err, &s) || !errors.Is(err, mpa.ErrKey) || len(s.Answer) > maxAnswer || !strings.HasPrefix(answer, string(s.Answer)) {
			t.Errorf("%.20q: %v", answer, err)
			continue
		}
		if got := s.Text(); got != want {
			t.Errorf("%.20q is told as %q, want %q", answer, got, want)
		}
	}
}

// TestResetInSetup: the error of a reset is one of the network, with its errno, and not of a file.
func TestResetInSetup(t *testing.T) {
	_, peer, connected := scriptedServer(t, New(Config{}), fabric.ConnAttr{}, nil)
	peer.wantFrame("a request", mpa.Request)
	if err := peer.c.(*net.TCPConn).SetLinger(0); err != nil {
		t.Fatal(err)
	}
	peer.c.Close()
	err := <-connected
	var op *net.OpError
	if !errors.Is(err, syscall.ECONNRESET) || !errors.As(err, &op) || op.Addr == nil || errors.As(err, new(*fs.PathError)) {
		t.Errorf("Connect: %v", err)
	}
	if n := strings.Count(err.Error(), op.Addr.String()); n != 1 {
		t.Errorf("the address is named %d times: %v", n, err)
	}
}
