package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"time"
)

// result is the outcome of a test.
type result string

const (
	passed  result = "passed"
	failed  result = "failed"
	skipped result = "skipped"
)

// rec is the record of one run.
type rec struct {
	What    string    `json:"what"`
	Command string    `json:"command"`
	Date    time.Time `json:"date"` // when it ended
	Commit  string    `json:"commit"`
	Machine string    `json:"machine"`
	Kernel  string    `json:"kernel"` // where the tests ran: in the virtual machine, if they used one
	Go      string    `json:"go"`
	Devices string    `json:"devices,omitempty"`
	OK      bool      `json:"ok"` // the exit status was 0

	Builds []string `json:"builds,omitempty"` // builds that scripts/build-matrix finished

	// Tests holds top-level tests and those subtests that the tables name, by package and name, such as
	// "transport.TestCredits". Packages may have failed without a failed test.
	Tests  testResults `json:"tests,omitempty"`
	Failed []string    `json:"failed_packages,omitempty"`
}

// testResults maps packages and tests to results.
type testResults map[string]result

// modulePrefix is the prefix of the import paths of the project's packages.
const modulePrefix = "github.com/rpcrdma/rpcrdma/"

// record runs a command, shows its output, and returns a record of it. If the command failed, it returns an error as
// well as the record.
func record(r run, out io.Writer) (*rec, error) {
	c := &rec{What: r.what, Command: strings.Join(append(slices.Clone(r.env), r.command...), " "), Machine: machine(), Tests: make(testResults)}
	env := append(os.Environ(), r.env...)
	var err error
	if c.Commit, err = commit(); err != nil {
		return nil, err
	}
	if c.Go, err = output(env, "go", "env", "GOVERSION", "GOOS", "GOARCH"); err != nil {
		return nil, err
	}
	f := strings.Fields(c.Go)
	if len(f) != 3 {
		return nil, fmt.Errorf("go env says %q", c.Go)
	}
	c.Go = f[0] + " " + f[1] + "/" + f[2]
	if kernel, err := output(nil, "uname", "-sr"); err == nil {
		c.Kernel = strings.TrimSpace(kernel)
	}

	cmd := exec.Command(r.command[0], r.command[1:]...)
	cmd.Env = env
	pr, pw := io.Pipe()
	cmd.Stdout, cmd.Stderr = pw, pw
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	ended := make(chan error, 1)
	go func() { err := cmd.Wait(); pw.Close(); ended <- err }()
	err = c.read(pr, out)
	_, drained := io.Copy(out, pr)
	failure := <-ended
	c.OK, c.Date = failure == nil, time.Now().UTC().Truncate(time.Second)
	c.end()
	if failure != nil {
		failure = fmt.Errorf("%s: %w", c.Command, failure)
	}
	return c, errors.Join(failure, err, drained)
}

// The relevant lines of a run: the JSON of go test, and the text of scripts/test-rdma --verbose and of
// scripts/build-matrix. Immutable.
var (
	packageLine = regexp.MustCompile(`^== (\S+)$`)
	testLine    = regexp.MustCompile(`^ *--- (PASS|FAIL|SKIP): (\S+) \(`)
	failLine    = regexp.MustCompile(`^FAIL +([a-z][\w./-]*) +\d+ s, status`)
	kernelLine  = regexp.MustCompile(`^test-rdma: kernel: (.+)$`)
	deviceLine  = regexp.MustCompile(`^test-rdma: devices: (.+)$`)
	buildLine   = regexp.MustCompile(`^build-matrix: (.+)$`)
)

// results of test lines and of go test -json.
var resultOf = map[string]result{"PASS": passed, "FAIL": failed, "SKIP": skipped, "pass": passed, "fail": failed, "skip": skipped}

// read reads the output of a run. Later results of a test replace earlier ones.
func (c *rec) read(in io.Reader, out io.Writer) error {
	lines := bufio.NewScanner(in)
	lines.Buffer(nil, 1<<24)
	where := ""
	said := make(map[string]string) // output by test, shown if it fails
	for lines.Scan() {
		line := strings.TrimRight(lines.Text(), "\r")
		var event struct{ Action, Package, Test, Output string }
		if strings.HasPrefix(line, "{") && json.Unmarshal([]byte(line), &event) == nil {
			pkg := strings.TrimPrefix(event.Package, modulePrefix)
			r, ok := resultOf[event.Action]
			key := pkg + "." + event.Test
			said[key] += event.Output
			if r == failed {
				fmt.Fprint(out, said[key])
			}
			if ok {
				delete(said, key)
			}
			switch {
			case ok && event.Test != "":
				c.Tests[key] = r
			case ok && r == failed && pkg != "":
				c.Failed = append(c.Failed, pkg)
				fmt.Fprintf(out, "FAIL %s\n", pkg)
			case ok && pkg != "":
				fmt.Fprintf(out, "ok   %s\n", pkg)
			}
			continue
		}
		fmt.Fprintln(out, line)
		if m := packageLine.FindStringSubmatch(line); m != nil {
			where = m[1]
		} else if m := testLine.FindStringSubmatch(line); m != nil && where != "" {
			c.Tests[where+"."+m[2]] = resultOf[m[1]]
		} else if m := failLine.FindStringSubmatch(line); m != nil {
			c.Failed = append(c.Failed, m[1])
		} else if m := kernelLine.FindStringSubmatch(line); m != nil {
			c.Kernel = m[1]
		} else if m := deviceLine.FindStringSubmatch(line); m != nil {
			c.Devices = m[1]
		} else if m := buildLine.FindStringSubmatch(line); m != nil && !strings.HasPrefix(m[1], "left out") {
			c.Builds = append(c.Builds, m[1])
		}
	}
	return lines.Err()
}

// end determines what is known only at the end.
//
// Go considers a test passed when all of its subtests were skipped: here it counts as skipped. Only subtests that a
// table names are kept. build-matrix names each build before it begins and stops at the first error, so the last one of
// a failed run is dropped.
func (c *rec) end() {
	ran, leaves := make(map[string]bool), make(map[string]bool) // by the parent tests
	parents := func(test string) func(yield func(string) bool) {
		return func(yield func(string) bool) {
			pkg, name, _ := strings.Cut(test, ".")
			for i := strings.LastIndex(name, "/"); i >= 0; i = strings.LastIndex(name[:i], "/") {
				if !yield(pkg + "." + name[:i]) {
					return
				}
			}
		}
	}
	for test := range c.Tests {
		for above := range parents(test) {
			leaves[above] = true
		}
	}
	for test, r := range c.Tests {
		for above := range parents(test) {
			ran[above] = ran[above] || !leaves[test] && r != skipped
		}
	}
	keep := named()
	for test, r := range c.Tests {
		if r == passed && leaves[test] && !ran[test] {
			c.Tests[test] = skipped
		}
		if isSubtest(test) && !keep[test] {
			delete(c.Tests, test)
		}
	}
	if n := len(c.Builds); n > 0 && !c.OK {
		c.Builds = c.Builds[:n-1]
	}
}

// isSubtest reports whether a test is a subtest. No directory of a package has a dot in its name.
func isSubtest(test string) bool {
	_, name, _ := strings.Cut(test, ".")
	return strings.Contains(name, "/")
}

// results is the form of a record's tests in its file: a line for each package and result, with names separated by
// spaces.
type results map[string]map[result]string

// MarshalJSON implements json.Marshaler.
func (t testResults) MarshalJSON() ([]byte, error) {
	file := make(results)
	for _, test := range slices.Sorted(maps.Keys(t)) {
		pkg, name, _ := strings.Cut(test, ".")
		if file[pkg] == nil {
			file[pkg] = make(map[result]string)
		}
		file[pkg][t[test]] = strings.TrimSpace(file[pkg][t[test]] + " " + name)
	}
	return json.Marshal(file)
}

// UnmarshalJSON implements json.Unmarshaler.
func (t *testResults) UnmarshalJSON(b []byte) error {
	var file results
	if err := json.Unmarshal(b, &file); err != nil {
		return err
	}
	*t = make(testResults)
	for pkg, list := range file {
		for r, names := range list {
			for _, name := range strings.Fields(names) {
				(*t)[pkg+"."+name] = r
			}
		}
	}
	return nil
}

// save writes the record.
func (c *rec) save(file string) error {
	if err := os.MkdirAll(path.Dir(file), 0o777); err != nil {
		return err
	}
	b, err := json.MarshalIndent(c, "", " ")
	if err != nil {
		return err
	}
	return os.WriteFile(file, append(b, '\n'), 0o666)
}

// namedRec is a record with its name.
type namedRec struct {
	name string
	rec
}

// load returns the records of a tree: those of runs first, in their order, then the others.
func load(root fs.FS) ([]namedRec, error) {
	files, err := fs.Glob(root, recordsDir+"/*.json")
	if err != nil {
		return nil, err
	}
	place := func(name string) int {
		if i := slices.IndexFunc(runs, func(r run) bool { return r.name == name }); i >= 0 {
			return i
		}
		return len(runs)
	}
	var list []namedRec
	for _, file := range files {
		b, err := fs.ReadFile(root, file)
		if err != nil {
			return nil, err
		}
		n := namedRec{name: strings.TrimSuffix(path.Base(file), ".json")}
		if err := json.Unmarshal(b, &n.rec); err != nil {
			return nil, fmt.Errorf("%s: %w", file, err)
		}
		list = append(list, n)
	}
	slices.SortStableFunc(list, func(a, b namedRec) int { return place(a.name) - place(b.name) })
	return list, nil
}

// machine describes this machine without its name.
func machine() string {
	model := runtime.GOARCH
	b, err := os.ReadFile("/proc/cpuinfo")
	if m := regexp.MustCompile(`(?m)^model name\s*:\s*(.+)$`).FindSubmatch(b); err == nil && m != nil {
		model = string(m[1])
	}
	return fmt.Sprintf("%s, %d CPUs", model, runtime.NumCPU())
}

// commit returns the commit of the tree, and whether files other than documents differ from it.
func commit() (string, error) {
	id, err := output(nil, "git", "rev-parse", "--short=12", "HEAD")
	if err != nil {
		return "", err
	}
	changes, err := output(nil, "git", "status", "--porcelain", "--", ".", ":!docs", ":!*.md")
	if strings.TrimSpace(changes) != "" {
		return strings.TrimSpace(id) + ", with changes", err
	}
	return strings.TrimSpace(id), err
}

func output(env []string, name string, args ...string) (string, error) {
	cmd := exec.Command(name, args...)
	cmd.Env = env
	b, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("%s %s: %w", name, strings.Join(args, " "), err)
	}
	return string(b), nil
}
