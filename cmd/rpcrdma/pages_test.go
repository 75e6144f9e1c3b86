package main

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/rpcrdma/rpcrdma/internal/testing/testutil"
)

// Commands of pages that run anywhere, with a server or without, and options that do not.
// Immutable.
var (
	runsAnywhere = regexp.MustCompile(`^(tar c src \| )?rpcrdma (bench|cp|devices|get|ls|ping|probe|put) ?`)
	needsMore    = regexp.MustCompile(`--provider rdma|--rpcbind`) // a device; rpcbind
)

// TestPages runs the command lines of pages that need neither a device nor another program, in
// order, on a server. Each has to succeed, and to print the first words of each line that the page
// has of it, figures aside. Other pages have tests of their own: TestOperatingPage, TestMigrationPage.
func TestPages(t *testing.T) {
	for page, commands := range map[string]int{
		"README.md": 3, "docs/command.md": 11, "docs/troubleshooting.md": 4, "docs/choosing.md": 1,
	} {
		t.Run(page, func(t *testing.T) {
			doc, err := os.ReadFile(filepath.Join("../..", page))
			if errors.Is(err, fs.ErrNotExist) {
				t.Skip("the documentation is in the repository, and this module is not: there is no ", page)
			}
			testutil.Must(t, err)
			if n := runPage(t, page, string(doc)); n != commands {
				t.Errorf("%d commands were run, want %d: has the page changed, or is the search for them broken?", n, commands)
			}
		})
	}
}

// runPage runs the commands of a page and returns how many.
func runPage(t *testing.T, page, doc string) (ran int) {
	dir, bin, work := t.TempDir(), t.TempDir(), t.TempDir()
	testutil.WriteFiles(t, dir, map[string]string{"project/a": "1", "srv/b": "2"})
	testutil.WriteFiles(t, work, map[string]string{"notes.txt": "3", "notes/c": "4", "src/d": "5", "data/e": "6"})
	self, err := os.Executable()
	testutil.Must(t, err, os.Symlink(self, filepath.Join(bin, "rpcrdma")))
	s := startServer(t, "--dir", dir)
	here := strings.NewReplacer("127.0.0.1:20049", s.addr, "nfs://127.0.0.1/", s.url("/"), "192.0.2.1", s.addr, "10.77.0.1", s.addr,
		"rpcrdma bench ", "rpcrdma bench --calls 5 ")
	watching := false
	for _, c := range docCommands(doc) {
		watching = watching || strings.HasPrefix(c.text, "rpcrdma watch ")
		if !runsAnywhere.MatchString(c.text) || needsMore.MatchString(c.text) {
			continue
		}
		ran++
		ctx, cancel := context.WithTimeout(t.Context(), testTimeout)
		sh := exec.CommandContext(ctx, "sh", "-c", here.Replace(c.text))
		sh.Dir = work
		sh.Env = append(os.Environ(), asCommand+"=1", quickEnd(), "PATH="+bin+":"+os.Getenv("PATH"))
		out, err := sh.CombinedOutput()
		cancel()
		if err != nil {
			t.Errorf("%s:%d: %s: %v\n%s", page, c.line, c.text, err, out)
			continue
		}
		if watching || strings.Contains(c.text, "--retry") || strings.Contains(c.text, "devices") {
			continue // the page shows a watch, or needs a server that goes away, or a device
		}
		for _, want := range c.want {
			words := strings.Fields(figure.ReplaceAllString(want, " "))
			if len(words) > 0 && !strings.Contains(string(out), words[0]) {
				t.Errorf("%s:%d: %s prints no %q:\n%.3000s", page, c.line, c.text, words[0], out)
			}
		}
	}
	return ran
}
