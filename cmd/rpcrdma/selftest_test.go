package main

import (
	"encoding/json"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/rpcrdma/rpcrdma/cmd/rpcrdma/internal/selftest"
	"github.com/rpcrdma/rpcrdma/internal/testing/rdmatest"
)

// readReport reads a report, which has no address and no name of this machine.
func readReport(t *testing.T, file string, names ...string) *selftest.Report {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	host, _ := os.Hostname()
	if len(host) > 3 { // shorter names are in other words
		names = append(names, host)
	}
	addrs, _ := net.InterfaceAddrs()
	for _, a := range addrs {
		ip := a.(*net.IPNet).IP
		names = append(names, ip.String())
	}
	links, _ := net.Interfaces()
	for _, i := range links {
		if len(i.HardwareAddr) > 0 {
			names = append(names, i.HardwareAddr.String())
		}
	}
	for _, name := range names {
		if strings.Contains(string(text), name) {
			t.Errorf("the report has %q in it", name)
		}
	}
	var r selftest.Report
	if err := json.Unmarshal(text, &r); err != nil {
		t.Fatal(err)
	}
	return &r
}

func outcomes(r *selftest.Report) map[string]string {
	m := make(map[string]string)
	for _, res := range r.Results {
		m[res.Name] = res.Outcome
	}
	return m
}

// TestSelftest: the software adapter passes, alone and with a peer.
func TestSelftest(t *testing.T) {
	s := startServer(t, "--dir", t.TempDir())
	file := filepath.Join(t.TempDir(), "report.json")
	out := mustRun(t, "selftest", "--time", "100ms", "--rules", "Setup,Message", "--output", file, "iwarp", s.addr)
	r := readReport(t, file)
	got := outcomes(r)
	if r.Schema != selftest.Schema || r.Adapter.Driver != "iwarp" || !r.Peer || got["calls/load"] != "passed" || got["calls to the peer/echo of 1 MiB"] != "passed" {
		t.Errorf("%+v", r)
	}
	if !strings.Contains(out, " 0 failed, ") || !strings.Contains(out, "calls/1 MiB to the server ") {
		t.Errorf("it prints\n%s", out)
	}
	for name, outcome := range got {
		if outcome != "passed" && name != "rules/Setup/StalledPeer" { // which nothing here plays
			t.Errorf("%s: %s", name, outcome)
		}
	}
	mustFail(t, 2, "--time is 0s, want more than 0", "selftest", "--time", "0", "iwarp")
	mustFail(t, 1, "", "selftest", "--output", file, "no-such-device")
	mustFail(t, 1, "not a directory", "selftest", "--time", "1ms", "--rules", "none", "--output", filepath.Join(file, "x"), "iwarp")
}

// TestRDMASelftest: of rxe and siw the failures are those that are known.
func TestRDMASelftest(t *testing.T) {
	known := map[string][]string{
		"rxe": {"verbs/memory windows"},
		"siw": {"rules/Memory/ReadWithoutRight", "rules/Memory/LocalRegionIsPrivate"},
	}
	for _, kind := range rdmatest.Kinds() {
		t.Run(kind, func(t *testing.T) {
			addr := rdmatest.Device(t, kind)
			file := filepath.Join(t.TempDir(), "report.json")
			res := runCommand(t, "selftest", "--time", "500ms", "--rules", "Memory", "--output", file, kind+"0")
			r := readReport(t, file, addr, kind+"0")
			if res.status != 1 || r.Adapter.Driver != kind || r.Adapter.Limits == nil {
				t.Errorf("status %d, %+v\n%s", res.status, r.Adapter, res.stderr)
			}
			got := outcomes(r)
			for _, name := range known[kind] {
				if got[name] != "failed" {
					t.Errorf("%s: %s, which is known to fail", name, got[name])
				}
				delete(got, name)
			}
			for _, res := range r.Results {
				if got[res.Name] == "failed" {
					t.Errorf("%s has failed after %.1f s: %s", res.Name, res.Seconds, res.Why)
				}
			}
		})
	}
}
