//go:build linux && cgo

package cgotest_test

import (
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/rpcrdma/rpcrdma/cgo/cgotest"
)

var update = flag.Bool("update", false, "write docs/reports/personalities.md anew") // immutable once parsed

// TestPersonalitiesPage: docs/reports/personalities.md says what the adapters of this package do.
func TestPersonalitiesPage(t *testing.T) {
	var b strings.Builder
	b.WriteString(`# Adapters that tests know from their drivers

Written by ` + "`go test ./cgo/cgotest -run PersonalitiesPage -update`" + ` from package cgotest. A fake device behaves as each table says, and moves
data in memory: the conformance suite of providers, and calls of package transport, run on each adapter that has reliable connections
(` + "`rdmacm.TestPersonalities`, `transport.TestPersonalities`" + `). No adapter was at hand. What firmware decides is as its driver's names
suggest. Sources are files of rdma-core v64.0 (providers) and Linux 6.1 (drivers, include).
`)
	for _, p := range cgotest.Personalities {
		fmt.Fprintf(&b, "\n## %s\n\n| | | source |\n|---|---|---|\n", p.Name)
		for _, f := range p.Facts {
			fmt.Fprintf(&b, "| %s | %s | %s |\n", f.What, f.Value, f.Source)
		}
	}
	const page = "../../docs/reports/personalities.md"
	if *update {
		if err := os.WriteFile(page, []byte(b.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	got, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	if string(got) != b.String() {
		t.Errorf("%s is not what the table says: go test ./cgo/cgotest -run PersonalitiesPage -update", page)
	}
}
