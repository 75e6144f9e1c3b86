package posixtest

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// A Bed is a pair of file systems to compare: empty directories, with paths that any user can walk. Checks leave them
// empty.
type Bed struct {
	Oracle string // on a local file system
	Export string // on another one, or the same
	Mount  string // Export as a client sees it; without a client Export itself
}

// A Difference is an observation of a check on only one side.
type Difference struct {
	Check     string
	What      string // what was observed
	Want, Got string // on the oracle, and on the other side
}

// String returns one line for each side.
func (d Difference) String() string {
	return fmt.Sprintf("%s: %s\n\twant %s\n\tgot  %s", d.Check, d.What, d.Want, d.Got)
}

// check does something in its own directory.
type check struct {
	name  string
	who   *user
	umask int
	times bool // compare which times change
	busy  bool // it removes open files, after which an NFS client cleans up

	prepare func(dir string) // creates what the check finds; as root, without the client
	do      func(p *program) // does the work and reports observations
}

// program is a check in progress on one side, as a user.
type program struct {
	dir string
	out []string
}

// at returns the path of a name in the check's directory. It returns "" unchanged.
func (p *program) at(name string) string {
	if name == "" {
		return ""
	}
	return p.dir + "/" + name
}

// did records the result of a system call, with further observations.
func (p *program) did(what string, err error, more ...any) {
	s := what + ": " + errorName(err)
	if err == nil && len(more) > 0 {
		s += " " + strings.TrimSuffix(fmt.Sprintln(more...), "\n")
	}
	p.out = append(p.out, s)
}

// say reports an observation of a check.
func (p *program) say(format string, args ...any) {
	p.out = append(p.out, fmt.Sprintf(format, args...))
}

func errorName(err error) string {
	no, ok := err.(unix.Errno)
	switch {
	case err == nil:
		return "ok"
	case ok && unix.ErrnoName(no) != "":
		return unix.ErrnoName(no)
	}
	return err.Error()
}

// batch is how many checks are prepared together, because preparation ends with a wait for the clock.
const batch = 128

// Table runs every n-th check of the table, and returns the number of checks and the differences. The error means that
// the bed is not suitable.
func (b Bed) Table(n int) (count int, list []Difference, err error) {
	people, leave := enter()
	defer leave()
	var all []*check
	for i, c := range table(people) {
		if i%n == 0 {
			all = append(all, c)
		}
	}
	for part := range slices.Chunk(all, batch) {
		more, err := b.run(part)
		list = append(list, more...)
		if err != nil {
			return count, list, err
		}
		count += len(part)
	}
	return count, list, nil
}

// Names returns the names of all checks of the table.
func Names() (names []string) {
	people, leave := enter()
	defer leave()
	for _, c := range table(people) {
		names = append(names, c.name)
	}
	return names
}

// sides returns the local directories of a bed.
func (b Bed) sides() [2]string { return [2]string{b.Oracle, b.Export} }

// run runs some checks. It prepares all of them first, so that it need wait for the clock only once.
func (b Bed) run(checks []*check) (list []Difference, err error) {
	top, err := os.MkdirTemp(b.Oracle, "checks")
	if err != nil {
		return nil, err
	}
	name := filepath.Base(top)
	defer func() {
		for _, side := range b.sides() {
			removeAll(filepath.Join(side, name))
		}
	}()
	was := make([][2]tree, len(checks))
	for i, side := range b.sides() {
		at := filepath.Join(side, name)
		if err := os.MkdirAll(at, 0o755); err != nil {
			return nil, err
		}
		if err := os.Chmod(at, 0o755); err != nil {
			return nil, err
		}
		for j, c := range checks {
			dir := filepath.Join(at, fmt.Sprint(j))
			if err := prepare(dir, c); err != nil {
				return nil, fmt.Errorf("prepare %s: %w", c.name, err)
			}
			was[j][i] = walk(dir, false)
		}
	}
	if err := b.tick(); err != nil {
		return nil, err
	}
	for j, c := range checks {
		sub := filepath.Join(name, fmt.Sprint(j))
		list = append(list, b.compare(c, sub, was[j])...)
	}
	return list, nil
}

// prepare creates the directory of a check, which is writable for everyone.
func prepare(dir string, c *check) (err error) {
	if err := os.Mkdir(dir, 0o777); err != nil {
		return err
	}
	if err := os.Chmod(dir, 0o777); err != nil {
		return err
	}
	defer func() {
		if failed, ok := recover().(*prepareError); ok {
			err = failed.error
		}
	}()
	if c.prepare != nil {
		c.prepare(dir)
	}
	return nil
}

// prepareError ends the preparation of a check.
type prepareError struct{ error }

func must(err error) {
	if err != nil {
		panic(&prepareError{err})
	}
}

// tick waits until the times of both sides are later than all earlier ones.
func (b Bed) tick() error {
	for _, side := range b.sides() {
		f, err := os.CreateTemp(side, "clock")
		if err != nil {
			return err
		}
		defer os.Remove(f.Name())
		defer f.Close()
		var first, now unix.Stat_t
		if err := unix.Fstat(int(f.Fd()), &first); err != nil {
			return err
		}
		// The file system's clock has long ticks.
		for end := time.Now().Add(10 * time.Second); ; {
			if err := unix.Fchmod(int(f.Fd()), 0o600); err != nil {
				return err
			}
			if err := unix.Fstat(int(f.Fd()), &now); err != nil {
				return err
			}
			if now.Ctim != first.Ctim {
				break
			}
			if time.Now().After(end) {
				return fmt.Errorf("posixtest: the clock of %s stands still", side)
			}
		}
	}
	return nil
}

// compare runs a check on both sides and returns the differences.
func (b Bed) compare(c *check, sub string, was [2]tree) (list []Difference) {
	differs := func(what, want, got string) {
		if want != got {
			list = append(list, Difference{c.name, what, want, got})
		}
	}
	oracle, mount := filepath.Join(b.Oracle, sub), filepath.Join(b.Mount, sub)
	want, got := c.run(oracle), c.run(mount)
	differs("calls", strings.Join(want, "; "), strings.Join(got, "; "))

	export := filepath.Join(b.Export, sub)
	if c.busy {
		if err := tidied(export); err != nil {
			differs("names of removed files", "none", err.Error())
		}
	}
	left, made, seen := walk(oracle, true), walk(export, false), walk(mount, true)
	differs("what is left", left.String(), made.String())
	if b.Mount != b.Export && !c.busy {
		differs("what the client sees of it", made.exactly(), seen.exactly())
	}
	if c.times {
		differs("times that change", left.since(was[0]), made.since(was[1]))
	}
	differs("contents", left.contents(), seen.contents())
	return list
}

// tidied waits until the client has removed the files of a check that it had to keep.
func tidied(dir string) error {
	for end := time.Now().Add(20 * time.Second); ; time.Sleep(time.Millisecond) {
		left := ""
		err := filepath.WalkDir(dir, func(_ string, d os.DirEntry, err error) error {
			if err == nil && strings.HasPrefix(d.Name(), silly) {
				left = d.Name()
			}
			return nil
		})
		if err != nil || left == "" {
			return err
		}
		if time.Now().After(end) {
			return fmt.Errorf("posixtest: %s stays", left)
		}
	}
}

// run runs the check in a directory, as its user.
func (c *check) run(dir string) []string {
	p := &program{dir: dir}
	c.who.do(func() {
		unix.Umask(c.umask)
		c.do(p)
	})
	return p.out
}
