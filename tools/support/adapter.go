package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// adaptersDir is the directory for reports of adapters, relative to the root of the repository.
const adaptersDir = recordsDir + "/adapters"

// adapterReport is the part of a `rpcrdma selftest` report that the page needs.
type adapterReport struct {
	Schema  int    `json:"schema"`
	Date    string `json:"date"`
	Version string `json:"version"`
	Adapter struct {
		Driver       string          `json:"driver"`
		Transport    string          `json:"transport"`
		VendorID     uint32          `json:"vendor_id,omitempty"`
		VendorPartID uint32          `json:"vendor_part_id,omitempty"`
		Firmware     string          `json:"firmware,omitempty"`
		MTU          int             `json:"mtu,omitempty"`
		LinkLayer    string          `json:"link_layer,omitempty"`
		Limits       json.RawMessage `json:"limits,omitempty"`
	} `json:"adapter"`
	System struct {
		Kernel string `json:"kernel"`
		Go     string `json:"go"`
		CPUs   int    `json:"cpus"`
	} `json:"system"`
	Peer    bool            `json:"peer"`
	Results []adapterResult `json:"results"`
}

type adapterResult struct {
	Name    string             `json:"name"`
	Outcome result             `json:"outcome"`
	Why     string             `json:"why,omitempty"`
	Seconds float64            `json:"seconds"`
	Figures map[string]float64 `json:"figures,omitempty"`
}

// Limits for a report, which may come from a stranger.
const (
	adapterMost    = 1 << 20 // bytes
	adapterResults = 1000
)

// What the texts of a report may contain. Immutable.
var (
	driverForm = regexp.MustCompile(`^[a-z][a-z0-9_]{0,31}$`)
	dateForm   = regexp.MustCompile(`^20\d\d-[01]\d-[0-3]\d$`)
	plainForm  = regexp.MustCompile(`^[A-Za-z0-9 ._/,()+:-]{0,100}$`)
)

// parseAdapter parses a report, and rejects everything else.
func parseAdapter(b []byte) (*adapterReport, error) {
	if len(b) > adapterMost {
		return nil, fmt.Errorf("the report has %d bytes, more than %d", len(b), adapterMost)
	}
	d := json.NewDecoder(bytes.NewReader(b))
	d.DisallowUnknownFields()
	var r adapterReport
	if err := d.Decode(&r); err != nil {
		return nil, err
	}
	if _, err := d.Token(); err != io.EOF {
		return nil, fmt.Errorf("something follows the report")
	}
	if r.Schema != 1 {
		return nil, fmt.Errorf("the report is of schema %d, and 1 is known", r.Schema)
	}
	if !driverForm.MatchString(r.Adapter.Driver) || !dateForm.MatchString(r.Date) || len(r.Results) == 0 || len(r.Results) > adapterResults {
		return nil, fmt.Errorf("driver %q, date %q, %d results", r.Adapter.Driver, r.Date, len(r.Results))
	}
	texts := []string{r.Version, r.Adapter.Transport, r.Adapter.Firmware, r.Adapter.LinkLayer, r.System.Kernel, r.System.Go}
	for i := range r.Results {
		res := &r.Results[i]
		if res.Outcome != passed && res.Outcome != failed && res.Outcome != skipped {
			return nil, fmt.Errorf("an outcome is %q", res.Outcome)
		}
		texts = append(texts, res.Name)
	}
	for _, text := range texts {
		if !plainForm.MatchString(text) {
			return nil, fmt.Errorf("the text %.100q is not plain", text)
		}
	}
	return &r, nil
}

// addAdapter stores a report, replacing an earlier one of the same adapter.
func addAdapter(file string) error {
	b, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	r, err := parseAdapter(b)
	if err != nil {
		return fmt.Errorf("%s: %w", file, err)
	}
	for i := range r.Results {
		if res := &r.Results[i]; res.Outcome == skipped {
			res.Why = "" // it is the device's own
		}
		r.Results[i].Seconds = 0
	}
	if b, err = json.MarshalIndent(r, "", "\t"); err != nil {
		return err
	}
	if err := os.MkdirAll(adaptersDir, 0o777); err != nil {
		return err
	}
	name := fmt.Sprintf("%s-%04x-%04x.json", r.Adapter.Driver, r.Adapter.VendorID, r.Adapter.VendorPartID)
	return os.WriteFile(filepath.Join(adaptersDir, name), append(b, '\n'), 0o666)
}

// loadAdapters returns the reports of a tree, by driver.
func loadAdapters(root fs.FS) (list []*adapterReport, err error) {
	files, err := fs.Glob(root, adaptersDir+"/*.json")
	if err != nil {
		return nil, err
	}
	for _, file := range files {
		b, err := fs.ReadFile(root, file)
		if err != nil {
			return nil, err
		}
		r, err := parseAdapter(b)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", file, err)
		}
		list = append(list, r)
	}
	return list, nil
}

const adaptersIntroduction = `
## Adapters, as their owners have tried them

` + "`rpcrdma selftest DEVICE`" + ` tries an adapter and writes a report, which ` + "`go run ./tools/support -add FILE`" + ` makes a column here. Owners of
adapters that are not here: please send one. Latencies are of calls one at a time within one machine.
`

// writeAdapters writes a column for each adapter, and below the table what has failed.
func writeAdapters(b *strings.Builder, list []*adapterReport) {
	b.WriteString(adaptersIntroduction)
	if len(list) == 0 {
		return
	}
	row := func(what string, cell func(*adapterReport) string) {
		b.WriteString("\n| " + what + " |")
		for _, r := range list {
			b.WriteString(" " + cell(r) + " |")
		}
	}
	row("", func(r *adapterReport) string { return r.Adapter.Driver })
	b.WriteString("\n|---|" + strings.Repeat("---|", len(list)))
	row("transport, firmware", func(r *adapterReport) string {
		return strings.Trim(r.Adapter.Transport+", "+r.Adapter.Firmware, ", ")
	})
	row("vendor, part", func(r *adapterReport) string {
		if r.Adapter.VendorID == 0 {
			return ""
		}
		return fmt.Sprintf("%#x, %#x", r.Adapter.VendorID, r.Adapter.VendorPartID)
	})
	row("kernel", func(r *adapterReport) string { return r.System.Kernel })
	row("tried on", func(r *adapterReport) string { return r.Date })
	for _, group := range adapterGroups(list) {
		row(group, func(r *adapterReport) string { return r.sum(group) })
	}
	row("NULL, median", func(r *adapterReport) string { return r.figure("calls/NULL", "p50_us", "µs") })
	row("1 MiB from the server", func(r *adapterReport) string { return r.figure("calls/1 MiB from the server", "mib_per_s", "MiB/s") })
	row("1 MiB to the server", func(r *adapterReport) string { return r.figure("calls/1 MiB to the server", "mib_per_s", "MiB/s") })
	b.WriteString("\n\n")
	for _, r := range list {
		for _, res := range r.Results {
			if res.Outcome == failed {
				fmt.Fprintf(b, "- %s, %s: %s\n", r.Adapter.Driver, res.Name, codeText(res.Why))
			}
		}
	}
}

// codeText formats a stranger's text as code in a page.
func codeText(s string) string {
	s = strings.Map(func(r rune) rune {
		if r == '`' || !strconv.IsPrint(r) {
			return ' '
		}
		return r
	}, s)
	if len(s) > 300 {
		s = strings.ToValidUTF8(s[:300], "") + "..."
	}
	return "`" + strings.TrimSpace(s) + "`"
}

// groupOf is the part of a check's name that has a row.
func groupOf(name string) string {
	parts := strings.SplitN(name, "/", 3)
	if len(parts) == 3 {
		return parts[0] + ", " + parts[1]
	}
	return parts[0]
}

// adapterGroups returns the groups of all reports, in the order of the checks.
func adapterGroups(list []*adapterReport) (groups []string) {
	for _, r := range list {
		for _, res := range r.Results {
			if g := groupOf(res.Name); !slices.Contains(groups, g) {
				groups = append(groups, g)
			}
		}
	}
	return groups
}

// sum says what came of a group of checks.
func (r *adapterReport) sum(group string) string {
	n := make(map[result]int)
	for _, res := range r.Results {
		if groupOf(res.Name) == group {
			n[res.Outcome]++
		}
	}
	var parts []string
	for _, of := range []result{failed, passed, skipped} {
		switch {
		case n[of] == 0:
		case of == failed:
			parts = append(parts, fmt.Sprintf("**%d failed**", n[of]))
		default:
			parts = append(parts, fmt.Sprintf("%d %s", n[of], of))
		}
	}
	return strings.Join(parts, ", ")
}

func (r *adapterReport) figure(check, name, unit string) string {
	for _, res := range r.Results {
		if v, ok := res.Figures[name]; ok && res.Name == check {
			return fmt.Sprintf("%.4g %s", v, unit)
		}
	}
	return ""
}
