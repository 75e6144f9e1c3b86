// Api writes what the packages of this repository offer to programs, one declaration a line, into
// docs/api: a change of the API shows in review as a change of those files.
//
//	api [-w]
//
// Without -w it compares. Listed are the packages that docs/install.md is about. A line tells the
// type of a name, without the names of parameters:
//
//	const RDMAMsg Proc = 0
//	func Dial(context.Context, Dialer, string, *ClientConfig) (*Client, error)
//	method (*Client) Close() error
//	type Caller interface { Call, Close }
//	type Caller interface, Close() error
//	type Config struct
//	type Config struct, Credits int
//
// A struct is marked as comparable if it is; an interface lists its methods again, because one method
// more breaks the programs that implement it. Methods of embedded types are among the others. The
// listings are those of Linux on x86-64 with cgo, and need neither: the sources are type-checked, not
// built.
package main

import (
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// room is the directory of the listings, relative to the top of the repository.
const room = "docs/api"

func main() {
	write := flag.Bool("w", false, "write the listings")
	flag.Parse()
	err := errors.New("usage: api [-w]")
	if flag.NArg() == 0 {
		err = run(*write)
	}
	if err != nil {
		fmt.Fprintf(os.Stderr, "api: %v\n", err)
		os.Exit(1)
	}
}

func run(write bool) error {
	root, err := top()
	if err != nil {
		return err
	}
	want, err := listings(root)
	if err != nil {
		return err
	}
	if write {
		return store(root, want)
	}
	got, err := stored(root)
	if err != nil {
		return err
	}
	if findings := compare(got, want); len(findings) > 0 {
		return fmt.Errorf("the API differs from %s; 'make generate' writes it anew:\n%s", room, strings.Join(findings, "\n"))
	}
	return nil
}

// stored returns the lines of the listings in the tree, by package directory.
func stored(root string) (map[string][]string, error) {
	dir := filepath.Join(root, filepath.FromSlash(room))
	list := make(map[string][]string)
	err := filepath.WalkDir(dir, func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		rel, err := filepath.Rel(dir, name)
		if err != nil {
			return err
		}
		text, err := os.ReadFile(name)
		if err != nil {
			return err
		}
		list[strings.TrimSuffix(filepath.ToSlash(rel), ".txt")] = strings.Split(strings.TrimSuffix(string(text), "\n"), "\n")
		return nil
	})
	if errors.Is(err, fs.ErrNotExist) {
		err = nil
	}
	return list, err
}

// store replaces the listings in the tree.
func store(root string, list map[string][]string) error {
	dir := filepath.Join(root, filepath.FromSlash(room))
	if err := os.RemoveAll(dir); err != nil {
		return err
	}
	for pkg, lines := range list {
		name := filepath.Join(dir, filepath.FromSlash(pkg)+".txt")
		if err := os.MkdirAll(filepath.Dir(name), 0o777); err != nil {
			return err
		}
		if err := os.WriteFile(name, []byte(strings.Join(lines, "\n")+"\n"), 0o666); err != nil {
			return err
		}
	}
	return nil
}

// compare returns what is only in one of two sets of listings, like a diff.
func compare(got, want map[string][]string) (findings []string) {
	all := maps.Clone(got)
	maps.Copy(all, want)
	for _, pkg := range slices.Sorted(maps.Keys(all)) {
		before := len(findings)
		for _, line := range got[pkg] {
			if !slices.Contains(want[pkg], line) {
				findings = append(findings, pkg+": - "+line)
			}
		}
		for _, line := range want[pkg] {
			if !slices.Contains(got[pkg], line) {
				findings = append(findings, pkg+": + "+line)
			}
		}
		if len(findings) == before && !slices.Equal(got[pkg], want[pkg]) {
			findings = append(findings, pkg+": the order of the lines") // a merge may have duplicated some
		}
	}
	return findings
}
