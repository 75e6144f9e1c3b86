// Command sbom prints the software bill of materials of a Go binary in CycloneDX format:
// its modules and the standard library, from the build information in the binary.
package main

import (
	"debug/buildinfo"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/url"
	"os"
	"path/filepath"
	"runtime/debug"
	"strings"
)

// Version 1.5 of the format, https://cyclonedx.org/docs/1.5/json/.
type document struct {
	Format     string      `json:"bomFormat"`
	Spec       string      `json:"specVersion"`
	Version    int         `json:"version"` // version of the document
	Metadata   metadata    `json:"metadata"`
	Components []component `json:"components"`
}

type metadata struct {
	Component component `json:"component"`
}

type component struct {
	Type       string     `json:"type"`
	Name       string     `json:"name"`
	Version    string     `json:"version"`
	URL        string     `json:"purl"`
	Properties []property `json:"properties,omitempty"`
}

type property struct {
	Name  string `json:"name"`
	Value string `json:"value"`
}

func main() {
	version := flag.String("version", "", "`VERSION` of the binary and of the modules in its own repository")
	flag.Parse()
	if err := run(flag.Args(), *version, os.Stdout); err != nil {
		fmt.Fprintf(os.Stderr, "sbom: %v\n", err)
		os.Exit(1)
	}
}

func run(args []string, version string, w io.Writer) error {
	if len(args) != 1 || version == "" {
		return errors.New("usage: sbom -version VERSION BINARY")
	}
	info, err := buildinfo.ReadFile(args[0])
	if err != nil {
		return err
	}
	encoder := json.NewEncoder(w)
	encoder.SetIndent("", "  ")
	return encoder.Encode(describe(info, filepath.Base(args[0]), version))
}

// describe lists the contents of info. It includes neither a time nor a serial number: the same binary gives the same
// document.
func describe(info *debug.BuildInfo, name, version string) *document {
	main := module("application", info.Main.Path, version)
	main.Name = name
	for _, s := range info.Settings {
		main.Properties = append(main.Properties, property{"go:build:" + s.Key, s.Value})
	}
	d := &document{Format: "CycloneDX", Spec: "1.5", Version: 1, Metadata: metadata{main}}
	d.Components = append(d.Components, module("library", "std", strings.TrimPrefix(info.GoVersion, "go")))
	for _, m := range info.Deps {
		built := m
		if m.Replace != nil {
			built = m.Replace
		}
		if built.Version == "" || built.Version == "(devel)" { // a directory: a module of the binary's own repository
			d.Components = append(d.Components, module("library", m.Path, version))
			continue
		}
		m = built
		c := module("library", m.Path, m.Version)
		if m.Sum != "" {
			c.Properties = []property{{"go:sum", m.Sum}}
		}
		d.Components = append(d.Components, c)
	}
	return d
}

// module returns the package URL of a module, https://github.com/package-url/purl-spec.
func module(kind, path, version string) component {
	return component{
		Type: kind, Name: path, Version: version,
		URL: "pkg:golang/" + path + "@" + strings.ReplaceAll(url.QueryEscape(version), "%2F", "/"),
	}
}
