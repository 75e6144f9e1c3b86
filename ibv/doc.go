// Package ibv contains bindings for libibverbs: devices, memory regions, queues and their attributes. Names follow the
// man pages, and the comment of every function ends with the C function that it calls.
//
// # Usage
//
//	dev, err := ibv.Open("rxe0")
//	pd, err := dev.AllocPD()
//	mr, err := pd.RegMR(buf, ibv.AccessLocalWrite|ibv.AccessRemoteRead)
//	ch, err := dev.CreateCompChannel()
//	cq, err := dev.CreateCQ(64, ch, 0)
//	qp, err := pd.CreateQP(ibv.QPInitAttr{SendCQ: cq, RecvCQ: cq, Cap: ibv.QPCap{...}})
//
// A queue pair is connected with [QP.Modify] or, in most programs, by package rdmacm. Then lists of work requests are
// posted with [QP.PostSend] and [QP.PostRecv], and [CQ.Poll] returns lists of completions. Posting and polling allocate
// nothing.
//
// To wait for completions, arm the queue with [CQ.Arm], poll until it is empty, then wait with [CompChannel.GetEvent].
// A completion after the call of Arm raises the event.
//
// # Extended queues
//
// A queue pair with [QPInitAttr].SendOps posts with ibv_wr_start and ibv_wr_complete, and a completion queue from
// [Context.CreateCQEx] has completions with further fields, such as the time. Work requests are the same; a list needs
// one call into C, whatever its length.
//
// # Ownership
//
// The device owns the buffers of a posted work request until its completion has been polled, or the queue pair has been
// closed. Nothing checks that. Inline data and the lists themselves can be reused when the call that posts them
// returns.
//
// An [MR] keeps its memory: Go memory stays pinned until Close, and memory from mmap must stay mapped until then. A
// region of Go memory covers whole pages, which other Go objects share; memory from mmap is better for regions that
// outlive a call. A [Pool] registers such memory once and hands out buffers from it.
//
// A region may consist of memory that is not a Go slice: memory at a C address ([PD.RegMRAt]), memory of another device
// ([PD.RegDmabufMR]), or of this one ([PD.RegDMMR]). Work requests refer to its parts with [MR.SGE].
//
// The creator of an object closes it, children first: a queue pair before its queues and its protection domain, a
// completion queue before its channel, everything before the [Context]. In the wrong order Close fails with a
// [*BusyError] and closes nothing. Close may be called more than once, from any goroutine; it waits for calls in
// progress. Calls on a closed object return [ErrClosed].
//
// # Cancellation
//
// [CompChannel.GetEvent] and [Context.AsyncEvent] are the calls that wait. They park in Go's poller, not in a thread,
// until their context is done or the object is closed. Even if the context is already done, they return a pending
// event.
//
// # Errors
//
// The error of a failed call is an [*Error] with its name, the device and the errno, or one of the more specific types
// [*NoDeviceError], [*PermissionError], [*MemlockError], [*BusyError], [*ModifyError], [*PostError]. All of them
// preserve the errno: errors.Is(err, syscall.ENOMEM) works. Failed work requests are reported in their completions, see
// [WC.Err].
//
// # Limitations
//
// Features that Linux's software devices lack, such as XRC, flows and device memory, have only been tested on a fake of
// the library. docs/reports/coverage.md lists every function, and how it is tested.
//
// The package is empty without cgo, and on systems other than Linux.
package ibv
