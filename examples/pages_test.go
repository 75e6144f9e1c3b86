//go:build unix

package examples

import (
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/rpcrdma/rpcrdma/internal/testing/rdmatest"
	"github.com/rpcrdma/rpcrdma/internal/testing/testutil"
)

// A block is one in a page: the contents of a file, or what a terminal shows.
type block struct {
	line int    // of the page
	file string // "": a terminal
	text string
}

// fileName is at the end of the line before the contents of a file.
var fileName = regexp.MustCompile("`([^`]+)`:$")

// blocks returns the files and terminals of a Markdown page, in order.
func blocks(page string) (list []block) {
	var before string            // the last line with text
	inside, skip := false, false // in a block, and in one that is neither
	for i, line := range strings.Split(page, "\n") {
		lang, fence := strings.CutPrefix(line, "```")
		switch {
		case inside && fence:
			inside, before = false, ""
		case inside && skip:
		case inside:
			list[len(list)-1].text += line + "\n"
		case fence && lang == "console":
			inside, skip = true, false
			list = append(list, block{line: i + 1})
		case fence:
			m := fileName.FindStringSubmatch(before)
			inside, skip = true, m == nil
			if !skip {
				list = append(list, block{line: i + 1, file: m[1]})
			}
		case line != "":
			before = line
		}
	}
	return list
}

// A shell is bash, with what it and its jobs print.
type shell struct {
	t  *testing.T
	in io.Writer

	mu  sync.Mutex
	out []byte
}

// Write takes output.
func (s *shell) Write(b []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.out = append(s.out, b...)
	return len(b), nil
}

// newShell starts bash in a directory. Everything that it has started ends with the test.
func newShell(t *testing.T, dir string, env ...string) *shell {
	t.Helper()
	s := &shell{t: t}
	cmd := exec.Command("bash")
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), env...)
	cmd.Stdout, cmd.Stderr = s, s
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	in, err := cmd.StdinPipe()
	testutil.Must(t, err)
	s.in = in
	testutil.Must(t, cmd.Start())
	t.Cleanup(func() {
		syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
		cmd.Wait() // fails, as bash was killed
	})
	return s
}

// run types a command. It returns the output until the command has ended and there are as many bytes
// as wanted, and the exit status. Commands of a page compile, which takes long on a busy machine.
func (s *shell) run(command, want string) (got, status string) {
	s.t.Helper()
	const end = "-- end of command, status "
	fmt.Fprintf(s.in, "%s\nprintf '%%s%%d\\n' '%s' $?\n", command, end)
	for deadline := time.Now().Add(5 * patience); ; time.Sleep(time.Millisecond) {
		s.mu.Lock()
		before, rest, _ := strings.Cut(string(s.out), end)
		status, after, ended := strings.Cut(rest, "\n")
		if got := before + after; ended && len(got) >= len(want) {
			s.out = nil
			s.mu.Unlock()
			return got, status
		}
		s.mu.Unlock()
		if time.Now().After(deadline) {
			s.t.Fatalf("%s: it takes too long, and has printed\n%s%s", command, before, after)
		}
	}
}

// saysMore matches commands that may print more than a page shows.
var saysMore = regexp.MustCompile(`^(go|kdb5_util|kadmin\.local|kinit) `)

// page does what a page says: it writes the files, types the commands, and compares what these
// print. then has what the test does after a command.
func (s *shell) page(file string, replace *strings.Replacer, then map[string]string) {
	s.t.Helper()
	text, err := os.ReadFile(file)
	testutil.Must(s.t, err)
	commands := 0
	for _, b := range blocks(replace.Replace(string(text))) {
		if b.file != "" {
			dir, _ := s.run("pwd", "")
			dir = strings.TrimSpace(dir)
			testutil.Must(s.t, os.WriteFile(filepath.Join(dir, b.file), []byte(b.text), 0o666))
			continue
		}
		for _, part := range strings.Split("\n"+b.text, "\n$ ")[1:] {
			commands++
			command, want, _ := strings.Cut(strings.TrimSuffix(part, "\n")+"\n", "\n")
			got, status := s.run(command, want)
			quiet := want == "" && saysMore.MatchString(command)
			if quiet && status != "0" || !quiet && got != want {
				s.t.Fatalf("%s:%d: %s\nprinted\n%swant\n%s", file, b.line, command, got, want)
			}
			if more := then[command]; more != "" {
				if got, status := s.run(more, ""); got != "" || status != "0" {
					s.t.Fatalf("%s: %s", more, got)
				}
			}
		}
	}
	if commands < 2 {
		s.t.Errorf("%s has %d commands: the search for them is broken", file, commands)
	}
}

// freePort returns a port below those that the kernel gives out, so that nothing else takes it
// before the page does.
func freePort(t *testing.T) string {
	t.Helper()
	for range 100 {
		port := strconv.Itoa(20_000 + rand.IntN(10_000))
		if l, err := net.Listen("tcp", "127.0.0.1:"+port); err == nil {
			l.Close()
			return port
		}
	}
	t.Fatal("no port is free")
	return ""
}

// workspace returns the version of a module that this tree is built with.
func workspace(t *testing.T, module string) string {
	t.Helper()
	out, err := exec.Command("go", "list", "-m", "-f", "{{.Version}}", module).Output()
	testutil.Must(t, err)
	return strings.TrimSpace(string(out))
}

// docs/getting-started.md, on this tree instead of a released version, and without a network.
// RPCRDMA_RELEASED says that the environment leads to a proxy that has the tree as a version:
// make release-test sets that up.
func TestGettingStarted(t *testing.T) {
	var then map[string]string
	env := []string{"GOWORK=off", "GOFLAGS=", "GOPROXY=off", "GOSUMDB=off", "GOTOOLCHAIN=local"}
	if os.Getenv("RPCRDMA_RELEASED") != "" {
		env = nil
	} else {
		top, err := filepath.Abs("..")
		testutil.Must(t, err)
		then = map[string]string{
			// Requirements have the versions that the tree is built with: a new machine has no others.
			"go mod init example.org/digest": "go mod edit -replace github.com/rpcrdma/rpcrdma='" + top + "' -require golang.org/x/sys@" + workspace(t, "golang.org/x/sys"),
		}
	}
	newShell(t, t.TempDir(), env...).page("../docs/getting-started.md", strings.NewReplacer("127.0.0.1:20200", "127.0.0.1:"+freePort(t)), then)
}

// docs/kerberos.md, on this tree, with a KDC in a directory of the test.
func TestKerberos(t *testing.T) {
	t.Setenv("PATH", os.Getenv("PATH")+":/usr/sbin:/sbin")
	for _, name := range []string{"krb5kdc", "kdb5_util", "kadmin.local", "kinit"} {
		if _, err := exec.LookPath(name); err != nil {
			rdmatest.Lacking(t, "kdc", "MIT's KDC is not installed (Debian: krb5-kdc, krb5-admin-server, krb5-user): "+err.Error())
		}
	}
	top, err := filepath.Abs("..")
	testutil.Must(t, err)
	dir, bin := filepath.Join(t.TempDir(), "kerberos"), t.TempDir()
	out, err := exec.Command("go", "build", "-o", bin, "../cmd/rpcrdma").CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	nfs := freePort(t)
	t.Cleanup(func() { exec.Command("sh", "-c", "kill $(cat "+dir+"/pid)").Run() }) // unless the page has ended it
	newShell(t, t.TempDir(), "GOWORK=off", "GOFLAGS=", "GOPROXY=off", "GOSUMDB=off", "GOTOOLCHAIN=local", "PATH="+bin+":"+os.Getenv("PATH")).page("../docs/kerberos.md",
		strings.NewReplacer("/tmp/kerberos", dir, "127.0.0.1:20049", "127.0.0.1:"+nfs, "localhost:20049", "localhost:"+nfs, "127.0.0.1:20200", "127.0.0.1:"+freePort(t), "127.0.0.1:20088", "127.0.0.1:"+freePort(t)),
		map[string]string{"go mod init example.org/hello": "go mod edit -replace github.com/rpcrdma/rpcrdma=" + top +
			" -replace github.com/rpcrdma/rpcrdma/rpc/rpcsec/krb5=" + top + "/rpc/rpcsec/krb5 -require golang.org/x/sys@" + workspace(t, "golang.org/x/sys")})
}

// The command lines of the examples' README files, on other ports.
func TestReadmes(t *testing.T) {
	for _, example := range []string{"echo", "calc", "kv", "move"} {
		t.Run(example, func(t *testing.T) {
			addr := "127.0.0.1:" + freePort(t)
			text, err := os.ReadFile(filepath.Join(example, "README.md"))
			testutil.Must(t, err)
			shown := listening.FindStringSubmatch(string(text)) // which is the default address
			newShell(t, example).page(filepath.Join(example, "README.md"), strings.NewReplacer(shown[1], addr,
				"go run ./server", "go run ./server -addr "+addr, "go run ./client", "go run ./client -addr "+addr), nil)
		})
	}
}

// listening matches the line that servers print.
var listening = regexp.MustCompile(`listening on ([0-9.:]+)`)
