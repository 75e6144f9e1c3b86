package trace

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/rpcrdma/rpcrdma/fabric/capture"
	"github.com/rpcrdma/rpcrdma/proto/dump"
	"github.com/rpcrdma/rpcrdma/proto/oncrpc"
	"github.com/rpcrdma/rpcrdma/proto/rpcrdma"
)

// Limits of a conversation.
const (
	maxCalls      = 1 << 14 // calls without a reply, in one direction
	maxExposed    = 1 << 16 // segments of calls in flight
	maxAnomalies  = 100     // kept with their place; others are only counted
	maxProcedures = 1 << 10
	maxListed     = 1 << 20 // calls in a list
)

// A Conversation is the traffic of one connection.
type Conversation struct {
	Framing      string            // "iWARP" or "RoCE v2"
	Ends         [2]netip.AddrPort // direction 0 is from the first to the second
	QPs          [2]uint32         // RoCE: the queue pairs that receive each direction
	First        int64             // nanoseconds since 1970
	Last         int64
	Version      uint32                  // last version of RPC-over-RDMA seen
	Private      [2]*rpcrdma.PrivateData // of the request and of the reply, nil if there was none
	asked, setUp bool                    // the request was captured; the reply too
	rejected     bool

	Messages   [2]int
	WriteBytes [2]uint64
	Writes     [2]int // packets
	ReadBytes  [2]uint64
	Reads      [2]int // requests
	Padding    int    // padding packets that are not on the wire

	Procedures    []*Procedure
	Calls         []*Call // if requested
	Unanswered    int
	Errors        int // RDMA_ERROR messages
	Holes         int // places where something was not captured
	Retransmitted int // packets
	Naks          int
	End           string // why the connection ended, if that was captured

	Anomalies []Anomaly
	Rules     map[string]int // all anomalies, by rule

	list    bool
	budget  *int
	dropped *int // places where the file lacks data of any connection
	index   map[procKey]*Procedure
	ends    [2]callers
	hdr     rpcrdma.Header
	marked  int  // last packet with a comment about that
	swapped bool // the second end opened the connection
}

// An Anomaly is a violation of a rule.
type Anomaly struct {
	Rule   string `json:"rule"` // id of the rule, see docs/reports/conformance.md
	Packet int    `json:"packet"`
	At     int64  `json:"-"`
	Text   string `json:"text"`

	message int // number of messages before it
}

// inContext lists the rules that also concern other messages, one of which may have been lost. Immutable.
var inContext = []string{"BIDI-2-2", "PVT-4.1-2", "V1-11-4", "V1-3.3-6", "V1-3.6-5", "V1-3.8-2"}

// recent is by how many messages the detection of a gap may lag: a gap is noticed at the next packet of its direction.
const recent = 4

// A Call is a call with its reply.
type Call struct {
	Packet, Reply    int   // packets; Reply is 0 if none exists
	At, Latency      int64 // nanoseconds
	Dir              int
	XID              uint32
	Prog, Vers, Proc uint32
	Known            bool // the three numbers are known
	How              How
	Status           string // of the reply

	reads  []exposure
	writes [][]*exposure
	reply  []*exposure
	holes  int // of the conversation when the call was seen
	size   int
}

// How the data of a call and its reply traveled.
type How struct {
	ReadChunks, WriteChunks int // read and write chunks used
	LongCall, ReplyChunk    bool
	ReadBytes, WriteBytes   uint64
}

// exposure is memory that a call exposes.
type exposure struct {
	seg   rpcrdma.Segment
	call  *Call
	write bool
	first bool   // of the chunk for a whole message
	done  uint64 // bytes written or read
}

// callers holds the calls made by one end, and the memory that it has exposed for them.
type callers struct {
	calls   map[uint32]*Call
	exposed map[uint32][]*exposure
	n       int // number of exposures
	credits uint32
	granted bool
}

type procKey struct {
	dir              int
	prog, vers, proc uint32
}

// A Procedure sums up the calls of one procedure in one direction.
type Procedure struct {
	Dir                                                 int
	Prog, Vers, Proc                                    uint32
	Name                                                string
	Count, Failed                                       int
	Inline, ReadChunk, WriteChunk, LongCall, ReplyChunk int
	ReadBytes, WriteBytes                               uint64
	latencies                                           []int64
}

func newConversation(framing string, a, b netip.AddrPort, list bool, budget, dropped *int) *Conversation {
	c := &Conversation{Framing: framing, Ends: [2]netip.AddrPort{a, b}, list: list, budget: budget, dropped: dropped,
		Rules: make(map[string]int), index: make(map[procKey]*Procedure)}
	for i := range c.ends {
		c.ends[i] = callers{calls: make(map[uint32]*Call), exposed: make(map[uint32][]*exposure)}
	}
	return c
}

// gaps returns the number of places where something may be missing.
func (c *Conversation) gaps() int { return c.Holes + *c.dropped }

// is reports whether the conversation contains RPC-over-RDMA.
func (c *Conversation) is() bool { return c.Version != 0 || c.Private[0] != nil }

// consumeHeader reads the header of b.
func consumeHeader(b []byte, h *rpcrdma.Header) (int, error) {
	return rpcrdma.ConsumeHeader(b, h, &rpcrdma.Limits{
		// The message's own length limits what it can make us allocate.
		ReadSegments: len(b), WriteChunks: len(b), SegmentsPerChunk: len(b), OptInfo: len(b),
		Versions: rpcrdma.Range{Low: rpcrdma.Version1, High: rpcrdma.Version2},
	})
}

func (c *Conversation) anomaly(o *op, rule, format string, args ...any) {
	c.Rules[rule]++
	if len(c.Anomalies) < maxAnomalies {
		c.Anomalies = append(c.Anomalies, Anomaly{rule, o.packet, o.time, fmt.Sprintf(format, args...), c.Messages[0] + c.Messages[1]})
	}
}

// hole counts a gap, and removes anomalies that the gap may explain.
func (c *Conversation) hole() {
	c.Holes++
	c.Anomalies = slices.DeleteFunc(c.Anomalies, func(a Anomaly) bool {
		if a.message+recent < c.Messages[0]+c.Messages[1] || !slices.Contains(inContext, a.Rule) {
			return false
		}
		if c.Rules[a.Rule]--; c.Rules[a.Rule] == 0 {
			delete(c.Rules, a.Rule)
		}
		return true
	})
}

// take processes an operation.
func (c *Conversation) take(o *op) {
	if c.First == 0 {
		c.First = o.time
	}
	c.Last = max(c.Last, o.time)
	if strings.Contains(o.comment, capture.DroppedComment) && o.packet != c.marked {
		c.marked = o.packet
		*c.dropped++
	}
	switch o.kind {
	case opPrivate, opReject:
		c.private(o)
	case opSend:
		c.send(o)
	case opWrite:
		c.wrote(o)
	case opRead:
		c.Reads[o.dir]++
		c.ReadBytes[o.dir] += uint64(o.size)
		c.accessed(o, false)
	case opReadData:
		c.fetched(o)
	case opTerminate:
		c.End = "terminated: " + o.text
	case opFault:
		c.Rules["damaged frame"]++
		if len(c.Anomalies) < maxAnomalies {
			c.Anomalies = append(c.Anomalies, Anomaly{Packet: o.packet, At: o.time, Text: o.text})
		}
	case opHole:
		c.hole()
	}
}

// private takes the private data of one end. RFC 8797.
func (c *Conversation) private(o *op) {
	i := 0
	if o.whole {
		i = 1
		c.setUp = c.asked
	} else {
		c.asked, c.swapped = !strings.Contains(o.comment, capture.ContinuedComment), o.dir == 1
	}
	if p, ok := rpcrdma.FindPrivateData(o.data); ok {
		c.Private[i] = &p
	}
	if o.kind == opReject {
		c.rejected = true
		c.End = "the request was rejected"
	}
}

// wrote processes a part of an RDMA Write.
func (c *Conversation) wrote(o *op) {
	if strings.Contains(o.comment, paddingComment) {
		c.Padding++
		return
	}
	c.Writes[o.dir]++
	c.WriteBytes[o.dir] += uint64(o.size)
	e := c.accessed(o, true)
	if e == nil {
		return
	}
	if at := o.offset - e.seg.Offset; at == e.done {
		e.done += uint64(o.size)
	} else if c.gaps() == e.call.holes {
		c.anomaly(o, "V1-3.6-5", "a write chunk has a gap: bytes from %d, where %d are next", at, e.done)
		e.done = at + uint64(o.size)
	}
	if e.first && o.offset == e.seg.Offset {
		c.replyStatus(e.call, o.data)
	}
}

// fetched processes a part of an RDMA Read Response from the end that sends it.
func (c *Conversation) fetched(o *op) {
	for _, e := range c.ends[o.dir].exposed[o.key] {
		if at := o.offset - e.seg.Offset; !e.write && at < uint64(e.seg.Length) {
			if end := at + uint64(o.size); end > e.done { // otherwise it is retransmitted
				e.call.How.ReadBytes += end - max(at, e.done)
				e.done = end
			}
			if e.first && at == 0 && !e.call.Known {
				c.name(e.call, o.data)
			}
			return
		}
	}
}

// accessed returns the memory, exposed by the peer of o.dir, that o accesses.
func (c *Conversation) accessed(o *op, write bool) *exposure {
	owner := &c.ends[1-o.dir]
	if o.size == 0 {
		return nil
	}
	for _, e := range owner.exposed[o.key] {
		at := o.offset - e.seg.Offset
		if e.write == write && at <= uint64(e.seg.Length) && uint64(o.size) <= uint64(e.seg.Length)-at {
			return e
		}
	}
	if c.setUp && c.gaps() == 0 && owner.n < maxExposed {
		what := "RDMA Read from"
		if write {
			what = "RDMA Write to"
		}
		c.anomaly(o, "V1-11-4", "%s %d bytes at handle %#08x offset %#x, which no call under way has named", what, o.size, o.key, o.offset)
	}
	return nil
}

// send processes a message.
func (c *Conversation) send(o *op) {
	c.Messages[o.dir]++
	b := o.data
	fixed, ok := rpcrdma.ConsumeFixed(b)
	if !ok {
		if o.whole && c.is() {
			c.anomaly(o, "V1-4.1-1", "a message of %d bytes is no header", o.size)
		}
		return
	}
	h := &c.hdr
	n, err := consumeHeader(b, h)
	if err != nil {
		if c.is() && o.whole {
			c.anomaly(o, "V1-4.2-1", "%v", err)
		}
		return
	}
	version := fixed.Vers
	if strings.Contains(o.comment, versionComment) {
		version = rpcrdma.Version2
	}
	c.Version = version
	c.inline(o, version)
	switch h.Proc {
	case rpcrdma.ProcMsg, rpcrdma.ProcMsgp:
		xid, kind, ok := oncrpc.Peek(b[n:])
		switch {
		case !ok:
			if o.whole {
				c.anomaly(o, "V1-4.1-10", "no RPC message follows %v", h.Proc)
			}
		case kind == oncrpc.Call:
			c.call(o, b[n:], xid)
		case kind == oncrpc.Reply:
			c.replied(o, b[n:], xid)
		default:
			c.anomaly(o, "CTX-5531-1", "an RPC message is neither call nor reply but %d", uint32(kind))
		}
	case rpcrdma.ProcNomsg:
		switch {
		case len(h.Reads) > 0 && h.Reads[0].Position == 0:
			c.call(o, nil, h.XID)
		case h.HasReply:
			c.replied(o, nil, h.XID)
		default:
			c.anomaly(o, "V1-4.1-11", "RDMA_NOMSG has no chunk with a message")
		}
	case rpcrdma.ProcError:
		c.Errors++
		if call := c.ends[1-o.dir].calls[h.XID]; call != nil {
			call.Status = h.Err.Name(version)
			c.finish(o, call)
		}
	case rpcrdma.ProcOptional:
		c.optional(o, b[n:])
	}
}

// optional processes an operation of version 2, and the RPC message that may follow it.
func (c *Conversation) optional(o *op, msg []byte) {
	switch xid, kind, ok := oncrpc.Peek(msg); {
	case ok && kind == oncrpc.Call:
		c.call(o, msg, xid)
	case ok && kind == oncrpc.Reply:
		c.replied(o, msg, xid)
	case c.hdr.OptType == rpcrdma.OptProperties:
		// docs/protocol.md: the answer carries a grant, like a reply.
		if p, err := rpcrdma.ConsumeProperties(c.hdr.OptInfo); err == nil && p.Dir != rpcrdma.PropOffer {
			end := &c.ends[1-o.dir]
			end.credits, end.granted = c.hdr.Credit, true
		}
	}
}

// inline checks the length of a message, and whether it may invalidate.
func (c *Conversation) inline(o *op, version uint32) {
	if !c.setUp || c.rejected || c.gaps() > 0 {
		return
	}
	both := c.Private[0] != nil && c.Private[1] != nil
	// In version 2 the ends may have agreed on more.
	if most := rpcrdma.DefaultInline; version == rpcrdma.Version1 {
		if both {
			// The requester's direction is 0, or 1 if the second end opened the connection.
			from, to := c.Private[0], c.Private[1]
			if o.dir == 1 != c.swapped {
				from, to = to, from
			}
			most = min(from.SendSize, to.RecvSize)
		}
		if o.size > most {
			c.anomaly(o, "PVT-3.1-3", "a message of %d bytes, where %d are the inline threshold", o.size, most)
		}
		if o.invalidates && !(both && c.Private[0].RemoteInvalidation && c.Private[1].RemoteInvalidation) {
			c.anomaly(o, "PVT-4.1-3", "Send with Invalidate, which the ends have not agreed on")
		}
	}
	if o.invalidates {
		for _, e := range c.ends[1-o.dir].exposed[o.key] {
			if e.call.XID == c.hdr.XID {
				return
			}
		}
		c.anomaly(o, "PVT-4.1-2", "Send with Invalidate of handle %#08x, which call %#08x has not named", o.key, c.hdr.XID)
	}
}

// call processes a call. msg is its RPC message, or nil if that is in a chunk.
func (c *Conversation) call(o *op, msg []byte, xid uint32) {
	h, end := &c.hdr, &c.ends[o.dir]
	if xid != h.XID {
		c.anomaly(o, "V1-4.1-2", "rdma_xid is %#08x, the RPC message's xid %#08x", h.XID, xid)
	}
	if old := end.calls[h.XID]; old != nil {
		c.anomaly(o, "BIDI-2.4-2", "call %#08x, which has been made in packet %d and has no reply yet", h.XID, old.Packet)
		c.forget(end, old)
		c.Unanswered++
	}
	if len(end.calls) >= maxCalls {
		return
	}
	call := &Call{Packet: o.packet, At: o.time, Dir: o.dir, XID: h.XID, holes: c.gaps(), size: o.size}
	if c.setUp && c.gaps() == 0 {
		most := uint32(1) // CTX-8166-1
		if end.granted {
			most = end.credits
		}
		if uint64(len(end.calls)) >= uint64(most) {
			c.anomaly(o, "V1-3.3-6", "call %#08x is number %d without a reply, with %d credits", h.XID, len(end.calls)+1, most)
		}
	}
	end.calls[h.XID] = call
	if msg != nil {
		c.name(call, msg)
	} else {
		call.How.LongCall = true
	}
	positions := 0
	for i := range h.Reads {
		r := &h.Reads[i]
		if i == 0 || r.Position != h.Reads[i-1].Position {
			positions++
		}
		end.expose(&exposure{seg: r.Segment, call: call, first: r.Position == 0 && i == 0})
	}
	call.How.ReadChunks = positions
	if call.How.LongCall {
		call.How.ReadChunks--
	}
	for _, chunk := range h.Writes {
		var segs []*exposure
		for _, s := range chunk {
			e := &exposure{seg: s, call: call, write: true}
			end.expose(e)
			segs = append(segs, e)
		}
		call.writes = append(call.writes, segs)
	}
	if h.HasReply {
		for i, s := range h.Reply {
			e := &exposure{seg: s, call: call, write: true, first: i == 0}
			end.expose(e)
			call.reply = append(call.reply, e)
		}
	}
}

func (end *callers) expose(e *exposure) {
	if end.n >= maxExposed || e.seg.Length == 0 {
		return
	}
	end.n++
	end.exposed[e.seg.Handle] = append(end.exposed[e.seg.Handle], e)
	if !e.write {
		e.call.reads = append(e.call.reads, *e)
	}
}

// forget ends a call.
func (c *Conversation) forget(end *callers, call *Call) {
	delete(end.calls, call.XID)
	drop := func(handle uint32) {
		list := end.exposed[handle]
		kept := list[:0]
		for _, e := range list {
			if e.call != call {
				kept = append(kept, e)
			}
		}
		end.n -= len(list) - len(kept)
		clear(list[len(kept):])
		if len(kept) == 0 {
			delete(end.exposed, handle)
		} else {
			end.exposed[handle] = kept
		}
	}
	for i := range call.reads {
		drop(call.reads[i].seg.Handle)
	}
	for _, chunk := range call.writes {
		for _, e := range chunk {
			drop(e.seg.Handle)
		}
	}
	for _, e := range call.reply {
		drop(e.seg.Handle)
	}
}

// name determines the procedure of a call.
func (c *Conversation) name(call *Call, msg []byte) {
	if len(msg) < 24 {
		return
	}
	word := func(i int) uint32 {
		return uint32(msg[i*4])<<24 | uint32(msg[i*4+1])<<16 | uint32(msg[i*4+2])<<8 | uint32(msg[i*4+3])
	}
	if word(2) != oncrpc.Version {
		return
	}
	call.Prog, call.Vers, call.Proc, call.Known = word(3), word(4), word(5), true
}

// replyStatus determines the result of a call from the RPC reply or its beginning.
func (c *Conversation) replyStatus(call *Call, msg []byte) {
	var r oncrpc.ReplyHeader
	if _, err := oncrpc.ConsumeReply(msg, &r); err != nil {
		return
	}
	switch {
	case r.Stat == oncrpc.MsgDenied && r.RejectStat == oncrpc.AuthError:
		call.Status = r.AuthStat.String()
	case r.Stat == oncrpc.MsgDenied:
		call.Status = r.RejectStat.String()
	default:
		call.Status = r.AcceptStat.String()
	}
}

// replied processes a reply. msg is its RPC message, or nil if that is in the reply chunk.
func (c *Conversation) replied(o *op, msg []byte, xid uint32) {
	h, end := &c.hdr, &c.ends[1-o.dir]
	if xid != h.XID {
		c.anomaly(o, "V1-4.1-2", "rdma_xid is %#08x, the RPC message's xid %#08x", h.XID, xid)
	}
	call := end.calls[h.XID]
	if h.Credit == 0 && len(end.calls) <= 1 {
		c.anomaly(o, "V1-3.3-4", "reply %#08x grants no credit, and no other call is under way", h.XID)
	}
	end.credits, end.granted = h.Credit, true
	if call == nil {
		if c.setUp && c.gaps() == 0 {
			c.anomaly(o, "BIDI-2-2", "reply %#08x has no call", h.XID)
		}
		return
	}
	if msg != nil {
		c.replyStatus(call, msg)
	}
	c.returned(o, call)
	c.finish(o, call)
}

// returned compares the chunks of a reply with those offered by the call, and with what was written.
func (c *Conversation) returned(o *op, call *Call) {
	h := &c.hdr
	check := func(what string, got rpcrdma.WriteChunk, offered []*exposure) bool {
		if len(got) != len(offered) {
			c.anomaly(o, "V1-3.6-2", "%s of reply %#08x has %d segments, %d were offered", what, h.XID, len(got), len(offered))
			return false
		}
		used, short := false, false
		for i := range got {
			e := offered[i]
			if got[i].Handle != e.seg.Handle || got[i].Offset != e.seg.Offset || got[i].Length > e.seg.Length {
				c.anomaly(o, "V1-3.6-2", "%s of reply %#08x: segment %d is not the one offered", what, h.XID, i)
				return used
			}
			if short && got[i].Length > 0 {
				c.anomaly(o, "V1-3.6-5", "%s of reply %#08x: segment %d is used, the one before it is not full", what, h.XID, i)
			}
			short = short || got[i].Length < e.seg.Length
			used = used || got[i].Length > 0
			call.How.WriteBytes += uint64(got[i].Length)
			// Padded lengths are legal, and the padding need not be written: V1-3.7-6.
			if e.done+3 < uint64(got[i].Length) && c.gaps() == call.holes {
				c.anomaly(o, "V1-3.8-2", "%s of reply %#08x: segment %d has %d bytes, %d were written before", what, h.XID, i, got[i].Length, e.done)
			}
		}
		return used
	}
	if len(h.Writes) > len(call.writes) || len(h.Writes) < len(call.writes) && len(h.Writes) > 0 {
		c.anomaly(o, "V1-3.6-2", "reply %#08x has %d write chunks, %d were offered", h.XID, len(h.Writes), len(call.writes))
	} else {
		for i, chunk := range h.Writes {
			if check(fmt.Sprintf("write chunk %d", i), chunk, call.writes[i]) {
				call.How.WriteChunks++
			}
		}
	}
	switch {
	case h.HasReply && call.reply == nil:
		c.anomaly(o, "V1-3.6-2", "reply %#08x has a reply chunk, none was offered", h.XID)
	case h.HasReply:
		call.How.ReplyChunk = check("reply chunk", h.Reply, call.reply) && h.Proc == rpcrdma.ProcNomsg
	}
}

// finish records the end of a call.
func (c *Conversation) finish(o *op, call *Call) {
	c.forget(&c.ends[call.Dir], call)
	call.Reply, call.Latency = o.packet, o.time-call.At
	p := c.procedure(call)
	p.Count++
	if call.Status != "" && call.Status != oncrpc.Success.String() {
		p.Failed++
	}
	how := &call.How
	if how.ReadChunks > 0 {
		p.ReadChunk++
	}
	if how.WriteChunks > 0 {
		p.WriteChunk++
	}
	if how.LongCall {
		p.LongCall++
	}
	if how.ReplyChunk {
		p.ReplyChunk++
	}
	if how.ReadChunks == 0 && how.WriteChunks == 0 && !how.LongCall && !how.ReplyChunk {
		p.Inline++
	}
	p.ReadBytes += how.ReadBytes
	p.WriteBytes += how.WriteBytes
	if *c.budget > 0 {
		*c.budget--
		p.latencies = append(p.latencies, call.Latency)
	}
	c.listed(call)
}

func (c *Conversation) listed(call *Call) {
	if c.list && len(c.Calls) < maxListed {
		call.reads, call.writes, call.reply = nil, nil, nil
		c.Calls = append(c.Calls, call)
	}
}

func (c *Conversation) procedure(call *Call) *Procedure {
	k := procKey{call.Dir, call.Prog, call.Vers, call.Proc}
	p := c.index[k]
	if p != nil {
		return p
	}
	if len(c.index) >= maxProcedures { // for all others
		k = procKey{dir: call.Dir}
		if p = c.index[k]; p != nil {
			return p
		}
	}
	p = &Procedure{Dir: k.dir, Prog: k.prog, Vers: k.vers, Proc: k.proc, Name: procName(call)}
	c.index[k] = p
	c.Procedures = append(c.Procedures, p)
	return p
}

func procName(call *Call) string {
	if !call.Known {
		return "unknown"
	}
	prog, proc := dump.Names(call.Prog, call.Vers, call.Proc)
	if prog == "" {
		prog = fmt.Sprint(call.Prog)
	}
	if proc == "" {
		proc = fmt.Sprint(call.Proc)
	}
	return fmt.Sprintf("%s v%d %s", prog, call.Vers, proc)
}

// end processes the end of the file.
func (c *Conversation) end() {
	for i := range c.ends {
		for _, call := range c.ends[i].calls {
			c.Unanswered++
			c.listed(call)
		}
	}
}
