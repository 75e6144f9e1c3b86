// Mutate injects known defects into a copy of the tree, one at a time, and requires that
// the tests which each defect names fail. A test that was written for a defect comes with
// the defect: a file in tools/mutate/defects that ends in ".defect", such as
//
//	Defect: what is wrong with the code with these changes, in a sentence
//	Rule: none                     (or ids of internal/conformance/rules.tsv)
//	Test: ./transport TestName/sub (a test that must fail; -race after it if it needs that)
//
//	In: ./transport (*leader).flush
//	Do: drop t.inUse == 0
//
// There may be more tests and more changes, which are made in order. "In" names a package and
// a function, a method as stack traces name it, or a package's variables or constants. Each "Do"
// after it is an operation on one node of the syntax tree of that declaration:
//
//	drop PLACE                  leave out a statement, an element of a list, or an operand
//	replace PLACE with TEXT
//	set PLACE to TEXT           the right side, condition, range, cases or value of the place
//	insert TEXT before PLACE    beside the statement that is or contains the place
//	insert TEXT after PLACE
//
// A place is the text of an expression or of a simple statement, or it names the node:
//
//	call f, defer f, go f       f may be a method without its receiver, after call
//	set x, y                    an assignment to x, y; only "x, y" in "set x, y to TEXT"
//	if x, for x, range x        the statement with this condition or range, and all within it
//	case x, default             a clause and its statements
//	key k                       an element k: v
//
// White space does not matter. Exactly one node must match, or the place ends with the number
// of the node, as in "return nil #2". A text is one line of Go: semicolons separate statements.
//
// Changes that operations cannot express, such as those of imports or of C, are edits of lines:
//
//	File: transport/*.go
//	 	t.inUse--
//	-	if t.inUse == 0 && st.ended {
//	+	if st.ended {
//
// Lines of an edit are kept (' '), removed ('-') or added ('+'). The kept and the removed lines
// are the old text: it must occur exactly once in the files that match, down to the white space.
// A pattern lets code move between the files of a package; it does not match tests unless it ends
// in "_test.go". Context is only what makes the old text unique, and never a comment.
//
// A test kills a defect by failing or by a panic. The run fails if a change does not apply
// or the result does not build, and if a test does not exist, is skipped, hangs, fails
// without the defect or passes with it. A defect that breaks a rule must be killed by a
// test that bears the rule's id.
//
//	go run ./tools/mutate                        all defects
//	go run ./tools/mutate -run iwarp             those with a matching name
//	go run ./tools/mutate -sample 8 -budget 3m   some, chosen by a seed that is printed
//	go run ./tools/mutate -check                 run no test: check rules, test names, changes and types
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/signal"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"
	"text/tabwriter"
	"time"
)

// defectsDir is the directory of the defects, from the root of the tree.
const defectsDir = "tools/mutate/defects"

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	defer stop()
	var o options
	flag.StringVar(&o.root, "root", ".", "the root `directory` of the tree")
	flag.StringVar(&o.match, "run", "", "only defects whose name matches the regular `expression`")
	flag.IntVar(&o.sample, "sample", 0, "only `n` of them, chosen at random; 0 is all")
	flag.Uint64Var(&o.seed, "seed", 0, "repeat the choice of the run that printed this `number`; 0 chooses anew")
	flag.IntVar(&o.workers, "j", 1, "how many to try at a time, each in a copy of its own")
	flag.DurationVar(&o.limit, "limit", 2*time.Minute, "time limit of a test, without compiling it")
	flag.DurationVar(&o.budget, "budget", 0, "start no defect that would probably end later than this; 0 is no limit")
	flag.BoolVar(&o.check, "check", false, "run no test: only check that rules and tests exist and that all changes apply and build")
	flag.Parse()
	if flag.NArg() > 0 || o.workers < 1 || o.sample < 0 || o.limit <= 0 {
		flag.Usage()
		os.Exit(2)
	}
	ok, err := run(ctx, o, os.Stdout)
	if err != nil {
		fmt.Fprintln(os.Stderr, "mutate:", err)
	}
	if err != nil || !ok {
		os.Exit(1)
	}
}

type options struct {
	root    string
	match   string
	sample  int
	seed    uint64
	workers int
	limit   time.Duration
	budget  time.Duration
	check   bool
}

// outcome is the result for one defect.
type outcome struct {
	d      *defect
	killer string
	bad    string // what is wrong with the defect or its tests
	output string // of the test, if there is a problem
	took   time.Duration
}

// run reports whether every selected defect was killed as required.
func run(ctx context.Context, o options, w io.Writer) (bool, error) {
	re, err := regexp.Compile(o.match)
	if err != nil {
		return false, err
	}
	root, err := filepath.Abs(o.root)
	if err != nil {
		return false, err
	}
	defects, err := read(os.DirFS(filepath.Join(root, defectsDir)))
	if err != nil {
		return false, err
	}
	defects = slices.DeleteFunc(defects, func(d *defect) bool { return !re.MatchString(d.name) })
	if len(defects) == 0 {
		return false, fmt.Errorf("no defect in %s matches %q", defectsDir, o.match)
	}
	rules, err := readRules(os.DirFS(root))
	if err != nil {
		return false, err
	}
	if o.check {
		return checkAll(ctx, root, defects, rules, w)
	}
	known := len(defects)
	if o.sample > 0 {
		for o.seed == 0 {
			o.seed = rand.Uint64()
		}
		fmt.Fprintf(w, "mutate: %d of %d defects, -seed %d\n", min(o.sample, known), known, o.seed)
		r := rand.New(rand.NewPCG(o.seed, 0))
		r.Shuffle(known, func(i, j int) { defects[i], defects[j] = defects[j], defects[i] })
		defects = defects[:min(o.sample, known)]
	}
	outcomes, err := runAll(ctx, o, root, defects, rules, w)
	if err != nil {
		return false, err
	}
	return report(w, outcomes, len(defects)-len(outcomes)), nil
}

// runAll tries the defects and returns the outcomes of those for which there was time.
func runAll(ctx context.Context, o options, root string, defects []*defect, rules *rules, w io.Writer) ([]outcome, error) {
	work, err := os.MkdirTemp("", "mutate")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(work)
	begin := time.Now()
	var mu sync.Mutex
	var longest time.Duration
	var outcomes []outcome
	var failed error
	next := 0
	// take returns the next defect, or nil if none is left or there is no time for it.
	take := func() *defect {
		mu.Lock()
		defer mu.Unlock()
		late := o.budget > 0 && next > 0 && time.Since(begin)+longest > o.budget
		if next == len(defects) || late || failed != nil || ctx.Err() != nil {
			return nil
		}
		next++
		return defects[next-1]
	}
	var wg sync.WaitGroup
	for i := range min(o.workers, len(defects)) {
		wg.Go(func() {
			tree := filepath.Join(work, fmt.Sprint(i))
			err := os.Mkdir(tree, 0o777)
			if err == nil {
				err = copyTree(ctx, root, tree)
			}
			wk := &worker{options: o, tree: tree, rules: rules, sound: make(map[test]string)}
			for d := take(); err == nil && d != nil; d = take() {
				start := time.Now()
				var out outcome
				out, err = wk.try(ctx, d)
				if err != nil {
					err = fmt.Errorf("%s: %w", d.name, err)
					break
				}
				out.took = time.Since(start)
				mu.Lock()
				longest = max(longest, out.took)
				outcomes = append(outcomes, out)
				fmt.Fprintf(w, "%4.0fs %s: %s\n", time.Since(begin).Seconds(), d.name, out)
				mu.Unlock()
			}
			mu.Lock()
			defer mu.Unlock()
			if failed == nil {
				failed = err
			}
		})
	}
	wg.Wait()
	if failed == nil {
		failed = ctx.Err()
	}
	slices.SortFunc(outcomes, func(a, b outcome) int { return strings.Compare(a.d.name, b.d.name) })
	return outcomes, failed
}

func (o outcome) String() string {
	if o.bad != "" {
		return o.bad
	}
	return "killed by " + o.killer
}

// worker tries defects in its own tree.
type worker struct {
	options
	tree  string
	rules *rules
	sound map[test]string // tests run without a defect, with problems found
}

// try injects a defect, runs its tests and restores the tree. The error is a failure of this program; a problem with
// the defect or its tests is in the outcome.
func (wk *worker) try(ctx context.Context, d *defect) (outcome, error) {
	out := outcome{d: d}
	if err := wk.rules.check(d); err != nil {
		out.bad = err.Error()
		return out, nil
	}
	changed, err := d.apply(os.DirFS(wk.tree))
	if err != nil {
		out.bad = err.Error()
		return out, nil
	}
	for _, t := range d.tests {
		if out.bad, out.output = wk.baseline(ctx, t); out.bad != "" {
			return out, ctx.Err()
		}
	}
	restore, err := replace(wk.tree, changed)
	if err == nil {
		wk.kill(ctx, &out)
	}
	return out, errors.Join(err, restore(), ctx.Err())
}

// baseline runs a test without a defect, when it is first needed, and returns any problem with it. It returns the
// output only that time.
func (wk *worker) baseline(ctx context.Context, t test) (bad, output string) {
	if bad, known := wk.sound[t]; known {
		return bad, ""
	}
	v := goTest(ctx, wk.tree, t, wk.limit)
	switch {
	case v.fault != "":
		bad, output = fmt.Sprintf("%v, without the defect: %s", t, v.fault), v.output
	case v.alone || len(v.failed) > 0:
		bad, output = fmt.Sprintf("%v fails without the defect: %s", t, v.killer()), v.output
	}
	wk.sound[t] = bad
	return bad, output
}

// kill runs the tests of an injected defect: all of them must fail, and one that does must bear the id of each rule.
func (wk *worker) kill(ctx context.Context, out *outcome) {
	var survived []string
	born := make(map[string]bool) // rules with ids that the failing tests bear
	for _, t := range out.d.tests {
		v := goTest(ctx, wk.tree, t, wk.limit)
		switch {
		case v.fault != "":
			out.bad, out.output = fmt.Sprintf("%v: %s", t, v.fault), v.output
		case !v.alone && len(v.failed) == 0:
			survived = append(survived, t.String())
		default:
			if out.killer == "" {
				out.killer = v.killer()
			}
			for _, name := range v.failed {
				function, _, _ := strings.Cut(name, "/")
				for _, id := range out.d.rules {
					born[id] = born[id] || wk.rules.bears(t.pkg, function, id)
				}
			}
		}
	}
	if out.bad == "" && len(survived) > 0 {
		out.bad = "SURVIVED " + strings.Join(survived, ", ")
	}
	for _, id := range out.d.rules {
		if out.bad == "" && !born[id] {
			out.bad = fmt.Sprintf("%s, which killed it, does not bear the id %s", out.killer, id)
		}
	}
}

// report prints the table of outcomes, then their problems.
func report(w io.Writer, outcomes []outcome, left int) bool {
	fmt.Fprintln(w)
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(tw, "defect\trule\tkilled by\tseconds")
	bad := 0
	for _, o := range outcomes {
		killer := o.killer
		if o.bad != "" {
			bad++
			killer = "- see below"
		}
		ids := strings.Join(o.d.rules, " ")
		if ids == "" {
			ids = noRule
		}
		fmt.Fprintf(tw, "%s\t%s\t%s\t%.1f\n", o.d.name, ids, killer, o.took.Seconds())
	}
	tw.Flush()
	for _, o := range outcomes {
		if o.bad != "" {
			fmt.Fprintf(w, "\n%s: %s\n  %s\n", o.d.path(), o.bad, o.d.says)
			for line := range strings.Lines(strings.TrimSpace(o.output)) {
				fmt.Fprintf(w, "    %s\n", strings.TrimRight(line, "\n"))
			}
		}
	}
	fmt.Fprintf(w, "\nmutate: %d of %d defects killed by the tests that they name", len(outcomes)-bad, len(outcomes))
	if left > 0 {
		fmt.Fprintf(w, "; no time was left for %d others", left)
	}
	fmt.Fprintln(w)
	return bad == 0 && len(outcomes) > 0
}
