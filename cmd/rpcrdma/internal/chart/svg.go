package chart

import (
	"encoding/xml"
	"fmt"
	"io"
	"strings"
)

// Dimensions of a chart in an SVG file, in pixels.
const (
	svgWidth  = 760
	svgHeight = 420 // without the legend
	svgLeft   = 80
	svgRight  = 24
	svgTop    = 48
	svgBottom = 56
	svgLegend = 18 // height of a line
)

// svgColors are colors by Okabe and Ito that most people can distinguish. They are reused with dashes. Immutable.
var svgColors = [...]string{"#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9"}

// WriteSVG writes an SVG file with the charts, one below the other.
func WriteSVG(w io.Writer, charts ...*Chart) error {
	height := 0
	var body strings.Builder
	for _, c := range charts {
		fmt.Fprintf(&body, `<g transform="translate(0,%d)">`+"\n", height)
		if err := c.svg(&body); err != nil {
			return err
		}
		body.WriteString("</g>\n")
		height += c.svgHeight()
	}
	if height == 0 {
		return ErrEmpty
	}
	_, err := fmt.Fprintf(w, `<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%d" viewBox="0 0 %[1]d %[2]d" font-family="sans-serif" font-size="12">
<rect width="100%%" height="100%%" fill="white"/>
%s</svg>
`, svgWidth, height, body.String())
	return err
}

func (c *Chart) svgHeight() int { return svgHeight + svgLegend*len(c.Series) + svgLegend }

// svg writes the elements of a chart.
func (c *Chart) svg(b *strings.Builder) error {
	x, y, err := c.scales()
	if err != nil {
		return err
	}
	const right, bottom = svgWidth - svgRight, svgHeight - svgBottom
	atX := func(v float64) float64 { return svgLeft + x.at(v)*(right-svgLeft) }
	atY := func(v float64) float64 { return bottom - y.at(v)*(bottom-svgTop) }
	text := func(x, y float64, how, s string) {
		fmt.Fprintf(b, `<text x="%.1f" y="%.1f"%s>%s</text>`+"\n", x, y, how, escape(s))
	}
	text(svgLeft, 24, ` font-size="14" font-weight="bold"`, c.Title)
	text(svgLeft, svgTop-8, "", c.Y.Label)
	text(right, bottom+40, ` text-anchor="end"`, c.X.Label)
	for _, v := range y.ticks(10) {
		fmt.Fprintf(b, `<path d="M%d %.1fH%d" stroke="#ddd"/>`+"\n", svgLeft, atY(v), right)
		text(svgLeft-8, atY(v)+4, ` text-anchor="end"`, y.text(v))
	}
	for _, v := range x.ticks(12) {
		fmt.Fprintf(b, `<path d="M%.1f %dV%d" stroke="#ddd"/>`+"\n", atX(v), svgTop, bottom)
		text(atX(v), bottom+18, ` text-anchor="middle"`, x.text(v))
	}
	fmt.Fprintf(b, `<path d="M%d %dV%dH%d" fill="none" stroke="#333"/>`+"\n", svgLeft, svgTop, bottom, right)
	for i, s := range c.Series {
		color, dashes := svgColors[i%len(svgColors)], ""
		if i >= len(svgColors) {
			dashes = ` stroke-dasharray="6 3"`
		}
		b.WriteString(`<polyline fill="none" stroke-width="2" stroke="` + color + `"` + dashes + ` points="`)
		for _, p := range s.Points {
			fmt.Fprintf(b, "%.1f,%.1f ", atX(p.X), atY(p.Y))
		}
		b.WriteString("\"/>\n")
		for _, p := range s.Points {
			fmt.Fprintf(b, `<circle cx="%.1f" cy="%.1f" r="3" fill="%s"><title>%s: %s, %s</title></circle>`+"\n",
				atX(p.X), atY(p.Y), color, escape(s.Name), escape(x.text(p.X)), escape(y.text(p.Y)))
		}
		at := svgHeight + svgLegend*i
		fmt.Fprintf(b, `<path d="M%d %dh28" stroke-width="2" stroke="%s"%s/>`+"\n", svgLeft, at-4, color, dashes)
		text(svgLeft+36, float64(at), "", s.Name)
	}
	return nil
}

// escape escapes a text for XML. Characters that are not allowed in XML become U+FFFD.
func escape(s string) string {
	var b strings.Builder
	_ = xml.EscapeText(&b, []byte(s)) // a Builder does not fail
	return b.String()
}
