// Command demo performs the main task with real input: it copies a tree from one rpcrdma server to another, each in its
// own process, and compares every byte. It also compares the reports of 'rpcrdma watch' about the second server with
// the files that exist.
package main

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"math/rand/v2"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"text/tabwriter"
	"time"
)

// demoSizes are the sizes of generated files, in bytes: around the limits of inline
// messages, pages, READs and chunks, and odd ones. Immutable.
var demoSizes = []int64{
	0, 1, 3, 4, 5,
	1023, 1024, 1025, 4095, 4096, 4097, 65535, 65536, 65537,
	1<<20 - 1, 1 << 20, 1<<20 + 1, 8<<20 + 3, 64 << 20,
}

// demoTime is how long each step may take.
const demoTime = 5 * time.Minute

// demo is the program with its flags.
type demo struct {
	from     paths
	provider string
	addr     string // of the servers
	parallel int
	largest  int64 // generated file
	flip     bool

	command string // rpcrdma
	dir     string
	out     io.Writer
	stderr  io.Writer
}

// paths is a flag that may be repeated.
type paths []string

func (p *paths) String() string { return strings.Join(*p, " ") }

// Set adds a path.
func (p *paths) Set(s string) error {
	*p = append(*p, s)
	return nil
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	os.Exit(runDemo(ctx, os.Args[1:], os.Stdout, os.Stderr))
}

// runDemo is main with its environment as arguments. It returns the exit status.
func runDemo(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	d := &demo{out: stdout, stderr: stderr}
	flags := flag.NewFlagSet("demo", flag.ContinueOnError)
	flags.SetOutput(stderr)
	flags.StringVar(&d.command, "command", "rpcrdma", "the command rpcrdma is `FILE`")
	flags.Var(&d.from, "from", "add a copy of `DIR` to the tree; may be repeated")
	flags.StringVar(&d.provider, "provider", "iwarp", "RDMA adapter of both ends, see 'rpcrdma help providers'")
	flags.StringVar(&d.addr, "addr", "127.0.0.1:0", "the servers listen on `HOST:0`")
	flags.IntVar(&d.parallel, "parallel", 16, "keep up to `N` calls in flight")
	flags.Int64Var(&d.largest, "largest", slices.Max(demoSizes), "generate no file of more than `N` bytes")
	flags.BoolVar(&d.flip, "flip", false, "damage one byte before comparing, which must be found")
	if flags.Parse(args) != nil || flags.NArg() > 0 {
		return 2
	}
	if err := d.run(ctx); err != nil {
		fmt.Fprintf(stderr, "demo: %v\n", cmp.Or(context.Cause(ctx), err))
		return 1
	}
	return 0
}

func (d *demo) run(ctx context.Context) (err error) {
	if d.dir, err = os.MkdirTemp("", "rpcrdma-demo-"); err != nil {
		return err
	}
	defer os.RemoveAll(d.dir)
	source, copied, target := filepath.Join(d.dir, "source"), filepath.Join(d.dir, "copied"), filepath.Join(d.dir, "target")
	if err := d.makeSource(ctx, source); err != nil {
		return err
	}
	if err := os.Mkdir(target, 0o777); err != nil {
		return err
	}

	var reading, writing result
	if err := d.withServer(ctx, []string{"--dir", source, "--read-only"}, func(url string) error {
		return d.transfer(ctx, &reading, "get", url, copied)
	}); err != nil {
		return err
	}
	var told demoTold
	if err := d.withServer(ctx, []string{"--dir", target}, func(url string) error {
		return d.withWatch(ctx, &told, url, target, func() error {
			return d.transfer(ctx, &writing, "put", copied, url)
		})
	}); err != nil {
		return err
	}

	if d.flip {
		if err := flipByte(filepath.Join(target, "sizes", "65537.bin")); err != nil {
			return err
		}
	}
	want, err := hashTree(source)
	if err != nil {
		return err
	}
	for _, tree := range []struct{ name, dir string }{{"read", copied}, {"written", target}} {
		got, err := hashTree(tree.dir)
		if err != nil {
			return err
		}
		if wrong := compareTrees(want, got); len(wrong) > 0 {
			for _, line := range wrong {
				fmt.Fprintf(d.stderr, "demo: %s\n", line)
			}
			return fmt.Errorf("%d of %d files differ after having been %s", len(wrong), len(want), tree.name)
		}
	}
	return d.report(want, &reading, &writing, &told)
}

// makeSource makes the tree.
func (d *demo) makeSource(ctx context.Context, source string) error {
	sizes := filepath.Join(source, "sizes")
	if err := os.MkdirAll(sizes, 0o777); err != nil {
		return err
	}
	for _, from := range d.from {
		fmt.Fprintf(d.out, "copying %s\n", from)
		to, err := makeNamed(source, from)
		if err != nil {
			return err
		}
		left, err := copyTree(ctx, to, os.DirFS(from))
		if err != nil {
			return err
		}
		if len(left) > 0 {
			fmt.Fprintf(d.out, "left out of %s: %v\n", from, left)
		}
	}
	fmt.Fprintf(d.out, "generating files of 0 to %s\n", mebibytes(min(d.largest, slices.Max(demoSizes))))
	for i, size := range demoSizes {
		if size > d.largest {
			continue
		}
		f, err := os.Create(filepath.Join(sizes, fmt.Sprintf("%d.bin", size)))
		if err != nil {
			return err
		}
		// The same bytes in every run, different ones in every file.
		_, err = io.CopyN(f, rand.NewChaCha8([32]byte{byte(i)}), size)
		if err := errors.Join(err, f.Close()); err != nil {
			return err
		}
	}
	return nil
}

// makeNamed creates a directory in parent with the name of dir, and a number if it already exists.
func makeNamed(parent, dir string) (string, error) {
	dir, err := filepath.Abs(dir) // resolves "."
	if err != nil {
		return "", err
	}
	name := filepath.Base(dir)
	if name == string(filepath.Separator) {
		name = "root"
	}
	for n := 1; ; n++ {
		made := filepath.Join(parent, name)
		if n > 1 {
			made += fmt.Sprintf("-%d", n)
		}
		if err := os.Mkdir(made, 0o777); !errors.Is(err, fs.ErrExist) {
			return made, err
		}
	}
}

// leftOut counts what was not copied of a tree, by kind.
type leftOut map[string]int

func (l leftOut) String() string {
	var all []string
	for _, what := range slices.Sorted(maps.Keys(l)) {
		all = append(all, fmt.Sprintf("%s (%d)", what, l[what]))
	}
	return strings.Join(all, ", ")
}

// copyTree copies directories and regular files to the directory to. It omits files that cannot be compared byte by
// byte, links, which may lead out of the tree, and files that cannot be read.
func copyTree(ctx context.Context, to string, from fs.FS) (leftOut, error) {
	left := make(leftOut)
	err := fs.WalkDir(from, ".", func(path string, e fs.DirEntry, err error) error {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if kind := otherKind(e); err == nil && kind != "" {
			left[kind]++
			return nil
		}
		made := filepath.Join(to, filepath.FromSlash(path))
		if err == nil && e.IsDir() {
			return os.MkdirAll(made, 0o777)
		}
		if err == nil {
			var f fs.File
			if f, err = from.Open(path); err == nil {
				return writeFile(made, f)
			}
		}
		switch {
		case path == ".": // all of it
			return err
		case errors.Is(err, fs.ErrPermission):
			left["files that may not be read"]++
		case errors.Is(err, fs.ErrNotExist):
			left["files removed meanwhile"]++
		default:
			return err
		}
		return nil
	})
	return left, err
}

// otherKind returns the kind of an entry that is neither a regular file nor a directory, or "" otherwise or if there is
// no entry.
func otherKind(e fs.DirEntry) string {
	if e == nil {
		return ""
	}
	switch t := e.Type(); {
	case t.IsRegular(), t.IsDir():
		return ""
	case t&fs.ModeSymlink != 0:
		return "symbolic links"
	case t&fs.ModeSocket != 0:
		return "sockets"
	case t&fs.ModeNamedPipe != 0:
		return "pipes"
	case t&fs.ModeDevice != 0:
		return "devices"
	}
	return "special files"
}

// writeFile copies f to a new file, and closes f.
func writeFile(name string, f fs.File) error {
	defer f.Close()
	w, err := os.Create(name)
	if err != nil {
		return err
	}
	_, err = io.Copy(w, f)
	return errors.Join(err, w.Close())
}

// listening finds the address in serve's ready line. Immutable.
var listening = regexp.MustCompile(`listening on (\S+)`)

// withServer runs a server while f works with it.
func (d *demo) withServer(ctx context.Context, args []string, f func(url string) error) (err error) {
	ctx, cancel := context.WithTimeout(ctx, demoTime)
	defer cancel()
	cmd := exec.CommandContext(ctx, d.command, append([]string{"serve", "--provider", d.provider, "--addr", d.addr, "--squash", "none"}, args...)...)
	cmd.Stderr = d.stderr
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = 15 * time.Second
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	line, readErr := bufio.NewReader(stdout).ReadString('\n')
	match := listening.FindStringSubmatch(line)
	if match == nil {
		err = fmt.Errorf("the server is not ready: it printed %q (%v)", line, readErr)
	} else {
		fmt.Fprintf(d.out, "%s", strings.ReplaceAll(line, d.dir+string(filepath.Separator), ""))
		err = f("nfs://" + match[1] + "/")
	}
	stopErr := cmd.Process.Signal(syscall.SIGTERM)
	if waitErr := cmd.Wait(); waitErr != nil {
		stopErr = fmt.Errorf("the server ended with: %w", waitErr)
	}
	return errors.Join(err, stopErr)
}

// result is the output of get and put with --json.
type result struct {
	Files   int     `json:"files"`
	Bytes   int64   `json:"bytes"`
	Seconds float64 `json:"seconds"`
	Stats   struct {
		Calls      uint64 `json:"calls"`
		Inline     uint64 `json:"inline"`
		ReadChunk  uint64 `json:"read_chunk"`
		LongCall   uint64 `json:"long_call"`
		WriteChunk uint64 `json:"write_chunk"`
		ReplyChunk uint64 `json:"reply_chunk"`
	} `json:"stats"`
}

// transfer runs get or put.
func (d *demo) transfer(ctx context.Context, r *result, command, from, to string) error {
	ctx, cancel := context.WithTimeout(ctx, demoTime)
	defer cancel()
	cmd := exec.CommandContext(ctx, d.command, command, "--provider", d.provider, "-r", "-P", strconv.Itoa(d.parallel), "--json", from, to)
	cmd.Stderr = d.stderr
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = 15 * time.Second
	var out bytes.Buffer
	cmd.Stdout = &out
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("%s: %w", command, err)
	}
	return json.Unmarshal(out.Bytes(), r)
}

// demoTold is the output of watch.
type demoTold struct {
	events int
	files  map[string]bool // files that exist according to it
}

// add processes a line of the output.
func (told *demoTold) add(line []byte) error {
	var e struct {
		Event     string `json:"event"`
		Path      string `json:"path"`
		From      string `json:"from"`
		Directory bool   `json:"directory"`
	}
	if err := json.Unmarshal(line, &e); err != nil {
		return fmt.Errorf("watch prints %q: %w", line, err)
	}
	told.events++
	switch {
	case e.Event == "overflow":
		return errors.New("watch has missed something")
	case e.Directory:
	case e.Event == "created":
		told.files[e.Path] = true
	case e.Event == "removed":
		delete(told.files, e.Path)
	case e.Event == "renamed":
		delete(told.files, e.From)
		told.files[e.Path] = true
	}
	return nil
}

// withWatch runs a watch of url while f works, and until it has reported exactly the files that are in dir afterwards.
func (d *demo) withWatch(ctx context.Context, told *demoTold, url, dir string, f func() error) (err error) {
	ctx, cancel := context.WithTimeout(ctx, demoTime)
	defer cancel()
	url = "rdma" + strings.TrimPrefix(url, "nfs")
	cmd := exec.CommandContext(ctx, d.command, "watch", "--provider", d.provider, "--json", url)
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = 15 * time.Second
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	stderr, err := cmd.StderrPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	lines := make(chan []byte, 1024)
	go func() {
		defer close(lines)
		for r := bufio.NewScanner(stdout); r.Scan(); {
			lines <- bytes.Clone(r.Bytes())
		}
	}()
	says := bufio.NewReader(stderr)
	line, readErr := says.ReadString('\n')
	said := make(chan struct{})
	go func() {
		defer close(said)
		_, _ = io.Copy(d.stderr, says)
	}()
	if readErr != nil || !strings.Contains(line, "watching") {
		err = fmt.Errorf("watch is not ready: it printed %q (%v)", line, readErr)
	} else {
		fmt.Fprint(d.out, line)
		err = told.follow(ctx, lines, dir, f)
	}
	err = errors.Join(err, cmd.Process.Signal(syscall.SIGTERM))
	for range lines { // Wait closes the pipes
	}
	<-said
	if waitErr := cmd.Wait(); waitErr != nil {
		err = errors.Join(err, fmt.Errorf("watch ended with: %w", waitErr))
	}
	return err
}

// follow reads lines until f has returned and they have reported exactly the files in dir.
func (told *demoTold) follow(ctx context.Context, lines <-chan []byte, dir string, f func() error) error {
	told.files = make(map[string]bool)
	worked := make(chan error, 1)
	go func() { worked <- f() }()
	var want map[string]bool // nil until f has returned
	late := time.NewTimer(demoTime)
	defer late.Stop()
	for want == nil || !maps.Equal(told.files, want) {
		select {
		case line, ok := <-lines:
			if !ok {
				return errors.New("watch has ended")
			}
			if err := told.add(line); err != nil {
				return err
			}
		case err := <-worked:
			if err != nil {
				return err
			}
			if want, err = filesIn(dir); err != nil {
				return err
			}
			late.Reset(demoPatience)
		case <-late.C:
			return fmt.Errorf("watch told of %d files, but there are %d", len(told.files), len(want))
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}

// demoPatience is how long watch may take to print a change.
const demoPatience = 30 * time.Second

// filesIn returns the slash-separated paths in a tree, without directories.
func filesIn(dir string) (map[string]bool, error) {
	files := make(map[string]bool)
	err := fs.WalkDir(os.DirFS(dir), ".", func(path string, e fs.DirEntry, err error) error {
		if err == nil && !e.IsDir() {
			files[path] = true
		}
		return err
	})
	return files, err
}

// fileSum identifies the contents of a file.
type fileSum struct {
	size   int64
	sha256 [sha256.Size]byte
}

// hashTree returns the contents of all files of a tree.
func hashTree(dir string) (map[string]fileSum, error) {
	sums := make(map[string]fileSum)
	err := filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			return err
		}
		f, err := os.Open(path)
		if err != nil {
			return err
		}
		defer f.Close()
		h := sha256.New()
		n, err := io.Copy(h, f)
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(dir, path)
		sums[rel] = fileSum{n, [sha256.Size]byte(h.Sum(nil))}
		return err
	})
	return sums, err
}

// compareTrees describes each difference between two trees.
func compareTrees(want, got map[string]fileSum) (wrong []string) {
	for _, name := range slices.Sorted(maps.Keys(want)) {
		w, g := want[name], got[name]
		_, there := got[name]
		switch {
		case !there:
			wrong = append(wrong, name+" is missing")
		case w.size != g.size:
			wrong = append(wrong, fmt.Sprintf("%s has %d bytes, want %d", name, g.size, w.size))
		case w.sha256 != g.sha256:
			wrong = append(wrong, fmt.Sprintf("%s has SHA-256 %x, want %x", name, g.sha256, w.sha256))
		}
	}
	for _, name := range slices.Sorted(maps.Keys(got)) {
		if _, there := want[name]; !there {
			wrong = append(wrong, name+" should not exist")
		}
	}
	return wrong
}

// flipByte changes the last byte of a file.
func flipByte(name string) error {
	f, err := os.OpenFile(name, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return err
	}
	var b [1]byte
	if _, err := f.ReadAt(b[:], info.Size()-1); err != nil {
		return err
	}
	b[0] ^= 1
	_, err = f.WriteAt(b[:], info.Size()-1)
	return err
}

// report prints the table.
func (d *demo) report(sums map[string]fileSum, reading, writing *result, told *demoTold) error {
	var total int64
	for _, s := range sums {
		total += s.size
	}
	fmt.Fprintf(d.out, "\nSHA-256 of %d files, %s: equal before, after reading and after writing\n", len(sums), mebibytes(total))
	fmt.Fprintf(d.out, "watch reported exactly these files as they were made: %d files, %d events\n\n", len(told.files), told.events)
	w := tabwriter.NewWriter(d.out, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(w, "\tfiles\tbytes\tcalls\tinline\tread chunk\twrite chunk\treply chunk\tseconds\tMiB/s\t")
	for _, row := range []struct {
		name string
		r    *result
	}{{"get", reading}, {"put", writing}} {
		r := row.r
		if r.Files != len(sums) || r.Bytes != total {
			return fmt.Errorf("%s counts %d files of %d bytes, but there are %d of %d", row.name, r.Files, r.Bytes, len(sums), total)
		}
		fmt.Fprintf(w, "%s\t%d\t%d\t%d\t%d\t%d\t%d\t%d\t%.2f\t%.0f\t\n", row.name, r.Files, r.Bytes, r.Stats.Calls,
			r.Stats.Inline, r.Stats.ReadChunk+r.Stats.LongCall, r.Stats.WriteChunk, r.Stats.ReplyChunk,
			r.Seconds, float64(r.Bytes)/(1<<20)/r.Seconds)
	}
	return w.Flush()
}

// mebibytes returns a number of bytes in MiB.
func mebibytes(n int64) string {
	return strings.TrimSuffix(fmt.Sprintf("%.1f", float64(n)/(1<<20)), ".0") + " MiB"
}
