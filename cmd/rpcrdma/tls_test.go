package main

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/rpcrdma/rpcrdma/internal/testing/testutil"
)

// A pki has the files of an authority, and those of ends that it certifies.
type pki struct {
	testutil.Authority
	dir, ca string
}

func newPKI(t *testing.T) *pki {
	p := &pki{Authority: *testutil.NewAuthority(t), dir: t.TempDir()}
	p.ca, _ = testutil.WriteCert(t, p.dir, "ca", p.Certificate)
	return p
}

// flags are those of an end with a certificate for names.
func (p *pki) flags(t *testing.T, file string, names ...string) []string {
	t.Helper()
	cert, key := testutil.WriteCert(t, p.dir, file, p.Issue(t, nil, names...))
	return []string{"--tls-cert", cert, "--tls-key", key, "--tls-ca", p.ca}
}

// TestTLS has files copied over TCP and iWARP. With TLS nothing of them is to be seen on the way.
func TestTLS(t *testing.T) {
	dir := t.TempDir()
	const marker, name = "a marker of data", "a-marker-of-names"
	testutil.WriteFiles(t, dir, map[string]string{name: strings.Repeat(marker, 10_000)})
	p := newPKI(t)
	server, client := p.flags(t, "server", "IP:127.0.0.1"), p.flags(t, "client", "DNS:client")
	known := []string{"--tls-ca", p.ca}
	stranger := newPKI(t).flags(t, "stranger", "DNS:stranger")
	stranger[5] = p.ca
	with := func(mode string, flags []string) []string { return append([]string{"--tls", mode}, flags...) }
	for _, tt := range []struct {
		name, provider string
		server, client []string
		want           string // of an error; empty: success
		plain          bool
	}{
		{"plain text", "tcp", nil, nil, "", true},
		{"plain text", "iwarp", nil, nil, "", true},
		{"both ends have certificates", "tcp", with("require", server), with("require", client), "", false},
		{"both ends have certificates", "iwarp", with("require", server), with("require", client), "", false},
		{"the server has one", "tcp", with("require", server[:4]), with("require", known), "", false},
		{"the server has one", "iwarp", with("require", server[:4]), with("require", known), "", false},
		{"both prefer TLS", "tcp", with("prefer", server), with("prefer", client), "", false},
		{"the client prefers TLS", "tcp", nil, with("prefer", known), "", true},
		{"the server prefers TLS", "tcp", with("prefer", server), nil, "", true},
		{"the server has no TLS", "tcp", nil, with("require", known), "server offers no TLS, or an attacker has changed its answer", false},
		{"the server has no TLS", "iwarp", nil, with("require", known), "over iwarp: no TLS handshake, which the peer may not know", false},
		{"the client has no TLS", "tcp", with("require", server), nil, "(AUTH_TOOWEAK): it may need --tls require", false},
		{"the client has no TLS", "iwarp", with("require", server), nil, "(it answered with TLS): use --tls require, or check the port", false},
		{"the client has no certificate", "tcp", with("require", server), with("require", known), "tls: certificate required", false},
		{"the client has no certificate", "iwarp", with("require", server), with("require", known), "tls: certificate required", false},
		{"the client has another authority's", "tcp", with("require", server), with("require", stranger), "tls: unknown certificate authority", false},
		{"the client has another authority's", "iwarp", with("require", server), with("require", stranger), "tls: unknown certificate authority", false},
		{"the server has another authority's", "tcp", with("require", server), with("require", nil), "certificate signed by unknown authority", false},
		{"the server has another authority's", "iwarp", with("require", server), with("require", nil), "certificate signed by unknown authority", false},
		{"the server has another name's", "tcp", with("require", p.flags(t, "other", "IP:192.0.2.1")), with("require", client), "certificate is valid for 192.0.2.1, not 127.0.0.1", false},
	} {
		t.Run(tt.provider+": "+tt.name, func(t *testing.T) {
			s := startServer(t, append([]string{"--dir", dir, "--provider", tt.provider}, tt.server...)...)
			r := startRelay(t, s.addr)
			got := filepath.Join(t.TempDir(), "file")
			args := append([]string{"get", "--provider", tt.provider}, tt.client...)
			args = append(args, "nfs://"+r.addr+"/"+name, got)
			if tt.want != "" {
				mustFail(t, 1, tt.want, args...)
			} else {
				mustRun(t, args...)
				wantFile(t, got, strings.Repeat(marker, 10_000))
			}
			words := []string{marker, name}
			if tt.want != "" { // a client without TLS has asked for the file
				words = words[:1]
			}
			for _, word := range words {
				if strings.Contains(r.carried.String(), word) != tt.plain {
					t.Errorf("%q is on the way: %v", word, !tt.plain)
				}
			}
		})
	}
}

// TestTLSCommands has other commands over TLS: they share what they connect with.
func TestTLSCommands(t *testing.T) {
	p, dir := newPKI(t), t.TempDir()
	tlsFlags := append(p.flags(t, "end", "IP:127.0.0.1"), "--tls", "require")
	for _, provider := range []string{"tcp", "iwarp"} {
		both := slices.Concat(tlsFlags, []string{"--provider", provider})
		recorded := []string{"--dir", dir}
		if provider == "iwarp" {
			recorded = append(recorded, "--capture", filepath.Join(t.TempDir(), "recorded"))
		}
		s := startServer(t, slices.Concat(both, recorded)...)
		for _, args := range [][]string{
			{"ping", "--count", "1"}, {"probe"}, {"bench", "--op", "echo", "--time", "10ms", "--connections", "2"}, {"exports"}, {"mkdir", "-p", "DIR"}, {"rm", "-r", "DIR"},
		} {
			args[len(args)-1] = strings.Replace(args[len(args)-1], "DIR", s.url("/dir"), 1)
			if len(args) < 3 || args[len(args)-1][0] != 'n' {
				args = append(args, s.addr)
			}
			mustRun(t, append(args, both...)...)
		}
		w := startWatch(t, slices.Concat(both, []string{"rdma://" + s.addr + "/"})...)
		mustRun(t, append([]string{"mkdir", s.url("/seen-" + provider)}, both...)...)
		select {
		case line := <-w.lines:
			if line != "created     seen-"+provider+"/" {
				t.Errorf("watch prints %q", line)
			}
		case <-time.After(testTimeout):
			t.Error("watch prints nothing")
		}
	}
}

// TestTLSRenewal: a server uses new certificates, and authorities, for connections made after they are there, and goes
// on with the old ones while files are no good.
func TestTLSRenewal(t *testing.T) {
	p, dir := newPKI(t), t.TempDir()
	server := p.flags(t, "server", "IP:127.0.0.1")
	s := startServer(t, append([]string{"--provider", "tcp", "--dir", dir, "--tls", "require"}, server...)...)
	client := append([]string{"ls", "--provider", "tcp", "--tls", "require"}, p.flags(t, "client", "DNS:client")...)
	ls := func(want string, args []string) {
		t.Helper()
		if want == "" {
			mustRun(t, append(args, s.url("/"))...)
		} else {
			mustFail(t, 1, want, append(args, s.url("/"))...)
		}
	}
	ls("", client)
	replace := func(file, text string) {
		t.Helper()
		testutil.Must(t, os.WriteFile(file+".new", []byte(text), 0o600), os.Rename(file+".new", file))
	}
	read := func(file string) string {
		b, err := os.ReadFile(file)
		testutil.Must(t, err)
		return string(b)
	}
	replace(server[1], "no certificate")
	ls("", client)
	testutil.Eventually(t, "the log has it", func() bool {
		return strings.Contains(s.stderr.String(), "new TLS certificates rejected, keeping the old ones")
	})
	other := newPKI(t)
	next := other.flags(t, "next", "IP:127.0.0.1")
	replace(server[1], read(next[1])) // the key is still that of the old one
	ls("", client)
	replace(server[3], read(next[3]))
	ls("certificate signed by unknown authority", client)
	trusting := append(client[:len(client)-1:len(client)-1], other.ca)
	ls("", trusting)
	replace(server[5], read(other.ca))
	ls("tls: unknown certificate authority", trusting)
	ls("", append([]string{"ls", "--provider", "tcp", "--tls", "require"}, other.flags(t, "client", "DNS:client")...))
}

// TestTLSMistakes: flags that make no sense together.
func TestTLSMistakes(t *testing.T) {
	p := newPKI(t)
	flags := p.flags(t, "end", "IP:127.0.0.1")
	cert, key, ca, none := flags[:2], flags[2:4], flags[4:], filepath.Join(p.dir, "none")
	ls := func(args ...string) []string {
		return append([]string{"ls", "--tls", "require", "nfs://127.0.0.1:1/"}, args...)
	}
	serve := func(args ...string) []string {
		return append([]string{"serve", "--tls", "require", "--dir", p.dir, "--addr", "127.0.0.1:0"}, args...)
	}
	const anonymous = "--tls requires --tls-cert and --tls-key, which identify the server"
	for _, tt := range []struct {
		status int
		want   string
		args   []string
	}{
		{2, "--tls-cert, --tls-key and --tls-ca are for --tls require or prefer", ls("--tls", "off", ca[0], ca[1])},
		{2, "--tls-cert and --tls-key must be given together", ls(cert...)},
		{2, "--tls-cert and --tls-key must be given together", serve(key...)},
		{2, anonymous, serve()},
		{2, anonymous, []string{"grpc-proxy", "--reverse", "--tls", "require", "HOST"}},
		{2, "--tls-squash requires --tls require and --tls-ca, which identify clients", serve(slices.Concat(cert, key, []string{"--tls-squash", none})...)},
		{1, none + ": no such file or directory", serve(append(slices.Clone(flags), "--tls-squash", none)...)},
		{1, "--tls-key " + key[1] + " is in", serve(flags...)},
		{2, "--tls is for --provider tcp and iwarp, not rdma: RDMA devices encrypt nothing", ls("--provider", "rdma")},
		{2, "--tls is for --provider tcp and iwarp, not auto: RDMA devices encrypt nothing", serve("--provider", "auto")},
		{2, "--tls is not for --shm, which does not leave this machine", ls("--shm", "@x")},
		{2, "--tls prefer is for --provider tcp: over iwarp both ends have TLS, or neither has", ls("--tls", "prefer")},
		{2, "want off, require or prefer", ls("--tls", "yes")},
		{1, "local file " + none + ": no such file or directory", ls("--tls-ca", none)},
		{1, "--tls-ca: no PEM certificate in " + key[1], ls("--tls-ca", key[1])},
		{1, "--tls-cert and --tls-key: tls: failed to find certificate PEM data", ls("--tls-cert", key[1], "--tls-key", key[1])},
	} {
		mustFail(t, tt.status, tt.want, tt.args...)
	}
}

// TestTLSSquash: a client is the user that its certificate stands for, not the one that it
// claims to be, and SIGHUP has the server read the users again.
func TestTLSSquash(t *testing.T) {
	p, dir := newPKI(t), t.TempDir()
	testutil.WriteFiles(t, dir, map[string]string{"file": "x"})
	users, log := filepath.Join(t.TempDir(), "users"), filepath.Join(t.TempDir(), "access")
	testutil.Must(t, os.WriteFile(users, []byte("# users\nDNS:alice  4000:4001,4002\nsubject:CN=the machine 5000:5001\n"), 0o600))
	server := p.flags(t, "server", "IP:127.0.0.1")
	s := startServer(t, append([]string{"--dir", dir, "--tls", "require", "--tls-squash", users, "--access-log", log}, server...)...)
	as := func(want string, names ...string) {
		t.Helper()
		before, _ := os.ReadFile(log)
		mustRun(t, append([]string{"ls", "--tls", "require", s.url("/")}, p.flags(t, "client", names...)...)...)
		testutil.Eventually(t, "the log has "+want, func() bool {
			now, _ := os.ReadFile(log)
			lines := strings.Split(string(now[len(before):]), "\n")
			return slices.ContainsFunc(lines, func(l string) bool { return strings.Contains(l, " READDIRPLUS ") && strings.Contains(l, want) })
		})
	}
	as("uid=4000 gid=4001", "DNS:other", "DNS:Alice")
	as("uid=5000 gid=5001", "subject:the machine")
	as("as_uid=65534", "DNS:bob")
	testutil.Must(t, os.WriteFile(users, []byte("DNS:bob 6000:6001\n"), 0o600), s.cmd.Process.Signal(syscall.SIGHUP))
	testutil.Eventually(t, "the users have been read again", func() bool {
		b, _ := os.ReadFile(log)
		mustRun(t, append([]string{"ls", "--tls", "require", s.url("/")}, p.flags(t, "client", "DNS:bob")...)...)
		now, _ := os.ReadFile(log)
		return strings.Contains(string(now[len(b):]), "uid=6000")
	})
	testutil.Must(t, os.WriteFile(users, []byte("DNS:bob\n"), 0o600), s.cmd.Process.Signal(syscall.SIGHUP))
	testutil.Eventually(t, "an error is in the log", func() bool {
		return strings.Contains(s.stderr.String(), "users:1: want the name of a certificate and a user")
	})
	as("uid=6000 gid=6001", "DNS:bob")
}

// TestTLSPage runs the commands of docs/serving.md about TLS.
func TestTLSPage(t *testing.T) {
	doc, err := os.ReadFile("../../docs/serving.md")
	if errors.Is(err, fs.ErrNotExist) {
		t.Skip("the documentation is in the repository, and this module is not: there is no docs/serving.md")
	}
	testutil.Must(t, err)
	for _, tool := range []string{"bash", "openssl"} {
		if _, err := exec.LookPath(tool); err != nil {
			t.Skip("the page uses a program that is not installed: ", err)
		}
	}
	_, section, _ := strings.Cut(string(doc), "\n## TLS\n")
	section, _, _ = strings.Cut(section, "\n## ")
	dir, bin := t.TempDir(), t.TempDir()
	testutil.WriteFiles(t, dir, map[string]string{"file": "x"})
	self, err := os.Executable()
	testutil.Must(t, err, os.Symlink(self, filepath.Join(bin, "rpcrdma")))
	script := "set -e\n"
	for _, c := range docCommands(strings.ReplaceAll(section, "\n> ", " ")) {
		if args, ok := strings.CutSuffix(c.text, " &"); ok { // and it says when it is ready
			c.text = "exec 3< <(exec " + args + "); server=$!; read -u 3 _ _ _ addr _; trap 'kill $server' EXIT"
		}
		script += strings.NewReplacer("--dir /srv/files", "--addr 127.0.0.1:0 --dir "+dir, "nfs://127.0.0.1/", "nfs://$addr/").Replace(c.text) + "\n"
	}
	ctx, cancel := context.WithTimeout(t.Context(), testTimeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, "bash", "-c", script)
	cmd.Dir = t.TempDir()
	cmd.Env = append(os.Environ(), asCommand+"=1", quickEnd(), "PATH="+bin+":"+os.Getenv("PATH"))
	if out, err := cmd.Output(); err != nil || string(out) != "file\n" {
		t.Errorf("%v, printed %q\n%s\n%s", err, out, script, stderrOf(err))
	}
}

// stderrOf is what a command that failed has said.
func stderrOf(err error) (text []byte) {
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		text = exit.Stderr
	}
	return text
}
