package look

import (
	"bytes"
	"cmp"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"golang.org/x/term"

	"github.com/rpcrdma/rpcrdma/cmd/rpcrdma/internal/explain"
	"github.com/rpcrdma/rpcrdma/rpc/names"
	"github.com/rpcrdma/rpcrdma/rpc/status"
)

// The view of 'stats --interval' on a terminal: each sample replaces the previous one, as in top, until q or Ctrl-C.

// view owns the terminal from openView until close.
type view struct {
	in, out *os.File
	cooked  *term.State   // previous input mode; nil: input is not a terminal, so there are no keys
	again   chan struct{} // capacity 1: a key asks to draw again
}

// Control sequences of ECMA-48 and xterm.
const (
	viewBegin  = "\x1b[?1049h\x1b[?25l\x1b[?7l" // alternate screen, no cursor, no line wrapping
	viewEnd    = "\x1b[?7h\x1b[?25h\x1b[?1049l"
	viewTop    = "\x1b[H"
	viewErase  = "\x1b[K" // erase to the end of the line
	viewRest   = "\x1b[J" // erase to the end of the screen
	viewHeight = 24       // if the terminal does not report it
	viewWidth  = 80
)

// openView takes over the terminal out, or returns nil if out is not a terminal. quit is called when a key ends the
// view.
func openView(in io.Reader, out io.Writer, quit func()) *view {
	screen, ok := out.(*os.File)
	if !ok || !term.IsTerminal(int(screen.Fd())) {
		return nil
	}
	v := &view{out: screen, again: make(chan struct{}, 1)}
	if keyboard, ok := in.(*os.File); ok && term.IsTerminal(int(keyboard.Fd())) {
		if state, err := term.MakeRaw(int(keyboard.Fd())); err == nil {
			v.in, v.cooked = keyboard, state
			go v.read(quit)
		}
	}
	fmt.Fprint(v.out, viewBegin)
	return v
}

// read handles the keyboard: q, Ctrl-C and Ctrl-D end the view. It ends with the process, because nothing else
// interrupts a read from a terminal.
func (v *view) read(quit func()) {
	for key := make([]byte, 1); ; {
		if n, err := v.in.Read(key); n == 0 || err != nil {
			return
		}
		if strings.ContainsAny("qQ\x03\x04", string(rune(key[0]))) {
			quit()
			return
		}
		select {
		case v.again <- struct{}{}:
		default:
		}
	}
}

// close restores the terminal.
func (v *view) close() {
	fmt.Fprint(v.out, viewEnd)
	if v.cooked != nil {
		_ = term.Restore(int(v.in.Fd()), v.cooked) // otherwise the terminal is gone
	}
}

// show draws a sample.
func (v *view) show(o *statsOptions, s *Sample) error {
	width, height, err := term.GetSize(int(v.out.Fd()))
	if err != nil || width <= 0 || height <= 0 {
		width, height = viewWidth, viewHeight
	}
	var b bytes.Buffer
	b.WriteString(viewTop)
	for i, line := range o.screen(s, width, height) {
		if i > 0 {
			b.WriteString("\r\n")
		}
		b.WriteString(line + viewErase)
	}
	b.WriteString(viewRest)
	_, err = v.out.Write(b.Bytes())
	return err
}

// screen returns up to height lines of up to width characters.
func (o *statsOptions) screen(s *Sample, width, height int) (lines []string) {
	if s.now != nil {
		lines = s.status(height)
	} else {
		var b strings.Builder
		_ = o.print(s, &b) // a strings.Builder takes everything
		lines = strings.Split(strings.TrimSuffix(b.String(), "\n"), "\n")
		lines[0] += "  (q ends)"
	}
	lines = lines[:min(len(lines), height)]
	for i, line := range lines {
		if r := []rune(line); len(r) > width {
			lines[i] = string(r[:width])
		}
	}
	return lines
}

// status returns the state of a server, in about height lines.
func (s *Sample) status(height int) []string {
	st, t := s.now, &s.now.Totals
	by, unit, since := max(s.Seconds, 1), "/s", fmt.Sprintf("%.3g s", s.Seconds)
	if s.Seconds == 0 {
		by, unit, since = 1, "", "since the server began to count"
	}
	rate := func(figure string) string { return amount(s.Sections[0].Figures[figure]/by) + unit }
	lines := []string{
		fmt.Sprintf("%s  %s, %s  (q ends)", explain.Printable(s.Sections[0].Name), st.Time.UTC().Format("15:04:05 MST"), since),
		fmt.Sprintf("connections: %d open, %s opened, %s rejected; messages refused: %s", t.Open, rate("connections opened"), rate("connections rejected"), rate("messages refused")),
		fmt.Sprintf("calls: %d executing, %d waiting for a reply, %s failed; waits for a credit: %s, for memory: %s", t.Executing, t.Calling, rate("calls failed"), rate("waits for a credit"), rate("waits for memory")),
		fmt.Sprintf("memory: %s exposed, %s held by calls", octets(t.ExposedBytes), octets(t.HeldBytes)),
	}
	tables := [][]string{s.procedures(by, unit), s.inFlight(), s.connections(by, unit)}
	rows := fit(height-len(lines)-2*len(tables), tables)
	for i, table := range tables {
		if rows[i] < 0 {
			break
		}
		lines = append(lines, "")
		lines = append(lines, table[:1+rows[i]]...)
		if left := len(table) - 1 - rows[i]; left > 0 {
			lines[len(lines)-rows[i]-1] += fmt.Sprintf("  (%d more)", left)
		}
	}
	return lines
}

// fit divides room lines among tables. The first line of a table is always shown and not counted. Each table gets as
// many as the others, unless it needs fewer. A table without room gets -1.
func fit(room int, tables [][]string) []int {
	rows := make([]int, len(tables))
	for i := len(tables) - 1; room < 0 && i >= 0; i-- {
		rows[i], room = -1, room+2
	}
	for given := true; given; {
		given = false
		for i, table := range tables {
			if room > 0 && rows[i] >= 0 && rows[i] < len(table)-1 {
				rows[i]++
				room--
				given = true
			}
		}
	}
	return rows
}

// aligned returns the lines of a table with tab-separated cells.
func aligned(title string, rows []string) []string {
	var b strings.Builder
	w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, title)
	for _, row := range rows {
		fmt.Fprintln(w, row)
	}
	w.Flush()
	return strings.Split(strings.TrimSuffix(b.String(), "\n"), "\n")
}

// procedures returns the procedures called in the interval, those with the most total time first.
func (s *Sample) procedures(by float64, unit string) []string {
	type key struct {
		program, procedure string
		vers               uint32
		executed           bool
	}
	keyOf := func(p *status.Procedure) key { return key{p.Program, p.Procedure, p.Vers, p.Executed} }
	before := make(map[key]*status.Procedure)
	if s.was != nil {
		for i := range s.was.Procedures {
			before[keyOf(&s.was.Procedures[i])] = &s.was.Procedures[i]
		}
	}
	type row struct {
		took time.Duration
		text string
	}
	var rows []row
	for i := range s.now.Procedures {
		p := &s.now.Procedures[i]
		was := before[keyOf(p)]
		if was == nil || was.Calls > p.Calls {
			was = new(status.Procedure)
		}
		calls, took := p.Calls-was.Calls, p.Total.Duration()-was.Total.Duration()
		if calls == 0 {
			continue
		}
		name := p.Program
		if p.Program != names.Other {
			name = fmt.Sprintf("%s %d %s", p.Program, p.Vers, p.Procedure)
		}
		if !p.Executed {
			name += ", to clients"
		}
		waited := p.Waited.Duration().Seconds()*float64(p.Calls) - was.Waited.Duration().Seconds()*float64(was.Calls)
		rows = append(rows, row{took, fmt.Sprintf("%s\t%s\t%s\t%s\t%s\t%s", explain.Printable(name), amount(float64(calls)/by),
			amount(grown(float64(p.Failed), float64(was.Failed))/by), mean(took.Seconds(), float64(calls)),
			slowest(p.Classes, was.Classes, calls), mean(max(waited, 0), float64(calls)))})
	}
	slices.SortStableFunc(rows, func(a, b row) int { return cmp.Compare(b.took, a.took) })
	text := make([]string, 0, len(rows))
	for _, r := range rows {
		text = append(text, r.text)
	}
	return aligned(fmt.Sprintf("PROCEDURE\tCALLS%s\tFAILED%s\tMEAN\tP99\tWAITED", unit, unit), text)
}

// slowest returns a time that 99 of 100 calls have not exceeded, according to the classes of status.Procedure.
func slowest(now, was []uint64, calls uint64) string {
	most, class := calls/100, time.Microsecond<<max(len(now)-1, 0)
	for i := len(now) - 1; i >= 0; i-- {
		n := now[i]
		if i < len(was) {
			n -= min(was[i], n)
		}
		if n > most {
			break
		}
		most -= n
		class /= 2
	}
	return "<" + status.Seconds(class).String()
}

// inFlight returns the calls in flight, oldest first.
func (s *Sample) inFlight() []string {
	rows := make([]string, 0, len(s.now.Calls))
	for i := range s.now.Calls {
		c := &s.now.Calls[i]
		dir := "from"
		if !c.Executed {
			dir = "to"
		}
		rows = append(rows, fmt.Sprintf("%v\t%s\t%s %s\t%08x\t%s\t%s", c.Total, explain.Printable(c.What()), dir, explain.Printable(c.Peer), c.XID,
			octets(int64(c.Request.Bytes)), explain.Printable(c.Request.By)))
	}
	return aligned("IN FLIGHT\tCALL\tPEER\tXID\tBYTES\tBY", rows)
}

// connections returns the open connections in the server's order: busy ones first.
func (s *Sample) connections(by float64, unit string) []string {
	before := make(map[uint64]uint64)
	if s.was != nil {
		for i := range s.was.Conns {
			before[s.was.Conns[i].ID] = s.was.Conns[i].Counters["calls"]
		}
	}
	rows := make([]string, 0, len(s.now.Conns))
	for i := range s.now.Conns {
		c := &s.now.Conns[i]
		calls := grown(float64(c.Counters["calls"]), float64(before[c.ID])) / by
		rows = append(rows, fmt.Sprintf("%s\t%v\t%s\t%s\t%d/%d\t%s\t%s", explain.Printable(c.Peer), c.Age, agreed(c), amount(calls),
			c.Executing, c.Credits, octets(c.ExposedBytes), octets(c.HeldBytes)))
	}
	return aligned("CONNECTION\tAGE\tAGREED\tCALLS"+unit+"\tCREDITS\tEXPOSED\tHELD", rows)
}

// agreed describes what the ends of a connection agreed on: the version, and how much is sent inline to and from the
// peer.
func agreed(c *status.Conn) string {
	text := explain.Printable(c.Provider)
	if c.Version > 0 { // TCP has no version
		text += fmt.Sprintf(" v%d %d/%d", c.Version, c.InlineSend, c.InlineRecv)
	}
	for _, f := range []struct {
		has  bool
		text string
	}{{c.RemoteInvalidation, " inval"}, {c.MemoryWindows, " windows"}, {c.Properties, " properties"}, {c.Configured, " ccp"}} {
		if f.has {
			text += f.text
		}
	}
	return text
}

// octets formats a number of bytes with three digits.
func octets(n int64) string {
	f := float64(n)
	for _, unit := range []string{"B", "KiB", "MiB", "GiB"} {
		if f < 1000 {
			return fmt.Sprintf("%.3g %s", f, unit)
		}
		f /= 1024
	}
	return fmt.Sprintf("%.3g TiB", f)
}
