package main

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"testing/fstest"
	"time"

	"github.com/rpcrdma/rpcrdma/internal/limited"
)

// TestDefects checks that every defect of this project applies and leaves packages that type-check,
// and that its tests exist and bear the ids of its rules. Only make mutate shows that they kill it.
func TestDefects(t *testing.T) {
	var said bytes.Buffer
	ok, err := run(t.Context(), options{root: "../..", check: true}, &said)
	if err != nil || !ok {
		t.Errorf("%v\n%sA change of code that a defect edits has to update the defect.", err, said.String())
	}
}

// Ids in parts: these are not tests of the rules.
const (
	ruleID = "V1-" + "3.3-4"
	nextID = "V1-" + "3.3-5"
	noID   = "V1-" + "3.3-444"
)

func TestParse(t *testing.T) {
	const body = "\nFile: a/*.go\n \tkept\n-\tone\n-\n+\ttwo\n-\tthree\n\nFile: b.sh\n+# two\n # one\n" +
		"\nIn: ./a (*t).f\nDo: drop call  g #2\nDo: set x to y with z\nIn: ./a h\nDo: insert a before b before return c\n"
	d, err := parse("x", "Defect: It is wrong.\nRule: "+ruleID+", "+nextID+"\nTest: ./transport TestA/sub case -race\nTest: ./iwarp/ TestB\n"+body)
	if err != nil {
		t.Fatal(err)
	}
	if d.path() != "tools/mutate/defects/x.defect" || d.says != "It is wrong." || strings.Join(d.rules, "+") != ruleID+"+"+nextID {
		t.Errorf("%+v", d)
	}
	if want := []test{{"./transport", "TestA/sub_case", true}, {"./iwarp", "TestB", false}}; !slices.Equal(d.tests, want) {
		t.Errorf("%+v", d.tests)
	}
	if want := []change{
		&edit{"a/*.go", "\tkept\n\tone\n\n\tthree\n", "\tkept\n\ttwo\n"},
		&edit{"b.sh", "# one\n", "# two\n# one\n"},
		&operation{"./a", "(*t).f", "drop call  g #2", "drop", "call g", 2, ""},
		&operation{"./a", "(*t).f", "set x to y with z", "set", "set x", 0, "y with z"},
		&operation{"./a", "h", "insert a before b before return c", "before", "returnc", 0, "a before b"},
	}; !reflect.DeepEqual(d.changes, want) {
		t.Errorf("%+v", d.changes)
	}
	several := test{run: "^TestA$|TestB/sub|TestC"}
	if got := strings.Join(several.functions(), " "); got != "TestA TestB TestC" || several.depth() != 0 || d.tests[0].depth() != 1 {
		t.Errorf("%s, %d deep", got, several.depth())
	}
	const head = "Defect: It is wrong.\nRule: none\nTest: ./a TestA\n"
	if d, err := parse("x", head+body); err != nil || len(d.rules) != 0 {
		t.Errorf("%+v, %v", d, err)
	}
	for name, tt := range map[string]struct{ text, want string }{
		"no edit":           {head, `no "File:"`},
		"nothing to do":     {head + body + "In: ./a g\n", "nothing is done in g"},
		"nothing done":      {head + "In: ./a g\n" + body, `"File: a/*.go" is neither`},
		"nowhere":           {head + "Do: drop x\n", `"Do: drop x" is unexpected`},
		"no declaration":    {head + "In: ./a\nDo: drop x\n", `"In: ./a" is unexpected`},
		"no verb":           {head + "In: ./a g\nDo: remove x\n", `"remove x" is not an operation`},
		"no place":          {head + "In: ./a g\nDo: drop \n", `"drop " is not an operation`},
		"no text":           {head + "In: ./a g\nDo: replace x\n", `"replace x" is not an operation`},
		"no statement":      {head + "In: ./a g\nDo: insert x\n", `"insert x" is not an operation`},
		"no number":         {head + "In: ./a g\nDo: drop x #0\n", `"#0" is not a number from #1`},
		"no defect":         {"Rule: none\nTest: ./a TestA\n" + body, `the header needs "Defect:"`},
		"an empty defect":   {"Defect:\nRule: none\nTest: ./a TestA\n" + body, `"Defect:: " is unexpected`},
		"no rule":           {"Defect: It is wrong.\nTest: ./a TestA\n" + body, "the header needs"},
		"no test":           {"Defect: It is wrong.\nRule: none\n" + body, "the header needs"},
		"no name":           {"Defect: It is wrong.\nRule: none\nTest: ./a -race\n" + body, `the test "./a -race"`},
		"an empty test":     {"Defect: It is wrong.\nRule: none\nTest: \n" + body, `the test ""`},
		"no package":        {"Defect: It is wrong.\nRule: none\nTest: TestA/sub case\n" + body, "no package and name"},
		"something":         {"Defect: It is wrong.\nRule: none\nTest: ./a TestA\nAuthor: me\n" + body, `"Author: me" is unexpected`},
		"a second rule":     {"Defect: It is wrong.\nRule: none\nRule: none\nTest: ./a TestA\n" + body, `"Rule: none" is unexpected`},
		"a header below":    {head + body + "Rule: none\n", `"Rule: none" is neither`},
		"a line on its own": {head + body + "\n-\tone\n", `"-\tone" is neither`},
		"no old text":       {head + "\nFile: a/*.go\n+\tone\n", "no old text"},
		"no change":         {head + "\nFile: a/*.go\n-\tone\n+\tone\n", "changes nothing"},
		"a comment":         {head + "\nFile: a/*.go\n \t// This.\n-\tone\n", `the comment "// This."`},
	} {
		_, err := parse("x", tt.text)
		if err == nil || !strings.HasPrefix(err.Error(), "x.defect: ") || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: %v, want %q", name, err, tt.want)
		}
	}
}

func TestApply(t *testing.T) {
	tree := fstest.MapFS{
		"a/a.go":      {Data: []byte("package a\n\nfunc f() {\n\tone()\n\t\ttwo()\n\tsame()\n\tsame()\n\tsame()\n}\n")},
		"a/b.go":      {Data: []byte("package a\n\nfunc g() {\n\tthree()\n}\n")},
		"a/a_test.go": {Data: []byte("package a\n\nfunc h() {\n\tone()\n}\n")},
	}
	for name, tt := range map[string]struct {
		edits []edit
		want  map[string]string // a line of each file that changes
		err   string
	}{
		"any file":      {[]edit{{"a/*.go", "\tthree()\n", "\tfour()\n"}}, map[string]string{"a/b.go": "four()"}, ""},
		"not in tests":  {[]edit{{"a/*.go", "\tone()\n", "\tfour()\n"}}, map[string]string{"a/a.go": "four()"}, ""},
		"in tests":      {[]edit{{"a/*_test.go", "\tone()\n", "\tfour()\n"}}, map[string]string{"a/a_test.go": "four()"}, ""},
		"two files":     {[]edit{{"a/*.go", "\tone()\n", "\tfour()\n"}, {"a/b.go", "\tthree()\n", "\tfive()\n"}}, map[string]string{"a/a.go": "four()", "a/b.go": "five()"}, ""},
		"in order":      {[]edit{{"a/*.go", "\tone()\n", "\tfour()\n"}, {"a/*.go", "\tfour()\n", "\tfive()\n"}}, map[string]string{"a/a.go": "five()"}, ""},
		"context":       {[]edit{{"a/*.go", "\t\ttwo()\n\tsame()\n", "\t\ttwo()\n\tfour()\n"}}, map[string]string{"a/a.go": "four()"}, ""},
		"gone":          {[]edit{{"a/*.go", "\tnothing()\n", ""}}, nil, `the text from "nothing()" on occurs 0 times in a/*.go`},
		"white space":   {[]edit{{"a/*.go", "\ttwo()\n", ""}}, nil, `occurs 0 times in a/*.go`},
		"part of lines": {[]edit{{"a/*.go", "()\n", ""}}, nil, `occurs 0 times in a/*.go`},
		"three times":   {[]edit{{"a/*.go", "\tsame()\n", ""}}, nil, `occurs 3 times in a/*.go, not once: ["a/a.go" "a/a.go" "a/a.go"]`},
		"overlapping":   {[]edit{{"a/*.go", "\tsame()\n\tsame()\n", ""}}, nil, `occurs 2 times in a/*.go`},
		"two places":    {[]edit{{"a/*.go", "package a\n", ""}}, nil, `not once: ["a/a.go" "a/b.go"]`},
		"applied":       {[]edit{{"a/*.go", "\tone()\n", ""}, {"a/*.go", "\tone()\n", ""}}, nil, `occurs 0 times in a/*.go`},
		"no file":       {[]edit{{"b/*.go", "\tone()\n", ""}}, nil, `no file matches b/*.go`},
		"only a test":   {[]edit{{"a/a_*.go", "\tone()\n", ""}}, nil, `no file matches a/a_*.go`},
		"no pattern":    {[]edit{{"a/[.go", "\tone()\n", ""}}, nil, "a/[.go: syntax error in pattern"},
	} {
		d := &defect{}
		for _, e := range tt.edits {
			d.changes = append(d.changes, &e)
		}
		changed, err := d.apply(tree)
		if (tt.err == "") != (err == nil) || err != nil && !strings.Contains(err.Error(), tt.err) {
			t.Errorf("%s: %v, want %q", name, err, tt.err)
		}
		if len(changed) != len(tt.want) {
			t.Errorf("%s: %d files have changed: %q", name, len(changed), changed)
		}
		for file, line := range tt.want {
			if !strings.Contains(changed[file], "\n\t"+line+"\n") {
				t.Errorf("%s: %s is %q", name, file, changed[file])
			}
		}
	}

	d := &defect{changes: []change{&edit{"a/*.go", "\t\ttwo()\n", "\t\tfour()\n\t\tfive()\n"}}}
	changed, err := d.apply(tree)
	if want := strings.Replace(string(tree["a/a.go"].Data), "two()", "four()\n\t\tfive()", 1); err != nil || changed["a/a.go"] != want {
		t.Errorf("%q, %v, want %q", changed["a/a.go"], err, want)
	}
	if err := parses(changed); err != nil {
		t.Error(err)
	}
	if err := parses(map[string]string{"a/a.go": strings.Replace(changed["a/a.go"], "four()", "two(", 1)}); err == nil || !strings.Contains(err.Error(), "a/a.go:6:") {
		t.Errorf("%v", err)
	}
}

// treeFiles is a tree to inject defects into.
var treeFiles = map[string]string{
	"go.mod": "module example.org/tree\n\ngo 1.26\n",
	"a/a.go": "package a\n\nfunc add(x, y int) int {\n\treturn x + y\n}\n\nfunc untested() int {\n\treturn 1\n}\n",
	"a/a_test.go": `package a

import (
	"os"
	"testing"
)

// RULE: it adds.
func TestAdd(t *testing.T) {
	t.Run("two numbers", func(t *testing.T) {
		if got := add(2, 3); got != 5 {
			t.Errorf("%d", got)
		}
	})
}

func TestOther(t *testing.T) {
	if add(1, 1) != 2 {
		panic("add")
	}
}

// RULE: it does nothing.
func TestNothing(t *testing.T) { _ = untested() }

func TestSkipped(t *testing.T) {
	if add(0, 0) == 0 {
		t.Skip("another day, perhaps")
	}
}

func TestBroken(t *testing.T) { t.Error("as ever") }

func TestMain(m *testing.M) {
	code := m.Run()
	if code == 0 && untested() == 3 {
		code = 99
	}
	os.Exit(code)
}
`,
}

// defectOf replaces the results of both functions of a.go.
func defectOf(head, sum, one string) string {
	return head + `
File: a/*.go
-	return x + y
+	` + sum + `

File: a/*.go
-	return 1
+	` + one + `
`
}

// TestTool tries defects that are killed, and each thing that may be wrong with one.
func TestTool(t *testing.T) {
	if _, err := exec.LookPath("git"); err != nil {
		t.Skip("git is not installed, which lists the files of a tree")
	}
	t.Setenv("GOWORK", "off")
	const same = "return y + x" // no defect
	add := func(rule, test string) string {
		return defectOf("Defect: It subtracts.\nRule: "+rule+"\nTest: ./a "+test+"\n", "return x - y", "return 2")
	}
	defects := map[string]struct{ text, want string }{
		"good":      {add(ruleID, "TestAdd/two numbers"), "killed by TestAdd/two_numbers"},
		"panics":    {add("none", "TestOther"), "killed by TestOther"},
		"after":     {defectOf("Defect: It is three.\nRule: none\nTest: ./a TestNothing\n", same, "return 3"), "killed by what is looked at after all tests"},
		"survives":  {add("none", "TestNothing"), "SURVIVED ./a TestNothing"},
		"one-of":    {add("none", "TestAdd\nTest: ./a TestNothing"), "SURVIVED ./a TestNothing"},
		"elsewhere": {strings.ReplaceAll(add("none", "TestAdd"), "x + y", "x * y"), `the text from "return x * y" on occurs 0 times in a/*.go`},
		"no-build":  {defectOf("Defect: It is nothing.\nRule: none\nTest: ./a TestAdd\n", "return", same), "it does not build"},
		"no-parse":  {defectOf("Defect: It is nothing.\nRule: none\nTest: ./a TestAdd\n", "return )", same), "it does not build"},
		"no-test":   {add("none", "TestNone"), "without the defect: no test has that name"},
		"no-case":   {add("none", "TestAdd/three"), "without the defect: no test has that name"},
		"no-rule":   {add(noID, "TestAdd"), "there is no rule " + noID},
		"no-id":     {add(ruleID, "TestOther"), "none of its tests bears the id " + ruleID},
		"other-id":  {add(ruleID, "TestAdd$|TestOther\nTest: ./a TestNothing"), "SURVIVED"},
		"skipped":   {add("none", "TestSkipped"), "without the defect: the test was skipped"},
		"broken":    {add("none", "TestBroken"), "./a TestBroken fails without the defect"},
	}
	root := t.TempDir()
	write := func(name, text string) {
		t.Helper()
		at := filepath.Join(root, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(at), 0o777), os.WriteFile(at, []byte(text), 0o666)); err != nil {
			t.Fatal(err)
		}
	}
	for name, text := range treeFiles {
		write(name, strings.ReplaceAll(text, "RULE", ruleID))
	}
	for name, d := range defects {
		write(defectsDir+"/"+name+".defect", d.text)
	}
	if _, err := git(t.Context(), root, "init", "-q"); err != nil {
		t.Fatal(err)
	}
	o := options{root: root, workers: 2, limit: time.Minute}
	var said bytes.Buffer
	ok, err := run(t.Context(), o, &said)
	if err != nil || ok {
		t.Errorf("%v, %v", ok, err)
	}
	for name, d := range defects {
		if want := "s " + name + ": "; !strings.Contains(said.String(), want) {
			t.Errorf("nothing is said about %s", name)
			continue
		}
		_, line, _ := strings.Cut(said.String(), "s "+name+": ")
		if line, _, _ = strings.Cut(line, "\n"); !strings.Contains(line, d.want) {
			t.Errorf("%s: %q, want %q", name, line, d.want)
		}
	}
	if want := "mutate: 3 of 15 defects killed"; !strings.Contains(said.String(), want) {
		t.Errorf("not %q", want)
	}
	if t.Failed() {
		t.Log(said.String())
	}

	// The tree itself was not touched.
	for name, want := range treeFiles {
		if b, err := os.ReadFile(filepath.Join(root, name)); err != nil || string(b) != strings.ReplaceAll(want, "RULE", ruleID) {
			t.Errorf("%s has changed, %v", name, err)
		}
	}

	// The findings of -check, without running anything.
	said.Reset()
	o.check = true
	if ok, err := run(t.Context(), o, &said); ok || err != nil || strings.Count(said.String(), "\n") != 8 {
		t.Errorf("%v, %v: %s", ok, err, said.String())
	}
	for name, want := range map[string]string{
		"elsewhere": "0 times in a/*.go",
		"no-build":  "it does not build: a/a.go:4:2: not enough return values",
		"no-id":     "none of its tests bears the id",
		"no-parse":  "a/a.go:4:9: expected operand",
		"no-rule":   "there is no rule",
		"no-test":   "./a has no test function TestNone",
	} {
		_, line, _ := strings.Cut(said.String(), "tools/mutate/defects/"+name+".defect: ")
		if line, _, _ = strings.Cut(line, "\n"); !strings.Contains(line, want) {
			t.Errorf("-check of %s: %q, want %q", name, line, want)
		}
	}

	// A correct change passes, and a sample with its seed is the same again.
	o.check, o.match = false, "good|panics|after"
	o.sample, o.seed = 1, 42
	var first string
	for range 2 {
		said.Reset()
		if ok, err := run(t.Context(), o, &said); !ok || err != nil {
			t.Errorf("%v, %v: %s", ok, err, said.String())
		}
		head, list, _ := strings.Cut(said.String(), "\n")
		if head != "mutate: 1 of 3 defects, -seed 42" {
			t.Errorf("%q", head)
		}
		_, list, _ = strings.Cut(list, "s ")
		name, _, _ := strings.Cut(list, ":")
		if first == "" {
			first = name
		}
		if name != first || name == "" {
			t.Errorf("%q after %q", name, first)
		}
	}

	// With no time left, what was not tried is said to be.
	o.sample, o.budget, o.workers = 0, time.Nanosecond, 1
	said.Reset()
	if ok, err := run(t.Context(), o, &said); !ok || err != nil || !strings.Contains(said.String(), "1 of 1 defects killed by the tests that they name; no time was left for 2 others") {
		t.Errorf("%v, %v: %s", ok, err, said.String())
	}
	if _, err := run(t.Context(), options{root: root, match: "nothing", workers: 1}, &said); err == nil {
		t.Error("no defect, and no error")
	}
}

// TestJudge covers ends of go test that would take too long to cause.
func TestJudge(t *testing.T) {
	run := `{"Action":"run","Test":"TestA"}` + "\n"
	exit := &exec.ExitError{}
	for name, tt := range map[string]struct {
		out   string
		err   error
		fault string
	}{
		"hangs":  {run + `{"Action":"output","Test":"TestA","Output":"panic: test timed out after 1m0s\n"}` + "\n" + `{"Action":"fail","Test":"TestA"}`, exit, "the test hung"},
		"killed": {run, &limited.TimeError{Program: "go", Limit: time.Minute}, "go was killed: it had not ended after 1m0s"},
		"no go":  {"", exec.ErrNotFound, exec.ErrNotFound.Error()},
		"setup":  {"", exit, "before any test ran"},
		"fails":  {run + `{"Action":"fail","Test":"TestA"}`, exit, ""},
		"panics": {`{"Action":"run","Test":"TestB"}` + "\n" + `{"Action":"pass","Test":"TestB"}` + "\n" + run, exit, ""},
	} {
		v := judge([]byte(tt.out), "", 0, tt.err)
		if (tt.fault == "") != (v.fault == "") || !strings.Contains(v.fault, tt.fault) {
			t.Errorf("%s: %+v", name, v)
		}
		if tt.fault == "" && v.killer() != "TestA" {
			t.Errorf("killed by %s", v.killer())
		}
	}
}
