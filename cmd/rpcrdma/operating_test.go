package main

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rpcrdma/rpcrdma/internal/testing/testutil"
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

// TestOperatingPage runs the command lines of docs/operating.md, in order, on a server under load
// that has a slow disk. Each has to succeed, and to print the first words of each line that the page
// has of it, figures and rates aside; slowOnPage has the other signs of a slow server, and where they
// are.
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
	testutil.WriteFiles(t, dir, map[string]string{"file": randomText(1, 1<<20), slowName: randomText(4, 1<<20)})
	self, err := os.Executable()
	testutil.Must(t, err, os.Symlink(self, filepath.Join(bin, "rpcrdma")))

	var s *testServer
	seen, endWrites := make(map[string]bool), func() {}
	for _, c := range docCommands(string(doc)) {
		if args, ok := strings.CutPrefix(c.text, "rpcrdma serve "); ok && s == nil {
			replaced := strings.NewReplacer("--addr 127.0.0.1:20049 ", "", "127.0.0.1:9649", "127.0.0.1:0", "/srv/files", dir, "/var/log/rpcrdma/access", log)
			var disk *slowDisk
			s, disk = startSlow(t, strings.Fields(strings.TrimSuffix(replaced.Replace(args), " &"))...)
			load(t, s)
			disk.hang(t, s)
			readSlowly(t, s)
			testutil.Eventually(t, "there is something to look at", func() bool {
				lines, _ := os.ReadFile(log)
				return slowLine.Match(lines)
			})
			endWrites = write(t, s)
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
		if strings.Contains(text, "stats --interval") {
			endWrites() // what comes next is about reads
		}
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
		for part, shows := range slowOnPage {
			if strings.Contains(c.text, part) {
				if seen[part] = true; !shows(string(out)) {
					t.Errorf("docs/operating.md:%d: %s does not show what is slow:\n%.3000s", c.line, c.text, out)
				}
			}
		}
	}
	for part := range slowOnPage {
		if !seen[part] {
			t.Errorf("the page has no command with %q", part)
		}
	}
	if s == nil {
		t.Fatal("the page starts no server")
	}
}

// slowLine is a line of the access log for a slow READ. Immutable.
var slowLine = regexp.MustCompile(`(?m)^\S+ \S+ READ \S+ 0\.[1-9]`)

// slowOnPage is by what of a command of the page, and how, its output has to show the slow disk. Immutable.
var slowOnPage = map[string]func(out string) bool{
	"stats --interval": func(out string) bool { return numberIn(out, `calls executing +(\d+)`) >= 1 },
	"handler_duration": func(out string) bool {
		return numberIn(out, `le="0.1"} (\d+)`) < numberIn(out, `_count{.*} (\d+)`)
	},
	"^rpcrdma_calls_in_flight": func(out string) bool { return numberIn(out, `end="server"} (\d+)`) >= 1 },
	".calls_in_flight[]":       func(out string) bool { return numberIn(out, `(?m)^(\S+) READ 127`) > diskTime.Seconds() },
	".slowest_calls":           func(out string) bool { return numberIn(out, `handler (\S+) READ`) >= diskTime.Seconds() },
	`"READ" && $5`:             slowLine.MatchString,
	"decode slow.pcapng": func(out string) bool {
		return numberIn(out, `(?m)^ +1 +0 +(\S+) +\S+ +\S+ +0 +0 +1 +0 +0 +0 +1048576  NFS v3 READ$`) >= diskTime.Seconds()
	},
}

// numberIn returns the first number that a regular expression finds, -1 without a match. The number
// of a duration is its seconds.
func numberIn(out, pattern string) float64 {
	if m := regexp.MustCompile(pattern).FindStringSubmatch(out); m != nil {
		if n, err := strconv.ParseFloat(m[1], 64); err == nil {
			return n
		}
		if d, err := time.ParseDuration(m[1]); err == nil {
			return d.Seconds()
		}
	}
	return -1
}

// write makes files on a server until end is called, or the test ends.
func write(t *testing.T, s *testServer) (end func()) {
	source := t.TempDir()
	testutil.WriteFiles(t, source, map[string]string{"a": randomText(2, 100000), "b": randomText(3, 5000)})
	done, stop := make(chan struct{}), make(chan struct{})
	end = sync.OnceFunc(func() { close(stop); <-done })
	t.Cleanup(end)
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
	return end
}
