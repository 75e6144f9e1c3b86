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

	"github.com/rpcrdma/rpcrdma/internal/testutil"
)

// A docCommand is a command line of a document with the output that follows it.
type docCommand struct {
	line int
	text string
	want []string
}

// docCommands returns the lines that begin with "$ " in the code blocks of a document.
func docCommands(doc string) (list []docCommand) {
	inside, follows := false, false
	for i, line := range strings.Split(doc, "\n") {
		switch {
		case strings.HasPrefix(line, "```"):
			inside, follows = !inside, false
		case inside && strings.HasPrefix(line, "$ "):
			list = append(list, docCommand{line: i + 1, text: line[2:]})
			follows = true
		case follows:
			last := &list[len(list)-1]
			last.want = append(last.want, line)
		}
	}
	return list
}

// figure finds what differs from run to run. Immutable.
var figure = regexp.MustCompile(`[0-9][0-9.:]*(ms|µs|ns|s)?`)

// TestOperatingPage runs the command lines of docs/operating.md, in order, on a server under load.
// Each has to succeed, and to print the first words of each line that the page has of it, figures
// and rates aside.
func TestOperatingPage(t *testing.T) {
	doc, err := os.ReadFile("../../docs/operating.md")
	if errors.Is(err, fs.ErrNotExist) {
		t.Skip("the documentation is in the repository, and this module is not: there is no docs/operating.md")
	}
	testutil.Must(t, err)
	for _, tool := range []string{"sh", "curl", "jq", "awk"} {
		if _, err := exec.LookPath(tool); err != nil {
			t.Skip("the page uses a program that is not installed: ", err)
		}
	}
	dir, bin, work := t.TempDir(), t.TempDir(), t.TempDir()
	log := filepath.Join(t.TempDir(), "access")
	testutil.WriteFiles(t, dir, map[string]string{"file": randomText(1, 1<<20)})
	self, err := os.Executable()
	testutil.Must(t, err, os.Symlink(self, filepath.Join(bin, "rpcrdma")))

	var s *testServer
	for _, c := range docCommands(string(doc)) {
		if args, ok := strings.CutPrefix(c.text, "rpcrdma serve "); ok && s == nil {
			replaced := strings.NewReplacer("--addr 127.0.0.1:20049 ", "", "127.0.0.1:9649", "127.0.0.1:0", "/srv/files", dir, "/var/log/rpcrdma/access", log)
			s = startServer(t, strings.Fields(strings.TrimSuffix(replaced.Replace(args), " &"))...)
			load(t, s)
			testutil.Eventually(t, "there is something to look at", func() bool {
				_, text := fetch(t, "GET", s.http+"/debug/rpcrdma", "")
				lines, _ := os.ReadFile(log)
				return strings.Contains(text, "NFS 3 READ") && len(lines) > 1000
			})
			write(t, s)
			continue
		}
		if s == nil {
			t.Fatalf("line %d comes before a server", c.line)
		}
		text := strings.NewReplacer("nfs://127.0.0.1:20049/", s.url("/"), "127.0.0.1:9649", strings.TrimPrefix(s.http, "http://"), "/var/log/rpcrdma/access", log).Replace(c.text)
		ctx, cancel := context.WithTimeout(t.Context(), testTimeout)
		sh := exec.CommandContext(ctx, "sh", "-c", text)
		sh.Dir = work
		sh.Env = append(os.Environ(), asCommand+"=1", "PATH="+bin+":"+os.Getenv("PATH"))
		out, err := sh.CombinedOutput()
		cancel()
		if err != nil {
			t.Errorf("docs/operating.md:%d: %s: %v\n%s", c.line, c.text, err, out)
			continue
		}
		for _, want := range c.want {
			words := strings.Fields(figure.ReplaceAllString(want, " "))
			if len(words) > 0 && !strings.Contains(string(out), words[0]) {
				t.Errorf("docs/operating.md:%d: %s prints no %q:\n%.3000s", c.line, c.text, words[0], out)
			}
		}
	}
	if s == nil {
		t.Fatal("the page starts no server")
	}
}

// write makes files on a server until the test ends.
func write(t *testing.T, s *testServer) {
	source := t.TempDir()
	testutil.WriteFiles(t, source, map[string]string{"a": randomText(2, 100000), "b": randomText(3, 5000)})
	done, stop := make(chan struct{}), make(chan struct{})
	t.Cleanup(func() { close(stop); <-done })
	go func() {
		defer close(done)
		for {
			select {
			case <-stop:
				return
			default:
			}
			if r := command(context.Background(), "put", "-r", source, s.url("/copy")); r.Run() != nil {
				t.Error("put fails")
				return
			}
		}
	}()
}
