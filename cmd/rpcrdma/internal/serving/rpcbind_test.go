package serving

import (
	"net"
	"slices"
	"strings"
	"testing"

	"github.com/rpcrdma/rpcrdma/nfs"
	"github.com/rpcrdma/rpcrdma/rpc/rpcbind"
)

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
