package layers

import (
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"testing/fstest"
)

// top is the root of the project, relative to this directory.
const top = "../.."

// TestProject applies every rule to the project.
func TestProject(t *testing.T) {
	tree, err := Load(os.DirFS(top))
	if err != nil {
		t.Fatal(err)
	}
	for _, rule := range Rules {
		t.Run(rule.Name, func(t *testing.T) {
			for _, f := range rule.Check(tree) {
				t.Error(f)
			}
		})
	}
}

// A smallTree is a tree that breaks a rule, or does not.
type smallTree struct {
	name  string
	rule  string
	files map[string]string
	want  string // part of the only finding; "" when there must be none
}

// TestRulesCanFail applies each rule to small trees that break it, and to others that do
// not.
func TestRulesCanFail(t *testing.T) {
	broken := make(map[string]bool)
	for _, tt := range slices.Concat(importTrees(), stateTrees(), textTrees(), pageTrees()) {
		if tt.want != "" {
			broken[tt.rule] = true
		}
		t.Run(tt.rule+"/"+tt.name, func(t *testing.T) {
			got := check(t, tt.rule, tt.files)
			switch {
			case tt.want == "" && len(got) == 0:
			case tt.want != "" && len(got) == 1 && strings.Contains(got[0].String(), tt.want):
			default:
				t.Errorf("findings %v, want %q", got, tt.want)
			}
		})
	}
	for _, rule := range Rules {
		if !broken[rule.Name] {
			t.Errorf("no tree breaks rule %q", rule.Name)
		}
	}
}

// doc begins a file of package pkg, in three lines.
func doc(pkg string) string {
	return "// Package " + pkg + " is here for a test.\npackage " + pkg + "\n\n"
}

// importTrees are about rules "imports" and "cgo".
func importTrees() []smallTree {
	const ours = "\"" + Module + "/"
	return []smallTree{
		{"transport imports a provider", "imports", map[string]string{
			"transport/conn.go": doc("transport") + "import _ " + ours + "iwarp\"\n",
		}, "transport/conn.go:4: transport may not import iwarp"},
		{"transport's tests import a provider", "imports", map[string]string{
			"transport/conn_test.go": doc("transport") + "import _ " + ours + "iwarp\"\n",
		}, ""},
		{"a provider knows RPC", "imports", map[string]string{
			"iwarp/conn.go": doc("iwarp") + "import _ " + ours + "proto/oncrpc\"\n",
		}, "iwarp may not import proto/oncrpc"},
		{"an import points up", "imports", map[string]string{
			"proto/mpa/mpa.go": doc("mpa") + "import _ " + ours + "proto/ddp\"\n",
		}, "proto/mpa may not import proto/ddp"},
		{"an import points up from a test", "imports", map[string]string{
			"proto/xdr/xdr_test.go": doc("xdr") + "import _ " + ours + "transport\"\n",
		}, "proto/xdr may not import transport"},
		{"a layer below a layer", "imports", map[string]string{
			"iwarp/internal/stag/stag.go": doc("stag") + "import _ " + ours + "transport\"\n",
		}, "iwarp may not import transport"},
		{"a conformance suite in a provider", "imports", map[string]string{
			"iwarp/iwarp.go": doc("iwarp") + "import _ " + ours + "fabric/fabrictest\"\n",
		}, "iwarp may not import fabric/fabrictest"},
		{"inside a layer", "imports", map[string]string{
			"iwarp/conn.go": doc("iwarp") + "import _ " + ours + "iwarp/internal/stag\"\n",
		}, ""},
		{"another module in a codec", "imports", map[string]string{
			"proto/xdr/xdr.go": doc("xdr") + "import _ \"golang.org/x/sys/unix\"\n",
		}, "proto/xdr may not import golang.org/x/sys/unix"},
		{"another module in the command", "imports", map[string]string{
			"cmd/rpcrdma/main.go": doc("main") + "import _ \"example.org/cli\"\n",
		}, ""},
		{"go-cmp in tests", "imports", map[string]string{
			"proto/xdr/xdr_test.go": doc("xdr") + "import _ \"github.com/google/go-cmp/cmp\"\n",
		}, ""},
		{"a package without a layer", "imports", map[string]string{
			"attic/box.go": doc("attic"), "attic/chest.go": doc("attic"),
		}, "package attic is in no layer"},

		{"C outside cgo", "cgo", map[string]string{
			"ibv/cq.go": doc("ibv") + "import \"C\"\n",
		}, "ibv/cq.go:4: only layer cgo may import \"C\""},
		{"C in a layer whose name begins alike", "cgo", map[string]string{
			"cgoing/cq.go": doc("cgoing") + "import \"C\"\n",
		}, "only layer cgo may import \"C\""},
		{"C under cgo", "cgo", map[string]string{
			"cgo/verbs.go": doc("cgo") + "import \"C\"\n",
		}, ""},
	}
}

// stateTrees are about rule "state".
func stateTrees() []smallTree {
	return []smallTree{
		{"init", "state", map[string]string{
			"iwarp/register.go": doc("iwarp") + "func init() {}\n",
		}, "iwarp/register.go:4: library layers have no init functions"},
		{"a method called init", "state", map[string]string{
			"iwarp/conn.go": doc("iwarp") + "type c struct{}\n\nfunc (c) init() {}\n",
		}, ""},
		{"init in the command", "state", map[string]string{
			"cmd/rpcrdma/main.go": doc("main") + "func init() {}\n",
		}, ""},
		{"a counter", "state", map[string]string{
			"transport/xid.go": doc("transport") + "var next uint32\n\nfunc xid() uint32 { next++; return next }\n",
		}, "variable next"},
		{"a registry", "state", map[string]string{
			"fabric/registry.go": doc("fabric") + "var providers = map[string]int{}\n\nfunc register(n string) { providers[n] = 1 }\n",
		}, "variable providers"},
		{"a pool", "state", map[string]string{
			"fabric/pool.go": doc("fabric") + "import \"sync\"\n\nvar pool sync.Pool\n",
		}, "variable pool"},
		{"a filled pool", "state", map[string]string{
			"fabric/pool.go": doc("fabric") + "import \"sync\"\n\nvar pool = sync.Pool{}\n",
		}, "variable pool"},
		{"a pointer", "state", map[string]string{
			"fabric/x.go": doc("fabric") + "var one = &struct{ n int }{1}\n",
		}, "variable one"},
		{"a computed value", "state", map[string]string{
			"fabric/x.go": doc("fabric") + "import \"os\"\n\nvar debug = os.Getenv(\"X\")\n",
		}, "variable debug"},
		{"an exported setting", "state", map[string]string{
			"transport/x.go": doc("transport") + "// MaxCredits is the most that is asked for.\nvar MaxCredits = 128\n",
		}, "variable MaxCredits"},
		{"a table", "state", map[string]string{
			"fabric/names.go": doc("fabric") + "var names = [...]string{0: \"a\", 1: \"b\"}\n",
		}, ""},
		{"a table that is written to elsewhere", "state", map[string]string{
			"fabric/names.go": doc("fabric") + "var names = [...]string{0: \"a\", 1: \"b\"}\n",
			"fabric/x.go":     doc("fabric") + "func rename() { names[0] = \"c\" }\n",
		}, "variable names"},
		{"a local variable of a table's name", "state", map[string]string{
			"fabric/names.go": doc("fabric") + "var names = [...]string{0: \"a\", 1: \"b\"}\n",
			"fabric/x.go":     doc("fabric") + "func f() { names := []string{\"\"}; names[0] = \"c\" }\n",
		}, ""},
		{"an exported table declared immutable", "state", map[string]string{
			"fabric/names.go": doc("fabric") + "// Names is immutable.\nvar Names = []string{\"a\"}\n",
		}, ""},
		{"an error and an assertion", "state", map[string]string{
			"fabric/errors.go": doc("fabric") + "import \"errors\"\n\nvar ErrGone = errors.New(\"gone\")\n\nvar _ error = ErrGone\n",
		}, ""},
		{"an error that is a setting", "state", map[string]string{
			"fabric/errors.go": doc("fabric") + "var ErrorLimit = 3\n",
		}, "variable ErrorLimit"},
	}
}

// textTrees are about comments, words and tests.
func textTrees() []smallTree {
	return []smallTree{
		{"a comment like a translation", "english", map[string]string{
			"proto/xdr/xdr.go": doc("xdr") + "// Is tells whether it is.\nfunc Is() bool { return true } // reports whether\n",
		}, `proto/xdr/xdr.go:4: "tells whether": write reports whether`},
		{"a page like a translation", "english", map[string]string{"docs/a.md": "# A\n\n```\nlikewise\n```\n\nLikewise\n"}, "docs/a.md:7"},
		{"what programs write", "english", map[string]string{
			"docs/reports/a.md": "likewise\n", "proto/xdr/xdr.go": "// Code generated by x. DO NOT EDIT.\n\n" + doc("xdr") + "// likewise\n",
		}, ""},
		{"a function without a comment", "docs", map[string]string{
			"proto/xdr/xdr.go": doc("xdr") + "func Pad(n int) int { return -n & 3 }\n",
		}, "proto/xdr/xdr.go:4: Pad has no comment"},
		{"a method without a comment", "docs", map[string]string{
			"proto/xdr/xdr.go": doc("xdr") + "// T is a type.\ntype T int\n\nfunc (t *T) Go() {}\n",
		}, "Go has no comment"},
		{"a type in a group without a comment", "docs", map[string]string{
			"proto/xdr/xdr.go": doc("xdr") + "type (\n\tT int\n)\n",
		}, "T has no comment"},
		{"a constant without a comment", "docs", map[string]string{
			"proto/xdr/xdr.go": doc("xdr") + "const Size = 4\n",
		}, "Size has no comment"},
		{"constants in a group of no type", "docs", map[string]string{
			"proto/xdr/xdr.go": doc("xdr") + "const (\n\tA = 1\n\tb = 2\n)\n",
		}, "A has no comment"},
		{"a package without a comment", "docs", map[string]string{
			"proto/xdr/xdr.go": "package xdr\n", "proto/xdr/more.go": "package xdr\n",
		}, "package xdr has no comment"},
		{"a method of an interface without a comment", "docs", map[string]string{
			"fabric/x.go": doc("fabric") + "// I is an interface: see Do.\ntype I interface {\n\t// A is one.\n\tA()\n\tB()\n\n\tC()\n\tDo()\n}\n",
		}, "fabric/x.go:10: I.C has no comment"},
		{"a field without a comment", "docs", map[string]string{
			"fabric/x.go": doc("fabric") + "// Config configures.\ntype Config struct {\n\tA int\n\tB int // two\n\tC int\n}\n",
		}, "fabric/x.go:6: Config.A has no comment"},
		{"fields that need no comment", "docs", map[string]string{
			"fabric/x.go": doc("fabric") + "// T is of RFC 8166 section 3.\ntype T struct{ A int }\n\n// An Error is one.\ntype Error struct{ A int }\n\n" +
				"// U is B.\ntype U struct {\n\tA *T // one\n\n\tB int\n\tT *T\n}\n",
			"fabric/gen.go":         "// Code generated by x. DO NOT EDIT.\n\npackage fabric\n\n// V is a type.\ntype V struct{ A int }\n",
			"internal/baton/b.go":   doc("baton") + "// T is a type.\ntype T struct{ A int }\n",
			"cgo/c.go":              doc("cgo") + "// T is a type.\ntype T struct{ A int }\n",
			"proto/xdr/xdr_test.go": "package xdr\n\ntype T struct{ A int }\n",
		}, ""},
		{"a package without an example", "examples", map[string]string{
			"fabric/x.go": doc("fabric"), "proto/xdr/x.go": doc("xdr"), "proto/xdr/x_test.go": "package xdr\n\nfunc Example() {}\n",
			"transport/internal/plan/x.go": doc("plan"), "cgo/x.go": doc("cgo"), "cmd/rpcrdma/main.go": "package main\n",
		}, "fabric/x.go: package fabric has no example"},
		{"what needs no comment", "docs", map[string]string{
			"proto/xdr/xdr.go":      doc("xdr") + "// T is a type.\ntype T int\n\nfunc (T) String() string { return \"\" }\n\ntype u int\n\nfunc (u) Go() {}\n\nconst (\n\tA T = iota\n\tB\n)\n",
			"proto/xdr/xdr_test.go": "package xdr\n\nfunc Helper() {}\n",
			"cmd/rpcrdma/main.go":   "package main\n\nfunc Run() {}\n",
		}, ""},

		{"spaces for tabs", "gofmt", map[string]string{
			"fabric/x.go": doc("fabric") + "func f() {\n    g()\n}\n",
		}, "fabric/x.go: gofmt would change it"},

		{"a marker in a comment", "words", map[string]string{
			"fabric/x.go": doc("fabric") + "// to" + "do: more\n",
		}, "fabric/x.go:4: unfinished"},
		{"a marker in a script", "words", map[string]string{
			"scripts/go": "#!/bin/sh\n# FIX" + "ME\n",
		}, "scripts/go:2: unfinished"},
		{"a promise", "words", map[string]string{
			"fabric/x.go": doc("fabric") + "// Go is not " + "implemented.\n",
		}, "unfinished"},

		{"a path of one machine", "paths", map[string]string{
			"README.md": "See /ro" + "ot/notes.\n",
		}, "README.md:1: path of one machine"},
		{"a path that only looks like it", "paths", map[string]string{
			"README.md": "See docs/wo" + "rk/notes and https://example.org/net" + "work/.\n",
		}, ""},
		{"where a worktree's repository is", "paths", map[string]string{
			".git": "gitdir: /ro" + "ot/rpcrdma/.git/worktrees/x\n",
		}, ""},

		{"no reason", "skips", map[string]string{
			"fabric/x_test.go": "package fabric\n\nimport \"testing\"\n\nfunc TestX(t *testing.T) { t.Skip" + "() }\n",
		}, "fabric/x_test.go:5: a test is skipped without a reason"},
		{"no reason at all", "skips", map[string]string{
			"fabric/x_test.go": "package fabric\n\nimport \"testing\"\n\nfunc TestX(t *testing.T) { t.Skip" + "Now() }\n",
		}, "a test is skipped without a reason"},
		{"an empty reason", "skips", map[string]string{
			"fabric/x_test.go": "package fabric\n\nimport \"testing\"\n\nfunc BenchmarkX(b *testing.B) { b.Skipf(\" \") }\n",
		}, "no reason to skip a test"},
		{"a reason", "skips", map[string]string{
			"fabric/x_test.go": "package fabric\n\nimport \"testing\"\n\nfunc TestX(t *testing.T) { t.Skip(\"no device with memory windows\") }\n",
		}, ""},

		{"a test of 201 lines", "length", map[string]string{
			"fabric/x_test.go": "package fabric\n\nfunc short() {}\n\nfunc TestX() {" + strings.Repeat("\n", 200) + "}\n",
		}, "fabric/x_test.go:5: TestX has 201 lines"},
		{"a test of 200 lines, and other functions", "length", map[string]string{
			"fabric/x_test.go": "package fabric\n\nfunc TestX() {" + strings.Repeat("\n", 199) + "}\n",
			"fabric/x.go":      "package fabric\n\nfunc x() {" + strings.Repeat("\n", 200) + "}\n",
		}, ""},

		{"no graph", "graph", nil, "the document is missing"},

		{"a test that is gone", "tests", map[string]string{
			"docs/security.md": "Shown by `fabric.TestX` and\n`fabric.TestY/one of it`.\n",
			"fabric/x_test.go": "package fabric\n\nimport \"testing\"\n\nfunc TestX(t *testing.T) {}\n",
		}, "docs/security.md:2: there is no test fabric.TestY"},
		{"a test of a decision that is gone", "tests", map[string]string{
			"docs/adr/0001-x.md": "Shown by `fabric.TestX`.\n",
		}, "docs/adr/0001-x.md:1: there is no test fabric.TestX"},
	}
}

// check runs one rule over a tree in memory.
func check(t *testing.T, name string, files map[string]string) []Finding {
	t.Helper()
	fsys := make(fstest.MapFS)
	for name, text := range files {
		fsys[name] = &fstest.MapFile{Data: []byte(text)}
	}
	tree, err := Load(fsys)
	if err != nil {
		t.Fatal(err)
	}
	i := slices.IndexFunc(Rules, func(r Rule) bool { return r.Name == name })
	if i < 0 {
		t.Fatalf("there is no rule %q", name)
	}
	return Rules[i].Check(tree)
}

// TestWrongGraph removes an edge from the graph, and adds one.
func TestWrongGraph(t *testing.T) {
	src, err := os.ReadFile(filepath.Join(top, graphFile))
	if err != nil {
		t.Fatal(err)
	}
	edge := string(graphEdge.Find(src))
	if edge == "" {
		t.Fatal("the graph has no edges")
	}
	if got := check(t, "graph", map[string]string{graphFile: strings.Replace(string(src), edge, "", 1)}); len(got) != 1 {
		t.Errorf("without %s: findings %v", edge, got)
	}
	if got := check(t, "graph", map[string]string{graphFile: string(src) + "\n  a[\"proto/xdr\"] --> b[\"transport\"]\n"}); len(got) != 1 {
		t.Errorf("with an additional edge: findings %v", got)
	}
}

// TestLayersPointDown checks the table itself: a layer imports layers above it, and every
// name in a row is a row.
func TestLayersPointDown(t *testing.T) {
	above := make(map[string]bool)
	every := make(map[string]bool)
	for _, r := range Layers {
		every[r.Path] = true
	}
	for _, r := range Layers {
		for _, to := range r.May {
			if to != "*" && !above[to] {
				t.Errorf("%s may import %s, which is no row above it", r.Path, to)
			}
			if target, _ := LayerOf(to); r.Pure && to != "*" && !target.Pure {
				t.Errorf("%s is to build without cgo, and may import %s, which is not", r.Path, to)
			}
		}
		for _, to := range r.Tests {
			if !every[to] {
				t.Errorf("tests of %s may import %s, which is no row", r.Path, to)
			}
		}
		above[r.Path] = true
	}
}

// TestPureLayersNeedNoCgo builds them without it, tests included.
func TestPureLayersNeedNoCgo(t *testing.T) {
	var patterns []string
	for _, r := range Layers {
		if _, err := os.Stat(filepath.Join(top, r.Path)); r.Pure && err == nil {
			patterns = append(patterns, "./"+r.Path+"/...")
		}
	}
	if out, err := vetWithoutCgo(top, patterns...); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}

// TestMissingCgo shows that the check above fails if a layer needs cgo.
func TestMissingCgo(t *testing.T) {
	dir := t.TempDir()
	for name, text := range map[string]string{
		"go.mod":     "module example.org/m\n\ngo 1.25\n",
		"c/c.go":     "package c\n\nimport \"C\"\n\nfunc F() {}\n",
		"pure/p.go":  "package pure\n\nimport \"example.org/m/c\"\n\nfunc F() { c.F() }\n",
		"clean/p.go": "package clean\n",
	} {
		file := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(file), 0o777); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(text), 0o666); err != nil {
			t.Fatal(err)
		}
	}
	if out, err := vetWithoutCgo(dir, "./pure"); err == nil {
		t.Errorf("a layer that needs cgo was built without:\n%s", out)
	}
	if out, err := vetWithoutCgo(dir, "./clean"); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}

// vetWithoutCgo type-checks packages and their tests without cgo.
func vetWithoutCgo(dir string, patterns ...string) ([]byte, error) {
	cmd := exec.Command("go", append([]string{"vet"}, patterns...)...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	return cmd.CombinedOutput()
}

// TestFindingsAreInOrder: the same tree gives the same list, independent of map order.
func TestFindingsAreInOrder(t *testing.T) {
	files := map[string]string{
		"proto/xdr/b.go": "package xdr\n\nfunc Z() {}\n\nfunc A() {}\n",
		"proto/xdr/a.go": "package xdr\n\nfunc M() {}\n",
		"fabric/a.go":    "package fabric\n",
	}
	var got []string
	for _, f := range check(t, "docs", maps.Clone(files)) {
		got = append(got, f.String())
	}
	want := []string{
		"fabric/a.go:1: package fabric has no comment",
		"proto/xdr/a.go:1: package xdr has no comment",
		"proto/xdr/a.go:3: M has no comment",
		"proto/xdr/b.go:3: Z has no comment",
		"proto/xdr/b.go:5: A has no comment",
	}
	if !slices.Equal(got, want) {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

// wanted is the comment in testdata/state with the rule's finding in its line.
var wanted = regexp.MustCompile(`// want "([^"]+)"`)

// TestState compares the findings in testdata/state with the comments there.
func TestState(t *testing.T) {
	tree, err := Load(os.DirFS("testdata/state"))
	if err != nil {
		t.Fatal(err)
	}
	want := make(map[string]string) // by file:line
	for _, f := range tree.Files {
		for i, line := range strings.Split(string(f.Src), "\n") {
			if m := wanted.FindStringSubmatch(line); m != nil {
				want[fmt.Sprintf("%s:%d", f.Path, i+1)] = m[1]
			}
		}
	}
	if len(want) == 0 {
		t.Fatal("no comments")
	}
	for _, f := range NoPackageState(tree) {
		at := fmt.Sprintf("%s:%d", f.File, f.Line)
		if text, ok := want[at]; !ok || !strings.Contains(f.Text, text) {
			t.Errorf("%v, want %q", f, text)
		}
		delete(want, at)
	}
	for at, text := range want {
		t.Errorf("%s: not found: %s", at, text)
	}
}

// TestStateExceptionsAreNeeded removes each exception: the rule has to find its variable.
func TestStateExceptionsAreNeeded(t *testing.T) {
	tree, err := Load(os.DirFS(top))
	if err != nil {
		t.Fatal(err)
	}
	found := make(map[string]bool)
	for _, f := range stateFindings(tree) {
		found[f.name] = true
	}
	for name := range stateExceptions {
		if !found[name] {
			t.Errorf("%s needs no exception: remove it from stateExceptions", name)
		}
	}
}
