package layers

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/rpcrdma/rpcrdma/internal/testing/testutil"
)

// The images are built from what .dockerignore lets through: every package of this project that
// a program in them is linked from has to be there.
func TestImageHasPackages(t *testing.T) {
	const root = "../.."
	text, err := os.ReadFile(filepath.Join(root, ".dockerignore"))
	testutil.Must(t, err)
	listed := strings.Split(string(text), "\n")
	for _, program := range []string{"cmd/rpcrdma", "bench/ratio", "tools/vm"} {
		cmd := exec.Command("go", "list", "-deps", "-f", "{{if .Module}}{{.Module.Path}} {{.ImportPath}}{{end}}", ".")
		cmd.Dir = filepath.Join(root, program)
		out, err := cmd.Output()
		testutil.Must(t, err)
		found := 0
		for line := range strings.Lines(string(out)) {
			_, path, _ := strings.Cut(strings.TrimSpace(line), " ")
			dir, ok := strings.CutPrefix(path, Module+"/")
			if !ok {
				continue
			}
			found++
			top, _, _ := strings.Cut(dir, "/")
			if !slices.Contains(listed, "!"+top) && !slices.ContainsFunc(listed, func(s string) bool {
				return strings.HasPrefix(s, "!") && (s[1:] == dir || strings.HasPrefix(dir, s[1:]+"/"))
			}) {
				t.Errorf("%s needs %s, which .dockerignore leaves out", program, dir)
			}
		}
		if found == 0 {
			t.Errorf("%s has no packages of this project", program)
		}
	}
}
