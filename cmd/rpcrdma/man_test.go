package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/rpcrdma/rpcrdma/internal/testing/testutil"
)

// Every command and topic has a page, which man understands, with all that its help says.
func TestManualPages(t *testing.T) {
	dir := t.TempDir()
	mustRun(t, "man", "--release", "rpcrdma v1.2.3", "--date", "2026-01-02", dir)
	pages, err := filepath.Glob(dir + "/*")
	testutil.Must(t, err)
	root := newRoot()
	want := map[string]bool{"rpcrdma.1": true, "rpcrdma-providers.7": true, "rpcrdma-rpcbind.7": true, "rpcrdma-tls.7": true}
	for _, cmd := range root.Commands() {
		if cmd.IsAvailableCommand() && cmd.Name() != "help" {
			want["rpcrdma-"+cmd.Name()+".1"] = true
		}
	}
	if len(pages) != len(want) || len(want) < 20 {
		t.Errorf("%d pages, want %d: %s", len(pages), len(want), pages)
	}
	man, lookErr := exec.LookPath("man")
	if lookErr != nil {
		t.Log("man does not look at the pages: it is not installed")
	}
	for _, page := range pages {
		if !want[filepath.Base(page)] {
			t.Errorf("%s is of nothing", page)
		}
		text, err := os.ReadFile(page)
		testutil.Must(t, err)
		if !strings.Contains(string(text), `"2026\-01\-02" "rpcrdma v1.2.3"`) {
			t.Errorf("%s begins with\n%.100s", page, text)
		}
		if lookErr != nil {
			continue
		}
		cmd := exec.Command(man, "--warnings", "-E", "UTF-8", "-l", "-Tutf8", "-Z", page)
		var warnings strings.Builder
		cmd.Stderr = &warnings
		if err := cmd.Run(); err != nil || warnings.Len() > 0 {
			t.Errorf("man complains about %s: %v\n%s", page, err, &warnings)
		}
	}
	serve, err := os.ReadFile(dir + "/rpcrdma-serve.1")
	testutil.Must(t, err)
	for _, want := range []string{
		`rpcrdma\-serve \- Export directories over NFS version 3`,
		"\n" + `\fB\-\-access\-log\fR \fIFILE\fR` + "\n",
		"\n" + `\fB\-v\fR, \fB\-\-verbose\fR` + "\n",
		"\n" + `\fB\-\-rpcbind\fR[=\fIHOST:PORT\fR]` + "\n",
		"\n" + `squash=none|root|all  as \-\-squash`,
		"\n" + `rpcrdma serve \-\-dir /srv/data \-\-read\-only` + "\n",
		`.BR rpcrdma\-providers (7)`,
	} {
		if !strings.Contains(string(serve), want) {
			t.Errorf("the page of serve lacks %q:\n%s", want, serve)
		}
	}
}

func TestManualDirectory(t *testing.T) {
	if r := runCommand(t, "man", t.TempDir()+"/none"); r.status != 1 || !strings.Contains(r.stderr, "no such file") {
		t.Errorf("status %d: %s", r.status, r.stderr)
	}
}
