//go:build linux && cgo

package cgo

import (
	"fmt"
	"runtime"
	"slices"
	"syscall"
	"testing"
	"unsafe"

	"github.com/rpcrdma/rpcrdma/cgo/internal/cfake"
)

// Types of queue pairs: enum ibv_qp_type.
const (
	rc      = 2
	ud      = 4
	xrcSend = 9
)

// TestExtendedMembers: each operation reaches the driver with its operands, as TestSendMembers has it
// for the others.
func TestExtendedMembers(t *testing.T) {
	const arg1 = 3<<32 | 14
	data := []byte{1, 2, 3, 4, 5, 6, 7, 8}
	var pinned runtime.Pinner
	pinned.Pin(&data[0])
	defer pinned.Unpin()
	word := uint64(uintptr(unsafe.Pointer(&data[0])))
	const inline = 8 // IBV_SEND_INLINE
	two := []SGE{{Addr: 91}, {Addr: word, Length: 3, LKey: 13}, {Addr: word + 3, Length: 5, LKey: 13}}
	list := cfake.Send{NumSGE: 2, Addr: word, Length: 3, LKey: 13}
	for _, tc := range []struct {
		name   string
		typ    uint32
		wr     SendWR
		num    uint32 // of elements
		want   cfake.Send
		no     syscall.Errno
		noData bool // the operation has no list
	}{
		{name: "Write", typ: rc, wr: SendWR{Opcode: 0}, num: 2, want: cfake.Send{RemoteAddr: 2, RKey: 8}},
		{name: "Write with immediate", typ: rc, wr: SendWR{Opcode: 1}, num: 1, want: cfake.Send{RemoteAddr: 2, RKey: 8, Imm: 9}},
		{name: "Send", typ: rc, wr: SendWR{Opcode: 2}, num: 0},
		{name: "Send of a datagram", typ: ud, wr: SendWR{Opcode: 2}, num: 2, want: cfake.Send{AH: 2, QPNum: 3, Qkey: 14}},
		{name: "Send to an XRC target", typ: xrcSend, wr: SendWR{Opcode: 2}, num: 1, want: cfake.Send{SRQNum: 15}},
		{name: "Send with immediate, inline", typ: rc, wr: SendWR{Opcode: 3, Flags: inline}, num: 1, want: cfake.Send{Imm: 9, Sum: 1 + 2 + 3}},
		{name: "Send of two pieces, inline", typ: rc, wr: SendWR{Opcode: 2, Flags: inline}, num: 2, want: cfake.Send{Sum: 36}},
		{name: "Send of no pieces, inline", typ: rc, wr: SendWR{Opcode: 2, Flags: inline}, num: 0},
		{name: "Read", typ: rc, wr: SendWR{Opcode: 4}, num: 2, want: cfake.Send{RemoteAddr: 2, RKey: 8}},
		{name: "Compare and Swap", typ: rc, wr: SendWR{Opcode: 5}, num: 1, want: cfake.Send{RemoteAddr: 2, RKey: 8, CompareAdd: arg1, Swap: 4}},
		{name: "Fetch and Add", typ: rc, wr: SendWR{Opcode: 6}, num: 1, want: cfake.Send{RemoteAddr: 2, RKey: 8, CompareAdd: arg1}},
		{name: "Local Invalidate", typ: rc, wr: SendWR{Opcode: 7}, noData: true, want: cfake.Send{Imm: 9}},
		{name: "Bind", typ: rc, wr: SendWR{Opcode: 8}, noData: true, want: cfake.Send{MW: 5, MR: 6, RKey: 8, BindAddr: arg1, BindLength: 4, BindAccess: 10}},
		{name: "Send with Invalidate", typ: rc, wr: SendWR{Opcode: 9}, num: 1, want: cfake.Send{Imm: 9}},
		{name: "TSO", typ: ud, wr: SendWR{Opcode: 10, Arg1: word, Arg2: 8<<32 | 1400}, num: 1, want: cfake.Send{Swap: 1400, Sum: 36, AH: 2, QPNum: uint32(word >> 32), Qkey: uint32(word)}},
		{name: "Atomic Write", typ: rc, wr: SendWR{Opcode: 15}, num: 1, noData: true, want: cfake.Send{RemoteAddr: 2, RKey: 8, Sum: 36}},
		{name: "an unknown operation", typ: rc, wr: SendWR{Opcode: 99}, no: syscall.EINVAL},
		{name: "too many pieces, inline", typ: rc, wr: SendWR{Opcode: 2, Flags: inline}, num: 65, no: syscall.EINVAL},
	} {
		t.Run(tc.name, func(t *testing.T) {
			q := cfake.New(-1, tc.typ)
			defer q.Free()
			wr := tc.wr
			wr.ID, wr.RemoteAddr, wr.MW, wr.MR, wr.RKey, wr.Imm, wr.BindAccess, wr.SRQNum = 1, 2, 5, 6, 8, 9, 10, 15
			wr.FirstSGE, wr.NumSGE = 1, tc.num
			if wr.Arg1 == 0 {
				wr.Arg1, wr.Arg2 = arg1, 4
			}
			sges := two
			if tc.num > 2 {
				sges = make([]SGE, 1+tc.num)
			}
			var out Outcome
			Progress(RDMACore{}, (*QP)(q.QPEx()), nil, nil, nil, nil, []SendWR{wr}, sges, nil, Extended, &out)
			if tc.no != 0 {
				if out != (Outcome{SendErr: int32(tc.no)}) || !slices.Equal(q.Calls(), []string{"wr_start 0", "wr_abort 0"}) {
					t.Errorf("outcome %+v, calls %q", out, q.Calls())
				}
				return
			}
			want := tc.want
			want.ID, want.Opcode, want.Flags = 1, wr.Opcode, wr.Flags
			if !tc.noData {
				want.NumSGE = tc.num
				if wr.Flags&inline == 0 && tc.num > 0 {
					want.Addr, want.Length, want.LKey = list.Addr, list.Length, list.LKey
				}
			}
			if got := q.Last(); got != want || out != (Outcome{Sends: 1}) {
				t.Errorf("outcome %+v; the driver got\n%+v, want\n%+v", out, got, want)
			}
		})
	}
}

// TestExtendedLists: a list is started, completed or aborted once, whatever its length, and posted whole
// or not at all. A queue pair that is not extended is refused.
func TestExtendedLists(t *testing.T) {
	q := cfake.New(-1, rc)
	defer q.Free()
	for n := range 301 {
		var out Outcome
		Progress(RDMACore{}, (*QP)(q.QPEx()), nil, nil, nil, nil, slices.Repeat([]SendWR{{Opcode: 2, NumSGE: 1}}, n), make([]SGE, 1), nil, Extended, &out)
		calls := []string{"wr_start 0", fmt.Sprint("wr_complete ", n)}
		if n == 0 {
			calls = nil
		}
		if got := q.Calls(); out != (Outcome{Sends: uint32(n)}) || !slices.Equal(got, calls) {
			t.Errorf("%d: outcome %+v, calls %q", n, out, got)
		}
	}
	for _, errno := range []int{12, -12} {
		q.Room(4, errno, true)
		var out Outcome
		Progress(RDMACore{}, (*QP)(q.QPEx()), nil, nil, nil, nil, make([]SendWR, 5), make([]SGE, 1), nil, Extended, &out)
		if out != (Outcome{SendErr: 12}) {
			t.Errorf("a full queue: %+v", out)
		}
	}
	var out Outcome
	Progress(RDMACore{}, (*QP)(q.QP()), nil, nil, nil, nil, make([]SendWR, 1), make([]SGE, 1), nil, Extended, &out)
	if out != (Outcome{SendErr: int32(syscall.EINVAL)}) {
		t.Errorf("an ordinary queue pair: %+v", out)
	}
}

// TestPollEx: completions are taken up to the length of the caller's memory or to the end of the
// driver's batch, and fields that the queue was not made with are not read.
func TestPollEx(t *testing.T) {
	const all = 1<<13 - 1
	every := WCEx{
		WC: WC{
			Opcode: 128, VendorErr: 1, ByteLen: 2, Imm: 3, QPNum: 4, SrcQP: 5, SLID: 6, SL: 7, DLIDPath: 8, Flags: 2,
		}, Timestamp: 9, WallClock: 10, CVLAN: 11, FlowTag: 12, Tag: 13, TagPriv: 14,
	}
	for _, tc := range []struct {
		name   string
		fields uint64
		polls  []int
		room   int
		ids    []uint64
		want   WCEx
		err    syscall.Errno
	}{
		{name: "no memory", room: 0, polls: []int{1}},
		{name: "nothing there", room: 4},
		{name: "all fields", fields: all, room: 4, polls: []int{1}, ids: []uint64{100}, want: every},
		{name: "no fields", room: 4, polls: []int{2}, ids: []uint64{100, 101}, want: WCEx{WC: WC{Opcode: 128, VendorErr: 1, Flags: 2}}},
		{name: "a batch is a call", fields: all, room: 4, polls: []int{2, 1}, ids: []uint64{100, 101}, want: every},
		{name: "more than there is memory for", fields: all, room: 2, polls: []int{3}, ids: []uint64{100, 101}, want: every},
		{name: "one by one", fields: OneByOne, room: 3, polls: []int{2, 1, 3}, ids: []uint64{100, 200, 300}, want: WCEx{WC: WC{Opcode: 128, VendorErr: 1, Flags: 2}}},
		{name: "an error after some", fields: OneByOne, room: 4, polls: []int{1, -5}, ids: []uint64{100}, want: WCEx{WC: WC{Opcode: 128, VendorErr: 1, Flags: 2}}, err: 5},
	} {
		t.Run(tc.name, func(t *testing.T) {
			q := cfake.New(-1, rc)
			defer q.Free()
			q.Polls(tc.polls...)
			wcs := make([]WCEx, tc.room)
			n, errno := PollEx(RDMACore{}, (*CQ)(q.CQEx()), tc.fields, wcs)
			if n != len(tc.ids) || errno != tc.err {
				t.Fatalf("%d completions, %v; want %d, %v", n, errno, len(tc.ids), tc.err)
			}
			for i, wc := range wcs[:n] {
				want := tc.want
				want.ID = tc.ids[i]
				if wc != want {
					t.Errorf("completion %d is\n%+v, want\n%+v", i, wc, want)
				}
			}
		})
	}
}
