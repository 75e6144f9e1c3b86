package posixtest

import (
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// object is found at a path by a system call of the table.
type object struct {
	name    string
	path    string
	prepare func(m *maker)
}

// maker creates what a check finds. It ends the preparation at the first error.
type maker struct {
	dir   string
	alone bool // the only user owns the files
}

func (m *maker) at(name string) string { return m.dir + "/" + name }

// set sets owner and mode.
func (m *maker) set(name string, id int, mode uint32) {
	if !m.alone {
		must(unix.Lchown(m.at(name), id, id))
	}
	must(unix.Chmod(m.at(name), mode))
}

func (m *maker) file(name string, id int, mode uint32) {
	must(os.WriteFile(m.at(name), []byte("hello, world"), 0o600))
	m.set(name, id, mode)
}

func (m *maker) mkdir(name string, id int, mode uint32) {
	must(unix.Mkdir(m.at(name), 0o700))
	m.set(name, id, mode)
}

// full creates a directory with a file in it.
func (m *maker) full(name string, id int, mode uint32) {
	must(unix.Mkdir(m.at(name), 0o700))
	m.file(name+"/x", id, 0o644)
	m.set(name, id, mode)
}

func (m *maker) link(name, target string) {
	must(unix.Symlink(target, m.at(name)))
	if !m.alone {
		must(unix.Lchown(m.at(name), ownerID, ownerID))
	}
}

func (m *maker) node(name string, mode uint32, dev uint64, id int) {
	must(unix.Mknod(m.at(name), mode, int(dev)))
	m.set(name, id, mode&0o7777)
}

// objects are the columns of the table.
func objects() []object {
	file := func(name string, id int, mode uint32) object {
		return object{name, "x", func(m *maker) { m.file("x", id, mode) }}
	}
	within := func(name, path string, id int, mode uint32) object {
		return object{name, path, func(m *maker) { m.full("x", id, mode) }}
	}
	link := func(name, path, target string) object {
		return object{name, path, func(m *maker) {
			m.file("file", ownerID, 0o644)
			m.full("dir", ownerID, 0o755)
			m.link("x", target)
		}}
	}
	long := strings.Repeat("n", 255)
	return []object{
		{"missing", "x", nil},
		file("file", ownerID, 0o644),
		file("read-only file", ownerID, 0o444),
		file("write-only file", ownerID, 0o222),
		file("closed file", ownerID, 0),
		file("group's file", ownerID, 0o060),
		file("others' file", ownerID, 0o006),
		file("file for all", ownerID, 0o666),
		file("program", ownerID, 0o711),
		file("setuid program", ownerID, 0o6777),
		file("sticky file", ownerID, 0o1666),
		file("root's file", 0, 0o644),
		{"empty file", "x", func(m *maker) {
			must(os.WriteFile(m.at("x"), nil, 0o600))
			m.set("x", ownerID, 0o644)
		}},
		{"file with two names", "x", func(m *maker) {
			m.file("x", ownerID, 0o644)
			must(unix.Link(m.at("x"), m.at("y")))
		}},
		{"directory", "x", func(m *maker) { m.mkdir("x", ownerID, 0o755) }},
		{"directory and slash", "x/", func(m *maker) { m.mkdir("x", ownerID, 0o755) }},
		{"root's directory", "x", func(m *maker) { m.mkdir("x", 0, 0o755) }},
		within("full directory", "x", ownerID, 0o755),
		within("closed directory", "x", ownerID, 0),
		within("setgid directory", "x", ownerID, 0o2775),
		within("sticky directory", "x", ownerID, 0o1777),
		within("in closed directory", "x/x", ownerID, 0),
		within("missing in closed directory", "x/y", ownerID, 0),
		within("in directory not to enter", "x/x", ownerID, 0o644),
		within("in directory not to read", "x/x", ownerID, 0o333),
		within("in directory not to write", "x/x", ownerID, 0o555),
		within("missing in directory not to write", "x/y", ownerID, 0o555),
		within("in sticky directory", "x/x", ownerID, 0o1777),
		within("in root's sticky directory", "x/x", 0, 0o1777),
		within("missing in sticky directory", "x/y", ownerID, 0o1777),
		within("missing in setgid directory", "x/y", ownerID, 0o2777),
		within("in setgid directory", "x/x", ownerID, 0o2775),
		within("dot", "x/.", ownerID, 0o755),
		within("dot dot", "x/..", ownerID, 0o755),
		{"file and slash", "x/", func(m *maker) { m.file("x", ownerID, 0o644) }},
		{"below a file", "x/x", func(m *maker) { m.file("x", ownerID, 0o644) }},
		{"below nothing", "x/x", nil},
		{"missing and slash", "x/", nil},
		{"no path", "", nil},
		link("link to a file", "x", "file"),
		link("link to a file and slash", "x/", "file"),
		link("link to a directory", "x", "dir"),
		link("link to a directory and slash", "x/", "dir"),
		link("below a link", "x/x", "dir"),
		link("link to nothing", "x", "missing"),
		link("link to itself", "x", "x"),
		link("below a link to itself", "x/x", "x"),
		link("link above", "x", "../"),
		{"long chain of links", "x", func(m *maker) {
			m.file("0", ownerID, 0o644)
			for i := range 41 {
				m.link(string(rune('A'+i)), "0")
			}
			last := "0"
			for i := range 41 {
				must(os.Remove(m.at(string(rune('A' + i)))))
				m.link(string(rune('A'+i)), last)
				last = string(rune('A' + i))
			}
			m.link("x", last)
		}},
		{"fifo", "x", func(m *maker) { m.node("x", unix.S_IFIFO|0o644, 0, ownerID) }},
		{"socket", "x", func(m *maker) { m.node("x", unix.S_IFSOCK|0o644, 0, ownerID) }},
		{"device", "x", func(m *maker) {
			if m.alone {
				m.file("x", ownerID, 0o666)
				return
			}
			m.node("x", unix.S_IFCHR|0o666, unix.Mkdev(1, 3), ownerID) // null
		}},
		{"long name", long, func(m *maker) { m.file(long, ownerID, 0o644) }},
		{"missing long name", long, nil},
		{"too long name", long + "n", nil},
		{"below a too long name", long + "n/x", nil},
		{"too long path", strings.Repeat("x/", 2050) + "x", nil},
		{"name of odd bytes", "\x01 \n\xff\xfe*\\", func(m *maker) { m.file("\x01 \n\xff\xfe*\\", ownerID, 0o644) }},
	}
}
