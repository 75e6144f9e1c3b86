package main

import (
	"fmt"
	"image/color"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/plotutil"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"

	"github.com/rpcrdma/rpcrdma/bench/internal/result"
)

// An environment is where rows were measured: a file of results, of RDMA devices each kind of
// device in it.
type environment struct {
	name string // of the folder, and of the device
	file *result.File
	kind string // of device; "" for the software adapter
	rows map[string]*result.Pair
	vals map[string]*result.Value
}

// A group is of environments that have the same rows.
type group struct {
	title, plot string
	list        []*environment
	pairs, vals []string // IDs without the kind of device, in the order of the first file that has them
}

// deviceKinds begin the IDs of rows that are about devices. Immutable.
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
	names, err := filepath.Glob(filepath.Join(dir, "*", "results.json"))
	if err != nil {
		return nil, err
	}
	if len(names) == 0 {
		return nil, fmt.Errorf("no folder in %s has a results.json", dir)
	}
	var files []*result.File
	for _, n := range names {
		f, err := read(n)
		if err != nil {
			return nil, err
		}
		files = append(files, f)
	}
	return groups(files, func(i int) string { return filepath.Base(filepath.Dir(names[i])) }), nil
}

// writeMachines writes machines.md and its plots into dir, of the results in its folders.
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
`)
	for _, g := range all {
		fmt.Fprintf(&b, "\n## %s\n\n", g.title)
		for i, e := range g.list {
			p := &e.file.Provenance
			fmt.Fprintf(&b, "%d. [%s](%s/): %s; %s; %s, commit %s; %d rounds\n", i+1, e.name, folder(e.name), p.Machine, p.Kernel, p.Date.Format("2006-01-02"), p.Commit, p.Rounds)
		}
		fmt.Fprintf(&b, "\n![how many times as fast as its alternative each row is](%s)\n\n", g.plot)
		g.table(&b, "ratio", "A over B", g.pairs, func(e *environment, row string) (what, cell string) {
			p := e.rows[row]
			if p == nil {
				return "", ""
			}
			better := "≥"
			if p.Kind == result.Time {
				better = "≤"
			}
			limits := ""
			if p.Floor != 0 || p.Want != 0 {
				limits = fmt.Sprintf(" (%s %s; %s)", better, limitText(p.Floor), limitText(p.Want))
			}
			return p.What + limits, mark(fmt.Sprintf("%.2f", float64(p.Ratio)), p.Verdict())
		})
		if len(g.vals) > 0 {
			b.WriteByte('\n')
			g.table(&b, "value", "smaller is better", g.vals, func(e *environment, row string) (what, cell string) {
				v := e.vals[row]
				if v == nil {
					return "", ""
				}
				what = v.What
				if v.Unit != "" {
					what += ", " + v.Unit
				}
				if v.Judged {
					what += fmt.Sprintf(" (≤ %.4g; %.4g)", float64(v.Floor), float64(v.Want))
				}
				return what, mark(fmt.Sprintf("%.4g", float64(v.Value)), v.Verdict())
			})
		}
	}
	return b.String()
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

// table writes a line for each row. cell returns what the row is and its cell in an environment.
func (g *group) table(b *strings.Builder, id, what string, rows []string, cell func(*environment, string) (what, text string)) {
	fmt.Fprintf(b, "| %s | %s (floor; goal) |", id, what)
	for i := range g.list {
		fmt.Fprintf(b, " %d |", i+1)
	}
	b.WriteString("\n|---|---|" + strings.Repeat("---|", len(g.list)) + "\n")
	for _, row := range rows {
		var says string
		var cells []string
		for _, e := range slices.Backward(g.list) { // the words of the first one stay
			what, text := cell(e, row)
			if what != "" {
				says = what
			}
			if text == "" {
				text = "-"
			}
			cells = append(cells, text)
		}
		slices.Reverse(cells)
		fmt.Fprintf(b, "| %s | %s | %s |\n", row, says, strings.Join(cells, " | "))
	}
}

// drawn are the rows of the plot, the first at the top: those that compare with something else.
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
