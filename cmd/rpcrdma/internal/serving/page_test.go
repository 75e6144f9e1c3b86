package serving

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/rpcrdma/rpcrdma/internal/testing/testutil"
	"github.com/rpcrdma/rpcrdma/nfs"
	"github.com/rpcrdma/rpcrdma/nfs/nfsd"
)

// The exports file in docs/serving.md can be read, and the log is one.
func TestServingPage(t *testing.T) {
	page, err := os.ReadFile("../../../../docs/serving.md")
	if os.IsNotExist(err) {
		t.Skip("the documentation is in the repository, and this module is not")
	}
	testutil.Must(t, err)
	text := string(page)
	_, example, _ := strings.Cut(text, "```exports\n")
	example, _, _ = strings.Cut(example, "```")
	file := filepath.Join(t.TempDir(), "exports")
	testutil.Must(t, os.WriteFile(file, []byte(example), 0o600))
	got, err := exportsOf("--exports", file)
	want := "/srv/data as /data [192.0.2.0/24 2001:db8::/64] | /srv/public as /srv/public ro all | /srv/home as /home none [192.0.2.10/32] | /srv/with space as /with space"
	if err != nil || got != want {
		t.Errorf("the exports are %s, %v, want %s", got, err, want)
	}

	field := regexp.MustCompile(` ([a-z_]+)=("[^"]*"|\S+)`)
	known := make(map[string]bool)
	for _, proc := range []uint32{nfs.ProcRead, nfs.ProcRename} {
		all := anAccess(func(a *nfsd.Access) { a.Proc, a.AsUID, a.Name, a.NewName, a.To, a.Made = proc, 1, "a", "b", 1, 1 })
		for _, m := range field.FindAllStringSubmatch(string(appendAccess(nil, all)), -1) {
			known[m[1]] = true
		}
	}
	line := regexp.MustCompile(`(?m)^20\d\d-\d\d-\d\dT[\d:.]+Z \S+:\d+ [A-Z]+ (?:NFS|MNT)3_OK \d\.\d{6}((?: [a-z_]+=(?:"[^"]*"|\S+))+)$`)
	lines := line.FindAllStringSubmatch(text, -1)
	if len(lines) != 3 {
		t.Errorf("the page has %d lines of a log", len(lines))
	}
	for _, l := range lines {
		for _, m := range field.FindAllStringSubmatch(l[1], -1) {
			if !known[m[1]] {
				t.Errorf("no line has a field %s", m[1])
			}
		}
	}
}
