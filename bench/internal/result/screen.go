package result

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"
)

// The screen is as large as a small terminal.
const (
	screenLines   = 40
	screenColumns = 80
	screenValue   = 16 // columns of a value
)

// Screen summarizes results for a reader who does not know them: what was measured, where this module is better and
// worse than its alternatives, and which floors it misses. It has fewer than 40 lines of at most 80 columns.
func Screen(files []*File) string {
	s := screen{}
	s.head(files)
	pays, costs := alternatives(files)
	s.list("Where it pays, compared with other ways to do the same:", pays, 8)
	s.list("Where it does not:", costs, 7)
	s.list("Below their floors, which are to be kept:", below(files), 7)
	s.list("Not measured:", unmeasured(files), 4)
	return strings.Join(s.lines, "\n") + "\n"
}

type screen struct{ lines []string }

func (s *screen) line(format string, args ...any) {
	s.lines = append(s.lines, cut(fmt.Sprintf(format, args...), screenColumns))
}

// cut shortens a line to a number of columns.
func cut(line string, columns int) string {
	if utf8.RuneCountInString(line) <= columns {
		return strings.TrimRight(line, " ")
	}
	return string([]rune(line)[:columns-3]) + "..."
}

// head prints what was measured, on which machine, and how it compares with the goals.
func (s *screen) head(files []*File) {
	for _, f := range files {
		p := &f.Provenance
		s.line("Measured: %s", f.Title)
		s.line("  %s; %s", p.Machine, p.Kernel)
		version, _, _ := strings.Cut(p.Go, " ")
		s.line("  commit %s, %s, %s", p.Commit, p.Date.Format("2006-01-02"), version)
		rows, disturbed := f.rows()
		s.line("  %d comparisons, each of %d rounds in turn with its alternative; %d disturbed", rows, p.Rounds, disturbed)
		if p.Busy {
			s.line("  The machine was busy with other things: no timing counts. Run it again.")
		} else if p.Rounds < Enough {
			s.line("  Fewer than %d rounds: no timing counts.", Enough)
		}
	}
	var reached, above, missed, disturbed, none int
	for _, g := range Goals {
		switch v, ok := verdictOf(files, g.Number); {
		case !ok:
			none++
		case v == Below:
			missed++
		case v == Disturbed:
			disturbed++
		case v == Above:
			above++
		default:
			reached++
		}
	}
	s.line("Goals: %d of %d reached; %d above their floor, %d below it", reached, len(Goals)-none, above, missed)
	s.line("  (%d disturbed; %d need what is not here)", disturbed, none)
}

// rows returns the number of comparisons, and of disturbed ones.
func (f *File) rows() (n, disturbed int) {
	for i := range f.Pairs {
		n++
		if f.Pairs[i].Disturbed() {
			disturbed++
		}
	}
	return n, disturbed
}

// verdictOf returns the worst verdict of a goal's rows. Disturbed ones count only if there are no
// others.
func verdictOf(files []*File, goal int) (worst Verdict, measured bool) {
	order := []Verdict{Disturbed, None, Reached, Above, Below}
	at := -1
	add := func(number int, v Verdict) {
		if number == goal {
			at = max(at, slices.Index(order, v))
		}
	}
	for _, f := range files {
		for i := range f.Pairs {
			add(f.Pairs[i].Goal, f.Pairs[i].Verdict())
		}
		for i := range f.Values {
			add(f.Values[i].Goal, f.Values[i].Verdict())
		}
	}
	if at < 0 {
		return None, false
	}
	return order[at], true
}

// list writes a heading and up to most entries. Without entries it writes nothing.
func (s *screen) list(heading string, entries []string, most int) {
	if len(entries) == 0 {
		return
	}
	s.line("%s", heading)
	if len(entries) > most {
		entries = append(slices.Clone(entries[:most-1]), fmt.Sprintf("and %d more", len(entries)-most+1))
	}
	for _, e := range entries {
		s.line("  %s", e)
	}
}

// Apart is the suffix of the ID of a pair that is repeated with servers in separate processes.
const Apart = " p2"

// Factor returns how many times as fast as B A is: by time per call, or by rate.
func (p *Pair) Factor() float64 {
	if p.Kind == Time {
		return 1 / float64(p.Ratio)
	}
	return float64(p.Ratio)
}

// Alternative reports whether the pair compares this module with something else, rather than two variants of its own,
// or two others.
func (p *Pair) Alternative() bool {
	ours := func(workload string) bool { return strings.Contains(workload, "prov=") }
	return p.Of == "" && p.B != "" && ours(p.A) && !ours(p.B)
}

// alternatives lists the undisturbed comparisons in which this module is faster, best first, and
// those in which it is slower, worst first.
func alternatives(files []*File) (pays, costs []string) {
	var list []*Pair
	for _, f := range files {
		for i := range f.Pairs {
			p := &f.Pairs[i]
			if strings.HasSuffix(p.ID, Apart) {
				continue // a similar one is already listed
			}
			if p.Alternative() && !p.Disturbed() && p.Factor() > 0 {
				list = append(list, p)
			}
		}
	}
	slices.SortStableFunc(list, func(p, q *Pair) int { return cmp.Compare(q.Factor(), p.Factor()) })
	for _, p := range list {
		switch v := p.Factor(); {
		case v >= 1.05:
			pays = append(pays, entry(fmt.Sprintf("%.1f x faster", v), p.ID, p.What))
		case v >= 1:
			pays = append(pays, entry("as fast", p.ID, p.What))
		default:
			costs = append(costs, entry(fmt.Sprintf("%.1f x slower", 1/v), p.ID, p.What))
		}
	}
	slices.Reverse(costs)
	return pays, costs
}

// entry formats a line of a list.
func entry(value, id, what string) string {
	return cut(fmt.Sprintf("%-*s %s (%s)", screenValue, value, cut(what, screenColumns-2-screenValue-1-len(id)-3), id), screenColumns-2)
}

// below lists the results that miss their floors.
func below(files []*File) (list []string) {
	for _, f := range files {
		for i := range f.Pairs {
			if p := &f.Pairs[i]; p.Verdict() == Below {
				list = append(list, entry(fmt.Sprintf("%s, floor %s", number(p.Ratio), plain(p.Floor)), p.ID, p.What))
			}
		}
		for i := range f.Values {
			if v := &f.Values[i]; v.Verdict() == Below {
				list = append(list, entry(fmt.Sprintf("%s, floor %s", plain(v.Value), plain(v.Floor)), v.ID, v.What))
			}
		}
	}
	return list
}

// unmeasured lists the rows that failed.
func unmeasured(files []*File) (list []string) {
	for _, f := range files {
		for _, r := range f.Failed {
			list = append(list, entry("failed", r.ID, r.What+": "+r.Why))
		}
	}
	return list
}
