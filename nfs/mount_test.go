package nfs

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"strings"
	"testing"

	"github.com/rpcrdma/rpcrdma/internal/testing/testbed"
	"github.com/rpcrdma/rpcrdma/internal/testing/testutil"
	"github.com/rpcrdma/rpcrdma/proto/oncrpc"
	"github.com/rpcrdma/rpcrdma/proto/xdr"
	"github.com/rpcrdma/rpcrdma/rpc/rpcbind"
	"github.com/rpcrdma/rpcrdma/transport"
)

// If the server has MOUNT on the RDMA connection it is used.
func testMountOverRDMA(t *testing.T, b *testbed.Bed) {
	s, c := pair(t, b)
	ctx := t.Context()
	s.set(func() {
		s.exports = []Export{{Dir: "/"}, {Dir: "/export/deep/"}, {Dir: "/export", Groups: []string{"a", "b"}}, {Dir: "/exp"}}
	})
	exports, err := c.Exports(ctx)
	if err != nil || len(exports) != 4 || len(exports[2].Groups) != 2 {
		t.Errorf("EXPORT: %v, %v", exports, err)
	}
	if m, err := c.Mounts(ctx); err != nil || len(m) != 1 {
		t.Errorf("DUMP: %v, %v", m, err)
	}
	// The longest export is used, and whole path elements are compared.
	for _, test := range []struct{ path, export, rest string }{
		{"/export/a/b", "/export", "a/b"},
		{"/export", "/export", ""},
		{"/export/", "/export", ""},
		{"/exports/a", "/", "exports/a"},
		{"/exp/a", "/exp", "a"},
		{"/", "/", ""},
	} {
		m, err := c.Mount(ctx, test.path)
		if err != nil || m.Export != test.export || m.Rest != test.rest || m.Root != s.root.handle() {
			t.Errorf("%s: %+v, %v", test.path, m, err)
		}
	}
	if err := c.Umnt(ctx, "/export"); err != nil {
		t.Errorf("UMNT: %v", err)
	}
	var me *MountError
	if _, err := c.Mnt(ctx, "/other"); !errors.As(err, &me) || me.Status != MountNoEnt || !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("MNT: %v", err)
	}
	if _, err := c.Mnt(ctx, strings.Repeat("/x", 600)); !errors.As(err, &me) || me.Status != MountNameTooLong {
		t.Errorf("MNT of a long path: %v", err)
	}
}

func testNoExport(t *testing.T, b *testbed.Bed) {
	_, c := pair(t, b)
	_, err := c.Mount(t.Context(), "/elsewhere")
	var pe *fs.PathError
	var list *NoExportError
	if !errors.Is(err, ErrNoExport) || !errors.Is(err, fs.ErrNotExist) || !errors.As(err, &pe) || !errors.As(err, &list) {
		t.Fatal(err)
	}
	if len(list.Exports) != 1 || list.Exports[0].Dir != "/export" {
		t.Errorf("the server exports %v", list.Exports)
	}
}

// Without EXPORT the client tries each directory on the path, from the root.
func testMountWithoutExport(t *testing.T, b *testbed.Bed) {
	s, c := pair(t, b)
	ctx := t.Context()
	s.set(func() { s.exports = []Export{{Dir: "no EXPORT"}, {Dir: "/srv/nfs"}} })
	for _, path := range []string{"/srv/nfs/a/b", "/srv/nfs/c"} {
		m, err := c.Mount(ctx, path)
		if err != nil || m.Export != "/srv/nfs" || m.Rest != strings.TrimPrefix(path, "/srv/nfs/") {
			t.Errorf("%s: %+v, %v", path, m, err)
		}
	}
	if _, err := c.Mount(ctx, "/other/path"); !errors.Is(err, ErrNoExport) {
		t.Error(err)
	}
}

// The same if the list is too long.
func testMountLongList(t *testing.T, b *testbed.Bed) {
	s, c := pair(t, b)
	long := []Export{{Dir: "/export"}}
	for i := range 8000 {
		long = append(long, Export{Dir: fmt.Sprint("/", i)})
	}
	s.set(func() { s.exports = long })
	if m, err := c.Mount(t.Context(), "/export/a"); err != nil || m.Export != "/export" {
		t.Errorf("%+v, %v", m, err)
	}
}

// If the server has no MOUNT on the RDMA connection, as Linux, the client uses TCP, with the
// port of Options or from rpcbind. The host in rpcbind's reply is ignored.
func testMountFallback(t *testing.T, b *testbed.Bed) {
	for _, name := range []string{"port given", "rpcbind", "port mapper", "ServeTCP"} {
		t.Run(name, func(t *testing.T) {
			s := newMemServer(t, b)
			addr := s.start(false)
			host, port := s.mountServer()
			opts := &Options{MountHost: host, MountPort: port}
			switch name {
			case "rpcbind":
				elsewhere := fmt.Sprintf("192.0.2.1.%d.%d", port>>8, port&0xff)
				opts = &Options{RPCBindPort: rpcbindServer(t, b.Host, 4, elsewhere)}
			case "port mapper":
				opts = &Options{RPCBindPort: rpcbindServer(t, b.Host, 2, port)}
			}
			if name == "ServeTCP" {
				port := tcpServer(t, b.Host, s.mountProgram())
				opts = &Options{RPCBindPort: tcpServer(t, b.Host, rpcbindProgram(port))}
			}
			c := dial(t, b, addr, opts)
			for range 2 { // the second time RDMA is not asked
				if fh, err := c.Mnt(t.Context(), "/export"); err != nil || fh != s.root.handle() {
					t.Fatalf("%v, %v", fh, err)
				}
			}
			if c.mountAt != mountOnTCP {
				t.Error("the way was not remembered")
			}
			s.add("file", TypeReg, "x")
			if _, err := c.Stat(t.Context(), "/export/file"); err != nil {
				t.Error(err)
			}
			var me *MountError
			if _, err := c.Mnt(t.Context(), "/other"); !errors.As(err, &me) {
				t.Error(err)
			}
		})
	}
}

// With TLS for files, MOUNT over TCP has TLS as well: a handle that an attacker has made is no use then.
func TestMountTLS(t *testing.T) {
	a := testutil.NewAuthority(t)
	with := &transport.TLS{Config: &tls.Config{Certificates: []tls.Certificate{a.Issue(t, nil, "IP:127.0.0.1")}, RootCAs: a.Pool()}}
	s := newMemServer(t, testbed.Iwarp())
	for name, cfg := range map[string]*transport.TLS{"encrypted": with, "plain text": nil} {
		c := &Client{opts: Options{MountHost: "127.0.0.1", Transport: &transport.ClientConfig{Config: transport.Config{TLS: with}}}}
		c.opts.MountPort = tcpServerWith(t, &transport.ServerConfig{Config: transport.Config{TLS: cfg}}, "127.0.0.1", s.mountProgram())
		err := c.mountOverTCP(t.Context(), func(ctx context.Context, m *mountV3Client) error { return m.Null(ctx) })
		if (err == nil) != (cfg != nil) || err != nil && !errors.As(err, new(*transport.TLSError)) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// If both fail the error has both reasons.
func testMountFallbackErrors(t *testing.T, b *testbed.Bed) {
	s := newMemServer(t, b)
	addr := s.start(false)
	l, err := net.Listen("tcp", b.Host+":0")
	if err != nil {
		t.Fatal(err)
	}
	closed := l.Addr().(*net.TCPAddr).Port
	l.Close()
	for _, test := range []struct {
		name string
		opts Options
		want string
	}{
		{"nobody listens", Options{MountPort: closed}, "refused"},
		{"no rpcbind", Options{RPCBindPort: closed}, "rpcbind: GETADDR at " + hostPort(b.Host, closed)},
		{"not registered", Options{RPCBindPort: rpcbindServer(t, b.Host, 4, "")}, "for program 100005 version 3 over tcp: not registered"},
		{"an address that is none", Options{RPCBindPort: rpcbindServer(t, b.Host, 4, "nonsense")}, "malformed reply"},
		{"a port that is none", Options{RPCBindPort: rpcbindServer(t, b.Host, 2, 65536)}, "port 65536"},
		{"no version that we know", Options{RPCBindPort: rpcbindServer(t, b.Host, 1, 0)}, "program 100000 v2: the server has version 3"},
	} {
		c := dial(t, b, addr, &test.opts)
		_, err := c.Exports(t.Context())
		var fe *MountFallbackError
		var rpc *oncrpc.RPCError
		if !errors.As(err, &fe) || !errors.As(err, &rpc) || rpc.AcceptStat != oncrpc.ProgUnavail || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: %v", test.name, err)
		}
	}
}

func TestMountNetid(t *testing.T) {
	for host, want := range map[string]rpcbind.Netid{
		"192.0.2.1":        rpcbind.TCP,
		"::ffff:192.0.2.1": rpcbind.TCP, // that is how net writes some
		"2001:db8::1":      rpcbind.TCP6,
		"fe80::1%eth0":     rpcbind.TCP6,
		"server":           rpcbind.TCP,
	} {
		if got := mountNetid(host); got != want {
			t.Errorf("%s: %s, want %s", host, got, want)
		}
	}
}

// statusOverTCP calls MNT over TCP, and returns the status of the results.
func statusOverTCP(ctx context.Context, host string, port int) (s MountStatus, err error) {
	c := &Client{opts: Options{MountHost: host, MountPort: port}}
	err = c.mountOverTCP(ctx, func(ctx context.Context, m *mountV3Client) error {
		res, err := m.Mnt(ctx, "/")
		s = res.Status
		return err
	})
	return s, err
}

// Replies over TCP.
func TestTCPReplies(t *testing.T) {
	good := func(xid uint32) []byte { return record(xid, oncrpc.Success, xdr.AppendUint32(nil, 5)) }
	for _, test := range []struct {
		name string
		f    func(h *oncrpc.CallHeader, args []byte) []byte
		want string // in the error; empty: none
	}{
		{"two fragments", func(h *oncrpc.CallHeader, _ []byte) []byte { return good(h.XID) }, ""},
		{"PROG_MISMATCH", func(h *oncrpc.CallHeader, _ []byte) []byte {
			return record(h.XID, oncrpc.ProgMismatch, nil)
		}, "has version 3 of the program"},
		{"results cut short", func(h *oncrpc.CallHeader, _ []byte) []byte { return record(h.XID, oncrpc.Success, nil) }, "int32 is cut short"},
		{"a tail", func(h *oncrpc.CallHeader, _ []byte) []byte {
			return record(h.XID, oncrpc.Success, []byte{3: 5, 7: 0})
		}, "bytes after the last item"},
		{"longer than any list", func(h *oncrpc.CallHeader, _ []byte) []byte {
			return record(h.XID, oncrpc.Success, make([]byte, maxTCPResults+400))
		}, "leave room for"},
		{"a record of 2^31-1 bytes", func(*oncrpc.CallHeader, []byte) []byte {
			return oncrpc.AppendRecordMark(nil, oncrpc.MaxFragment, true)
		}, "more than MaxMessage"},
		{"empty fragments", func(*oncrpc.CallHeader, []byte) []byte {
			return oncrpc.AppendRecordMark(nil, 0, false)
		}, "empty fragment"},
	} {
		t.Run(test.name, func(t *testing.T) {
			host, port := rpcServer(t, "127.0.0.1", test.f)
			v, err := statusOverTCP(t.Context(), host, port)
			switch {
			case test.want == "" && (err != nil || v != 5):
				t.Errorf("%d, %v", v, err)
			case test.want != "" && (err == nil || !strings.Contains(err.Error(), test.want) || !refusal(err)):
				t.Errorf("%v, want %q, a refusal", err, test.want)
			}
		})
	}
}

// A server that does not answer, or closes the connection, does not block the client.
func TestTCPCancel(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	call := func(ctx context.Context) error {
		_, err := statusOverTCP(ctx, "127.0.0.1", l.Addr().(*net.TCPAddr).Port)
		return err
	}
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		conn, err := l.Accept()
		if err != nil {
			t.Error(err)
			return
		}
		defer conn.Close()
		if _, err := io.ReadFull(conn, make([]byte, 44)); err != nil { // the call
			t.Error(err)
		}
		cancel()
		io.Copy(io.Discard, conn)
	}()
	if err := call(ctx); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	go func() {
		conn, err := l.Accept()
		if err != nil {
			t.Error(err)
			return
		}
		conn.Close()
	}()
	if err := call(t.Context()); !errors.Is(err, net.ErrClosed) || refusal(err) {
		t.Error(err)
	}
}
