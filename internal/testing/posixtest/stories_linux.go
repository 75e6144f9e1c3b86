package posixtest

import (
	"fmt"
	"math"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// stories returns checks that consist of several calls.
func stories(p *people) (list []*check) {
	add := func(name string, who *user, umask int, prepare func(m *maker), do func(p *program)) {
		list = append(list, &check{
			name: name + " / " + who.name, who: who, umask: umask, do: do,
			prepare: func(dir string) {
				if prepare != nil {
					prepare(&maker{dir: dir, alone: p.alone})
				}
			},
		})
	}
	newModes(p, add)
	ownership(p, add)
	links(p, add)
	first := len(list)
	openFiles(p, add)
	for _, c := range list[first:] {
		c.busy = true
	}
	offsets(p, add)
	names(p, add)
	return list
}

type adder func(name string, who *user, umask int, prepare func(m *maker), do func(p *program))

// newModes checks the modes of new objects, for each umask, in plain and setgid directories.
func newModes(p *people, add adder) {
	for _, umask := range []int{0, 0o022, 0o077, 0o777} {
		for _, mode := range []uint32{0o666, 0o777, 0o4755, 0o2755, 0o1777, 0} {
			for _, dir := range []string{".", "setgid"} {
				for _, who := range []*user{p.owner, p.other, p.root} {
					add(fmt.Sprintf("new in %s umask %03o mode %04o", dir, umask, mode), who, umask, func(m *maker) {
						m.mkdir("setgid", ownerID, 0o2777)
					}, func(p *program) {
						fd, err := unix.Open(p.at(dir+"/file"), unix.O_CREAT|unix.O_RDWR|unix.O_CLOEXEC, mode)
						p.did("open", err)
						if err == nil {
							p.stat(fd)
							n, err := unix.Write(fd, []byte("x")) // whatever the mode
							p.did("write", err, n)
							p.read(fd, 4, 0)
							p.did("close", unix.Close(fd))
						}
						p.did("mkdir", unix.Mkdir(p.at(dir+"/dir"), mode))
						p.did("mkfifo", unix.Mkfifo(p.at(dir+"/fifo"), mode))
						p.did("symlink", unix.Symlink("file", p.at(dir+"/link")))
					})
				}
			}
		}
	}
}

// ownership checks who may give what to whom, and which mode bits that clears.
func ownership(p *people, add adder) {
	file := func(mode uint32) func(m *maker) { return func(m *maker) { m.file("x", ownerID, mode) } }
	everybody := []*user{p.root, p.owner, p.member, p.other}
	for _, who := range everybody {
		for _, id := range []struct{ uid, gid int }{
			{-1, ownerID}, {-1, groupID}, {-1, otherID}, {ownerID, groupID}, {otherID, -1}, {0, 0}, {memberID, ownerID}, {-1, -1},
		} {
			for _, mode := range []uint32{0o755, 0o6755, 0o2745} {
				add(fmt.Sprintf("chown %d:%d of mode %04o", id.uid, id.gid, mode), who, 0o022, file(mode), func(p *program) {
					p.did("chown", unix.Chown(p.at("x"), id.uid, id.gid))
				})
			}
		}
		for _, mode := range []uint32{0o4755, 0o2755, 0o6777, 0o1777, 0o2644} {
			add(fmt.Sprintf("chmod of a group's file to %04o", mode), who, 0o022, func(m *maker) {
				m.file("x", ownerID, 0o644)
				m.mkdir("d", ownerID, 0o755)
				if !m.alone {
					must(unix.Chown(m.at("x"), ownerID, otherID)) // the owner is not a member
					must(unix.Chown(m.at("d"), ownerID, otherID))
				}
			}, func(p *program) {
				p.did("chmod", unix.Chmod(p.at("x"), mode))
				p.did("chmod", unix.Chmod(p.at("d"), mode))
			})
		}
		for _, mode := range []uint32{0o4777, 0o2777, 0o6777, 0o2767} {
			add(fmt.Sprintf("write to a file of mode %04o", mode), who, 0o022, file(mode), func(p *program) {
				fd, err := unix.Open(p.at("x"), unix.O_RDWR|unix.O_CLOEXEC, 0)
				p.did("open", err)
				if err == nil {
					n, err := unix.Pwrite(fd, []byte("new"), 3)
					p.did("write", err, n)
					p.did("close", unix.Close(fd))
				}
			})
			add(fmt.Sprintf("truncate a file of mode %04o", mode), who, 0o022, file(mode), func(p *program) {
				p.did("truncate", unix.Truncate(p.at("x"), 2))
			})
		}
		for _, mode := range []uint32{0o640, 0o460, 0o604, 0o004, 0o040, 0o400, 0o751, 0o077} {
			add(fmt.Sprintf("use of a file of mode %04o", mode), who, 0o022, file(mode), func(p *program) {
				for _, flags := range []int{unix.O_RDONLY, unix.O_WRONLY, unix.O_RDWR} {
					fd, err := unix.Open(p.at("x"), flags|unix.O_CLOEXEC, 0)
					p.did("open", err)
					if err == nil {
						p.read(fd, 8, 0)
						p.did("close", unix.Close(fd))
					}
				}
				for want := range uint32(8) {
					p.did("access", unix.Access(p.at("x"), want))
				}
			})
			add(fmt.Sprintf("use of a directory of mode %04o", mode), who, 0o022, func(m *maker) { m.full("x", ownerID, mode) }, func(p *program) {
				list(p, p.at("x"))
				var st unix.Stat_t
				p.did("stat", unix.Stat(p.at("x/x"), &st))
				p.did("mkdir", unix.Mkdir(p.at("x/y"), 0o755))
				p.did("rename", unix.Rename(p.at("x/x"), p.at("x/z")))
				p.did("unlink", unix.Unlink(p.at("x/z")))
				for want := range uint32(8) {
					p.did("access", unix.Access(p.at("x"), want))
				}
			})
		}
		add("rename of a directory that is not to write", who, 0o022, func(m *maker) {
			m.full("x", ownerID, 0o555)
			m.mkdir("to", ownerID, 0o777)
		}, func(p *program) {
			p.did("rename", unix.Rename(p.at("x"), p.at("y"))) // ".." is unchanged
			p.did("rename", unix.Rename(p.at("y"), p.at("to/y")))
		})
	}
}

// links checks the number of links.
func links(p *people, add adder) {
	nlink := func(p *program, name string) {
		var st unix.Stat_t
		err := unix.Lstat(p.at(name), &st)
		p.did("lstat", err, fmt.Sprint(name, " has ", st.Nlink))
	}
	add("links of directories", p.owner, 0, nil, func(p *program) {
		for _, d := range []string{"a", "a/b", "a/c", "a/c/d", "e"} {
			p.did("mkdir", unix.Mkdir(p.at(d), 0o777))
			nlink(p, ".")
			nlink(p, "a")
		}
		p.did("rename", unix.Rename(p.at("a/c"), p.at("e/c")))
		nlink(p, "a")
		nlink(p, "e")
		p.did("rename", unix.Rename(p.at("a/b"), p.at("e/c/d"))) // replaces an empty one
		nlink(p, "a")
		nlink(p, "e/c")
		p.did("rmdir", unix.Rmdir(p.at("e/c")))
		p.did("rmdir", unix.Rmdir(p.at("e/c/d")))
		p.did("rmdir", unix.Rmdir(p.at("e/c")))
		nlink(p, "e")
		p.did("rename up", unix.Rename(p.at("a"), p.at("e/a")))
		p.did("rename", unix.Rename(p.at("e"), p.at("e/a/e")))
		nlink(p, ".")
	})
	add("names of a file", p.owner, 0, func(m *maker) { m.file("0", ownerID, 0o644) }, func(p *program) {
		for i := range 40 {
			p.did("link", unix.Link(p.at("0"), p.at(fmt.Sprint(i+1))))
			nlink(p, fmt.Sprint(i/2))
		}
		p.did("rename to the same", unix.Rename(p.at("1"), p.at("2")))
		for i := range 20 {
			p.did("unlink", unix.Unlink(p.at(fmt.Sprint(2*i))))
			nlink(p, fmt.Sprint(2*i+1))
		}
		p.did("chmod", unix.Chmod(p.at("1"), 0o600))
		p.did("truncate", unix.Truncate(p.at("3"), 3))
	})
	for _, target := range []string{"x", strings.Repeat("t", 255), strings.Repeat("t/", 500), strings.Repeat("u", 4095), strings.Repeat("v", 4096), "", "\xff\x01 \n"} {
		add(fmt.Sprintf("symlink of %d bytes", len(target)), p.owner, 0o022, nil, func(p *program) {
			p.did("symlink", unix.Symlink(target, p.at("l")))
			b := make([]byte, 5000)
			n, err := unix.Readlink(p.at("l"), b)
			p.did("readlink", err, n, string(b[:max(n, 0)]) == target)
			n, err = unix.Readlink(p.at("l"), b[:1])
			p.did("readlink", err, n)
			p.did("link", unix.Link(p.at("l"), p.at("m")))
			p.did("rename", unix.Rename(p.at("l"), p.at("n")))
		})
	}
	for _, kind := range []string{"fifo", "socket", "symlink", "file"} {
		add("links of a "+kind, p.owner, 0o022, func(m *maker) {
			switch kind {
			case "fifo":
				m.node("x", unix.S_IFIFO|0o644, 0, ownerID)
			case "socket":
				m.node("x", unix.S_IFSOCK|0o644, 0, ownerID)
			case "symlink":
				m.link("x", "nowhere")
			default:
				m.file("x", ownerID, 0o644)
			}
		}, func(p *program) {
			p.did("link", unix.Link(p.at("x"), p.at("y")))
			nlink(p, "x")
			p.did("rename", unix.Rename(p.at("x"), p.at("z")))
			p.did("unlink", unix.Unlink(p.at("y")))
			nlink(p, "z")
		})
	}
}

// opened opens a file that must exist.
func (p *program) opened(name string, flags int) int {
	fd, err := unix.Open(p.at(name), flags|unix.O_CLOEXEC, 0o644)
	p.did("open", err)
	return fd
}

// openFiles checks operations on open files.
func openFiles(p *people, add adder) {
	file := func(m *maker) { m.file("x", ownerID, 0o644) }
	both := func(m *maker) {
		m.file("x", ownerID, 0o644)
		m.file("y", ownerID, 0o644)
	}
	use := func(p *program, fd int) {
		p.read(fd, 20, 0)
		n, err := unix.Pwrite(fd, []byte("still here"), 6)
		p.did("write", err, n)
		p.did("fsync", unix.Fsync(fd))
		p.read(fd, 20, 0)
		p.did("ftruncate", unix.Ftruncate(fd, 8))
		p.read(fd, 20, 0)
	}
	for _, how := range []struct {
		name    string
		prepare func(m *maker)
		do      func(p *program)
	}{
		{"unlinked", file, func(p *program) { p.did("unlink", unix.Unlink(p.at("x"))) }},
		{"renamed", file, func(p *program) { p.did("rename", unix.Rename(p.at("x"), p.at("z"))) }},
		{"replaced", both, func(p *program) { p.did("rename", unix.Rename(p.at("y"), p.at("x"))) }},
		{"renamed and unlinked", file, func(p *program) {
			p.did("rename", unix.Rename(p.at("x"), p.at("z")))
			p.did("unlink", unix.Unlink(p.at("z")))
		}},
		{"linked and unlinked", file, func(p *program) {
			p.did("link", unix.Link(p.at("x"), p.at("z")))
			p.did("unlink", unix.Unlink(p.at("x")))
		}},
		{"closed to its owner", file, func(p *program) { p.did("chmod", unix.Chmod(p.at("x"), 0)) }},
		{"unlinked and made again", file, func(p *program) {
			p.did("unlink", unix.Unlink(p.at("x")))
			fd := p.opened("x", unix.O_CREAT|unix.O_EXCL|unix.O_WRONLY)
			n, err := unix.Write(fd, []byte("another"))
			p.did("write", err, n)
			p.did("close", unix.Close(fd))
		}},
		{"in a directory that is renamed", func(m *maker) { m.full("d", ownerID, 0o755); must(unix.Link(m.at("d/x"), m.at("x"))) }, func(p *program) {
			p.did("rename", unix.Rename(p.at("d"), p.at("e")))
			p.did("unlink", unix.Unlink(p.at("e/x")))
		}},
	} {
		for _, who := range []*user{p.owner, p.root} {
			add("open file is "+how.name, who, 0o022, how.prepare, func(p *program) {
				fd := p.opened("x", unix.O_RDWR)
				p.read(fd, 5, 0)
				how.do(p)
				use(p, fd)
				p.did("close", unix.Close(fd))
				list(p, p.at("."))
			})
		}
	}
	add("open directory is removed", p.owner, 0o022, func(m *maker) { m.mkdir("d", ownerID, 0o755) }, func(p *program) {
		fd := p.opened("d", unix.O_RDONLY|unix.O_DIRECTORY)
		p.did("rmdir", unix.Rmdir(p.at("d")))
		_, err := unix.Openat(fd, "x", unix.O_CREAT|unix.O_RDWR|unix.O_CLOEXEC, 0o644)
		p.did("openat", err)
		p.did("close", unix.Close(fd))
	})
	add("two descriptors that append", p.owner, 0o022, file, func(p *program) {
		a, b := p.opened("x", unix.O_RDWR|unix.O_APPEND), p.opened("x", unix.O_RDWR|unix.O_APPEND)
		for i := range 6 {
			n, err := unix.Write([]int{a, b}[i%2], fmt.Appendf(nil, "line %d\n", i))
			p.did("write", err, n)
		}
		p.read(a, 100, 0)
		p.did("close", unix.Close(a))
		p.did("close", unix.Close(b))
	})
	add("mapped", p.owner, 0o022, file, func(p *program) {
		fd := p.opened("x", unix.O_RDWR)
		p.did("ftruncate", unix.Ftruncate(fd, 10_000))
		b, err := unix.Mmap(fd, 0, 10_000, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
		p.did("mmap", err)
		if err == nil {
			copy(b[5000:], "from memory")
			p.did("msync", unix.Msync(b, unix.MS_SYNC))
			p.read(fd, 12, 5000)
			n, err := unix.Pwrite(fd, []byte("from a call"), 9000)
			p.did("write", err, n)
			p.say("%q", b[9000:9012])
			p.did("munmap", unix.Munmap(b))
		}
		p.did("close", unix.Close(fd))
	})
}

// offsets checks the limits of file offsets.
func offsets(p *people, add adder) {
	empty := func(m *maker) {
		must(os.WriteFile(m.at("x"), nil, 0o600))
		m.set("x", ownerID, 0o644)
	}
	for _, off := range []int64{1, 4095, 4096, 65_536, 1 << 20, 1<<31 - 1, 1 << 32, 1 << 40, -1, math.MaxInt64 - 1, math.MaxInt64} {
		add(fmt.Sprintf("write at %d", off), p.owner, 0o022, empty, func(p *program) {
			fd := p.opened("x", unix.O_RDWR)
			n, err := unix.Pwrite(fd, []byte("end"), off)
			p.did("write", err, n)
			p.stat(fd)
			p.read(fd, 8, off-3)
			p.read(fd, 8, off+1)
			p.did("ftruncate", unix.Ftruncate(fd, min(max(off, 1)-1, 1<<16)))
			p.did("close", unix.Close(fd))
		})
		add(fmt.Sprintf("truncate to %d", off), p.owner, 0o022, empty, func(p *program) {
			p.did("truncate", unix.Truncate(p.at("x"), off))
			var st unix.Stat_t
			p.did("stat", unix.Stat(p.at("x"), &st), st.Size)
			p.did("truncate", unix.Truncate(p.at("x"), 7))
		})
	}
	add("seek", p.owner, 0o022, func(m *maker) { m.file("x", ownerID, 0o644) }, func(p *program) {
		fd := p.opened("x", unix.O_RDWR)
		for _, whence := range []int{unix.SEEK_SET, unix.SEEK_CUR, unix.SEEK_END} {
			for _, off := range []int64{0, 4, -2, -100, 100} {
				at, err := unix.Seek(fd, off, whence)
				p.did("seek", err, at)
			}
		}
		n, err := unix.Write(fd, []byte("behind a hole"))
		p.did("write", err, n)
		p.read(fd, 300, 0)
		p.did("close", unix.Close(fd))
	})
	for _, size := range []int{1, 4095, 4097, 65_536, 1<<20 - 1, 1<<20 + 1, 3_000_000} {
		add(fmt.Sprintf("write and read %d bytes", size), p.owner, 0o022, nil, func(p *program) {
			want := []byte(strings.Repeat("0123456789abcdefghi\n", size/20+1)[:size])
			p.did("write", os.WriteFile(p.at("x"), want, 0o644))
			got, err := os.ReadFile(p.at("x"))
			p.did("read", err, string(got) == string(want))
			p.did("truncate", unix.Truncate(p.at("x"), int64(size/3)))
			p.did("truncate", unix.Truncate(p.at("x"), int64(size)))
			got, err = os.ReadFile(p.at("x"))
			p.did("read", err, string(got) == string(want[:size/3])+strings.Repeat("\x00", size-size/3))
		})
	}
}

// names checks which bytes names can contain, and how deep they can be.
func names(p *people, add adder) {
	for _, name := range []string{"...", ".x", "x.", " ", "\n", "\x7f", "\xff", "\u00e9", "e\u0301", "a:b*?\"<>|", "-rf", "~", strings.Repeat("ü", 127), strings.Repeat("x", 254), "COM1", "x\\y", "%2e"} {
		add(fmt.Sprintf("name %.12q of %d", name, len(name)), p.owner, 0o022, nil, func(p *program) {
			p.did("mkdir", unix.Mkdir(p.at(name), 0o755))
			p.did("mkdir", unix.Mkdir(p.at(name), 0o755))
			p.did("write", os.WriteFile(p.at(name+"/"+name), []byte(name), 0o644))
			p.did("rename", unix.Rename(p.at(name+"/"+name), p.at("x"+name[1:])))
			p.did("symlink", unix.Symlink(name, p.at(name+"/"+name)))
			list(p, p.at("."))
			list(p, p.at(name))
		})
	}
	add("deep directories", p.owner, 0o022, nil, func(p *program) {
		path := "."
		for i := range 60 {
			path += "/" + strings.Repeat(string(rune('a'+i%26)), 12)
			p.did("mkdir", unix.Mkdir(p.at(path), 0o755))
		}
		p.did("write", os.WriteFile(p.at(path+"/file"), []byte("deep"), 0o644))
		up := path + strings.Repeat("/..", 60) + "/b"
		p.did("rename", unix.Rename(p.at(path+"/file"), p.at(up)))
		p.did("rename", unix.Rename(p.at("aaaaaaaaaaaa/bbbbbbbbbbbb"), p.at("moved")))
		b, err := os.ReadFile(p.at("b"))
		p.did("read", err, string(b))
	})
	add("a name is another type each time", p.owner, 0o022, nil, func(p *program) {
		var st unix.Stat_t
		for range 3 {
			p.did("mkdir", unix.Mkdir(p.at("x"), 0o755))
			p.did("rmdir", unix.Rmdir(p.at("x")))
			p.did("stat", unix.Stat(p.at("x"), &st))
			p.did("symlink", unix.Symlink("y", p.at("x")))
			p.did("unlink", unix.Unlink(p.at("x")))
			p.did("mkfifo", unix.Mkfifo(p.at("x"), 0o600))
			p.did("rename", unix.Rename(p.at("x"), p.at("y")))
			p.did("stat", unix.Stat(p.at("x"), &st))
			p.did("write", os.WriteFile(p.at("x"), []byte("x"), 0o600))
			p.did("rename", unix.Rename(p.at("y"), p.at("x")))
			p.did("lstat", unix.Lstat(p.at("x"), &st), attributes(&st))
			p.did("unlink", unix.Unlink(p.at("x")))
		}
	})
}
