package posixtest

import (
	"fmt"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// call is a row of the table: a system call on a path.
type call struct {
	name    string
	do      func(p *program, path string)
	prepare func(m *maker) // creates what it needs in addition to the object
}

// stat reports the attributes of a descriptor.
func (p *program) stat(fd int) {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		p.did("fstat", err)
		return
	}
	p.did("fstat", nil, attributes(&st))
}

// read reports the data at an offset.
func (p *program) read(fd, size int, off int64) {
	b := make([]byte, size)
	n, err := unix.Pread(fd, b, off)
	if err != nil {
		n = 0
	}
	p.did("read", err, fmt.Sprintf("%q", b[:n]))
}

// opening opens the object, and reports what can be done with it.
func opening(name string, flags int, mode uint32) call {
	return call{name: "open " + name, do: func(p *program, path string) {
		// Non-blocking: it may be a fifo.
		fd, err := unix.Open(path, flags|unix.O_NONBLOCK|unix.O_CLOEXEC, mode)
		p.did("open", err)
		if err != nil {
			return
		}
		p.stat(fd)
		if flags&unix.O_PATH == 0 {
			p.read(fd, 32, 0)
			n, err := unix.Write(fd, []byte("ab"))
			p.did("write", err, n)
			p.stat(fd)
		}
		p.did("close", unix.Close(fd))
	}}
}

// simple returns a call with a path as its argument.
func simple(name string, f func(path string) error) call {
	return call{name: name, do: func(p *program, path string) { p.did(name, f(path)) }}
}

// looking returns a call that also has a result.
func looking(name string, f func(path string) (string, error)) call {
	return call{name: name, do: func(p *program, path string) {
		s, err := f(path)
		p.did(name, err, s)
	}}
}

// with adds what a call needs.
func (c call) with(f func(m *maker)) call {
	c.prepare = f
	return c
}

// between returns a call with the object and "other", or the reverse.
func between(name, other string, f func(a, b string) error) call {
	return call{name: name, do: func(p *program, path string) { p.did(name, f(path, p.at(other))) }}
}

func otherFile(m *maker) { m.file("other", ownerID, 0o644) }
func otherDir(m *maker)  { m.mkdir("other", ownerID, 0o755) }
func otherFull(m *maker) { m.full("other", ownerID, 0o755) }

// A second different from now.
const someTime = 1234567890

// spec returns a time with the field types of the processor. Some values of nsec are not nanoseconds, see utimensat(2).
func spec(sec, nsec int64) (ts unix.Timespec) {
	set(&ts.Sec, sec)
	set(&ts.Nsec, nsec)
	return ts
}

func set[T int32 | int64](to *T, v int64) { *to = T(v) }

func utimes(name string, a, m unix.Timespec, flags int) call {
	return call{name: "utimensat " + name, do: func(p *program, path string) {
		p.did("utimensat", unix.UtimesNanoAt(unix.AT_FDCWD, path, []unix.Timespec{a, m}, flags))
		var st unix.Stat_t
		if flags&unix.AT_SYMLINK_NOFOLLOW != 0 {
			p.did("lstat", unix.Lstat(path, &st))
		} else {
			p.did("stat", unix.Stat(path, &st))
		}
		for _, t := range []unix.Timespec{st.Atim, st.Mtim} {
			if t.Sec < someTime+100_000 { // a time that was set
				p.say("%d.%09d", t.Sec, t.Nsec)
			}
		}
	}}
}

// list reports the sorted names in a directory.
func list(p *program, path string) {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	p.did("opendir", err)
	if err != nil {
		return
	}
	defer unix.Close(fd)
	names, err := readAll(fd)
	names = slices.DeleteFunc(names, func(name string) bool { return strings.HasPrefix(name, silly) })
	p.did("readdir", err, strings.Join(sorted(names), ","))
}

// calls returns the rows of the table.
func calls() []call {
	omit, now := spec(0, unix.UTIME_OMIT), spec(0, unix.UTIME_NOW)
	some := func(nsec int64) unix.Timespec { return spec(someTime, nsec) }
	chown := func(uid, gid int) func(string) error {
		return func(path string) error { return unix.Chown(path, uid, gid) }
	}
	chmod := func(mode uint32) func(string) error {
		return func(path string) error { return unix.Chmod(path, mode) }
	}
	truncate := func(size int64) func(string) error {
		return func(path string) error { return unix.Truncate(path, size) }
	}
	access := func(mode uint32) func(string) error {
		return func(path string) error { return unix.Access(path, mode) }
	}
	status := func(stat func(string, *unix.Stat_t) error) func(string) (string, error) {
		return func(path string) (string, error) {
			var st unix.Stat_t
			err := stat(path, &st)
			return attributes(&st), err
		}
	}
	renameTo := func(a, b string) error { return unix.Rename(b, a) }
	linkTo := func(a, b string) error { return unix.Link(b, a) }
	return []call{
		opening("O_RDONLY", unix.O_RDONLY, 0),
		opening("O_WRONLY", unix.O_WRONLY, 0),
		opening("O_RDWR", unix.O_RDWR, 0),
		opening("O_WRONLY O_TRUNC", unix.O_WRONLY|unix.O_TRUNC, 0),
		opening("O_WRONLY O_APPEND", unix.O_WRONLY|unix.O_APPEND, 0),
		opening("O_RDWR O_CREAT", unix.O_RDWR|unix.O_CREAT, 0o644),
		opening("O_RDWR O_CREAT closed", unix.O_RDWR|unix.O_CREAT, 0),
		opening("O_WRONLY O_CREAT O_EXCL", unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL, 0o666),
		opening("O_WRONLY O_CREAT O_EXCL setuid", unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL, 0o4755),
		opening("O_RDWR O_CREAT O_TRUNC", unix.O_RDWR|unix.O_CREAT|unix.O_TRUNC, 0o600),
		opening("O_RDONLY O_DIRECTORY", unix.O_RDONLY|unix.O_DIRECTORY, 0),
		opening("O_RDWR O_NOFOLLOW", unix.O_RDWR|unix.O_NOFOLLOW, 0),
		opening("O_RDONLY O_CREAT", unix.O_RDONLY|unix.O_CREAT, 0o644),
		opening("O_PATH", unix.O_PATH, 0),
		simple("mkdir", func(path string) error { return unix.Mkdir(path, 0o777) }),
		simple("mkdir setgid sticky", func(path string) error { return unix.Mkdir(path, 0o3755) }),
		simple("rmdir", unix.Rmdir),
		simple("unlink", unix.Unlink),
		looking("stat", status(unix.Stat)),
		looking("lstat", status(unix.Lstat)),
		looking("readlink", func(path string) (string, error) {
			b := make([]byte, 5000)
			n, err := unix.Readlink(path, b)
			return string(b[:max(n, 0)]), err
		}),
		{name: "readdir", do: list},
		simple("chmod 0", chmod(0)),
		simple("chmod 0640", chmod(0o640)),
		simple("chmod 04755", chmod(0o4755)),
		simple("chmod 02775", chmod(0o2775)),
		simple("chmod 01777", chmod(0o1777)),
		simple("chown to nobody", chown(-1, -1)),
		simple("chown owner", chown(ownerID, -1)),
		simple("chown other", chown(otherID, otherID)),
		simple("chown group", chown(-1, groupID)),
		simple("lchown", func(path string) error { return unix.Lchown(path, otherID, groupID) }),
		simple("truncate 0", truncate(0)),
		simple("truncate 5", truncate(5)),
		simple("truncate 100000", truncate(100_000)),
		simple("truncate -1", truncate(-1)),
		utimes("now", now, now, 0),
		utimes("set", some(987654321), some(123456789), 0),
		utimes("omit both", omit, omit, 0),
		utimes("omit atime", omit, some(1), 0),
		utimes("omit mtime", some(999999999), omit, 0),
		utimes("set, now", some(0), now, 0),
		utimes("set the link's", some(5), some(6), unix.AT_SYMLINK_NOFOLLOW),
		utimes("of no second", some(1_000_000_000), now, 0),
		simple("access F_OK", access(unix.F_OK)),
		simple("access R_OK", access(unix.R_OK)),
		simple("access W_OK", access(unix.W_OK)),
		simple("access X_OK", access(unix.X_OK)),
		simple("mkfifo", func(path string) error { return unix.Mkfifo(path, 0o666) }),
		simple("mknod file", func(path string) error { return unix.Mknod(path, unix.S_IFREG|0o4755, 0) }),
		simple("mknod socket", func(path string) error { return unix.Mknod(path, unix.S_IFSOCK|0o777, 0) }),
		simple("mknod device", func(path string) error {
			return unix.Mknod(path, unix.S_IFBLK|0o660, int(unix.Mkdev(259, 65537)))
		}),
		simple("symlink", func(path string) error { return unix.Symlink("to/some/where", path) }),
		between("link from", "other", unix.Link),
		between("link from, following", "other", func(a, b string) error {
			return unix.Linkat(unix.AT_FDCWD, a, unix.AT_FDCWD, b, unix.AT_SYMLINK_FOLLOW)
		}),
		between("link to", "other", linkTo).with(otherFile),
		between("link a directory to", "other", linkTo).with(otherDir),
		between("rename from", "other", unix.Rename),
		between("rename over a file", "other", unix.Rename).with(otherFile),
		between("rename over a directory", "other", unix.Rename).with(otherDir),
		between("rename over a full directory", "other", unix.Rename).with(otherFull),
		between("rename into a directory", "other/y", unix.Rename).with(otherFull),
		between("rename over root's file", "other", unix.Rename).with(func(m *maker) { m.file("other", 0, 0o600) }),
		between("rename a file to", "other", renameTo).with(otherFile),
		between("rename a directory to", "other", renameTo).with(otherDir),
		between("rename a full directory to", "other", renameTo).with(otherFull),
		{name: "rename to itself", do: func(p *program, path string) { p.did("rename", unix.Rename(path, path)) }},
		{name: "rename into itself", do: func(p *program, path string) { p.did("rename", unix.Rename(path, path+"/in")) }},
		looking("statfs", func(path string) (string, error) {
			var st unix.Statfs_t
			err := unix.Statfs(path, &st)
			return fmt.Sprint(st.Namelen), err
		}),
	}
}

// table returns all checks: every call on every object, with users in turn, and those with several calls.
func table(people *people) (list []*check) {
	users := []*user{people.owner, people.other, people.root, people.member}
	for i, c := range calls() {
		for j, o := range objects() {
			who := users[(i+j)%len(users)]
			list = append(list, &check{
				name: c.name + " / " + o.name + " / " + who.name, who: who, umask: 0o022, times: true,
				prepare: func(dir string) {
					m := &maker{dir: dir, alone: people.alone}
					if o.prepare != nil {
						o.prepare(m)
					}
					if c.prepare != nil {
						c.prepare(m)
					}
				},
				do: func(p *program) { c.do(p, p.at(o.path)) },
			})
		}
	}
	return append(list, stories(people)...)
}
