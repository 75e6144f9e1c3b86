package dump

import (
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"

	"github.com/rpcrdma/rpcrdma/proto/oncrpc"
	"github.com/rpcrdma/rpcrdma/proto/rpcrdma"
	"github.com/rpcrdma/rpcrdma/proto/xdr"
)

// A Decoder decodes the messages of one connection in order. It numbers them, and remembers every call to name it in
// the reply. The zero value is ready for use. A Decoder must not be used concurrently.
type Decoder struct {
	number int
	calls  map[uint32]*Call // by XID
}

// Decode describes the message b. It never fails: Problem describes what is wrong with b. The result does not refer to
// b.
func (d *Decoder) Decode(b []byte) *Message {
	d.number++
	m := &Message{Number: d.number, Size: len(b)}
	if isPrivateData(b) {
		m.decodePrivateData(b)
		return m
	}
	var h rpcrdma.Header
	n, err := rpcrdma.ConsumeHeader(b, &h, &rpcrdma.Limits{
		// The message's own length limits what it can make us allocate.
		ReadSegments: len(b), WriteChunks: len(b), SegmentsPerChunk: len(b), OptInfo: len(b),
		Versions: rpcrdma.Range{Low: rpcrdma.Version1, High: rpcrdma.Version2},
	})
	var bad *rpcrdma.HeaderError
	if errors.As(err, &bad) {
		m.Problem = fmt.Sprintf("byte %d: %s", bad.Offset, bad.Reason)
	}
	fixed, ok := rpcrdma.ConsumeFixed(b)
	if !ok {
		return m
	}
	xid := Hex32(fixed.XID)
	m.XID, m.Version, m.Credits, m.Type = &xid, fixed.Vers, fixed.Credit, fixed.Proc.String()
	m.decodeBody(b, &h, bad)
	if err != nil || !hasRPC(&h, len(b)-n) {
		return m
	}
	m.RPCOffset = n
	if err := d.decodeRPC(m, b[n:]); err != nil && m.Problem == "" {
		m.Problem = err.Error()
	}
	if m.Option != nil && m.Option.Properties != nil && m.Problem == "" {
		m.Problem = fmt.Sprintf("byte %d: an RPC message follows %s", n, m.Option.Properties.Direction)
	}
	return m
}

// hasRPC reports whether an RPC message follows the header, with left bytes after it.
func hasRPC(h *rpcrdma.Header, left int) bool {
	switch h.Proc {
	case rpcrdma.ProcMsg, rpcrdma.ProcMsgp:
		return true
	case rpcrdma.ProcOptional:
		return left > 0
	}
	return false
}

// isPrivateData distinguishes private data from a header with an XID that equals the format identifier: the next byte
// is the private data's version, but 0 in every header.
func isPrivateData(b []byte) bool {
	return len(b) > 4 && binary.BigEndian.Uint32(b) == rpcrdma.PrivateDataID && b[4] != 0
}

func (m *Message) decodePrivateData(b []byte) {
	switch p, ok := rpcrdma.FindPrivateData(b[:min(len(b), rpcrdma.PrivateDataSize)]); {
	case ok:
		m.PrivateData = &PrivateData{Version: b[4], Send: p.SendSize, Recv: p.RecvSize, Inval: p.RemoteInvalidation}
		for _, dir := range []rpcrdma.PropDir{rpcrdma.PropOffer, rpcrdma.PropAccept} {
			if s, ok := rpcrdma.FindSetup(b, dir); ok {
				m.PrivateData.Setup = &Setup{Credit: s.Credit, Properties: Properties{
					Direction: dir.String(), dir: dir, Send: &s.SendSize, Recv: &s.RecvSize, Inval: &s.RemoteInvalidation,
				}}
			}
		}
	case b[4] != rpcrdma.PrivateDataVersion:
		m.Problem = fmt.Sprintf("byte 4: private data has version %d, want %d", b[4], rpcrdma.PrivateDataVersion)
	default:
		m.Problem = fmt.Sprintf("byte %d: private data is cut short", len(b))
	}
}

// decodeBody sets m from the part of h after the fixed fields. h is the header of b. If bad is not nil, h is damaged
// and has only the fields before the damage.
func (m *Message) decodeBody(b []byte, h *rpcrdma.Header, bad *rpcrdma.HeaderError) {
	switch h.Proc {
	case rpcrdma.ProcMsg, rpcrdma.ProcNomsg, rpcrdma.ProcMsgp:
		if h.Vers != rpcrdma.Version1 && (h.Vers != rpcrdma.Version2 || h.Proc == rpcrdma.ProcMsgp) {
			return
		}
		if h.Proc == rpcrdma.ProcMsgp {
			m.Align, m.Thresh = &h.Align, &h.Thresh
		}
		m.Lists = newLists(b, h, bad)
	case rpcrdma.ProcError:
		if bad != nil && bad.Offset < rpcrdma.ErrChunkSize {
			return
		}
		m.Error = &Error{Code: h.Err.Name(h.Vers)}
		if h.Err == rpcrdma.ErrVers && bad == nil {
			m.Error.Low, m.Error.High = &h.VersLow, &h.VersHigh
		}
	case rpcrdma.ProcOptional:
		if h.Vers == rpcrdma.Version2 && len(b) >= rpcrdma.MinOptionalSize {
			m.decodeOption(h, bad == nil)
		}
	}
}

// decodeOption decodes the body of RDMA_OPTIONAL. whole is set if its data is complete.
func (m *Message) decodeOption(h *rpcrdma.Header, whole bool) {
	m.Option = &Option{Operation: Hex32(h.OptType)}
	if h.OptType == rpcrdma.OptProperties {
		m.Option.Name = "RPCRDMA2_OPT_PROPERTIES"
	}
	if !whole {
		return
	}
	data := hex.EncodeToString(h.OptInfo)
	m.Option.Data = &data
	if h.OptType == rpcrdma.OptProperties {
		m.decodeProperties(h.OptInfo)
	}
}

// decodeProperties decodes as much as possible of b, the data of a properties operation.
func (m *Message) decodeProperties(b []byte) {
	p, err := rpcrdma.ConsumeProperties(b)
	var bad *xdr.DecodeError
	if errors.As(err, &bad) {
		m.Problem = fmt.Sprintf("byte %d: properties: %s", rpcrdma.MinOptionalSize+bad.Offset, bad.What)
	}
	if len(b) < xdr.Unit {
		return
	}
	info := &Properties{Direction: p.Dir.String(), dir: p.Dir}
	m.Option.Properties = info
	switch {
	case p.Dir == rpcrdma.PropReject && len(b) >= rpcrdma.PropRejectSize:
		info.Reason = p.Reason.String()
	case p.Dir <= rpcrdma.PropAccept && len(b) >= rpcrdma.PropertiesSize:
		info.Send, info.Recv, info.Inval = &p.SendSize, &p.RecvSize, &p.RemoteInvalidation
	}
}

// newLists returns the lists of h, the header of b, up to any damage.
func newLists(b []byte, h *rpcrdma.Header, bad *rpcrdma.HeaderError) *Lists {
	l := &Lists{Reads: []Segment{}}
	for i := range h.Reads {
		s := newSegment(h.Reads[i].Segment)
		s.Position = &h.Reads[i].Position
		l.Reads = append(l.Reads, s)
	}
	end := rpcrdma.FixedSize + rpcrdma.ReadListSize(len(h.Reads))
	if h.Proc == rpcrdma.ProcMsgp {
		end += rpcrdma.MinHeaderSizeMsgp - rpcrdma.MinHeaderSize
	}
	// The list marker of a truncated segment is where the end mark would be, but is not zero.
	if bad != nil && (bad.Offset < end || b[end-1] != 0) {
		return l
	}

	l.Writes = [][]Segment{}
	for _, chunk := range h.Writes {
		end += rpcrdma.WriteChunkSize(len(chunk))
		if bad != nil && bad.Offset < end {
			return l
		}
		l.Writes = append(l.Writes, newChunk(chunk))
	}
	end += 4 // the end mark
	if bad != nil && bad.Offset < end+4 {
		return l
	}

	var reply []Segment
	if h.HasReply {
		end += rpcrdma.WriteChunkSize(len(h.Reply))
		if bad != nil && bad.Offset < end {
			return l
		}
		reply = newChunk(h.Reply)
	}
	l.Reply = &reply
	return l
}

func newChunk(c rpcrdma.WriteChunk) []Segment {
	chunk := []Segment{}
	for _, s := range c {
		chunk = append(chunk, newSegment(s))
	}
	return chunk
}

func newSegment(s rpcrdma.Segment) Segment {
	return Segment{Handle: Hex32(s.Handle), Length: s.Length, Offset: Hex64(s.Offset)}
}

// decodeRPC decodes the header of b, the RPC message of m.
func (d *Decoder) decodeRPC(m *Message, b []byte) error {
	xid, kind, ok := oncrpc.Peek(b)
	if !ok {
		return fmt.Errorf("byte %d: RPC message is cut short", m.Size)
	}
	var err error
	switch kind {
	case oncrpc.Call:
		err = d.decodeCall(m, b)
	case oncrpc.Reply:
		err = d.decodeReply(m, b)
	default:
		err = fmt.Errorf("byte %d: RPC message is neither call nor reply but %v", m.RPCOffset+4, kind)
	}
	if err == nil && xid != uint32(*m.XID) {
		err = fmt.Errorf("byte %d: the RPC message's xid %v is not the transport header's %v", m.RPCOffset, Hex32(xid), *m.XID)
	}
	return err
}

func (d *Decoder) decodeCall(m *Message, b []byte) error {
	var h oncrpc.CallHeader
	n, err := oncrpc.ConsumeCall(b, &h)
	if err != nil {
		m.Call = newTruncatedCall(b)
		return m.rpcProblem(err)
	}
	m.Call = newCall(&h, m.Number)
	args := len(b) - n
	m.Call.Args = &args
	if h.RPCVers != oncrpc.Version {
		return fmt.Errorf("byte %d: RPC version %d is not %d", m.RPCOffset+8, h.RPCVers, oncrpc.Version)
	}
	if d.calls == nil {
		d.calls = make(map[uint32]*Call)
	}
	d.calls[h.XID] = m.Call
	return nil
}

func (d *Decoder) decodeReply(m *Message, b []byte) error {
	var h oncrpc.ReplyHeader
	n, err := oncrpc.ConsumeReply(b, &h)
	if err != nil {
		m.Reply = &Reply{XID: Hex32(binary.BigEndian.Uint32(b))}
		return m.rpcProblem(err)
	}
	m.Reply = newReply(&h)
	results := len(b) - n
	m.Reply.Result = &results
	m.Reply.To = d.calls[h.XID]
	return nil
}

// rpcProblem converts the offset in a decoding error from one relative to the RPC header to one relative to the
// message.
func (m *Message) rpcProblem(err error) error {
	var bad *xdr.DecodeError
	if errors.As(err, &bad) {
		return fmt.Errorf("byte %d: RPC %s", m.RPCOffset+bad.Offset, bad.What)
	}
	return err
}

func newCall(h *oncrpc.CallHeader, number int) *Call {
	c := &Call{XID: Hex32(h.XID), RPCVers: h.RPCVers, number: number}
	if h.RPCVers == oncrpc.Version {
		c.Prog, c.Vers, c.Proc = h.Prog, h.Vers, h.Proc
		c.ProgName, c.ProcName = Names(h.Prog, h.Vers, h.Proc)
		cred, verf := newAuth(&h.Cred), newAuth(&h.Verf)
		c.Cred, c.Verf = &cred, &verf
	}
	return c
}

// newTruncatedCall returns the fields before the credential of a call that ends within its credential or verifier. It
// returns nil if the call ends earlier.
func newTruncatedCall(b []byte) *Call {
	d := xdr.NewDecoder(b)
	c := &Call{XID: Hex32(d.Uint32())}
	d.Uint32() // CALL
	c.RPCVers, c.Prog, c.Vers, c.Proc = d.Uint32(), d.Uint32(), d.Uint32(), d.Uint32()
	if d.Err() != nil {
		return nil
	}
	c.ProgName, c.ProcName = Names(c.Prog, c.Vers, c.Proc)
	return c
}

func newReply(h *oncrpc.ReplyHeader) *Reply {
	r := &Reply{XID: Hex32(h.XID), Stat: h.Stat.String()}
	mismatch := false
	switch h.Stat {
	case oncrpc.MsgAccepted:
		r.Accept = h.AcceptStat.String()
		verf := newAuth(&h.Verf)
		r.Verf = &verf
		mismatch = h.AcceptStat == oncrpc.ProgMismatch
	case oncrpc.MsgDenied:
		r.Reject = h.RejectStat.String()
		mismatch = h.RejectStat == oncrpc.RPCMismatch
		if h.RejectStat == oncrpc.AuthError {
			r.Auth = h.AuthStat.String()
		}
	}
	if mismatch {
		r.Low, r.High = &h.Low, &h.High
	}
	return r
}

func newAuth(a *oncrpc.Auth) Auth {
	info := Auth{Flavor: a.Flavor.String(), Bytes: len(a.Body)}
	var sys oncrpc.AuthSys
	if a.Flavor == oncrpc.FlavorSys {
		if _, err := oncrpc.ConsumeAuthSys(a.Body, &sys); err == nil {
			info.Machine, info.UID, info.GID, info.GIDs = sys.Machine, &sys.UID, &sys.GID, sys.GIDs
		}
	}
	return info
}
