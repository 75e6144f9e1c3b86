package transport_test

import (
	"bytes"
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/rpcrdma/rpcrdma/fabric"
	"github.com/rpcrdma/rpcrdma/internal/testing/leak"
	"github.com/rpcrdma/rpcrdma/iwarp"
	"github.com/rpcrdma/rpcrdma/proto/oncrpc"
	"github.com/rpcrdma/rpcrdma/proto/rpcrdma"
	"github.com/rpcrdma/rpcrdma/proto/xdr"
	"github.com/rpcrdma/rpcrdma/rpc"
	"github.com/rpcrdma/rpcrdma/transport"
)

// Memory attacks. An intruder is a peer that speaks the protocol as it should, keeps every handle
// that it is ever given, and reads and writes with them where it was not asked to: outside of what a
// call exposes or in the other direction while the call lasts, and anywhere after it has returned,
// was given up, or lost its connection; during other calls, and on other connections of the same
// process. Each attempt must be refused, which ends the connection, so that there is one to a
// connection. Exposed memory, and the memory beside it, is compared byte by byte after each attempt.

// A victim is an end under attack, on a bed.
type victim struct {
	// looseReads: a Read needs no right, only a region of the connection (siw).
	looseReads bool
	// looseWindows: windows do not hold their bounds within the region beneath (rxe),
	// which is an item's own only where a client has not registered more for good.
	looseWindows bool
	// looseInvalidation: an invalidation that fails does not end the connection (rxe).
	looseInvalidation bool
	server            bool
	// registered: the client has registered the memory of its calls for good. Without
	// windows it is open between calls then.
	registered bool
}

// A hitError says that an attempt has succeeded.
type hitError struct{ what string }

func (e *hitError) Error() string { return e.what }

func hit(format string, args ...any) error { return &hitError{fmt.Sprintf(format, args...)} }

// A moment is when an attempt is made.
type moment int

const (
	during    moment = iota // outside of what the call under way exposes
	racing                  // while the call returns
	returned                // after the call
	givenUp                 // after a call that the caller has given up
	nextCall                // while the next call is under way
	nextConn                // with what an earlier connection exposed, on a new one
	otherConn               // with what another connection exposes at the time
	moments
)

func (m moment) String() string {
	return [...]string{"during", "racing", "returned", "given up", "next call", "next connection", "other connection"}[m]
}

// A handle is memory that was exposed to an intruder.
type handle struct {
	rpcrdma.Segment
	access fabric.Access // what it opens
	arena  bool          // it is about memory of the transport
}

// openBoth are the rights of a registration for good where there are no windows.
const openBoth = fabric.AccessRemoteRead | fabric.AccessRemoteWrite

// A strike is one attempt.
type strike struct {
	op     fabric.Opcode
	handle uint32
	offset uint64
	length int
	what   string
	late   bool // the victim may have ended the connection for its sake
}

func (s strike) String() string {
	op := map[fabric.Opcode]string{fabric.OpRead: "Read", fabric.OpWrite: "Write", fabric.OpSendInv: "invalidation"}[s.op]
	return fmt.Sprintf("%s of %d bytes, %s (handle %#x, offset %#x)", op, s.length, s.what, s.handle, s.offset)
}

// use is a strike with the right that a handle had.
func (h handle) use(rng *rand.Rand, what string) strike {
	s := strike{op: fabric.OpWrite, handle: h.Handle, what: what}
	if h.access == fabric.AccessRemoteRead || h.access == openBoth && rng.IntN(2) == 0 {
		s.op = fabric.OpRead
	}
	s.length = 1 + rng.IntN(int(h.Length))
	s.offset = h.Offset + rng.Uint64N(uint64(h.Length)-uint64(s.length)+1)
	return s
}

// outside is a strike during the call that has exposed h to e.
func (v *victim) outside(rng *rand.Rand, h handle, e *rawEnd) strike {
	for {
		s := h.use(rng, "")
		n, far := uint64(h.Length), h.Offset
		set := func(what string, offset uint64, length int) {
			s.what, s.offset, s.length = what, offset, length
		}
		bounds := false
		switch rng.IntN(9) {
		case 0:
			set("behind the end", far+n+rng.Uint64N(4096), 1+rng.IntN(64))
			bounds = true
		case 1:
			set("over the end", far+n-1, 2)
			bounds = true
		case 2:
			set("in front", far-1-rng.Uint64N(4096), 1)
			bounds = true
		case 3:
			set("over the beginning", far-1, 2)
			bounds = true
		case 4:
			set("longer than all", far, int(n)+1)
			bounds = true
		case 5:
			set("far away", far^1<<(32+rng.IntN(31)), 1)
		case 6, 7:
			s.what = "in the other direction"
			if h.access == openBoth {
				continue
			}
			if s.op = fabric.OpWrite; h.access == fabric.AccessRemoteWrite {
				if s.op = fabric.OpRead; v.looseReads {
					continue
				}
			}
		case 8:
			s.what = "by a handle that looks like one"
			s.handle ^= 1 << rng.IntN(32)
			if e.has(s.handle) {
				continue
			}
		}
		if bounds && v.looseWindows && (h.arena || v.registered || v.server) {
			continue
		}
		return s
	}
}

// An intruder keeps what all its connections were given.
type intruder struct {
	t    *testing.T
	v    *victim
	b    *bed
	p    fabric.Provider
	made [moments]atomic.Int64
	lost atomic.Int64 // attempts that were not made: the connection ended before

	mu   sync.Mutex
	kept []handle // of connections that have ended
}

// keep remembers what a connection was given that has ended.
func (in *intruder) keep(rng *rand.Rand, hs []handle) {
	in.mu.Lock()
	defer in.mu.Unlock()
	for _, h := range hs {
		if len(in.kept) < 4096 {
			in.kept = append(in.kept, h)
		} else {
			in.kept[rng.IntN(len(in.kept))] = h
		}
	}
}

// old is a handle of a connection that has ended.
func (in *intruder) old(rng *rand.Rand) (handle, bool) {
	in.mu.Lock()
	defer in.mu.Unlock()
	if len(in.kept) == 0 {
		return handle{}, false
	}
	if rng.IntN(2) == 0 { // one of the latest; its place may have been taken
		return in.kept[len(in.kept)-1-rng.IntN(min(8, len(in.kept)))], true
	}
	return in.kept[rng.IntN(len(in.kept))], true
}

// A rawEnd is an end of a connection in the intruder's hands.
type rawEnd struct {
	c     fabric.Conn
	ctx   context.Context
	mr    fabric.MR
	recvs []fabric.WC // completions that were not asked for
	sends []fabric.WC
	given []handle
}

const (
	rawMessage = 4096
	rawRecvs   = 4
	rawData    = 32 << 10
)

var rawPrivate = rpcrdma.AppendPrivateData(nil, rpcrdma.PrivateData{RemoteInvalidation: true, SendSize: rawMessage, RecvSize: rawMessage}) // immutable

// newRawEnd prepares a connection that is not established yet.
func newRawEnd(ctx context.Context, c fabric.Conn) (*rawEnd, error) {
	e := &rawEnd{c: c, ctx: ctx}
	var err error
	if e.mr, err = c.RegMR(make([]byte, (rawRecvs+1)*rawMessage+rawData), fabric.AccessLocalWrite); err != nil {
		return nil, err
	}
	for i := range rawRecvs {
		if err := e.receive(i); err != nil {
			return nil, err
		}
	}
	return e, nil
}

func (e *rawEnd) part(from, n int) fabric.SGE {
	return fabric.SGE{Buf: e.mr.Bytes()[from:][:n:n], LKey: e.mr.LKey()}
}

func (e *rawEnd) data(n int) fabric.SGE { return e.part((rawRecvs+1)*rawMessage, n) }

func (e *rawEnd) receive(i int) error {
	return e.c.PostRecv([]fabric.RecvWR{{ID: uint64(i), SGE: e.part(i*rawMessage, rawMessage)}})
}

// next takes the first of a list of completions, polling until there is one.
func (e *rawEnd) next(list *[]fabric.WC) (wc fabric.WC, err error) {
	for len(*list) == 0 {
		var wcs [8]fabric.WC
		n, err := e.c.Poll(wcs[:])
		if err != nil {
			return wc, err
		}
		for _, wc := range wcs[:n] {
			if wc.Op == fabric.WCRecv {
				e.recvs = append(e.recvs, wc)
			} else {
				e.sends = append(e.sends, wc)
			}
		}
		if n == 0 {
			// Should the connection have ended, Poll says so.
			if err := fabric.WaitContext(e.ctx, e.c); err != nil && e.ctx.Err() != nil {
				return wc, e.ctx.Err()
			}
		}
	}
	wc, *list = (*list)[0], (*list)[1:]
	return wc, nil
}

// message returns the next message of the victim, and notes what it exposes.
func (e *rawEnd) message() (h rpcrdma.Header, payload []byte, err error) {
	wc, err := e.next(&e.recvs)
	if err != nil || wc.Status != fabric.WCSuccess {
		return h, nil, errors.Join(err, fmt.Errorf("a receive completed with %v", wc.Status))
	}
	msg := bytes.Clone(e.part(int(wc.ID)*rawMessage, int(wc.Len)).Buf)
	if err := e.receive(int(wc.ID)); err != nil {
		return h, nil, err
	}
	n, err := rpcrdma.ConsumeHeader(msg, &h, nil)
	if err != nil {
		return h, nil, err
	}
	for _, s := range h.Reads {
		e.given = append(e.given, handle{s.Segment, fabric.AccessRemoteRead, s.Position == 0})
	}
	for _, chunk := range h.Writes {
		for _, s := range chunk {
			e.given = append(e.given, handle{s, fabric.AccessRemoteWrite, false})
		}
	}
	for _, s := range h.Reply {
		e.given = append(e.given, handle{s, fabric.AccessRemoteWrite, true})
	}
	return h, msg[n:], nil
}

// has reports whether the peer exposes something by a handle of this number, on this
// connection. Then it may be invalidated, whatever the offset that goes with it.
func (e *rawEnd) has(number uint32) bool {
	return slices.ContainsFunc(e.given, func(h handle) bool { return h.Handle == number })
}

// do carries out a request.
func (e *rawEnd) do(wr fabric.SendWR) error {
	wr.Flags = fabric.Signaled
	if err := e.c.Post([]fabric.SendWR{wr}); err != nil {
		return err
	}
	wc, err := e.next(&e.sends)
	if err == nil && wc.Status != fabric.WCSuccess {
		err = fmt.Errorf("a request failed with %v", wc.Status)
	}
	return err
}

// send sends a message, and invalidates inv with it if that is not zero.
func (e *rawEnd) send(msg []byte, inv uint32) error {
	sge := e.part(rawRecvs*rawMessage, len(msg))
	copy(sge.Buf, msg)
	wr := fabric.SendWR{Op: fabric.OpSend, SGL: []fabric.SGE{sge}}
	if inv != 0 {
		wr.Op, wr.RKey = fabric.OpSendInv, inv
	}
	return e.do(wr)
}

// reply answers a call that came with header h. The write chunk gets n bytes.
func (e *rawEnd) reply(h *rpcrdma.Header, n uint32, inv uint32) error {
	return e.send(replyTo(h, n), inv)
}

func replyTo(h *rpcrdma.Header, n uint32) []byte {
	r := rpcrdma.Header{XID: h.XID, Vers: rpcrdma.Version1, Credit: 8}
	if len(h.Writes) > 0 {
		s := h.Writes[0][0]
		s.Length = n
		r.Writes = []rpcrdma.WriteChunk{{s}}
	}
	msg := oncrpc.AppendReply(rpcrdma.AppendHeader(nil, &r), &oncrpc.ReplyHeader{XID: h.XID})
	return xdr.AppendUint32(msg, n)
}

// call sends a call of a program without chunks.
func (e *rawEnd) call(xid, prog, proc, arg uint32) error {
	msg := rpcrdma.AppendHeader(nil, &rpcrdma.Header{XID: xid, Vers: rpcrdma.Version1, Credit: 8})
	msg = oncrpc.AppendCall(msg, &oncrpc.CallHeader{XID: xid, RPCVers: oncrpc.Version, Prog: prog, Vers: 1, Proc: proc})
	return e.send(xdr.AppendUint32(msg, arg), 0)
}

// strike makes an attempt, which has to end the connection.
func (e *rawEnd) strike(s strike) error {
	sge := e.data(s.length)
	for i := range sge.Buf {
		sge.Buf[i] = 0
		if s.op == fabric.OpWrite {
			sge.Buf[i] = 0xee
		}
	}
	wr := fabric.SendWR{ID: 1, Op: s.op, Flags: fabric.Signaled, SGL: []fabric.SGE{sge}, RKey: s.handle, RemoteOffset: s.offset}
	switch err := e.c.Post([]fabric.SendWR{wr}); {
	case s.late && errors.Is(err, net.ErrClosed):
		return nil
	case err != nil:
		return fmt.Errorf("%v was not made: %w", s, err)
	}
	for {
		wc, err := e.next(&e.sends)
		if e.ctx.Err() != nil {
			return hit("%v was not refused: the connection lives", s)
		}
		if err != nil {
			break
		}
		if s.op == fabric.OpRead && wc.Status == fabric.WCSuccess {
			return hit("%v was carried out", s)
		}
	}
	if s.op == fabric.OpRead {
		for _, b := range sge.Buf {
			if b != 0 {
				return hit("%v was refused, and has brought data", s)
			}
		}
	}
	return nil
}

// margin is the memory on either side of a haven's mem.
const margin = 5000

// race sends a message that ends the exposure of h, and uses it as often as it can right after that,
// in one list. It calls then when the connection has all of that; then waits until the victim has its
// memory back. It returns what the last use has brought, when the connection has ended.
func (e *rawEnd) race(msg []byte, h handle, then func()) ([]byte, error) {
	const uses, size = 8, 4096
	sge := e.part(rawRecvs*rawMessage, len(msg))
	copy(sge.Buf, msg)
	list := []fabric.SendWR{{Op: fabric.OpSend, SGL: []fabric.SGE{sge}}}
	data := e.data(size)
	for i := range data.Buf {
		data.Buf[i] = 0
		if h.access == fabric.AccessRemoteWrite {
			data.Buf[i] = 0xee
		}
	}
	for range uses {
		s := fabric.SendWR{Op: fabric.OpWrite, Flags: fabric.Signaled, SGL: []fabric.SGE{data}, RKey: h.Handle, RemoteOffset: h.Offset}
		if h.access == fabric.AccessRemoteRead {
			s.Op = fabric.OpRead
		}
		list = append(list, s)
	}
	if err := e.c.Post(list); err != nil {
		return nil, err
	}
	then()
	// One more, should all have been in time.
	_ = e.c.Post(list[1:2])
	for {
		if _, err := e.next(&e.sends); e.ctx.Err() != nil {
			return nil, hit("an access was not refused: the connection lives")
		} else if err != nil {
			return data.Buf, nil
		}
	}
}

// A haven is memory that calls expose parts of, in the midst of memory that is never exposed.
type haven struct {
	all, want []byte
	mem       []byte // the memory that is registered for good, if any
	src, dst  []byte // of mem, exposed to be read, and to be written
	srcAt     int    // of src in mem
	dstAt     int    // of dst in mem
}

func newHaven(rng *rand.Rand) *haven {
	g := &haven{all: make([]byte, 32<<10)}
	g.want = make([]byte, len(g.all))
	g.mem = g.all[margin : len(g.all)-margin]
	n := 5000 + rng.IntN(2000)
	g.srcAt = 100 + rng.IntN(3000)
	g.dstAt = g.srcAt + n + 100 + rng.IntN(3000)
	g.src, g.dst = g.mem[g.srcAt:][:n], g.mem[g.dstAt:][:n] // with room after them
	return g
}

// fill puts secrets everywhere.
func (g *haven) fill(rng *rand.Rand) {
	for i := 0; i < len(g.all); i += 8 {
		binary.LittleEndian.PutUint64(g.all[i:], rng.Uint64())
	}
	copy(g.want, g.all)
}

// check looks whether anything has changed.
func (g *haven) check() error {
	if bytes.Equal(g.all, g.want) {
		return nil
	}
	for i := range g.all {
		if g.all[i] != g.want[i] {
			return hit("memory has changed from byte %d on of %d: %x", i, len(g.all), g.all[i:min(i+16, len(g.all))])
		}
	}
	return nil
}

// exact checks that only parts of the haven are exposed, as far as it is.
func (g *haven) exact(given []handle) error {
	for _, h := range given {
		if int(h.Length) != len(g.src) && !h.arena {
			return hit("%d bytes are exposed, of %d", h.Length, len(g.src))
		}
	}
	return nil
}

// newCall is a call that exposes parts of a haven, and now and then memory of the
// transport.
func (g *haven) newCall(rng *rand.Rand) *rpc.Call {
	c := &rpc.Call{Prog: prog, Vers: 1, Proc: 1, MaxResults: 8,
		Args: xdr.AppendUint32(nil, uint32(len(g.src))), ReadItems: []rpc.ReadItem{{Offset: 4, Data: g.src}},
		WriteItems: []rpc.WriteItem{{Buf: g.dst}}}
	if rng.IntN(4) == 0 {
		c.MaxResults = 9000 // needs a reply chunk
	}
	if rng.IntN(4) == 0 {
		c.Args = append(c.Args, make([]byte, 6000)...) // needs a position-zero chunk
	}
	return c
}

// A lair is one of several places that an intruder makes attempts from, one after
// another.
type lair struct {
	*intruder
	rng    *rand.Rand
	haven  *haven
	listen fabric.Listener // where the intruder is a server

	// Where it is a client:
	addr string
	svc  *exposing
	no   uint32
}

// connect has a new client connect to the intruder.
func (l *lair) connect(ctx context.Context) (*transport.Client, *rawEnd, error) {
	type accepted struct {
		e   *rawEnd
		err error
	}
	done := make(chan accepted, 1)
	go func() {
		c, err := l.listen.Accept(ctx)
		if err != nil {
			done <- accepted{nil, err}
			return
		}
		e, err := newRawEnd(ctx, c)
		if err == nil {
			err = c.Accept(ctx, rawPrivate)
		}
		if err != nil {
			c.Close()
		}
		done <- accepted{e, err}
	}()
	cl, err := transport.Dial(ctx, l.p, l.listen.Addr().String(), transport.Once(&transport.Settings{
		Version: transport.Version1, PeerChunks: transport.AllChunks, Credits: 8, MaxMessage: 1 << 20,
		BounceMax: -1, // what the program has is exposed itself: see TestBounce for the rest
	}).Client())
	a := <-done
	if err = errors.Join(err, a.err); err != nil {
		if cl != nil {
			cl.Close()
		}
		if a.err == nil {
			a.e.c.Close()
		}
		return nil, nil, err
	}
	return cl, a.e, nil
}

// onClient makes one attempt on a client.
func (l *lair) onClient(ctx context.Context, m moment, other *bystander) error {
	g := l.haven
	g.fill(l.rng)
	cl, e, err := l.connect(ctx)
	if err != nil {
		return err
	}
	defer cl.Close()
	defer e.c.Close()
	caps := cl.Info().Capabilities
	if m == racing && (caps.WeakRevocation || l.v.registered && !caps.MemoryWindows) {
		m = returned // the call's end does not stop an access that has begun
	}
	var mem *transport.Memory
	if l.v.registered {
		if mem, err = cl.RegisterMemory(g.mem); err != nil {
			return err
		}
	}
	callCtx, cancel := context.WithCancel(ctx)
	defer cancel()
	begin := func() (h rpcrdma.Header, done chan error, err error) {
		call := g.newCall(l.rng)
		done = make(chan error, 1)
		go func() { done <- cl.Call(callCtx, call) }()
		h, _, err = e.message()
		return h, done, err
	}
	h, done, err := begin()
	if err == nil {
		err = g.exact(e.given)
	}
	if err != nil {
		return err
	}
	if mem != nil && !caps.MemoryWindows {
		// All of it is open, in both directions.
		for i := range e.given {
			if d := &e.given[i]; !d.arena {
				at := g.dstAt
				if d.access == fabric.AccessRemoteRead {
					at = g.srcAt
				}
				d.Offset -= uint64(at)
				d.Length, d.access = uint32(len(g.mem)), openBoth
			}
		}
	}
	defer l.keep(l.rng, slices.Clone(e.given))
	given := e.given
	// finish has the call return, with the memory that it has used being the caller's again.
	finish := func() error {
		n, inv := uint32(0), uint32(0)
		if l.rng.IntN(4) == 0 { // the server does its work
			n = uint32(len(g.dst))
			sge := e.data(len(g.dst))
			fill(sge.Buf, 7)
			copy(g.want[margin+g.dstAt:], sge.Buf)
			seg := h.Writes[0][0]
			if err := e.do(fabric.SendWR{Op: fabric.OpWrite, SGL: []fabric.SGE{sge}, RKey: seg.Handle, RemoteOffset: seg.Offset}); err != nil {
				return err
			}
		}
		if cl.Info().RemoteInvalidation && l.rng.IntN(2) == 0 {
			inv = given[l.rng.IntN(len(given))].Handle
		}
		if err := e.reply(&h, n, inv); err != nil {
			return err
		}
		if err := <-done; err != nil {
			return err
		}
		if err := g.check(); err != nil {
			return fmt.Errorf("after the reply: %w", err)
		}
		if mem != nil {
			mem.Close() // until then the memory is open where there are no windows
		}
		g.fill(l.rng)
		return nil
	}
	pick := given[l.rng.IntN(len(given))]
	s := pick.use(l.rng, "")
	switch m {
	case during:
		s = l.v.outside(l.rng, pick, e)
	case racing:
		at := slices.IndexFunc(given, func(h handle) bool { return h.access == fabric.AccessRemoteWrite && !h.arena })
		return l.raceWrites(e, replyTo(&h, 0), given[at], done)
	case returned:
		if err := finish(); err != nil {
			return err
		}
	case givenUp:
		cancel()
		if err := <-done; !errors.Is(err, context.Canceled) {
			return fmt.Errorf("a call that was given up: %w", err)
		}
		if mem != nil {
			mem.Close()
		}
		g.fill(l.rng)
		s.late = caps.WeakRevocation
	case nextCall:
		if err := finish(); err != nil {
			return err
		}
		callCtx = ctx
		if _, done, err = begin(); err != nil {
			return err
		}
	case nextConn, otherConn:
		s = l.foreign(m, pick, e, other.e)
	}
	if err := l.strike(m, e, s); err != nil {
		return err
	}
	cl.Close()
	if m != returned && m != givenUp {
		<-done
	}
	return errors.Join(g.check(), other.g.check())
}

// foreign is a strike at what e has never been given: an earlier connection has, or other.
func (l *lair) foreign(m moment, pick handle, e, other *rawEnd) strike {
	s := l.v.outside(l.rng, pick, e)
	if m == otherConn {
		s = other.given[l.rng.IntN(len(other.given))].use(l.rng, "")
	} else if old, ok := l.old(l.rng); ok {
		s = old.use(l.rng, "")
	}
	if !l.v.looseInvalidation && !e.has(s.handle) && l.rng.IntN(4) == 0 {
		s.op, s.length = fabric.OpSendInv, 1
	}
	return s
}

// strike makes one attempt of the moment's kind.
func (l *lair) strike(m moment, e *rawEnd, s strike) error {
	s.what = cmp.Or(s.what, m.String())
	if err := e.strike(s); err != nil {
		return err
	}
	l.made[m].Add(1)
	return nil
}

// raceWrites has a call return, and writes to its memory at the same time.
func (l *lair) raceWrites(e *rawEnd, reply []byte, h handle, done <-chan error) error {
	g := l.haven
	var then []byte
	_, err := e.race(reply, h, func() {
		<-done // the reply is in time, or the connection ends before it
		then = bytes.Clone(g.all)
	})
	if err != nil {
		return err
	}
	l.made[racing].Add(1)
	if !bytes.Equal(g.all, then) {
		return hit("memory has changed behind the call's end")
	}
	dst := margin + g.dstAt
	if !bytes.Equal(g.all[:dst], g.want[:dst]) || !bytes.Equal(g.all[dst+len(g.dst):], g.want[dst+len(g.dst):]) {
		return hit("memory beside the call's has changed")
	}
	return nil
}

// A bystander is a connection that nothing happens on while others are attacked, with a
// call under way or with a reply that the client has not fetched.
type bystander struct {
	e    *rawEnd
	g    *haven
	over func() error // ends what is under way, which must go well
}

// waitingClient is a client with a call under way.
func (l *lair) waitingClient(ctx context.Context) (*bystander, error) {
	cl, e, err := l.connect(ctx)
	if err != nil {
		return nil, err
	}
	g := newHaven(l.rng)
	g.fill(l.rng)
	done, call := make(chan error, 1), g.newCall(l.rng)
	go func() { done <- cl.Call(ctx, call) }()
	h, _, err := e.message()
	return &bystander{e, g, func() error {
		defer e.c.Close()
		defer cl.Close()
		return errors.Join(l.fetch(e, h.Reads, g), e.reply(&h, 0, 0), <-done, g.check())
	}}, err
}

// ---- the server's side

// exposing is a service that exposes memory to its clients: in read chunks of a reply,
// and in calls back to them. The argument is the number of the lair.
type exposing struct {
	lairs [places + 1]atomic.Pointer[exposure]
}

// places is from how many of them at once attempts are made.
const places = 4

// An exposure is given to one client at a time.
type exposure struct {
	g        *haven
	call     *rpc.Call
	ctx      context.Context // of the call
	done     chan error      // how it has gone
	released chan struct{}   // the reply's memory is the service's again
}

const (
	procLend     = 1 // replies with read chunks
	procCallBack = 2 // calls back first
)

func (s *exposing) ServeRPC(_ context.Context, req *rpc.Request, res *rpc.Response) {
	d := req.Decoder()
	x := s.lairs[d.Uint32()].Load()
	switch req.Proc {
	case procLend:
		res.AddItem(x.g.src, func() { x.released <- struct{}{} })
	case procCallBack:
		cn := req.Conn()
		cn.AllowBackward(2)
		x.done <- cn.Call(x.ctx, x.call)
	}
}

// dial connects the intruder to the server.
func (l *lair) dial(ctx context.Context) (*rawEnd, error) {
	c, err := l.p.Resolve(ctx, l.addr, fabric.ConnAttr{SendDepth: 16, RecvDepth: 2 * rawRecvs})
	if err != nil {
		return nil, err
	}
	e, err := newRawEnd(ctx, c)
	if err == nil {
		err = c.Connect(ctx, rawPrivate)
	}
	if err != nil {
		c.Close()
	}
	return e, err
}

// lent makes a call that gets a reply with read chunks.
func (l *lair) lent(e *rawEnd, xid uint32) (h rpcrdma.Header, err error) {
	if err = e.call(xid, prog, procLend, l.no); err != nil {
		return h, err
	}
	h, _, err = e.message()
	if err == nil && len(h.Reads) == 0 {
		err = errors.New("the reply has no read chunks")
	}
	return h, err
}

func doneMsg(xid uint32) []byte {
	return rpcrdma.AppendHeader(nil, &rpcrdma.Header{XID: xid, Vers: rpcrdma.Version1, Credit: 8, Proc: rpcrdma.ProcDone})
}

// fetched says that the reply has been fetched, and waits until the server knows.
func (l *lair) fetched(e *rawEnd, xid uint32) error {
	if err := e.send(doneMsg(xid), 0); err != nil {
		return err
	}
	if err := e.call(xid+1000, prog, 0, 0); err != nil {
		return err
	}
	_, _, err := e.message()
	return err
}

// onServer makes one attempt on a server, with what the reply to a call has exposed, or a
// call to the client.
func (l *lair) onServer(ctx context.Context, m moment, other *bystander) error {
	g, x := l.haven, l.svc.lairs[l.no].Load()
	g.fill(l.rng)
	e, err := l.dial(ctx)
	if err != nil {
		return err
	}
	defer e.c.Close()
	if m == racing && e.c.Capabilities().WeakRevocation {
		m = returned // the call's end does not stop an access that has begun
	}
	callCtx, cancel := context.WithCancel(ctx)
	defer cancel()
	back := l.rng.IntN(2) == 0 || m == givenUp
	lent := 0 // replies that are to return their memory
	var h rpcrdma.Header
	begin := func(xid uint32) error {
		if !back {
			lent++
			_, err := l.lent(e, xid)
			return err
		}
		x.call, x.ctx = g.newCall(l.rng), callCtx
		if err := e.call(xid, prog, procCallBack, l.no); err != nil {
			return err
		}
		if h, _, err = e.message(); err != nil {
			return err
		}
		return g.exact(e.given)
	}
	wait := func(xid uint32) error {
		if !back {
			if err := l.fetched(e, xid); err != nil {
				return err
			}
			lent--
			<-x.released
		} else {
			if err := e.reply(&h, 0, 0); err != nil {
				return err
			}
			if err := <-x.done; err != nil {
				return err
			}
			if _, _, err := e.message(); err != nil {
				return err
			}
		}
		err := g.check()
		g.fill(l.rng)
		return err
	}
	if err := begin(1); err != nil {
		return err
	}
	given := slices.Clone(e.given)
	defer l.keep(l.rng, given)
	pick := given[l.rng.IntN(len(given))]
	s := pick.use(l.rng, "")
	waiting := true
	switch m {
	case during:
		s = l.v.outside(l.rng, pick, e)
	case racing:
		if back {
			at := slices.IndexFunc(given, func(h handle) bool { return h.access == fabric.AccessRemoteWrite && !h.arena })
			return l.raceWrites(e, replyTo(&h, 0), given[at], x.done)
		}
		lent--
		old := bytes.Clone(g.src)
		got, err := e.race(doneMsg(1), pick, func() {
			<-x.released
			g.fill(l.rng)
		})
		if err != nil {
			return err
		}
		l.made[m].Add(1)
		for i := range got {
			if got[i] != 0 && got[i] != old[i] {
				return hit("a Read has brought what was written behind RDMA_DONE")
			}
		}
		return g.check()
	case returned:
		if err := wait(1); err != nil {
			return err
		}
		waiting = false
	case givenUp:
		cancel()
		if err := <-x.done; !errors.Is(err, context.Canceled) {
			return fmt.Errorf("a call that was given up: %w", err)
		}
		g.fill(l.rng)
		waiting, s.late = false, e.c.Capabilities().WeakRevocation
	case nextCall:
		if err := wait(1); err != nil {
			return err
		}
		if err := begin(2); err != nil {
			return err
		}
	case nextConn, otherConn:
		s = l.foreign(m, pick, e, other.e)
	}
	if err := l.strike(m, e, s); err != nil {
		return err
	}
	e.c.Close()
	for range lent {
		<-x.released
	}
	if back && waiting {
		<-x.done
	}
	return errors.Join(g.check(), other.g.check())
}

// waitingServer is a server's connection with a reply that has not been fetched.
func (l *lair) waitingServer(ctx context.Context) (*bystander, error) {
	e, err := l.dial(ctx)
	if err != nil {
		return nil, err
	}
	x := l.svc.lairs[l.no].Load()
	x.g.fill(l.rng)
	h, err := l.lent(e, 1)
	return &bystander{e, x.g, func() error {
		defer e.c.Close()
		if err := errors.Join(l.fetch(e, h.Reads, x.g), l.fetched(e, 1)); err != nil {
			return err
		}
		<-x.released
		return x.g.check()
	}}, err
}

// fetch reads the exposed memory of a haven, as it may.
func (l *lair) fetch(e *rawEnd, reads []rpcrdma.ReadSegment, g *haven) error {
	for _, s := range reads {
		if s.Position == 0 {
			continue
		}
		sge := e.data(int(s.Length))
		if err := e.do(fabric.SendWR{Op: fabric.OpRead, SGL: []fabric.SGE{sge}, RKey: s.Handle, RemoteOffset: s.Offset}); err != nil {
			return err
		}
		if !bytes.Equal(sge.Buf, g.src) {
			return errors.New("other bytes were read than were exposed")
		}
	}
	return nil
}

// ---- all of it

// attacks is how many attempts are made on an end: RPCRDMA_ATTACKS, if it is set.
func attacks(t *testing.T, n int) int {
	if s := os.Getenv("RPCRDMA_ATTACKS"); s != "" {
		var err error
		if n, err = strconv.Atoi(s); err != nil {
			t.Fatalf("RPCRDMA_ATTACKS: %v", err)
		}
	}
	return n
}

// testMemoryAttacks: V1-11-3 V1-11-4 attempts on a client, or on a server.
func testMemoryAttacks(t *testing.T, b *bed, v victim, server bool, n int) {
	leak.Check(t)
	provider, live := b.provider(t)
	defer live.check(t)
	v.server = server
	in := &intruder{t: t, v: &v, b: b, p: provider}
	svc := &exposing{}
	listen := func() string { return "" }
	if server {
		w, err := transport.NewServer((&transport.Settings{
			Version: transport.Version1, PeerChunks: transport.AllChunks, Credits: 8, MaxMessage: 1 << 20, BounceMax: -1,
			RFC5666: &transport.RFC5666{DoneTimeout: time.Hour},
		}).Server())
		if err != nil {
			t.Fatal(err)
		}
		if err := w.Register(rpc.Program{Number: prog, Low: 1, High: 1, Handler: svc, ReadReplies: true, Idempotent: rpc.Every}); err != nil {
			t.Fatal(err)
		}
		served, listeners := make(chan error, mostLost+1), 0
		listen = func() string {
			sl, err := w.Listen(bg, provider, b.addr)
			if err != nil {
				t.Error(err) // on any goroutine
				return ""
			}
			listeners++
			go func() { served <- w.Serve(sl) }()
			return sl.Addr().String()
		}
		defer func() {
			w.Close()
			for range listeners {
				if err := <-served; !errors.Is(err, net.ErrClosed) {
					t.Errorf("the server has ended: %v", err)
				}
			}
		}()
	}
	addr := listen()
	var lairs []*lair
	for i := range places + 1 {
		l := &lair{intruder: in, rng: rand.New(rand.NewPCG(13, uint64(i))), addr: addr, svc: svc, no: uint32(i)}
		l.recover()
		if !server {
			var err error
			if l.listen, err = provider.Listen(bg, b.addr, fabric.ConnAttr{SendDepth: 16, RecvDepth: 2 * rawRecvs}); err != nil {
				t.Fatal(err)
			}
			defer l.listen.Close()
		}
		lairs = append(lairs, l)
	}
	ctx, cancel := context.WithCancel(bg)
	defer cancel()
	last, attempt := lairs[places], (*lair).onClient
	wait := last.waitingClient
	if server {
		attempt, wait = (*lair).onServer, last.waitingServer
	}
	other, err := wait(ctx)
	if err != nil {
		t.Fatal(err)
	}
	var left atomic.Int64
	left.Store(int64(n))
	var failed atomic.Bool
	var wg sync.WaitGroup
	var again sync.Mutex
	start := time.Now()
	for _, l := range lairs[:places] {
		wg.Go(func() {
			for left.Add(-1) >= 0 && !failed.Load() {
				m := moment(l.rng.IntN(int(moments)))
				one, cancel := context.WithTimeout(ctx, b.patience()/2)
				err := attempt(l, one, m, other)
				cancel()
				var success *hitError
				switch {
				case err == nil:
				case b.slow > 1 && !errors.As(err, &success) && in.lost.Add(1) <= mostLost:
					// On a busy machine a device gives up a connection now and then.
					t.Logf("%v: %v", m, err)
					l.recover()
					if server && errors.Is(err, syscall.ECONNREFUSED) {
						// Linux's siw may lose a listener without a word (docs/tuning.md).
						again.Lock()
						l.addr = listen()
						again.Unlock()
					}
				default:
					failed.Store(true)
					t.Errorf("%v: %v", m, err)
				}
			}
		})
	}
	wg.Wait()
	if err := other.over(); err != nil {
		t.Errorf("what was under way on another connection: %v", err)
	}
	if t.Failed() {
		return
	}
	var parts []string
	for m := range moments {
		parts = append(parts, fmt.Sprintf("%s %d", m, in.made[m].Load()))
	}
	t.Logf("%d attempts in %v, none hit: %s", n, time.Since(start).Round(time.Millisecond), strings.Join(parts, ", "))
}

// mostLost is how many attempts on a device may fail without a result.
const mostLost = 8

// recover gives the lair a new haven that no call uses yet.
func (l *lair) recover() {
	l.haven = newHaven(l.rng)
	l.svc.lairs[l.no].Store(&exposure{g: l.haven, done: make(chan error, 1), released: make(chan struct{}, 2)})
}

func runMemoryAttacks(t *testing.T, b *bed, v victim, n int) {
	n = attacks(t, n)
	t.Run("client", func(t *testing.T) { testMemoryAttacks(t, b, v, false, n-n/4) })
	t.Run("client with registered memory", func(t *testing.T) {
		v := v
		v.registered = true
		testMemoryAttacks(t, b, v, false, n/4)
	})
	t.Run("server", func(t *testing.T) { testMemoryAttacks(t, b, v, true, n) })
}

// TestIwarpMemoryAttacks checks V1-11-3 V1-11-4 PVT-3.2-1: a handle gives no access beyond its purpose. make test-rdma
// makes more attempts.
func TestIwarpMemoryAttacks(t *testing.T) {
	runMemoryAttacks(t, onIwarp(iwarp.Config{}), victim{}, 250)
}
