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

// self is the identity of the process, from which some threads switch to that of a caller. Immutable.
//
// These threads do nothing else: see actor. A thread that switches and returns has credentials equal to those of the
// others, but not the same ones, and the kernel's RDMA devices reject writes with credentials other than those with
// which they were opened.
//
// setfsuid(2) and setfsgid(2) change what the kernel checks on files, and setgroups(2) the groups, all for one thread.
// Go's syscall package applies them to all threads, so they are called directly. setfsuid to a user other than 0 drops
// the capabilities that override permissions, and setfsuid to 0 restores them: capabilities(7). CAP_SYS_RESOURCE, which
// overrides quotas, is not among them and is dropped separately.
type self struct {
	gid    int
	groups []int
	caps   [2]unix.CapUserData // version 3 has two words
	less   [2]unix.CapUserData // without CAP_SYS_RESOURCE
	most   int                 // limit of idle actors; further ones end after their job

	mu     sync.Mutex
	idle   []*actor // most recently busy last
	closed bool
}

// actor is a thread that performs operations as callers, one after the other. Between operations it keeps the identity
// of the last caller, because switching takes some twenty system calls.
type actor struct {
	jobs chan job // closed to end the actor
	done chan outcome
	last identity // of the thread; owned by the taker of the actor, and by the thread during a job
}

// identity is the user and groups of a thread. The zero identity is that of the process.
type identity struct {
	taken    bool // it is that of a caller
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

// job is an operation and the identity to perform it with.
type job struct {
	who *nfsd.Caller
	do  func() error
}

// outcome is the result of a job.
type outcome struct {
	err    error
	panics *threadPanic
	spoilt bool // the thread could not restore the identity of the process, and has ended
}

// threadPanic is the panic of a job. It is raised again in the goroutine that waits for the job, and contains the stack
// of the job, which that goroutine's own stack lacks.
type threadPanic struct {
	value any
	stack []byte // of the job
}

func (p *threadPanic) Error() string { return fmt.Sprintf("%v\n\nin a job:\n%s", p.value, p.stack) }

// Unwrap returns the panic value of the job if it is an error.
func (p *threadPanic) Unwrap() error {
	err, _ := p.value.(error)
	return err
}

// maxIdle is how many idle actors are kept.
const maxIdle = 32

// noID is (uid_t)-1, which setfsuid takes as a query rather than a user.
const noID = 1<<32 - 1

// newSelf tests whether threads can switch their identity, which requires CAP_SETUID and CAP_SETGID.
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

// capHeader identifies the calling thread.
func capHeader() *unix.CapUserHeader {
	return &unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
}

// as runs do as the caller, on a single thread.
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
		return do() // groups are irrelevant for a user with all rights
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

// take returns an idle actor: the most recent one with this caller's identity. If none exists, it returns a new one, or
// the one that has been idle longest if there are many.
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

// close ends the idle actors. The others end after their jobs.
func (s *self) close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	for _, a := range s.idle {
		close(a.jobs)
	}
	s.idle = nil
}

// run performs jobs. The thread stays locked, so it ends with the goroutine and no other goroutine gets it. The
// process's main thread would not end but be set aside, and must not look like a caller.
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

// act performs a job as its caller. last is the thread's identity.
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

// change gives the thread the caller's identity, by way of the process's own, so that nothing of the previous caller
// remains. If it fails, the thread either has the identity of the process, or is spoilt; last.taken is then set.
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
	var room [16]int // RFC 5531 appendix A: the limit of AUTH_SYS
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
		return nil // keeping all capabilities
	}
	if err := setFSUID(int(who.UID)); err != nil {
		return err
	}
	if s.less == s.caps {
		return nil
	}
	// The effective capabilities that setfsuid left, without CAP_SYS_RESOURCE.
	var now [2]unix.CapUserData
	if err := unix.Capget(capHeader(), &now[0]); err != nil {
		return err
	}
	for i := range now {
		now[i].Effective &= s.less[i].Effective
	}
	return unix.Capset(capHeader(), &now[0])
}

// restore restores the identity of the process. uid is the thread's current user.
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

// setFSUID sets the user of the thread and verifies it, because setfsuid(2) does not report errors.
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
