package main

import (
	"context"
	"net"
	"strings"
	"testing"

	"github.com/rpcrdma/rpcrdma/cmd/rpcrdma/internal/provider"
	"github.com/rpcrdma/rpcrdma/cmd/rpcrdma/internal/verbs"
	"github.com/rpcrdma/rpcrdma/internal/testing/rdmatest"
)

func TestVerbs(t *testing.T) {
	mustFail(t, 2, "ud has no read", "verbs", "ping", "--transport", "ud", "--op", "read", "host")
	mustFail(t, 2, "--count is 0", "verbs", "ping", "-c", "0", "host")
	mustFail(t, 2, "--time is 0s", "verbs", "lat", "--time", "0", "host")
	mustFail(t, 2, "0 requests at once", "verbs", "bw", "--depth", "0", "host")
	mustFail(t, 2, "--size", "verbs", "bw", "--size", "1Ti", "host")
	if provider.HasDevices() {
		return // tests with RDMA in their names know more
	}
	mustFail(t, 1, "", "verbs", "serve", "--device", "none")
}

// TestRDMAVerbs: all operations of each transport, every byte checked, and figures of some.
func TestRDMAVerbs(t *testing.T) {
	rdmatest.OnDevices(t, func(t *testing.T, kind, addr string) {
		s := startServing(t, command(context.Background(), "verbs", "serve", "--addr", net.JoinHostPort(addr, "0")))
		at := s.addr
		for _, tt := range []struct{ transport, ops string }{
			{"rc", "send write write-imm read fetch-add cmp-swap"}, {"uc", "send write write-imm"}, {"ud", "send"},
		} {
			for _, op := range strings.Fields(tt.ops) {
				args := []string{"--transport", tt.transport, "--op", op, at}
				if kind == "siw" && (tt.transport != "rc" || op == "write-imm" || strings.Contains(op, "-add") || strings.Contains(op, "-swap")) {
					mustFail(t, 1, "is an iWARP device, which does not support ", append([]string{"verbs", "ping"}, args...)...)
					continue
				}
				if out := mustRun(t, append([]string{"verbs", "ping", "-c", "3", "--size", "1000", "--events"}, args...)...); !strings.Contains(out, "3 operations, ") {
					t.Errorf("%s %s: %s", tt.transport, op, out)
				}
				if op != "send" && op != "read" {
					continue
				}
				for _, mode := range []string{"lat", "bw"} {
					out := mustRun(t, append([]string{"verbs", mode, "--json", "--time", "30ms", "--size", "1000", "--events"}, args...)...)
					r := decodeJSON[verbs.Report](t, out)
					if len(r.Rows) == 0 || r.Rows[0].Count == 0 || r.Rows[0].PerSecond <= 0 {
						t.Errorf("%s %s %s: %s", mode, tt.transport, op, out)
					}
				}
			}
		}
		c, err := net.Dial("tcp", at)
		if err != nil {
			t.Fatal(err)
		}
		c.Write([]byte("GET / HTTP/1.1\n"))
		c.Close()
		mustRun(t, "verbs", "ping", "-c", "1", at) // the server is not impressed
	})
}
