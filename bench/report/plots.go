package main

import (
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/plotutil"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
	"gonum.org/v1/plot/vg/vgsvg"

	"github.com/rpcrdma/rpcrdma/bench/internal/result"
)

// plotFile is a plot that has been written.
type plotFile struct {
	of         *result.File
	name, what string
}

// plotAll draws the sweeps and distributions of a file into dir.
func plotAll(dir string, f *result.File) ([]plotFile, error) {
	var list []plotFile
	save := func(p *plot.Plot, id, what string) error {
		name := strings.ReplaceAll(id, " ", "-") + ".svg"
		list = append(list, plotFile{f, name, what})
		return saveSVG(p, filepath.Join(dir, name))
	}
	for i := range f.Sweeps {
		s := &f.Sweeps[i]
		p, err := drawSweep(s)
		if err == nil {
			err = save(p, s.ID, s.What)
		}
		if err != nil {
			return nil, fmt.Errorf("plot %s: %w", s.ID, err)
		}
	}
	for i := range f.Distributions {
		d := &f.Distributions[i]
		p, err := drawDistribution(d)
		if err == nil {
			err = save(p, d.ID, d.What)
		}
		if err != nil {
			return nil, fmt.Errorf("plot %s: %w", d.ID, err)
		}
	}
	return list, nil
}

// saveSVG leaves a margin on the right for half of the last tick label.
func saveSVG(p *plot.Plot, path string) error {
	return saveSized(p, path, 18*vg.Centimeter, 11*vg.Centimeter)
}

func saveSized(p *plot.Plot, path string, width, height vg.Length) (err error) {
	c := vgsvg.New(width, height)
	p.Draw(draw.Crop(draw.New(c), 0, -6*vg.Millimeter, 0, 0))
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	_, err = c.WriteTo(f)
	return err
}

func newPlot(title string, disturbed bool) *plot.Plot {
	p := plot.New()
	p.Title.Text = title
	if disturbed {
		p.Title.Text += " (disturbed: do not quote)"
	}
	p.Title.Padding = vg.Points(6)
	p.Title.TextStyle.Font.Size = vg.Points(9) // the longest one must fit
	p.Legend.Top = true
	p.Legend.Left = true
	p.Legend.Padding = vg.Points(3)
	p.Add(plotter.NewGrid())
	return p
}

// drawSweep uses logarithmic axes: a constant cost is a horizontal line, a proportional one a
// diagonal.
func drawSweep(s *result.Sweep) (*plot.Plot, error) {
	p := newPlot(s.What, s.Disturbed())
	p.X.Label.Text = map[string]string{"size": "bytes", "depth": "calls outstanding", "conns": "connections", "procs": "GOMAXPROCS"}[s.X]
	unit, scale := "µs per call", 1.0
	switch s.Show {
	case "calls":
		unit, scale = "thousand calls per second", 1e-3
	case "bytes":
		unit, scale = "GB per second", 1e-9
	}
	p.Y.Label.Text = unit
	var names []string
	lines := make(map[string]plotter.XYs)
	for i := range s.Points {
		pt := &s.Points[i]
		if pt.X <= 0 || pt.Time <= 0 {
			return nil, fmt.Errorf("point %q at %d took %v", pt.Series, pt.X, pt.Time)
		}
		if !slices.Contains(names, pt.Series) {
			names = append(names, pt.Series)
		}
		lines[pt.Series] = append(lines[pt.Series], plotter.XY{X: float64(pt.X), Y: s.Value(pt) * scale})
	}
	if len(names) == 0 {
		return nil, fmt.Errorf("it has no points")
	}
	logarithmic(&p.X)
	logarithmic(&p.Y)
	return p, addLines(p, names, lines)
}

// drawDistribution plots times over the fraction of slower calls, on a logarithmic axis, so
// that the tails are visible.
func drawDistribution(d *result.Distribution) (*plot.Plot, error) {
	p := newPlot(d.What, d.Busy || d.Crowded)
	p.X.Label.Text = "calls that took no longer, %"
	p.Y.Label.Text = "µs"
	var names []string
	lines := make(map[string]plotter.XYs)
	for _, s := range d.Series {
		names = append(names, s.Name)
		for _, q := range s.Quantiles {
			if q.Time > 0 && q.P <= 0.9999 {
				lines[s.Name] = append(lines[s.Name], plotter.XY{X: nines(q.P), Y: float64(q.Time) / 1e3})
			}
		}
		if len(lines[s.Name]) == 0 {
			return nil, fmt.Errorf("%s has no times", s.Name)
		}
	}
	if len(names) == 0 {
		return nil, fmt.Errorf("it has no series")
	}
	var ticks plot.ConstantTicks
	for _, q := range []float64{0, 0.5, 0.9, 0.99, 0.999, 0.9999} {
		ticks = append(ticks, plot.Tick{Value: nines(q), Label: fmt.Sprintf("%g", 100*q)})
	}
	p.X.Tick.Marker = ticks
	logarithmic(&p.Y)
	return p, addLines(p, names, lines)
}

// nines returns the number of nines: 2 for 0.99.
func nines(q float64) float64 { return -math.Log10(1 - q) }

func logarithmic(a *plot.Axis) {
	a.Scale = plot.LogScale{}
	a.Tick.Marker = plot.LogTicks{Prec: -1}
}

func addLines(p *plot.Plot, names []string, lines map[string]plotter.XYs) error {
	for i, name := range names {
		line, points, err := plotter.NewLinePoints(lines[name])
		if err != nil {
			return err
		}
		line.Color, points.Color = plotutil.Color(i), plotutil.Color(i)
		line.Width = vg.Points(1.5)
		points.Shape = plotutil.Shape(i)
		p.Add(line, points)
		p.Legend.Add(name, line, points)
	}
	return nil
}
