package main

import (
	"bytes"
	"encoding/json"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime/debug"
	"strings"
	"testing"
)

// TestCommand describes the command, and compares with what go version says of it.
func TestCommand(t *testing.T) {
	binary := filepath.Join(t.TempDir(), "rpcrdma")
	build := exec.Command("go", "build", "-o", binary, ".")
	build.Dir = "../../cmd/rpcrdma"
	build.Env = append(build.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	var out bytes.Buffer
	if err := run([]string{binary}, "v1.2.3", &out); err != nil {
		t.Fatal(err)
	}
	var d document
	if err := json.Unmarshal(out.Bytes(), &d); err != nil {
		t.Fatal(err)
	}
	if got, want := d.Metadata.Component.URL, "pkg:golang/github.com/rpcrdma/rpcrdma/cmd/rpcrdma@v1.2.3"; got != want {
		t.Errorf("the binary is %s, want %s", got, want)
	}
	listed := make(map[string]string)
	for _, c := range d.Components {
		listed[c.Name] = c.Version
	}
	said, err := exec.Command("go", "version", "-m", binary).Output()
	if err != nil {
		t.Fatal(err)
	}
	deps := regexp.MustCompile(`(?m)^\tdep\t(\S+)\t(\S+)`).FindAllStringSubmatch(string(said), -1)
	if len(deps) < 5 || len(listed) != len(deps)+1 { // and the standard library
		t.Errorf("%d components of %d modules", len(listed), len(deps))
	}
	for _, dep := range deps {
		want := dep[2]
		if strings.HasPrefix(dep[1]+"/", "github.com/rpcrdma/rpcrdma/") {
			want = "v1.2.3" // each is a directory of the workspace
		}
		if listed[dep[1]] != want {
			t.Errorf("%s is listed as %q, want %q", dep[1], listed[dep[1]], want)
		}
	}
	if v := listed["std"]; v == "" || strings.HasPrefix(v, "go") {
		t.Errorf("the standard library is of version %q", v)
	}
}

// TestDirectory: a directory that stands in for a module is of the repository.
func TestDirectory(t *testing.T) {
	d := describe(&debug.BuildInfo{
		GoVersion: "go1.26.0",
		Deps:      []*debug.Module{{Path: "example.org/a", Version: "v1.0.0", Replace: &debug.Module{Path: "../a", Version: "(devel)"}}},
	}, "x", "v1")
	if got, want := d.Components[1].URL, "pkg:golang/example.org/a@v1"; got != want {
		t.Errorf("listed as %s, want %s", got, want)
	}
}

// TestReplaced: the module that replaces another was built.
func TestReplaced(t *testing.T) {
	d := describe(&debug.BuildInfo{
		GoVersion: "go1.26.0",
		Deps: []*debug.Module{{
			Path: "example.org/a", Version: "v1.0.0",
			Replace: &debug.Module{Path: "example.org/b", Version: "v2.0.0+incompatible", Sum: "h1:sum"},
		}},
	}, "x", "v1")
	got := d.Components[1]
	if want := "pkg:golang/example.org/b@v2.0.0%2Bincompatible"; got.URL != want {
		t.Errorf("listed as %s, want %s", got.URL, want)
	}
	if len(got.Properties) != 1 || got.Properties[0].Value != "h1:sum" {
		t.Errorf("its sum is %v", got.Properties)
	}
}

func TestUsage(t *testing.T) {
	for _, args := range [][]string{nil, {"a", "b"}, {"main.go"}, {"no such file"}} {
		if err := run(args, "v1", &bytes.Buffer{}); err == nil {
			t.Errorf("no complaint about %q", args)
		}
	}
}
