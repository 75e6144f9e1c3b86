package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
)

// bars is a picture of ratios: how many times as good as another one thing is.
type bars struct {
	title  string
	notes  []string // of the measurements
	groups []group
	caption
}

// caption names the two sides of the picture.
type caption struct{ worse, better string }

// group is a set of bars under one heading.
type group struct {
	heading string
	bars    []bar
}

// bar is one ratio.
type bar struct {
	text      string
	ratio     float64 // above 1: better
	low, high float64 // quartiles
}

// parseBars reads a description. Its lines are
//
//	title TEXT           of the picture
//	source FILE          results of bench/ratio, relative to the description; rows that follow are of it
//	group TEXT           a heading
//	row ID: TEXT         a row of the source, by its id
//	worse TEXT           what is left of 1
//	better TEXT          what is right of it
//
// Rows about time are turned round, so that more is better in all of them. A row that is disturbed,
// or that the source does not have, is an error.
func parseBars(text, dir string) (*bars, error) {
	b := &bars{}
	var source *results
	for i, line := range strings.Split(text, "\n") {
		if line = strings.TrimSpace(line); line == "" || line[0] == '#' {
			continue
		}
		err := b.parse(line, dir, &source)
		if err != nil {
			return nil, fmt.Errorf("line %d: %w", i+1, err)
		}
	}
	if b.title == "" || len(b.groups) == 0 || b.worse == "" || b.better == "" {
		return nil, errors.New("there is no title, no group, or no worse and better")
	}
	return b, nil
}

func (b *bars) parse(line, dir string, source **results) (err error) {
	word, rest, _ := strings.Cut(line, " ")
	switch word {
	case "title":
		b.title = rest
	case "worse":
		b.worse = rest
	case "better":
		b.better = rest
	case "group":
		b.groups = append(b.groups, group{heading: rest})
	case "source":
		if *source, err = readResults(filepath.Join(dir, rest)); err != nil {
			return err
		}
		p := (*source).Provenance
		date, _, _ := strings.Cut(p.Date, "T")
		b.notes = append(b.notes, fmt.Sprintf("%s, commit %s; %s", date, p.Commit, p.Machine))
	case "row":
		id, text, ok := strings.Cut(rest, ":")
		if !ok || *source == nil || len(b.groups) == 0 {
			return errors.New("a row wants an id, a text, and a source and a group before it")
		}
		bar, err := (*source).bar(strings.TrimSpace(id))
		if err != nil {
			return err
		}
		bar.text = strings.TrimSpace(text)
		last := &b.groups[len(b.groups)-1]
		last.bars = append(last.bars, bar)
	default:
		return fmt.Errorf("%q is no line of a description", line)
	}
	return nil
}

// results is the part of a bench/ratio file that the picture needs.
type results struct {
	Provenance struct{ Date, Commit, Machine string }
	Pairs      []struct {
		ID, Kind         string
		Ratio, Low, High float64
		Control          float64
		Busy, Crowded    bool
	}
}

func readResults(file string) (*results, error) {
	b, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	r := &results{}
	if err := json.Unmarshal(b, r); err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	return r, nil
}

// bar returns a row of the results. docs/reports/bench/README.md, under Method, says when a row is
// disturbed.
func (r *results) bar(id string) (bar, error) {
	for _, p := range r.Pairs {
		if p.ID != id {
			continue
		}
		if p.Busy || p.Crowded || math.Abs(p.Control-1) > 0.08 {
			return bar{}, fmt.Errorf("row %s is disturbed", id)
		}
		if p.Low <= 0 || p.Ratio <= 0 || p.High <= 0 {
			return bar{}, fmt.Errorf("row %s has no ratio", id)
		}
		if p.Kind == "time" {
			return bar{ratio: 1 / p.Ratio, low: 1 / p.High, high: 1 / p.Low}, nil
		}
		return bar{ratio: p.Ratio, low: p.Low, high: p.High}, nil
	}
	return bar{}, fmt.Errorf("there is no row %s", id)
}

// The layout: texts on the left, bars on a logarithmic axis on the right.
const (
	textWidth = 420
	axisWidth = 450
	barRow    = 26
	least     = 1.0 / 16
	most      = 64.0
)

// x returns the position of a ratio on the axis.
func x(ratio float64) int {
	ratio = min(max(ratio, least), most)
	return textWidth + int(math.Round(axisWidth*math.Log2(ratio/least)/math.Log2(most/least)))
}

// draw draws the picture.
func (b *bars) draw() (*canvas, error) {
	c := &canvas{width: textWidth + axisWidth + 70, title: b.title}
	rows := 0
	for _, g := range b.groups {
		rows += len(g.bars) + 1
	}
	const head = 64
	bottom := head + barRow*rows
	c.height = bottom + 36 + 18*len(b.notes)
	c.text(16, 24, "start", ink, "bold", b.title)
	c.text(x(1)-12, head-16, "end", warm, "normal", "← "+b.worse)
	c.text(x(1)+12, head-16, "start", signal, "normal", b.better+" →")
	for r := least; r <= most; r *= 2 {
		color, label := "#e4e7eb", fmt.Sprintf("%g", r)
		if r < 1 {
			label = fmt.Sprintf("1/%g", 1/r)
		}
		if r == 1 {
			color = ink
		}
		c.line(x(r), head-8, x(r), bottom, color, 1, "")
		c.text(x(r), bottom+16, "middle", ink, "normal", label)
	}
	y := head
	for _, g := range b.groups {
		c.text(16, y+18, "start", ink, "bold", g.heading)
		y += barRow
		for _, r := range g.bars {
			if widthOf(r.text) > textWidth-36 {
				return nil, fmt.Errorf("%q is longer than the %d pixels that there are", r.text, textWidth-36)
			}
			c.text(28, y+17, "start", ink, "normal", r.text)
			from, to, color := x(1), x(r.ratio), signal
			if to < from {
				from, to, color = to, from, warm
			}
			c.rect(from, y+5, max(to-from, 2), barRow-10, color, "none")
			c.line(x(r.low), y+barRow/2, x(r.high), y+barRow/2, ink, 1.4, "")
			label := fmt.Sprintf("%.2g", r.ratio)
			if r.ratio < 1 {
				c.text(min(x(r.ratio), x(r.low))-6, y+17, "end", color, "normal", label)
			} else {
				c.text(max(x(r.ratio), x(r.high))+6, y+17, "start", color, "normal", label)
			}
			y += barRow
		}
	}
	for i, note := range b.notes {
		c.text(16, bottom+44+18*i, "start", faint, "normal", note)
	}
	return c, nil
}
