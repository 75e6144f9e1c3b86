package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/rpcrdma/rpcrdma/internal/limited"
)

// verdict is the result of a run of go test.
type verdict struct {
	failed []string // failed tests, without parents of other failed tests
	alone  bool     // the run failed although no test did: TestMain found a problem afterwards
	ran    int      // tests run at the depth of the expression or below
	fault  string   // why the run is inconclusive
	output string   // last lines, for people
}

// event is a line of go test -json.
type event struct {
	Action, Test, Output string
}

// buildLimit is the time for compiling, in addition to the limit of the tests.
const buildLimit = 10 * time.Minute

// maxOutput is how many bytes go test may print.
const maxOutput = 64 << 20

// goTest runs a test in a tree, for at most limit once it is compiled.
func goTest(ctx context.Context, tree string, t test, limit time.Duration) verdict {
	args := []string{"test", "-json", "-count=1", "-timeout=" + limit.String(), "-run=" + t.run}
	if t.race {
		args = append(args, "-race")
	}
	cmd := exec.Command("go", append(args, t.pkg)...)
	cmd.Dir = tree
	p := limited.Program{Cmd: cmd, Limit: limit + buildLimit, MaxOutput: maxOutput}
	r, err := p.Run(ctx)
	return judge(r.Stdout, r.Said(), t.depth(), err)
}

// judge interprets the output of go test -json. depth is the number of slashes in the expression.
func judge(stdout []byte, said string, depth int, err error) verdict {
	var v verdict
	var failed, skipped []string
	running := make(map[string]bool) // tests that have started but not ended
	var tail, build []string
	timedOut, buildFailed := false, false
	passed := 0
	for line := range bytes.Lines(stdout) {
		var e event
		if json.Unmarshal(line, &e) != nil {
			continue
		}
		if e.Test == "" && e.Action == "build-output" {
			build = append(build, e.Output)
		}
		if e.Action == "build-fail" {
			buildFailed = true
		}
		deep := e.Test != "" && strings.Count(e.Test, "/") >= depth
		switch e.Action {
		case "run":
			running[e.Test] = true
			if deep {
				v.ran++
			}
		case "pass":
			delete(running, e.Test)
			if deep {
				passed++
			}
		case "fail":
			delete(running, e.Test)
			if e.Test != "" {
				failed = append(failed, e.Test)
			}
		case "skip":
			delete(running, e.Test)
			if deep {
				skipped = append(skipped, e.Test)
			}
		case "output":
			timedOut = timedOut || strings.HasPrefix(e.Output, "panic: test timed out after ")
			// Lines around the output of each test carry no information.
			if t := strings.TrimSpace(e.Output); t != "" && !strings.HasPrefix(t, "=== ") && !strings.HasPrefix(t, "--- PASS") {
				tail = append(tail, e.Output)
			}
		}
	}
	if err != nil && len(failed) == 0 {
		// A panic in another goroutine ends the process and, with it, the running tests.
		failed = slices.Sorted(maps.Keys(running))
	}
	for _, name := range failed {
		if !slices.ContainsFunc(failed, func(other string) bool { return strings.HasPrefix(other, name+"/") }) {
			v.failed = append(v.failed, name)
		}
	}
	const lines = 12
	v.output = strings.Join(tail[max(0, len(tail)-lines):], "")
	var exit *exec.ExitError
	switch {
	case errors.As(err, new(*limited.TimeError)) || errors.As(err, new(*limited.OutputError)):
		v.fault = err.Error()
	case err != nil && !errors.As(err, &exit):
		v.fault = err.Error()
	case buildFailed || len(build) > 0 && err != nil:
		v.fault, v.output = "it does not build", strings.Join(build[:min(len(build), lines)], "")
	case timedOut:
		v.fault = "the test hung until its time was over"
	case v.ran == 0 && err != nil:
		v.fault, v.output = "go test failed before any test ran", said+v.output
	case v.ran == 0:
		v.fault = "no test has that name"
	case len(skipped) > 0 && passed == 0 && len(v.failed) == 0:
		v.fault = "the test was skipped"
	case err != nil && len(v.failed) == 0:
		v.alone = true
	}
	return v
}

// killer names the tests that failed.
func (v verdict) killer() string {
	if v.alone {
		return "what is looked at after all tests"
	}
	names := v.failed[0]
	if more := len(v.failed) - 1; more > 0 {
		names += fmt.Sprintf(" and %s more", strconv.Itoa(more))
	}
	return names
}
