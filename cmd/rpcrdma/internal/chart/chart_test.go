package chart

import (
	"encoding/xml"
	"errors"
	"io"
	"math"
	"slices"
	"strings"
	"testing"
)

func line(name string, points ...float64) Series {
	s := Series{Name: name}
	for i := 0; i < len(points); i += 2 {
		s.Points = append(s.Points, Point{points[i], points[i+1]})
	}
	return s
}

// A chart as text is as it looks here.
func TestText(t *testing.T) {
	c := &Chart{
		Title:  "throughput by size",
		X:      Axis{Label: "bytes", Log: true, Ticks: []float64{1 << 10, 1 << 20}},
		Y:      Axis{Label: "MiB/s", Log: true},
		Series: []Series{line("read", 1<<10, 10, 1<<15, 100, 1<<20, 1000), line("write", 1<<10, 10, 1<<20, 100)},
	}
	const want = `throughput by size
MiB/s
 1k |                                ..a
    |                            ....
    |                        ....
200 |                    ....
    |               ..a..          ....b
 50 |           ....       ........
    |       ....  .........
    |   ..........
 10 |+....
    +-----------------------------------
     1.024k                       1.049M
                                   bytes
     a  read
     b  write
`
	var b strings.Builder
	if err := c.Text(&b, 40, 9); err != nil || b.String() != want {
		t.Errorf("%v\n%s", err, b.String())
	}
}

// Values at the edges, alone and of every size, have a place.
func TestPlaces(t *testing.T) {
	for _, s := range []Series{
		line("one", 1, 1), line("flat", 1, 7, 2, 7), line("tiny", 1, 1e-9, 2, 1e-8), line("huge", 1, 1e300, 1e300, 2e300),
		line("twice", 3, 5, 3, 6), line("back", 3, 5, 1, 6),
	} {
		for _, log := range []bool{false, true} {
			c := &Chart{Title: "t", X: Axis{Log: log}, Y: Axis{Log: log}, Series: []Series{s}}
			var b strings.Builder
			if err := c.Text(&b, 0, 0); err != nil || !strings.Contains(b.String(), "a") {
				t.Errorf("%s, logarithmic %v: %v\n%s", s.Name, log, err, b.String())
			}
			for row := range strings.Lines(b.String()) {
				if len(row) > minWidth+1 {
					t.Errorf("%s: a line of %d characters: %q", s.Name, len(row), row)
				}
			}
			if err := WriteSVG(io.Discard, c); err != nil {
				t.Errorf("%s: %v", s.Name, err)
			}
		}
	}
}

// Charts that cannot be drawn are errors.
func TestErrors(t *testing.T) {
	many := make([]Series, MaxSeries+1)
	for i := range many {
		many[i] = line("x", 1, 1)
	}
	for want, list := range map[error][][]Series{
		ErrEmpty:  {nil, {line("empty")}},
		ErrSeries: {many, {{Points: make([]Point, maxPoints+1)}}},
		ErrValue:  {{line("zero", 0, 1)}, {line("negative", 1, -1)}, {line("NaN", 1, math.NaN())}, {line("infinite", math.Inf(1), 1)}},
	} {
		for _, series := range list {
			c := &Chart{X: Axis{Log: true}, Y: Axis{Log: true}, Series: series}
			if err := c.Text(io.Discard, 80, 20); !errors.Is(err, want) {
				t.Errorf("text: %v, want %v", err, want)
			}
			if err := WriteSVG(io.Discard, c); !errors.Is(err, want) {
				t.Errorf("SVG: %v, want %v", err, want)
			}
		}
	}
}

// An SVG file is XML, whatever the names, and has every series and point.
func TestSVG(t *testing.T) {
	names := []string{"a<b>&\"'", "\x1b[2J\x00", "plain"}
	c := &Chart{Title: "<script>", X: Axis{Label: "]]>", Log: true}, Y: Axis{Label: "y", Log: true}}
	for _, name := range names {
		c.Series = append(c.Series, line(name, 1, 1, 10, 10, 100, 5))
	}
	var b strings.Builder
	if err := WriteSVG(&b, c, c); err != nil {
		t.Fatal(err)
	}
	count := make(map[string]int)
	var texts []string
	for d := xml.NewDecoder(strings.NewReader(b.String())); ; {
		token, err := d.Token()
		if err == io.EOF {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		switch token := token.(type) {
		case xml.StartElement:
			count[token.Name.Local]++
		case xml.CharData:
			texts = append(texts, string(token))
		}
	}
	if count["polyline"] != 6 || count["circle"] != 18 || count["script"] != 0 || !slices.Contains(texts, names[0]) || !slices.Contains(texts, c.Title) {
		t.Errorf("%v, %q", count, texts)
	}
}

// Ticks are round numbers, and no more than asked for.
func TestTicks(t *testing.T) {
	for _, tt := range []struct {
		log       bool
		low, high float64
		most      int
		want      []float64
	}{
		{true, 1, 100, 10, []float64{1, 2, 5, 10, 20, 50, 100}},
		{true, 1, 100, 4, []float64{1, 5, 20, 100}},
		{true, 1, 1e6, 10, []float64{1, 10, 100, 1e3, 1e4, 1e5, 1e6}},
		{false, 0, 10, 10, []float64{0, 2, 4, 6, 8, 10}},
		{false, -1, 1, 10, []float64{-1, -0.5, 0, 0.5, 1}},
	} {
		s, err := newScale(&Axis{Log: tt.log}, []float64{tt.low, tt.high})
		if err != nil {
			t.Fatal(err)
		}
		if got := s.ticks(tt.most); !slices.Equal(got, tt.want) {
			t.Errorf("%v to %v: %v, want %v", tt.low, tt.high, got, tt.want)
		}
	}
}
