//go:build linux && cgo

package cgotest

import (
	"encoding/binary"
	"math"
	"slices"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/rpcrdma/rpcrdma/cgo"
)

// A Nature makes a device execute requests by itself, and describes how: the differences between adapters beyond their
// attributes. Requests are executed when they are posted, on the goroutine that posts them, or that posts the receive
// they have waited for. Both ends of a connection must be in one Library.
type Nature struct {
	// SilentFlush: a flushed request that is not signaled has no completion.
	SilentFlush bool
	// Refuses is the set of requests, as 1 << opcode, that are refused when they are posted.
	Refuses uint64
	// MaxSGE and MaxWR, if not 0, are the actual limits of queue pairs, whatever the attributes say.
	MaxSGE, MaxWR uint32
	// PowerOfTwo: the number of entries of queues is rounded up to a power of two.
	PowerOfTwo bool
	// ReadSinkRights: the memory that a Read fills needs the remote write right, see RFC 5040 section 4.4.
	ReadSinkRights bool
	// InvalidateFlag is the completion flag for a message that has invalidated a window: 1 << 3 in enum ibv_wc_flags.
	InvalidateFlag uint32

	// PrivateData bounds the private data of requests, replies and rejections, in bytes. Padded: that many bytes always
	// arrive, with zeros after the given data.
	PrivateData struct{ Request, Reply, Reject int }
	Padded      bool
}

// Requests and rights, see enum ibv_wr_opcode, ibv_send_flags and ibv_access_flags.
const (
	opWrite, opWriteImm, opSend, opSendImm, opRead, opCmpSwp, opFetchAdd, opSendInv = 0, 1, 2, 3, 4, 5, 6, 9

	flagInline = 1 << 3
	wcWithImm  = 1 << 1

	mayWriteLocally, mayWrite, mayRead, mayAtomic, mayBind, zeroBased = 1 << 0, 1 << 1, 1 << 2, 1 << 3, 1 << 4, 1 << 5
)

// Further statuses of completions.
const (
	locLenErr, locQPOpErr, mwBindErr, remInvReqErr, remAccessErr, remOpErr = 1, 2, 6, 9, 10, 11
)

const stateError = 6 // of enum ibv_qp_state

// A link is the connection state of a working queue pair. It is guarded by Library.mu.
type link struct {
	peer *QP  // the other end, once the connection is established
	dead bool // in the error state, or destroyed
	ord  int  // Reads that may be outstanding at the peer
}

// join connects two queue pairs. The caller must hold mu.
func join(a, b *QP, ordA, ordB int) {
	a.link = link{peer: b, ord: ordA}
	b.link = link{peer: a, ord: ordB}
}

// run executes the requests of the send queue until one must wait. The caller must hold mu.
func (qp *QP) run() {
	if qp.d.Nature == nil {
		return
	}
	if qp.link.dead {
		qp.flush()
		return
	}
	for len(qp.sends) > 0 && qp.link.peer != nil && !qp.link.dead {
		s := qp.sends[0]
		status, waits := s.perform()
		if waits {
			return
		}
		qp.sends = qp.sends[1:]
		if status == Success {
			if s.Signaled() {
				qp.report(s, Success)
			}
			continue
		}
		qp.report(s, status)
		qp.die()
		if remote := status >= remInvReqErr; remote {
			qp.link.peer.die()
		}
	}
}

// die moves a queue pair to the error state. Over iWARP this ends the stream at both ends. The caller must hold mu.
func (qp *QP) die() {
	if qp.d.Nature == nil || qp.link.dead {
		return
	}
	qp.link.dead, qp.attr.State = true, stateError
	qp.flush()
	if peer := qp.link.peer; peer != nil && qp.d.Info.Transport == TransportIWARP {
		peer.die()
	}
}

// flush completes the requests in the queues. The caller must hold mu.
func (qp *QP) flush() {
	for _, s := range qp.sends {
		if s.Signaled() || !qp.d.Nature.SilentFlush {
			qp.report(s, FlushErr)
		}
	}
	qp.sends = nil
	if qp.srq != nil {
		return // its receives belong to other queue pairs too
	}
	for _, r := range qp.recvs {
		qp.recvCQ.add(cgo.WCEx{WC: cgo.WC{ID: r.ID, Status: FlushErr, QPNum: qp.num, Opcode: 128}})
	}
	qp.recvs = nil
}

// report adds the completion of a send.
func (qp *QP) report(s *Send, status int32) {
	wc := cgo.WC{ID: s.ID, Status: status, QPNum: qp.num, Opcode: completion[s.Opcode]}
	if s.Opcode == opRead && status == Success {
		wc.ByteLen = uint32(s.size())
	}
	qp.sendCQ.add(cgo.WCEx{WC: wc})
}

// completion maps requests to the opcode of their completions, see enum ibv_wc_opcode.
var completion = map[uint32]int32{ // immutable
	opSend: 0, opSendImm: 0, opSendInv: 0, opWrite: 1, opWriteImm: 1, opRead: 2, opCmpSwp: 3, opFetchAdd: 4, opBindMW: 5, opLocalInv: 6,
}

func (s *Send) size() (n int) {
	for _, e := range s.SGL {
		n += int(e.Length)
	}
	return n
}

// perform executes a request, or reports that it waits for a receive of the peer. The caller must hold mu.
func (s *Send) perform() (status int32, waits bool) {
	qp, peer := s.qp, s.qp.link.peer
	switch s.Opcode {
	case opBindMW:
		return s.bind(), false
	case opLocalInv:
		w := qp.f.windowOf(s.Imm, qp)
		if w == nil {
			return mwBindErr, false
		}
		w.unbind()
		return Success, false
	}
	if peer.link.dead {
		return Success, true // nothing answers; the connection manager reports the end
	}
	access := 0
	if s.Opcode == opRead || s.Opcode == opCmpSwp || s.Opcode == opFetchAdd {
		access = mayWriteLocally
		if qp.d.Nature.ReadSinkRights {
			access |= mayWrite
		}
	}
	local, ok := qp.local(s.SGL, access, s.Flags&flagInline != 0)
	if !ok {
		return locProtErr, false
	}
	switch s.Opcode {
	case opSend, opSendImm, opSendInv:
		return s.deliver(local)
	case opWrite, opWriteImm, opRead:
		status, waits := s.move(local)
		if s.Opcode == opWriteImm && status == Success && !waits {
			return s.deliver(nil)
		}
		return status, waits
	case opCmpSwp, opFetchAdd:
		return s.atomic(local), false
	}
	return locQPOpErr, false
}

const locProtErr = LocProtErr

// move executes a Write or a Read.
func (s *Send) move(local [][]byte) (status int32, waits bool) {
	n := s.size()
	if s.Opcode == opWriteImm && len(*s.qp.link.peer.recvQueue()) == 0 {
		return s.unexpected()
	}
	right := mayWrite
	if s.Opcode == opRead {
		right = mayRead
		if s.qp.link.ord == 0 {
			return remInvReqErr, false
		}
	}
	if n == 0 {
		return Success, false
	}
	mem, ok := s.qp.link.peer.exposed(s.RKey, s.RemoteAddr, uint64(n), right)
	if !ok {
		return remAccessErr, false
	}
	for _, part := range local {
		if s.Opcode == opRead {
			copy(part, mem)
		} else {
			copy(mem, part)
		}
		mem = mem[len(part):]
	}
	return Success, false
}

func (s *Send) atomic(local [][]byte) int32 {
	mem, ok := s.qp.link.peer.exposed(s.RKey, s.RemoteAddr, 8, mayAtomic)
	if !ok || s.RemoteAddr%8 != 0 || s.size() != 8 || len(local) != 1 {
		return remAccessErr
	}
	old := binary.NativeEndian.Uint64(mem)
	binary.NativeEndian.PutUint64(local[0], old)
	switch {
	case s.Opcode == opFetchAdd:
		binary.NativeEndian.PutUint64(mem, old+s.Arg1)
	case old == s.Arg1:
		binary.NativeEndian.PutUint64(mem, s.Arg2)
	}
	return Success
}

// unexpected handles a message that finds no receive. The sender repeats it until there is a receive. Over iWARP it
// ends the stream.
func (s *Send) unexpected() (status int32, waits bool) {
	if s.qp.d.Info.Transport == TransportIWARP {
		return remOpErr, false
	}
	return Success, true
}

// deliver moves a message to the peer's next receive.
func (s *Send) deliver(local [][]byte) (status int32, waits bool) {
	peer := s.qp.link.peer
	queue := peer.recvQueue()
	if len(*queue) == 0 {
		return s.unexpected()
	}
	r := (*queue)[0]
	n := 0
	for _, part := range local {
		n += len(part)
	}
	wc := cgo.WC{ID: r.ID, QPNum: peer.num, Opcode: 128, ByteLen: uint32(n)}
	if s.Opcode == opWriteImm {
		wc.Opcode, wc.ByteLen = 129, uint32(s.size())
	}
	into, ok := peer.local(r.SGL, mayWriteLocally, false)
	room := 0
	for _, part := range into {
		room += len(part)
	}
	switch {
	case !ok:
		wc.Status, status = locProtErr, remOpErr
	case n > room:
		wc.Status, status = locLenErr, remInvReqErr
	case s.Opcode == opSendInv:
		w := s.qp.f.windowOf(s.Imm, peer)
		if w == nil {
			return remAccessErr, false // the receive is flushed
		}
		w.unbind()
		wc.Imm, wc.Flags = s.Imm, peer.d.Nature.InvalidateFlag
	case s.Opcode == opSendImm, s.Opcode == opWriteImm:
		wc.Imm, wc.Flags = s.Imm, wcWithImm
	}
	*queue = (*queue)[1:]
	if wc.Status == Success {
		scatter(into, local)
	}
	peer.recvCQ.add(cgo.WCEx{WC: wc})
	return status, false
}

// scatter copies a list of pieces to another list, which must have room.
func scatter(to, from [][]byte) {
	for _, part := range from {
		for len(part) > 0 {
			for len(to[0]) == 0 {
				to = to[1:]
			}
			n := copy(to[0], part)
			to[0], part = to[0][n:], part[n:]
		}
	}
}

// bind executes the bind of a window.
func (s *Send) bind() int32 {
	f, qp := s.qp.f, s.qp
	w, r := f.mws[s.MW], f.mrs[s.MR]
	switch {
	case w == nil || r == nil:
		f.wrong("a bind names window %#x and region %#x", s.MW, s.MR)
		return mwBindErr
	case w.mr != nil, r.mem.Access&mayBind == 0, r.parents[0] != qp.parents[0], w.parents[0] != qp.parents[0]:
		return mwBindErr
	case s.BindAccess&mayWrite != 0 && r.mem.Access&mayWriteLocally == 0:
		return mwBindErr
	}
	if _, ok := r.at(s.Arg1, s.Arg2); !ok {
		return mwBindErr
	}
	w.bind(r, qp, s.RKey)
	w.addr, w.length, w.access = s.Arg1, s.Arg2, int(s.BindAccess)
	return Success
}

// windowOf returns the window that is bound to a queue pair with the key, or nil.
func (f *Library) windowOf(key uint32, qp *QP) *window {
	for _, w := range f.mws {
		if w.mr != nil && w.boundKey == key && w.qp == qp {
			return w
		}
	}
	return nil
}

// local returns the memory of this end's SGEs, which must have the access right or be inline.
func (qp *QP) local(sgl []cgo.SGE, access int, inline bool) (parts [][]byte, ok bool) {
	for _, e := range sgl {
		if e.Length == 0 {
			continue
		}
		if inline {
			parts = append(parts, memoryAt(e.Addr, uint64(e.Length)))
			continue
		}
		r := qp.f.lkeys[e.LKey]
		if r == nil || r.parents[0] != qp.parents[0] || r.mem.Access&access != access {
			return nil, false
		}
		mem, ok := r.at(e.Addr, uint64(e.Length))
		if !ok {
			return nil, false
		}
		parts = append(parts, mem)
	}
	return parts, true
}

// exposed returns memory of this end that the peer may access with the right.
func (qp *QP) exposed(key uint32, addr, n uint64, right int) ([]byte, bool) {
	if w := qp.f.windowOf(key, qp); w != nil {
		off := addr - w.addr
		if w.access&right == 0 || off > w.length || n > w.length-off {
			return nil, false
		}
		return w.mr.at(addr, n)
	}
	r := qp.f.rkeys[key]
	if r == nil || r.parents[0] != qp.parents[0] || r.mem.Access&right == 0 {
		return nil, false
	}
	return r.at(addr, n)
}

// at returns n bytes of the region starting at addr.
func (r *region) at(addr, n uint64) ([]byte, bool) {
	m := &r.mem
	off := addr - m.Iova
	if m.Access&zeroBased != 0 {
		off = addr
	}
	switch {
	case off > m.Length || n > m.Length-off:
		return nil, false
	case m.Device != nil:
		return deviceMemoryOf(m.Device).bytes[m.Addr+off:][:n], true
	case m.FD >= 0:
		return r.mapped[off:][:n], r.mapped != nil
	}
	return memoryAt(m.Addr+off, n), true
}

func memoryAt(addr, n uint64) []byte {
	return unsafe.Slice(*(**byte)(unsafe.Pointer(&addr)), n)
}

// mapFD maps the memory that a descriptor exports, in whole pages. The fake accepts any file that can be mapped.
func (r *region) mapFD() error {
	page := uint64(unix.Getpagesize())
	first := r.mem.Addr % page
	if r.mem.Length > math.MaxInt32 {
		return unix.EINVAL
	}
	m, err := unix.Mmap(r.mem.FD, int64(r.mem.Addr-first), int(first+r.mem.Length), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err == nil {
		r.pages, r.mapped = m, m[first:]
	}
	return err
}

// ---- the connection manager

// works reports whether the ID is on a working device.
func (id *ID) works() bool { return id.d != nil && id.d.Nature != nil }

// data stores private data as the peer receives it.
func (n *Nature) data(e *cgo.CMEvent, data []byte, most int) {
	e.PrivateDataLen = uint8(len(data))
	if n.Padded {
		e.PrivateDataLen = uint8(most)
	}
	copy(e.PrivateData[:], data)
}

// listener returns the ID that listens at the peer address of id, or nil. The caller must hold mu.
func (f *Library) listener(id *ID) *ID {
	i := slices.IndexFunc(f.listeners, func(l *ID) bool {
		return l.local.Port() == id.peer.Port() && (l.local.Addr().IsUnspecified() || l.local.Addr() == id.peer.Addr())
	})
	if i < 0 {
		return nil
	}
	return f.listeners[i]
}

// request executes a connect on a working device. The caller must hold mu.
func (id *ID) request(p *cgo.ConnParam) unix.Errno {
	f, n := id.f, id.d.Nature
	if len(p.PrivateData) > n.PrivateData.Request {
		return unix.EINVAL
	}
	l := f.listener(id)
	if l == nil {
		id.raise(cgo.CMEvent{Type: Rejected, Status: id.d.refusal(noListener)})
		return 0
	}
	child := &ID{f: f, ch: l.ch, d: id.d, local: id.peer, peer: id.local, other: id}
	f.begin(&child.object, "id", &l.ch.object)
	id.other, id.param = child, p
	e := cgo.CMEvent{Type: ConnectRequest, ResponderResources: p.InitiatorDepth, InitiatorDepth: p.ResponderResources, HasVerbs: 1}
	n.data(&e, p.PrivateData, n.PrivateData.Request)
	l.ch.events = append(l.ch.events, cmEvent{e, child, l})
	l.ch.signal.raise()
	return 0
}

// Reasons for a rejection over InfiniBand (volume 1, 12.6.7.2).
const noListener, byProgram = 8, 28

// refusal returns the status of a rejection: an InfiniBand code, or an errno.
func (d *Device) refusal(code int32) int32 {
	switch {
	case d.Info.Transport != TransportIWARP:
		return code
	case code == noListener:
		return -int32(unix.ECONNRESET)
	}
	return -int32(unix.ECONNREFUSED)
}

// agree executes an accept on a working device. The caller must hold mu.
func (id *ID) agree(p *cgo.ConnParam) unix.Errno {
	n, peer := id.d.Nature, id.other
	if len(p.PrivateData) > n.PrivateData.Reply {
		return unix.EINVAL
	}
	if peer == nil || peer.qp == nil || id.qp == nil {
		return unix.EINVAL // the peer has abandoned the set-up
	}
	id.param, id.up, peer.up = p, true, true
	ird, ord := p.ResponderResources, p.InitiatorDepth
	join(id.qp, peer.qp, int(ord), min(int(peer.param.InitiatorDepth), int(ird)))
	e := cgo.CMEvent{Type: Established, ResponderResources: ord, InitiatorDepth: ird}
	n.data(&e, p.PrivateData, n.PrivateData.Reply)
	peer.raise(e)
	id.raise(cgo.CMEvent{Type: Established})
	return 0
}

// refuse executes a rejection by a program. The caller must hold mu.
func (id *ID) refuse(data []byte) unix.Errno {
	n, peer := id.d.Nature, id.other
	if len(data) > n.PrivateData.Reject {
		return unix.EINVAL
	}
	if peer == nil {
		return unix.EINVAL
	}
	id.other, peer.other = nil, nil
	e := cgo.CMEvent{Type: Rejected, Status: id.d.refusal(byProgram)}
	n.data(&e, data, n.PrivateData.Reject)
	peer.raise(e)
	return 0
}

// part ends the connection of an ID. The caller must hold mu.
func (id *ID) part() unix.Errno {
	peer := id.other
	if !id.up {
		return unix.EINVAL
	}
	id.up = false
	if id.qp != nil {
		id.qp.die()
	}
	id.raise(cgo.CMEvent{Type: Disconnected})
	if peer != nil && peer.up {
		if peer.told = true; peer.d.Info.Transport == TransportIWARP && peer.qp != nil {
			peer.qp.die()
		}
		peer.raise(cgo.CMEvent{Type: Disconnected})
	}
	return 0
}

// vanish ends an ID that its program destroys. The caller must hold mu.
func (id *ID) vanish() {
	f := id.f
	f.listeners = slices.DeleteFunc(f.listeners, func(l *ID) bool { return l == id })
	if !id.works() || id.other == nil {
		return
	}
	peer := id.other
	switch {
	case id.up:
		id.part()
	case id.param == nil && !peer.up: // an unanswered request
		id.refuse(nil)
	}
	if peer.other == id {
		peer.other = nil
	}
}
