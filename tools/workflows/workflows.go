// Package workflows has the rules for the workflows in .github, which run the project's
// checks in public: a workflow only calls targets of the Makefile, so that whatever fails
// there can be seen to fail anywhere.
package workflows

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/rhysd/actionlint"
)

// Targets lists the targets that a Makefile says are its own, by a line of help.
func Targets(makefile string) []string {
	var names []string
	for _, m := range regexp.MustCompile(`(?m)^([a-z-]+):.*## `).FindAllStringSubmatch(makefile, -1) {
		names = append(names, m[1])
	}
	return names
}

// Immutable.
var (
	makes     = regexp.MustCompile(`^make (\S+|\$\{\{ matrix\.target \}\})$`)
	matrix    = "${{ matrix.target }}"
	pinned    = regexp.MustCompile(`@[0-9a-f]{40}$`)
	commented = regexp.MustCompile(`@[0-9a-f]{40} # v\d+\.\d+\.\d+$`)
	uses      = regexp.MustCompile(`(?m)^\s*(?:- )?uses: (.*)$`)
)

// Check applies the rules to one workflow, and returns what it finds and the targets
// that the workflow calls.
//
//   - Whatever runs is one target of the Makefile, which exists.
//   - Actions of others are pinned by the hash of a commit, and the version is beside it.
//   - Nobody may write but a job that says so, and no job runs without end.
//   - Runs that overlap are dealt with.
func Check(src string, targets []string) (findings, called []string) {
	found := func(format string, args ...any) { findings = append(findings, fmt.Sprintf(format, args...)) }
	w, errs := actionlint.Parse([]byte(src))
	for _, err := range errs {
		found("%s", err.Message)
	}
	if w == nil {
		return findings, nil
	}
	if !onlyReads(w.Permissions) {
		found("the workflow may do more than read the contents of the repository")
	}
	if w.Concurrency == nil {
		found("nothing is said about runs that overlap")
	}
	for name, job := range w.Jobs {
		if job.TimeoutMinutes == nil {
			found("job %s has no time limit", name)
		}
		if p := job.Permissions; p != nil && p.All != nil {
			found("job %s has permissions by the dozen", name)
		}
		for _, step := range job.Steps {
			switch exec := step.Exec.(type) {
			case *actionlint.ExecAction:
				if !pinned.MatchString(exec.Uses.Value) {
					found("job %s: %s is not pinned by a commit", name, exec.Uses.Value)
				}
			case *actionlint.ExecRun:
				m := makes.FindStringSubmatch(strings.TrimSpace(exec.Run.Value))
				if m == nil {
					found("job %s: %q is not one target of the Makefile", name, exec.Run.Value)
					continue
				}
				steps := []string{m[1]}
				if m[1] == matrix {
					steps = matrixTargets(job)
				}
				for _, target := range steps {
					called = append(called, target)
					if !slices.Contains(targets, target) {
						found("job %s: the Makefile has no target %q", name, target)
					}
				}
			}
		}
	}
	for _, m := range uses.FindAllStringSubmatch(src, -1) {
		if !commented.MatchString(m[1]) {
			found("%s: no version beside the commit", m[1])
		}
	}
	slices.Sort(findings)
	return findings, called
}

// onlyReads: what is not said is what the repository allows by default.
func onlyReads(p *actionlint.Permissions) bool {
	if p == nil || p.All != nil {
		return false
	}
	for _, scope := range p.Scopes {
		if scope.Value.Value != "read" && scope.Value.Value != "none" {
			return false
		}
	}
	return true
}

// matrixTargets are the values of the matrix's row "target".
func matrixTargets(job *actionlint.Job) []string {
	if job.Strategy == nil || job.Strategy.Matrix == nil || job.Strategy.Matrix.Rows["target"] == nil {
		return []string{matrix}
	}
	var names []string
	for _, v := range job.Strategy.Matrix.Rows["target"].Values {
		names = append(names, strings.Trim(v.String(), `"`))
	}
	return names
}
