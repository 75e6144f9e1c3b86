// Command licenses prints the licenses of the modules in a Go binary, which anyone distributing the binary must
// pass on: those of the standard library and of every module in its build information, except those of its own
// repository. It fails for a module without a license, and for a license that is not on the list of those compatible
// with Apache-2.0 without further duties. For MPL-2.0 it names the source, because section 3.2 requires that recipients
// of a binary are informed of it.
//
//	licenses [-quiet] BINARY...
//
// The modules must be in the module cache, where building the binary has put them.
package main

import (
	"cmp"
	"debug/buildinfo"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime/debug"
	"slices"
	"strings"

	"golang.org/x/mod/module"
)

// own is the prefix of the paths of modules with the binary's own license.
const own = "github.com/rpcrdma/rpcrdma"

func main() {
	quiet := flag.Bool("quiet", false, "check, and print nothing")
	flag.Parse()
	w := io.Writer(os.Stdout)
	if *quiet {
		w = io.Discard
	}
	if err := run(flag.Args(), w); err != nil {
		fmt.Fprintf(os.Stderr, "licenses: %v\n", err)
		os.Exit(1)
	}
}

func run(binaries []string, w io.Writer) error {
	if len(binaries) == 0 {
		return errors.New("want a binary: licenses [-quiet] BINARY..., from go build or an archive")
	}
	goroot, cache, err := places()
	if err != nil {
		return err
	}
	var parts []part
	for _, binary := range binaries {
		info, err := buildinfo.ReadFile(binary)
		if err != nil {
			return err
		}
		more, err := linked(info, goroot, cache)
		if err != nil {
			return fmt.Errorf("%s: %w", binary, err)
		}
		parts = append(parts, more...)
	}
	slices.SortFunc(parts, func(a, b part) int { return cmp.Or(cmp.Compare(a.name, b.name), cmp.Compare(a.version, b.version)) })
	parts = slices.CompactFunc(parts, func(a, b part) bool { return a.name == b.name && a.version == b.version })
	return print(parts, w)
}

// places returns where Go is installed, and where it keeps modules.
func places() (goroot, cache string, err error) {
	out, err := exec.Command("go", "env", "GOROOT", "GOMODCACHE").Output()
	if err != nil {
		return "", "", fmt.Errorf("go env: %w", err)
	}
	goroot, cache, _ = strings.Cut(strings.TrimSpace(string(out)), "\n")
	return goroot, cache, nil
}

// part is a module in a binary, and the directory of its files.
type part struct{ name, version, dir string }

// linked lists the parts of a binary.
func linked(info *debug.BuildInfo, goroot, cache string) ([]part, error) {
	parts := []part{{"the Go standard library", strings.TrimPrefix(info.GoVersion, "go"), goroot}}
	for _, m := range info.Deps {
		if m.Path == own || strings.HasPrefix(m.Path, own+"/") {
			continue
		}
		if m.Replace != nil {
			m = m.Replace
		}
		escaped, err := module.EscapePath(m.Path)
		if err != nil {
			return nil, err
		}
		version, err := module.EscapeVersion(m.Version)
		if err != nil {
			return nil, err
		}
		parts = append(parts, part{m.Path, m.Version, filepath.Join(cache, filepath.FromSlash(escaped)+"@"+version)})
	}
	return parts, nil
}

// print prints the texts, and returns problems with them.
func print(parts []part, w io.Writer) error {
	var wrong []error
	for _, p := range parts {
		texts, err := p.texts()
		if err == nil {
			err = p.check(texts)
		}
		if err != nil {
			wrong = append(wrong, fmt.Errorf("%s %s: %w", p.name, p.version, err))
			continue
		}
		for _, t := range texts {
			if _, err := fmt.Fprintf(w, "%s\n%s %s: %s\n\n%s\n\n", strings.Repeat("-", 80), p.name, p.version, t.name, strings.TrimSpace(t.text)); err != nil {
				return err
			}
			if identify(t.text) == mpl {
				if _, err := fmt.Fprintf(w, "The source code is unchanged: 'go mod download -json %[1]s@%[2]s' fetches it.\n\n", p.name, p.version); err != nil {
					return err
				}
			}
		}
	}
	return errors.Join(wrong...)
}

// text is a file with a license or an additional notice.
type text struct{ name, text string }

// named matches the names of such files. Immutable.
var named = regexp.MustCompile(`(?i)^(licen[cs]e|copying|notice|patents)(\.(md|txt))?$`)

// isLicense matches those that are not just notices. Immutable.
var isLicense = regexp.MustCompile(`(?i)^(licen|copying)`)

// texts reads the license files at the top of a part.
func (p *part) texts() ([]text, error) {
	entries, err := os.ReadDir(p.dir)
	if err != nil {
		return nil, err
	}
	var texts []text
	for _, e := range entries {
		if !named.MatchString(e.Name()) || e.IsDir() {
			continue
		}
		b, err := os.ReadFile(filepath.Join(p.dir, e.Name()))
		if err != nil {
			return nil, err
		}
		texts = append(texts, text{e.Name(), string(b)})
	}
	return texts, nil
}

// check requires that one of the texts is a permitted license, and that none is another license.
func (p *part) check(texts []text) error {
	licenses := 0
	for _, t := range texts {
		id := identify(t.text)
		switch {
		case id != "":
			licenses++
		case isLicense.MatchString(t.name):
			return fmt.Errorf("%s is none of the licenses that are allowed: %s", t.name, strings.Join(allowed(), ", "))
		}
	}
	if licenses == 0 {
		return errors.New("there is no license")
	}
	return nil
}

// licenses lists the permitted licenses, with text that is in each and in no other. Immutable.
var licenses = []struct {
	id    string
	parts []string
}{
	{"Apache-2.0", []string{"apache license version 2 0 january 2004", "grant of patent license", "redistribution you may reproduce and distribute copies"}},
	{"BSD-3-Clause", []string{"redistribution and use in source and binary forms with or without modification are permitted", "neither the name", "in no event shall"}},
	{"BSD-2-Clause", []string{"redistribution and use in source and binary forms with or without modification are permitted", "in no event shall"}},
	{"ISC", []string{"permission to use copy modify and or distribute this software for any purpose with or without fee is hereby granted", "in no event shall"}},
	{"MIT", []string{"permission is hereby granted free of charge to any person obtaining a copy of this software", "the software is provided as is without warranty of any kind"}},
}

// mpl is permitted as a whole, because its text names other licenses. mozilla matches it. Immutable.
const mpl = "MPL-2.0"

var mozilla = regexp.MustCompile(`^(copyright [a-z0-9 ]{0,80})?mozilla public license version 2 0 1 definitions .* covered software is provided under this license on an as is basis .* as defined by the mozilla public license v 2 0$`)

// conditions matches words of licenses, and of additions to them, that impose further conditions. Immutable.
var conditions = regexp.MustCompile(`gnu (lesser |affero )?general public|mozilla public|eclipse public|commons clause|non ?commercial|server side public|business source|all advertising materials`)

func allowed() (ids []string) {
	for _, l := range licenses {
		ids = append(ids, l.id)
	}
	return append(ids, mpl)
}

// identify returns the SPDX identifier of a permitted license, or "" for any other text.
func identify(text string) string {
	words := strings.Join(strings.FieldsFunc(strings.ToLower(text), func(r rune) bool {
		return (r < 'a' || r > 'z') && (r < '0' || r > '9')
	}), " ")
	if mozilla.MatchString(words) {
		return mpl
	}
	if conditions.MatchString(words) {
		return ""
	}
	for _, l := range licenses {
		if !slices.ContainsFunc(l.parts, func(part string) bool { return !strings.Contains(words, part) }) {
			return l.id
		}
	}
	return ""
}
