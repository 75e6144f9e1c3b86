package conformance

import (
	"fmt"
	"maps"
	"slices"
)

// A Check is a check of the catalogue, the tests, and the document about them.
type Check struct {
	Name string
	Find func(c *Catalogue, s *Sources, doc string) []string
}

// Checks lists all checks. Immutable.
var Checks = []Check{
	{"accounted", Accounted},
	{"known", KnownIDs},
	{"reasons", ReasonsHold},
	{"open", OpenShrinks},
	{"document", DocumentCurrent},
}

// Accounted requires a test or a reason for every rule, unless it is on the list of open rules.
func Accounted(c *Catalogue, s *Sources, _ string) []string {
	var list []string
	for _, r := range c.Rules {
		if _, ok := c.Reasons[r.ID]; !ok && len(c.tests(s, r.ID)) == 0 && c.open(r.ID) == nil {
			list = append(list, fmt.Sprintf("%s (%s) has neither a test nor a reason", r.ID, r.Level))
		}
	}
	return list
}

// KnownIDs requires every id in tests, reasons and the list of open rules to be that of a rule.
func KnownIDs(c *Catalogue, s *Sources, _ string) []string {
	rules := make(map[string]bool)
	for _, r := range c.Rules {
		rules[r.ID] = true
	}
	var list []string
	for _, id := range slices.Sorted(maps.Keys(s.Named)) {
		if !rules[id] {
			list = append(list, fmt.Sprintf("%s: there is no rule %s", s.Named[id], id))
		}
	}
	for _, id := range slices.Sorted(maps.Keys(c.Reasons)) {
		if !rules[id] {
			list = append(list, fmt.Sprintf("reasons.tsv: there is no rule %s", id))
		}
	}
	for _, o := range c.Open {
		if !rules[o.ID] {
			list = append(list, fmt.Sprintf("open.txt: there is no rule %s", o.ID))
		}
	}
	return list
}

// ReasonsHold requires every reason to be of a kind that fits the rule, and the rule to have no test.
func ReasonsHold(c *Catalogue, s *Sources, _ string) []string {
	var list []string
	for _, r := range c.Rules {
		reason, ok := c.Reasons[r.ID]
		if !ok {
			continue
		}
		binding, known := kinds[reason.Kind]
		switch {
		case !known:
			list = append(list, fmt.Sprintf("%s: %q is no kind of reason", r.ID, reason.Kind))
		case r.Must() && !binding:
			list = append(list, fmt.Sprintf("%s is a %s: that it is a %s is no reason", r.ID, r.Level, reason.Kind))
		}
		if len(reason.Text) < 20 {
			list = append(list, fmt.Sprintf("%s: %q is no reason", r.ID, reason.Text))
		}
		if tests := s.Tests[r.ID]; len(tests) > 0 {
			list = append(list, fmt.Sprintf("%s has a reason and a test, %s: the reason can go", r.ID, tests[0]))
		}
	}
	return list
}

// OpenShrinks requires that no rule on the list of open rules has a test or a reason, and that the list does not grow.
func OpenShrinks(c *Catalogue, s *Sources, _ string) []string {
	var list []string
	for _, o := range c.Open {
		if tests := c.tests(s, o.ID); len(tests) > 0 {
			list = append(list, fmt.Sprintf("%s is not open any more, %s is about it: run scripts/conformance", o.ID, tests[0]))
		}
		if _, ok := c.Reasons[o.ID]; ok {
			list = append(list, fmt.Sprintf("%s is open and has a reason", o.ID))
		}
		for _, part := range o.Part {
			if !slices.Contains(s.Tests[o.ID], part) {
				list = append(list, fmt.Sprintf("open.txt: %s does not name %s", part, o.ID))
			}
		}
		if o.Why == "" {
			list = append(list, fmt.Sprintf("open.txt: nothing says why %s is open", o.ID))
		}
	}
	if n := len(c.Open); n > c.MaxOpen {
		list = append(list, fmt.Sprintf("%d rules are open, there were %d: the list may only shrink", n, c.MaxOpen))
	} else if n < c.MaxOpen {
		list = append(list, fmt.Sprintf("%d rules are open, and the limit is still %d: run scripts/conformance", n, c.MaxOpen))
	}
	return list
}

// DocumentCurrent requires the document to be up to date.
func DocumentCurrent(c *Catalogue, s *Sources, doc string) []string {
	if doc != Document(c, s) {
		return []string{DocumentPath + " is not what the sources say: run scripts/conformance"}
	}
	return nil
}
