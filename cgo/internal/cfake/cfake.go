//go:build linux && cgo

// Package cfake provides queues for tests of package cgo, in C memory and with their own driver: C calls of package cgo
// are recorded and answered as the test specifies, without a device.
package cfake

/*
#include <stdlib.h>
#include "cfake.h"
*/
import "C"

import (
	"fmt"
	"unsafe"
)

// Queues are a queue pair, a shared receive queue, and a completion queue with its channel, all of one device.
type Queues struct {
	f *C.struct_cfake
}

// New returns queues that accept every work request and have no completions. fd is the completion channel's descriptor,
// and qpType the type of the extended queue pair.
func New(fd int, qpType uint32) *Queues {
	q := &Queues{C.cfake_new(C.int(fd), C.int(qpType))}
	q.Room(1<<31, 0, true)
	return q
}

// Free frees the queues.
func (q *Queues) Free() { C.free(unsafe.Pointer(q.f)) }

// QP returns the struct ibv_qp.
func (q *Queues) QP() unsafe.Pointer { return unsafe.Pointer(&q.f.qp) }

// QPEx returns the extended queue pair, a struct ibv_qp_ex.
func (q *Queues) QPEx() unsafe.Pointer { return unsafe.Pointer(&q.f.qpx) }

// CQEx returns the extended completion queue.
func (q *Queues) CQEx() unsafe.Pointer { return unsafe.Pointer(&q.f.cqx) }

// SRQ returns the struct ibv_srq.
func (q *Queues) SRQ() unsafe.Pointer { return unsafe.Pointer(&q.f.srq) }

// CQ returns the struct ibv_cq.
func (q *Queues) CQ() unsafe.Pointer { return unsafe.Pointer(&q.f.cq) }

// Channel returns the struct ibv_comp_channel.
func (q *Queues) Channel() unsafe.Pointer { return unsafe.Pointer(&q.f.channel) }

// PD returns the struct ibv_pd.
func (q *Queues) PD() unsafe.Pointer { return unsafe.Pointer(&q.f.pd) }

// Region returns the address and the length of the memory registered last.
func (q *Queues) Region() (addr, length uint64) {
	return uint64(uintptr(q.f.mr.addr)), uint64(q.f.mr.length)
}

// Room makes the queues accept n more work requests. Posting more returns err, and if tells is true also which request
// was refused.
func (q *Queues) Room(n int, err int, tells bool) {
	q.f.room, q.f.post_err, q.f.no_bad_wr = C.uint32_t(n), C.int(err), 0
	if !tells {
		q.f.no_bad_wr = 1
	}
}

// Polls sets the results of the next polls, up to 8 of them: a number of completions, or an error as the driver returns
// it. The ID of completion i of poll n is 100n + i, with n from 1.
func (q *Queues) Polls(results ...int) {
	q.f.polls, q.f.npolls = [C.CFAKE_POLLS]C.int{}, 0
	for i, r := range results {
		q.f.polls[i] = C.int(r)
	}
}

// NotifyErr sets the result of arming the completion queue.
func (q *Queues) NotifyErr(err int) { q.f.notify_err = C.int(err) }

// Calls returns the calls since the last Calls, at most 16: the name of each, and how many work requests were posted,
// how many completions were requested, or whether only solicited events were.
func (q *Queues) Calls() (calls []string) {
	names := [...]string{"post_recv", "post_srq_recv", "post_send", "poll_cq", "req_notify_cq", "wr_start", "wr_complete", "wr_abort"}
	for i := range q.f.ncalls {
		calls = append(calls, fmt.Sprint(names[q.f.calls[i]], " ", q.f.sizes[i]))
	}
	q.f.ncalls = 0
	return calls
}

// A Send is a request of the send queue as the driver received it: the members of struct ibv_send_wr, with those of its
// unions selected by opcode.
type Send struct {
	ID                   uint64
	Opcode, Flags, Imm   uint32
	NumSGE               uint32
	Addr                 uint64 // of the first element
	Length, LKey         uint32
	RemoteAddr           uint64
	RKey                 uint32
	CompareAdd, Swap     uint64
	MW, MR               uint64
	BindAddr, BindLength uint64
	BindAccess           uint32
	AH                   uint64
	QPNum, Qkey          uint32
	SRQNum, Sum          uint32 // extended: Sum is over the bytes of inline data or of a header
}

// Last returns the last request of the send queue.
func (q *Queues) Last() Send {
	s := &q.f.last
	return Send{
		ID: uint64(s.id), Opcode: uint32(s.opcode), Flags: uint32(s.flags), Imm: uint32(s.imm), NumSGE: uint32(s.num_sge),
		Addr: uint64(s.addr), Length: uint32(s.length), LKey: uint32(s.lkey),
		RemoteAddr: uint64(s.remote_addr), RKey: uint32(s.rkey), CompareAdd: uint64(s.compare_add), Swap: uint64(s.swap),
		MW: uint64(s.mw), MR: uint64(s.mr),
		BindAddr: uint64(s.bind_addr), BindLength: uint64(s.bind_length), BindAccess: uint32(s.bind_access),
		AH: uint64(s.ah), QPNum: uint32(s.qpn), Qkey: uint32(s.qkey), SRQNum: uint32(s.srqn), Sum: uint32(s.sum),
	}
}
