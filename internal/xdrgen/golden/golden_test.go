package golden

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/rpcrdma/rpcrdma/internal/testing/testutil"
	"github.com/rpcrdma/rpcrdma/internal/xdrgen/check"
	"github.com/rpcrdma/rpcrdma/internal/xdrgen/gen"
	"github.com/rpcrdma/rpcrdma/internal/xdrgen/syntax"
)

// compile is command xdrgen for one file.
func compile(t *testing.T, file, pkg string, opt syntax.Options) []byte {
	t.Helper()
	text, err := os.ReadFile(file)
	testutil.Must(t, err)
	opt.Include = func(from, name string) (string, []byte, error) {
		text, err := os.ReadFile(name)
		return name, text, err
	}
	tree, err := syntax.Parse([]syntax.Source{{Name: file, Text: text}}, opt)
	testutil.Must(t, err)
	spec, err := check.Check(tree)
	testutil.Must(t, err)
	stubs := pkg != "golden" // which has the types of programs alone
	if stubs {
		testutil.Must(t, check.Stubs(spec))
	}
	code, err := gen.Generate(spec, gen.Options{Package: pkg, Stubs: stubs})
	testutil.Must(t, err)
	return code
}

// The compiler reproduces each file of the package from its source, every time.
func TestGolden(t *testing.T) {
	files, err := filepath.Glob("*.x")
	testutil.Must(t, err)
	if len(files) == 0 {
		t.Fatal("no .x files")
	}
	more, err := filepath.Glob(filepath.Join("*", "*.x"))
	testutil.Must(t, err)
	for _, file := range append(files, more...) {
		t.Run(filepath.Base(file), func(t *testing.T) {
			pkg, opt := "golden", syntax.Options{}
			if dir := filepath.Dir(file); dir != "." {
				pkg, opt.Defines = dir, []string{"GOLDEN"}
			}
			code := compile(t, file, pkg, opt)
			if pkg != "service" { // its tests generate it
				testutil.Golden(t, strings.TrimSuffix(file, ".x")+".go", code)
			}
			if again := compile(t, file, pkg, opt); string(again) != string(code) {
				t.Error("a second run makes something else")
			}
		})
	}
}
