package posixtest

import (
	"crypto/sha256"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// tree holds everything in a directory, sorted, starting with the directory itself.
type tree []entry

type entry struct {
	path    string // relative to the top
	st      unix.Stat_t
	target  string
	content string // of a file, if read
	err     error
}

// silly is the prefix of names that the NFS client gives to files removed while they are open.
const silly = ".nfs"

// walk reads a tree: attributes, targets of links, and with content the contents of files.
func walk(top string, content bool) (t tree) {
	var visit func(path string)
	visit = func(path string) {
		e := entry{path: path}
		at := filepath.Join(top, path)
		if e.err = unix.Lstat(at, &e.st); e.err != nil {
			t = append(t, e)
			return
		}
		switch e.st.Mode & unix.S_IFMT {
		case unix.S_IFLNK:
			e.target, e.err = os.Readlink(at)
		case unix.S_IFREG:
			if content {
				e.content = contents(at)
			}
		}
		t = append(t, e)
		if e.st.Mode&unix.S_IFMT != unix.S_IFDIR {
			return
		}
		list, err := os.ReadDir(at)
		if err != nil {
			t[len(t)-1].err = err
		}
		for _, d := range list {
			if !strings.HasPrefix(d.Name(), silly) {
				visit(filepath.Join(path, d.Name()))
			}
		}
	}
	visit(".")
	return t
}

// contents returns the contents of a file, or the reason why it cannot be read.
func contents(path string) string {
	b, err := os.ReadFile(path)
	if err != nil {
		return why(err)
	}
	sum := sha256.Sum256(b)
	return fmt.Sprintf("%d bytes %x", len(b), sum[:4])
}

func (t tree) join(f func(e *entry) string) string {
	list := make([]string, len(t))
	for i := range t {
		e := &t[i]
		path := e.path
		if len(path) > 40 {
			path = fmt.Sprintf("%.20s...%d", path, len(path))
		}
		list[i] = path + " " + f(e)
	}
	return strings.Join(list, "; ")
}

// String describes everything but times.
func (t tree) String() string {
	return t.join(func(e *entry) string {
		s := attributes(&e.st)
		if e.target != "" {
			s += fmt.Sprintf(" -> %.40q", e.target)
		}
		if e.err != nil {
			s += " " + why(e.err)
		}
		return s
	})
}

func why(err error) string {
	if path, ok := err.(*os.PathError); ok {
		err = path.Err
	}
	return errorName(err)
}

// attributes returns the attributes that do not depend on when and where a file was created.
func attributes(st *unix.Stat_t) string {
	s := fmt.Sprintf("%06o n%d %d:%d", st.Mode, st.Nlink, st.Uid, st.Gid)
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFREG, unix.S_IFLNK:
		s += fmt.Sprintf(" %dB", st.Size)
	case unix.S_IFCHR, unix.S_IFBLK:
		s += fmt.Sprintf(" %d,%d", unix.Major(st.Rdev), unix.Minor(st.Rdev))
	}
	return s
}

// exactly returns what must be the same for a client and its server.
func (t tree) exactly() string {
	return t.join(func(e *entry) string {
		st := &e.st
		s := fmt.Sprintf("i%d %s m%d.%09d c%d.%09d", st.Ino, attributes(st), st.Mtim.Sec, st.Mtim.Nsec, st.Ctim.Sec, st.Ctim.Nsec)
		// Attributes of directories and links change when they are looked at, those of files when their contents are
		// read under another name.
		if st.Mode&unix.S_IFMT == unix.S_IFREG && st.Nlink == 1 {
			s += fmt.Sprintf(" a%d.%09d", st.Atim.Sec, st.Atim.Nsec)
		}
		return s
	})
}

// since returns which times differ from before, and for new objects whether their times are current.
func (t tree) since(was tree) string {
	before := make(map[uint64]*entry)
	for i := range was {
		before[was[i].st.Ino] = &was[i]
	}
	now := time.Now().Unix()
	return t.join(func(e *entry) string {
		b := before[e.st.Ino]
		if b == nil {
			for _, at := range []unix.Timespec{e.st.Atim, e.st.Mtim, e.st.Ctim} {
				if sec, _ := at.Unix(); sec < now-600 || sec > now+1 {
					return "new, but not of now"
				}
			}
			return "new"
		}
		s := ""
		for _, c := range []struct {
			name     string
			old, new unix.Timespec
		}{{"a", b.st.Atim, e.st.Atim}, {"m", b.st.Mtim, e.st.Mtim}, {"c", b.st.Ctim, e.st.Ctim}} {
			if c.name == "a" && (e.st.Mode&unix.S_IFMT != unix.S_IFREG || e.st.Nlink > 1) {
				continue
			}
			if c.old != c.new {
				s += c.name
			}
		}
		if s == "" {
			s = "-"
		}
		return s
	})
}

// contents returns the contents of the files.
func (t tree) contents() string {
	return t.join(func(e *entry) string { return e.content })
}
