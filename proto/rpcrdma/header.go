package rpcrdma

import (
	"encoding/binary"
	"slices"
	"strconv"

	"github.com/rpcrdma/rpcrdma/proto/xdr"
)

// A Header is the transport header of a message. Proc determines which fields are used;
// encoding ignores the others, and decoding sets them to zero. RFC 5666 section 4, version two
// section 4.2.
//
//	0     4      8        12         16
//	+-----+------+--------+----------+- - - - - - - - - - - - - - - - -
//	| xid | vers | credit | proc     |  body
//	+-----+------+--------+----------+- - - - - - - - - - - - - - - - -
//
//	RDMA_MSG       read list, write list, reply chunk, then the RPC message
//	RDMA_NOMSG     read list, write list, reply chunk
//	RDMA_MSGP      align, thresh, read list, write list, reply chunk, RPC message
//	RDMA_DONE      nothing
//	RDMA_ERROR     ERR_VERS low high | ERR_CHUNK | other code, 32 bytes
//
// Version 2 has the same RDMA_MSG and RDMA_NOMSG, no RDMA_MSGP, no RDMA_DONE, and
//
//	RDMA_ERROR     ERR_VERS low high | BAD_HEADER | INVAL_OPTION
//	RDMA_OPTIONAL  opttype, optinfo, then an RPC message or nothing
type Header struct {
	XID    uint32 // the XID of the RPC message, section 4.1 field 1
	Vers   uint32 // Version1 or Version2, section 4.1 field 2; encoded as is
	Credit uint32 // requested in a call, granted in a reply, section 3.3
	Proc   Proc

	Align  uint32 // RDMA_MSGP: alignment in bytes of padded opaques, section 3.9
	Thresh uint32 // RDMA_MSGP: smallest opaque in bytes that is padded, section 3.9

	Reads    []ReadSegment // rdma_reads, in the order of the wire
	Writes   []WriteChunk  // rdma_writes, one chunk for each result
	Reply    WriteChunk    // rdma_reply, if HasReply
	HasReply bool          // a present chunk may have no segments; an absent one has none

	Err      ErrCode // RDMA_ERROR
	VersLow  uint32  // ERR_VERS: lowest version that the sender supports
	VersHigh uint32  // ERR_VERS: highest, inclusive

	OptType uint32 // RDMA_OPTIONAL: the operation, rdma_opttype; version two section 3.1
	OptInfo []byte // RDMA_OPTIONAL: its data, rdma_optinfo; a view of the message when decoded
}

// A Fixed is the start of every message, the same in all versions of the protocol.
// RFC 5666 section 4.1.
type Fixed struct {
	XID, Vers, Credit uint32
	Proc              Proc
}

// ConsumeFixed reads the first [FixedSize] bytes of a message of any version.
// ok is false if there are fewer; such a message has no XID to answer to.
func ConsumeFixed(b []byte) (f Fixed, ok bool) {
	if len(b) < FixedSize {
		return Fixed{}, false
	}
	return Fixed{
		XID:    binary.BigEndian.Uint32(b[0:4]),
		Vers:   binary.BigEndian.Uint32(b[4:8]),
		Credit: binary.BigEndian.Uint32(b[8:12]),
		Proc:   Proc(binary.BigEndian.Uint32(b[12:16])),
	}, true
}

// Size returns the encoded size in bytes. It panics as [AppendHeader] does.
func (h *Header) Size() int {
	if h.Proc == ProcMsg && !h.hasChunks() {
		return FixedSize + emptyLists
	}
	if h.Vers == Version2 {
		h.mustVersion2()
	}
	switch h.Proc {
	case ProcMsg, ProcNomsg, ProcMsgp:
		size := FixedSize + ReadListSize(len(h.Reads)) + 4 + 4
		if h.Proc == ProcMsgp {
			size += 8
		}
		for _, chunk := range h.Writes {
			size += WriteChunkSize(len(chunk))
		}
		if h.HasReply {
			size += WriteChunkSize(len(h.Reply)) - 4
		}
		return size
	case ProcDone:
		return DoneSize
	case ProcError:
		switch h.Err {
		case ErrVers:
			return ErrVersSize
		case ErrChunk:
			return ErrChunkSize
		}
		if h.Vers == Version2 {
			return ErrChunkSize // RDMA_ERR_INVAL_OPTION
		}
		return ErrOtherSize
	case ProcOptional:
		if h.Vers == Version2 {
			return MinOptionalSize + xdr.Padded(len(h.OptInfo))
		}
	}
	panic("rpcrdma: version 1 has no message type " + h.Proc.String())
}

// emptyLists is the length of three lists without chunks: three words of zero, as in most messages.
const emptyLists = 12

func (h *Header) hasChunks() bool { return len(h.Reads)+len(h.Writes) > 0 || h.HasReply }

// mustVersion2 panics if version 2 does not have the message. RDMA_MSGP and RDMA_DONE are reserved there, and its error
// codes have no default arm: version two section 4.2.
func (h *Header) mustVersion2() {
	switch h.Proc {
	case ProcMsg, ProcNomsg, ProcOptional:
		return
	case ProcError:
		if ErrVers <= h.Err && h.Err <= ErrInvalOption {
			return
		}
		panic("rpcrdma: version 2 has no error code " + strconv.FormatUint(uint64(h.Err), 10))
	}
	panic("rpcrdma: version 2 has no message type " + h.Proc.String())
}

// AppendHeader appends the encoding of h, which is h.Size() bytes. It allocates only if b lacks the capacity. It panics
// if the version has no message type h.Proc, or, in version 2, no error code h.Err. [Version2] is encoded as version 2,
// everything else as version 1.
func AppendHeader(b []byte, h *Header) []byte {
	b = slices.Grow(b, h.Size())
	b = binary.BigEndian.AppendUint32(b, h.XID)
	b = binary.BigEndian.AppendUint32(b, h.Vers)
	b = binary.BigEndian.AppendUint32(b, h.Credit)
	b = binary.BigEndian.AppendUint32(b, uint32(h.Proc))
	switch h.Proc {
	case ProcMsgp:
		b = binary.BigEndian.AppendUint32(b, h.Align)
		b = binary.BigEndian.AppendUint32(b, h.Thresh)
		return appendLists(b, h)
	case ProcMsg, ProcNomsg:
		return appendLists(b, h)
	case ProcError:
		return appendError(b, h)
	case ProcOptional:
		b = binary.BigEndian.AppendUint32(b, h.OptType)
		return xdr.AppendOpaque(b, h.OptInfo)
	}
	return b
}

// SetCredit stores the credits in an encoded message of any version. b must hold at least
// [FixedSize] bytes.
func SetCredit(b []byte, credit uint32) { binary.BigEndian.PutUint32(b[8:], credit) }

func appendLists(b []byte, h *Header) []byte {
	if !h.hasChunks() {
		return append(b, make([]byte, emptyLists)...)
	}
	for i := range h.Reads {
		b = binary.BigEndian.AppendUint32(b, 1)
		b = binary.BigEndian.AppendUint32(b, h.Reads[i].Position)
		b = appendSegment(b, &h.Reads[i].Segment)
	}
	b = binary.BigEndian.AppendUint32(b, 0)
	for _, chunk := range h.Writes {
		b = appendWriteChunk(b, chunk)
	}
	b = binary.BigEndian.AppendUint32(b, 0)
	if h.HasReply {
		return appendWriteChunk(b, h.Reply)
	}
	return binary.BigEndian.AppendUint32(b, 0)
}

func appendWriteChunk(b []byte, chunk WriteChunk) []byte {
	b = binary.BigEndian.AppendUint32(b, 1)
	b = binary.BigEndian.AppendUint32(b, uint32(len(chunk)))
	for i := range chunk {
		b = appendSegment(b, &chunk[i])
	}
	return b
}

func appendSegment(b []byte, s *Segment) []byte {
	b = binary.BigEndian.AppendUint32(b, s.Handle)
	b = binary.BigEndian.AppendUint32(b, s.Length)
	return binary.BigEndian.AppendUint64(b, s.Offset)
}

func appendError(b []byte, h *Header) []byte {
	b = binary.BigEndian.AppendUint32(b, uint32(h.Err))
	switch h.Err {
	case ErrVers:
		b = binary.BigEndian.AppendUint32(b, h.VersLow)
		b = binary.BigEndian.AppendUint32(b, h.VersHigh)
	case ErrChunk:
	default:
		if h.Vers != Version2 {
			var extra [ErrOtherSize - ErrChunkSize]byte // rdma_extra[8]
			b = append(b, extra[:]...)
		}
	}
	return b
}

// Limits limit what ConsumeHeader accepts from a peer. RFC 5666 has no limits other than the length of the message; a
// header with longer lists than these is answered like a malformed one. For each number, 0 means the default and a
// negative value means that none is accepted.
type Limits struct {
	// Versions is the range of accepted versions; others are answered with ERR_VERS. The zero value means version 1
	// only. Versions other than 1 and 2 are never accepted.
	Versions Range

	ReadSegments     int // entries in the read list; DefaultReadSegments
	WriteChunks      int // entries in the write list; DefaultWriteChunks
	SegmentsPerChunk int // segments in a write chunk or the reply chunk; DefaultSegmentsPerChunk
	OptInfo          int // bytes of rdma_optinfo; DefaultOptInfo. More is RDMA_ERR_INVAL_OPTION
}

// Defaults of [Limits]. The Linux server accepts chunks of up to 259 segments, one megabyte in pages and a little more;
// these limits allow twice that.
const (
	DefaultReadSegments     = 512
	DefaultWriteChunks      = 16
	DefaultSegmentsPerChunk = 512
	DefaultOptInfo          = 1024 // bytes
)

func limit(v, def int) int {
	switch {
	case v == 0:
		return def
	case v < 0:
		return 0
	}
	return v
}

// ConsumeHeader reads the header at the start of a message into h and returns its
// size in bytes; b[n:] is the RPC message. lim may be nil for the defaults.
//
// Slices in h are reused up to their capacity, so that a Header that is reused for many
// messages stops allocating.
//
// The error is always a [*HeaderError]. h then holds what was decoded before the fault, for
// programs that print messages; it must not be acted upon. By message:
//
//   - Under 16 bytes: no answer, the XID cannot be trusted.
//   - RDMA_ERROR is accepted in any version, since the fixed fields are the same in all (RFC
//     5666 section 4.1): an ERR_VERS answer may carry the version that was refused. Unknown
//     codes are accepted, and any bytes after a code are consumed and ignored: refusing an
//     error would leave its call waiting.
//   - Any version that lim excludes: ERR_VERS, whatever the message type.
//   - RDMA_DONE that is not exactly 16 bytes: no answer. In version 2 any: the number is
//     reserved, and a sender that means RDMA_DONE expects no answer.
//   - RDMA_MSG, RDMA_NOMSG, RDMA_MSGP: truncated, with a discriminant that is neither 0 nor 1,
//     with a count that the message cannot hold, or with more entries than lim allows:
//     ERR_CHUNK. So are bytes after the lists of RDMA_NOMSG, as its RPC message is in a chunk
//     (RFC 5666 section 4.1).
//   - RDMA_MSG in version 2 with fewer than [MinRPCSize] bytes after it:
//     RDMA_ERR_BAD_HEADER, as an RPC message must follow (version two section 4.2).
//     Version 1 leaves that to the transport.
//   - RDMA_OPTIONAL in version 2 that is truncated, or padded with anything but zeros:
//     RDMA_ERR_BAD_HEADER. One with more data than lim allows is well-formed, but not
//     supported: RDMA_ERR_INVAL_OPTION.
//   - Any other type, RDMA_MSGP in version 2 included: ERR_CHUNK, or
//     RDMA_ERR_BAD_HEADER, which is the same number.
func ConsumeHeader(b []byte, h *Header, lim *Limits) (n int, err error) {
	f, ok := ConsumeFixed(b)
	if !ok {
		return 0, &HeaderError{Offset: len(b), Reason: "message is shorter than the fixed header"}
	}
	h.XID, h.Vers, h.Credit, h.Proc = f.XID, f.Vers, f.Credit, f.Proc
	h.Align, h.Thresh = 0, 0
	h.Reads, h.Writes, h.Reply, h.HasReply = h.Reads[:0], h.Writes[:0], h.Reply[:0], false
	h.Err, h.VersLow, h.VersHigh = 0, 0, 0
	h.OptType, h.OptInfo = 0, nil

	if f.Proc == ProcError {
		return consumeError(b, h)
	}
	if lim == nil {
		lim = &Limits{}
	}
	if r := lim.Versions.known(); f.Vers < r.Low || f.Vers > r.High {
		return 0, &HeaderError{
			XID: h.XID, HaveXID: true, Vers: h.Vers, Proc: h.Proc,
			Offset: 4, Code: ErrVers, Reason: "version is not supported", Versions: r,
		}
	}
	p := parser{b: b, off: FixedSize}
	switch {
	case f.Proc == ProcMsg || f.Proc == ProcNomsg:
	case f.Proc == ProcOptional && f.Vers == Version2:
		return consumeOptional(b, h, limit(lim.OptInfo, DefaultOptInfo))
	case f.Proc == ProcMsgp && f.Vers == Version1:
		if len(b) < FixedSize+8 {
			return 0, h.bad(len(b), ErrChunk, "rdma_align and rdma_thresh are cut short")
		}
		h.Align = binary.BigEndian.Uint32(b[16:20])
		h.Thresh = binary.BigEndian.Uint32(b[20:24])
		p.off += 8
	case f.Proc == ProcDone && f.Vers == Version1:
		if len(b) != DoneSize {
			return 0, h.bad(DoneSize, 0, "bytes after RDMA_DONE")
		}
		return DoneSize, nil
	case f.Proc == ProcDone:
		return 0, h.bad(12, 0, "message type is reserved")
	case f.Proc == ProcMsgp:
		return 0, h.bad(12, ErrBadHeader, "message type is reserved")
	default:
		return 0, h.bad(12, ErrChunk, "message type is unknown")
	}

	if !p.lists(h, lim) {
		return 0, h.bad(p.off, ErrChunk, p.reason)
	}
	if f.Proc == ProcNomsg && p.off != len(b) {
		return 0, h.bad(p.off, ErrChunk, "bytes after the chunk lists of RDMA_NOMSG")
	}
	if f.Proc == ProcMsg && f.Vers == Version2 && len(b)-p.off < MinRPCSize {
		return 0, h.bad(p.off, ErrBadHeader, "no RPC message follows RDMA_MSG")
	}
	return p.off, nil
}

// consumeOptional reads the body of RDMA_OPTIONAL.
func consumeOptional(b []byte, h *Header, max int) (n int, err error) {
	if len(b) < MinOptionalSize {
		return 0, h.bad(len(b), ErrBadHeader, "rdma_opttype and rdma_optinfo are cut short")
	}
	h.OptType = binary.BigEndian.Uint32(b[16:20])
	size, rest := binary.BigEndian.Uint32(b[20:24]), b[MinOptionalSize:]
	if uint64(size) > uint64(len(rest)) || xdr.Padded(int(size)) > len(rest) {
		return 0, h.bad(20, ErrBadHeader, "rdma_optinfo is longer than the message")
	}
	data := int(size)
	end := xdr.Padded(data)
	for i, pad := range rest[data:end] {
		if pad != 0 {
			return 0, h.bad(MinOptionalSize+data+i, ErrBadHeader, "rdma_optinfo is padded with other bytes than zeros")
		}
	}
	if data > max {
		return 0, h.bad(20, ErrInvalOption, "rdma_optinfo is longer than the limit")
	}
	h.OptInfo = rest[:data:data]
	return MinOptionalSize + end, nil
}

// bad returns the error for the message with the fixed fields in h.
func (h *Header) bad(offset int, code ErrCode, reason string) error {
	return &HeaderError{
		XID: h.XID, HaveXID: true, Vers: h.Vers, Proc: h.Proc,
		Offset: offset, Code: code, Reason: reason,
	}
}

func consumeError(b []byte, h *Header) (n int, err error) {
	if len(b) < ErrChunkSize {
		return 0, h.bad(len(b), 0, "RDMA_ERROR has no code")
	}
	h.Err = ErrCode(binary.BigEndian.Uint32(b[16:20]))
	if h.Err == ErrVers {
		if len(b) < ErrVersSize {
			return 0, h.bad(len(b), 0, "version range of ERR_VERS is cut short")
		}
		h.VersLow = binary.BigEndian.Uint32(b[20:24])
		h.VersHigh = binary.BigEndian.Uint32(b[24:28])
	}
	return len(b), nil
}

// A parser walks the chunk lists. Its methods return false at the first fault, with off at the
// offending word and reason set.
type parser struct {
	b      []byte
	off    int
	reason string
}

func (p *parser) fail(reason string) bool {
	p.reason = reason
	return false
}

// lists reads the read list, the write list and the reply chunk.
func (p *parser) lists(h *Header, lim *Limits) bool {
	if rest := p.b[p.off:]; len(rest) >= emptyLists && binary.BigEndian.Uint64(rest)|uint64(binary.BigEndian.Uint32(rest[8:])) == 0 {
		p.off += emptyLists
		return true
	}
	maxReads := limit(lim.ReadSegments, DefaultReadSegments)
	maxWrites := limit(lim.WriteChunks, DefaultWriteChunks)
	maxSegments := limit(lim.SegmentsPerChunk, DefaultSegmentsPerChunk)

	for {
		more, ok := p.discriminant("read list is cut short", "read list has a discriminant that is neither 0 nor 1")
		if !ok {
			return false
		}
		if !more {
			break
		}
		rest := p.b[p.off:]
		if len(rest) < ReadSegmentSize {
			return p.fail("read segment is cut short")
		}
		if len(h.Reads) >= maxReads {
			return p.fail("read list has more segments than the limit")
		}
		h.Reads = append(h.Reads, ReadSegment{
			Position: binary.BigEndian.Uint32(rest[0:4]),
			Segment:  segment(rest[4:ReadSegmentSize]),
		})
		p.off += ReadSegmentSize
	}

	for {
		more, ok := p.discriminant("write list is cut short", "write list has a discriminant that is neither 0 nor 1")
		if !ok {
			return false
		}
		if !more {
			break
		}
		if len(h.Writes) >= maxWrites {
			return p.fail("write list has more chunks than the limit")
		}
		i := len(h.Writes)
		if i < cap(h.Writes) {
			// Reuse the segments slice of an earlier message.
			h.Writes = h.Writes[:i+1]
		} else {
			h.Writes = append(h.Writes, nil)
		}
		if !p.chunk(&h.Writes[i], maxSegments) {
			return false
		}
	}

	more, ok := p.discriminant("reply chunk is cut short", "reply chunk has a discriminant that is neither 0 nor 1")
	if !ok {
		return false
	}
	h.HasReply = more
	return !more || p.chunk(&h.Reply, maxSegments)
}

// discriminant reads the word that precedes an optional item.
func (p *parser) discriminant(short, invalid string) (more, ok bool) {
	rest := p.b[p.off:]
	if len(rest) < 4 {
		return false, p.fail(short)
	}
	v := binary.BigEndian.Uint32(rest)
	if v > 1 {
		return false, p.fail(invalid)
	}
	p.off += 4
	return v == 1, true
}

// chunk reads a counted array of segments over the content of c. The count is checked against
// the remaining bytes before it is used.
func (p *parser) chunk(c *WriteChunk, max int) bool {
	rest := p.b[p.off:]
	if len(rest) < 4 {
		return p.fail("segment count is cut short")
	}
	v := binary.BigEndian.Uint32(rest)
	rest = rest[4:]
	// Compare segments, not bytes: a product could overflow.
	if uint64(v) > uint64(len(rest)/SegmentSize) {
		return p.fail("segment count is more than the message holds")
	}
	count := int(v)
	if count > max {
		return p.fail("chunk has more segments than the limit")
	}
	segs := slices.Grow((*c)[:0], count)[:count]
	for i := range segs {
		segs[i] = segment(rest[i*SegmentSize:][:SegmentSize])
	}
	*c = segs
	p.off += 4 + count*SegmentSize
	return true
}

func segment(b []byte) Segment {
	_ = b[SegmentSize-1] // one bounds check
	return Segment{
		Handle: binary.BigEndian.Uint32(b[0:4]),
		Length: binary.BigEndian.Uint32(b[4:8]),
		Offset: binary.BigEndian.Uint64(b[8:16]),
	}
}
