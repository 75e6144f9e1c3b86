// Package workflows has the rules for the workflows in .github: a workflow only calls
// targets of the Makefile, so that a failure in CI can be reproduced on any machine.
package workflows

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/rhysd/actionlint"
)

// Targets lists the targets of a Makefile that have a help text.
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

// Check applies the rules to one workflow. It returns the findings and the targets that
// the workflow calls.
//
//   - Every command is one existing target of the Makefile.
//   - Actions are pinned by commit hash, with the version in a comment.
//   - Write permissions are declared by the job that needs them; every job has a time limit.
//   - Concurrent runs are configured.
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
		found("the workflow has more than read permissions")
	}
	if w.Concurrency == nil {
		found("concurrency is not configured")
	}
	for name, job := range w.Jobs {
		if job.TimeoutMinutes == nil {
			found("job %s has no time limit", name)
		}
		if p := job.Permissions; p != nil && p.All != nil {
			found("job %s has permissions for all scopes", name)
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

// onlyReads reports whether permissions are declared, and read-only: what is not declared
// is the repository's default.
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

// matrixTargets returns the values of the matrix's row "target".
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
