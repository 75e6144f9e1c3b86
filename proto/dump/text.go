package dump

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/rpcrdma/rpcrdma/proto/oncrpc"
	"github.com/rpcrdma/rpcrdma/proto/rpcrdma"
)

// String returns the message as text, one line for each field, without Problem. The last line ends in a newline.
func (m *Message) String() string {
	var t text
	fmt.Fprintf(&t, "message %d, %d bytes\n", m.Number, m.Size)
	t.privateData(m.PrivateData)
	if m.XID == nil {
		return t.String()
	}
	t.line(2, "xid", "%v", *m.XID)
	t.line(2, "version", "%d", m.Version)
	t.line(2, "credits", "%d%s", m.Credits, named(m.creditsAre()))
	t.line(2, "type", "%s", m.Type)
	if m.Align != nil {
		t.line(2, "align", "%d", *m.Align)
		t.line(2, "thresh", "%d", *m.Thresh)
	}
	t.lists(m.Lists)
	if e := m.Error; e != nil {
		t.line(2, "error", "%s%s", e.Code, versions(e.Low, e.High))
	}
	t.option(m.Option)
	t.call(m.Call, m.RPCOffset)
	t.reply(m.Reply, m.RPCOffset)
	return t.String()
}

// text consists of indented lines of a name and a value.
type text struct{ strings.Builder }

func (t *text) line(indent int, name, format string, args ...any) {
	fmt.Fprintf(t, "%*s%-*s %s\n", indent, "", 16-indent, name, fmt.Sprintf(format, args...))
}

func (t *text) privateData(p *PrivateData) {
	if p == nil {
		return
	}
	t.line(2, "private data", "version %d", p.Version)
	t.line(4, "send size", "%d", p.Send)
	t.line(4, "recv size", "%d", p.Recv)
	t.line(4, "invalidation", "%s", yesNo(p.Inval))
	if s := p.Setup; s != nil {
		t.line(2, "setup", "%s", s.Direction)
		t.line(4, "credit", "%d", s.Credit)
		t.line(4, "send size", "%d", *s.Send)
		t.line(4, "recv size", "%d", *s.Recv)
		t.line(4, "invalidation", "%s", yesNo(*s.Inval))
	}
}

func (t *text) lists(l *Lists) {
	if l == nil {
		return
	}
	t.line(2, "read list", "%s", count(len(l.Reads), "segment"))
	for _, s := range l.Reads {
		t.line(4, "position "+strconv.FormatUint(uint64(*s.Position), 10), "%v", s)
	}
	if l.Writes != nil {
		t.line(2, "write list", "%s", count(len(l.Writes), "chunk"))
	}
	for i, chunk := range l.Writes {
		t.line(4, "chunk "+strconv.Itoa(i), "%s", total(chunk))
		t.segments(chunk)
	}
	switch {
	case l.Reply == nil:
	case *l.Reply == nil:
		t.line(2, "reply chunk", "none")
	default:
		t.line(2, "reply chunk", "%s", total(*l.Reply))
		t.segments(*l.Reply)
	}
}

func (t *text) segments(chunk []Segment) {
	for _, s := range chunk {
		t.line(6, "", "%v", s)
	}
}

func (t *text) option(o *Option) {
	if o == nil {
		return
	}
	t.line(2, "operation", "%v%s", o.Operation, named(o.Name))
	if o.Data != nil {
		t.line(2, "data", "%s", dataText(*o.Data))
	}
	p := o.Properties
	if p == nil {
		return
	}
	t.line(4, "direction", "%s%s", p.Direction, named(p.Reason))
	if p.Send != nil {
		t.line(4, "send size", "%d", *p.Send)
		t.line(4, "recv size", "%d", *p.Recv)
		t.line(4, "invalidation", "%s", yesNo(*p.Inval))
	}
}

func (t *text) call(c *Call, offset int) {
	if c == nil {
		return
	}
	t.line(2, "RPC call", "at byte %d", offset)
	t.line(4, "xid", "%v", c.XID)
	t.line(4, "rpc version", "%d", c.RPCVers)
	if c.RPCVers == oncrpc.Version {
		t.line(4, "program", "%d%s", c.Prog, named(c.ProgName))
		t.line(4, "version", "%d", c.Vers)
		t.line(4, "procedure", "%d%s", c.Proc, named(c.ProcName))
	}
	if c.Cred != nil {
		t.line(4, "credential", "%v", *c.Cred)
		t.line(4, "verifier", "%v", *c.Verf)
		t.line(4, "arguments", "%s here", count(*c.Args, "byte"))
	}
}

func (t *text) reply(r *Reply, offset int) {
	if r == nil {
		return
	}
	t.line(2, "RPC reply", "at byte %d", offset)
	t.line(4, "xid", "%v", r.XID)
	if r.To != nil {
		t.line(4, "to", "%v", r.To)
	}
	if r.Stat != "" {
		stat := strings.TrimSpace(strings.Join([]string{r.Stat, r.Accept + r.Reject, r.Auth}, " "))
		t.line(4, "status", "%s", stat+versions(r.Low, r.High))
	}
	if r.Verf != nil {
		t.line(4, "verifier", "%v", *r.Verf)
	}
	if r.Result != nil {
		t.line(4, "results", "%s here", count(*r.Result, "byte"))
	}
}

// creditsAre returns whether the credits are a request or a grant, if the message shows which.
func (m *Message) creditsAre() string {
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

func (s Segment) String() string {
	return fmt.Sprintf("handle %v  length %-8d  offset %v", s.Handle, s.Length, s.Offset)
}

func (c *Call) String() string {
	if c.ProgName == "" || c.ProcName == "" {
		return fmt.Sprintf("program %d version %d procedure %d, message %d", c.Prog, c.Vers, c.Proc, c.number)
	}
	return fmt.Sprintf("%s version %d %s, message %d", c.ProgName, c.Vers, c.ProcName, c.number)
}

func (a Auth) String() string {
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

// count returns "none", "1 thing" or "2 things".
func count(n int, what string) string {
	switch n {
	case 0:
		return "none"
	case 1:
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}

func total(chunk []Segment) string {
	var sum uint64
	for _, s := range chunk {
		sum += uint64(s.Length)
	}
	return fmt.Sprintf("%s, %d bytes", count(len(chunk), "segment"), sum)
}

// dataText returns the length of hexadecimal data and its first 32 bytes.
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

func yesNo(b bool) string {
	if b {
		return "yes"
	}
	return "no"
}
