package look

import (
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/rpcrdma/rpcrdma/cmd/rpcrdma/internal/chart"
	"github.com/rpcrdma/rpcrdma/cmd/rpcrdma/internal/explain"
	"github.com/rpcrdma/rpcrdma/cmd/rpcrdma/internal/loadgen"
)

// Dimensions of a plot in text, in characters.
const (
	plotWidth  = 78
	plotHeight = 16
)

// openSVG opens the file of --svg before the measurement. Without --svg it returns nil, which may be closed.
func (o *benchOptions) openSVG() (*os.File, error) {
	if o.svg == "" {
		return nil, nil
	}
	f, err := os.OpenFile(o.svg, os.O_WRONLY|os.O_CREATE, 0o666) // keep its contents in case of a failure
	if err != nil {
		return nil, fmt.Errorf("bench: --svg: %w", explain.Error(err))
	}
	return f, nil
}

// errNoPlot is the reason why there is no plot.
var errNoPlot = errors.New("there is nothing to draw: measure several sizes or depths, or more calls")

// draw draws what --plot and --svg ask for.
func (o *benchOptions) draw(r *benchReport, svg *os.File, out io.Writer) error {
	if !o.plot && svg == nil {
		return nil
	}
	charts := r.charts()
	if len(charts) == 0 {
		return fmt.Errorf("bench %s: %w", r.addr, errNoPlot)
	}
	if o.plot {
		for _, c := range charts {
			if _, err := fmt.Fprintln(out); err != nil {
				return err
			}
			if err := c.Text(out, plotWidth, plotHeight); err != nil {
				return err
			}
		}
	}
	if svg == nil {
		return nil
	}
	err := svg.Truncate(0)
	if errors.Is(err, syscall.EINVAL) { // a pipe or a device
		err = nil
	}
	if err == nil {
		err = chart.WriteSVG(svg, charts...)
	}
	if err := errors.Join(err, svg.Close()); err != nil {
		return fmt.Errorf("bench %s: --svg: %w", r.addr, explain.Error(err))
	}
	return nil
}

// maxLatencies is for how many steps latencies are drawn: there are many points, close together.
const maxLatencies = 6

// charts returns the charts with contents: throughput by size and rates by depth, if several sizes or depths were
// measured, and the latencies.
func (r *benchReport) charts() (list []*chart.Chart) {
	at := func(what string) string { return fmt.Sprintf("%s at %s over %s", what, r.addr, r.info.Provider) }
	bySize := &chart.Chart{
		Title: at("throughput by size"),
		X:     chart.Axis{Label: "bytes in a call", Log: true, Text: func(v float64) string { return loadgen.FormatSize(int(v)) }},
		Y:     chart.Axis{Label: "MiB/s", Log: true},
	}
	byDepth := &chart.Chart{
		Title: at("rate by depth"),
		X:     chart.Axis{Label: "calls outstanding", Log: true},
		Y:     chart.Axis{Label: "calls/s", Log: true},
	}
	for _, s := range r.results {
		op := string(s.Op)
		if s.Op != loadgen.Null {
			addPoint(bySize, fmt.Sprintf("%s, depth %d", op, s.Depth), float64(s.Size), s.BytesPerSecond()/(1<<20))
			op += " of " + loadgen.FormatSize(s.Size)
		}
		addPoint(byDepth, op, float64(s.Depth), s.Rate())
	}
	for _, c := range []*chart.Chart{bySize, byDepth} {
		least := 2
		if len(list) > 0 {
			least = 3 // two depths are two lines in the other chart
		}
		c.Series = slices.DeleteFunc(c.Series, func(s chart.Series) bool { return len(s.Points) < least })
		list = append(list, parts(c)...)
	}
	if len(r.results) <= maxLatencies {
		list = append(list, parts(r.latencies(at("latency")))...)
	}
	return list
}

// addPoint adds a point to a series of a chart, in order.
func addPoint(c *chart.Chart, name string, x, y float64) {
	i := slices.IndexFunc(c.Series, func(s chart.Series) bool { return s.Name == name })
	if i < 0 {
		i = len(c.Series)
		c.Series = append(c.Series, chart.Series{Name: name})
	}
	s := &c.Series[i]
	at, there := slices.BinarySearchFunc(s.Points, x, func(p chart.Point, x float64) int { return int(math.Copysign(1, p.X-x)) })
	if there {
		s.Points[at].Y = y
	} else if y > 0 {
		s.Points = slices.Insert(s.Points, at, chart.Point{X: x, Y: y})
	}
	if c.X.Log && !slices.Contains(c.X.Ticks, x) {
		c.X.Ticks = append(c.X.Ticks, x)
		slices.Sort(c.X.Ticks)
	}
}

// quantiles are the quantiles of the latency that are drawn. Immutable.
var quantiles = []float64{0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99, 0.995, 0.999, 0.9999}

// latencies returns the chart of the latencies. Its X axis counts nines, so that slow calls get as much space as fast
// ones.
func (r *benchReport) latencies(title string) *chart.Chart {
	nines := func(q float64) float64 { return -math.Log10(1 - q) }
	c := &chart.Chart{
		Title: title,
		X: chart.Axis{Label: "calls that took no longer", Text: func(v float64) string {
			return strings.TrimRight(strings.TrimRight(fmt.Sprintf("%.2f", 100*(1-math.Pow(10, -v))), "0"), ".") + "%"
		}},
		Y: chart.Axis{Label: "time of a call", Log: true, Text: func(v float64) string { return short(time.Duration(v)).String() }},
	}
	for _, q := range []float64{0.1, 0.5, 0.9, 0.99, 0.999, 0.9999} {
		c.X.Ticks = append(c.X.Ticks, nines(q))
	}
	for _, s := range r.results {
		line := chart.Series{Name: s.String()}
		for _, q := range quantiles {
			// 100 calls are too few for a 99.9 % quantile.
			if d := s.Quantile(q); d > 0 && float64(s.N())*(1-q) >= 1 {
				line.Points = append(line.Points, chart.Point{X: nines(q), Y: float64(d)})
			}
		}
		if len(line.Points) > 1 {
			c.Series = append(c.Series, line)
		}
	}
	return c
}

// parts splits a chart into charts with as many series as can be distinguished. It returns none if the chart is
// empty.
func parts(c *chart.Chart) (list []*chart.Chart) {
	for series := range slices.Chunk(c.Series, chart.MaxSeries) {
		part := *c
		part.Series = series
		list = append(list, &part)
	}
	return list
}
