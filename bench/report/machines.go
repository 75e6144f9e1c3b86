package main

import (
	"cmp"
	"fmt"
	"image/color"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/plotutil"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"

	"github.com/rpcrdma/rpcrdma/bench/internal/result"
)

// environment is where rows were measured: a file of results, or, for RDMA devices, each kind of device in it.
type environment struct {
	name string // name of the folder, and of the device
	file *result.File
	kind string // kind of device; "" for the software adapter
	rows map[string]*result.Pair
	vals map[string]*result.Value
}

// group holds environments with the same rows.
type group struct {
	title, plot string
	list        []*environment
	pairs, vals []string // IDs without the kind of device, in the order of the first file that contains them
}

// deviceKinds lists the prefixes of IDs of rows about devices. Immutable.
var deviceKinds = []string{"rxe", "siw", "hw"}

// ofKind splits an ID.
func ofKind(id string) (kind, row string) {
	if kind, row, ok := strings.Cut(id, " "); ok && slices.Contains(deviceKinds, kind) {
		return kind, row
	}
	return "", id
}

// groups sorts the rows of files by environment. name names a file.
func groups(files []*result.File, name func(int) string) []*group {
	software := &group{title: "Software adapter", plot: "machines.svg"}
	devices := &group{title: "RDMA devices", plot: "machines-devices.svg"}
	for i, f := range files {
		here := make(map[string]*environment)
		at := func(id string) (*environment, *group, string) {
			kind, row := ofKind(id)
			g, called := software, name(i)
			if kind != "" {
				g, called = devices, name(i)+", "+kind
			}
			e := here[kind]
			if e == nil {
				e = &environment{called, f, kind, make(map[string]*result.Pair), make(map[string]*result.Value)}
				here[kind] = e
				g.list = append(g.list, e)
			}
			return e, g, row
		}
		for k := range f.Pairs {
			p := &f.Pairs[k]
			e, g, row := at(p.ID)
			e.rows[row] = p
			g.pairs = addOnce(g.pairs, row)
		}
		for k := range f.Values {
			v := &f.Values[k]
			e, g, row := at(v.ID)
			e.vals[row] = v
			g.vals = addOnce(g.vals, row)
		}
	}
	return slices.DeleteFunc([]*group{software, devices}, func(g *group) bool { return len(g.list) == 0 })
}

func addOnce(list []string, s string) []string {
	if slices.Contains(list, s) {
		return list
	}
	return append(list, s)
}

// machinesIn reads the results in the folders of dir.
func machinesIn(dir string) ([]*group, error) {
	files, names, err := recorded(dir, "")
	if err != nil {
		return nil, err
	}
	return groups(files, func(i int) string { return names[i] }), nil
}

// recorded reads the results in the folders of dir except but, and returns the folders' names too.
func recorded(dir, but string) (files []*result.File, names []string, err error) {
	list, err := filepath.Glob(filepath.Join(dir, "*", "results.json"))
	if err != nil {
		return nil, nil, err
	}
	if len(list) == 0 {
		return nil, nil, fmt.Errorf("no folder in %s has a results.json", dir)
	}
	for _, n := range list {
		folder := filepath.Dir(n)
		if but != "" && folder == filepath.Clean(but) {
			continue
		}
		f, err := read(n)
		if err != nil {
			return nil, nil, err
		}
		files, names = append(files, f), append(names, filepath.Base(folder))
	}
	return files, names, nil
}

// thisRun is the name of the run that is compared with the recorded ones.
const thisRun = "this run"

// beside returns the section of a page that compares its results with those recorded in dir, and a line that says how
// many floors are kept on all machines. out is the page's own folder.
func beside(dir, out string, files []*result.File) (section, line string, err error) {
	others, names, err := recorded(dir, out)
	if err != nil {
		return "", "", err
	}
	var b strings.Builder
	held, of := 0, 0
	for _, g := range groups(append(slices.Clone(files), others...), func(i int) string {
		if i < len(files) {
			return thisRun
		}
		return names[i-len(files)]
	}) {
		mine := slices.DeleteFunc(slices.Clone(g.list), func(e *environment) bool { return !slices.Contains(files, e.file) })
		if len(mine) == 0 {
			continue
		}
		only := func(rows []string, has func(*environment, string) cell) []string {
			return slices.DeleteFunc(slices.Clone(rows), func(row string) bool {
				return !slices.ContainsFunc(mine, func(e *environment) bool { return has(e, row).text != "" })
			})
		}
		g.pairs, g.vals = only(g.pairs, (*environment).pairCell), only(g.vals, (*environment).valueCell)
		for i, e := range g.list {
			fmt.Fprintf(&b, "%d. %s: %s, %s\n", i+1, e.name, e.file.Provenance.Machine, e.file.Provenance.Date.Format("2006-01-02"))
		}
		b.WriteByte('\n')
		g.tables(&b)
		for _, rows := range []struct {
			list []string
			of   func(*environment, string) cell
		}{{g.pairs, (*environment).pairCell}, {g.vals, (*environment).valueCell}} {
			for _, row := range rows.list {
				if s := g.spanOf(row, rows.of); s.judged() {
					of++
					if s.held {
						held++
					}
				}
			}
		}
	}
	return "\n## On this machine and those recorded\n\n" + spanRule + "\n" + b.String(),
		fmt.Sprintf("Floors held here and on the machines recorded: %d of %d", held, of), nil
}

// spanRule explains the last columns of a table.
const spanRule = `The range is that of the ratios that were not disturbed. A floor, that of the latest run, is held if all of them hold it.
`

// writeMachines writes machines.md and its plots to dir, from the results in its folders.
func writeMachines(dir string) error {
	all, err := machinesIn(dir)
	if err != nil {
		return err
	}
	for _, g := range all {
		p, err := g.draw()
		if err == nil {
			err = saveSized(p, filepath.Join(dir, g.plot), 18*vg.Centimeter, vg.Length(2.5+0.55*float64(len(g.drawn())+len(g.list)+2))*vg.Centimeter)
		}
		if err != nil {
			return fmt.Errorf("plot %s: %w", g.plot, err)
		}
	}
	return os.WriteFile(filepath.Join(dir, machinesPage), []byte(machines(all)), 0o666)
}

const machinesPage = "machines.md"

// machines returns the page.
func machines(all []*group) string {
	var b strings.Builder
	b.WriteString(`# Ratios on several machines

Written by ` + "`make bench-machines`" + ` of the results in the folders here; do not edit. Ratios of programs that run alternately on one
machine are comparable between machines; times are not. **Bold** is below the floor; what is in brackets was disturbed. Floors and
goals are those of the run, older runs had others.
` + spanRule)
	for _, g := range all {
		fmt.Fprintf(&b, "\n## %s\n\n", g.title)
		for i, e := range g.list {
			p := &e.file.Provenance
			fmt.Fprintf(&b, "%d. [%s](%s/): %s; %s; %s, commit %s; %d rounds\n", i+1, e.name, folder(e.name), p.Machine, p.Kernel, p.Date.Format("2006-01-02"), p.Commit, p.Rounds)
		}
		fmt.Fprintf(&b, "\n![how many times as fast as its alternative each row is](%s)\n\n", g.plot)
		g.tables(&b)
	}
	return b.String()
}

// tables writes the tables of ratios and of values.
func (g *group) tables(b *strings.Builder) {
	if len(g.pairs) > 0 {
		g.table(b, "ratio", "A over B", g.pairs, (*environment).pairCell)
	}
	if len(g.vals) > 0 {
		b.WriteByte('\n')
		g.table(b, "value", "smaller is better", g.vals, (*environment).valueCell)
	}
}

// cell is a row in one environment.
type cell struct {
	what, text  string // text is empty if there is no result
	value       float64
	floor       float64
	judged      bool // there is a floor
	smaller     bool // smaller is better
	undisturbed bool
}

func (e *environment) pairCell(row string) (c cell) {
	p := e.rows[row]
	if p == nil {
		return c
	}
	better := "≥"
	if p.Kind == result.Time {
		better = "≤"
	}
	c = cell{what: p.What, value: float64(p.Ratio), floor: float64(p.Floor), judged: p.Floor != 0, smaller: p.Kind == result.Time, undisturbed: !p.Disturbed()}
	if p.Floor != 0 || p.Want != 0 {
		c.what += fmt.Sprintf(" (%s %s; %s)", better, limitText(p.Floor), limitText(p.Want))
	}
	c.text = mark(fmt.Sprintf("%.2f", c.value), p.Verdict())
	return c
}

func (e *environment) valueCell(row string) (c cell) {
	v := e.vals[row]
	if v == nil {
		return c
	}
	c = cell{what: v.What, value: float64(v.Value), floor: float64(v.Floor), judged: v.Judged, smaller: true, undisturbed: v.Verdict() != result.Disturbed}
	if v.Unit != "" {
		c.what += ", " + v.Unit
	}
	if v.Judged {
		c.what += fmt.Sprintf(" (≤ %.4g; %.4g)", float64(v.Floor), float64(v.Want))
	}
	c.text = mark(fmt.Sprintf("%.4g", c.value), v.Verdict())
	return c
}

// span describes how a row varies over environments.
type span struct {
	low, high float64 // undisturbed results
	n         int     // environments with an undisturbed result
	of        *cell   // in the latest run: its floor applies
	held      bool    // the floor is kept by all
}

// spanOf returns the span of a row.
func (g *group) spanOf(row string, of func(*environment, string) cell) (s span) {
	var latest time.Time
	var values []float64
	for _, e := range g.list {
		c := of(e, row)
		if c.text == "" {
			continue
		}
		if date := e.file.Provenance.Date; s.of == nil || date.After(latest) {
			s.of, latest = &c, date
		}
		if c.undisturbed {
			values = append(values, c.value)
		}
	}
	if s.n = len(values); s.n == 0 {
		return s
	}
	s.low, s.high = slices.Min(values), slices.Max(values)
	s.held = s.low >= s.of.floor
	if s.of.smaller {
		s.held = s.high <= s.of.floor
	}
	return s
}

// judged reports whether there is a floor, and a result to compare with it.
func (s span) judged() bool { return s.n > 0 && s.of.judged }

// String returns the range, and whether the floor is kept, as cells of a table.
func (s span) String() string {
	text, held := "-", "-"
	if s.n > 0 {
		text = fmt.Sprintf("%.4g", s.low)
		if s.high > s.low {
			text = fmt.Sprintf("%.3g to %.3g", s.low, s.high)
		}
	}
	switch {
	case !s.judged():
	case s.held:
		held = "yes"
	default:
		held = "**no**"
	}
	return text + " | " + held
}

func folder(name string) string {
	dir, _, _ := strings.Cut(name, ",")
	return dir
}

func limitText(v result.Float) string {
	if v == 0 {
		return "-"
	}
	return fmt.Sprintf("%.4g", float64(v))
}

func mark(text string, v result.Verdict) string {
	switch v {
	case result.Disturbed:
		return "(" + text + ")"
	case result.Below:
		return "**" + text + "**"
	}
	return text
}

// table writes a line for each row. of returns the cell of a row in an environment.
func (g *group) table(b *strings.Builder, id, what string, rows []string, of func(*environment, string) cell) {
	fmt.Fprintf(b, "| %s | %s (floor; goal) |", id, what)
	for i := range g.list {
		fmt.Fprintf(b, " %d |", i+1)
	}
	b.WriteString(" range | floor held |\n|---|---|" + strings.Repeat("---|", len(g.list)+2) + "\n")
	for _, row := range rows {
		var says string
		var cells []string
		for _, e := range slices.Backward(g.list) { // the wording of the first one wins
			c := of(e, row)
			if c.what != "" {
				says = c.what
			}
			cells = append(cells, cmp.Or(c.text, "-"))
		}
		slices.Reverse(cells)
		fmt.Fprintf(b, "| %s | %s | %s | %v |\n", row, says, strings.Join(cells, " | "), g.spanOf(row, of))
	}
}

// drawn returns the rows of the plot, starting at the top: those that compare with something else.
func (g *group) drawn() []string {
	return slices.DeleteFunc(slices.Clone(g.pairs), func(row string) bool {
		return !slices.ContainsFunc(g.list, func(e *environment) bool {
			p := e.rows[row]
			return p != nil && p.Alternative() && p.Factor() > 0
		})
	})
}

// draw plots how many times as fast as the alternative each row is, on a logarithmic axis.
func (g *group) draw() (*plot.Plot, error) {
	rows := g.drawn()
	if len(rows) == 0 {
		return nil, fmt.Errorf("no row compares with anything else")
	}
	p := newPlot(g.title+": how many times as fast as the alternative (hollow: disturbed)", false)
	p.X.Label.Text = "slower | faster"
	p.Legend.TextStyle.Font.Size = vg.Points(8)
	p.Legend.ThumbnailWidth = vg.Points(10)
	logarithmic(&p.X)
	var names []string
	for i := range rows {
		names = append(names, rows[len(rows)-1-i])
	}
	var low, high float64 = 0.5, 2
	for i, e := range g.list {
		var steady, disturbed plotter.XYs
		named := false
		for k, row := range names {
			r := e.rows[row]
			if r == nil || !r.Alternative() || !(r.Factor() > 0) {
				continue
			}
			xy := plotter.XY{X: r.Factor(), Y: float64(k)}
			low, high = min(low, xy.X), max(high, xy.X)
			if r.Disturbed() {
				disturbed = append(disturbed, xy)
			} else {
				steady = append(steady, xy)
			}
		}
		for k, points := range []plotter.XYs{steady, disturbed} {
			hollow := k > 0
			if len(points) == 0 {
				continue
			}
			s, err := plotter.NewScatter(points)
			if err != nil {
				return nil, err
			}
			s.GlyphStyle = draw.GlyphStyle{Color: plotutil.Color(i), Radius: vg.Points(3.5), Shape: draw.CircleGlyph{}}
			if hollow {
				s.Shape = draw.RingGlyph{}
			}
			p.Add(s)
			if !named {
				p.Legend.Add(e.name, s)
				named = true
			}
		}
	}
	for _, limit := range []struct {
		name  string
		of    func(*result.Pair) result.Float
		shape draw.GlyphDrawer
	}{
		{"floor", func(p *result.Pair) result.Float { return p.Floor }, draw.CrossGlyph{}},
		{"goal", func(p *result.Pair) result.Float { return p.Want }, draw.PlusGlyph{}},
	} {
		var points plotter.XYs
		for k, row := range names {
			for _, e := range slices.Backward(g.list) {
				if r := e.rows[row]; r != nil && limit.of(r) != 0 {
					as := result.Pair{Kind: r.Kind, Ratio: limit.of(r)}
					points = append(points, plotter.XY{X: as.Factor(), Y: float64(k)})
					break
				}
			}
		}
		if len(points) == 0 {
			continue
		}
		s, err := plotter.NewScatter(points)
		if err != nil {
			return nil, err
		}
		s.GlyphStyle = draw.GlyphStyle{Color: color.Gray{0x70}, Radius: vg.Points(3), Shape: limit.shape}
		p.Add(s)
		p.Legend.Add(limit.name, s)
	}
	one, err := plotter.NewLine(plotter.XYs{{X: 1, Y: -0.5}, {X: 1, Y: float64(len(names)) - 0.5}})
	if err != nil {
		return nil, err
	}
	one.Color = color.Gray{0x80}
	p.Add(one)
	p.NominalY(names...)
	p.X.Min, p.X.Max = low/1.3, high*1.3
	p.Y.Min, p.Y.Max = -0.5, float64(len(names)+len(g.list))+1 // room for the legend
	return p, nil
}
