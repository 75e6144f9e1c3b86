// Package conformance holds every rule of the specifications that the project
// follows, and finds out which of them a test names.
//
// The catalogue is in three files: rules.tsv are the rules, each in one sentence,
// reasons.tsv says why a rule can have no test here, and open.txt lists those that
// have neither yet, and may only shrink. The package's tests hold the three against
// the sources of the project, and docs/conformance.md, which scripts/conformance
// writes, against them all. That tests compile and pass is for go vet and make test
// to say: what is counted here are tests that would be run.
package conformance

import (
	_ "embed"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// A Rule is a row of the catalogue.
type Rule struct {
	ID       string // as tests name it
	Document string
	Section  string // or several, with commas
	Level    string // MUST, MUST NOT, SHOULD, SHOULD NOT, MAY; FACT has no such word
	Role     string // whom it binds
	Text     string
}

// Must reports whether there is no choice about the rule.
func (r *Rule) Must() bool { return r.Level == "MUST" || r.Level == "MUST NOT" }

// A Reason says why a rule has no test.
type Reason struct {
	Kind string
	Text string
}

// kinds are the kinds of reasons that there are, and whether a rule about which
// there is no choice may have them. Immutable.
var kinds = map[string]bool{
	"upper layer": true,  // the programs above have to keep it
	"adapter":     true,  // the adapter below keeps it, and the transport cannot see it
	"statement":   false, // nothing that a program does could break it
}

// An Open is a rule that has neither a test nor a reason yet.
type Open struct {
	ID   string
	Why  string
	Part []string // tests that are about a part of it, such as its encoding alone
}

// A Catalogue is the rules and what is said of those without a test.
type Catalogue struct {
	Rules   []Rule
	Reasons map[string]Reason
	Open    []Open // neither tested nor excused yet
	MaxOpen int    // so many of them there may be

	ids *regexp.Regexp
}

//go:embed rules.tsv
var rulesTSV string

//go:embed reasons.tsv
var reasonsTSV string

//go:embed open.txt
var openText string

// Ours is the catalogue of the project.
func Ours() (*Catalogue, error) { return Parse(rulesTSV, reasonsTSV, openText) }

// Parse reads the three files of a catalogue.
func Parse(rules, reasons, open string) (*Catalogue, error) {
	c := &Catalogue{Reasons: make(map[string]Reason)}
	seen := make(map[string]bool)
	var prefixes []string
	for i, row := range rows(rules) {
		if len(row) != 6 {
			return nil, fmt.Errorf("rules, line %d: %d columns, want 6", i+2, len(row))
		}
		r := Rule{row[0], row[1], row[2], row[3], row[4], row[5]}
		if seen[r.ID] {
			return nil, fmt.Errorf("rules, line %d: there are two rules %s", i+2, r.ID)
		}
		seen[r.ID] = true
		prefix, _, ok := strings.Cut(r.ID, "-")
		if !ok {
			return nil, fmt.Errorf("rules, line %d: %q is no id", i+2, r.ID)
		}
		if !slices.Contains(prefixes, regexp.QuoteMeta(prefix)) {
			prefixes = append(prefixes, regexp.QuoteMeta(prefix))
		}
		c.Rules = append(c.Rules, r)
	}
	for i, row := range rows(reasons) {
		if len(row) != 3 {
			return nil, fmt.Errorf("reasons, line %d: %d columns, want 3", i+2, len(row))
		}
		c.Reasons[row[0]] = Reason{row[1], row[2]}
	}
	head, list, _ := strings.Cut(open, "\n")
	var err error
	if c.MaxOpen, err = strconv.Atoi(strings.TrimPrefix(head, openHead)); err != nil {
		return nil, fmt.Errorf("open rules: the first line is %q, want %q and a number", head, openHead)
	}
	for _, line := range strings.Split(strings.TrimSpace(list), "\n") {
		id, why, _ := strings.Cut(line, "\t")
		why, part, _ := strings.Cut(why, "\t")
		if id != "" {
			c.Open = append(c.Open, Open{id, why, strings.Fields(part)})
		}
	}
	c.ids, err = regexp.Compile(`\b(?:` + strings.Join(prefixes, "|") + `)-[0-9][0-9.]*-[0-9]+[a-z]?\b`)
	return c, err
}

// openHead begins the list of open rules.
const openHead = "at most "

// tests returns the tests of a rule, none if they are about a part of it.
func (c *Catalogue) tests(s *Sources, id string) []string {
	list := s.Tests[id]
	if o := c.open(id); o != nil && !slices.ContainsFunc(list, func(t string) bool { return !slices.Contains(o.Part, t) }) {
		return nil
	}
	return list
}

// open returns the entry of a rule on the list of open ones, nil if there is none.
func (c *Catalogue) open(id string) *Open {
	for i := range c.Open {
		if c.Open[i].ID == id {
			return &c.Open[i]
		}
	}
	return nil
}

// OpenText is the file of the open rules.
func (c *Catalogue) OpenText() string {
	text := fmt.Sprintf("%s%d\n", openHead, c.MaxOpen)
	for _, o := range c.Open {
		text += strings.TrimRight(o.ID+"\t"+o.Why+"\t"+strings.Join(o.Part, " "), "\t") + "\n"
	}
	return text
}

// Settle takes rules that have a test off the list of open ones, and lowers its
// limit. It returns them. Nothing is ever added.
func (c *Catalogue) Settle(s *Sources) []string {
	var settled []string
	c.Open = slices.DeleteFunc(c.Open, func(o Open) bool {
		if len(c.tests(s, o.ID)) > 0 {
			settled = append(settled, o.ID)
			return true
		}
		return false
	})
	c.MaxOpen = min(c.MaxOpen, len(c.Open))
	return settled
}

// rows splits a table with tabs into fields. The first line has the columns' names.
func rows(table string) [][]string {
	var list [][]string
	for i, line := range strings.Split(strings.TrimSuffix(table, "\n"), "\n") {
		if i > 0 {
			list = append(list, strings.Split(line, "\t"))
		}
	}
	return list
}
