package main

import (
	"bytes"
	"encoding/xml"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestPictures: the descriptions reproduce the pictures of the documentation.
func TestPictures(t *testing.T) {
	found := 0
	for _, pattern := range []string{"*.seq", "*.bars"} {
		files, err := filepath.Glob(filepath.Join("../../docs/img", pattern))
		if err != nil || len(files) == 0 {
			t.Fatalf("%s: %d files, %v", pattern, len(files), err)
		}
		for _, file := range files {
			found++
			want, err := picture(file)
			if err != nil {
				t.Error(err)
				continue
			}
			if got, err := os.ReadFile(svgName(file)); err != nil || !bytes.Equal(got, want) {
				t.Errorf("%s is not what its description makes (%v): go run ./tools/draw docs/img/*.seq docs/img/*.bars", svgName(file), err)
			}
		}
	}
	svgs, err := filepath.Glob("../../docs/img/*.svg")
	if err != nil || len(svgs) != found {
		t.Errorf("there are %d pictures of %d descriptions, %v", len(svgs), found, err)
	}
}

// texts returns the texts in a picture, a line each, or an error if it is not well-formed XML.
func texts(svg []byte) (string, error) {
	d := xml.NewDecoder(bytes.NewReader(svg))
	list := "\n"
	for {
		switch token, err := d.Token(); {
		case errors.Is(err, io.EOF):
			return list, nil
		case err != nil:
			return "", err
		default:
			if text, ok := token.(xml.CharData); ok && len(bytes.TrimSpace(text)) > 0 {
				list += string(text) + "\n"
			}
		}
	}
}

// TestSequence: descriptions that make a picture, and others, with what is wrong.
func TestSequence(t *testing.T) {
	const head = "title a <b> & c\nends A, B\n"
	for _, tt := range []struct{ name, text, want string }{
		{"everything", head + "# nothing\n\nA -> B: Send\nopen A: open\nB => A: Write <1>\nclose A\nnote B: done\ngap\nB -> A: reply", ""},
		{"no title", "ends A, B\nA -> B: x", "no title"},
		{"no ends", "title t\nA -> B: x", `line 2: "A" is none of the ends`},
		{"no steps", head, "no steps"},
		{"one end", "title t\nends A\nA -> B: x", "two names"},
		{"a message to itself", head + "A -> A: x", "line 3: a message goes from one end to the other"},
		{"an end that is unknown", head + "A -> C: x", `"C" is none of the ends`},
		{"no text", head + "A -> B", "wants a colon"},
		{"no step", head + "A ~> B: x", "is no step"},
		{"too long", head + "A -> B: " + strings.Repeat("x", 80), "longer than"},
		{"opened twice", head + "open A: x\nopen A: y\nclose A", ""},
		{"closed twice", head + "open A: x\nclose A\nclose A", "line 5: nothing is open"},
		{"closed at the other end", head + "open A: x\nclose B", "line 4: nothing is open"},
		{"left open", head + "open A: x", "stays open"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s, err := parseSequence(tt.text)
			var c *canvas
			if err == nil {
				c, err = s.draw()
			}
			if err == nil {
				var list string
				list, err = texts(c.svg())
				for _, st := range s.steps {
					if st.text != "" && !strings.Contains(list, "\n"+st.text+"\n") {
						t.Errorf("the picture lacks %q", st.text)
					}
				}
			}
			if (err == nil) != (tt.want == "") || err != nil && !strings.Contains(err.Error(), tt.want) {
				t.Errorf("%v, want %q", err, tt.want)
			}
		})
	}
}

// TestBars: rows about time are turned round; disturbed rows are not drawn.
func TestBars(t *testing.T) {
	dir := t.TempDir()
	const data = `{"provenance":{"date":"2026-11-22T08:19:00Z","commit":"abc, with changes","machine":"M"},"pairs":[
{"id":"1","kind":"time","ratio":0.25,"low":0.2,"high":0.5,"control":1},
{"id":"2","kind":"calls","ratio":3,"low":2,"high":4,"control":1.01},
{"id":"3","kind":"calls","ratio":3,"low":2,"high":4,"control":1.1},
{"id":"4","kind":"calls","ratio":3,"low":2,"high":4,"control":1,"crowded":true},
{"id":"5","kind":"calls","control":1}]}`
	if err := os.WriteFile(filepath.Join(dir, "results.json"), []byte(data), 0o600); err != nil {
		t.Fatal(err)
	}
	const head = "title t\nworse w\nbetter b\nsource results.json\ngroup g\n"
	b, err := parseBars(head+"row 1: one\nrow 2: two", dir)
	if err != nil {
		t.Fatal(err)
	}
	want := []bar{{"one", 4, 2, 5}, {"two", 3, 2, 4}}
	for i, w := range want {
		if got := b.groups[0].bars[i]; got != w {
			t.Errorf("got %v, want %v", got, w)
		}
	}
	if strings.Join(b.notes, "|") != "2026-11-22, commit abc, with changes; M" {
		t.Errorf("the notes are %q", b.notes)
	}
	c, err := b.draw()
	if err != nil {
		t.Fatal(err)
	}
	if list, err := texts(c.svg()); err != nil || !strings.Contains(list, "\none\n4\ntwo\n3\n") {
		t.Errorf("%v, the texts are %q", err, list)
	}
	for text, want := range map[string]string{
		head + "row 3: x": "disturbed", head + "row 4: x": "disturbed", head + "row 5: x": "no ratio", head + "row 6: x": "no row 6",
		"title t\nrow 1: x": "line 2: a row wants", "title t\nsource gone": "gone", head + "word": "no line", head[8:]: "no title",
	} {
		if _, err := parseBars(text, dir); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", text, err, want)
		}
	}
}
