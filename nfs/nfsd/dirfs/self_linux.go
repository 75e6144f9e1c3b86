package dirfs

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"runtime/debug"
	"slices"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/rpcrdma/rpcrdma/nfs/nfsd"
)

// A self is the identity of the process, which some threads leave for that of a caller. It does not
// change.
//
// These threads do nothing else: see actor. A thread that has changed its identity and got it
// back has credentials that are equal to those of the others, but not the same, and the kernel's
// RDMA devices refuse writes by another than those that they were opened with.
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
	most   int                 // actors that wait for jobs; those that have ended one beyond that end too

	mu     sync.Mutex
	idle   []*actor // the one that was busy last is the last
	closed bool
}

// An actor is a thread that acts as callers, for one operation after the other. In between it
// keeps the identity of the last one, as changing it takes some twenty system calls.
type actor struct {
	jobs chan job // closed: it ends
	done chan outcome
	last identity // of the thread; belongs to the taker of the actor, and to the thread during a job
}

// An identity is the user and the groups of a thread. The zero identity is that of the process.
type identity struct {
	taken    bool // it is a caller's
	uid, gid uint32
	groups   []uint32
}

// is reports whether the identity is the caller's.
func (i *identity) is(who *nfsd.Caller) bool {
	return i.taken && i.uid == who.UID && i.gid == who.GID && slices.Equal(i.groups, who.GIDs)
}

// set makes the identity the caller's.
func (i *identity) set(who *nfsd.Caller) {
	*i = identity{taken: true, uid: who.UID, gid: who.GID, groups: append(i.groups[:0], who.GIDs...)}
}

// A job is an operation, and the identity that does it.
type job struct {
	who *nfsd.Caller
	do  func() error
}

// An outcome is how a job has ended.
type outcome struct {
	err    error
	panics *threadPanic
	spoilt bool // the thread has not got the identity of the process back, and has ended
}

// A threadPanic is the panic of a job. It is raised again in the goroutine that waits for the job,
// and has the stack of the job, which that goroutine's own stack lacks.
type threadPanic struct {
	value any
	stack []byte // of the job
}

func (p *threadPanic) Error() string { return fmt.Sprintf("%v\n\nin a job:\n%s", p.value, p.stack) }

// Unwrap returns what the job has panicked with, if that is an error.
func (p *threadPanic) Unwrap() error {
	err, _ := p.value.(error)
	return err
}

// maxIdle is how many actors wait for jobs.
const maxIdle = 32

// noID is (uid_t)-1: to setfsuid it is a question and not a user.
const noID = 1<<32 - 1

// newSelf tries whether threads can leave their identity, which takes CAP_SETUID and
// CAP_SETGID.
func newSelf() (*self, error) {
	s := &self{gid: os.Getegid(), most: maxIdle}
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
	if err := s.as(probe, func() error { return nil }); err != nil {
		s.close()
		return nil, err
	}
	return s, nil
}

// capHeader names the calling thread.
func capHeader() *unix.CapUserHeader {
	return &unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
}

// as runs do as the caller, on one thread.
func (f *FS) as(who *nfsd.Caller, do func() error) error {
	if f.self == nil {
		return do()
	}
	return f.self.as(who, do)
}

func (s *self) as(who *nfsd.Caller, do func() error) error {
	switch {
	case who.UID == noID || who.GID == noID:
		return unix.EACCES
	case who.UID == 0 && int(who.GID) == s.gid:
		return do() // groups do not matter to a user that may do everything
	}
	a := s.take(who)
	a.jobs <- job{who, do}
	r := <-a.done
	if !r.spoilt {
		s.putBack(a)
	}
	if r.panics != nil {
		panic(r.panics)
	}
	return r.err
}

// take returns an actor without a job: the last one that has acted as this caller. Without one it is
// a new one, unless there are many: then the one that has been idle for longest changes.
func (s *self) take(who *nfsd.Caller) *actor {
	s.mu.Lock()
	defer s.mu.Unlock()
	at := len(s.idle) - 1
	for at >= 0 && !s.idle[at].last.is(who) {
		at--
	}
	if at < 0 && len(s.idle) == s.most {
		at = 0
	}
	if at >= 0 {
		a := s.idle[at]
		s.idle = slices.Delete(s.idle, at, at+1)
		return a
	}
	a := &actor{jobs: make(chan job), done: make(chan outcome, 1)}
	go a.run(s)
	return a
}

func (s *self) putBack(a *actor) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed || len(s.idle) == s.most {
		close(a.jobs)
		return
	}
	s.idle = append(s.idle, a)
}

// close ends the actors that have no jobs; the others end after theirs.
func (s *self) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	for _, a := range s.idle {
		close(a.jobs)
	}
	s.idle = nil
}

// run does jobs. The thread ends with the goroutine, as it stays locked: no other goroutine gets it. The
// process's main thread does not end but is put aside, and is not to look like a caller.
func (a *actor) run(s *self) {
	runtime.LockOSThread()
	defer func() {
		if a.last.taken {
			s.restore(a.last.uid)
		}
	}()
	for j := range a.jobs {
		r := s.act(j, &a.last)
		a.done <- r
		if r.spoilt {
			return
		}
	}
}

// act does a job as its caller. last is the thread's identity.
func (s *self) act(j job, last *identity) (r outcome) {
	if !last.is(j.who) {
		err := s.change(j.who, last)
		if err != nil && last.taken {
			return outcome{err: fmt.Errorf("%w (%w)", unix.EIO, err), spoilt: true}
		}
		if err != nil {
			return outcome{err: err}
		}
	}
	defer func() {
		if v := recover(); v != nil {
			r.panics = &threadPanic{v, debug.Stack()}
		}
	}()
	return outcome{err: j.do()}
}

// change makes the thread the caller's, by way of the process's own identity, so that nothing of
// the caller before can be left. If it fails, the thread has that of the process or is spoilt:
// then last is taken.
func (s *self) change(who *nfsd.Caller, last *identity) error {
	if last.taken {
		if err := s.restore(last.uid); err != nil {
			return err
		}
	}
	last.set(who)
	err := s.become(who)
	if err == nil {
		return nil
	}
	if back := s.restore(who.UID); back != nil {
		return errors.Join(err, back)
	}
	last.taken = false
	return err
}

// become gives the thread the identity of the caller.
func (s *self) become(who *nfsd.Caller) error {
	var room [16]int // RFC 5531 appendix A: AUTH_SYS has at most these
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

// restore gives the thread the identity of the process. uid is the user that it has.
func (s *self) restore(uid uint32) error {
	var err error
	if uid != 0 {
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
