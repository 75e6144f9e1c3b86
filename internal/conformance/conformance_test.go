package conformance

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/fstest"
)

// The root of the project, relative to this directory.
const top = "../.."

// TestProject runs all checks on the project.
func TestProject(t *testing.T) {
	c, err := Ours()
	if err != nil {
		t.Fatal(err)
	}
	s, err := Scan(os.DirFS(top), c)
	if err != nil {
		t.Fatal(err)
	}
	doc, err := os.ReadFile(filepath.Join(top, DocumentPath))
	if err != nil {
		t.Fatal(err)
	}
	for _, check := range Checks {
		t.Run(check.Name, func(t *testing.T) {
			for _, text := range check.Find(c, s, string(doc)) {
				t.Error(text)
			}
		})
	}
}

// TestTitles: each rule is in one table of the document, and counted once.
func TestTitles(t *testing.T) {
	c, err := Ours()
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range c.Rules {
		n := 0
		for _, title := range titles {
			if slices.Contains(title.documents, r.Document) {
				n++
			}
		}
		if n != 1 {
			t.Errorf("%s is in %d tables", r.ID, n)
		}
		if !slices.Contains(levels, r.Level) {
			t.Errorf("%s has the level %q", r.ID, r.Level)
		}
	}
}

// Rules of a document that does not exist, so that our own scanner ignores them.
const (
	columns = "id\tdocument\tsection\tlevel\trole\trequirement\n"
	must    = "T9-1-1\tRFC5666\t1\tMUST\tboth\tIt is so.\n"
	mustNot = "T9-1-2\tRFC5666\t1\tMUST NOT\tboth\tIt is not so.\n"
	fact    = "T9-2.1-3a\tRFC5666\t2.1\tFACT\tboth\tIt was so.\n"
	reasons = "id\tkind\treason\n"
	nobody  = "at most 0\n"
)

// test returns a test file with one test.
func test(body string) map[string]string {
	return map[string]string{"a/a_test.go": "package a\n\nfunc TestA(t *testing.T) {\n" + body + "\n}\n"}
}

// read parses a catalogue and scans files.
func read(t *testing.T, rules, reasons, open string, files map[string]string) (*Catalogue, *Sources) {
	t.Helper()
	c, err := Parse(rules, reasons, open)
	if err != nil {
		t.Fatal(err)
	}
	fsys := make(fstest.MapFS)
	for name, text := range files {
		fsys[name] = &fstest.MapFile{Data: []byte(text)}
	}
	s, err := Scan(fsys, c)
	if err != nil {
		t.Fatal(err)
	}
	return c, s
}

// TestChecksCanFail makes each check fail for a small project, and pass for another.
func TestChecksCanFail(t *testing.T) {
	const adapter = "\tadapter\tEvery adapter is held to it.\n"
	one := columns + must
	tests := []struct {
		name                 string
		check                string
		rules, reasons, open string
		files                map[string]string
		want                 string // a part of the only finding; "" when there must be none
	}{
		{"a test", "accounted", one, reasons, nobody, test(`t.Run("T9-1-1 is so", f)`), ""},
		{"a reason", "accounted", one, reasons + "T9-1-1" + adapter, nobody, nil, ""},
		{"on the list", "accounted", one, reasons, "at most 1\nT9-1-1\tnot built yet\n", nil, ""},
		{"nothing", "accounted", one, reasons, nobody, nil, "T9-1-1 (MUST) has neither"},
		{"nothing for a prohibition", "accounted", columns + mustNot, reasons, nobody, nil, "T9-1-2 (MUST NOT) has neither"},
		{"nothing for a fact", "accounted", columns + fact, reasons, nobody, nil, "T9-2.1-3a (FACT) has neither"},
		{"a test of another rule", "accounted", one + mustNot, reasons, nobody, test(`t.Run("T9-1-1 is so", f)`), "T9-1-2"},
		{"a longer id", "accounted", one, reasons, nobody, test(`t.Run("T9-1-11 is so", f)`), "T9-1-1 "},
		{"a skipped test", "accounted", one, reasons, nobody, test(`t.Skip("another day"); t.Run("T9-1-1 is so", f)`), "neither"},

		{"a rule that there is", "known", one, reasons, nobody, test(`t.Run("T9-1-1 is so", f)`), ""},
		{"a test of no rule", "known", one, reasons, nobody, test(`t.Run("T9-1-7 is so", f)`), "a/a_test.go: there is no rule T9-1-7"},
		{"a skipped test of no rule", "known", one, reasons, nobody, test(`t.Skip("T9-1-7 is not so")`), "no rule T9-1-7"},
		{"a reason for no rule", "known", one, reasons + "T9-1-7" + adapter, nobody, nil, "reasons.tsv: there is no rule T9-1-7"},
		{"no rule on the list", "known", one, reasons, "at most 1\nT9-1-7\tnot built yet\n", nil, "open.txt: there is no rule T9-1-7"},

		{"a good reason", "reasons", one, reasons + "T9-1-1" + adapter, nobody, nil, ""},
		{"a good reason for a fact", "reasons", columns + fact, reasons + "T9-2.1-3a\tstatement\tIt asks nothing of programs.\n", nobody, nil, ""},
		{"a kind that there is not", "reasons", one, reasons + "T9-1-1\tweather\tIt rained the whole day.\n", nobody, nil, `"weather" is no kind`},
		{"a kind for facts alone", "reasons", one, reasons + "T9-1-1\tstatement\tIt asks nothing of programs.\n", nobody, nil, "T9-1-1 is a MUST"},
		{"few words", "reasons", one, reasons + "T9-1-1\tadapter\tBecause.\n", nobody, nil, `"Because." is no reason`},
		{"a reason for a rule with a test", "reasons", one, reasons + "T9-1-1" + adapter, nobody, test(`t.Error("T9-1-1")`), "has a reason and a test, a.TestA"},

		{"as many as there were", "open", one, reasons, "at most 1\nT9-1-1\tnot built yet\n", nil, ""},
		{"more than there were", "open", one + mustNot, reasons, "at most 1\nT9-1-1\tnot built yet\nT9-1-2\tnot built yet\n", nil, "may only shrink"},
		{"fewer than there were", "open", one + mustNot, reasons, "at most 2\nT9-1-2\tnot built yet\n", nil, "limit is still 2"},
		{"an open rule with a test", "open", one, reasons, "at most 1\nT9-1-1\tnot built yet\n", test(`t.Run("T9-1-1 is so", f)`), "T9-1-1 is not open any more, a.TestA"},
		{"an open rule with a test of a part of it", "open", one, reasons, "at most 1\nT9-1-1\tnot built yet\ta.TestA\n", test(`t.Run("T9-1-1 is so", f)`), ""},
		{"and one of the whole", "open", one, reasons, "at most 1\nT9-1-1\tnot built yet\ta.TestB\n",
			map[string]string{"a/a_test.go": "package a\n\n// T9-1-1\nfunc TestA(t *testing.T) { f() }\n\n// T9-1-1\nfunc TestB(t *testing.T) { f() }\n"}, "T9-1-1 is not open any more"},
		{"a part that is none", "open", one, reasons, "at most 1\nT9-1-1\tnot built yet\ta.TestA\n", nil, "a.TestA does not name T9-1-1"},
		{"an open rule without a word", "open", one, reasons, "at most 1\nT9-1-1\n", nil, "nothing says why T9-1-1"},
		{"an open rule with a reason", "open", one, reasons + "T9-1-1" + adapter, "at most 1\nT9-1-1\tnot built yet\n", nil, "T9-1-1 is open and has a reason"},

		{"a document of before", "document", one, reasons, "at most 1\nT9-1-1\tnot built yet\n", nil, "run scripts/conformance"},
	}
	broken := make(map[string]bool)
	for _, tt := range tests {
		if tt.want != "" {
			broken[tt.check] = true
		}
		t.Run(tt.check+"/"+tt.name, func(t *testing.T) {
			c, s := read(t, tt.rules, tt.reasons, tt.open, tt.files)
			i := slices.IndexFunc(Checks, func(c Check) bool { return c.Name == tt.check })
			got := Checks[i].Find(c, s, "of before")
			if len(got) != min(len(tt.want), 1) || tt.want != "" && !strings.Contains(got[0], tt.want) {
				t.Errorf("findings %q, want %q", got, tt.want)
			}
		})
	}
	for _, check := range Checks {
		if !broken[check.Name] {
			t.Errorf("nothing breaks %q", check.Name)
		}
	}
}

// TestDocument: the document is current until a test is added.
func TestDocument(t *testing.T) {
	rules := columns + must + mustNot + fact
	why := reasons + "T9-1-2\tadapter\tEvery adapter is held to it.\n"
	files := test(`t.Run("T9-1-1 is so", f)`)
	files["b/b.go"] = "package b\n\n// f does as RFC 5666 section 2.1 says.\nfunc f() {}\n"
	c, s := read(t, rules, why, "at most 1\nT9-2.1-3a\tnot built yet\n", files)
	doc := Document(c, s)
	if got := DocumentCurrent(c, s, doc); got != nil {
		t.Errorf("just written: %v", got)
	}
	for _, want := range []string{
		"| RFC 5666 | MUST | 1 | 1 | 0 | 0 |\n| RFC 5666 | MUST NOT | 1 | 0 | 1 | 0 |\n| RFC 5666 | FACT | 1 | 0 | 0 | 1 |\n",
		"| **all** | **all** | 3 | 1 | 1 | 1 |\n",
		"| T9-1-1 | 1 | MUST | It is so. | `a` | `a.TestA` |\n",
		"| T9-1-2 | 1 | MUST NOT | It is not so. |  | adapter: Every adapter is held to it. |\n",
		"| T9-2.1-3a | 2.1 | FACT | It was so. | `b/b.go` | open: not built yet |\n",
	} {
		if !strings.Contains(doc, want) {
			t.Errorf("the document lacks\n%s", want)
		}
	}
	files["a/b_test.go"] = "package a\n\n// T9-1-1: it is.\nfunc TestB(t *testing.T) { f() }\n"
	if c, s := read(t, rules, why, "at most 1\nT9-2.1-3a\tnot built yet\n", files); DocumentCurrent(c, s, doc) == nil {
		t.Error("a new test makes no difference")
	}
}

// TestSettle: rules with a test are removed from the list, and the limit is lowered.
func TestSettle(t *testing.T) {
	c, s := read(t, columns+must+mustNot, reasons, "at most 2\nT9-1-1\tnot built yet\nT9-1-2\tnot built yet\ta.TestA\n",
		test(`t.Run("T9-1-1 T9-1-2 are so", f)`))
	if got := c.Settle(s); !slices.Equal(got, []string{"T9-1-1"}) {
		t.Errorf("settled %v", got)
	}
	if got, want := c.OpenText(), "at most 1\nT9-1-2\tnot built yet\ta.TestA\n"; got != want {
		t.Errorf("the list is %q, want %q", got, want)
	}
}

// TestScan: tests that name a rule, and tests that do not.
func TestScan(t *testing.T) {
	const head = "package a\n\n"
	for _, tt := range []struct {
		name string
		file string
		src  string
		want string // tests that name T9-1-1
	}{
		{"a subtest", "a/a_test.go", head + `func TestA(t *testing.T) { t.Run("T9-1-1 so", func(t *testing.T) { f() }) }`, "a.TestA"},
		{"a comment in front", "a/a_test.go", head + "// T9-1-1: so.\nfunc TestA(t *testing.T) { f() }", "a.TestA"},
		{"a comment within", "a/a_test.go", head + "func TestA(t *testing.T) {\n\tf() // T9-1-1\n}", "a.TestA"},
		{"a failure", "a/a_test.go", head + `func TestA(t *testing.T) { if f() { t.Errorf("T9-1-1") } }`, "a.TestA"},
		{"a fuzz target", "a/a_test.go", head + "// T9-1-1\nfunc FuzzA(f *testing.F) { g() }", "a.FuzzA"},
		{"a function that the test uses", "a/a_test.go", head + "func TestA(t *testing.T) { b(t) }\n\nfunc b(t *testing.T) { c() }\n\nfunc c() { f(\"T9-1-1\") }", "a.TestA"},
		{"a table with subtests", "a/a_test.go", head + "var all = []string{\"T9-1-1\"}\n\nfunc TestA(t *testing.T) { for _, s := range all { t.Run(s, f) } }", "a.TestA"},
		{"a table without", "a/a_test.go", head + "var all = []string{\"T9-1-1\"}\n\nfunc TestA(t *testing.T) { for _, s := range all { f(s) } }", ""},
		{"for devices", "a/a_rdma_test.go", head + `func TestRDMA(t *testing.T) { t.Run("T9-1-1 so", f) }`, "a.TestRDMA†"},
		{"a condition on skipping", "a/a_test.go", head + "// T9-1-1\nfunc TestA(t *testing.T) { if f() { t.Skip(\"no device\") } }", "a.TestA"},

		{"skipped", "a/a_test.go", head + "// T9-1-1\nfunc TestA(t *testing.T) { t.Skip(\"later\"); f() }", ""},
		{"skipped, but later", "a/a_test.go", head + "// T9-1-1\nfunc TestA(t *testing.T) { f(); t.SkipNow() }", ""},
		{"a subtest that is skipped", "a/a_test.go", head + `func TestA(t *testing.T) { f(); t.Run("T9-1-1 so", func(t *testing.T) { t.Skipf("%d", 1) }) }`, ""},
		{"a comment in one", "a/a_test.go", head + "func TestA(t *testing.T) {\n\tf()\n\tt.Run(\"so\", func(t *testing.T) {\n\t\tt.Skip(\"later\")\n\t\t// T9-1-1\n\t})\n}", ""},
		{"subtests of a table that are skipped", "a/a_test.go", head + `func TestA(t *testing.T) { for _, s := range []string{"T9-1-1"} { t.Run(s, func(t *testing.T) { t.Skip("later") }) } }`, ""},
		{"a skipped function that the test uses", "a/a_test.go", head + "func TestA(t *testing.T) { b(t) }\n\nfunc b(t *testing.T) { t.Skip(\"T9-1-1\") }", ""},
		{"a test without a body", "a/a_test.go", head + "// T9-1-1\nfunc TestA(t *testing.T) {}", ""},
		{"a function that no test uses", "a/a_test.go", head + "func TestA(t *testing.T) { f() }\n\nfunc b() { f(\"T9-1-1\") }", ""},
		{"a benchmark", "a/a_test.go", head + "// T9-1-1\nfunc BenchmarkA(b *testing.B) { f() }", ""},
		{"a file that is not built", "a/a_test.go", "//go:build ignore\n\n" + head + "// T9-1-1\nfunc TestA(t *testing.T) { f() }", ""},
		{"a file for another system", "a/a_windows_test.go", head + "// T9-1-1\nfunc TestA(t *testing.T) { f() }", ""},
		{"test data", "a/testdata/a_test.go", head + "// T9-1-1\nfunc TestA(t *testing.T) { f() }", ""},
		{"a file that is no test", "a/a.go", head + "// T9-1-1\nfunc TestA(t *testing.T) { f() }", ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			_, s := read(t, columns+must, reasons, nobody, map[string]string{tt.file: tt.src + "\n"})
			if got := strings.Join(s.Tests["T9-1-1"], " "); got != tt.want {
				t.Errorf("tests %q, want %q", got, tt.want)
			}
		})
	}
}

// TestPlaces: references to rules in comments.
func TestPlaces(t *testing.T) {
	_, s := read(t, columns+must, reasons, nobody, map[string]string{
		"a/a.go": "package a\n\n// f does what RFC 5666\n// section 3.6 asks for (RFC 8797 sections 4.1, 4.2 and 5).\nfunc f() {}\n",
		"a/b.go": "package a\n\n// g is for T9-1-1.\nfunc g() {}\n",
		// Test suites are not places.
		"a/atest/c.go": "package atest\n\n// h holds others to RFC 5666 section 3.6.\nfunc h() {}\n",
	})
	for key, want := range map[string]string{
		"RFC 5666 3.6": "a/a.go", "RFC 8797 4.1": "a/a.go", "RFC 8797 4.2": "a/a.go", "RFC 8797 5": "a/a.go", "T9-1-1": "a/b.go",
	} {
		if got := strings.Join(s.Places[key], " "); got != want {
			t.Errorf("%s: %q, want %q", key, got, want)
		}
	}
	if len(s.Places) != 5 {
		t.Errorf("places are %v", s.Places)
	}
}

// TestParse: malformed files.
func TestParse(t *testing.T) {
	for name, in := range map[string][3]string{
		"a column too few":     {columns + "T9-1-1\tRFC5666\t1\tMUST\tboth\n", reasons, nobody},
		"one rule twice":       {columns + must + must, reasons, nobody},
		"no id":                {columns + "T9\tRFC5666\t1\tMUST\tboth\tIt is so.\n", reasons, nobody},
		"half a reason":        {columns + must, reasons + "T9-1-1\tadapter\n", nobody},
		"a list without limit": {columns + must, reasons, "T9-1-1\n"},
	} {
		if _, err := Parse(in[0], in[1], in[2]); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}
