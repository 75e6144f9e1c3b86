package main

import (
	"net"
	"slices"
	"strings"
	"testing"

	"github.com/rpcrdma/rpcrdma/nfs"
	"github.com/rpcrdma/rpcrdma/rpcbind"
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
		{2, "the port is 20049 already: --rpcbind wants a URL without one", []string{"ls", "--rpcbind", "nfs://host:20049/"}},
		{2, "the port is 20049 already: --rpcbind wants HOST alone", []string{"ping", "--rpcbind", "host:20049"}},
		{2, "with --rpcbind want HOST", []string{"probe", "--rpcbind", "a:b:c"}},
		{2, "--rpcbind wants =HOST:PORT", []string{"probe", "--rpcbind=host", "host"}},
		{2, "--rpcbind wants =HOST:PORT", []string{"serve", "--rpcbind=host:", "--dir", dir}},
		{2, "want HOST:PORT", []string{"probe", "host"}},
	} {
		mustFail(t, tt.status, tt.text, tt.args...)
	}
}

// CTX-1833-1: what is registered for a listener.
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
