package main

import (
	"fmt"
	"io/fs"
	"maps"
	"path"
	"slices"
	"strings"

	"github.com/rpcrdma/rpcrdma/internal/conformance"
)

const introduction = `# What is supported

Written by ` + "`go run ./tools/support`" + ` from the results of test runs, which are in [docs/reports/support](support). A cell says *passed* if
all tests that the program names for it passed in a run, and *not run* if there is no record of one: then nothing is claimed here.
Where a cell is empty, the adapter has no such thing.

` + "`go run ./tools/support -record NAME`" + ` runs one of the commands below, records what came of it, and writes this page anew.
`

// page returns the page for the records of a tree.
func page(root fs.FS) (string, error) {
	recs, err := load(root)
	if err != nil {
		return "", err
	}
	catalogue, err := conformance.Ours()
	if err != nil {
		return "", err
	}
	sources, err := conformance.Scan(root, catalogue)
	if err != nil {
		return "", err
	}
	adapters, err := loadAdapters(root)
	if err != nil {
		return "", err
	}
	m := merge(recs)
	var b strings.Builder
	b.WriteString(introduction)
	writeRuns(&b, recs)
	writeTable(&b, "What programs use", m, features)
	b.WriteString("\nrxe and siw are the RDMA devices of Linux in software: RoCE v2 and iWARP. No adapter in hardware has been tested.\n")
	writeAdapters(&b, adapters)
	writeTable(&b, "With programs of others", m, peers)
	writeSpecifications(&b, m, catalogue, sources)
	writePlatforms(&b, recs)
	b.WriteString(missing)
	return b.String(), nil
}

const missing = `
## What there is not

- TLS on RDMA devices: adapters encrypt nothing.
- NFSv4 beyond sessions and their backchannel, as a client; locks (NLM) of NFSv3.
- Provider ` + "`rdmacm`" + ` and ` + "`rpcrdma serve`" + ` outside Linux.
- A shared receive queue ([ADR 10](../adr/0010-no-shared-receive-queue-at-the-seam.md)).
`

// merge combines the results of all records. A test that failed in one has failed. One that passed in one and was
// skipped in others has passed.
func merge(recs []namedRec) map[string]result {
	rank := map[result]int{"": 0, skipped: 1, passed: 2, failed: 3}
	m := make(map[string]result)
	for _, n := range recs {
		for test, r := range n.Tests {
			if rank[r] > rank[m[test]] {
				m[test] = r
			}
		}
	}
	return m
}

// verdict returns the combined result of a list of tests.
func verdict(m map[string]result, list []string) string {
	missing := 0
	for _, test := range list {
		switch m[test] {
		case failed:
			return "**failed**"
		case passed:
		default:
			missing++
		}
	}
	switch missing {
	case 0:
		return "passed"
	case len(list):
		return "not run"
	}
	return "not all run"
}

func writeRuns(b *strings.Builder, recs []namedRec) {
	b.WriteString("\n## Runs\n\n| name | what | date, UTC | commit | kernel | Go | passed | failed | skipped |\n|---|---|---|---|---|---|--:|--:|--:|\n")
	for _, r := range runs {
		i := slices.IndexFunc(recs, func(n namedRec) bool { return n.name == r.name })
		if i < 0 {
			fmt.Fprintf(b, "| %s | %s | not run | | | | | | |\n", r.name, r.what)
		} else {
			writeRun(b, &recs[i])
		}
	}
	for i := range recs {
		if !slices.ContainsFunc(runs, func(r run) bool { return r.name == recs[i].name }) {
			writeRun(b, &recs[i])
		}
	}
	b.WriteString("\nTests are counted without their subtests. The commands:\n\n```\n")
	for _, r := range runs {
		fmt.Fprintf(b, "%-10s %s\n", r.name, strings.Join(append(slices.Clone(r.env), r.command...), " "))
	}
	for i := range recs {
		n := &recs[i]
		if !slices.ContainsFunc(runs, func(r run) bool {
			return r.name == n.name && n.Command == strings.Join(append(slices.Clone(r.env), r.command...), " ")
		}) {
			fmt.Fprintf(b, "%-10s %s\n", n.name, n.Command)
		}
	}
	b.WriteString("```\n")
}

// writeRun writes the row of a record.
func writeRun(b *strings.Builder, n *namedRec) {
	count := make(map[result]int)
	for test, r := range n.Tests {
		if !isSubtest(test) {
			count[r]++
		}
	}
	bad := fmt.Sprint(count[failed])
	if len(n.Failed) > 0 {
		bad += ", in " + strings.Join(n.Failed, ", ")
	} else if !n.OK {
		bad += "; the command failed"
	}
	fmt.Fprintf(b, "| %s | %s | %s | %s | %s | %s | %d | %s | %d |\n", n.name, n.What, n.Date.Format("2006-01-02 15:04"), n.Commit, n.Kernel, n.Go, count[passed], bad, count[skipped])
}

func writeTable(b *strings.Builder, title string, m map[string]result, rows []row) {
	fmt.Fprintf(b, "\n## %s\n\n| | %s |\n|---|---|---|---|---|\n", title, strings.Join(columns, " | "))
	for _, r := range rows {
		fmt.Fprintf(b, "| %s |", r.what)
		for _, cell := range r.cells {
			list, text := tests(cell)
			if len(list) > 0 {
				text = verdict(m, list)
			}
			fmt.Fprintf(b, " %s |", text)
		}
		b.WriteString("\n")
	}
}

// writeSpecifications counts the rules of each document, as in docs/reports/conformance.md, and the results of the
// tests that name them.
func writeSpecifications(b *strings.Builder, m map[string]result, c *conformance.Catalogue, s *conformance.Sources) {
	b.WriteString("\n## Specifications\n\n[conformance.md](conformance.md) has the rules one by one. A rule counts as passed if one of its tests at least passed in a run, and none failed.\n\n")
	b.WriteString("| document | rules | passed | failed | not run | without a test, with a reason |\n|---|--:|--:|--:|--:|--:|\n")
	var documents []string
	for i := range c.Rules {
		if d := c.Rules[i].Document; !slices.Contains(documents, d) {
			documents = append(documents, d)
		}
	}
	for _, d := range documents {
		var all, good, bad, not, reason int
		for i := range c.Rules {
			if c.Rules[i].Document != d {
				continue
			}
			all++
			id := c.Rules[i].ID
			_, excused := c.Reasons[id]
			results := make(map[result]bool)
			for _, test := range s.Tests[id] {
				results[m[strings.TrimSuffix(test, "†")]] = true
			}
			switch {
			case results[failed]:
				bad++
			case results[passed]:
				good++
			case excused:
				reason++
			default:
				not++
			}
		}
		fmt.Fprintf(b, "| %s | %d | %d | %d | %d | %d |\n", documentName(d), all, good, bad, not, reason)
	}
}

// documentName returns the name of a document of internal/conformance for readers.
func documentName(d string) string {
	d = strings.TrimPrefix(d, "CTX-")
	if n, ok := strings.CutPrefix(d, "RFC"); ok {
		return "RFC " + n
	}
	for prefix, name := range map[string]string{"BIDI": "draft-ietf-nfsv4-rpcrdma-bidirection", "V2": "draft-cel-nfsv4-rpcrdma-version-two"} {
		if n, ok := strings.CutPrefix(d, prefix); ok {
			return name + n
		}
	}
	return d
}

func writePlatforms(b *strings.Builder, recs []namedRec) {
	b.WriteString("\n## Kernels, Go and processors\n\n| run | kernel | devices | Go | machine |\n|---|---|---|---|---|\n")
	builds := make(map[string]string)
	for i := range recs {
		n := &recs[i]
		fmt.Fprintf(b, "| %s | %s | %s | %s | %s |\n", n.name, n.Kernel, n.Devices, n.Go, n.Machine)
		for _, what := range n.Builds {
			builds[what] = n.Date.Format("2006-01-02") + ", commit " + n.Commit
		}
	}
	b.WriteString("\nBuilt, and vetted with the tests, by `scripts/build-matrix`:\n\n")
	if len(builds) == 0 {
		b.WriteString("not run\n")
		return
	}
	b.WriteString("| what | when |\n|---|---|\n")
	for _, what := range slices.Sorted(maps.Keys(builds)) {
		fmt.Fprintf(b, "| %s | %s |\n", what, builds[what])
	}
}

// packageOf returns the directory of a test's package, and the name of its function.
func packageOf(test string) (dir, function string) {
	dir, name, _ := strings.Cut(test, ".")
	name, _, _ = strings.Cut(name, "/")
	return path.Clean(dir), name
}
