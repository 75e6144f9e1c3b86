package main

import (
	"errors"
	"fmt"
	"strings"
)

// sequence is a series of messages between two ends, from top to bottom.
type sequence struct {
	title string
	names [2]string // of the ends, left and right
	steps []step
}

// step is one line of a description.
type step struct {
	kind string // "send", "rdma", "note", "open", "close" or "gap"
	end  int    // 0: left, 1: right; for messages, the sender
	text string
}

// parseSequence reads a description. Its lines are
//
//	title TEXT      of the picture, for readers that cannot see it
//	ends A, B       the names at the two lines
//	A -> B: TEXT    a Send from A to B; B -> A goes the other way
//	A => B: TEXT    bytes that RDMA places in B's memory, or fetches from A's
//	note A: TEXT    something that A does
//	open A: TEXT    from here on, memory of A can be reached by the other end; more of it, if some can already
//	close A         up to here, all of it
//	gap             some room
//
// Empty lines and those that begin with # say nothing. An error names the line.
func parseSequence(text string) (*sequence, error) {
	s := &sequence{}
	open := [2]bool{}
	for i, line := range strings.Split(text, "\n") {
		if line = strings.TrimSpace(line); line == "" || line[0] == '#' {
			continue
		}
		before := len(s.steps)
		err := s.parse(line)
		if err == nil && len(s.steps) > before {
			switch last := s.steps[before]; last.kind {
			case "open":
				open[last.end] = true
			case "close":
				if !open[last.end] {
					err = errors.New("nothing is open")
				}
				open[last.end] = false
			}
		}
		if err != nil {
			return nil, fmt.Errorf("line %d: %w", i+1, err)
		}
	}
	if s.title == "" || s.names[0] == "" || len(s.steps) == 0 {
		return nil, errors.New("there is no title, no ends or no steps")
	}
	if open[0] || open[1] {
		return nil, errors.New("something stays open")
	}
	return s, nil
}

// parse reads one line.
func (s *sequence) parse(line string) error {
	word, rest, _ := strings.Cut(line, " ")
	head, text, colon := strings.Cut(line, ":")
	text = strings.TrimSpace(text)
	switch word {
	case "title":
		s.title = rest
		return nil
	case "gap":
		s.steps = append(s.steps, step{kind: word})
		return nil
	case "ends":
		a, b, ok := strings.Cut(rest, ",")
		s.names = [2]string{strings.TrimSpace(a), strings.TrimSpace(b)}
		if !ok || s.names[0] == "" || s.names[1] == "" || s.names[0] == s.names[1] {
			return errors.New("ends wants two names")
		}
		return nil
	case "close":
		end, err := s.end(rest)
		s.steps = append(s.steps, step{kind: word, end: end})
		return err
	}
	if !colon || text == "" {
		return fmt.Errorf("%q wants a colon and a text", line)
	}
	switch word {
	case "note", "open":
		end, err := s.end(strings.TrimPrefix(head, word))
		s.steps = append(s.steps, step{kind: word, end: end, text: text})
		return err
	}
	for arrow, kind := range map[string]string{"->": "send", "=>": "rdma"} {
		if from, to, ok := strings.Cut(head, arrow); ok {
			end, err := s.end(from)
			other, err2 := s.end(to)
			if err == nil && err2 == nil && end == other {
				err = errors.New("a message goes from one end to the other")
			}
			s.steps = append(s.steps, step{kind: kind, end: end, text: text})
			return errors.Join(err, err2)
		}
	}
	return fmt.Errorf("%q is no step", line)
}

// end returns the end with a name.
func (s *sequence) end(name string) (int, error) {
	for i, n := range s.names {
		if n != "" && n == strings.TrimSpace(name) {
			return i, nil
		}
	}
	return 0, fmt.Errorf("%q is none of the ends", strings.TrimSpace(name))
}

// The layout: the lines of the two ends, and the space beside them for notes.
const (
	beside  = 250
	between = 400
	row     = 34
	top     = 46
)

// draw draws the picture. A text that does not fit is an error.
func (s *sequence) draw() (*canvas, error) {
	c := &canvas{width: 2*beside + between, title: s.title}
	at := [2]int{beside, beside + between}
	out := [2]int{-1, 1} // away from the other end
	anchor := [2]string{"end", "start"}
	c.height = top + row*len(s.steps) + 24
	for i, name := range s.names {
		c.line(at[i], top-8, at[i], c.height-12, faint, 1, "")
		c.text(at[i], top-18, "middle", ink, "bold", name)
	}
	var since [2]int // 0: not open
	for i, st := range s.steps {
		y := top + row*i + row/2
		room := between - 40
		if st.kind == "note" || st.kind == "open" {
			room = beside - 24
		}
		if widthOf(st.text) > room {
			return nil, fmt.Errorf("%q is longer than the %d pixels that there are", st.text, room)
		}
		from, to := at[st.end], at[1-st.end]
		if since[1-st.end] > 0 { // keep clear of the bar
			to += 4 * out[st.end]
		}
		switch st.kind {
		case "send":
			c.text(beside+between/2, y-6, "middle", ink, "normal", st.text)
			c.arrow(from, to, y, ink, 1.4, "")
		case "rdma":
			c.text(beside+between/2, y-7, "middle", signal, "bold", st.text)
			c.arrow(from, to, y, signal, 5, "")
		case "note":
			c.text(from+14*out[st.end], y+4, anchor[st.end], ink, "normal", st.text)
		case "open":
			if since[st.end] == 0 {
				since[st.end] = y
			}
			c.text(from+14*out[st.end], y+4, anchor[st.end], warm, "normal", st.text)
		case "close":
			c.rect(from-4, since[st.end]-6, 8, y-since[st.end]+6, warm, "none")
			since[st.end] = 0
		}
	}
	return c, nil
}
