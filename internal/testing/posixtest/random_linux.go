package posixtest

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// Random performs steps operations chosen by seed on both sides. It compares the result of each, and occasionally all
// that exists. It ends at the first difference, which includes the number of the step.
func (b Bed) Random(seed uint64, steps int) (count int, list []Difference, err error) {
	people, leave := enter()
	defer leave()
	top, err := os.MkdirTemp(b.Oracle, "random")
	if err != nil {
		return 0, nil, err
	}
	name := filepath.Base(top)
	oracle, export, mount := top, filepath.Join(b.Export, name), filepath.Join(b.Mount, name)
	defer func() {
		removeAll(oracle)
		removeAll(export)
	}()
	if b.Oracle != b.Export {
		if err := os.Mkdir(export, 0o777); err != nil {
			return 0, nil, err
		}
	}
	for _, dir := range []string{oracle, export} {
		if err := os.Chmod(dir, 0o777); err != nil {
			return 0, nil, err
		}
	}
	w := &wanderer{rand: rand.New(rand.NewPCG(seed, 0)), people: people}
	defer w.close()
	what := fmt.Sprintf("random operations of seed %d", seed)
	for i := range steps {
		text, do := w.next(oracle)
		want, got := w.step(0, oracle, do), w.step(1, mount, do)
		count++
		if want != got && !bothRefuse(want, got) {
			return count, append(list, Difference{what, fmt.Sprintf("step %d, %s", i, text), want, got}), nil
		}
		if i%100 != 99 && i != steps-1 {
			continue
		}
		w.close()
		left, made, seen := walk(oracle, true), walk(export, false), walk(mount, true)
		for _, d := range []Difference{
			{what, fmt.Sprintf("tree after step %d", i), left.String(), made.String()},
			{what, fmt.Sprintf("tree after step %d, as the client sees it", i), left.String(), seen.String()},
			{what, fmt.Sprintf("contents after step %d", i), left.contents(), seen.contents()},
		} {
			count++
			if d.Want != d.Got {
				return count, append(list, d), nil
			}
		}
	}
	return count, list, nil
}

// bothRefuse reports whether a call fails on both sides, for lack of permission on one and for another reason on the
// other. Programs cannot rely on which of two reasons is reported, and an NFS client leaves write permission for a
// directory to its server.
func bothRefuse(want, got string) bool {
	a, b := strings.Fields(want), strings.Fields(got)
	if len(a) != len(b) || len(a) < 2 {
		return false
	}
	last := len(a) - 1
	for i := range last {
		if a[i] != b[i] {
			return false
		}
	}
	denied := func(s string) bool { return s == "EACCES" || s == "EPERM" }
	return denied(a[last]) && b[last][0] == 'E' || denied(b[last]) && a[last][0] == 'E'
}

// removeAll removes a tree, whatever the modes of its directories.
func removeAll(dir string) {
	filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
		if d != nil && d.IsDir() {
			os.Chmod(path, 0o700)
		}
		return nil
	})
	os.RemoveAll(dir)
}

// wanderer performs random operations, and has files open on both sides.
type wanderer struct {
	rand   *rand.Rand
	people *people
	open   []held
	who    *user
}

// held is an open file.
type held struct {
	fd  [2]int
	who *user  // user that opened it
	ino uint64 // on the oracle
}

func (w *wanderer) close() {
	for _, h := range w.open {
		for _, fd := range h.fd {
			unix.Close(fd)
		}
	}
	w.open = nil
}

// step performs an operation on one side and reports the outcome.
func (w *wanderer) step(side int, dir string, do func(p *program, side int)) string {
	p := &program{dir: dir}
	w.who.do(func() {
		unix.Umask(0o022)
		do(p, side)
	})
	return strings.Join(p.out, "; ")
}

// path returns one of few names, up to three levels deep.
func (w *wanderer) path() string {
	names := []string{"a", "b", "c", "d"}
	path := names[w.rand.IntN(len(names))]
	for range w.rand.IntN(3) {
		path += "/" + names[w.rand.IntN(len(names))]
	}
	return path
}

// busy reports whether a path leads to an open file. A client does not really remove such a file, which other checks
// cover.
func (w *wanderer) busy(oracle, path string) bool {
	var st unix.Stat_t
	if unix.Lstat(oracle+"/"+path, &st) != nil {
		return false
	}
	for _, h := range w.open {
		if h.ino == st.Ino {
			return true
		}
	}
	return false
}

// next chooses an operation.
func (w *wanderer) next(oracle string) (text string, do func(p *program, side int)) {
	users := []*user{w.people.owner, w.people.owner, w.people.other, w.people.member, w.people.root}
	w.who = users[w.rand.IntN(len(users))]
	a, b := w.path(), w.path()
	mode := []uint32{0o644, 0o755, 0o777, 0o600, 0o444, 0o4755, 0o2775, 0o1777}[w.rand.IntN(8)]
	size, at := w.rand.IntN(20_000), int64(w.rand.IntN(50_000))
	on := func(name string, f func(p *program)) (string, func(*program, int)) {
		return fmt.Sprintf("%s: %s of %s, %s, mode %04o, %d at %d", w.who.name, name, a, b, mode, size, at),
			func(p *program, _ int) { f(p) }
	}
	simple := func(name string, f func(path string) error) (string, func(*program, int)) {
		return on(name, func(p *program) { p.did(name, f(p.at(a))) })
	}
	two := func(name string, f func(a, b string) error) (string, func(*program, int)) {
		return on(name, func(p *program) { p.did(name, f(p.at(a), p.at(b))) })
	}
	switch n := w.rand.IntN(100); {
	case n < 12:
		return simple("mkdir", func(path string) error { return unix.Mkdir(path, mode) })
	case n < 22:
		return w.create(a, mode, oracle)
	case n < 30:
		return on("write", func(p *program) {
			fd, err := unix.Open(p.at(a), unix.O_WRONLY|unix.O_CREAT|unix.O_CLOEXEC|unix.O_NONBLOCK, mode)
			p.did("open", err)
			if err == nil {
				n, err := unix.Pwrite(fd, pattern(size, at), at)
				p.did("write", err, n)
				p.did("close", unix.Close(fd))
			}
		})
	case n < 36:
		return on("read", func(p *program) {
			fd, err := unix.Open(p.at(a), unix.O_RDONLY|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
			p.did("open", err)
			if err == nil {
				p.read(fd, min(size, 64), at)
				p.did("close", unix.Close(fd))
			}
		})
	case n < 42 && len(w.open) > 0:
		h := w.open[w.rand.IntN(len(w.open))]
		w.who = h.who
		text, _ := on("write to an open file", nil)
		return text, func(p *program, side int) {
			n, err := unix.Pwrite(h.fd[side], pattern(size, at), at)
			p.did("write", err, n)
			p.stat(h.fd[side])
		}
	case n < 46 && len(w.open) > 0:
		h := w.open[w.rand.IntN(len(w.open))]
		w.who = h.who
		text, _ := on("read of an open file", nil)
		return text, func(p *program, side int) {
			p.read(h.fd[side], 40, at)
			p.did("ftruncate", unix.Ftruncate(h.fd[side], at))
			p.stat(h.fd[side])
		}
	case n < 54:
		if w.busy(oracle, a) {
			w.close()
		}
		return simple("unlink", unix.Unlink)
	case n < 59:
		return simple("rmdir", unix.Rmdir)
	case n < 69:
		if w.busy(oracle, b) {
			w.close()
		}
		return two("rename", unix.Rename)
	case n < 74:
		return two("link", unix.Link)
	case n < 78:
		return two("symlink", func(_, path string) error { return unix.Symlink(a, path) })
	case n < 81:
		return simple("mkfifo", func(path string) error { return unix.Mkfifo(path, mode) })
	case n < 86:
		return simple("chmod", func(path string) error { return unix.Chmod(path, mode) })
	case n < 89:
		gid := []int{-1, ownerID, groupID, otherID}[w.rand.IntN(4)]
		uid := []int{-1, -1, ownerID, otherID}[w.rand.IntN(4)]
		return simple(fmt.Sprintf("lchown %d:%d", uid, gid), func(path string) error { return unix.Lchown(path, uid, gid) })
	case n < 93:
		return simple("truncate", func(path string) error { return unix.Truncate(path, at) })
	case n < 96:
		return on("list", func(p *program) { list(p, p.at(a)) })
	}
	return on("stat", func(p *program) {
		var st unix.Stat_t
		err := unix.Stat(p.at(a), &st)
		p.did("stat", err, attributes(&st))
		err = unix.Lstat(p.at(b), &st)
		p.did("lstat", err, attributes(&st))
	})
}

// create opens a file and keeps it open on both sides.
func (w *wanderer) create(path string, mode uint32, oracle string) (text string, do func(p *program, side int)) {
	const most = 8
	if len(w.open) == most {
		w.close()
	}
	var fds [2]int
	return fmt.Sprintf("%s: open of %s, mode %04o", w.who.name, path, mode), func(p *program, side int) {
		fd, err := unix.Open(p.at(path), unix.O_RDWR|unix.O_CREAT|unix.O_CLOEXEC|unix.O_NONBLOCK, mode)
		p.did("open", err)
		if err != nil {
			return
		}
		var st unix.Stat_t
		if unix.Fstat(fd, &st) != nil || st.Mode&unix.S_IFMT != unix.S_IFREG {
			unix.Close(fd)
			return
		}
		p.stat(fd)
		if fds[side] = fd; side == 0 {
			w.open = append(w.open, held{fds, w.who, st.Ino})
		} else if n := len(w.open); n > 0 {
			w.open[n-1].fd = fds
		}
	}
}

// pattern returns bytes that identify their position.
func pattern(size int, at int64) []byte {
	b := make([]byte, size)
	for i := range b {
		b[i] = byte('a' + (int64(i)+at)%26)
	}
	return b
}
