package conformance

import (
	"fmt"
	"path"
	"slices"
	"strings"
)

// DocumentPath is the path of the document, relative to the module's root.
const DocumentPath = "docs/reports/conformance.md"

// OpenPath is the path of the list of open rules.
const OpenPath = "internal/conformance/open.txt"

// titles lists the source documents of the rules. Documents that differ only in a few sentences share a table.
// Immutable.
var titles = []struct {
	short     string
	title     string
	documents []string
	rfc       string // as cited in comments
}{
	{"RFC 5666", "RFC 5666, RPC-over-RDMA version 1, and its connection configuration protocol", []string{"RFC5666"}, "5666"},
	{"RFC 8797", "RFC 8797, private data at connection set-up", []string{"RFC8797"}, "8797"},
	{"bidirection", "Both directions on one connection (draft-ietf-nfsv4-rpcrdma-bidirection-05 and -06)", []string{"BIDI-05+06", "BIDI-05", "BIDI-06"}, ""},
	{"version 2", "RPC-over-RDMA version 2 (draft-cel-nfsv4-rpcrdma-version-two-00)", []string{"V2-00"}, ""},
	{"RFC 5531", "RFC 5531, ONC RPC, as far as the transport depends on it", []string{"CTX-RFC5531"}, "5531"},
	{"RFC 4506", "RFC 4506, XDR, as far as the transport depends on it", []string{"CTX-RFC4506"}, "4506"},
	{"RFC 1833", "RFC 1833, rpcbind, as far as the transport depends on it", []string{"CTX-RFC1833"}, "1833"},
	{"RFC 8166", "RFC 8166, RPC-over-RDMA version 1 as it was revised, where it differs", []string{"CTX-RFC8166"}, "8166"},
}

// levels lists the levels in the order of the summary. Immutable.
var levels = []string{"MUST", "MUST NOT", "SHOULD", "SHOULD NOT", "MAY", "FACT"}

const introduction = `# Conformance

Written by ` + "`scripts/conformance`" + ` from the rules in [internal/conformance](../../internal/conformance) and from the sources.
` + "`go test ./internal/conformance`" + ` fails when it is not current, when a rule has neither a test nor a reason, and when a rule
that is listed as open has a test after all.

A rule is one sentence of ours about one demand of a specification. FACT are the demands that its authors put without one of
the words of RFC 2119. A rule is *tested* when a test names its id: in the name of a subtest, in a comment or in what it says when it
fails. ` + "`go test -run 'Test.*/V1-3.3-4' ./transport`" + ` runs the subtests of one. Tests that are always skipped, and files that are not
built, do not count; that the tests compile and pass is what ` + "`make lint` and `make test`" + ` show. Tests marked † are for RDMA
devices, and ` + "`make test-rdma`" + ` runs them.

*With reason* are rules that no test here could break, with the reason in place of the tests. *Open* are the others: what they
ask for is not built yet, or not whole, and a test of a part does not change that. The list of them may only shrink.

*Where* names the files that cite the rule, or its section of the RFC, in a comment, or else the packages of the tests.
`

// Document returns the document.
func Document(c *Catalogue, s *Sources) string {
	var b strings.Builder
	b.WriteString(introduction)

	b.WriteString("\n## Summary\n\n| document | level | rules | tested | with reason | open |\n|---|---|--:|--:|--:|--:|\n")
	var total counts
	for _, t := range titles {
		for _, level := range levels {
			n := count(c, s, func(r *Rule) bool { return r.Level == level && slices.Contains(t.documents, r.Document) })
			if n.rules > 0 {
				fmt.Fprintf(&b, "| %s | %s | %s |\n", t.short, level, n)
			}
		}
	}
	for _, level := range levels {
		n := count(c, s, func(r *Rule) bool { return r.Level == level })
		fmt.Fprintf(&b, "| **all** | %s | %s |\n", level, n)
		total = total.plus(n)
	}
	fmt.Fprintf(&b, "| **all** | **all** | %s |\n", total)

	for _, t := range titles {
		fmt.Fprintf(&b, "\n## %s\n\n| id | § | level | requirement | where | tests |\n|---|---|---|---|---|---|\n", t.title)
		for i := range c.Rules {
			r := &c.Rules[i]
			if !slices.Contains(t.documents, r.Document) {
				continue
			}
			tests := ""
			switch reason, ok := c.Reasons[r.ID]; {
			case ok:
				tests = fmt.Sprintf("%s: %s", reason.Kind, reason.Text)
			case len(c.tests(s, r.ID)) > 0:
				tests = names(s.Tests[r.ID])
			default:
				tests = "open"
				if o := c.open(r.ID); o != nil {
					tests += ": " + o.Why
				}
				if part := s.Tests[r.ID]; len(part) > 0 {
					tests += "; about a part of it is " + names(part)
				}
			}
			fmt.Fprintf(&b, "| %s | %s | %s | %s | %s | %s |\n", r.ID, r.Section, r.Level, cell(r.Text), where(r, s, t.rfc), cell(tests))
		}
	}
	return b.String()
}

// names formats a list of tests.
func names(tests []string) string {
	list := "`" + strings.Join(tests, "`, `") + "`"
	return strings.ReplaceAll(list, deviceMark+"`", "`"+deviceMark)
}

// where formats the places of a rule.
func where(r *Rule, s *Sources, rfc string) string {
	places := slices.Clone(s.Places[r.ID])
	if rfc != "" {
		for _, section := range number.FindAllString(r.Section, -1) {
			places = append(places, s.Places["RFC "+rfc+" "+section]...)
		}
	}
	if len(places) == 0 {
		for _, test := range s.Tests[r.ID] {
			places = append(places, strings.TrimSuffix(test, path.Ext(test)))
		}
	}
	slices.Sort(places)
	places = slices.Compact(places)
	if len(places) == 0 {
		return ""
	}
	return "`" + strings.Join(places, "`, `") + "`"
}

// cell escapes text for a table.
func cell(text string) string {
	return strings.NewReplacer("|", `\|`, "<", "&lt;", "*", `\*`).Replace(text)
}

// counts is a row of the summary.
type counts struct{ rules, tested, reason, open int }

func (n counts) String() string {
	return fmt.Sprintf("%d | %d | %d | %d", n.rules, n.tested, n.reason, n.open)
}

func (n counts) plus(m counts) counts {
	return counts{n.rules + m.rules, n.tested + m.tested, n.reason + m.reason, n.open + m.open}
}

func count(c *Catalogue, s *Sources, of func(*Rule) bool) counts {
	var n counts
	for i := range c.Rules {
		r := &c.Rules[i]
		if !of(r) {
			continue
		}
		n.rules++
		_, excused := c.Reasons[r.ID]
		switch {
		case len(c.tests(s, r.ID)) > 0:
			n.tested++
		case excused:
			n.reason++
		default:
			n.open++
		}
	}
	return n
}
