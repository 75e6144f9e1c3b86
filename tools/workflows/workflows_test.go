package workflows

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

const root = "../.."

func read(t *testing.T, path string) string {
	t.Helper()
	src, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(src)
}

// TestWorkflows applies the rules to this project, and requires every check of the
// Makefile to run in CI.
func TestWorkflows(t *testing.T) {
	targets := Targets(read(t, filepath.Join(root, "Makefile")))
	files, err := filepath.Glob(filepath.Join(root, ".github/workflows/*"))
	if err != nil || len(files) < 2 {
		t.Fatalf("%d workflows, %v", len(files), err)
	}
	var all []string
	for _, file := range files {
		findings, called := Check(read(t, file), targets)
		for _, f := range findings {
			t.Errorf("%s: %s", filepath.Base(file), f)
		}
		if len(called) == 0 {
			t.Errorf("%s calls nothing", filepath.Base(file))
		}
		all = append(all, called...)
	}
	for _, target := range targets {
		switch target {
		case "help", "build", "bench", "bench-rdma", "bench-machines", "generate", "instructions", "instructions-rdma", "locks": // no checks; shared machines cannot measure; tests compare
			continue
		}
		if !slices.Contains(all, target) {
			t.Errorf("no workflow calls make %s", target)
		}
	}
}

const good = `
on: push
permissions:
  contents: read
concurrency: one
jobs:
  a:
    runs-on: ubuntu-24.04
    timeout-minutes: 5
    strategy:
      matrix:
        target: [lint, test]
    steps:
      - uses: actions/checkout@0123456789012345678901234567890123456789 # v1.2.3
      - run: make ${{ matrix.target }}
      - run: make demo
`

// TestRulesCanFail breaks each rule in a workflow that is otherwise correct.
func TestRulesCanFail(t *testing.T) {
	targets := Targets("demo: ## show it\ntest: all ## test it\nlint: ## look at it\nfiles: a b\n")
	if want := []string{"demo", "test", "lint"}; !slices.Equal(targets, want) {
		t.Fatalf("targets %q, want %q", targets, want)
	}
	findings, called := Check(good, targets)
	if len(findings) > 0 || !slices.Equal(called, []string{"lint", "test", "demo"}) {
		t.Fatalf("findings %q, called %q", findings, called)
	}
	for _, tt := range []struct{ old, new, want string }{
		{"make demo", "make dmeo", `no target "dmeo"`},
		{"make demo", "make demo && curl example.org", "is not one target"},
		{"make demo", "go test ./...", "is not one target"},
		{"make demo", "|\n          make demo\n          make test", "is not one target"},
		{"[lint, test]", "[lint, tset]", `no target "tset"`},
		{"target: [", "other: [", "the Makefile has no target"},
		{"@0123456789012345678901234567890123456789 # v1.2.3", "@v4", "not pinned"},
		{" # v1.2.3", "", "no version beside"},
		{"contents: read", "contents: write", "more than read permissions"},
		{"permissions:\n  contents: read\n", "", "more than read permissions"},
		{"permissions:\n  contents: read\n", "permissions: write-all\n", "more than read permissions"},
		{"concurrency: one\n", "", "concurrency is not configured"},
		{"    timeout-minutes: 5\n", "", "no time limit"},
		{"    timeout-minutes: 5\n", "    timeout-minutes: 5\n    permissions: write-all\n", "for all scopes"},
		{"runs-on", "runs_on", "unexpected key"},
	} {
		src := strings.Replace(good, tt.old, tt.new, 1)
		if src == good {
			t.Fatalf("%q is not there", tt.old)
		}
		findings, _ := Check(src, targets)
		if !slices.ContainsFunc(findings, func(f string) bool { return strings.Contains(f, tt.want) }) {
			t.Errorf("%q for %q: findings %q, want one of %q", tt.new, tt.old, findings, tt.want)
		}
	}
}
