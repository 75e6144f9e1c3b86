// Package chart draws line charts as text and as SVG, for commands that show measurements. Both axes may be
// logarithmic. It needs no fonts, and only the standard library.
package chart

import (
	"errors"
	"fmt"
	"math"
	"slices"
)

// A Chart is a set of lines with common axes.
type Chart struct {
	Title  string
	X, Y   Axis
	Series []Series
}

// An Axis is an axis of a Chart. The zero value is linear and has ticks at round numbers.
type Axis struct {
	Label string
	Log   bool                 // logarithmic: all values must be above 0
	Ticks []float64            // values with a tick; nil: chosen automatically
	Text  func(float64) string // formats the value of a tick; nil: as a number
}

// A Series is one line of a Chart. Its points are sorted by X.
type Series struct {
	Name   string
	Points []Point
}

// A Point is a point of a Series.
type Point struct{ X, Y float64 }

// Limits of a Chart.
const (
	MaxSeries = 12   // more could not be distinguished
	maxPoints = 4096 // points of a series
)

// Errors of a chart that cannot be drawn.
var (
	ErrEmpty  = errors.New("chart: nothing to draw")
	ErrSeries = fmt.Errorf("chart: more than %d series, or more than %d points in one", MaxSeries, maxPoints)
	ErrValue  = errors.New("chart: a value is not finite, or not above 0 on a logarithmic axis")
)

// scale maps values of an axis to the range 0 to 1.
type scale struct {
	axis      *Axis
	low, high float64 // transformed
}

// transform returns the position of a value before scaling.
func (a *Axis) transform(v float64) float64 {
	if a.Log {
		return math.Log10(v)
	}
	return v
}

// at returns the position of a value: 0 at the low end and 1 at the high end.
func (s *scale) at(v float64) float64 {
	return (s.axis.transform(v) - s.low) / (s.high - s.low)
}

// text formats a value.
func (s *scale) text(v float64) string {
	if s.axis.Text != nil {
		return s.axis.Text(v)
	}
	return number(v)
}

// number formats a number with as few digits as possible, and a letter for thousands and more.
func number(v float64) string {
	for _, unit := range []struct {
		size   float64
		letter string
	}{{1e9, "G"}, {1e6, "M"}, {1e3, "k"}} {
		if math.Abs(v) >= unit.size {
			return fmt.Sprintf("%.4g%s", v/unit.size, unit.letter)
		}
	}
	return fmt.Sprintf("%.3g", v)
}

// scales checks the chart and returns scales that include all points and ticks.
func (c *Chart) scales() (x, y scale, err error) {
	var xs, ys []float64
	for _, s := range c.Series {
		for _, p := range s.Points {
			xs, ys = append(xs, p.X), append(ys, p.Y)
		}
		if len(s.Points) > maxPoints {
			return x, y, ErrSeries
		}
	}
	switch {
	case len(xs) == 0:
		return x, y, ErrEmpty
	case len(c.Series) > MaxSeries:
		return x, y, ErrSeries
	}
	if x, err = newScale(&c.X, xs); err != nil {
		return x, y, err
	}
	y, err = newScale(&c.Y, ys)
	return x, y, err
}

func newScale(a *Axis, values []float64) (scale, error) {
	s := scale{axis: a, low: math.Inf(1), high: math.Inf(-1)}
	for _, v := range slices.Concat(values, a.Ticks) {
		t := a.transform(v)
		if math.IsNaN(t) || math.IsInf(t, 0) {
			return s, ErrValue
		}
		s.low, s.high = min(s.low, t), max(s.high, t)
	}
	if s.high-s.low < 1e-9*max(1, math.Abs(s.high)) { // a single value goes in the middle
		s.low, s.high = s.low-0.5, s.high+0.5
	}
	return s, nil
}

// ticks returns up to most values with a tick, in ascending order.
func (s *scale) ticks(most int) []float64 {
	list := s.axis.Ticks
	if list == nil {
		list = s.round()
	}
	if len(list) <= most {
		return list
	}
	step := (len(list) + most - 1) / most
	var few []float64
	for i := 0; i < len(list); i += step {
		few = append(few, list[i])
	}
	return few
}

// round returns round numbers on the scale: 1, 2 and 5 times powers of ten. On a linear scale it returns multiples of
// one of them.
func (s *scale) round() (list []float64) {
	if !s.axis.Log {
		step := math.Pow(10, math.Floor(math.Log10((s.high-s.low)/4)))
		for _, m := range []float64{5, 2, 1} {
			if (s.high-s.low)/(m*step) >= 3 {
				step *= m
				break
			}
		}
		for v := math.Ceil(s.low/step) * step; v <= s.high && len(list) < maxPoints; v += step {
			list = append(list, v)
		}
		return list
	}
	steps := []float64{1, 2, 5}
	if s.high-s.low > 3 {
		steps = steps[:1]
	}
	for decade := math.Floor(s.low); decade <= s.high; decade++ {
		for _, m := range steps {
			if v := m * math.Pow(10, decade); math.Log10(v) >= s.low-1e-9 && math.Log10(v) <= s.high+1e-9 {
				list = append(list, v)
			}
		}
	}
	return list
}
