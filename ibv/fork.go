//go:build linux && cgo

package ibv

import "github.com/rpcrdma/rpcrdma/cgo"

// A ForkStatus is whether registered memory survives a fork, see
// ibv_is_fork_initialized(3).
type ForkStatus int

// What a fork does to registered memory.
const (
	ForkDisabled ForkStatus = 0 // may take it away from the parent
	ForkEnabled  ForkStatus = 1 // the child does not get it
	ForkUnneeded ForkStatus = 2 // the kernel copies it for the child
)

func (s ForkStatus) String() string {
	return name([]string{"IBV_FORK_DISABLED", "IBV_FORK_ENABLED", "IBV_FORK_UNNEEDED"}, int32(s), "ibv_fork_status")
}

// ForkInit makes libibverbs keep registered memory out of child processes. It has
// to come before the first registration and then costs each of them a system
// call. This package never calls it by itself.
//
// The danger is copy-on-write: after a fork the first of the two that writes to a
// page gets another one, and if that is the parent, its device goes on with the old
// page. Kernels since 5.12 copy pinned pages for the child at once, and
// [IsForkInitialized] says ForkUnneeded: nothing is to be done.
//
// On older kernels, too, os/exec and os.StartProcess are safe without ForkInit:
// their child shares the parent's memory until it executes the new program, so that
// nothing is copied. The exception is a child in a new user namespace
// (syscall.SysProcAttr with CLONE_NEWUSER), for which Go forks; and C code that
// calls fork by itself. Where these occur on an old kernel, call ForkInit.
//
// ForkInit has a cost for the child: memory that is registered when it starts is missing there, in
// whole pages.
//
// Implements: int ibv_fork_init(void)
func ForkInit() error {
	if errno := cgo.ForkInit(); errno != 0 {
		return &Error{Call: "ibv_fork_init", Err: errno}
	}
	return nil
}

// IsForkInitialized reports the effect of a fork on registered memory, see [ForkInit].
//
// Implements: enum ibv_fork_status ibv_is_fork_initialized(void)
func IsForkInitialized() ForkStatus { return ForkStatus(cgo.IsForkInitialized()) }
