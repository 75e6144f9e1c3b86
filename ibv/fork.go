//go:build linux && cgo

package ibv

import "github.com/rpcrdma/rpcrdma/cgo"

// A ForkStatus reports whether registered memory survives a fork, see ibv_is_fork_initialized(3).
type ForkStatus int

// Effects of a fork on registered memory.
const (
	ForkDisabled ForkStatus = 0 // the parent may lose the memory
	ForkEnabled  ForkStatus = 1 // the child does not inherit the memory
	ForkUnneeded ForkStatus = 2 // the kernel copies the memory for the child
)

func (s ForkStatus) String() string {
	return name([]string{"IBV_FORK_DISABLED", "IBV_FORK_ENABLED", "IBV_FORK_UNNEEDED"}, int32(s), "ibv_fork_status")
}

// ForkInit makes libibverbs keep registered memory out of child processes. It must be called before the first
// registration, and costs each registration a system call. This package never calls it by itself.
//
// The danger is copy-on-write: after a fork the first process that writes to a page gets a new page. If that is the
// parent, its device keeps using the old page. Kernels since 5.12 copy pinned pages for the child at once, and
// [IsForkInitialized] returns ForkUnneeded: nothing needs to be done.
//
// On older kernels, too, os/exec and os.StartProcess are safe without ForkInit: their child shares the parent's memory
// until it executes the new program, so nothing is copied. The exceptions are a child in a new user namespace
// (syscall.SysProcAttr with CLONE_NEWUSER), for which Go forks, and C code that calls fork. If a program does either on
// an old kernel, call ForkInit.
//
// ForkInit also affects the child: it lacks the memory that is registered when it starts, in whole pages.
//
// Implements: int ibv_fork_init(void)
func ForkInit() error {
	if errno := cgo.ForkInit(); errno != 0 {
		return &Error{Call: "ibv_fork_init", Err: errno}
	}
	return nil
}

// IsForkInitialized returns the effect of a fork on registered memory, see [ForkInit].
//
// Implements: enum ibv_fork_status ibv_is_fork_initialized(void)
func IsForkInitialized() ForkStatus { return ForkStatus(cgo.IsForkInitialized()) }
