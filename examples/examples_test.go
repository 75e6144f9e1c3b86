package examples

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/rpcrdma/rpcrdma/examples/calc"
	"github.com/rpcrdma/rpcrdma/examples/kv"
	"github.com/rpcrdma/rpcrdma/fabric"
	"github.com/rpcrdma/rpcrdma/internal/testing/testutil"
	"github.com/rpcrdma/rpcrdma/iwarp"
	"github.com/rpcrdma/rpcrdma/proto/oncrpc"
	"github.com/rpcrdma/rpcrdma/rpc"
	"github.com/rpcrdma/rpcrdma/rpc/stream"
	"github.com/rpcrdma/rpcrdma/transport"
)

// patience bounds everything that a process of a test does.
const patience = time.Minute

// commands has the directories of the examples that have been built, each once for all tests.
var commands struct {
	dir   string
	built map[string]bool
}

func TestMain(m *testing.M) {
	var err error
	if commands.dir, err = os.MkdirTemp("", "examples"); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	commands.built = make(map[string]bool)
	// Otherwise the race detector makes every command wait a second at its end.
	os.Setenv("GORACE", "atexit_sleep_ms=0 "+os.Getenv("GORACE"))
	code := m.Run()
	os.RemoveAll(commands.dir)
	os.Exit(code)
}

// build compiles the commands of an example, unless another test has, and returns their directory.
func build(t *testing.T, example string) (dir string) {
	t.Helper()
	dir = filepath.Join(commands.dir, example)
	if !commands.built[example] {
		args := append([]string{"build", "-o", dir + string(filepath.Separator)}, buildFlags()...)
		if out, err := exec.Command("go", append(args, "./"+example+"/...")...).CombinedOutput(); err != nil {
			t.Fatalf("go build: %v\n%s", err, out)
		}
		commands.built[example] = true
	}
	return dir
}

// buildFlags has the race detector in the commands if it is in the test.
func buildFlags() []string {
	if race {
		return []string{"-race"}
	}
	return nil
}

// A process is a command in the background and the lines that it prints.
type process struct {
	lines testutil.Lines
	part  []byte // of a line
	stop  func() error
}

// Write takes the process's output.
func (p *process) Write(b []byte) (int, error) {
	for p.part = append(p.part, b...); ; {
		line, rest, ok := bytes.Cut(p.part, []byte("\n"))
		if !ok {
			return len(b), nil
		}
		p.lines.Add(string(line))
		p.part = rest
	}
}

// start runs a command in the background until stop interrupts it, or the test ends.
func start(t *testing.T, name string, args ...string) *process {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	p := new(process)
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Stdout, cmd.Stderr = p, p
	testutil.Must(t, cmd.Start())
	done := make(chan error, 1)
	go func() { done <- cmd.Wait() }()
	t.Cleanup(func() {
		cancel()
		<-done
	})
	p.stop = func() error {
		if err := cmd.Process.Signal(os.Interrupt); err != nil {
			return err
		}
		err := <-done
		done <- nil
		return err
	}
	return p
}

// serve starts a server and returns its address.
func serve(t *testing.T, name string, args ...string) (p *process, addr string) {
	t.Helper()
	p = start(t, name, args...)
	testutil.Eventually(t, "the server listens", func() bool {
		for _, line := range p.lines.All() {
			if found, ok := strings.CutPrefix(line, "listening on "); ok {
				addr = found
			}
		}
		return addr != ""
	})
	return p, addr
}

// run runs a command to its end.
func run(t *testing.T, stdin, name string, args ...string) (stdout, stderr string, err error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	var out, errs bytes.Buffer
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(stdin), &out, &errs
	err = cmd.Run()
	return out.String(), errs.String(), err
}

// A use is one run of a client.
type use struct {
	args  string // words
	stdin string
	want  string // all of standard output
	fails string // the end of standard error; "": nothing there, and status 0
}

// check runs a client.
func (u use) check(t *testing.T, client string, flags ...string) {
	t.Helper()
	out, errs, err := run(t, u.stdin, client, append(flags, strings.Fields(u.args)...)...)
	if out != u.want {
		t.Errorf("%q: printed %.200q, want %.200q", u.args, out, u.want)
	}
	var exit *exec.ExitError
	switch {
	case u.fails == "" && (err != nil || errs != ""):
		t.Errorf("%q: %v, %s", u.args, err, errs)
	case u.fails != "" && (!errors.As(err, &exit) || exit.ExitCode() != 1 || !strings.HasSuffix(errs, u.fails+"\n")):
		t.Errorf("%q: %v, %q, want %q", u.args, err, errs, u.fails)
	}
}

// each runs a test over RDMA and over TCP. tcp are the flags for it.
func each(t *testing.T, f func(t *testing.T, tcp []string)) {
	t.Run("iwarp", func(t *testing.T) { f(t, nil) })
	t.Run("tcp", func(t *testing.T) { f(t, []string{"-tcp"}) })
}

// Clients of each example get what its README says from its server, and errors for bad input.
func TestClients(t *testing.T) {
	large := strings.Repeat("0123456789abcdef", kv.MaxValue/16)
	for example, uses := range map[string][]use{
		"echo": {
			{args: "hello, world", want: "hello, world\n"},
			{args: "", want: "\n"},
			{args: strings.Repeat("x", 1024), want: strings.Repeat("x", 1024) + "\n"},
			{args: strings.Repeat("x", 1025), fails: "SAY of ECHO v1: arguments: xdr: said: length is 1025, limit is 1024"},
		},
		"calc": {
			{args: "3 4 + 2 x", want: "14\n"},
			{args: "1 2 / 0.25 -", want: "0.25\n"},
			{args: "1 0 /", want: "+Inf\n"},
			{args: "1 +", fails: "+ lacks operands"},
			{args: "1 2 3", fails: "LEFT_OVER [1 2 3]"},
			{args: "", fails: "LEFT_OVER []"},
			{args: "1 2 y", fails: `parsing "y": invalid syntax`},
			{args: "1" + strings.Repeat(" 1 +", 499), want: "500\n"},
			{args: strings.Repeat("1 ", 1000) + "+", fails: "TOO_LONG"},
			{args: strings.Repeat("1 ", 999) + "+", fails: "LEFT_OVER [" + strings.Repeat("1 ", 997) + "2]"},
		},
		"kv": {
			{args: "get a", fails: "NO_KEY"},
			{args: "put a", stdin: "value"},
			{args: "get a", want: "value"},
			{args: "put a", stdin: large},
			{args: "get a", want: large},
			{args: "put a"},
			{args: "get a"},
			{args: "put a", stdin: large + "x", fails: "PUT of STORE v1: arguments: xdr: value: length is 1048577, limit is 1048576"},
			{args: "get " + strings.Repeat("k", 256), fails: "GET of STORE v1: arguments: xdr: key: length is 256, limit is 255"},
			{args: "take a", fails: "usage: client [-tcp] [-addr HOST:PORT] put KEY <VALUE | get KEY >VALUE | watch PREFIX"},
		},
	} {
		t.Run(example, func(t *testing.T) {
			dir := build(t, example)
			each(t, func(t *testing.T, tcp []string) {
				_, addr := serve(t, filepath.Join(dir, "server"), append(tcp, "-addr", "127.0.0.1:0")...)
				for _, u := range uses {
					u.check(t, filepath.Join(dir, "client"), append(tcp, "-addr", addr)...)
				}
			})
		})
	}
}

// Without a server, or with one of another transport, a client fails with a reason.
func TestNoServer(t *testing.T) {
	dir := build(t, "echo")
	server, addr := serve(t, filepath.Join(dir, "server"), "-tcp", "-addr", "127.0.0.1:0")
	if _, errs, err := run(t, "", filepath.Join(dir, "client"), "-addr", addr, "hello"); err == nil || errs == "" {
		t.Errorf("RDMA to a server over TCP: %v, %q", err, errs)
	}
	if err := server.stop(); err == nil {
		t.Error("a server without a handler of signals has ended without one")
	}
	use{args: "hello", fails: "connection refused"}.check(t, filepath.Join(dir, "client"), "-tcp", "-addr", addr)
}

// The same service over TCP and over RDMA differs in two lines, one of them an import, which the
// README shows.
func TestMove(t *testing.T) {
	dir := build(t, "move")
	const sum = "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0" // of a million a, FIPS 180-2 appendix B.3
	for name, direct := range map[string]bool{"tcp": false, "rdma": true} {
		t.Run(name, func(t *testing.T) {
			command := filepath.Join(dir, name)
			server, addr := serve(t, command, "serve", "127.0.0.1:0")
			for _, u := range []use{
				{args: "sum " + addr, stdin: strings.Repeat("a", 1_000_000), want: fmt.Sprintf("%s, read by RDMA: %v\n", sum, direct)},
				{args: "sum " + addr, stdin: strings.Repeat("a", 4_000_001), fails: "SUM of MOVE v1: arguments: xdr: Data: length is 4000001, limit is 4000000"},
				{args: "sum", fails: "usage: serve ADDR | sum ADDR <FILE"},
				{args: "move " + addr, fails: "usage: serve ADDR | sum ADDR <FILE"},
			} {
				u.check(t, command)
			}
			if err := server.stop(); err != nil {
				t.Errorf("an interrupted server: %v", err)
			}
		})
	}

	diff, _, err := run(t, "", "diff", "-U0", "move/tcp/main.go", "move/rdma/main.go")
	var exit *exec.ExitError
	if !errors.As(err, &exit) || exit.ExitCode() != 1 {
		t.Fatalf("diff: %v", err)
	}
	var changed []string
	for line := range strings.Lines(diff) {
		if !strings.HasPrefix(line, "@@") && !strings.HasPrefix(line, "---") && !strings.HasPrefix(line, "+++") && !strings.Contains(line, "// Command ") {
			changed = append(changed, line)
		}
	}
	if len(changed) != 3 || !strings.HasPrefix(changed[0], "+") || !strings.HasPrefix(changed[1], "-") || !strings.HasPrefix(changed[2], "+") {
		t.Errorf("the programs differ in more than one line that is added and one that is changed:\n%s", diff)
	}
	page, err := os.ReadFile("move/README.md")
	testutil.Must(t, err)
	if want := "```diff\n" + strings.Join(changed, "") + "```\n"; !strings.Contains(string(page), want) {
		t.Errorf("move/README.md does not have the difference:\n%s", want)
	}
}

// A watcher hears of changes of keys with its prefix, also from a server that was restarted.
func TestWatch(t *testing.T) {
	dir := build(t, "kv")
	each(t, func(t *testing.T, tcp []string) {
		server, addr := serve(t, filepath.Join(dir, "server"), append(tcp, "-addr", "127.0.0.1:0")...)
		flags := append(tcp, "-addr", addr)
		watcher := start(t, filepath.Join(dir, "client"), append(flags, "watch", "a/")...)
		for _, again := range []bool{false, true} {
			if again {
				server.stop()
				server, _ = serve(t, filepath.Join(dir, "server"), flags...)
			}
			// The watcher is there from some put on.
			testutil.Eventually(t, "the watcher hears of a change", func() bool {
				use{args: "put b/1"}.check(t, filepath.Join(dir, "client"), flags...)
				use{args: "put a/1", stdin: "x"}.check(t, filepath.Join(dir, "client"), flags...)
				return len(watcher.lines.All()) > 0
			})
			use{args: "put b/2"}.check(t, filepath.Join(dir, "client"), flags...)
			use{args: "put a/2"}.check(t, filepath.Join(dir, "client"), flags...)
			for _, line := range watcher.lines.Wait(t, `"a/2" has changed`) {
				if !strings.HasPrefix(line, `"a/`) && !(again && strings.Contains(line, "results of the stream may be missing")) {
					t.Errorf("the watcher printed %q", line)
				}
			}
		}
	})
}

// dial connects the test itself to a server.
func dial(t *testing.T, tcp bool, addr string, config *transport.ClientConfig) *transport.Client {
	t.Helper()
	var provider fabric.Provider = iwarp.New(iwarp.Config{})
	if tcp {
		provider = transport.TCP{}
	}
	client, err := transport.Dial(t.Context(), provider, addr, config)
	testutil.Must(t, err)
	t.Cleanup(func() { client.Close() })
	return client
}

// Clients that cost the server of kv memory: many keys, and a watcher that reads nothing for a while. It learns
// that it has missed changes.
func TestLimits(t *testing.T) {
	dir := build(t, "kv")
	each(t, func(t *testing.T, tcp []string) {
		_, addr := serve(t, filepath.Join(dir, "server"), append(tcp, "-addr", "127.0.0.1:0")...)
		store := kv.NewStoreV1Client(dial(t, tcp != nil, addr, &transport.ClientConfig{Streams: true}))
		for i := range kv.MaxKeys + 1 {
			status, err := store.Put(t.Context(), fmt.Sprint("key", i), nil)
			if want := i == kv.MaxKeys; err != nil || (status == kv.Full) != want {
				t.Fatalf("key %d: %v, %v", i, status, err)
			}
		}
		change := func() {
			if _, err := store.Put(t.Context(), "key0", nil); err != nil {
				t.Fatal(err)
			}
		}
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		called := make(chan struct{})
		go func() {
			for {
				select {
				case <-called:
					return
				case <-time.After(10 * time.Millisecond):
					store.Put(t.Context(), "key0", nil)
				}
			}
		}()
		n := 0
		for _, err := range store.Watch(ctx, "") {
			var gap *stream.GapError
			switch {
			case n == 0:
				close(called)
				for range 1000 { // more than the two ends keep
					change()
				}
			case errors.As(err, &gap) && gap.Dropped > 0:
				return
			case err != nil:
				t.Fatal(err)
			}
			n++
		}
		t.Errorf("after %d changes none was missing", n)
	})
}

// An operation that is not defined does not reach the server of calc.
func TestUndefined(t *testing.T) {
	dir := build(t, "calc")
	each(t, func(t *testing.T, tcp []string) {
		_, addr := serve(t, filepath.Join(dir, "server"), append(tcp, "-addr", "127.0.0.1:0")...)
		client := dial(t, tcp != nil, addr, nil)
		bad := calc.Expression{Steps: []calc.Step{
			{Token: calc.Token{Value: 1}}, {Token: calc.Token{Value: 1}},
			{Token: calc.Token{Kind: calc.Operator, Does: 4}},
		}}
		err := client.Call(t.Context(), &rpc.Call{Prog: calc.CalcProg, Vers: calc.CalcV1, Proc: calc.CalcEvaluate, Args: bad.Append(nil)})
		var rpc *oncrpc.RPCError
		if !errors.As(err, &rpc) || rpc.AcceptStat != oncrpc.GarbageArgs {
			t.Errorf("error %v", err)
		}
	})
}

// The examples are as short as documents say: lines by hand, but tests, empty ones and comments. Those of
// kv count with its interface.
func TestLines(t *testing.T) {
	for example, most := range map[string]int{"kv": 162, "echo": 119, "move": 119, "calc": 119} {
		files, err := filepath.Glob(filepath.Join(example, "*", "*.go"))
		testutil.Must(t, err)
		if files = append(files, filepath.Join(example, "doc.go")); example == "kv" {
			files = append(files, filepath.Join(example, "kv.x"))
		}
		n := 0
		for _, file := range files {
			if strings.HasSuffix(file, "_test.go") {
				continue
			}
			text, err := os.ReadFile(file)
			testutil.Must(t, err)
			for line := range strings.Lines(string(text)) {
				line = strings.TrimSpace(line)
				if comment := strings.HasPrefix(line, "//") || strings.HasPrefix(line, "/*") && strings.HasSuffix(line, "*/"); line != "" && !comment {
					n++
				}
			}
		}
		if len(files) < 3 || n < most/2 || n > most {
			t.Errorf("%s: %d files have %d lines, at most %d are wanted", example, len(files), n, most)
		}
	}
}
