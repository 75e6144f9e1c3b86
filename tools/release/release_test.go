package main

import (
	"crypto/sha256"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// A small repository, as this one is built: a library with a command, something that has a module of
// its own and requires it, a command that requires both, and tools.
var files = map[string]string{
	"go.work":              "go 1.25.0\n\nuse (\n\t.\n\t./cmd/say\n\t./ext\n\t./tools\n)\n\n// Here.\nreplace (\n\tgithub.com/example/hello v0.0.0-00010101000000-000000000000 => ./\n\tgithub.com/example/hello/ext v0.0.0-00010101000000-000000000000 => ./ext\n)\n",
	"go.mod":               "module github.com/example/hello\n\ngo 1.25.0\n",
	"LICENSE":              "Free.\n",
	"CHANGELOG.md":         "# Changelog\n\n## Unreleased\n\n### Library\n\n- Something new.\n",
	"hello.go":             "// Package hello greets.\npackage hello\n\n// Text is what is said.\nconst Text = \"hello\"\n",
	"testdata/of/hello":    "hello\n",
	"docs/api/hello.txt":   "const Text = \"hello\"\n",
	"ext/go.mod":           "module github.com/example/hello/ext\n\ngo 1.25.0\n\nrequire github.com/example/hello v0.0.0-00010101000000-000000000000\n",
	"ext/ext.go":           "// Package ext greets all.\npackage ext\n\nimport \"github.com/example/hello\"\n\n// Text is what is said.\nconst Text = hello.Text + \" to all\"\n",
	"cmd/say/go.mod":       "module github.com/example/hello/cmd/say\n\ngo 1.25.0\n\nrequire (\n\tgithub.com/example/hello v0.0.0-00010101000000-000000000000\n\tgithub.com/example/hello/ext v0.0.0-00010101000000-000000000000\n)\n",
	"cmd/say/main.go":      "// Command say says it.\npackage main\n\nimport (\n\t\"fmt\"\n\n\t\"github.com/example/hello\"\n\t\"github.com/example/hello/ext\"\n)\n\nfunc main() { fmt.Println(hello.Text, ext.Text) }\n",
	"tools/go.mod":         "module github.com/example/hello/tools\n\ngo 1.25.0\n\nrequire github.com/example/hello v0.0.0-00010101000000-000000000000\n\nreplace github.com/example/hello => ..\n",
	"tools/count/count.go": "// Package count counts.\npackage count\n\nimport \"github.com/example/hello\"\n\n// N is the length.\nconst N = len(hello.Text)\n",

	"internal/testing/interop/released/testdata/v0.1/null": "recorded\n",
}

// A repo is a repository for a test.
type repo struct {
	t    *testing.T
	root string
}

// newRepo commits the files, except where they are changed: with "" a file is left out.
func newRepo(t *testing.T, changed map[string]string) *repo {
	t.Helper()
	if _, err := exec.LookPath("git"); err != nil {
		t.Skip("git is not installed, which has the tags")
	}
	r := &repo{t, t.TempDir()}
	for name, text := range files {
		if other, ok := changed[name]; ok {
			text = other
		}
		r.write(name, text)
	}
	r.git("init", "-q", "-b", "main")
	r.commit()
	return r
}

// write writes a file, or removes it.
func (r *repo) write(name, text string) {
	r.t.Helper()
	name = filepath.Join(r.root, filepath.FromSlash(name))
	err := os.MkdirAll(filepath.Dir(name), 0o777)
	if err == nil && text != "" {
		err = os.WriteFile(name, []byte(text), 0o666)
	} else if err == nil {
		if err = os.Remove(name); os.IsNotExist(err) {
			err = nil
		}
	}
	if err != nil {
		r.t.Fatal(err)
	}
}

func (r *repo) read(name string) string {
	r.t.Helper()
	text, err := os.ReadFile(filepath.Join(r.root, filepath.FromSlash(name)))
	if err != nil {
		r.t.Fatal(err)
	}
	return string(text)
}

func (r *repo) git(args ...string) string {
	r.t.Helper()
	cmd := exec.Command("git", append([]string{"-c", "user.name=Test", "-c", "user.email=test@example.org"}, args...)...)
	cmd.Dir = r.root
	out, err := cmd.CombinedOutput()
	if err != nil {
		r.t.Fatalf("git %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return string(out)
}

func (r *repo) commit() {
	r.t.Helper()
	r.git("add", ".")
	r.git("commit", "-q", "-m", "a change")
}

// release runs the program.
func (r *repo) release(args ...string) (string, error) {
	var out strings.Builder
	err := run(r.root, args, &out)
	return out.String(), err
}

// must runs the program, which succeeds.
func (r *repo) must(args ...string) string {
	r.t.Helper()
	out, err := r.release(args...)
	if err != nil {
		r.t.Fatalf("release %s: %v", strings.Join(args, " "), err)
	}
	return out
}

// announce writes a section of the changelog.
func (r *repo) announce(version string) {
	r.t.Helper()
	r.write("CHANGELOG.md", "# Changelog\n\n## Unreleased\n\n## "+version+" (2026-12-01)\n\n- Something new.\n")
	r.commit()
}

// publish announces, prepares, commits and tags a version.
func (r *repo) publish(version string) string {
	r.t.Helper()
	r.t.Setenv("GIT_COMMITTER_NAME", "Test")
	r.t.Setenv("GIT_COMMITTER_EMAIL", "test@example.org")
	r.announce(version)
	r.must("prepare", version)
	r.commit()
	return r.must("tag", "-create", version)
}

// stranger returns the environment of a machine on which the go command takes the repository's
// path for the repository, and has seen nothing of it yet.
func (r *repo) stranger() []string {
	cache := r.t.TempDir()
	return append(os.Environ(), "GOWORK=off", "GOFLAGS=-modcacherw", "GOPROXY=direct", "GONOSUMDB=github.com/example", "GOPRIVATE=", "GOTOOLCHAIN=local",
		"GOMODCACHE="+filepath.Join(cache, "modules"), "GOBIN="+filepath.Join(cache, "bin"), "CGO_ENABLED=0",
		"GIT_CONFIG_COUNT=1", "GIT_CONFIG_KEY_0=url.file://"+r.root+".insteadOf", "GIT_CONFIG_VALUE_0=https://github.com/example/hello")
}

// goes runs the go command.
func goes(t *testing.T, dir string, env []string, args ...string) string {
	t.Helper()
	cmd := exec.Command("go", args...)
	cmd.Dir, cmd.Env = dir, env
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("go %s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return string(out)
}

// A version goes out and is installed from its tags, by the go command itself: the hashes that
// were written before there was a tag are those that it finds.
func TestRelease(t *testing.T) {
	r := newRepo(t, nil)
	if got, want := r.must("list"), "github.com/example/hello\ngithub.com/example/hello/ext\ngithub.com/example/hello/cmd/say\n"; got != want {
		t.Fatalf("the modules are\n%swant\n%s", got, want)
	}
	goes(t, filepath.Join(r.root, "cmd/say"), append(os.Environ(), "GOWORK="+filepath.Join(r.root, "go.work"), "GOFLAGS="), "vet", ".")
	said := r.publish("v0.1.0")
	want := "v0.1.0\next/v0.1.0\ncmd/say/v0.1.0\ngit push --atomic origin v0.1.0 ext/v0.1.0 cmd/say/v0.1.0\n"
	if said != want {
		t.Errorf("tag printed\n%swant\n%s", said, want)
	}
	if err := checkTagged(r, "v0.1.0"); err != nil {
		t.Error(err)
	}
	if got := r.git("tag", "-l", "--format=%(contents)", "v0.1.0"); !strings.Contains(got, "- Something new.") {
		t.Errorf("the tag says %q", got)
	}
	if got, want := r.read("go.work"), strings.ReplaceAll(files["go.work"], "v0.0.0-00010101000000-000000000000", "v0.1.0"); got != want {
		t.Errorf("go.work is\n%s", got)
	}
	if got := r.read("tools/go.mod"); got != files["tools/go.mod"] {
		t.Errorf("tools/go.mod was changed:\n%s", got)
	}

	env := r.stranger()
	goes(t, filepath.Join(r.root, "cmd/say"), env, "build", "-mod=readonly", "-o", os.DevNull, ".")
	goes(t, filepath.Join(r.root, "ext"), env, "vet", "-mod=readonly", ".")
	goes(t, t.TempDir(), env, "install", "github.com/example/hello/cmd/say@v0.1.0")
	if out := goes(t, filepath.Join(r.root, "cmd/say"), env, "mod", "tidy", "-diff"); out != "" {
		t.Errorf("go mod tidy would change\n%s", out)
	}

	// The next version has the module files of the last one, and is tidy in the workspace.
	r.write("hello.go", files["hello.go"]+"\n// More is said, too.\nconst More = \"more\"\n")
	r.write("ext/ext.go", strings.ReplaceAll(files["ext/ext.go"], "hello.Text", "hello.More"))
	r.must("tidy")
	r.write("docs/api/hello.txt", "const More = \"more\"\nconst Text = \"hello\"\n")
	r.commit()
	r.publish("v0.1.1")
	goes(t, t.TempDir(), env, "install", "github.com/example/hello/cmd/say@v0.1.1")
	if got := r.read("cmd/say/go.sum"); strings.Count(got, "\n") != 4 || strings.Contains(got, "v0.1.0") {
		t.Errorf("cmd/say/go.sum is\n%s", got)
	}
}

func checkTagged(r *repo, version string) error {
	_, err := r.release("check", "-tagged", version)
	return err
}

// Reasons that keep a version from going out.
func TestRefusals(t *testing.T) {
	for _, tt := range []struct {
		name    string
		changed map[string]string
		do      func(*repo)
		version string
		want    string
	}{
		{name: "nothing", version: "v0.1.0"},
		{name: "no version", version: "0.1.0", want: `"0.1.0" is not a version such as v1.2.3`},
		{name: "half a version", version: "v0.1", want: `"v0.1" is not a version such as v1.2.3`},
		{name: "another path", version: "v2.0.0", want: "the paths of its modules would end in /v2"},
		{name: "a change", version: "v0.1.0", want: "the tree differs from what is committed", do: func(r *repo) { r.write("hello.go", "package hello\n") }},
		{name: "a new file", version: "v0.1.0", want: "the tree differs from what is committed", do: func(r *repo) { r.write("more.go", "package hello\n") }},
		{name: "no section", version: "v0.1.1", want: `CHANGELOG.md has no section "## v0.1.1"`, do: func(r *repo) { r.announce("v0.1.0") }},
		{name: "an empty section", version: "v0.1.0", want: "CHANGELOG.md says nothing about v0.1.0", do: func(r *repo) {
			r.write("CHANGELOG.md", "## Unreleased\n\n## v0.1.0\n\n### Library\n\n## v0.0.9\n\n- Old.\n")
			r.commit()
		}},
		{name: "unreleased entries", version: "v0.1.0", want: "CHANGELOG.md has entries that are unreleased", do: func(r *repo) {
			r.write("CHANGELOG.md", "## Unreleased\n\n### Library\n\n- One.\n\n## v0.1.0\n\n- Two.\n")
			r.commit()
		}},
		{name: "no recordings", version: "v0.2.0", want: "no recordings of what this version says on the wire"},
		{name: "a replace directive", version: "v0.1.0", want: "ext/go.mod: replaces github.com/example/hello: nobody can install",
			changed: map[string]string{"ext/go.mod": files["ext/go.mod"] + "\nreplace github.com/example/hello => ..\n"}},
		{name: "a module for clones", version: "v0.1.0", want: "ext/go.mod: requires github.com/example/hello/tools, which is not published",
			changed: map[string]string{"ext/go.mod": files["ext/go.mod"] + "\nrequire github.com/example/hello/tools v0.0.0-00010101000000-000000000000\n"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := newRepo(t, tt.changed)
			if tt.do == nil {
				r.announce(tt.version)
			} else {
				tt.do(r)
			}
			_, err := r.release("prepare", tt.version)
			if got := fmt.Sprint(err); tt.want == "" && err != nil || !strings.Contains(got, tt.want) {
				t.Errorf("prepare says %s, want %q", got, tt.want)
			}
		})
	}
}

// A version that is prepared is checked again where it is tagged: other files, other hashes.
func TestCheck(t *testing.T) {
	r := newRepo(t, nil)
	r.announce("v0.1.0")
	r.must("prepare", "v0.1.0")
	r.commit()
	r.must("check", "v0.1.0")
	refused := func(want string, args ...string) {
		t.Helper()
		if _, err := r.release(args...); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s says %v, want %q", args[0], err, want)
		}
	}
	refused("no tag ext/v0.1.0 on this commit", "check", "-tagged", "v0.1.0")
	if got := r.must("tag", "v0.1.0"); got != "v0.1.0\next/v0.1.0\ncmd/say/v0.1.0\n" || r.git("tag") != "" {
		t.Errorf("tag without -create prints %q and makes %q", got, r.git("tag"))
	}
	r.write("testdata/of/hello", "hello again\n")
	r.commit()
	refused("ext/go.sum: the hashes of the repository's modules are not those of v0.1.0", "tag", "v0.1.0")
	r.write("ext/go.mod", files["ext/go.mod"])
	r.commit()
	refused("ext/go.mod: requires github.com/example/hello@v0.0.0-00010101000000-000000000000, want v0.1.0", "check", "v0.1.0")
	r.must("prepare", "v0.1.0")
	r.commit()
	r.git("tag", "ext/v0.1.0")
	refused("a version is never changed: ext/v0.1.0", "tag", "v0.1.0")
}

// What a version offers the next one has, as far as that is promised.
func TestCompatible(t *testing.T) {
	for _, tt := range []struct {
		last, next string
		gone       bool // refused
	}{
		{"v0.1.0", "v0.1.1", true},
		{"v0.1.0", "v0.2.0", false},
		{"v0.1.0", "v1.0.0", false},
		{"v1.0.0", "v1.1.0", true},
		{"v1.0.0-rc.1", "v1.0.0", false},
	} {
		r := newRepo(t, nil)
		r.git("tag", tt.last)
		series := tt.next[:strings.LastIndex(tt.next, ".")]
		r.write("internal/testing/interop/released/testdata/"+series+"/null", "recorded\n")
		r.write("docs/api/hello.txt", "const Text2 = \"hello\"\n")
		r.announce(tt.next)
		_, err := r.release("prepare", tt.next)
		want := fmt.Sprintf(`docs/api/hello.txt: %s had "const Text = \"hello\""`, tt.last)
		if got := err != nil && strings.Contains(err.Error(), want); got != tt.gone || err != nil && !got {
			t.Errorf("%s after %s: %v, want refused %v", tt.next, tt.last, err, tt.gone)
		}
	}
}

// Recordings stay, and more may come.
func TestRecorded(t *testing.T) {
	const old = "internal/testing/interop/released/testdata/v0.1/null"
	for _, text := range []string{"recorded again\n", ""} {
		r := newRepo(t, nil)
		r.git("tag", "v0.1.0")
		r.write("internal/testing/interop/released/testdata/v0.2/null", "recorded\n")
		r.announce("v0.2.0")
		r.must("prepare", "v0.2.0")
		r.write(old, text)
		r.commit()
		if _, err := r.release("check", "v0.2.0"); err == nil || !strings.Contains(err.Error(), old+" is not as in v0.1.0") {
			t.Errorf("check says %v of a recording that is now %q", err, text)
		}
	}
}

// Tidy finds what is missing and what is too much, without a published version, and writes it.
func TestTidy(t *testing.T) {
	const mod = "ext/go.mod"
	r := newRepo(t, map[string]string{mod: files[mod] + "\nrequire golang.org/x/sys v0.46.0\n"})
	out, err := r.release("tidy")
	if err == nil || !strings.Contains(out, "-require golang.org/x/sys v0.46.0") {
		t.Errorf("tidy printed %q, %v", out, err)
	}
	if r.read(mod) == files[mod] {
		t.Error("tidy has written")
	}
	r.must("tidy", "-w")
	if got := r.read(mod); got != files[mod] {
		t.Errorf("%s is\n%s", mod, got)
	}
	r.must("tidy")
	if got := r.git("status", "--porcelain"); got != " M "+mod+"\n" {
		t.Errorf("changed:\n%s", got)
	}
}

// The lines of a go.sum are in the go command's order.
func TestSumFile(t *testing.T) {
	want := "a v1.0.0 h1:1\na v1.0.0/go.mod h1:2\na v1.0.9/go.mod h1:3\na v1.0.10 h1:4\na/b v1.0.0 h1:5\n"
	lines := strings.Split(strings.TrimSpace(want), "\n")
	slices.Sort(lines)
	if got := string(sumFile(lines)); got != want {
		t.Errorf("got\n%swant\n%s", got, want)
	}
}

// Go.work replaces what the modules require of each other.
func TestJoined(t *testing.T) {
	changed := map[string]string{"go.work": files["go.work"] + "\nreplace github.com/example/hello v0.0.2 => ./\n"}
	for _, name := range []string{"ext/go.mod", "cmd/say/go.mod"} {
		changed[name] = strings.Replace(files[name], "hello v0.0.0-00010101000000-000000000000", "hello v0.0.1", 1)
	}
	r := newRepo(t, changed)
	_, err := r.release("tidy")
	for _, want := range []string{
		"go.work: lacks github.com/example/hello@v0.0.1 => ./",
		"go.work: replaces github.com/example/hello@v0.0.2, which nothing requires",
	} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("tidy says %v, want %q", err, want)
		}
	}
	r.must("tidy", "-w")
	r.must("tidy")
	goes(t, filepath.Join(r.root, "cmd/say"), append(os.Environ(), "GOWORK=", "GOFLAGS=", "GOPROXY=off"), "vet", ".")
}

// A proxy has what users get: no file of another module, the license, the files of the tree as
// they are.
func TestProxy(t *testing.T) {
	r := newRepo(t, nil)
	r.write("ext/new.go", "package ext\n")
	r.write(".gitignore", "secret\n")
	r.write("ext/secret", "1234\n")
	r.write("testdata/of/hello", "")
	dir := t.TempDir()
	r.must("proxy", "-version", "v0.9.0-test", dir)

	env := append(os.Environ(), "GOWORK=off", "GOFLAGS=-mod=mod -modcacherw", "GOPROXY=file://"+dir, "GOSUMDB=off", "GOTOOLCHAIN=local",
		"GOMODCACHE="+filepath.Join(t.TempDir(), "modules"))
	user := t.TempDir()
	goes(t, user, env, "mod", "init", "example.org/user")
	goes(t, user, env, "get", "github.com/example/hello/cmd/say")
	for path, want := range map[string]string{
		"github.com/example/hello":     "CHANGELOG.md LICENSE docs/api/hello.txt go.mod go.work hello.go internal/testing/interop/released/testdata/v0.1/null",
		"github.com/example/hello/ext": "LICENSE ext.go go.mod new.go",
	} {
		at := strings.TrimSpace(goes(t, user, env, "list", "-m", "-f", "{{.Version}} {{.Dir}}", path))
		version, at, _ := strings.Cut(at, " ")
		if version != "v0.9.0-test" {
			t.Errorf("%s is %s", path, version)
		}
		var got []string
		err := fs.WalkDir(os.DirFS(at), ".", func(name string, d fs.DirEntry, err error) error {
			if err == nil && !d.IsDir() && name != ".gitignore" {
				got = append(got, name)
			}
			return err
		})
		if err != nil || strings.Join(got, " ") != want {
			t.Errorf("%s has %s, %v, want %s", path, got, err, want)
		}
	}
}

// make publish hands over the files of make release as they are, if they match the checksums.
func TestPublish(t *testing.T) {
	r := newRepo(t, nil)
	script, err := os.ReadFile("../../scripts/release")
	if err != nil {
		t.Fatal(err)
	}
	r.write("scripts/release", string(script))
	r.write(".bin/release/rpcrdma.deb", "a package\n")
	programs := t.TempDir()
	if err := os.WriteFile(filepath.Join(programs, "gh"), []byte("#!/bin/sh\necho gh \"$@\"\n"), 0o777); err != nil {
		t.Fatal(err)
	}
	publish := func() (string, error) {
		cmd := exec.Command("bash", "scripts/release", "--publish")
		cmd.Dir = r.root
		cmd.Env = append(os.Environ(), "PATH="+programs+":"+os.Getenv("PATH"))
		out, err := cmd.CombinedOutput()
		return string(out), err
	}
	refused := func(want string) {
		t.Helper()
		if out, err := publish(); err == nil || !strings.Contains(out, want) || strings.Contains(out, "gh release") {
			t.Errorf("%v, %s, want %q", err, out, want)
		}
	}
	refused("none is checked out")
	r.git("tag", "-a", "-m", "v0.1.0-rc.1", "v0.1.0-rc.1")
	refused("has nothing of v0.1.0-rc.1")
	r.write("CHANGELOG.md", "# Changelog\n\n## v0.1.0-rc.10\n\nno\n\n## v0.1.0-rc.1 (2026-12-01)\n\n- first\n- second\n\n## v0.0.9\n\nno\n")
	r.write(".bin/release/rpcrdma-v0.1.0-rc.1.sums", fmt.Sprintf("%x  rpcrdma.deb\n", sha256.Sum256([]byte("a package\n"))))
	out, err := publish()
	at := filepath.Join(r.root, ".bin", "release") + "/"
	want := "gh release create v0.1.0-rc.1 --verify-tag --prerelease --title rpcrdma v0.1.0-rc.1 --notes \n- first\n- second " + at + "rpcrdma-v0.1.0-rc.1.sums " + at + "rpcrdma.deb\n"
	if err != nil || out != want {
		t.Errorf("%v\n%swant\n%s", err, out, want)
	}
	r.write(".bin/release/rpcrdma.deb", "another one\n")
	refused("rpcrdma.deb: FAILED")
}

func TestUsage(t *testing.T) {
	r := newRepo(t, nil)
	for _, args := range [][]string{nil, {"lost"}, {"list", "x"}, {"prepare"}, {"check", "v1", "v2"}, {"proxy", "dir"}, {"tidy", "-x"}} {
		if _, err := r.release(args...); err == nil || !strings.HasPrefix(err.Error(), "usage: ") {
			t.Errorf("%q: %v", args, err)
		}
	}
}

// The modules of this repository are fit for users, in the order in which they are tagged.
func TestTree(t *testing.T) {
	root, err := top()
	if err != nil {
		t.Fatal(err)
	}
	tree, err := load(root)
	if err != nil {
		t.Fatal(err)
	}
	for _, finding := range slices.Concat(tree.structure(), tree.joined()) {
		t.Error(finding)
	}
	at := make(map[string]int)
	for i, m := range tree.published() {
		at[m.dir] = i + 1
	}
	if at["."] != 1 || at["rpc/otelrpc"] == 0 || at["cmd/rpcrdma"] <= at["rpc/promrpc"] || at["tools"] != 0 {
		t.Errorf("the order is %v", at)
	}
}
