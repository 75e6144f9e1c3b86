// Command report generates pages from results: the files of ./bench/ratio, and the output of
// go test -bench.
//
//	go run ./bench/report FILE...          a page on standard output
//	go run ./bench/report -o DIR FILE...   README.md, report.json and plots in DIR, and a summary
//	                                       on standard output; with -recorded DIR, how the ratios
//	                                       vary from here to the results in the folders of DIR
//	go run ./bench/report -machines DIR    machines.md and plots in DIR: the ratios of all folders
//	                                       of results in DIR
//
// The page has every goal with its floor and its result, or the reason why it has no result. Exit
// status 1 means that an undisturbed result misses a floor, or that the command failed; 2 that
// the command line is invalid.
package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/rpcrdma/rpcrdma/bench/internal/result"
)

func main() { os.Exit(run(os.Args[1:], os.Stdout, os.Stderr)) }

func run(args []string, stdout, stderr io.Writer) int {
	flags := flag.NewFlagSet("report", flag.ContinueOnError)
	flags.SetOutput(stderr)
	dir := flags.String("o", "", "write README.md, report.json and plots into `DIR`")
	title := flags.String("title", "Measurements", "what the page is called")
	several := flags.String("machines", "", "write machines.md and its plots into `DIR`, of the results in its folders")
	known := flags.String("recorded", "", "compare with the results in the folders of `DIR`, on the page of -o")
	quiet := flags.Bool("goals", false, "print the list of goals alone")
	if err := flags.Parse(args); errors.Is(err, flag.ErrHelp) {
		return 0
	} else if err != nil {
		return 2
	}
	if *several != "" && flags.NArg() == 0 {
		if err := writeMachines(*several); err != nil {
			fmt.Fprintln(stderr, "report:", err)
			return 1
		}
		return 0
	}
	if flags.NArg() == 0 {
		fmt.Fprintln(stderr, "report: which results? FILE... is missing")
		return 2
	}
	var files []*result.File
	for _, name := range flags.Args() {
		f, err := read(name)
		if err != nil {
			fmt.Fprintln(stderr, "report:", err)
			return 1
		}
		files = append(files, f)
	}
	section, line := "", ""
	if *known != "" {
		var err error
		if section, line, err = beside(*known, *dir, files); err != nil {
			fmt.Fprintln(stderr, "report:", err)
			return 1
		}
	}
	if err := write(stdout, *dir, *title, *quiet, section, files); err != nil {
		fmt.Fprintln(stderr, "report:", err)
		return 1
	}
	if *dir != "" {
		fmt.Fprint(stdout, "\n"+result.Screen(files))
		if line != "" {
			fmt.Fprintln(stdout, line)
		}
	}
	var breaches []result.Breach
	for _, f := range files {
		breaches = append(breaches, f.Breaches()...)
	}
	if len(breaches) > 0 {
		fmt.Fprintf(stderr, "report: below the floor: %s\n", result.Names(breaches))
		return 1
	}
	return 0
}

// read reads a file of either kind.
func read(name string) (*result.File, error) {
	b, err := os.ReadFile(name)
	if err != nil {
		return nil, err
	}
	if text := bytes.TrimSpace(b); len(text) > 0 && text[0] == '{' {
		f, err := result.Load(name)
		if err == nil {
			f.MarkBusy() // an incomplete run
		}
		return f, err
	}
	f, err := parseBenchmarks(string(b))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return f, nil
}

// write writes a page and its plots.
func write(stdout io.Writer, dir, title string, goalsOnly bool, section string, files []*result.File) error {
	goals := result.GoalsMarkdown(files)
	if goalsOnly {
		_, err := io.WriteString(stdout, goals)
		return err
	}
	if dir == "" {
		_, err := io.WriteString(stdout, page(title, goals, files, nil)+section)
		return err
	}
	if err := os.MkdirAll(dir, 0o777); err != nil {
		return err
	}
	var plots []plotFile
	for _, f := range files {
		list, err := plotAll(dir, f)
		if err != nil {
			return err
		}
		plots = append(plots, list...)
	}
	if err := os.WriteFile(filepath.Join(dir, "README.md"), []byte(page(title, goals, files, plots)+section), 0o666); err != nil {
		return err
	}
	b, err := json.MarshalIndent(merged(files), "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, "report.json"), append(b, '\n'), 0o666)
}

// reportJSON is the report as data: the goals with their results, and all results.
type reportJSON struct {
	Goals []goalJSON     `json:"goals"`
	Files []*result.File `json:"results"`
}

type goalJSON struct {
	Number int       `json:"number"`
	What   string    `json:"what"`
	Floor  string    `json:"floor"`
	Goal   string    `json:"goal"`
	Rows   []rowJSON `json:"rows"`
	Why    []string  `json:"not_measured,omitempty"`
}

type rowJSON struct {
	ID      string         `json:"id"`
	Value   result.Float   `json:"value"`
	Low     result.Float   `json:"low"`
	High    result.Float   `json:"high"`
	Verdict result.Verdict `json:"verdict"`
}

func merged(files []*result.File) reportJSON {
	r := reportJSON{Files: files}
	for _, g := range result.Goals {
		j := goalJSON{Number: g.Number, What: g.What, Floor: g.Floor, Goal: g.Want, Rows: []rowJSON{}}
		for _, f := range files {
			for i := range f.Pairs {
				if p := &f.Pairs[i]; p.Goal == g.Number {
					j.Rows = append(j.Rows, rowJSON{p.ID, p.Ratio, p.Low, p.High, p.Verdict()})
				}
			}
			for i := range f.Values {
				if v := &f.Values[i]; v.Goal == g.Number {
					j.Rows = append(j.Rows, rowJSON{v.ID, v.Value, v.Low, v.High, v.Verdict()})
				}
			}
			for _, m := range f.Missing {
				if m.Goal == g.Number {
					j.Why = append(j.Why, m.Why)
				}
			}
		}
		if len(j.Rows) > 0 {
			j.Why = nil
		}
		r.Goals = append(r.Goals, j)
	}
	return r
}

// page returns the whole page as Markdown.
func page(title, goals string, files []*result.File, plots []plotFile) string {
	var b strings.Builder
	fmt.Fprintf(&b, "# %s\n", title)
	for _, f := range files {
		fmt.Fprintf(&b, "\n## %s\n\n%s", f.Title, f.Markdown())
		for _, p := range plots {
			if p.of == f {
				fmt.Fprintf(&b, "\n![%s](%s)\n", p.what, p.name)
			}
		}
	}
	b.WriteString("\n## All goals\n\nA measured value has its quartiles, or its spread, in brackets.\n\n" + goals)
	return b.String()
}
