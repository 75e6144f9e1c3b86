package iwarp

import (
	"net"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/rpcrdma/rpcrdma/internal/testing/testutil"
)

// TestUnpace: between loopback addresses both ends use Reno, whether the listener has such an address
// or any.
func TestUnpace(t *testing.T) {
	for _, addr := range []string{"127.0.0.1:0", "0.0.0.0:0"} {
		l, err := net.Listen("tcp4", addr)
		testutil.Must(t, err)
		defer l.Close()
		s, err := listeningSocket(l.(*net.TCPListener))
		testutil.Must(t, err)
		defer s.f.Close()
		out, _, err := startConnect(&net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: l.Addr().(*net.TCPAddr).Port})
		testutil.Must(t, err)
		defer out.f.Close()
		_, err = out.f.Write([]byte{1}) // accepting waits for it
		testutil.Must(t, err)
		in, _, err := acceptSocket(s.fd)
		testutil.Must(t, err)
		defer in.f.Close()
		for _, fd := range []int{out.fd, in.fd} {
			got, err := unix.GetsockoptString(fd, unix.IPPROTO_TCP, unix.TCP_CONGESTION)
			testutil.Must(t, err)
			if got != "reno" {
				t.Errorf("listening on %s: congestion control %q", addr, got)
			}
		}
	}
}
