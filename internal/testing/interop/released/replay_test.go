package released

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"net"
	"time"

	"github.com/rpcrdma/rpcrdma/proto/ddp"
	"github.com/rpcrdma/rpcrdma/proto/mpa"
	"github.com/rpcrdma/rpcrdma/proto/rdmap"
	"github.com/rpcrdma/rpcrdma/proto/rpcrdma"
)

// patience is how long a replay waits for today's end.
const patience = 30 * time.Second

// limits let both versions in. Immutable.
var limits = rpcrdma.Limits{Versions: rpcrdma.Range{Low: rpcrdma.Version1, High: rpcrdma.Version2}}

// An address is one of a byte that a peer reaches by RDMA.
type address struct {
	stag uint32
	to   uint64
}

// A replay is the recorded end of a conversation, on a connection to today's other end.
type replay struct {
	us    side // the recorded end
	units []unit
	conn  net.Conn
	in    *bufio.Reader

	sends []*segment        // messages of today's end that have arrived
	ours  map[uint32]bool   // xids that we have chosen, when this was recorded
	xids  map[uint32]uint32 // what today's end has chosen, by what was chosen then
	lent  []loan            // memory of today's end
	own   map[address]byte  // our memory, as far as it was read when this was recorded
	put   map[address]byte  // what today's end puts into our memory
	want  map[address]byte  // what was put there then
	reads map[address]loan  // what our RDMA Reads ask for, by where they put it
}

// A loan is memory as it was named then, and as it is named today.
type loan struct {
	then, now rpcrdma.Segment
	position0 bool // it begins with a message
}

// A mismatch is something that today's end does otherwise.
type mismatch string

func (m mismatch) Error() string { return string(m) }

func otherwise(format string, args ...any) error { return mismatch(fmt.Sprintf(format, args...)) }

// newReplay reads the recording of one end.
func newReplay(us side, units []unit, conn net.Conn) (*replay, error) {
	r := &replay{
		us: us, units: units, conn: conn, in: bufio.NewReaderSize(conn, 1<<17),
		ours: make(map[uint32]bool), xids: make(map[uint32]uint32), own: make(map[address]byte),
		put: make(map[address]byte), want: make(map[address]byte), reads: make(map[address]loan),
	}
	if len(units) < 4 || units[0].from != client || units[1].from != server {
		return nil, errors.New("the recording has no beginning")
	}
	// Which of our memory was read, and what was in it.
	asked := make(map[address]rdmap.ReadRequest)
	for _, u := range units[2:] {
		s, err := parse(u.bytes)
		if err != nil {
			return nil, err
		}
		switch {
		case u.from != us && s.op == rdmap.OpReadRequest:
			var q rdmap.ReadRequest
			if _, err := rdmap.ConsumeReadRequest(s.payload, &q); err != nil {
				return nil, err
			}
			for i := range uint64(q.Size) {
				asked[address{q.SinkSTag, q.SinkTO + i}] = rdmap.ReadRequest{SrcSTag: q.SrcSTag, SrcTO: q.SrcTO + i}
			}
		case u.from == us && s.op == rdmap.OpReadResponse:
			for i, b := range s.payload {
				q := asked[address{s.tagged.STag, s.tagged.TO + uint64(i)}]
				r.own[address{q.SrcSTag, q.SrcTO}] = b
			}
		}
	}
	return r, conn.SetDeadline(time.Now().Add(patience))
}

// run replays the conversation.
func (r *replay) run() error {
	if err := r.start(); err != nil {
		return err
	}
	for i, u := range r.units[2:] {
		s, err := parse(u.bytes)
		if err == nil && u.from == r.us {
			err = r.say(s)
		} else if err == nil {
			err = r.hear(s)
		}
		if err != nil {
			return fmt.Errorf("unit %d, %v of the %v: %w", i+2, s.op, u.from, err)
		}
	}
	if !maps.Equal(r.put, r.want) {
		return otherwise("it puts %d bytes into our memory that are not the %d of then", len(r.put), len(r.want))
	}
	return nil
}

// start exchanges the start-up frames.
func (r *replay) start() error {
	if r.us == client {
		if _, err := r.conn.Write(r.units[0].bytes); err != nil {
			return err
		}
	}
	frame, now, err := readStart(r.in)
	if err != nil {
		return err
	}
	recorded, then, err := readStart(bytes.NewReader(r.units[1-r.us].bytes))
	if err != nil {
		return err
	}
	if now.Flags != then.Flags || now.Revision != then.Revision {
		return otherwise("its start-up frame has flags %v and revision %d, then %v and %d", now.Flags, now.Revision, then.Flags, then.Revision)
	}
	enhanced := 0
	if then.Flags&mpa.FlagEnhanced != 0 {
		enhanced = mpa.EnhancedLen
	}
	has, ok := rpcrdma.FindPrivateData(frame[mpa.StartLen+enhanced:])
	had, wanted := rpcrdma.FindPrivateData(recorded[mpa.StartLen+enhanced:])
	// The inline data of then was sized by the limits of this end.
	if ok != wanted || has.RecvSize < had.RecvSize || has.RemoteInvalidation != had.RemoteInvalidation {
		return otherwise("its private data is %+v, then %+v", has, had)
	}
	if r.us == server {
		_, err = r.conn.Write(r.units[1].bytes)
	}
	return err
}

// say sends what we sent then.
func (r *replay) say(s *segment) error {
	switch {
	case s.op == rdmap.OpReadResponse, s.op == rdmap.OpTerminate:
		return nil // reads are answered when they come, and how connections end is left out
	case s.op == rdmap.OpWrite:
		l, err := r.find(s.tagged.STag, s.tagged.TO)
		if err != nil {
			return err
		}
		first := s.tagged.TO == l.then.Offset
		s.tagged.STag, s.tagged.TO = l.now.Handle, l.now.Offset+s.tagged.TO-l.then.Offset
		if first && l.position0 {
			if err := r.rename(s.payload); err != nil {
				return err
			}
		}
	case s.op == rdmap.OpReadRequest:
		var q rdmap.ReadRequest
		if _, err := rdmap.ConsumeReadRequest(s.payload, &q); err != nil {
			return err
		}
		l, err := r.find(q.SrcSTag, q.SrcTO)
		if err != nil {
			return err
		}
		if q.SrcTO == l.then.Offset {
			r.reads[address{q.SinkSTag, q.SinkTO}] = l
		}
		q.SrcSTag, q.SrcTO = l.now.Handle, l.now.Offset+q.SrcTO-l.then.Offset
		s.payload = rdmap.AppendReadRequest(nil, &q)
	default:
		if err := r.address(s); err != nil {
			return err
		}
	}
	_, err := r.conn.Write(s.build())
	return err
}

// address names in a Send what today's end has chosen. Everything else stays as it was.
func (r *replay) address(s *segment) error {
	if !s.last() || s.untagged.MO != 0 {
		return errors.New("a message of more than one segment")
	}
	if s.op.Invalidates() {
		found := false
		for _, l := range r.lent {
			if l.then.Handle == s.untagged.ULP32 {
				s.untagged.ULP32, found = l.now.Handle, true
				break
			}
		}
		if !found {
			return fmt.Errorf("STag %#x is unknown", s.untagged.ULP32)
		}
	}
	var h rpcrdma.Header
	n, err := rpcrdma.ConsumeHeader(s.payload, &h, &limits)
	if err != nil {
		return err
	}
	if got := rpcrdma.AppendHeader(nil, &h); !bytes.Equal(got, s.payload[:n]) {
		return fmt.Errorf("the header %x is encoded as %x today", s.payload[:n], got)
	}
	rest := s.payload[n:]
	now, theirs := r.xids[h.XID]
	if !theirs {
		r.ours[h.XID] = true
		return nil // a call of ours, as it was
	}
	h.XID = now
	for _, chunk := range append(h.Writes, h.Reply) {
		for i := range chunk {
			l, err := r.find(chunk[i].Handle, chunk[i].Offset)
			if err != nil {
				return err
			}
			chunk[i].Handle, chunk[i].Offset = l.now.Handle, l.now.Offset
		}
	}
	if h.Proc == rpcrdma.ProcMsg {
		if err := r.rename(rest); err != nil {
			return err
		}
	}
	s.payload = append(rpcrdma.AppendHeader(nil, &h), rest...)
	return nil
}

// rename puts today's xid into an RPC message of ours that answers a call.
func (r *replay) rename(message []byte) error {
	if len(message) < 4 {
		return errors.New("a message without an xid")
	}
	now, ok := r.xids[binary.BigEndian.Uint32(message)]
	if !ok {
		return fmt.Errorf("xid %x is unknown", message[:4])
	}
	binary.BigEndian.PutUint32(message, now)
	return nil
}

// find returns the memory of today's end for a place that was in it then.
func (r *replay) find(stag uint32, to uint64) (loan, error) {
	for _, l := range r.lent {
		if l.then.Handle == stag && to >= l.then.Offset && to-l.then.Offset < uint64(l.then.Length) {
			return l, nil
		}
	}
	return loan{}, fmt.Errorf("STag %#x, offset %#x: no such memory", stag, to)
}

// hear wants from today's end what the other end sent then.
func (r *replay) hear(s *segment) error {
	switch s.op {
	case rdmap.OpReadRequest, rdmap.OpTerminate:
		return nil
	case rdmap.OpWrite, rdmap.OpReadResponse:
		for i, b := range s.payload {
			r.want[address{s.tagged.STag, s.tagged.TO + uint64(i)}] = b
		}
		if !s.tagged.Last || s.op == rdmap.OpWrite {
			return nil // Writes are before the Send that reports them
		}
		// We went on when we had the data.
		for len(r.put) < len(r.want) {
			if err := r.next(); err != nil {
				return err
			}
		}
		return nil
	}
	for len(r.sends) == 0 {
		if err := r.next(); err != nil {
			return err
		}
	}
	now := r.sends[0]
	r.sends = r.sends[1:]
	return r.same(s, now)
}

// next takes in what today's end sends.
func (r *replay) next() error {
	fpdu, err := readFPDU(r.in)
	if err != nil {
		return fmt.Errorf("nothing more comes: %w", err)
	}
	s, err := parse(fpdu)
	if err != nil {
		return err
	}
	switch s.op {
	case rdmap.OpWrite, rdmap.OpReadResponse:
		at := address{s.tagged.STag, s.tagged.TO}
		// The xid of a message that we read: see whether it is today's, and take it for the one of then.
		if l, ok := r.reads[at]; ok && l.position0 && s.op == rdmap.OpReadResponse && len(s.payload) >= 4 {
			xid := binary.BigEndian.Uint32(s.payload)
			for then, now := range r.xids {
				if now == xid {
					binary.BigEndian.PutUint32(s.payload, then)
				}
			}
		}
		for i, b := range s.payload {
			r.put[address{at.stag, at.to + uint64(i)}] = b
		}
	case rdmap.OpReadRequest:
		return r.answer(s)
	case rdmap.OpTerminate:
		var t rdmap.Terminate
		if _, err := rdmap.ConsumeTerminate(s.payload, &t); err != nil {
			return err
		}
		return otherwise("it ends the connection: %v", t)
	default:
		r.sends = append(r.sends, s)
	}
	return nil
}

// answer answers an RDMA Read of today's end from our memory.
func (r *replay) answer(s *segment) error {
	var q rdmap.ReadRequest
	if _, err := rdmap.ConsumeReadRequest(s.payload, &q); err != nil {
		return err
	}
	data := make([]byte, q.Size)
	for i := range data {
		b, ok := r.own[address{q.SrcSTag, q.SrcTO + uint64(i)}]
		if !ok {
			return otherwise("it reads %+v, of which byte %d was not read then", q, i)
		}
		data[i] = b
	}
	response := segment{
		op:      rdmap.OpReadResponse,
		tagged:  ddp.Tagged{Last: true, ULP: rdmap.Control(rdmap.OpReadResponse), STag: q.SinkSTag, TO: q.SinkTO},
		payload: data,
	}
	_, err := r.conn.Write(response.build())
	return err
}

// same compares a Send of today with the one of then, and remembers what today's end has chosen.
func (r *replay) same(then, now *segment) error {
	if then.op != now.op || then.untagged.ULP32 != now.untagged.ULP32 || !then.last() || !now.last() {
		return otherwise("it is %v of STag %#x, then %v of %#x", now.op, now.untagged.ULP32, then.op, then.untagged.ULP32)
	}
	var was, is rpcrdma.Header
	n, err := rpcrdma.ConsumeHeader(then.payload, &was, &limits)
	if err != nil {
		return err
	}
	m, err := rpcrdma.ConsumeHeader(now.payload, &is, &limits)
	if err != nil {
		return err
	}
	if is.Credit == 0 {
		return otherwise("it has no credits")
	}
	if is.Proc == rpcrdma.ProcOptional && is.OptType == rpcrdma.OptProperties {
		return r.sameProperties(&was, &is)
	}
	message := bytes.Clone(now.payload[m:])
	if !r.ours[was.XID] {
		r.xids[was.XID] = is.XID
		if err := r.borrow(&was, &is); err != nil {
			return err
		}
		if is.Proc == rpcrdma.ProcMsg && len(message) >= 4 && binary.BigEndian.Uint32(message) == is.XID {
			binary.BigEndian.PutUint32(message, was.XID)
		}
		is.XID = was.XID
	}
	is.Credit = was.Credit
	if got, want := rpcrdma.AppendHeader(nil, &is), then.payload[:n]; !bytes.Equal(got, want) {
		return otherwise("its header is\n%x, then\n%x", got, want)
	}
	if !bytes.Equal(message, then.payload[n:]) {
		return otherwise("its message is\n%x, then\n%x", message, then.payload[n:])
	}
	return nil
}

// sameProperties compares the properties that an end of version 2 tells.
func (r *replay) sameProperties(was, is *rpcrdma.Header) error {
	had, err := rpcrdma.ConsumeProperties(was.OptInfo)
	if err != nil {
		return err
	}
	has, err := rpcrdma.ConsumeProperties(is.OptInfo)
	if err != nil {
		return err
	}
	if has.Dir != had.Dir || has.RecvSize < had.RecvSize || has.RemoteInvalidation != had.RemoteInvalidation {
		return otherwise("its properties are %+v, then %+v", has, had)
	}
	if !r.ours[was.XID] {
		r.xids[was.XID] = is.XID
	} else if was.XID != is.XID {
		return otherwise("its properties have xid %#x, then %#x", is.XID, was.XID)
	}
	return nil
}

// borrow compares the chunks of a call, and remembers what memory today's end lends in place of
// that of then: piece by piece, so the pieces have to be the same. In the header of today it then
// is as it was.
func (r *replay) borrow(was, is *rpcrdma.Header) error {
	lend := func(then rpcrdma.Segment, now *rpcrdma.Segment, position0 bool) {
		r.lent = append(r.lent, loan{then, *now, position0})
		now.Handle, now.Offset = then.Handle, then.Offset
	}
	if len(was.Reads) != len(is.Reads) || len(was.Writes) != len(is.Writes) || len(was.Reply) != len(is.Reply) {
		return otherwise("its chunks are %+v, then %+v", is, was)
	}
	for i := range was.Reads {
		lend(was.Reads[i].Segment, &is.Reads[i].Segment, was.Reads[i].Position == 0)
	}
	for i, chunk := range was.Writes {
		if len(chunk) != len(is.Writes[i]) {
			return otherwise("its write chunk is %v, then %v", is.Writes[i], chunk)
		}
		for j := range chunk {
			lend(chunk[j], &is.Writes[i][j], false)
		}
	}
	for j := range was.Reply {
		lend(was.Reply[j], &is.Reply[j], j == 0)
	}
	return nil
}
