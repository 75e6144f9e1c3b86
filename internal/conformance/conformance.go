// Package conformance has a catalogue of the rules in the specifications that the project implements, and determines
// which of them have tests.
//
// The catalogue consists of three files. rules.tsv lists the rules, each in one sentence; reasons.tsv says why a rule
// cannot have a test here; and open.txt lists the rules that have neither yet, and may only shrink. The package's tests
// check the three files against the sources of the project, and docs/reports/conformance.md, which scripts/conformance
// generates, against all of them. Only tests that would be run count; make test checks whether they pass.
package conformance

import (
	_ "embed"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// A Rule is a row of rules.tsv.
type Rule struct {
	ID       string // used in tests
	Document string
	Section  string // several are separated by commas
	Level    string // MUST, MUST NOT, SHOULD, SHOULD NOT, MAY; FACT: no keyword
	Role     string // which end it binds
	Text     string
}

// Must reports whether the rule is mandatory.
func (r *Rule) Must() bool { return r.Level == "MUST" || r.Level == "MUST NOT" }

// A Reason is the reason why a rule has no test.
type Reason struct {
	Kind string
	Text string
}

// kinds maps the kinds of reasons to whether mandatory rules may have them. Immutable.
var kinds = map[string]bool{
	"upper layer": true,  // only upper layers can comply
	"adapter":     true,  // the adapter complies, invisibly to the transport
	"statement":   false, // no program can violate it
}

// An Open is a rule that has neither a test nor a reason.
type Open struct {
	ID   string
	Why  string
	Part []string // tests for a part of it, such as the encoding
}

// A Catalogue holds the rules, and the reasons and open entries of those without tests.
type Catalogue struct {
	Rules   []Rule
	Reasons map[string]Reason
	Open    []Open // rules with neither test nor reason
	MaxOpen int    // the maximum number of open rules

	ids *regexp.Regexp
}

//go:embed rules.tsv
var rulesTSV string

//go:embed reasons.tsv
var reasonsTSV string

//go:embed open.txt
var openText string

// Ours returns the catalogue of the project.
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

// openHead is the start of the list of open rules.
const openHead = "at most "

// tests returns the tests of a rule, except those for a part of it.
func (c *Catalogue) tests(s *Sources, id string) []string {
	list := s.Tests[id]
	if o := c.open(id); o != nil && !slices.ContainsFunc(list, func(t string) bool { return !slices.Contains(o.Part, t) }) {
		return nil
	}
	return list
}

// open returns the entry of a rule on the list of open rules, or nil.
func (c *Catalogue) open(id string) *Open {
	for i := range c.Open {
		if c.Open[i].ID == id {
			return &c.Open[i]
		}
	}
	return nil
}

// OpenText returns the content of open.txt.
func (c *Catalogue) OpenText() string {
	text := fmt.Sprintf("%s%d\n", openHead, c.MaxOpen)
	for _, o := range c.Open {
		text += strings.TrimRight(o.ID+"\t"+o.Why+"\t"+strings.Join(o.Part, " "), "\t") + "\n"
	}
	return text
}

// Settle removes rules that have a test from the list of open rules, lowers the limit, and returns the removed rules.
// It never adds rules.
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

// rows splits a tab-separated table into fields. The first line has the column names.
func rows(table string) [][]string {
	var list [][]string
	for i, line := range strings.Split(strings.TrimSuffix(table, "\n"), "\n") {
		if i > 0 {
			list = append(list, strings.Split(line, "\t"))
		}
	}
	return list
}
