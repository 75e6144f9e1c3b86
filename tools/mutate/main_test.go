package main

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/rpcrdma/rpcrdma/internal/limited"
)

// TestDefects: every defect of this project can be put in, and its test bears the id of
// its rule. Whether it is killed, make mutate finds out.
func TestDefects(t *testing.T) {
	if _, err := exec.LookPath("git"); err != nil {
		t.Skip("git is not installed, which applies patches")
	}
	var said bytes.Buffer
	ok, err := run(t.Context(), options{root: "../..", check: true}, &said)
	if err != nil || !ok {
		t.Errorf("%v\n%sWhoever changes what a patch is about changes the patch.", err, said.String())
	}
}

// Ids in parts: these are not tests of the rules.
const (
	ruleID = "V1-" + "3.3-4"
	nextID = "V1-" + "3.3-5"
	noID   = "V1-" + "3.3-444"
)

func TestParse(t *testing.T) {
	const diff = "\ndiff --git a/a.go b/a.go\n--- a/a.go\n"
	d, err := parse("x", []byte("Defect: It is wrong.\nRule: "+ruleID+", "+nextID+"\nTest: ./transport TestA/sub case -race\nTest: ./iwarp/ TestB\n"+diff))
	if err != nil {
		t.Fatal(err)
	}
	if d.says != "It is wrong." || strings.Join(d.rules, "+") != ruleID+"+"+nextID || len(d.tests) != 2 {
		t.Errorf("%+v", d)
	}
	if d.tests[0] != (test{"./transport", "TestA/sub_case", true}) || d.tests[1] != (test{"./iwarp", "TestB", false}) {
		t.Errorf("%+v", d.tests)
	}
	several := test{run: "^TestA$|TestB/sub|TestC"}
	if got := strings.Join(several.functions(), " "); got != "TestA TestB TestC" || several.depth() != 0 || d.tests[0].depth() != 1 {
		t.Errorf("%s, %d deep", got, several.depth())
	}
	if d, err := parse("x", []byte("Defect: It is wrong.\nRule: none\nTest: ./a TestA\n"+diff)); err != nil || len(d.rules) != 0 {
		t.Errorf("%+v, %v", d, err)
	}
	for name, text := range map[string]string{
		"no diff":       "Defect: It is wrong.\nRule: none\nTest: ./a TestA\n",
		"no defect":     "Rule: none\nTest: ./a TestA\n" + diff,
		"no rule":       "Defect: It is wrong.\nTest: ./a TestA\n" + diff,
		"no test":       "Defect: It is wrong.\nRule: none\n" + diff,
		"no name":       "Defect: It is wrong.\nRule: none\nTest: ./a -race\n" + diff,
		"no package":    "Defect: It is wrong.\nRule: none\nTest: TestA/sub case\n" + diff,
		"something":     "Defect: It is wrong.\nRule: none\nTest: ./a TestA\nAuthor: me\n" + diff,
		"a second rule": "Defect: It is wrong.\nRule: none\nRule: none\nTest: ./a TestA\n" + diff,
	} {
		if _, err := parse("x", []byte(text)); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}

// A tree for defects to be put into.
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

// patchOf is a patch of a line of a.go.
func patchOf(head, from, to string) string {
	return head + "\n" + `diff --git a/a/a.go b/a/a.go
--- a/a/a.go
+++ b/a/a.go
@@ -1,9 +1,9 @@
 package a
 
 func add(x, y int) int {
-	return x + y
+	` + from + `
 }
 
 func untested() int {
-	return 1
+	` + to + `
 }
`
}

// TestTool: a defect that is killed, and everything that may be wrong with one.
func TestTool(t *testing.T) {
	if _, err := exec.LookPath("git"); err != nil {
		t.Skip("git is not installed, which applies patches")
	}
	t.Setenv("GOWORK", "off")
	const same = "return y + x" // what is no defect
	add := func(rule, test string) string {
		return patchOf("Defect: It subtracts.\nRule: "+rule+"\nTest: ./a "+test+"\n", "return x - y", "return 2")
	}
	defects := map[string]struct{ patch, want string }{
		"good":      {add(ruleID, "TestAdd/two numbers"), "killed by TestAdd/two_numbers"},
		"panics":    {add("none", "TestOther"), "killed by TestOther"},
		"after":     {patchOf("Defect: It is three.\nRule: none\nTest: ./a TestNothing\n", same, "return 3"), "killed by what is looked at after all tests"},
		"survives":  {add("none", "TestNothing"), "SURVIVED ./a TestNothing"},
		"one-of":    {add("none", "TestAdd\nTest: ./a TestNothing"), "SURVIVED ./a TestNothing"},
		"elsewhere": {strings.ReplaceAll(add("none", "TestAdd"), "package a", "package b"), "the patch does not apply: error: patch failed: a/a.go:1"},
		"no-build":  {patchOf("Defect: It is nothing.\nRule: none\nTest: ./a TestAdd\n", "return", same), "it does not build"},
		"no-test":   {add("none", "TestAdd/three"), "without the defect: no test has that name"},
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
		write(defectsDir+"/"+name+".patch", d.patch)
	}
	if _, err := git(t.Context(), root, nil, "init", "-q"); err != nil {
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
	if want := "mutate: 3 of 13 defects killed"; !strings.Contains(said.String(), want) {
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

	// What -check sees, without running anything.
	said.Reset()
	o.check = true
	if ok, err := run(t.Context(), o, &said); ok || err != nil || strings.Count(said.String(), "\n") != 3 {
		t.Errorf("%v, %v: %s", ok, err, said.String())
	}

	// What is right passes, and a sample with its seed is the same again.
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

// TestJudge: ends of go test that take too long to bring about.
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
