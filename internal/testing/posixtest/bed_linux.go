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

// A Bed is where two file systems are compared: empty directories, with paths that any user can walk.
// Checks leave them empty.
type Bed struct {
	Oracle string // of a local file system
	Export string // of another, or the same
	Mount  string // Export as a client sees it; Export itself: without a client
}

// A Difference is an observation of one check on one side only.
type Difference struct {
	Check     string
	What      string // what differs
	Want, Got string // of the oracle, and of the other side
}

// String is one line for each side.
func (d Difference) String() string {
	return fmt.Sprintf("%s: %s\n\twant %s\n\tgot  %s", d.Check, d.What, d.Want, d.Got)
}

// A check does something in a directory of its own.
type check struct {
	name  string
	who   *user
	umask int
	times bool // compare which times change
	busy  bool // files are removed while they are open: an NFS client tidies up after it

	prepare func(dir string) // makes what the check finds; as root, without the client
	do      func(p *program) // does it, and reports its observations
}

// A program is a check under way on one side, as a user.
type program struct {
	dir string
	out []string
}

// at is the path of a name in the directory of the check; "" stays what it is.
func (p *program) at(name string) string {
	if name == "" {
		return ""
	}
	return p.dir + "/" + name
}

// did notes the result of a system call, and what else there is to say of it.
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

// batch is how many checks are prepared at a time, as they have to wait for the clock then.
const batch = 128

// Table runs every n-th check of the table and returns how many that were, and what differs.
// The error is a bed that is not fit for it.
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

// sides are the local directories of a bed.
func (b Bed) sides() [2]string { return [2]string{b.Oracle, b.Export} }

// run runs some checks: all are prepared first, so that the clock has to be waited for once.
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

// prepare makes the directory of a check, which everybody may write to.
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

// A prepareError ends the preparation of a check.
type prepareError struct{ error }

func must(err error) {
	if err != nil {
		panic(&prepareError{err})
	}
}

// tick waits until times of both sides are later than all before.
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
		// It is the file system's clock, which has long ticks.
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

// compare does a check on both sides and returns what differs.
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

// run does the check in a directory, as its user.
func (c *check) run(dir string) []string {
	p := &program{dir: dir}
	c.who.do(func() {
		unix.Umask(c.umask)
		c.do(p)
	})
	return p.out
}
