package posixtest

import (
	"errors"
	"os"
	"runtime"

	"golang.org/x/sys/unix"
)

// user runs functions on a thread with its identity and its own umask.
type user struct {
	name     string
	uid, gid int
	groups   []int
	jobs     chan func()
	done     chan struct{}
}

// do runs f as the user.
func (u *user) do(f func()) {
	u.jobs <- f
	<-u.done
}

// people holds the users of the checks. A process without root privileges plays all of them.
type people struct {
	root   *user
	owner  *user // of the files that checks find
	member *user // in the owner's group
	other  *user
	alone  bool // there is only one user
}

// User and group IDs.
const (
	ownerID  = 1001
	memberID = 1002
	otherID  = 1003
	groupID  = 2001 // additional group of owner and member
)

// Passwd and Group describe the users, except root, and their groups in the formats of passwd(5) and group(5).
const (
	Passwd = "owner:x:1001:1001::/:/bin/sh\nmember:x:1002:1002::/:/bin/sh\nother:x:1003:1003::/:/bin/sh\n"
	Group  = "owner:x:1001:member\nmember:x:1002:\nother:x:1003:\nboth:x:2001:owner,member\n"
)

// enter makes the users. leave ends their threads.
func enter() (p *people, leave func()) {
	var all []*user
	add := func(name string, uid, gid int, groups ...int) *user {
		u := &user{name: name, uid: uid, gid: gid, groups: groups, jobs: make(chan func()), done: make(chan struct{})}
		ready := make(chan error)
		go u.run(ready)
		if err := <-ready; err != nil {
			panic(err) // root may assume any identity
		}
		all = append(all, u)
		return u
	}
	p = new(people)
	p.alone = os.Geteuid() != 0
	if p.alone {
		all := func(name string) *user { return add(name, os.Geteuid(), os.Getegid()) }
		p.root, p.owner, p.member, p.other = all("root"), all("owner"), all("member"), all("other")
	} else {
		p.root = add("root", 0, 0)
		p.owner = add("owner", ownerID, ownerID, groupID)
		p.member = add("member", memberID, memberID, ownerID, groupID)
		p.other = add("other", otherID, otherID)
	}
	return p, func() {
		for _, u := range all {
			close(u.jobs)
			<-u.done
		}
	}
}

// run performs the jobs of a user. The thread ends with the goroutine, because it stays locked.
func (u *user) run(ready chan<- error) {
	defer close(u.done)
	runtime.LockOSThread()
	err := unix.Unshare(unix.CLONE_FS) // umask
	if os.Geteuid() == 0 {
		err = errors.Join(err, unix.Setgroups(u.groups), identity(unix.SYS_SETRESGID, u.gid), identity(unix.SYS_SETRESUID, u.uid))
	}
	ready <- err
	if err != nil {
		return
	}
	for f := range u.jobs {
		f()
		u.done <- struct{}{}
	}
}

// identity sets the real, effective and saved user or group of the thread. Package unix would set those of the process.
func identity(call uintptr, id int) error {
	if _, _, no := unix.RawSyscall(call, uintptr(id), uintptr(id), uintptr(id)); no != 0 {
		return no
	}
	return nil
}
