package trace

import (
	"errors"
	"io"
	"net/netip"
	"slices"
	"strings"
	"unicode"

	"github.com/rpcrdma/rpcrdma/fabric/capture"
)

const (
	versionComment = capture.VersionComment
	paddingComment = capture.PaddingComment

	iwarpFraming = "iWARP"
	roceFraming  = "RoCE v2"

	// maxConns limits the TCP connections that are analyzed.
	maxConns = 1 << 14
	// maxLatencies limits the latencies kept for all calls.
	maxLatencies = 1 << 22
)

// A File holds the contents of a capture file.
type File struct {
	Packets       int
	First, Last   int64 // nanoseconds since 1970
	Conversations []*Conversation
	Dropped       int   // places where package capture had to omit something
	Ignored       int   // packets of other protocols, or of too many connections
	RoCE          int   // packets of RoCE v2
	TCP           int   // packets of TCP
	TCPConns      int   // TCP connections
	IWARPConns    int   // those of them that carry iWARP
	Err           error // why the file could not be read completely, or nil
}

// Read reads a capture file. With calls, conversations list all calls. It returns an error if the file is not a
// capture; if the file is damaged later on, the error is in File.Err.
func Read(r io.Reader, calls bool) (*File, error) {
	d, err := NewReader(r)
	if err != nil {
		return nil, err
	}
	budget := maxLatencies
	f := &File{}
	t := &table{tcp: make(map[connKey]*tcpConn), calls: calls, budget: &budget, file: f}
	t.roce = newRoceTable(t.beginRoCE)
	var p Packet
	for {
		if err := d.Next(&p); err != nil {
			if err != io.EOF {
				f.Err = err
			}
			break
		}
		f.Packets++
		if f.First == 0 {
			f.First = p.At
		}
		f.Last = max(f.Last, p.At)
		if !t.packet(&p) {
			f.Ignored++
		}
	}
	t.end()
	f.Dropped = t.dropped
	if errors.Is(f.Err, io.ErrUnexpectedEOF) {
		f.Err = errors.New("the file is cut short")
	}
	return f, nil
}

// connKey identifies a TCP connection, whichever end sends.
type connKey struct{ a, b netip.AddrPort }

// tcpConn is a TCP connection. Direction 0 is that of its first packet.
type tcpConn struct {
	from  netip.AddrPort
	iwarp *iwarpConn
	conv  *Conversation
	fin   [2]bool
	over  bool // RST, or FIN in both directions
}

// table holds the connections of a file.
type table struct {
	file    *File
	tcp     map[connKey]*tcpConn
	order   []*tcpConn
	roce    *roceTable
	calls   bool
	budget  *int
	dropped int
}

// packet processes a packet. It returns false if the packet is ignored.
func (t *table) packet(p *Packet) bool {
	var s segment
	if !dissect(p, &s) {
		return false
	}
	at := stamp{p.Number, p.At, p.Comment}
	if !s.tcp {
		if s.to.Port() != rocePort {
			return false
		}
		t.file.RoCE++
		t.roce.datagram(&s, at)
		return true
	}
	if !t.tcpSegment(&s, at) {
		return false
	}
	t.file.TCP++
	return true
}

func (t *table) tcpSegment(s *segment, at stamp) bool {
	k := connKey{s.from, s.to}
	if s.to.Compare(s.from) < 0 {
		k = connKey{s.to, s.from}
	}
	c := t.tcp[k]
	if c != nil && c.over && s.flags&tcpSYN != 0 {
		c = nil // the ports were reused
	}
	if c == nil {
		if len(t.order) >= maxConns {
			return false
		}
		c = &tcpConn{from: s.from}
		c.conv = newConversation(iwarpFraming, s.from, s.to, t.calls, t.budget, &t.dropped)
		c.iwarp = newIwarpConn(c.conv.take, &t.roce.waiting)
		t.tcp[k] = c
		t.order = append(t.order, c)
	}
	dir := 0
	if s.from != c.from {
		dir = 1
	}
	if s.flags&tcpACK != 0 {
		c.iwarp.side[1-dir].tcp.acknowledged(s.ack, at)
	}
	c.iwarp.side[dir].tcp.segment(s, at)
	if s.flags&(tcpFIN|tcpRST) != 0 {
		c.fin[dir] = true
		c.over = s.flags&tcpRST != 0 || c.fin[0] && c.fin[1]
		if c.conv.End == "" && c.conv.is() {
			c.conv.End = ending(s, at)
		}
	}
	return true
}

// ending describes the end of a connection.
func ending(s *segment, at stamp) string {
	how := "closed by "
	if s.flags&tcpRST != 0 {
		how = "reset by "
	}
	how += s.from.String()
	return how + because(at.comment)
}

// maxComment is how much of a comment is printed, in bytes.
const maxComment = 200

// because returns a comment for the end of a line, without anything that a terminal would interpret.
func because(comment string) string {
	if comment == "" {
		return ""
	}
	return ": " + strings.Map(func(r rune) rune {
		if r > unicode.MaxASCII || !unicode.IsPrint(r) {
			return '?'
		}
		return r
	}, comment[:min(len(comment), maxComment)])
}

// beginRoCE returns the conversation of two flows.
func (t *table) beginRoCE(a, b *roceFlow) *Conversation {
	from, to := netip.AddrPortFrom(a.key.from, 0), netip.AddrPortFrom(a.key.to, 0)
	c := newConversation(roceFraming, from, to, t.calls, t.budget, &t.dropped)
	c.QPs[0] = a.key.qp
	if b != nil {
		c.QPs[1] = b.key.qp
	}
	t.file.Conversations = append(t.file.Conversations, c)
	return c
}

// end processes the end of the file.
func (t *table) end() {
	t.file.TCPConns = len(t.order)
	for _, c := range t.order {
		for i := range c.iwarp.side {
			s := &c.iwarp.side[i]
			s.tcp.end()
			c.conv.Retransmitted += s.tcp.retransmitted
		}
		if c.iwarp.is() {
			t.file.IWARPConns++
			t.file.Conversations = append(t.file.Conversations, c.conv)
		}
	}
	t.roce.end()
	t.file.Conversations = slices.DeleteFunc(t.file.Conversations, func(c *Conversation) bool { return !c.is() })
	for _, c := range t.file.Conversations {
		c.end()
	}
	slices.SortStableFunc(t.file.Conversations, func(a, b *Conversation) int {
		switch {
		case a.First < b.First:
			return -1
		case a.First > b.First:
			return 1
		}
		return 0
	})
}
