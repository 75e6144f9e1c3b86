package chart

import (
	"fmt"
	"io"
	"math"
	"strings"
	"unicode/utf8"
)

// Smallest sizes of a chart as text, in characters.
const (
	minWidth  = 40
	minHeight = 5
)

// Text draws the chart in ASCII with the given width in characters, and height rows between the axes. The minimum is 40
// by 5. Each series has a letter at its points, and dots in between. A + marks points of several series.
func (c *Chart) Text(w io.Writer, width, height int) error {
	x, y, err := c.scales()
	if err != nil {
		return err
	}
	width, height = max(width, minWidth), max(height, minHeight)

	labels := make(map[int]string) // by row
	column := 0
	for _, v := range y.ticks(height / 2) {
		text := y.text(v)
		labels[place(1-y.at(v), height)] = text
		column = max(column, utf8.RuneCountInString(text))
	}
	inner := max(width-column-2, minWidth/2)
	grid := make([][]byte, height)
	for i := range grid {
		grid[i] = []byte(strings.Repeat(" ", inner))
	}
	for i := range c.Series {
		c.Series[i].lines(grid, x, y)
	}
	for i := range c.Series {
		c.Series[i].points(grid, x, y, letter(i))
	}

	var b strings.Builder
	fmt.Fprintf(&b, "%s\n%s\n", c.Title, c.Y.Label)
	for i, row := range grid {
		fmt.Fprintf(&b, "%*s |%s\n", column, labels[i], strings.TrimRight(string(row), " "))
	}
	fmt.Fprintf(&b, "%*s +%s\n", column, "", strings.Repeat("-", inner))
	fmt.Fprintf(&b, "%*s  %s\n", column, "", bottom(&x, inner))
	fmt.Fprintf(&b, "%*s\n", column+2+inner, c.X.Label)
	for i, s := range c.Series {
		fmt.Fprintf(&b, "%*s  %c  %s\n", column, "", letter(i), s.Name)
	}
	_, err = io.WriteString(w, b.String())
	return err
}

// letter returns the letter of a series.
func letter(i int) byte { return byte('a' + i) }

// place returns which of n places a value from 0 to 1 belongs to.
func place(v float64, n int) int {
	return min(n-1, max(0, int(math.Round(v*float64(n-1)))))
}

// lines draws the dots between the points.
func (s *Series) lines(grid [][]byte, x, y scale) {
	rows, columns := len(grid), len(grid[0])
	for i := 1; i < len(s.Points); i++ {
		p, q := s.Points[i-1], s.Points[i]
		from, to := place(x.at(p.X), columns), place(x.at(q.X), columns)
		for at := from + 1; at < to; at++ {
			part := float64(at-from) / float64(to-from)
			v := y.at(p.Y) + part*(y.at(q.Y)-y.at(p.Y))
			grid[place(1-v, rows)][at] = '.'
		}
	}
}

// points draws the points.
func (s *Series) points(grid [][]byte, x, y scale, letter byte) {
	for _, p := range s.Points {
		cell := &grid[place(1-y.at(p.Y), len(grid))][place(x.at(p.X), len(grid[0]))]
		switch *cell {
		case ' ', '.', letter:
			*cell = letter
		default:
			*cell = '+'
		}
	}
}

// bottom returns the line with as many values of the X axis as fit.
func bottom(x *scale, width int) string {
	line := []rune(strings.Repeat(" ", width))
	end := 0 // end of the last value
	for _, v := range x.ticks(width / 6) {
		text := []rune(x.text(v))
		at := min(max(0, place(x.at(v), width)-len(text)/2), width-len(text))
		if at < end || at < 0 {
			continue
		}
		copy(line[at:], text)
		end = at + len(text) + 1
	}
	return strings.TrimRight(string(line), " ")
}
