//go:build generated

package rpcrdma2

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"reflect"
	"slices"
	"testing"

	"github.com/xdrpp/goxdr/xdr"

	"github.com/rpcrdma/rpcrdma/proto/rpcrdma"
)

// The numbers of the XDR are those of the codec.
func TestConstants(t *testing.T) {
	for _, tt := range []struct {
		name        string
		xdr, ours   uint32
		code, codec string // spellings; none where there is no name to print
	}{
		{"RDMA_MSG", uint32(RDMA_MSG), uint32(rpcrdma.ProcMsg), RDMA_MSG.String(), rpcrdma.ProcMsg.String()},
		{"RDMA_NOMSG", uint32(RDMA_NOMSG), uint32(rpcrdma.ProcNomsg), RDMA_NOMSG.String(), rpcrdma.ProcNomsg.String()},
		{"RDMA_MSGP", uint32(RDMA_MSGP), uint32(rpcrdma.ProcMsgp), RDMA_MSGP.String(), rpcrdma.ProcMsgp.String()},
		{"RDMA_DONE", uint32(RDMA_DONE), uint32(rpcrdma.ProcDone), RDMA_DONE.String(), rpcrdma.ProcDone.String()},
		{"RDMA_ERROR", uint32(RDMA_ERROR), uint32(rpcrdma.ProcError), RDMA_ERROR.String(), rpcrdma.ProcError.String()},
		{"RDMA_OPTIONAL", uint32(RDMA_OPTIONAL), uint32(rpcrdma.ProcOptional), RDMA_OPTIONAL.String(), rpcrdma.ProcOptional.String()},
		{"RDMA_ERR_VERS", uint32(RDMA_ERR_VERS), uint32(rpcrdma.ErrVers), RDMA_ERR_VERS.String(), rpcrdma.ErrVers.Name(2)},
		{"RDMA_ERR_BAD_HEADER", uint32(RDMA_ERR_BAD_HEADER), uint32(rpcrdma.ErrBadHeader), RDMA_ERR_BAD_HEADER.String(), rpcrdma.ErrBadHeader.Name(2)},
		{"RDMA_ERR_INVAL_OPTION", uint32(RDMA_ERR_INVAL_OPTION), uint32(rpcrdma.ErrInvalOption), RDMA_ERR_INVAL_OPTION.String(), rpcrdma.ErrInvalOption.Name(2)},
		{"RDMA_PROP_OFFER", uint32(RDMA_PROP_OFFER), uint32(rpcrdma.PropOffer), RDMA_PROP_OFFER.String(), rpcrdma.PropOffer.String()},
		{"RDMA_PROP_ACCEPT", uint32(RDMA_PROP_ACCEPT), uint32(rpcrdma.PropAccept), RDMA_PROP_ACCEPT.String(), rpcrdma.PropAccept.String()},
		{"RDMA_PROP_REJECT", uint32(RDMA_PROP_REJECT), uint32(rpcrdma.PropReject), RDMA_PROP_REJECT.String(), rpcrdma.PropReject.String()},
		{"RDMA_PROP_MALFORMED", RDMA_PROP_MALFORMED, uint32(rpcrdma.PropMalformed), "RDMA_PROP_MALFORMED", rpcrdma.PropMalformed.String()},
		{"RDMA_PROP_NOT_NOW", RDMA_PROP_NOT_NOW, uint32(rpcrdma.PropNotNow), "RDMA_PROP_NOT_NOW", rpcrdma.PropNotNow.String()},
		{"RPCRDMA2_OPT_PROPERTIES", RPCRDMA2_OPT_PROPERTIES, rpcrdma.OptProperties, "", ""},
	} {
		if tt.xdr != tt.ours || tt.code != tt.codec || tt.code != "" && tt.code != tt.name {
			t.Errorf("%s: %d as %q in the XDR, %d as %q in the codec", tt.name, tt.xdr, tt.code, tt.ours, tt.codec)
		}
	}
}

// marshal is the compiler's encoder.
func marshal(v xdr.XdrType) []byte {
	var b bytes.Buffer
	v.XdrMarshal(xdr.XdrOut{Out: &b}, "")
	return b.Bytes()
}

// unmarshal is the compiler's decoder. It returns how many bytes v took.
func unmarshal(b []byte, v xdr.XdrType) (n int, err error) {
	defer func() {
		if r := recover(); r != nil {
			n, err = 0, fmt.Errorf("%v", r)
		}
	}()
	r := bytes.NewReader(b)
	v.XdrMarshal(xdr.XdrIn{In: r}, "")
	return len(b) - r.Len(), nil
}

// header makes of the compiler's structure the codec's.
func header(x *Rpcrdma2_xprt_hdr) *rpcrdma.Header {
	h := &rpcrdma.Header{XID: x.Rdma_xid, Vers: x.Rdma_vers, Credit: x.Rdma_credit, Proc: rpcrdma.Proc(x.Rdma_body.Rdma_proc)}
	segment := func(s Rpcrdma2_segment) rpcrdma.Segment {
		return rpcrdma.Segment{Handle: s.Rdma_handle, Length: s.Rdma_length, Offset: s.Rdma_offset}
	}
	chunk := func(c *Rpcrdma2_write_chunk) rpcrdma.WriteChunk {
		var list rpcrdma.WriteChunk
		for _, s := range c.Rdma_target {
			list = append(list, segment(s))
		}
		return list
	}
	switch x.Rdma_body.Rdma_proc {
	case RDMA_MSG, RDMA_NOMSG:
		lists := x.Rdma_body.Rdma_chunks()
		for r := lists.Rdma_reads; r != nil; r = r.Rdma_next {
			h.Reads = append(h.Reads, rpcrdma.ReadSegment{Position: r.Rdma_entry.Rdma_position, Segment: segment(r.Rdma_entry.Rdma_target)})
		}
		for w := lists.Rdma_writes; w != nil; w = w.Rdma_next {
			h.Writes = append(h.Writes, chunk(&w.Rdma_entry))
		}
		if h.HasReply = lists.Rdma_reply != nil; h.HasReply {
			h.Reply = chunk(lists.Rdma_reply)
		}
	case RDMA_ERROR:
		e := x.Rdma_body.Rdma_error()
		h.Err = rpcrdma.ErrCode(e.Rdma_err)
		if e.Rdma_err == RDMA_ERR_VERS {
			h.VersLow, h.VersHigh = e.Rdma_vrange().Rdma_vers_low, e.Rdma_vrange().Rdma_vers_high
		}
	case RDMA_OPTIONAL:
		o := x.Rdma_body.Rdma_optional()
		h.OptType = o.Rdma_opttype
		if len(o.Rdma_optinfo) > 0 {
			h.OptInfo = o.Rdma_optinfo
		}
	}
	return h
}

// structure makes of the codec's header the compiler's.
func structure(h *rpcrdma.Header) *Rpcrdma2_xprt_hdr {
	x := &Rpcrdma2_xprt_hdr{Rdma_xid: h.XID, Rdma_vers: h.Vers, Rdma_credit: h.Credit}
	x.Rdma_body.Rdma_proc = Rpcrdma2_proc(h.Proc)
	segment := func(s rpcrdma.Segment) Rpcrdma2_segment {
		return Rpcrdma2_segment{Rdma_handle: s.Handle, Rdma_length: s.Length, Rdma_offset: s.Offset}
	}
	chunk := func(c rpcrdma.WriteChunk) Rpcrdma2_write_chunk {
		var x Rpcrdma2_write_chunk
		for _, s := range c {
			x.Rdma_target = append(x.Rdma_target, segment(s))
		}
		return x
	}
	switch h.Proc {
	case rpcrdma.ProcMsg, rpcrdma.ProcNomsg:
		lists := x.Rdma_body.Rdma_chunks()
		for _, r := range slices.Backward(h.Reads) {
			lists.Rdma_reads = &Rpcrdma2_read_list{
				Rdma_entry: Rpcrdma2_read_segment{Rdma_position: r.Position, Rdma_target: segment(r.Segment)},
				Rdma_next:  lists.Rdma_reads,
			}
		}
		for _, c := range slices.Backward(h.Writes) {
			lists.Rdma_writes = &Rpcrdma2_write_list{Rdma_entry: chunk(c), Rdma_next: lists.Rdma_writes}
		}
		if h.HasReply {
			c := chunk(h.Reply)
			lists.Rdma_reply = &c
		}
	case rpcrdma.ProcError:
		e := x.Rdma_body.Rdma_error()
		e.Rdma_err = Rpcrdma2_errcode(h.Err)
		if h.Err == rpcrdma.ErrVers {
			*e.Rdma_vrange() = Rpcrdma2_err_vers{Rdma_vers_low: h.VersLow, Rdma_vers_high: h.VersHigh}
		}
	case rpcrdma.ProcOptional:
		*x.Rdma_body.Rdma_optional() = Rpcrdma2_optional{Rdma_opttype: h.OptType, Rdma_optinfo: h.OptInfo}
	}
	return x
}

// number draws one of 32 bits, more often than not one at which something might change.
func number(r *rand.Rand) uint32 {
	switch r.IntN(4) {
	case 0:
		return 1<<r.UintN(32) - r.Uint32N(2)
	case 1:
		return r.Uint32N(8)
	}
	return r.Uint32()
}

func randomHeader(r *rand.Rand) *rpcrdma.Header {
	procs := []rpcrdma.Proc{rpcrdma.ProcMsg, rpcrdma.ProcNomsg, rpcrdma.ProcError, rpcrdma.ProcOptional}
	h := &rpcrdma.Header{XID: number(r), Vers: rpcrdma.Version2, Credit: number(r), Proc: procs[r.IntN(len(procs))]}
	segment := func() rpcrdma.Segment {
		return rpcrdma.Segment{Handle: number(r), Length: number(r), Offset: uint64(number(r))<<32 | uint64(number(r))}
	}
	chunk := func() (c rpcrdma.WriteChunk) {
		for range r.IntN(4) {
			c = append(c, segment())
		}
		return c
	}
	switch h.Proc {
	case rpcrdma.ProcMsg, rpcrdma.ProcNomsg:
		for range r.IntN(4) {
			h.Reads = append(h.Reads, rpcrdma.ReadSegment{Position: number(r), Segment: segment()})
		}
		for range r.IntN(4) {
			h.Writes = append(h.Writes, chunk())
		}
		if h.HasReply = r.IntN(2) == 0; h.HasReply {
			h.Reply = chunk()
		}
	case rpcrdma.ProcError:
		h.Err = rpcrdma.ErrVers + rpcrdma.ErrCode(r.IntN(3))
		if h.Err == rpcrdma.ErrVers {
			h.VersLow, h.VersHigh = number(r), number(r)
		}
	case rpcrdma.ProcOptional:
		h.OptType = number(r)
		for range r.IntN(40) {
			h.OptInfo = append(h.OptInfo, byte(r.Uint32()))
		}
	}
	return h
}

func randomProperties(r *rand.Rand) rpcrdma.Properties {
	p := rpcrdma.Properties{Dir: rpcrdma.PropDir(r.IntN(3))}
	if p.Dir == rpcrdma.PropReject {
		p.Reason = rpcrdma.PropReason(number(r))
		return p
	}
	size := func() uint32 { return max(number(r), rpcrdma.DefaultInline2) &^ 3 }
	p.SendSize, p.RecvSize, p.RemoteInvalidation = size(), size(), r.IntN(2) == 0
	return p
}

// limits do not get in the way: the XDR has none.
var limits = rpcrdma.Limits{
	Versions:     rpcrdma.Range{Low: rpcrdma.Version2, High: rpcrdma.Version2},
	ReadSegments: math.MaxInt32, WriteChunks: math.MaxInt32, SegmentsPerChunk: math.MaxInt32, OptInfo: math.MaxInt32,
}

// consume is the codec's decoder, in the form of unmarshal.
func consume(b []byte) (*rpcrdma.Header, int, error) {
	h := new(rpcrdma.Header)
	n, err := rpcrdma.ConsumeHeader(b, h, &limits)
	for i, c := range h.Writes {
		if len(c) == 0 {
			h.Writes[i] = nil
		}
	}
	if len(h.Reply) == 0 {
		h.Reply = nil
	}
	if len(h.OptInfo) == 0 {
		h.OptInfo = nil
	}
	return h, n, err
}

const rounds = 5000

// V2-4.2-1, V2-4.2-2, V2-4.2-3, V2-4.2-4, V2-4.2-5, V2-3.1-1: what the codec writes
// the compiled XDR reads, and the other way round, byte for byte.
func TestHeadersAgree(t *testing.T) {
	r := rand.New(rand.NewPCG(2, 16))
	for i := range rounds {
		h := randomHeader(r)
		x := structure(h)
		ours, theirs := rpcrdma.AppendHeader(nil, h), marshal(x)
		if !bytes.Equal(ours, theirs) {
			t.Fatalf("message %d, %+v: the codec writes\n%x, the XDR has\n%x", i, h, ours, theirs)
		}
		var got Rpcrdma2_xprt_hdr
		if n, err := unmarshal(ours, &got); err != nil || n != len(ours) || !reflect.DeepEqual(header(&got), h) {
			t.Fatalf("message %d, %x: read as %+v, %d of %d bytes, %v; want %+v", i, ours, header(&got), n, len(ours), err, h)
		}
		b := theirs
		if h.Proc == rpcrdma.ProcMsg || h.Proc == rpcrdma.ProcOptional && r.IntN(2) == 0 {
			b = append(b, "an RPC message"...)
		}
		if back, n, err := consume(b); err != nil || n != len(theirs) || !reflect.DeepEqual(back, h) {
			t.Fatalf("message %d, %x: the codec reads %+v, %d of %d bytes, %v; want %+v", i, theirs, back, n, len(theirs), err, h)
		}
	}
}

func TestPropertiesAgree(t *testing.T) {
	r := rand.New(rand.NewPCG(0x5250, 1))
	for i := range rounds {
		p := randomProperties(r)
		x := prop(p)
		ours, theirs := rpcrdma.AppendProperties(nil, p), marshal(x)
		if !bytes.Equal(ours, theirs) {
			t.Fatalf("%d, %+v: the codec writes %x, the XDR has %x", i, p, ours, theirs)
		}
		if back, err := rpcrdma.ConsumeProperties(theirs); err != nil || back != p {
			t.Fatalf("%d, %x: the codec reads %+v, %v; want %+v", i, theirs, back, err, p)
		}
		var got Rpcrdma2_prop_info
		if n, err := unmarshal(ours, &got); err != nil || n != len(ours) || properties(&got) != p {
			t.Fatalf("%d, %x: read as %+v, %v; want %+v", i, ours, properties(&got), err, p)
		}
	}
}

// The same of setup messages.
func TestSetupAgrees(t *testing.T) {
	r := rand.New(rand.NewPCG(0x5250, 3))
	for i := range rounds {
		s := rpcrdma.Setup{Credit: 1 + r.Uint32N(math.MaxInt32), Properties: randomProperties(r)}
		if s.Dir == rpcrdma.PropReject {
			continue
		}
		x := &Rpcrdma2_cm_info{Rdma_format: RDMA_PROP_CM_FORMAT, Rdma_credit: s.Credit, Rdma_info: *prop(s.Properties)}
		ours, theirs := rpcrdma.AppendSetup(nil, s), marshal(x)
		if !bytes.Equal(ours, theirs) {
			t.Fatalf("%d, %+v: the codec writes %x, the XDR has %x", i, s, ours, theirs)
		}
		if back, ok := rpcrdma.FindSetup(theirs, s.Dir); !ok || back != s {
			t.Fatalf("%d, %x: the codec reads %+v, %v; want %+v", i, theirs, back, ok, s)
		}
	}
}

func prop(p rpcrdma.Properties) *Rpcrdma2_prop_info {
	x := &Rpcrdma2_prop_info{Rdma_dir: Rpcrdma2_prop_dir(p.Dir)}
	if p.Dir == rpcrdma.PropReject {
		*x.Rdma_reason() = uint32(p.Reason)
		return x
	}
	*x.Rdma_props() = Rpcrdma2_properties{Rdma_send_size: p.SendSize, Rdma_recv_size: p.RecvSize}
	if p.RemoteInvalidation {
		x.Rdma_props().Rdma_flags = RDMA_PROP_REMOTE_INVAL
	}
	return x
}

func properties(x *Rpcrdma2_prop_info) rpcrdma.Properties {
	p := rpcrdma.Properties{Dir: rpcrdma.PropDir(x.Rdma_dir)}
	if x.Rdma_dir == RDMA_PROP_REJECT {
		p.Reason = rpcrdma.PropReason(*x.Rdma_reason())
		return p
	}
	p.SendSize, p.RecvSize = x.Rdma_props().Rdma_send_size, x.Rdma_props().Rdma_recv_size
	p.RemoteInvalidation = x.Rdma_props().Rdma_flags&RDMA_PROP_REMOTE_INVAL != 0
	return p
}

// mutate changes some of b.
func mutate(r *rand.Rand, b []byte) []byte {
	for range 1 + r.IntN(2) {
		switch r.IntN(4) {
		case 0:
			b = b[:r.IntN(len(b)+1)]
		case 1:
			b = append(b, byte(r.Uint32()))
		case 2:
			if len(b) > 16 {
				b[16+r.IntN(len(b)-16)] = byte(number(r))
			}
		case 3: // a word, the discriminants and counts among them
			if n := len(b) / 4; n > 3 {
				binary.BigEndian.PutUint32(b[12+4*r.IntN(n-3):], number(r))
			}
		}
	}
	return b
}

// The codec and the compiled XDR agree on what is no message, too.
func TestRefusalsAgree(t *testing.T) {
	r := rand.New(rand.NewPCG(4506, 2))
	var both, neither int
	for range 4 * rounds {
		b := mutate(r, append(rpcrdma.AppendHeader(nil, randomHeader(r)), make([]byte, 8*r.IntN(2))...))
		if agree(t, b) {
			both++
		} else {
			neither++
		}
		// As if it stood after the fixed fields.
		p := mutate(r, rpcrdma.AppendProperties(make([]byte, 16), randomProperties(r)))
		agreeOnProperties(t, p[min(16, len(p)):])
	}
	if both < rounds/2 || neither < rounds/2 {
		t.Errorf("%d messages are read, %d are not: too few of one kind", both, neither)
	}
}

// agree holds one decoder against the other, with what the text of the specification
// adds to its XDR. It reports whether the codec reads b.
func agree(t *testing.T, b []byte) bool {
	t.Helper()
	f, ok := rpcrdma.ConsumeFixed(b)
	if ok && f.Vers != rpcrdma.Version2 {
		return false // any number is a rdma_vers in the XDR
	}
	h, n, err := consume(b)
	var bad *rpcrdma.HeaderError
	if (err != nil) != errors.As(err, &bad) {
		t.Fatalf("%x: %v", b, err)
	}
	var x Rpcrdma2_xprt_hdr
	k, xerr := unmarshal(b, &x)

	want := xerr == nil
	switch {
	case f.Proc == rpcrdma.ProcMsg: // V2-4.2-7
		want = want && len(b)-k >= rpcrdma.MinRPCSize
	case f.Proc == rpcrdma.ProcNomsg: // V2-4.2-9
		want = want && k == len(b)
	case f.Proc == rpcrdma.ProcMsgp || f.Proc == rpcrdma.ProcDone: // V2-4.2-6
		want = false
	case f.Proc == rpcrdma.ProcError && ok:
		// No error is refused for its code, or for what is after it.
		if want = len(b) >= 20; want && xerr != nil {
			if h.Err == rpcrdma.ErrVers {
				want = false // without its range
			} else if h.Err == rpcrdma.ErrBadHeader || h.Err == rpcrdma.ErrInvalOption {
				t.Fatalf("%x: the compiled XDR refuses %v: %v", b, h.Err.Name(2), xerr)
			}
		}
	}
	if (err == nil) != want {
		t.Fatalf("%x: the codec says %v, the compiled XDR %v, %d of %d bytes", b, err, xerr, k, len(b))
	}
	if err != nil || xerr != nil {
		return err == nil
	}
	if f.Proc == rpcrdma.ProcError {
		n = k
	}
	if n != k || !reflect.DeepEqual(header(&x), h) {
		t.Fatalf("%x: the codec reads %+v, %d bytes; the compiled XDR %+v, %d bytes", b, h, n, header(&x), k)
	}
	if ours, theirs := rpcrdma.AppendHeader(nil, h), marshal(&x); !bytes.Equal(ours, b[:n]) || !bytes.Equal(theirs, b[:n]) {
		t.Fatalf("%x: the codec writes it as %x, the compiled XDR as %x", b[:n], ours, theirs)
	}
	return true
}

// agreeOnProperties is agree for an rdma_optinfo of the properties operation.
func agreeOnProperties(t *testing.T, b []byte) {
	t.Helper()
	p, err := rpcrdma.ConsumeProperties(b)
	var x Rpcrdma2_prop_info
	n, xerr := unmarshal(b, &x)
	want := xerr == nil && n == len(b)
	if want && x.Rdma_dir != RDMA_PROP_REJECT {
		s := x.Rdma_props()
		want = s.Rdma_send_size >= 4096 && s.Rdma_recv_size >= 4096 && (s.Rdma_send_size|s.Rdma_recv_size)%4 == 0
	}
	if (err == nil) != want {
		t.Fatalf("%x: the codec says %v, the compiled XDR %v, %d of %d bytes", b, err, xerr, n, len(b))
	}
	if err == nil && p != properties(&x) {
		t.Fatalf("%x: the codec reads %+v, the compiled XDR %+v", b, p, properties(&x))
	}
}

func FuzzAgree(f *testing.F) {
	r := rand.New(rand.NewPCG(1, 1))
	for range 50 {
		f.Add(append(rpcrdma.AppendHeader(nil, randomHeader(r)), "a message"...))
		f.Add(rpcrdma.AppendProperties(nil, randomProperties(r)))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		agree(t, b)
		agreeOnProperties(t, b)
	})
}
