// Package ossfuzz tests deploy/oss-fuzz: what it builds for OSS-Fuzz is every fuzz target that OSS-Fuzz
// can build.
package ossfuzz

import (
	"archive/zip"
	"go/ast"
	"go/parser"
	"go/token"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

const root = "../.."

// targets finds the fuzz targets of the tree by its syntax, as NAME FUNCTION DIR, and counts those in
// packages that cannot be imported.
func targets(t *testing.T) (list []string, left int) {
	t.Helper()
	out, err := exec.Command("git", "-C", root, "ls-files", "--cached", "--", "*_test.go").Output()
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range strings.Fields(string(out)) {
		path := filepath.Join(root, file)
		f, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
		if os.IsNotExist(err) {
			continue // removed, and not committed yet
		}
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range f.Decls {
			fn, ok := d.(*ast.FuncDecl)
			if !ok || fn.Recv != nil || !strings.HasPrefix(fn.Name.Name, "Fuzz") {
				continue
			}
			if f.Name.Name == "main" || strings.HasSuffix(f.Name.Name, "_test") {
				left++
				continue
			}
			dir := filepath.ToSlash(filepath.Dir(file))
			list = append(list, strings.ReplaceAll(dir, "/", "_")+"_"+fn.Name.Name+" "+fn.Name.Name+" ./"+dir)
		}
	}
	slices.Sort(list)
	return list, left
}

// copyTree makes a repository below dir of the files of this one, for build.sh to change.
func copyTree(t *testing.T, dir string) {
	t.Helper()
	cmd := exec.Command("bash", "-euo", "pipefail", "-c", `mkdir -p "$1"
		git ls-files -z | while IFS= read -r -d '' f; do [[ ! -e $f ]] || printf '%s\0' "$f"; done | tar --null -T - -cf - | tar -C "$1" -xf -
		cd "$1" && git init -q && git add -A`, "copy", dir)
	cmd.Dir = root
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
}

// TestBuild runs build.sh with a function in place of OSS-Fuzz's that notes what it is called with.
func TestBuild(t *testing.T) {
	if _, err := exec.LookPath("zip"); err != nil {
		t.Log("the inputs are not looked at: there is no zip here")
	}
	src, out := t.TempDir(), t.TempDir()
	tree := filepath.Join(src, "rpcrdma")
	copyTree(t, tree)
	utils := filepath.Join(out, "go_utils.sh")
	err := os.WriteFile(utils, []byte(`build_native_go_fuzzer() {
	[[ $fuzzer_filename == "$3"/*_test.go && $abs_file_dir == "$3" && $PWD == "$3" ]] || exit 1
	grep -q "^func $2(f \*testing.F) {" "$fuzzer_filename" || { echo "$2 is not in $fuzzer_filename"; exit 1; }
	[[ $4 == github.com/rpcrdma/rpcrdma/"${3#"$SRC"/rpcrdma/}" ]] || { echo "$3 is not $4"; exit 1; }
	echo "$1 $2 ./${3#"$SRC"/rpcrdma/}" >>"$OUT/targets"
}
command -v zip >/dev/null || zip() { :; }
`), 0o666)
	if err != nil {
		t.Fatal(err)
	}
	run := func(dir string) (string, error) {
		cmd := exec.Command("deploy/oss-fuzz/build.sh")
		cmd.Dir = dir
		cmd.Env = append(cmd.Environ(), "SRC="+src, "GO_UTILS="+utils, "OUT="+out)
		text, err := cmd.CombinedOutput()
		return string(text), err
	}
	if text, err := run(root); err == nil || !strings.Contains(text, "it wants one below SRC=") {
		t.Fatalf("where people work: %v\n%s", err, text)
	}
	if text, err := run(tree); err != nil {
		t.Fatalf("%v\n%s", err, text)
	}
	cgo := exec.Command("go", "list", "-tags", "gofuzz", "-f", "{{.CgoFiles}}", "./cgo", "./rdmacm")
	cgo.Dir = tree
	cgo.Env = append(cgo.Environ(), "CGO_ENABLED=1")
	if list, err := cgo.CombinedOutput(); err != nil || string(list) != "[]\n[]\n" {
		t.Errorf("targets need rdma-core: %v\n%s", err, list)
	}
	apart := exec.Command("git", "grep", "-lE", "^package [a-z0-9]+_test$", "--", "*_test.go")
	apart.Dir = tree
	if left, err := apart.Output(); err == nil { // it fails when nothing is left
		t.Errorf("packages have tests of another package beside them: %s", left)
	}
	text, err := os.ReadFile(filepath.Join(out, "targets"))
	if err != nil {
		t.Fatal(err)
	}
	built := strings.Split(strings.TrimSpace(string(text)), "\n")
	slices.Sort(built)
	want, left := targets(t)
	if !slices.Equal(built, want) {
		t.Errorf("built are\n%s\nand the tree has\n%s", strings.Join(built, "\n"), strings.Join(want, "\n"))
	}
	if len(built) < 50 || left == 0 || left > len(built)/5 {
		t.Errorf("%d targets, and %d left out", len(built), left)
	}
	names := make(map[string]bool)
	for _, line := range built {
		names[strings.Fields(line)[0]] = true
	}
	if len(names) != len(built) {
		t.Errorf("%d names for %d targets", len(names), len(built))
	}
	checkCorpora(t, out)
}

// checkCorpora wants the inputs that were packed to be what Go's files say.
func checkCorpora(t *testing.T, out string) {
	t.Helper()
	archives, err := filepath.Glob(filepath.Join(out, "*_seed_corpus.zip"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := exec.LookPath("zip"); err == nil && len(archives) == 0 {
		t.Error("there are no inputs")
	}
	packed := make(map[string]string)
	for _, archive := range archives {
		z, err := zip.OpenReader(archive)
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range z.File {
			r, err := f.Open()
			if err != nil {
				t.Fatal(err)
			}
			text, err := io.ReadAll(r)
			if err != nil {
				t.Fatal(err)
			}
			packed[f.Name] = string(text)
		}
		z.Close()
	}
	for _, name := range slices.Sorted(maps.Keys(packed)) {
		files, err := exec.Command("git", "-C", root, "ls-files", "*/testdata/fuzz/*/"+name).Output()
		if err != nil || len(files) == 0 {
			t.Errorf("%s is not among the inputs that are committed: %v", name, err)
			continue
		}
		text, err := os.ReadFile(filepath.Join(root, strings.Fields(string(files))[0]))
		if err != nil {
			t.Fatal(err)
		}
		_, quoted, _ := strings.Cut(strings.TrimSpace(string(text)), "\n[]byte(")
		if want, err := strconv.Unquote(strings.TrimSuffix(quoted, ")")); err != nil || packed[name] != want {
			t.Errorf("%s is packed as %q, and is %s", name, packed[name], quoted)
		}
	}
}
