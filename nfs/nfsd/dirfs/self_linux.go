package dirfs

import (
	"errors"
	"fmt"
	"os"
	"runtime"

	"golang.org/x/sys/unix"

	"github.com/rpcrdma/rpcrdma/nfs/nfsd"
)

// A self is the identity of the process, which its threads leave for that of a caller, for one
// operation each. It does not change.
//
// setfsuid(2) and setfsgid(2) change what the kernel checks on files, and setgroups(2) the rest,
// of one thread: Go's syscall package has them for all threads, so they are called directly.
// setfsuid to another user than 0 takes away the capabilities that override permissions, and
// setfsuid to 0 gives them back: capabilities(7). CAP_SYS_RESOURCE, which overrides quotas, is
// not among them and goes separately.
type self struct {
	gid    int
	groups []int
	caps   [2]unix.CapUserData // version 3 has two words
	less   [2]unix.CapUserData // without CAP_SYS_RESOURCE
}

// noID is (uid_t)-1: to setfsuid it is a question and not a user.
const noID = 1<<32 - 1

// newSelf tries whether threads can leave their identity, which takes CAP_SETUID and
// CAP_SETGID.
func newSelf() (*self, error) {
	s := &self{gid: os.Getegid()}
	groups, err := unix.Getgroups()
	if err != nil {
		return nil, err
	}
	s.groups = groups
	if err := unix.Capget(capHeader(), &s.caps[0]); err != nil {
		return nil, err
	}
	s.less = s.caps
	s.less[unix.CAP_SYS_RESOURCE/32].Effective &^= 1 << (unix.CAP_SYS_RESOURCE % 32)
	probe := &nfsd.Caller{UID: nfsd.Nobody, GID: nfsd.Nobody}
	return s, s.as(probe, func() error { return nil })
}

// capHeader names the calling thread.
func capHeader() *unix.CapUserHeader {
	return &unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
}

// as runs f as the caller, on one thread. If the thread cannot get its own identity back it
// stays with the goroutine, and ends with it.
func (f *FS) as(who *nfsd.Caller, do func() error) error {
	if f.self == nil {
		return do()
	}
	return f.self.as(who, do)
}

func (s *self) as(who *nfsd.Caller, do func() error) (err error) {
	if who.UID == noID || who.GID == noID {
		return unix.EACCES
	}
	runtime.LockOSThread()
	defer func() {
		if back := s.restore(who); back != nil {
			err = fmt.Errorf("%w (%w)", unix.EIO, back)
			return
		}
		runtime.UnlockOSThread()
	}()
	if err := s.become(who); err != nil {
		return err
	}
	return do()
}

// become gives the thread the identity of the caller.
func (s *self) become(who *nfsd.Caller) error {
	var room [16]int // RFC 5531 appendix A: AUTH_SYS has no more groups
	groups := room[:0]
	for _, g := range who.GIDs {
		groups = append(groups, int(g))
	}
	if err := unix.Setgroups(groups); err != nil {
		return err
	}
	if err := setFSGID(int(who.GID)); err != nil {
		return err
	}
	if who.UID == 0 {
		return nil // with all its capabilities
	}
	if err := setFSUID(int(who.UID)); err != nil {
		return err
	}
	if s.less == s.caps {
		return nil
	}
	// The effective capabilities as setfsuid has left them, less one.
	var now [2]unix.CapUserData
	if err := unix.Capget(capHeader(), &now[0]); err != nil {
		return err
	}
	for i := range now {
		now[i].Effective &= s.less[i].Effective
	}
	return unix.Capset(capHeader(), &now[0])
}

// restore gives the thread its own identity.
func (s *self) restore(who *nfsd.Caller) error {
	var err error
	if who.UID != 0 {
		err = setFSUID(0)
		if s.less != s.caps {
			err = errors.Join(err, unix.Capset(capHeader(), &s.caps[0]))
		}
	}
	return errors.Join(err, setFSGID(s.gid), unix.Setgroups(s.groups))
}

// setFSUID sets the user of the thread and looks whether it has become that: setfsuid(2) does not
// tell.
func setFSUID(uid int) error {
	unix.Setfsuid(uid)
	if now, _ := unix.SetfsuidRetUid(-1); uint32(now) != uint32(uid) {
		return unix.EPERM
	}
	return nil
}

func setFSGID(gid int) error {
	unix.Setfsgid(gid)
	if now, _ := unix.SetfsgidRetGid(-1); uint32(now) != uint32(gid) {
		return unix.EPERM
	}
	return nil
}
