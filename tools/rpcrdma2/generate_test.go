//go:build !generated

package rpcrdma2

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/rpcrdma/rpcrdma/internal/testing/generated"
)

const (
	coreXDR    = "../../proto/rpcrdma/testdata/rpcrdma_corev2.x"
	extensions = "../../docs/protocol.md"
)

// readXDR returns the XDR of version 2 and, extracted from its specification by the
// script that is published there, that of the extension.
func readXDR(t *testing.T) (core, extension string) {
	t.Helper()
	b, err := os.ReadFile(coreXDR)
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(extensions)
	if err != nil {
		t.Fatal(err)
	}
	_, rest, ok1 := strings.Cut(string(text), "```sh\n")
	script, _, ok2 := strings.Cut(rest, "```\n")
	if !ok1 || !ok2 {
		t.Fatalf("%s has no script", extensions)
	}
	file := filepath.Join(t.TempDir(), "extract.sh")
	if err := os.WriteFile(file, []byte(script), 0o666); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("sh", file)
	cmd.Stdin = bytes.NewReader(text)
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("the script of %s: %v", extensions, err)
	}
	return string(b), string(out)
}

// license returns the comment at the start of an XDR file.
func license(t *testing.T, text string) string {
	t.Helper()
	comment, _, ok := strings.Cut(text, "*/\n")
	if !ok || !strings.HasPrefix(comment, "/*\n") {
		t.Fatal("the XDR does not begin with a comment")
	}
	return comment + "*/\n"
}

var unkeyed = regexp.MustCompile(`\bXdrVecOpaque\{(&[\w.]+), (\w+)\}`)

// V2-4-1: the XDR of version 2 compiles, together with the extension's. The code agrees with the codec.
func TestGenerated(t *testing.T) {
	core, extension := readXDR(t)
	dir := t.TempDir()
	compiler := filepath.Join(dir, "goxdr")
	if out, err := exec.Command("go", "build", "-o", compiler, "github.com/xdrpp/goxdr/cmd/goxdr").CombinedOutput(); err != nil {
		t.Fatalf("building the compiler: %v\n%s", err, out)
	}
	if err := os.WriteFile(filepath.Join(dir, "rpcrdma2.x"), []byte(core+extension), 0o666); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(compiler, "-fmt", "-p", "rpcrdma2", "rpcrdma2.x")
	cmd.Dir = dir
	var stderr strings.Builder
	cmd.Stderr = &stderr
	code, err := cmd.Output()
	if err != nil {
		t.Fatalf("compiling: %v\n%s", err, &stderr)
	}
	// go vet wants keys in literals of other packages' structures.
	code = unkeyed.ReplaceAll(code, []byte("XdrVecOpaque{Bytes: $1, Bound: $2}"))
	generated.Run(t, map[string][]byte{"rpcrdma2.go": code})
}

// V2-4-1: the XDR is kept with its license.
func TestLicense(t *testing.T) {
	core, _ := readXDR(t)
	terms := license(t, core)
	for _, part := range []string{
		"Copyright (c) 2010, 2016 IETF Trust and the persons",
		"Redistributions of source code must retain the above",
		"Redistributions in binary form must reproduce the above",
		"endorse or promote products derived from this",
		`AND CONTRIBUTORS "AS IS" AND ANY EXPRESS OR IMPLIED`,
	} {
		if !strings.Contains(terms, part) {
			t.Errorf("the license does not say %q", part)
		}
	}
}

// V2-3.2-1: the specification of an extension has what version 2 asks of one.
func TestExtensionsAreDocumented(t *testing.T) {
	text, err := os.ReadFile(extensions)
	if err != nil {
		t.Fatal(err)
	}
	parts := strings.Split(string(text), "\n## ")[1:]
	if len(parts) == 0 {
		t.Fatal("there is no extension")
	}
	for _, part := range parts {
		name, _, _ := strings.Cut(part, "\n")
		for _, heading := range []string{"Purpose", "Use", "XDR", "Errors", "RPC message", "Interactions"} {
			_, section, ok := strings.Cut(part, "\n### "+heading+"\n")
			section, _, _ = strings.Cut(section, "\n### ")
			if !ok || strings.TrimSpace(section) == "" {
				t.Errorf("%s: nothing is said under %q", name, heading)
			}
			if heading == "RPC message" && !regexp.MustCompile(`\bMUST( NOT)? follow\b`).MatchString(section) {
				t.Errorf("%s: whether an RPC message follows is left open", name)
			}
		}
		for _, code := range regexp.MustCompile(`/// const RPCRDMA2_OPT_\w+ = (\w+);`).FindAllStringSubmatch(part, -1) {
			if !strings.Contains(part, "`"+code[1]+"`") {
				t.Errorf("%s: operation %s is not explained", name, code[1])
			}
		}
	}
}
