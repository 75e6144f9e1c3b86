package main

import (
	"go/format"
	"strings"
	"testing"
	"testing/fstest"
)

func TestOperation(t *testing.T) {
	tree := fstest.MapFS{
		"a/a.go": {Data: []byte(`package a

const most, least = 1 << 4, 2

type table[K comparable] struct{ n int }

func (t *table[K]) add(n int, ready bool) (int, error) {
	defer t.mu.Unlock() // This is not the operation looked for: t.grow(1).
	sum := max(t.n+n,
		most)
	if ready && (sum < most || n == 0) {
		t.n += n
		go t.grow(sum)
	} else if !ready {
		return 0, nil
	}
	for t.n > most {
		t.grow(t.n)
		continue
	}
	for i := range n {
		t.grow(i)
	}
	switch {
	case t.n == 0, sum == 0:
		return 1, nil
	default:
		t.grow(0)
		log(t.n, n, sum)
	}
	for {
		select {
		case <-t.done:
			return 2, nil
		}
	}
	opt := options{Most: most, Least: least}
	f(opt)
	f(f(2))
	t.n++
	return t.n, nil
}
`)},
		"a/b.go":      {Data: []byte("package a\n\nfunc (t table[K]) add() { log() }\n\nfunc add() { log() }\n\nfunc init() { log() }\n")},
		"a/c.go":      {Data: []byte("package a\n\nfunc init() { log() }\n")},
		"a/a_test.go": {Data: []byte("package a\n\nfunc tested() { log() }\n")},
	}
	const add = "(*table).add"
	for _, tt := range []struct{ decl, do, want, err string }{
		// Statements, by what they are.
		{add, "drop defer t.mu.Unlock", "(int, error) { // This is", ""},
		{add, "drop go t.grow", "t.n += n } else if", ""},
		{add, "drop set sum", "looked for: t.grow(1). if ready", ""},
		{add, "drop t.n += n", "{ go t.grow(sum) }", ""},
		{add, "drop t.n++", "f(f(2)) return", ""},
		{add, "drop if ready && (sum<most||n == 0)", "most) for", ""},
		{add, "drop for t.n > most", "return 0, nil } for i", ""},
		{add, "drop for", "log(t.n, n, sum) } opt", ""},
		{add, "drop range n", "continue } switch", ""},
		{add, "drop continue", "t.grow(t.n) } for", ""},
		{add, "drop case t.n == 0, sum == 0", "switch { default:", ""},
		{add, "drop default", "return 1, nil } for", ""},
		{add, "drop case <-t.done", "select {} }", ""},
		{add, "drop return t.n, nil", "t.n++ }", ""},
		{add, "drop call t.grow #3", "for i := range n { } switch", ""},
		{add, "drop call grow #4", "default: log(", ""},
		{add, "drop f(opt)", "least} f(f(2))", ""},
		{add, "drop call f #2", "f(opt) t.n++", ""},
		{add, "drop call f #3", "f(opt) f() t.n++", ""},
		// Operands and elements of lists.
		{add, "drop ready #2", "if sum < most || n == 0 {", ""},
		{add, "drop sum < most", "if ready && (n == 0) {", ""},
		{add, "drop (sum < most || n == 0)", "if ready {", ""},
		{add, "drop n == 0", "if ready && (sum < most) {", ""},
		{add, "drop t.n == 0", "case sum == 0:", ""},
		{add, "drop sum == 0", "case t.n == 0:", ""},
		{add, "drop key Most", "options{Least: least}", ""},
		{add, "drop Least: least", "options{Most: most}", ""},
		{add, "drop sum #5", "log(t.n, n)", ""},
		// The others.
		{add, "replace t.n + n with t.n - n", "max(t.n-n, most)", ""},
		{add, "replace call max with most", "sum := most if", ""},
		{add, "replace return 1, nil with f(1); f(2)", "f(1) f(2) default:", ""},
		{add, "replace if !ready with { f(3) }", "else { f(3) } for", ""},
		{add, "set t.n to 3", "t.n += 3 go", ""},
		{add, "set if !ready to false", "else if false {", ""},
		{add, "set for t.n > most to true", "for true {", ""},
		{add, "set range n to 2 * n", "range 2 * n {", ""},
		{add, "set case t.n == 0, sum == 0 to false", "case false:", ""},
		{add, "set key Most to 7", "options{Most: 7, Least: least}", ""},
		{"most", "set most, least to 1, 2", "least = 1, 2 type", ""},
		{"least", "replace 2 with 3", "1 << 4, 3 type", ""},
		{add, "insert f(4) before call max", "f(4) sum := max", ""},
		{add, "insert if n == 1 { return n, nil } after t.n += n", "t.n += n if n == 1 { return n, nil } go", ""},
		{add, "insert case n == 5: after case t.n == 0, sum == 0", "return 1, nil case n == 5: default:", ""},
		// Declarations.
		{"table.add", "drop call log", "add() {} func add() { log()", ""},
		{"add", "drop call log", "add() { log() } func add() {} func init", ""},
		// Operations that cannot be applied.
		{add, "drop call shrink", "", `./a (*table).add has 0 places for "drop call shrink"`},
		{add, "drop call grow", "", `has 4 places for "drop call grow"`},
		{add, "drop call grow #5", "", `has 4 places for "drop call grow #5"`},
		{"init", "drop call log", "", `./a init has 2 places for "drop call log"`},
		{"grow", "drop call log", "", "./a does not declare grow"},
		{"table", "drop int", "", "./a does not declare table"},
		{"tested", "drop call log", "", "./a does not declare tested"},
		{add, "drop if !ready", "", "is not possible there"},
		{add, "drop !ready", "", `./a (*table).add: "drop !ready" is not possible there`},
		{add, "drop t.done", "", "is not possible there"},
		{add, "set for to false", "", "is not possible there"},
		{add, "set default to false", "", "is not possible there"},
		{add, "set t.n to n", "", "is not possible there"},
		{"most", "drop set most, least", "", "is not possible there"},
		{"most", "insert f(5) before 1 << 4", "", "is not possible there"},
	} {
		o, err := parseOperation("./a", tt.decl, tt.do)
		if err != nil {
			t.Errorf("%s: %v", tt.do, err)
			continue
		}
		changed := make(map[string]string)
		err = o.apply(tree, changed)
		if (err != nil) != (tt.err != "") || err != nil && !strings.Contains(err.Error(), tt.err) {
			t.Errorf("%s: %v, want %q", tt.do, err, tt.err)
		}
		for name, text := range changed {
			b, err := format.Source([]byte(text))
			if got := strings.Join(strings.Fields(string(b)), " "); err != nil || !strings.Contains(got, tt.want) {
				t.Errorf("%s: %v, %s is not with %s:\n%s", tt.do, err, name, tt.want, text)
			}
		}
		if len(changed) > 1 || (len(changed) == 1) != (tt.err == "") {
			t.Errorf("%s: %d files have changed", tt.do, len(changed))
		}
	}

	o, err := parseOperation("./b", "f", "drop x")
	if err == nil {
		err = o.apply(tree, make(map[string]string))
	}
	if err == nil || !strings.Contains(err.Error(), "no file matches b/*.go") {
		t.Errorf("%v", err)
	}
}

// TestOperationsInOrder does one operation after another in a file.
func TestOperationsInOrder(t *testing.T) {
	tree := fstest.MapFS{"a/a.go": {Data: []byte("package a\n\nfunc f() {\n\tg(1)\n\tg(2)\n}\n")}}
	d, err := parse("x", "Defect: It is wrong.\nRule: none\nTest: ./a TestA\n\nIn: ./a f\nDo: drop call g #1\nDo: replace call g with h()\n\nFile: a/*.go\n-\th()\n+\ti()\n")
	if err != nil {
		t.Fatal(err)
	}
	changed, err := d.apply(tree)
	if b, err := format.Source([]byte(changed["a/a.go"])); err != nil || string(b) != "package a\n\nfunc f() {\n\n\ti()\n}\n" {
		t.Errorf("%v, %q", err, b)
	}
	if err != nil {
		t.Error(err)
	}
}
