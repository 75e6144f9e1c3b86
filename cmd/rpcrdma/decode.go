package main

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/rpcrdma/rpcrdma/proto/oncrpc"
	"github.com/rpcrdma/rpcrdma/proto/rpcrdma"
	"github.com/rpcrdma/rpcrdma/proto/xdr"
)

func newDecode() *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "decode [FILE]",
		Short: "Print RPC-over-RDMA messages field by field",
		Long: `Print RPC-over-RDMA messages of versions 1 and 2 field by field.

The input is hexadecimal, from FILE or standard input: plain digits with or
without 0x, commas and spaces, or the output of xxd, hexdump -C, tcpdump -x or
Wireshark. An empty line ends a message, lines that begin with # are skipped.

What a broken message has before the fault is printed, the fault itself goes to
standard error, and the exit status is 1.`,
		Example: `  echo 00000001 00000001 00000020 00000000 00000000 00000000 00000000 | rpcrdma decode
  xxd message.bin | rpcrdma decode --json`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			in, name := cmd.InOrStdin(), "standard input"
			if len(args) == 1 && args[0] != "-" {
				f, err := os.Open(args[0])
				if err != nil {
					return err
				}
				defer f.Close()
				in, name = f, args[0]
			}
			return decode(in, name, asJSON, cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
	}
	cmd.Flags().BoolVar(&asJSON, "json", false, "print one JSON object per message and line")
	return cmd
}

// decode prints the messages that in holds in hexadecimal. Faults in messages go
// to stderr, each behind what could be read of its message, and are told to the
// caller by errReported.
func decode(in io.Reader, name string, asJSON bool, stdout, stderr io.Writer) error {
	messages, err := readHex(in, name)
	if err != nil {
		return err
	}
	if len(messages) == 0 {
		return fmt.Errorf("%s: no message", name)
	}
	calls := make(map[uint32]*callInfo)
	var result error
	for i, b := range messages {
		m := parseMessage(b, i+1, calls)
		if asJSON {
			err = json.NewEncoder(stdout).Encode(m)
		} else {
			err = m.print(stdout)
		}
		if err != nil {
			return err
		}
		if m.Problem != "" {
			fmt.Fprintf(stderr, "rpcrdma: message %d: %s\n", m.Number, m.Problem)
			result = errReported
		}
	}
	return result
}

// A message is what could be read of one, in the form that --json prints.
type message struct {
	Number  int      `json:"message"`
	Size    int      `json:"bytes"`
	XID     *hex32   `json:"xid,omitempty"` // nil: not even the fixed fields are there
	Version uint32   `json:"version,omitempty"`
	Credits uint32   `json:"credits"`
	Type    string   `json:"type,omitempty"`
	Align   *uint32  `json:"align,omitempty"`
	Thresh  *uint32  `json:"thresh,omitempty"`
	Lists   *lists   `json:"lists,omitempty"`
	Error   *rdmaErr `json:"error,omitempty"`
	Option  *option  `json:"option,omitempty"`

	RPCOffset int        `json:"rpc_offset,omitempty"`
	Call      *callInfo  `json:"call,omitempty"`
	Reply     *replyInfo `json:"reply,omitempty"`

	Problem string `json:"problem,omitempty"`
}

// Lists behind a fault are nil: nothing is known of them, not even that they are
// empty.
type lists struct {
	Reads  []segment   `json:"reads"`
	Writes [][]segment `json:"writes,omitzero"`
	Reply  *[]segment  `json:"reply_chunk,omitzero"` // null: there is none
}

type segment struct {
	Position *uint32 `json:"position,omitempty"`
	Handle   hex32   `json:"handle"`
	Length   uint32  `json:"length"`
	Offset   hex64   `json:"offset"`
}

type rdmaErr struct {
	Code string  `json:"code"`
	Low  *uint32 `json:"low,omitempty"`
	High *uint32 `json:"high,omitempty"`
}

// An option is the body of RDMA_OPTIONAL, which version 2 alone has.
type option struct {
	Operation  hex32       `json:"operation"`
	Name       string      `json:"operation_name,omitempty"`
	Data       *string     `json:"data,omitempty"` // in hexadecimal; nil: it is cut short
	Properties *properties `json:"properties,omitempty"`
}

// Properties are the data of the one operation that is known here.
type properties struct {
	Direction string  `json:"direction"`
	Send      *uint32 `json:"send_size,omitempty"`
	Recv      *uint32 `json:"recv_size,omitempty"`
	Inval     *bool   `json:"remote_invalidation,omitempty"`
	Reason    string  `json:"reason,omitempty"`

	dir rpcrdma.PropDir
}

type callInfo struct {
	XID      hex32     `json:"xid"`
	RPCVers  uint32    `json:"rpc_version"`
	Prog     uint32    `json:"program"`
	ProgName string    `json:"program_name,omitempty"`
	Vers     uint32    `json:"program_version"`
	Proc     uint32    `json:"procedure"`
	ProcName string    `json:"procedure_name,omitempty"`
	Cred     *authInfo `json:"credential,omitzero"`
	Verf     *authInfo `json:"verifier,omitzero"`
	Args     *int      `json:"argument_bytes,omitzero"` // those in the message itself

	number int // the message that it came in
}

type replyInfo struct {
	XID    hex32     `json:"xid"`
	Stat   string    `json:"status,omitempty"`
	Accept string    `json:"accept_status,omitempty"`
	Reject string    `json:"reject_status,omitempty"`
	Auth   string    `json:"auth_status,omitempty"`
	Low    *uint32   `json:"low,omitempty"`
	High   *uint32   `json:"high,omitempty"`
	Verf   *authInfo `json:"verifier,omitempty"`
	Result *int      `json:"result_bytes,omitzero"` // those in the message itself
	To     *callInfo `json:"in_reply_to,omitempty"`
}

type authInfo struct {
	Flavor  string   `json:"flavor"`
	Bytes   int      `json:"bytes"`
	Machine string   `json:"machine,omitempty"`
	UID     *uint32  `json:"uid,omitempty"`
	GID     *uint32  `json:"gid,omitempty"`
	GIDs    []uint32 `json:"gids,omitempty"`
}

// Opaque numbers are printed in hexadecimal, in JSON as strings: no reader of
// JSON has to keep 64 bits.
type (
	hex32 uint32
	hex64 uint64
)

func (v hex32) String() string               { return fmt.Sprintf("%#08x", uint32(v)) }
func (v hex64) String() string               { return fmt.Sprintf("%#016x", uint64(v)) }
func (v hex32) MarshalText() ([]byte, error) { return []byte(v.String()), nil }
func (v hex64) MarshalText() ([]byte, error) { return []byte(v.String()), nil }

// parseMessage reads b as far as it makes sense. calls has the calls seen so far,
// by XID, and takes the call that b may be.
func parseMessage(b []byte, number int, calls map[uint32]*callInfo) *message {
	m := &message{Number: number, Size: len(b)}
	var h rpcrdma.Header
	n, err := rpcrdma.ConsumeHeader(b, &h, &rpcrdma.Limits{
		// What is on the screen is no load for anybody: the message's own
		// length is limit enough.
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
	xid := hex32(fixed.XID)
	m.XID, m.Version, m.Credits, m.Type = &xid, fixed.Vers, fixed.Credit, fixed.Proc.String()

	// Of a broken header, h has what stands in front of the fault.
	switch h.Proc {
	case rpcrdma.ProcMsg, rpcrdma.ProcNomsg, rpcrdma.ProcMsgp:
		if h.Vers != rpcrdma.Version1 && (h.Vers != rpcrdma.Version2 || h.Proc == rpcrdma.ProcMsgp) {
			return m
		}
		if h.Proc == rpcrdma.ProcMsgp {
			m.Align, m.Thresh = &h.Align, &h.Thresh
		}
		m.Lists = newLists(b, &h, bad)
	case rpcrdma.ProcError:
		if err != nil && bad.Offset < rpcrdma.ErrChunkSize {
			return m
		}
		m.Error = &rdmaErr{Code: h.Err.Name(h.Vers)}
		if h.Err == rpcrdma.ErrVers && err == nil {
			m.Error.Low, m.Error.High = &h.VersLow, &h.VersHigh
		}
	case rpcrdma.ProcOptional:
		if h.Vers != rpcrdma.Version2 || len(b) < rpcrdma.MinOptionalSize {
			return m
		}
		m.Option = &option{Operation: hex32(h.OptType)}
		if err == nil {
			data := hex.EncodeToString(h.OptInfo)
			m.Option.Data = &data
		}
		if h.OptType == rpcrdma.OptProperties {
			m.Option.Name = "RPCRDMA2_OPT_PROPERTIES"
			if err == nil {
				m.parseProperties(h.OptInfo)
			}
		}
	}
	switch {
	case err != nil:
		return m
	case h.Proc == rpcrdma.ProcMsg, h.Proc == rpcrdma.ProcMsgp:
	case h.Proc == rpcrdma.ProcOptional && n < len(b):
	default:
		return m
	}
	m.RPCOffset = n
	if err := m.parseRPC(b[n:], calls); err != nil && m.Problem == "" {
		m.Problem = err.Error()
	}
	if m.Option != nil && m.Option.Properties != nil && m.Problem == "" {
		m.Problem = fmt.Sprintf("byte %d: an RPC message follows %s", n, m.Option.Properties.Direction)
	}
	return m
}

// parseProperties reads b, the data of a properties operation, as far as it makes
// sense.
func (m *message) parseProperties(b []byte) {
	p, err := rpcrdma.ConsumeProperties(b)
	var bad *xdr.DecodeError
	if errors.As(err, &bad) {
		m.Problem = fmt.Sprintf("byte %d: properties: %s", rpcrdma.MinOptionalSize+bad.Offset, bad.What)
	}
	if len(b) < xdr.Unit {
		return
	}
	info := &properties{Direction: p.Dir.String(), dir: p.Dir}
	m.Option.Properties = info
	switch {
	case p.Dir == rpcrdma.PropReject && len(b) >= rpcrdma.PropRejectSize:
		info.Reason = p.Reason.String()
	case p.Dir <= rpcrdma.PropAccept && len(b) >= rpcrdma.PropertiesSize:
		info.Send, info.Recv, info.Inval = &p.SendSize, &p.RecvSize, &p.RemoteInvalidation
	}
}

// newLists takes the lists of h, the header of b, as far as they stand in front of
// the fault, if there is one.
func newLists(b []byte, h *rpcrdma.Header, fault *rpcrdma.HeaderError) *lists {
	l := &lists{Reads: []segment{}}
	for i := range h.Reads {
		s := newSegment(h.Reads[i].Segment)
		s.Position = &h.Reads[i].Position
		l.Reads = append(l.Reads, s)
	}
	end := rpcrdma.FixedSize + rpcrdma.ReadListSize(len(h.Reads))
	if h.Proc == rpcrdma.ProcMsgp {
		end += rpcrdma.MinHeaderSizeMsgp - rpcrdma.MinHeaderSize
	}
	// The word in front of a segment that is cut short stands where the end mark
	// would, but is no zero.
	if fault != nil && (fault.Offset < end || b[end-1] != 0) {
		return l
	}

	l.Writes = [][]segment{}
	for _, chunk := range h.Writes {
		end += rpcrdma.WriteChunkSize(len(chunk))
		if fault != nil && fault.Offset < end {
			return l
		}
		l.Writes = append(l.Writes, newChunk(chunk))
	}
	end += 4 // the end mark
	if fault != nil && fault.Offset < end+4 {
		return l
	}

	var reply []segment
	if h.HasReply {
		end += rpcrdma.WriteChunkSize(len(h.Reply))
		if fault != nil && fault.Offset < end {
			return l
		}
		reply = newChunk(h.Reply)
	}
	l.Reply = &reply
	return l
}

func newChunk(c rpcrdma.WriteChunk) []segment {
	chunk := []segment{}
	for _, s := range c {
		chunk = append(chunk, newSegment(s))
	}
	return chunk
}

func newSegment(s rpcrdma.Segment) segment {
	return segment{Handle: hex32(s.Handle), Length: s.Length, Offset: hex64(s.Offset)}
}

// parseRPC reads the header of the RPC message b.
func (m *message) parseRPC(b []byte, calls map[uint32]*callInfo) error {
	xid, kind, ok := oncrpc.Peek(b)
	if !ok {
		return fmt.Errorf("byte %d: RPC message is cut short", m.Size)
	}
	switch kind {
	case oncrpc.Call:
		var h oncrpc.CallHeader
		n, err := oncrpc.ConsumeCall(b, &h)
		if err != nil {
			m.Call = cutCall(b)
			return m.rpcProblem(err)
		}
		m.Call = newCall(&h, m.Number)
		args := len(b) - n
		m.Call.Args = &args
		if h.RPCVers != oncrpc.Version {
			return fmt.Errorf("byte %d: RPC version %d is not %d", m.RPCOffset+8, h.RPCVers, oncrpc.Version)
		}
		calls[h.XID] = m.Call
	case oncrpc.Reply:
		var h oncrpc.ReplyHeader
		n, err := oncrpc.ConsumeReply(b, &h)
		if err != nil {
			m.Reply = &replyInfo{XID: hex32(xid)}
			return m.rpcProblem(err)
		}
		m.Reply = newReply(&h)
		results := len(b) - n
		m.Reply.Result = &results
		m.Reply.To = calls[h.XID]
	default:
		return fmt.Errorf("byte %d: RPC message is neither call nor reply but %v", m.RPCOffset+4, kind)
	}
	if xid != uint32(*m.XID) {
		return fmt.Errorf("byte %d: the RPC message's xid %v is not the transport header's %v", m.RPCOffset, hex32(xid), *m.XID)
	}
	return nil
}

// rpcProblem words a fault in the RPC header, whose offset counts from where that
// begins, for the whole message.
func (m *message) rpcProblem(err error) error {
	var bad *xdr.DecodeError
	if errors.As(err, &bad) {
		return fmt.Errorf("byte %d: RPC %s", m.RPCOffset+bad.Offset, bad.What)
	}
	return err
}

func newCall(h *oncrpc.CallHeader, number int) *callInfo {
	c := &callInfo{XID: hex32(h.XID), RPCVers: h.RPCVers, number: number}
	if h.RPCVers == oncrpc.Version {
		c.Prog, c.Vers, c.Proc = h.Prog, h.Vers, h.Proc
		c.ProgName, c.ProcName = procedureName(h.Prog, h.Vers, h.Proc)
		cred, verf := newAuth(&h.Cred), newAuth(&h.Verf)
		c.Cred, c.Verf = &cred, &verf
	}
	return c
}

// cutCall takes what it can from a call header that ends in, or in front of, its
// credential or verifier.
func cutCall(b []byte) *callInfo {
	d := xdr.NewDecoder(b)
	c := &callInfo{XID: hex32(d.Uint32())}
	d.Uint32() // CALL
	c.RPCVers, c.Prog, c.Vers, c.Proc = d.Uint32(), d.Uint32(), d.Uint32(), d.Uint32()
	if d.Err() != nil {
		return nil
	}
	c.ProgName, c.ProcName = procedureName(c.Prog, c.Vers, c.Proc)
	return c
}

func newReply(h *oncrpc.ReplyHeader) *replyInfo {
	r := &replyInfo{XID: hex32(h.XID), Stat: h.Stat.String()}
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

func newAuth(a *oncrpc.Auth) authInfo {
	info := authInfo{Flavor: a.Flavor.String(), Bytes: len(a.Body)}
	var sys oncrpc.AuthSys
	if a.Flavor == oncrpc.FlavorSys {
		if _, err := oncrpc.ConsumeAuthSys(a.Body, &sys); err == nil {
			info.Machine, info.UID, info.GID, info.GIDs = sys.Machine, &sys.UID, &sys.GID, sys.GIDs
		}
	}
	return info
}

// print writes the message for people.
func (m *message) print(w io.Writer) error {
	var b bytes.Buffer
	line := func(indent int, name, format string, args ...any) {
		fmt.Fprintf(&b, "%*s%-*s %s\n", indent, "", 16-indent, name, fmt.Sprintf(format, args...))
	}
	if m.Number > 1 {
		b.WriteByte('\n')
	}
	fmt.Fprintf(&b, "message %d, %d bytes\n", m.Number, m.Size)
	if m.XID == nil {
		_, err := w.Write(b.Bytes())
		return err
	}
	line(2, "xid", "%v", *m.XID)
	line(2, "version", "%d", m.Version)
	line(2, "credits", "%d%s", m.Credits, named(m.creditsAre()))
	line(2, "type", "%s", m.Type)
	if m.Align != nil {
		line(2, "align", "%d", *m.Align)
		line(2, "thresh", "%d", *m.Thresh)
	}
	if l := m.Lists; l != nil {
		line(2, "read list", "%s", count(len(l.Reads), "segment"))
		for _, s := range l.Reads {
			line(4, "position "+strconv.FormatUint(uint64(*s.Position), 10), "%v", s)
		}
		if l.Writes != nil {
			line(2, "write list", "%s", count(len(l.Writes), "chunk"))
		}
		for i, chunk := range l.Writes {
			line(4, "chunk "+strconv.Itoa(i), "%s", total(chunk))
			for _, s := range chunk {
				line(6, "", "%v", s)
			}
		}
		switch {
		case l.Reply == nil:
		case *l.Reply == nil:
			line(2, "reply chunk", "none")
		default:
			line(2, "reply chunk", "%s", total(*l.Reply))
			for _, s := range *l.Reply {
				line(6, "", "%v", s)
			}
		}
	}
	if e := m.Error; e != nil {
		line(2, "error", "%s%s", e.Code, versions(e.Low, e.High))
	}
	if o := m.Option; o != nil {
		line(2, "operation", "%v%s", o.Operation, named(o.Name))
		if o.Data != nil {
			line(2, "data", "%s", dataText(*o.Data))
		}
		if p := o.Properties; p != nil {
			line(4, "direction", "%s%s", p.Direction, named(p.Reason))
			if p.Send != nil {
				line(4, "send size", "%d", *p.Send)
				line(4, "recv size", "%d", *p.Recv)
				line(4, "invalidation", "%s", map[bool]string{true: "yes", false: "no"}[*p.Inval])
			}
		}
	}
	if c := m.Call; c != nil {
		line(2, "RPC call", "at byte %d", m.RPCOffset)
		line(4, "xid", "%v", c.XID)
		line(4, "rpc version", "%d", c.RPCVers)
		if c.RPCVers == oncrpc.Version {
			line(4, "program", "%d%s", c.Prog, named(c.ProgName))
			line(4, "version", "%d", c.Vers)
			line(4, "procedure", "%d%s", c.Proc, named(c.ProcName))
		}
		if c.Cred != nil {
			line(4, "credential", "%v", *c.Cred)
			line(4, "verifier", "%v", *c.Verf)
			line(4, "arguments", "%s here", count(*c.Args, "byte"))
		}
	}
	if r := m.Reply; r != nil {
		line(2, "RPC reply", "at byte %d", m.RPCOffset)
		line(4, "xid", "%v", r.XID)
		if r.To != nil {
			line(4, "to", "%v", r.To)
		}
		if r.Stat != "" {
			line(4, "status", "%s", strings.TrimSpace(strings.Join([]string{r.Stat, r.Accept + r.Reject, r.Auth}, " "))+versions(r.Low, r.High))
		}
		if r.Verf != nil {
			line(4, "verifier", "%v", *r.Verf)
		}
		if r.Result != nil {
			line(4, "results", "%s here", count(*r.Result, "byte"))
		}
	}
	_, err := w.Write(b.Bytes())
	return err
}

// creditsAre says which of the two the credits are, as far as the message tells.
func (m *message) creditsAre() string {
	const request, grant = "asked for", "granted"
	switch {
	case m.Call != nil:
		return request
	case m.Reply != nil:
		return grant
	case m.Option == nil || m.Option.Properties == nil:
		return ""
	}
	switch m.Option.Properties.dir {
	case rpcrdma.PropOffer:
		return request
	case rpcrdma.PropAccept, rpcrdma.PropReject:
		return grant
	}
	return ""
}

func (s segment) String() string {
	return fmt.Sprintf("handle %v  length %-8d  offset %v", s.Handle, s.Length, s.Offset)
}

func (c *callInfo) String() string {
	if c.ProgName == "" || c.ProcName == "" {
		return fmt.Sprintf("program %d version %d procedure %d, message %d", c.Prog, c.Vers, c.Proc, c.number)
	}
	return fmt.Sprintf("%s version %d %s, message %d", c.ProgName, c.Vers, c.ProcName, c.number)
}

func (a authInfo) String() string {
	s := a.Flavor
	switch {
	case a.UID != nil:
		s += fmt.Sprintf(" %q uid %d gid %d", a.Machine, *a.UID, *a.GID)
		if len(a.GIDs) > 0 {
			s += fmt.Sprintf(" gids %v", a.GIDs)
		}
	case a.Bytes > 0:
		s += ", " + count(a.Bytes, "byte")
	}
	return s
}

// count words a number of things.
func count(n int, what string) string {
	switch n {
	case 0:
		return "none"
	case 1:
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}

func total(chunk []segment) string {
	var sum uint64
	for _, s := range chunk {
		sum += uint64(s.Length)
	}
	return fmt.Sprintf("%s, %d bytes", count(len(chunk), "segment"), sum)
}

// dataText words data that is there in hexadecimal, and shows the start of it.
func dataText(digits string) string {
	const most = 2 * 32
	text := count(len(digits)/2, "byte")
	switch {
	case digits == "":
		return text
	case len(digits) > most:
		return text + ", " + digits[:most] + "..."
	}
	return text + ", " + digits
}

func named(name string) string {
	if name == "" {
		return ""
	}
	return " " + name
}

func versions(low, high *uint32) string {
	if low == nil {
		return ""
	}
	return fmt.Sprintf(", the peer has %d to %d", *low, *high)
}
