package main

import (
	"net"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/rpcrdma/rpcrdma/internal/testing/testutil"
)

// complete asks the command what the shell asks it, and returns the words and the directive.
func complete(t *testing.T, args ...string) (list []string, directive string) {
	t.Helper()
	r := runCommand(t, append([]string{cobra.ShellCompNoDescRequestCmd}, args...)...)
	if r.status != 0 {
		t.Fatalf("%s: status %d: %s", args, r.status, r.stderr)
	}
	lines := strings.Split(strings.TrimSpace(r.stdout), "\n")
	_, directive, ok := strings.Cut(lines[len(lines)-1], ":")
	if !ok {
		t.Fatalf("%s: no directive: %s", args, r.stdout)
	}
	return lines[:len(lines)-1], directive
}

// The values of directives, which the scripts of the shells know.
const (
	directiveFile   = "0"
	directiveNoFile = "4"
	directiveMore   = "6"  // no file, no space after it
	directiveDirs   = "16" // a directory
)

func TestCompletion(t *testing.T) {
	for _, tt := range []struct {
		args      string // split at spaces; the last one has just been typed
		want      string // in order
		directive string
	}{
		{"serve --provider ", "iwarp rdma auto tcp", directiveNoFile},
		{"ping --provider=", "iwarp rdma auto tcp", directiveNoFile},
		{"ls --wait ", "adaptive event poll", directiveNoFile},
		{"get --capture-as ", "iwarp roce", directiveNoFile},
		{"serve --squash ", "none root all", directiveNoFile},
		{"serve --access-log-format ", "text json", directiveNoFile},
		{"probe --version ", "auto 1 2", directiveNoFile},
		{"ping --timeout n", "none", directiveNoFile},
		{"bench --op ", "null echo read write", directiveMore},
		{"bench --op echo,r", "echo,read", directiveMore},
		{"bench --op echo,echo,e", "", directiveMore},
		{"bench --depth ", "", directiveNoFile},
		{"serve --dir ", "", directiveDirs},
		{"serve --state ", "", directiveDirs},
		{"serve --export ", "", "18"},
		{"serve --exports ", "", directiveFile},
		{"ls --capture ", "", directiveFile},
		{"serve --addr 127", "127.0.0.1:20049", directiveNoFile},
		{"serve --addr :", ":20049", directiveNoFile},
		{"serve --tcp-addr :", ":2049", directiveNoFile},
		{"serve --metrics-addr 127", "127.0.0.1:9649", directiveNoFile},
		{"serve --allow 127", "127.0.0.0/8", directiveNoFile},
		{"grpc-proxy --addr :", ":50051", directiveNoFile},
		{"grpc-proxy --http-cert ", "", directiveFile},
		{"serve ", "", directiveNoFile},
		{"devices ", "", directiveNoFile},
		{"stats ", "127.0.0.1:9649", directiveNoFile},
		{"stats x ", "", directiveNoFile},
		{"decode ", "", directiveFile},
		{"completion ", "bash zsh fish powershell", directiveNoFile},
		{"put ", "", directiveFile},
		{"get nfs://a/b ", "", directiveFile},
		{"get nfs://a/b c ", "", directiveNoFile},
		{"ls nfs://127.0.0.1:1/", "", directiveMore},  // no server is there
		{"ls nfs://127.0.0.1:1/%", "", directiveMore}, // not a name
		{"ls nfs://[::1/", "", directiveMore},         // not a URL
		{"ser", "serve", directiveNoFile},
	} {
		list, directive := complete(t, strings.Split(tt.args, " ")...)
		// As the shell does.
		list = slices.DeleteFunc(list, func(word string) bool {
			return !strings.HasPrefix(word, tt.args[strings.LastIndexAny(tt.args, " =")+1:])
		})
		if want := strings.Fields(tt.want); !slices.Equal(list, want) || directive != tt.directive {
			t.Errorf("%q is completed with %q and directive %s, want %q and %s", tt.args, list, directive, want, tt.directive)
		}
	}
}

// Every flag with a word as its value says which words: a shell offers files for every other flag.
func TestCompletionOfEveryFlag(t *testing.T) {
	offersFiles := map[string]bool{"access-log": true, "capture": true, "exports": true, "keytab": true, "output": true, "principals": true, "shm": true, "tls-squash": true}
	for _, end := range []string{"cert", "key", "ca"} {
		offersFiles["http-"+end], offersFiles["tls-"+end] = true, true
	}
	root := newRoot()
	n := 0
	for _, cmd := range root.Commands() {
		cmd.Flags().VisitAll(func(f *pflag.Flag) {
			n++
			_, known := cmd.GetFlagCompletionFunc(f.Name)
			if known == (offersFiles[f.Name] || f.Value.Type() == "bool") {
				t.Errorf("%s --%s: completed %v", cmd.Name(), f.Name, known)
			}
		})
		if cmd.ValidArgsFunction == nil {
			t.Errorf("%s: its arguments are not completed", cmd.Name())
		}
	}
	if n < 100 {
		t.Errorf("%d flags were looked at", n)
	}
}

// A URL is completed by its server: exports first, then files.
func TestCompletionOfURL(t *testing.T) {
	dir := t.TempDir()
	testutil.WriteFiles(t, dir, map[string]string{
		"report": "", "reports/": "", "other": "", "reports/$(reboot)\n;`x` ": "", "reports/ünïcode": "", "reports/sub/": "",
	})
	s := startServer(t, "--export", dir+"=/data", "--export", dir+"=/date/more", "--export", dir+"=/other")
	for _, tt := range []struct {
		path string
		want []string
	}{
		{"/", []string{"/data/", "/date/more/", "/other/"}},
		{"/da", []string{"/data/", "/date/more/"}},
		{"/date/", []string{"/date/more/"}},
		{"/data/", []string{"/data/other", "/data/report", "/data/reports/"}},
		{"/data/re", []string{"/data/report", "/data/reports/"}},
		{"/data/none/", nil},
		{"/data/report/", nil},
		{"/data/reports/", []string{"/data/reports/%24%28reboot%29%0A%3B%60x%60%20", "/data/reports/%C3%BCn%C3%AFcode", "/data/reports/sub/"}},
	} {
		list, directive := complete(t, "cat", "--provider", "iwarp", s.url(tt.path))
		var want []string
		for _, path := range tt.want {
			want = append(want, s.url(path))
		}
		slices.Sort(list)
		if !slices.Equal(list, want) || directive != directiveMore {
			t.Errorf("%s is completed with %q and directive %s, want %q", tt.path, list, directive, want)
		}
	}
	if got := mustRun(t, "stat", "--json", s.url("/data/reports/%24%28reboot%29%0A%3B%60x%60%20")); !strings.Contains(got, `"type": "file"`) {
		t.Errorf("the name as completed is %s", got)
	}
}

// A server that accepts connections and says nothing keeps no shell waiting.
func TestCompletionOfSilentServer(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	testutil.Must(t, err)
	defer l.Close()
	if list, directive := complete(t, "ls", "nfs://"+l.Addr().String()+"/"); len(list) > 0 || directive != directiveMore {
		t.Errorf("completed with %q and %s", list, directive)
	}
}

// The scripts for the shells are made, and ask the command.
func TestCompletionScripts(t *testing.T) {
	for _, shell := range []string{"bash", "zsh", "fish", "powershell"} {
		if script := mustRun(t, "completion", shell); !strings.Contains(script, cobra.ShellCompRequestCmd) {
			t.Errorf("%s: %.100s", shell, script)
		}
	}
}
