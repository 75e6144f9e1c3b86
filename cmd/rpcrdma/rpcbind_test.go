package main

import (
	"io"
	"net"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/rpcrdma/rpcrdma/nfs"
	"github.com/rpcrdma/rpcrdma/proto/oncrpc"
	"github.com/rpcrdma/rpcrdma/rpc/rpcbind"
)

func TestRPCBindMessages(t *testing.T) {
	dir := t.TempDir()
	for _, tt := range []struct {
		status int
		text   string
		args   []string
	}{
		{1, "ls nfs://127.0.0.1/: asking the rpcbind at 127.0.0.1:1 for NFS version 3 over rdma: connection refused", []string{"ls", "--rpcbind=:1", "nfs://127.0.0.1/"}},
		{1, "ping: asking the rpcbind at [::1]:1 for NFS version 3 over rdma6: ", []string{"ping", "--rpcbind=:1", "[::1]"}},
		{1, "probe: asking the rpcbind at 127.0.0.1:1 for", []string{"probe", "--rpcbind=127.0.0.1:1", "nowhere.invalid"}},
		{1, "registering NFS version 3 over rdma with the rpcbind at 127.0.0.1:1: connection refused", []string{"serve", "--dir", dir, "--addr", "127.0.0.1:0", "--rpcbind=127.0.0.1:1"}},
		{2, "--rpcbind finds the port: give the URL without :20049", []string{"ls", "--rpcbind", "nfs://host:20049/"}},
		{2, "--rpcbind finds the port: give HOST without :20049", []string{"ping", "--rpcbind", "host:20049"}},
		{2, "with --rpcbind want HOST", []string{"probe", "--rpcbind", "a:b:c"}},
		{2, "--rpcbind wants =HOST:PORT", []string{"probe", "--rpcbind=host", "host"}},
		{2, "--rpcbind wants =HOST:PORT", []string{"serve", "--rpcbind=host:", "--dir", dir}},
		{2, "want HOST or HOST:PORT", []string{"probe", "a:b:c"}},
	} {
		mustFail(t, tt.status, tt.text, tt.args...)
	}
}

// Failures of rpcbind to find the port of MOUNT.
func TestMountPortMessages(t *testing.T) {
	absent := &oncrpc.RPCError{Stat: oncrpc.MsgAccepted, AcceptStat: oncrpc.ProgUnavail, Prog: nfs.MountProgram, Vers: nfs.MountVersion}
	const begin = "no MOUNT on the RDMA connection (the server does not have MOUNT (PROG_UNAVAIL)), nor over TCP: "
	const asking = begin + "asking the rpcbind at server:111 for MOUNT version 3 over tcp: "
	for want, err := range map[string]error{
		begin + "the rpcbind at server:111 has no MOUNT version 3 over tcp registered": rpcbind.ErrNotRegistered,
		asking + "connection refused: nothing listens there":                           &net.OpError{Op: "dial", Err: os.NewSyscallError("connect", syscall.ECONNREFUSED)},
		asking + "invalid answer: unexpected EOF":                                      &rpcbind.BadReplyError{Err: io.ErrUnexpectedEOF},
		asking + `invalid answer: address "x" of netid "tcp": is cut short`:            &rpcbind.BadReplyError{Err: &rpcbind.AddrError{Netid: rpcbind.TCP, Addr: "x", What: "is cut short"}},
	} {
		err = &rpcbind.OpError{Op: "GETADDR", Server: "server:111", Prog: nfs.MountProgram, Vers: nfs.MountVersion, Netid: rpcbind.TCP, Err: err}
		if got := explain(&nfs.MountFallbackError{RDMA: absent, TCP: err}); got != want {
			t.Errorf("%s\nwant\n%s", got, want)
		}
	}
}

// CTX-1833-1: the mappings of a listener.
func TestMappingsOf(t *testing.T) {
	for addr, want := range map[string][]string{
		"192.0.2.1:20049":     {"rdma 192.0.2.1.78.81"},
		"[2001:db8::1]:20049": {"rdma6 2001:db8::1.78.81"},
		"0.0.0.0:20049":       {"rdma 0.0.0.0.78.81"},
		"[::]:20049":          {"rdma6 ::.78.81", "rdma 0.0.0.0.78.81"},
	} {
		a, err := net.ResolveTCPAddr("tcp", addr)
		if err != nil {
			t.Fatal(err)
		}
		var mappings []rpcbind.Mapping
		for _, w := range want {
			netid, uaddr, _ := strings.Cut(w, " ")
			m := rpcbind.Mapping{Netid: rpcbind.Netid(netid), Addr: uaddr}
			m.Prog, m.Vers = nfs.Program, nfs.Version
			mappings = append(mappings, m)
			m.Prog, m.Vers = nfs.MountProgram, nfs.MountVersion
			mappings = append(mappings, m)
		}
		if got := mappingsOf(rpcbind.RDMA, a); !slices.Equal(got, mappings) {
			t.Errorf("%s: %v, want %v", addr, got, mappings)
		}
	}
}
