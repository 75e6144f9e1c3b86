// Package ibv binds libibverbs: devices, memory regions, queues and their attributes. Names
// follow the man pages, and the comment of every function ends with the C function that it
// calls.
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
// A queue pair is connected with [QP.Modify], or by package rdmacm, which most
// programs want. Then lists of work requests are posted with [QP.PostSend] and
// [QP.PostRecv], and [CQ.Poll] takes lists of completions. Posting and polling
// allocate nothing.
//
// To wait for completions arm the queue with [CQ.Arm], poll until it is empty, then wait
// with [CompChannel.GetEvent]. A completion after the arming raises the event.
//
// # Extended queues
//
// A queue pair with [QPInitAttr].SendOps is posted to by ibv_wr_start and ibv_wr_complete, and a
// completion queue of [Context.CreateCQEx] has completions with further fields, such as the time. Work
// requests are the same; a list is one call into C, whatever its length.
//
// # Ownership
//
// Buffers of a posted work request belong to the device until its completion has
// been polled, or the queue pair has been closed. Nothing checks that. Inline data and the
// lists themselves can be reused when the call that posts them returns.
//
// A [MR] keeps the memory it was made of: Go memory stays pinned until Close,
// memory from mmap must stay mapped until then. A region of Go memory covers whole
// pages, which other Go objects share; memory from mmap is better for regions that live
// longer than a call. A [Pool] registers such memory once and hands out buffers of it.
//
// A region may be of memory that is no Go slice: of an address of C ([PD.RegMRAt]), of another device
// ([PD.RegDmabufMR]), of this one ([PD.RegDMMR]). Work requests name its parts by [MR.SGE].
//
// The creator of an object closes it, children first: a queue pair before its
// queues and its protection domain, a completion queue before its channel,
// everything before the [Context]. The wrong order is a [*BusyError] and closes
// nothing. Close may be called again, and from any goroutine; it waits for calls that
// are under way. A closed object answers with [ErrClosed].
//
// # Cancellation
//
// [CompChannel.GetEvent] and [Context.AsyncEvent] are the calls that wait. They park in
// Go's poller, not in a thread, until their context is done or the object is closed. Even
// if the context is done already they return an event that is pending.
//
// # Errors
//
// A call that failed is an [*Error] with its name, the device and the errno, or one
// of the types that know more: [*NoDeviceError], [*PermissionError],
// [*MemlockError], [*BusyError], [*ModifyError], [*PostError]. All of them keep the
// errno: errors.Is(err, syscall.ENOMEM) works. Work requests that failed are in
// their completions, see [WC.Err].
//
// # Limitations
//
// What Linux's software devices do not have, such as XRC, flows and device memory, has been tested on a
// fake of the library alone. docs/reports/coverage.md lists every function, and how it is tested.
//
// The package is empty when cgo is off or the system is not Linux.
package ibv
