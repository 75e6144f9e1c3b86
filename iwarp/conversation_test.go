//go:build linux

package iwarp

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"net"
	"runtime"
	"syscall"
	"testing"
	"time"

	"github.com/rpcrdma/rpcrdma/fabric"
	"github.com/rpcrdma/rpcrdma/internal/llp"
	"github.com/rpcrdma/rpcrdma/proto/ddp"
	"github.com/rpcrdma/rpcrdma/proto/mpa"
	"github.com/rpcrdma/rpcrdma/proto/rdmap"
)

// A talk is a whole conversation, from MPA start-up to Close, between a Conn and a scripted
// peer. The script also controls the Conn's user. Everything runs on one goroutine and
// independently of time, so a script always has the same outcome.
//
// For any script, after each step:
//
//   - memory that the peer may not write at that moment, and that is not in a receive or Read
//     of this side, is unchanged;
//   - the Conn has sent whole FPDUs, no byte of memory that the peer may not read, and nothing
//     after a Terminate message;
//
// At the end each request has completed once, the Conn's end has a typed error, Close returns,
// and no objects, goroutines, descriptors or access rights are left.
type talk struct {
	t      testing.TB
	p      *Provider
	c      *Conn
	fd     int // the peer's end
	active bool
	s      script

	slab, was []byte // memory, and what it held after the last step
	areas     [nAreas]area
	handles   []fabric.Segment // all that were exposed, of which some are still valid
	mrs       [3]fabric.MR
	mws       [3]fabric.MW
	bound     [3]uint32 // STag of each window since it was prepared last

	due  map[uint64]duty // what has been posted and not completed, by ID
	last uint64

	// The peer.
	crc      bool
	gone     bool // it has shut its end, or writing has failed
	deaf     bool // it does not read
	out      []byte
	cut      int // how many of them are let go at the next poll, if not all
	sent     int
	msn      [2]uint32
	mo       uint32
	got      []byte // bytes that do not complete a frame yet
	started  bool   // the start-up frame has arrived
	reads    []rdmap.ReadRequest
	answered uint32 // bytes of the first of reads
	ended    bool   // by a Terminate message of the Conn's
}

// A duty is access that the completion of a request revokes: memory that the peer may write by it, or
// the binding of stag. Zero is nothing.
type duty struct {
	area int
	stag uint32
}

// An area is a part of the slab. The peer may write [open, shut) of it.
type area struct{ lo, hi, open, shut int }

const (
	areaWrite  = 0 // a region for writing
	areaBoth   = 1 // one for both, longer than what is read straight into its place
	areaRead   = 2 // one for reading
	areaLocal  = 3 // one for neither
	areaWindow = 4 // of three windows
	areaRecv   = 7 // of five receives
	areaSink   = 12
	nAreas     = 15
)

// sizes of the areas. The memory between them is unused.
var talkSizes = [nAreas]int{1000, 40000, 1000, 200, 600, 600, 600, 64, 64, 8, 0, 20000, 100, 24000, 0}

const (
	secret = 0x5e // what the peer may not read
	public = 0x22 // what it may

	wildly = 200 // steps from here on may be anything

	mostSteps = 48
	mostSent  = 192 << 10
)

// A script returns its bytes, and then zeros.
type script []byte

func (s *script) next() byte {
	if len(*s) == 0 {
		return 0
	}
	b := (*s)[0]
	*s = (*s)[1:]
	return b
}

// converse runs a script.
func converse(t testing.TB, p *Provider, s script) {
	goroutines, descriptor := runtime.NumGoroutine(), lowestDescriptor(t)
	k := &talk{t: t, p: p, s: s, due: map[uint64]duty{}, msn: [2]uint32{1, 1}}
	k.layOut()
	if k.start() {
		k.equip()
		for steps := 0; len(k.s) > 0 && steps < mostSteps && k.sent < mostSent; steps++ {
			if !k.step() {
				break
			}
		}
		k.finish()
	}
	syscall.Close(k.fd)
	if l := p.OpenObjects(); l != (OpenObjects{}) {
		t.Fatalf("left open: %+v", l)
	}
	for end := time.Now().Add(patience); runtime.NumGoroutine() > goroutines; runtime.Gosched() {
		if time.Now().After(end) {
			t.Fatalf("%d goroutines, %d before", runtime.NumGoroutine(), goroutines)
		}
	}
	if d := lowestDescriptor(t); d > descriptor {
		t.Fatalf("the lowest free descriptor is %d, was %d", d, descriptor)
	}
}

func lowestDescriptor(t testing.TB) int {
	fd, err := syscall.Dup(0)
	if err != nil {
		t.Fatal(err)
	}
	syscall.Close(fd)
	return fd
}

func (k *talk) layOut() {
	at := 64
	for i, n := range talkSizes {
		k.areas[i] = area{lo: at, hi: at + n}
		at += n + 64
	}
	k.slab = bytes.Repeat([]byte{secret}, at)
	for _, i := range []int{areaBoth, areaRead} {
		a := &k.areas[i]
		copy(k.slab[a.lo:a.hi], bytes.Repeat([]byte{public}, a.hi-a.lo))
	}
	k.was = bytes.Clone(k.slab)
}

func (k *talk) memory(i int) []byte { return k.slab[k.areas[i].lo:k.areas[i].hi:k.areas[i].hi] }

func (k *talk) open(i int) { k.areas[i].open, k.areas[i].shut = k.areas[i].lo, k.areas[i].hi }
func (k *talk) shut(i int) { k.areas[i].open, k.areas[i].shut = 0, 0 }

// look checks that memory has changed only where it may.
func (k *talk) look(after string) {
	from := 0
	same := func(to int) {
		if !bytes.Equal(k.slab[from:to], k.was[from:to]) {
			for i := from; i < to; i++ {
				if k.slab[i] != k.was[i] {
					k.t.Fatalf("byte %d of memory has changed from %#x to %#x after %s; areas %+v", i, k.was[i], k.slab[i], after, k.areas)
				}
			}
		}
	}
	for i := range k.areas {
		if a := &k.areas[i]; a.shut > a.open {
			same(a.open)
			copy(k.was[a.open:a.shut], k.slab[a.open:a.shut])
			from = a.shut
		}
	}
	same(len(k.slab))
}

// start sets the connection up. It reports whether it is established.
func (k *talk) start() bool {
	fds, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_STREAM|syscall.SOCK_NONBLOCK|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		k.t.Fatal(err)
	}
	k.fd = fds[1]
	s := newSocket(fds[0])
	how, odd := k.s.next(), k.s.next()
	k.active = how&1 != 0
	k.p.cfg = Config{CRC: how&2 != 0, PeerToPeer: how&4 != 0, RequireCRC: how&8 != 0}
	if how&16 != 0 {
		k.p.cfg.MaxFPDU = 300
	}
	attr, err := New(Config{}).checkAttr(fabric.ConnAttr{SendDepth: 8, RecvDepth: 5, InboundReads: 2, OutboundReads: 2})
	if err != nil {
		k.t.Fatal(err)
	}

	// The peer's frame, which odd corrupts.
	f := mpa.Start{Kind: mpa.Request, Revision: 2, Flags: mpa.FlagEnhanced}
	if k.active {
		f.Kind = mpa.Reply
	}
	if how&32 != 0 {
		f.Flags |= mpa.FlagCRC
	}
	e := mpa.Enhanced{IRD: 2, ORD: 2, PeerToPeer: how&64 != 0, RTRWrite: how&128 != 0}
	var behind []byte
	pd := []byte("private")
	switch arg := k.s.next(); odd & 15 {
	case 1:
		f.Revision = arg & 3
	case 2:
		f.Flags = mpa.Flags(arg)
	case 3:
		e.IRD, e.ORD = uint16(arg)<<6, uint16(arg)<<7&mpa.ReadsUnknown
	case 4:
		e.RTRSend, e.RTRRead, e.RTRWrite = arg&1 != 0, arg&2 != 0, arg&4 != 0
	case 5:
		pd = bytes.Repeat([]byte{arg}, min(2*int(arg), mpa.MaxPrivateData-mpa.EnhancedLen))
	case 6: // bytes after the frame
		behind = bytes.Repeat([]byte{arg}, 1+int(arg))
	case 7:
		f.Flags &^= mpa.FlagEnhanced
		f.Revision = 1
	}
	b := startFrame(f, enhanced(e, pd...))
	if odd&15 == 7 {
		b = startFrame(f, pd)
	}
	b = append(b, behind...)
	switch arg := int(k.s.next()); odd >> 4 & 7 {
	case 1: // a byte of it
		b[arg%len(b)] ^= 1 << (arg & 7)
	case 2: // its end, before it is whole
		b = b[:arg%len(b)]
		syscall.Write(k.fd, b)
		b = nil
		k.hangUp()
	}
	syscall.Write(k.fd, b)

	ctx := context.Background()
	var ended error
	if k.active {
		k.c = k.p.newConn(attr, &setup{laddr: &net.TCPAddr{Port: 1}, raddr: &net.TCPAddr{Port: 2}})
		set, err := k.c.beginSetup(false)
		if err != nil {
			k.t.Fatal(err)
		}
		if err := set.useSocket(s); err != nil {
			k.t.Fatal(err)
		}
		if odd&128 != 0 || odd>>4&7 == 1 {
			k.hangUp() // an altered frame may be the front of a longer one
		}
		ended = set.end(ctx, set.greet(ctx, []byte("ours")))
	} else {
		if odd&128 != 0 || odd>>4&7 == 1 {
			k.hangUp()
		}
		l := &listener{p: k.p, attr: attr, cfg: k.p.cfg.withDefaults(), addr: &net.TCPAddr{Port: 1}, backlog: llp.NewBacklog(1)}
		from := &net.TCPAddr{Port: 2}
		in := startReader{buf: make([]byte, maxStart)}
		if !l.admit(s.f, from) {
			k.t.Fatal("not admitted")
		}
		l.handshake(s, from, &in)
		now, cancel := context.WithCancel(ctx)
		cancel()
		asked, err := l.backlog.Accept(now)
		if err != nil {
			k.read()
			return false
		}
		k.c = asked.(*Conn)
		ended = k.c.Accept(ctx, []byte("ours"))
	}
	if err := ended; err != nil {
		var set *SetupError
		var rej *fabric.RejectError
		if !errors.As(err, &set) && !errors.As(err, &rej) {
			k.t.Fatalf("set-up failed with %T: %v", err, err)
		}
		k.read()
		k.c.Close()
		return false
	}
	k.c.stags.seed()
	k.crc = k.c.link.Load().crc
	return true
}

// equip sets up memory and receives of the Conn.
func (k *talk) equip() {
	for i := range k.mrs {
		k.register(i)
	}
	if _, err := k.c.RegMR(k.memory(areaLocal), fabric.AccessLocalWrite); err != nil {
		k.t.Fatal(err)
	}
	for i := range k.mws {
		k.window(i)
	}
	k.receive(0)
	k.receive(1)
}

func (k *talk) register(i int) {
	access := [3]fabric.Access{fabric.AccessLocalWrite | fabric.AccessRemoteWrite,
		fabric.AccessLocalWrite | fabric.AccessRemoteWrite | fabric.AccessRemoteRead, fabric.AccessRemoteRead}[i]
	mr, err := k.c.RegMR(k.memory(i), access)
	if err != nil {
		k.t.Fatal(err)
	}
	k.mrs[i] = mr
	k.handles = append(k.handles, mr.Segment())
	if i != areaRead {
		k.open(i)
	}
}

func (k *talk) window(i int) {
	mw, err := k.c.AllocMW()
	if err != nil {
		k.t.Fatal(err)
	}
	k.mws[i], k.bound[i] = mw, 0
}

// receive posts receive i, unless it is posted.
func (k *talk) receive(i int) {
	a := areaRecv + i
	if k.posted(a) {
		return
	}
	k.last++
	if err := k.c.PostRecv([]fabric.RecvWR{{ID: k.last, SGE: fabric.SGE{Buf: k.memory(a)}}}); err == nil {
		k.due[k.last] = duty{area: a}
		k.open(a)
	}
}

func (k *talk) posted(area int) bool {
	for _, d := range k.due {
		if d.area == area {
			return true
		}
	}
	return false
}

func (k *talk) post(wr fabric.SendWR, d duty) {
	k.last++
	wr.ID = k.last
	wr.Flags |= fabric.Signaled
	if k.c.Post([]fabric.SendWR{wr}) == nil {
		k.due[wr.ID] = d
		if d.area > 0 {
			k.open(d.area)
		}
	}
}

// step is a byte for the action and four bytes of parameters. It reports whether the
// conversation continues. Actions that end it require a wild parameter, two in nine, so that
// most conversations have some length.
func (k *talk) step() bool {
	op := k.s.next()
	a, b, n, odd := k.s.next(), k.s.next(), k.s.next(), k.s.next()
	wild := op >= wildly
	if op %= 20; !wild {
		odd &^= 15
		if op == 6 || op >= 17 {
			op = 0
		}
	}
	switch op {
	default:
		k.cut = int(a)<<8 | int(b)
		return k.poll()
	case 1:
		seg, to, size := k.aim(wild, a, b, n, fabric.AccessRemoteWrite)
		k.fpdu(odd, tagged(rdmap.OpWrite, odd&16 == 0, seg.Handle, to), size)
	case 2:
		seg, to, size := k.aim(wild, a, b, n, fabric.AccessRemoteRead)
		h := readRequest(k.msn[1], rdmap.ReadRequest{SinkSTag: 1, SinkTO: 2, Size: uint32(size), SrcSTag: seg.Handle, SrcTO: to})
		k.msn[1]++
		k.fpdu(odd, h, 0)
	case 3, 4:
		h := ddp.Untagged{Last: odd&16 == 0, ULP: rdmap.Control(rdmap.OpSend), MSN: k.msn[0], MO: k.mo}
		if op == 4 {
			h.ULP, h.ULP32 = rdmap.Control(rdmap.OpSendSEInv), k.bound[int(a)%3]
			if !wild && !k.c.stags.names(h.ULP32) {
				break
			}
		}
		size := k.length(n)
		if wild {
			h.ULP32 = k.pick(wild, a, 0).Handle
		} else if size = min(size, k.room()-int(k.mo)); size < 0 {
			k.receive(int(a) % 5)
			break
		}
		if k.mo += uint32(size); h.Last {
			k.msn[0]++
			k.mo = 0
		}
		k.fpdu(odd, ddp.AppendUntagged(nil, &h), size)
	case 5:
		if k.read(); !wild {
			if b = 0; len(k.reads) == 0 {
				break
			}
		}
		k.answer(a, b, n, odd)
	case 6:
		m := rdmap.Terminate{Cause: rdmap.Cause{Layer: rdmap.Layer(a & 3), Type: b & 3, Code: n}}
		if odd&16 != 0 {
			m = rdmap.Terminate{Cause: m.Cause, HasSegment: true, Segment: 20, DDP: tagged(rdmap.OpWrite, true, k.pick(wild, a, 0).Handle, 0)}
		}
		k.fpdu(odd, rdmap.AppendTerminate(untagged(rdmap.OpTerminate, true, rdmap.QNTerminate, 1, 0), &m), 0)
	case 7:
		// Arbitrary bytes of the script, in a frame or without.
		if !wild {
			break
		}
		raw := make([]byte, n&63)
		for i := range raw {
			raw[i] = k.s.next()
		}
		if odd&16 != 0 {
			k.say(raw)
		} else {
			k.fpdu(odd, raw, 0)
		}
	case 8:
		k.receive(int(a) % 5)
	case 9:
		k.post(fabric.SendWR{Op: fabric.OpSend, Flags: fabric.SendFlags(b) & (fabric.Solicited | fabric.Fence), SGL: k.gather(n, odd)}, duty{})
	case 10:
		op := [...]fabric.Opcode{fabric.OpWrite, fabric.OpSendInv}[b&1]
		k.post(fabric.SendWR{Op: op, RKey: uint32(a) << 8, RemoteOffset: uint64(b), SGL: k.gather(n, odd)}, duty{})
	case 11:
		if sink := areaSink + int(a)%3; !k.posted(sink) {
			k.post(fabric.SendWR{Op: fabric.OpRead, RKey: 7, RemoteOffset: uint64(b), SGL: []fabric.SGE{{Buf: k.memory(sink)}}}, duty{area: sink})
		}
	case 12:
		k.bind(int(a)%3, b, n, odd)
	case 13:
		key := k.bound[int(a)%3]
		if wild {
			key = k.pick(wild, n, 0).Handle
		} else if !k.c.stags.names(key) {
			break
		}
		k.post(fabric.SendWR{Op: fabric.OpLocalInv, RKey: key}, duty{stag: key})
	case 14:
		if i := int(a) % 3; b&1 == 0 {
			k.mws[i].Close()
			k.look("closing a window")
			k.shut(areaWindow + i)
			k.window(i)
		} else {
			k.mrs[i].Close()
			k.look("closing a region")
			k.shut(i)
			if i == areaWrite {
				k.shut(areaWindow) // of the window that lies in that region
			}
			k.register(i)
		}
	case 15:
		k.deaf = a&1 != 0
	case 16:
		if k.active {
			k.c.nudge()
		}
	case 17:
		k.cut = 0
		k.poll()
		k.hangUp()
		return k.poll()
	case 18:
		k.c.Close()
		return false
	case 19:
		k.cut = 0
		k.poll()
		k.hangUp()
		k.c.Disconnect(context.Background())
		return k.poll()
	}
	k.look("a step")
	return true
}

// bind binds a window to part of its area. The first one lies in a region, the
// others in any memory.
func (k *talk) bind(i int, b, n, odd byte) {
	a := &k.areas[areaWindow+i]
	lo := a.lo + int(b)
	hi := min(lo+2*int(n), a.hi)
	sge := fabric.SGE{Buf: k.slab[lo:hi:hi]}
	if i == 0 {
		// The writable region. The window exposes its last bytes again.
		a = &k.areas[areaWrite]
		lo, hi = a.hi-int(n), a.hi
		sge = fabric.SGE{Buf: k.slab[lo:hi:hi], LKey: k.mrs[areaWrite].LKey()}
	}
	access := [...]fabric.Access{fabric.AccessRemoteWrite, fabric.AccessRemoteRead, fabric.AccessRemoteWrite | fabric.AccessRemoteRead}[int(odd)%3]
	seg, err := k.mws[i].Prepare(sge, access)
	if err != nil {
		if !errors.Is(err, ErrBound) && !errors.Is(err, ErrBadMemory) && !errors.Is(err, net.ErrClosed) {
			k.t.Fatalf("not prepared: %v", err)
		}
		return
	}
	k.handles = append(k.handles, seg)
	k.bound[i] = seg.Handle
	if i > 0 {
		k.shut(areaWindow + i)
		if access&fabric.AccessRemoteWrite != 0 {
			k.areas[areaWindow+i].open, k.areas[areaWindow+i].shut = lo, hi
		}
		if access&fabric.AccessRemoteRead != 0 {
			// Everything that the peer may read is public.
			for j := lo; j < hi; j++ {
				k.slab[j], k.was[j] = public, public
			}
		}
	} else if access&fabric.AccessRemoteRead != 0 {
		for j := lo; j < hi; j++ {
			k.slab[j], k.was[j] = public, public
		}
	}
	k.post(fabric.SendWR{Op: fabric.OpBindMW, MW: k.mws[i]}, duty{})
}

// gather returns a list of up to three SGEs of public memory.
func (k *talk) gather(n, odd byte) (l []fabric.SGE) {
	for range int(odd) % 4 {
		l = append(l, fabric.SGE{Buf: publicBytes[:k.length(n)]})
	}
	return l
}

var publicBytes = bytes.Repeat([]byte{public}, 1<<16)

// room returns the size of the oldest receive, or -1 without one.
func (k *talk) room() int {
	oldest, room := k.last+1, -1
	for id, d := range k.due {
		if d.area >= areaRecv && d.area < areaSink && id < oldest {
			oldest, room = id, talkSizes[d.area]
		}
	}
	return room
}

// pick returns one of the handles that were ever exposed, of which the last are usually valid,
// or, if wild, one that was not.
func (k *talk) pick(wild bool, a byte, need fabric.Access) fabric.Segment {
	if wild {
		switch a {
		case 255:
			return fabric.Segment{}
		case 254:
			return fabric.Segment{Handle: sinkSTag(0), Offset: sinkTO(0), Length: 100}
		case 253:
			return fabric.Segment{Handle: k.c.stags.len() << stagKeyBits, Length: 100}
		}
	}
	seg := k.handles[len(k.handles)-1-int(a&63)%len(k.handles)]
	if wild && a >= 192 {
		seg.Handle ^= 1 << (a & 31)
	} else if wild && a >= 128 {
		seg.Offset ^= 1 << (a & 63)
	}
	if !wild {
		// The next valid one.
		for i := range k.handles {
			if s := k.handles[(len(k.handles)-1-int(a)%len(k.handles)+i)%len(k.handles)]; k.opens(s.Handle, need) {
				return s
			}
		}
	}
	return seg
}

func (k *talk) opens(stag uint32, need fabric.Access) bool {
	_, flt := k.c.stags.exposed(stag, need)
	return flt == faultNone
}

// aim returns an offset and a length: within the bounds of a handle or, if wild, at or around
// its ends.
func (k *talk) aim(wild bool, a, b, n byte, need fabric.Access) (seg fabric.Segment, to uint64, size int) {
	seg = k.pick(wild, a, need)
	size = k.length(n)
	if !wild {
		if n >= 250 {
			size = int(seg.Length)
		}
		size = min(size, int(seg.Length))
		space := int(seg.Length) - size
		return seg, seg.Offset + uint64(min(int(b), space)), size
	}
	delta := uint64(int64(int8(b)) >> 2)
	switch b & 3 {
	case 0:
		to = seg.Offset + uint64(b)
	case 1:
		to = seg.Offset + delta
	case 2:
		to = seg.Offset + uint64(seg.Length) + delta
	case 3:
		to = delta // around zero, and around the end of all offsets
	}
	if n >= 250 {
		// The whole size, plus or minus one.
		size = int(int64(seg.Offset+uint64(seg.Length)-to)) + int(n) - 252
	}
	return seg, to, max(0, min(size, 60000))
}

func (k *talk) length(n byte) int {
	switch {
	case n < 128:
		return int(n)
	case n < 248:
		return int(n-127) * 40
	}
	return [...]int{16383, 16384, 20000, 24000, 39999, 40000, 40001, 60000}[n&7]
}

// answer returns a segment of a Read Response, valid or not.
func (k *talk) answer(a, b, n, odd byte) {
	r := rdmap.ReadRequest{SinkSTag: sinkSTag(uint64(a)), SinkTO: sinkTO(uint64(a)), Size: 100}
	if len(k.reads) > 0 {
		r = k.reads[0]
	}
	size := int(r.Size - min(k.answered, r.Size))
	if n > 0 {
		size = min(size, k.length(n))
	}
	to := r.SinkTO + uint64(k.answered)
	last := k.answered+uint32(size) >= r.Size
	if b&1 != 0 {
		size++
	}
	if b&2 != 0 {
		to++
	}
	if b&4 != 0 {
		r.SinkSTag++
	}
	if b&8 != 0 {
		last = !last
	}
	if b&16 != 0 {
		to -= 1 << 40
	}
	if k.answered += uint32(size); last {
		k.answered = 0
		if len(k.reads) > 0 {
			k.reads = k.reads[1:]
		}
	}
	k.fpdu(odd, tagged(rdmap.OpReadResponse, last, r.SinkSTag, to), size)
}

// fpdu sends a segment with the given payload. The low bits of odd corrupt it.
func (k *talk) fpdu(odd byte, header []byte, payload int) {
	h := bytes.Clone(header)
	if len(h) >= 18 {
		at := int(odd >> 5)
		switch odd & 15 {
		case 1:
			h[0] ^= 1 << at // control of DDP
		case 2:
			h[1] ^= 1 << at // control of RDMAP
		case 3:
			h[2+2*at] ^= 1 // somewhere after it
		case 4:
			h[len(h)-1] ^= 1 << at
		case 5:
			h = h[:len(h)-1-at]
		}
	}
	f := mpa.AppendFPDU(nil, append(h, theirBytes[k.sent%256:][:min(payload, mpa.MaxULPDU-len(h))]...), k.crc)
	switch odd & 15 {
	case 6:
		f[len(f)-1-int(odd>>5)] ^= 1
	case 7:
		f[1] ^= 1 << (odd >> 5)
	case 8:
		f = f[:len(f)-1-int(odd>>5)]
	}
	k.say(f)
}

// theirBytes returns data for the peer to write, which differs from what it has written before
// and from secret memory.
var theirBytes = func() []byte {
	b := make([]byte, 1<<16+256)
	for i := range b {
		b[i] = 0x80 | byte(i%127)
	}
	return b
}()

func (k *talk) say(b []byte) {
	k.out = append(k.out, b...)
	k.sent += len(b)
}

// flush writes the peer's bytes to the socket, as far as it accepts them.
func (k *talk) flush(b []byte) (rest []byte) {
	for len(b) > 0 && !k.gone {
		n, err := syscall.Write(k.fd, b)
		if err == syscall.EAGAIN {
			return b
		}
		if err != nil {
			k.gone = true
			break
		}
		b = b[n:]
	}
	return nil
}

func (k *talk) hangUp() {
	k.gone = true
	syscall.Shutdown(k.fd, syscall.SHUT_WR)
}

// poll makes the Conn process what the peer has sent: up to the cut, if there is one, and the
// rest another time. It reports whether the Conn is alive.
func (k *talk) poll() bool {
	if k.cut > 0 && k.cut < len(k.out) {
		first := k.out[:k.cut]
		k.out = k.out[k.cut:]
		k.flush(first)
		return k.take()
	}
	for {
		before := len(k.out)
		k.out = k.flush(k.out)
		if !k.take() {
			return false
		}
		if len(k.out) == 0 || len(k.out) == before {
			k.out = nil
			return true
		}
	}
}

// take polls until there are no completions.
func (k *talk) take() bool {
	var wc [4]fabric.WC
	for {
		n, err := k.c.Poll(wc[:])
		k.look("Poll")
		k.completed(wc[:n])
		if !k.deaf {
			k.read()
		}
		if err != nil {
			var ce *fabric.ConnError
			if !errors.As(err, &ce) || !errors.Is(err, net.ErrClosed) {
				k.t.Fatalf("ended with %T: %v", err, err)
			}
			return false
		}
		if n == 0 {
			return true
		}
	}
}

// completed executes the duties of completed requests.
func (k *talk) completed(wcs []fabric.WC) {
	for i := range wcs {
		wc := &wcs[i]
		d, ok := k.due[wc.ID]
		if !ok {
			k.t.Fatalf("completed twice, or never posted: %+v", wc)
		}
		delete(k.due, wc.ID)
		if d.area > 0 {
			k.shut(d.area)
		}
		if d.stag != 0 && wc.Status == fabric.WCSuccess {
			k.invalidated(d.stag)
		}
		if wc.WithInv {
			k.invalidated(wc.InvalidatedKey)
		}
	}
}

// invalidated revokes access by stag, unless the window has been bound again.
func (k *talk) invalidated(stag uint32) {
	for i, s := range k.bound {
		if s == stag {
			k.shut(areaWindow + i)
		}
	}
}

// read reads at the peer, and checks what the Conn has sent.
func (k *talk) read() {
	for {
		var buf [16 << 10]byte
		n, err := syscall.Read(k.fd, buf[:])
		if n <= 0 || err != nil {
			break
		}
		k.got = append(k.got, buf[:n]...)
	}
	if !k.started {
		var s mpa.Start
		if _, err := mpa.ConsumeStart(k.got, &s); err != nil || len(k.got) < mpa.StartLen+s.PDLength {
			if err != nil && err != mpa.ErrShort {
				k.t.Fatalf("a frame of start-up that is none: %v in %x", err, k.got)
			}
			return
		}
		k.got = k.got[mpa.StartLen+s.PDLength:]
		k.started = true
	}
	for len(k.got) >= 2 {
		n := mpa.FPDULen(int(binary.BigEndian.Uint16(k.got)))
		if len(k.got) < n {
			return
		}
		if k.ended {
			k.t.Fatalf("%x behind a Terminate message", k.got[:n])
		}
		u, _, err := mpa.ConsumeFPDU(k.got[:n], k.crc)
		if err != nil {
			k.t.Fatalf("sent %x: %v", k.got[:n], err)
		}
		k.segment(u)
		k.got = k.got[n:]
	}
}

func (k *talk) segment(u []byte) {
	if len(u) < ddp.TaggedLen {
		k.t.Fatalf("sent a segment of %x", u)
	}
	op, err := rdmap.ParseControl(u[1])
	h := ddp.UntaggedLen
	if ddp.IsTagged(u) {
		h = ddp.TaggedLen
	}
	if err != nil || op.Tagged() != ddp.IsTagged(u) || len(u) < h {
		k.t.Fatalf("sent a segment of %x: %v", u, err)
	}
	switch op {
	case rdmap.OpReadResponse:
		if i := bytes.IndexByte(u[h:], secret); i >= 0 {
			k.t.Fatalf("byte %d of a Read Response is from memory that is not for reading: %x", i, u)
		}
	case rdmap.OpReadRequest:
		var r rdmap.ReadRequest
		if _, err := rdmap.ConsumeReadRequest(u[h:], &r); err != nil {
			k.t.Fatalf("sent a Read Request of %x: %v", u, err)
		}
		k.reads = append(k.reads, r)
	case rdmap.OpTerminate:
		k.ended = true
	}
}

// finish ends the conversation.
func (k *talk) finish() {
	k.deaf, k.cut = false, 0
	if !k.c.shut.Load() {
		if k.poll() {
			k.hangUp()
		}
		// The end of the stream has arrived, so Wait returns; the peer first reads what the
		// Conn still has to send.
		for k.take() {
			k.c.Wait()
		}
		if len(k.due) > 0 {
			k.t.Fatalf("ended, and not completed: %v", k.due)
		}
		// Nothing may be placed from now on.
		for i := range k.areas {
			k.shut(i)
		}
		k.out = nil
		for _, seg := range k.handles {
			k.fpdu(0, tagged(rdmap.OpWrite, true, seg.Handle, seg.Offset), 1)
		}
		k.flush(k.out)
		k.c.Poll(nil)
		k.look("the end")
	}
	k.c.Close()
	k.look("Close")
	k.read()
}

// A step of a script, for seeds: an action and its parameters.
type step [5]byte

// Starts of seeds.
const (
	roleActive    = 1
	asksCRC       = 2
	asksPeers     = 4
	needsCRC      = 8
	shortSegments = 16
	peerAsksCRC   = 32
	peerWantsRTR  = 64 | 128
)

func talkScript(how, odd, arg byte, steps ...step) []byte {
	b := []byte{how, odd, arg, 0}
	for _, s := range steps {
		b = append(b, s[:]...)
	}
	return b
}

// conversations are seeds: valid and invalid behavior of peers.
func conversations() (all [][]byte) {
	const (
		poll, write, read, send, sendInv, answer, terminate, raw = 0, 1, 2, 3, 4, 5, 6, 7
		recv, post, postWrite, postRead, bind, inv, end, deaf    = 8, 9, 10, 11, 12, 13, 14, 15
		nudge, hangUp, closes, disconnect                        = 16, 217, 218, 219
		wild                                                     = wildly // to be added
		most                                                     = 252    // as much as there is
	)
	talks := [][]step{
		// Messages in both directions, with receives posted again.
		{{send, 0, 0, 10, 0}, {}, {post, 0, 0, 20, 1}, {recv, 0, 0, 0, 0}, {send, 0, 0, 64, 0}, {}, {hangUp}},
		// Writes to all of two regions, in segments, in order and otherwise.
		{{wild + write, 2, 0, most, 0}, {wild + write, 1, 0, most, 0}, {}, {write, 1, 0, 249, 16}, {write, 1, 0, 10, 0}, {0, 16, 0}, {hangUp}},
		// Reads, two at once; a third one is too many while the peer does not read.
		{{wild + read, 0, 0, most, 0}, {read, 1, 0, most, 0}, {}, {read, 1, 1, 200, 0}, {}, {deaf, 1}, {read, 1, 0, most, 0}, {read, 1, 0, most, 0}, {}, {hangUp}},
		// A window is bound, written to, invalidated by the peer, and accessed again.
		{{bind, 1, 4, 100, 2}, {wild + write, 0, 0, most, 0}, {wild + read, 0, 0, most, 0}, {}, {wild + sendInv, 0, 0, 3, 0}, {}, {wild + write, 0, 0, 1, 0}, {}},
		{{bind, 1, 4, 100, 2}, {wild + write, 0, 0, most, 0}, {}, {wild + sendInv, 0, 0, 3, 0}, {}, {bind, 1, 8, 50, 0}, {wild + write, 0, 0, most, 0}, {}, {wild + write, 1, 0, 1, 0}, {}},
		// The same, revoked by this side in all ways, and in the middle of a Write.
		{{bind, 2, 0, 255, 2}, {wild + write, 0, 0, most, 0}, {}, {inv, 2}, {}, {wild + write, 0, 0, 1, 0}, {}},
		{{bind, 2, 0, 255, 2}, {wild + write, 0, 0, most, 0}, {0, 0, 40}, {inv, 2}, {0, 0, 40}, {}},
		{{bind, 2, 0, 255, 2}, {wild + write, 0, 0, most, 0}, {0, 0, 40}, {end, 2, 0}, {}},
		{{bind, 2, 0, 255, 2}, {wild + write, 0, 0, 100, 16}, {wild + write, 0, 0, most, 0}, {0, 0, 130}, {end, 2, 0}, {}},
		{{bind, 0, 0, 90, 2}, {wild + write, 0, 0, most, 0}, {0, 0, 40}, {end, 0, 1}, {}},
		{{bind, 0, 0, 90, 2}, {wild + write, 0, 0, most, 0}, {}, {end, 0, 1}, {wild + write, 1, 0, 10, 0}, {}},
		{{wild + write, 1, 0, most, 0}, {0, 64, 0}, {end, 1, 1}, {0, 64, 0}, {}},
		// One byte too many, at both ends, and rights that are not there.
		{{wild + write, 2, 0, 253, 0}, {}}, {{wild + write, 2, 0xfd, 4, 0}, {}}, {{wild + write, 2, 0xfe, 2, 0}, {}}, {{wild + write, 0, 0, 4, 0}, {}},
		{{wild + read, 0, 0, 253, 0}, {}}, {{wild + read, 0, 0xfd, 4, 0}, {}}, {{wild + read, 0, 0xfe, 2, 0}, {}}, {{wild + read, 2, 0, 4, 0}, {}},
		{{wild + send, 0, 0, 65, 0}, {}}, {{send, 0, 0, 60, 16}, {wild + send, 0, 0, 5, 0}, {}},
		// Reads of this side, with valid and invalid responses.
		{{post, 0, 0, 1, 1}, {postRead, 0}, {postRead, 1}, {postRead, 2}, {}, {answer, 0, 0, 50, 0}, {answer, 0, 0, 0, 0}, {}, {answer, 0, 0, 249, 0}, {0, 64, 0}, {answer}, {}, {answer}, {}, {hangUp}},
		{{postRead, 0}, {}, {wild + answer, 0, 1}, {}},
		{{postRead, 0}, {}, {wild + answer, 0, 1 + 8}, {}},
		{{postRead, 0}, {}, {wild + answer, 0, 2}, {}},
		{{postRead, 0}, {}, {wild + answer, 0, 4}, {}},
		// The end of a stream.
		{{wild + terminate, 1, 1, 2, 16}, {}},
		{{wild + send, 0, 0, 10, 6}, {}},
		{{send, 0, 0, 10, 16}, {send, 0, 0, 55, 0}, {}, {wild + send, 0, 0, 100, 0}, {}},
		{{wild + write, 2, 2, 4, 0}, {}},
		{{wild + write, 2, 3, 4, 0}, {}},
		{{wild + write, 200, 0, 4, 0}, {}},
		{{wild + read, 130, 0, 4, 0}, {}},
		{{wild + raw, 0, 0, 5, 16}, {'a', 'b', 'c', 'd', 'e'}, {}},
		// Ends caused by this side.
		{{post, 0, 0, 5, 3}, {postWrite, 1, 1, 249, 2}, {postWrite, 1, 0, 249, 2}, {disconnect}},
		{{post, 0, 0, 5, 3}, {nudge}, {closes}},
		{{deaf, 1}, {postWrite, 1, 0, 255, 3}, {postWrite, 1, 0, 255, 3}, {postWrite, 1, 0, 255, 3}, {postWrite, 1, 0, 255, 3}, {recv, 3}, {}, {hangUp}},
	}
	for i, steps := range talks {
		how := byte(i % 4) // both roles, with and without CRC
		if how&roleActive != 0 {
			// This side sends first.
			steps = append([]step{{post, 0, 0, 1, 1}}, steps...)
		}
		all = append(all, talkScript(how, 0, 0, steps...), talkScript(how^roleActive|shortSegments, 0, 0, append([]step{{post, 0, 0, 1, 1}}, steps...)...))
	}
	for odd := range byte(8) {
		for _, arg := range []byte{0, 0x50, 0xff} {
			all = append(all, talkScript(odd&roleActive|asksPeers|peerWantsRTR, odd, arg, step{post, 0, 0, 1, 1}, step{}),
				talkScript(^odd&roleActive|needsCRC|peerAsksCRC, odd, arg, step{post, 0, 0, 1, 1}, step{}))
		}
	}
	return append(all, talkScript(0, 1<<4, 0), talkScript(1, 1<<4, 0), talkScript(0, 2<<4, 0), talkScript(1, 2<<4, 0))
}

// FuzzConversation runs arbitrary behavior of a peer and of the Conn's user, in either role:
// see talk.
func FuzzConversation(f *testing.F) {
	for _, s := range conversations() {
		f.Add(s)
	}
	p := New(Config{})
	noNudges(p)
	f.Fuzz(func(t *testing.T, b []byte) {
		if len(b) > 4+5*mostSteps {
			return
		}
		converse(t, p, b)
	})
}
