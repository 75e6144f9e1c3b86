package trace

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"text/tabwriter"
	"time"
)

// A Summary holds latencies of a procedure, in nanoseconds.
type Summary struct{ Min, Median, P99, Max time.Duration }

// Summary summarizes the answered calls. It is zero if none exist.
func (p *Procedure) Summary() Summary {
	n := len(p.latencies)
	if n == 0 {
		return Summary{}
	}
	slices.Sort(p.latencies)
	// The p99 is the shortest time that 99 % of the calls did not exceed.
	at := func(i int) time.Duration { return time.Duration(p.latencies[i]) }
	return Summary{at(0), at((n - 1) / 2), at((n*99+99)/100 - 1), at(n - 1)}
}

// sorted returns the procedures, those with the most calls first.
func (c *Conversation) sorted() []*Procedure {
	all := slices.Clone(c.Procedures)
	slices.SortStableFunc(all, func(a, b *Procedure) int {
		return cmp.Or(a.Dir-b.Dir, b.Count-a.Count, strings.Compare(a.Name, b.Name))
	})
	return all
}

// title describes the ends.
func (c *Conversation) title() string {
	if c.Framing == iwarpFraming {
		return fmt.Sprintf("%v > %v (%s)", c.Ends[0], c.Ends[1], c.Framing)
	}
	return fmt.Sprintf("%v > %v (%s, queue pairs %#x and %#x)", c.Ends[0].Addr(), c.Ends[1].Addr(), c.Framing, c.QPs[0], c.QPs[1])
}

func micro(d time.Duration) time.Duration { return d.Round(100 * time.Nanosecond) }

// Text prints a file for people.
func (f *File) Text(w io.Writer) error {
	b := new(strings.Builder)
	fmt.Fprintf(b, "packets: %d in %v, of other protocols: %d\n", f.Packets, micro(time.Duration(max(0, f.Last-f.First))), f.Ignored)
	if f.Dropped > 0 {
		fmt.Fprintf(b, "places where the disk was too slow to record everything, so that less is checked: %d\n", f.Dropped)
	}
	for _, c := range f.Conversations {
		f.text(b, c)
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// Nothing says, for a file without Conversations, what was searched for and what was found.
func (f *File) Nothing() string {
	text := fmt.Sprintf("no RPC-over-RDMA: looked for iWARP over TCP, on any port, and RoCE v2, on UDP port %d, and found ", rocePort)
	if f.Packets == 0 {
		return text + "no packets"
	}
	var kinds []string
	if f.TCP > 0 {
		kinds = append(kinds, fmt.Sprintf("%d TCP in %s (%d iWARP)", f.TCP, count(f.TCPConns, "connection"), f.IWARPConns))
	}
	if f.RoCE > 0 {
		kinds = append(kinds, fmt.Sprintf("%d RoCE v2", f.RoCE))
	}
	if f.Ignored > 0 {
		kinds = append(kinds, fmt.Sprintf("%d other", f.Ignored))
	}
	return text + count(f.Packets, "packet") + ": " + strings.Join(kinds, ", ")
}

func count(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}

func (f *File) text(b *strings.Builder, c *Conversation) {
	fmt.Fprintf(b, "\n%s\n", c.title())
	fmt.Fprintf(b, "  version %d", c.Version)
	for i, p := range c.Private {
		if p != nil {
			fmt.Fprintf(b, ", %s send %d receive %d", [2]string{"client", "server"}[i], p.SendSize, p.RecvSize)
			if p.RemoteInvalidation {
				b.WriteString(" R")
			}
		}
	}
	b.WriteString("\n")
	if len(c.Procedures) > 0 {
		t := tabwriter.NewWriter(b, 0, 0, 2, ' ', tabwriter.AlignRight)
		fmt.Fprintln(t, "\tcalls\tfailed\tmedian\tp99\tmax\tinline\tread chunk\twrite chunk\tlong call\treply chunk\tread\twritten\t  procedure")
		for _, p := range c.sorted() {
			s := p.Summary()
			back := ""
			if p.Dir == 1 {
				back = " (backward)"
			}
			fmt.Fprintf(t, "\t%d\t%d\t%v\t%v\t%v\t%d\t%d\t%d\t%d\t%d\t%d\t%d\t  %s%s\n", p.Count, p.Failed, micro(s.Median), micro(s.P99), micro(s.Max),
				p.Inline, p.ReadChunk, p.WriteChunk, p.LongCall, p.ReplyChunk, p.ReadBytes, p.WriteBytes, p.Name, back)
		}
		t.Flush()
	}
	for i := range 2 {
		from := c.Ends[i].String()
		if c.Framing != iwarpFraming {
			from = c.Ends[i].Addr().String()
		}
		if c.WriteBytes[i] > 0 {
			fmt.Fprintf(b, "  bytes written by RDMA from %s: %d\n", from, c.WriteBytes[i])
		}
		if c.ReadBytes[i] > 0 {
			fmt.Fprintf(b, "  bytes read by RDMA to %s: %d\n", from, c.ReadBytes[i])
		}
	}
	for _, n := range []struct {
		what string
		n    int
	}{
		{"calls without a reply", c.Unanswered}, {"RDMA_ERROR messages", c.Errors},
		{"places where packets are missing or cut short, so that less is checked", c.Holes},
		{"packets that were sent again", c.Retransmitted}, {"negative acknowledgements", c.Naks},
		{"packets of padding that were not on the wire", c.Padding},
	} {
		if n.n > 0 {
			fmt.Fprintf(b, "  %s: %d\n", n.what, n.n)
		}
	}
	if c.End != "" {
		fmt.Fprintf(b, "  %s\n", c.End)
	}
	for _, call := range c.Calls {
		fmt.Fprintf(b, "    %s\n", f.callText(call))
	}
	for _, a := range c.Anomalies {
		fmt.Fprintf(b, "  anomaly in packet %d, %v: %s", a.Packet, micro(time.Duration(a.At-f.First)), a.Text)
		if a.Rule != "" {
			fmt.Fprintf(b, " (%s)", a.Rule)
		}
		b.WriteString("\n")
	}
	total := 0
	for _, n := range c.Rules {
		total += n
	}
	if more := total - len(c.Anomalies); more > 0 {
		fmt.Fprintf(b, "  and %d more anomalies\n", more)
	}
}

func (f *File) callText(c *Call) string {
	b := new(strings.Builder)
	fmt.Fprintf(b, "packet %d, %v: %#08x %s", c.Packet, micro(time.Duration(c.At-f.First)), c.XID, procName(c))
	if c.Reply == 0 {
		return b.String() + ", no reply"
	}
	fmt.Fprintf(b, ", reply in packet %d after %v", c.Reply, micro(time.Duration(c.Latency)))
	if c.Status != "" {
		fmt.Fprintf(b, ", %s", c.Status)
	}
	for _, h := range []struct {
		on   bool
		what string
	}{
		{c.How.LongCall, "long call"}, {c.How.ReadChunks > 0, "read chunk"}, {c.How.WriteChunks > 0, "write chunk"}, {c.How.ReplyChunk, "reply chunk"},
	} {
		if h.on {
			fmt.Fprintf(b, ", %s", h.what)
		}
	}
	if n := c.How.ReadBytes; n > 0 {
		fmt.Fprintf(b, ", %d bytes read", n)
	}
	if n := c.How.WriteBytes; n > 0 {
		fmt.Fprintf(b, ", %d bytes written", n)
	}
	return b.String()
}

// JSON representations. Times are in microseconds, sizes in bytes.
type conversationJSON struct {
	From          string          `json:"from"`
	To            string          `json:"to"`
	Framing       string          `json:"framing"`
	QueuePairs    []uint32        `json:"queue_pairs,omitempty"` // that receive the two directions
	Start         string          `json:"start"`
	Duration      float64         `json:"duration_us"`
	Version       uint32          `json:"version"`
	Private       []*privateJSON  `json:"private_data"` // of the request and of the reply, or null
	Procedures    []procedureJSON `json:"procedures"`
	Messages      [2]int          `json:"messages"` // in both directions, as are the following
	ReadBytes     [2]uint64       `json:"read_bytes"`
	WriteBytes    [2]uint64       `json:"write_bytes"`
	Unanswered    int             `json:"unanswered"`
	Errors        int             `json:"rdma_errors"`
	Holes         int             `json:"gaps"`
	Dropped       int             `json:"dropped"` // gaps in the file
	Retransmitted int             `json:"retransmitted"`
	Naks          int             `json:"naks"`
	End           string          `json:"end,omitempty"`
	Anomalies     []anomalyJSON   `json:"anomalies"`
	Rules         map[string]int  `json:"rules,omitempty"` // all anomalies by rule
	Calls         []callJSON      `json:"calls,omitempty"`
}

type privateJSON struct {
	Send         int  `json:"send_size"`
	Recv         int  `json:"recv_size"`
	Invalidation bool `json:"remote_invalidation"`
}

type procedureJSON struct {
	Name       string  `json:"name"`
	Program    uint32  `json:"program"`
	Version    uint32  `json:"program_version"`
	Procedure  uint32  `json:"procedure"`
	Backward   bool    `json:"backward,omitempty"`
	Calls      int     `json:"calls"`
	Failed     int     `json:"failed"`
	Median     float64 `json:"median_us"`
	P99        float64 `json:"p99_us"`
	Max        float64 `json:"max_us"`
	Inline     int     `json:"inline"`
	ReadChunk  int     `json:"read_chunk"`
	WriteChunk int     `json:"write_chunk"`
	LongCall   int     `json:"long_call"`
	ReplyChunk int     `json:"reply_chunk"`
	ReadBytes  uint64  `json:"read_bytes"`
	WriteBytes uint64  `json:"write_bytes"`
}

type anomalyJSON struct {
	Anomaly
	At float64 `json:"at_us"` // since the first packet
}

type callJSON struct {
	Packet     int     `json:"packet"`
	Reply      int     `json:"reply_packet,omitempty"`
	At         float64 `json:"at_us"` // since the first packet
	Latency    float64 `json:"latency_us,omitempty"`
	Backward   bool    `json:"backward,omitempty"`
	XID        string  `json:"xid"`
	Name       string  `json:"name"`
	Status     string  `json:"status,omitempty"`
	ReadChunks int     `json:"read_chunks"`
	Writes     int     `json:"write_chunks"`
	LongCall   bool    `json:"long_call"`
	ReplyChunk bool    `json:"reply_chunk"`
	ReadBytes  uint64  `json:"read_bytes"`
	WriteBytes uint64  `json:"write_bytes"`
}

// JSON prints one object per line for each conversation.
func (f *File) JSON(w io.Writer) error {
	e := json.NewEncoder(w)
	for _, c := range f.Conversations {
		if err := e.Encode(f.json(c)); err != nil {
			return err
		}
	}
	return nil
}

func us(ns int64) float64 { return float64(ns) / 1000 }

func (f *File) json(c *Conversation) *conversationJSON {
	j := &conversationJSON{
		From: c.Ends[0].String(), To: c.Ends[1].String(), Framing: c.Framing, Version: c.Version,
		Start: time.Unix(0, c.First).UTC().Format(time.RFC3339Nano), Duration: us(c.Last - c.First),
		Messages: c.Messages, ReadBytes: c.ReadBytes, WriteBytes: c.WriteBytes,
		Unanswered: c.Unanswered, Errors: c.Errors, Holes: c.Holes, Dropped: f.Dropped, Retransmitted: c.Retransmitted, Naks: c.Naks,
		End: c.End, Rules: maps.Clone(c.Rules), Procedures: []procedureJSON{}, Anomalies: []anomalyJSON{},
	}
	if c.Framing != iwarpFraming {
		j.From, j.To, j.QueuePairs = c.Ends[0].Addr().String(), c.Ends[1].Addr().String(), c.QPs[:]
	}
	for _, p := range c.Private {
		if p == nil {
			j.Private = append(j.Private, nil)
			continue
		}
		j.Private = append(j.Private, &privateJSON{p.SendSize, p.RecvSize, p.RemoteInvalidation})
	}
	for _, p := range c.sorted() {
		s := p.Summary()
		j.Procedures = append(j.Procedures, procedureJSON{
			Name: p.Name, Program: p.Prog, Version: p.Vers, Procedure: p.Proc, Backward: p.Dir == 1,
			Calls: p.Count, Failed: p.Failed, Median: us(int64(s.Median)), P99: us(int64(s.P99)), Max: us(int64(s.Max)),
			Inline: p.Inline, ReadChunk: p.ReadChunk, WriteChunk: p.WriteChunk, LongCall: p.LongCall, ReplyChunk: p.ReplyChunk,
			ReadBytes: p.ReadBytes, WriteBytes: p.WriteBytes,
		})
	}
	for _, a := range c.Anomalies {
		j.Anomalies = append(j.Anomalies, anomalyJSON{a, us(a.At - f.First)})
	}
	for _, x := range c.Calls {
		j.Calls = append(j.Calls, callJSON{
			Packet: x.Packet, Reply: x.Reply, At: us(x.At - f.First), Latency: us(x.Latency), Backward: x.Dir == 1,
			XID: fmt.Sprintf("%#08x", x.XID), Name: procName(x), Status: x.Status,
			ReadChunks: x.How.ReadChunks, Writes: x.How.WriteChunks, LongCall: x.How.LongCall, ReplyChunk: x.How.ReplyChunk,
			ReadBytes: x.How.ReadBytes, WriteBytes: x.How.WriteBytes,
		})
	}
	return j
}
