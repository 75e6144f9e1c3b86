// Draw makes the pictures of the documentation: SVG from descriptions in text.
//
//	draw FILE...    writes FILE.svg, without the old suffix, for each FILE
//
// A file *.seq describes a sequence of messages between two ends, see [parseSequence]; *.bars
// describes bars of measured ratios, see [parseBars]. All pictures of the project:
//
//	go run ./tools/draw docs/img/*.seq docs/img/*.bars
//
// A test fails when a picture is not what its description makes.
package main

import (
	"encoding/xml"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"unicode/utf8"
)

func main() {
	if len(os.Args) < 2 {
		fmt.Fprintln(os.Stderr, "usage: draw FILE...")
		os.Exit(2)
	}
	var err error
	for _, file := range os.Args[1:] {
		svg, e := picture(file)
		if e == nil {
			e = os.WriteFile(svgName(file), svg, 0o666)
		}
		err = errors.Join(err, e)
	}
	if err != nil {
		fmt.Fprintf(os.Stderr, "draw: %v\n", err)
		os.Exit(1)
	}
}

// svgName returns the file name for the picture of a description.
func svgName(file string) string { return strings.TrimSuffix(file, filepath.Ext(file)) + ".svg" }

// picture returns the SVG of a description.
func picture(file string) ([]byte, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	var c *canvas
	switch filepath.Ext(file) {
	case ".seq":
		var s *sequence
		if s, err = parseSequence(string(text)); err == nil {
			c, err = s.draw()
		}
	case ".bars":
		var b *bars
		if b, err = parseBars(string(text), filepath.Dir(file)); err == nil {
			c, err = b.draw()
		}
	default:
		err = errors.New("the suffix is none of .seq and .bars")
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	return c.svg(), nil
}

// Colors of all pictures, on a white background of their own, because pages may be dark.
const (
	ink    = "#1f2933"
	faint  = "#9aa5b1"
	signal = "#0b6e99" // an RDMA operation; a benefit
	warm   = "#b35c00" // memory that a peer can reach; a drawback
)

// canvas collects the elements of a picture. The unit is the pixel.
type canvas struct {
	width, height int
	title         string
	body          strings.Builder
}

func (c *canvas) line(x1, y1, x2, y2 int, color string, width float64, dash string) {
	if dash != "" {
		dash = ` stroke-dasharray="` + dash + `"`
	}
	fmt.Fprintf(&c.body, "<line x1=\"%d\" y1=\"%d\" x2=\"%d\" y2=\"%d\" stroke=\"%s\" stroke-width=\"%g\"%s/>\n", x1, y1, x2, y2, color, width, dash)
}

func (c *canvas) rect(x, y, w, h int, fill, stroke string) {
	fmt.Fprintf(&c.body, "<rect x=\"%d\" y=\"%d\" width=\"%d\" height=\"%d\" fill=\"%s\" stroke=\"%s\"/>\n", x, y, w, h, fill, stroke)
}

// arrow draws a line with a head at its second end; both ends are at height y.
func (c *canvas) arrow(x1, x2, y int, color string, width float64, dash string) {
	half := 5
	if width > 3 {
		half = 8
	}
	back := 2 * half
	if x2 < x1 {
		back = -back
	}
	c.line(x1, y, x2-back/2, y, color, width, dash)
	fmt.Fprintf(&c.body, "<path d=\"M%d %d L%d %d L%d %d Z\" fill=\"%s\"/>\n", x2, y, x2-back, y-half, x2-back, y+half, color)
}

// text draws a line of text. The anchor is start, middle or end.
func (c *canvas) text(x, y int, anchor, color, weight, s string) {
	fmt.Fprintf(&c.body, "<text x=\"%d\" y=\"%d\" text-anchor=\"%s\" fill=\"%s\" font-weight=\"%s\">", x, y, anchor, color, weight)
	xml.EscapeText(&c.body, []byte(s))
	c.body.WriteString("</text>\n")
}

// svg returns the picture as SVG.
func (c *canvas) svg() []byte {
	var title strings.Builder
	xml.EscapeText(&title, []byte(c.title))
	return fmt.Appendf(nil, `<svg xmlns="http://www.w3.org/2000/svg" width="%[1]d" height="%[2]d" viewBox="0 0 %[1]d %[2]d" font-family="sans-serif" font-size="13" role="img">
<title>%[3]s</title>
<rect width="%[1]d" height="%[2]d" fill="#ffffff"/>
%[4]s</svg>
`, c.width, c.height, title.String(), c.body.String())
}

// widthOf returns the maximum width of a line of text, for the usual sans-serif fonts at 13 pixels.
func widthOf(s string) int { return utf8.RuneCountInString(s) * 73 / 10 }
