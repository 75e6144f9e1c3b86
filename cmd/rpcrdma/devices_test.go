package main

import (
	"strings"
	"testing"

	"github.com/rpcrdma/rpcrdma/cmd/rpcrdma/internal/look"
	"github.com/rpcrdma/rpcrdma/cmd/rpcrdma/internal/provider"
)

// The command succeeds on every machine.
func TestDevices(t *testing.T) {
	if out := mustRun(t, "devices"); !strings.HasPrefix(out, "provider iwarp  usable, needs no device\nprovider rdma   ") {
		t.Errorf("devices prints\n%s", out)
	}
	r := decodeJSON[look.ReportJSON](t, mustRun(t, "devices", "--json"))
	if len(r.Providers) != 2 || !r.Providers[0].Usable || r.Providers[1].Usable != (r.Providers[1].Reason == "") || r.Devices == nil {
		t.Errorf("devices --json: %+v", r)
	}
}

func TestProviderOptions(t *testing.T) {
	s := startServer(t, "--dir", t.TempDir())
	mustFail(t, 2, "--wait is for --provider rdma", "ping", "--wait", "poll", s.addr)
	mustFail(t, 2, "--unsafe-windows is for --provider rdma", "ls", "--unsafe-windows", s.url("/"))
	mustFail(t, 2, "want adaptive, event or poll", "ping", "--wait", "long", s.addr)
	mustRun(t, "ping", "--provider", "iwarp", "-c", "1", s.addr)
	for _, args := range [][]string{{"ping", "-c", "1", s.addr}, {"ls", s.url("/")}} {
		r := runCommand(t, append(args, "--provider", "auto", "--wait", "event")...)
		if r.status != 0 || !strings.HasPrefix(r.stderr, "rpcrdma: provider iwarp: ") || strings.Count(r.stderr, "\n") != 1 {
			t.Errorf("%s: status %d\n%s", args, r.status, r.stderr)
		}
	}
	if provider.HasDevices() {
		return // tests with RDMA in their names know more
	}
	for _, args := range [][]string{{"ping", s.addr}, {"ls", s.url("/")}, {"serve", "--dir", "."}} {
		mustFail(t, 1, ": provider rdma: ", append(args, "--provider", "rdma")...)
	}
}
