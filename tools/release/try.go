package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
)

// pretended is the version under which the tree is tried: newer than any other of v0.
const pretended = "v0.9999.0-test"

// user is a machine with Go that knows nothing of the clone. It has an empty module cache and a proxy for the modules
// of the tree. Other modules come from this machine's module cache, or else from its own proxy.
type user struct {
	dir string
	env []string
	out io.Writer
}

// newUser sets up a machine in an empty directory.
func (t *tree) newUser(dir string, w io.Writer) (*user, error) {
	proxy := filepath.Join(dir, "proxy")
	if err := t.proxy(proxy, pretended); err != nil {
		return nil, err
	}
	out, err := exec.Command("go", "env", "GOMODCACHE", "GOPROXY", "GONOSUMDB").Output()
	if err != nil {
		return nil, fmt.Errorf("go env: %w", err)
	}
	has := strings.Split(string(out), "\n")
	home := filepath.Join(dir, "home")
	if err := os.Mkdir(home, 0o777); err != nil {
		return nil, err
	}
	u := &user{dir: home, out: w}
	u.env = append(os.Environ(), "GOWORK=off", "CGO_ENABLED=0", "GOTOOLCHAIN=local", "GOPRIVATE=", "GONOPROXY=",
		// Without -trimpath the directory would become part of the compiled code, and no third-party package would be
		// found in the build cache.
		"GOFLAGS=-mod=mod -modcacherw -trimpath",
		"GOPROXY=file://"+proxy+",file://"+has[0]+"/cache/download,"+has[1],
		"GONOSUMDB="+strings.TrimPrefix(has[2]+","+t.published()[0].path, ","),
		"GOMODCACHE="+filepath.Join(dir, "modules"), "GOBIN="+filepath.Join(dir, "bin"))
	return u, nil
}

// run runs a command in a directory below the user's and returns its output.
func (u *user) run(dir, name string, args ...string) (string, error) {
	cmd := exec.Command(name, args...)
	cmd.Dir = filepath.Join(u.dir, filepath.FromSlash(dir))
	cmd.Env = u.env
	out, err := cmd.CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("%s %s: %w\n%s", filepath.Base(name), strings.Join(args, " "), err, bytes.TrimSpace(out))
	}
	return string(out), nil
}

// write writes a file below the user's directory.
func (u *user) write(name, text string) error {
	name = filepath.Join(u.dir, filepath.FromSlash(name))
	return errors.Join(os.MkdirAll(filepath.Dir(name), 0o777), os.WriteFile(name, []byte(text), 0o666))
}

// bin returns a command installed by the user.
func (u *user) bin(name string) string { return filepath.Join(filepath.Dir(u.dir), "bin", name) }

// try does with the tree what users do with a version of it.
func (t *tree) try(w io.Writer) error {
	if err := join(t.structure()); err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "release-test-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	u, err := t.newUser(dir, w)
	if err != nil {
		return err
	}
	for _, step := range []struct {
		name string
		do   func(*user) error
	}{
		{"go get of the library, and every package of it built", t.tryLibrary},
		{"go get of the exporters", t.tryExporters},
		{"go install of rpcrdma, and a tree copied with it", t.tryCommand},
		{"go install of xdrgen, and a service generated with it", t.tryGenerator},
		{"docs/getting-started.md", t.tryPage},
	} {
		started := time.Now()
		if err := step.do(u); err != nil {
			return fmt.Errorf("%s: %w", step.name, err)
		}
		if _, err := fmt.Fprintf(w, "ok    %-60s %3.0fs\n", step.name, time.Since(started).Seconds()); err != nil {
			return err
		}
	}
	return nil
}

func (t *tree) tryLibrary(u *user) error {
	lib := t.published()[0].path
	if err := u.write("library/go.mod", "module example.org/library\n\ngo 1.25.0\n"); err != nil {
		return err
	}
	if err := u.write("library/main.go", "package main\n\nimport _ \""+lib+"/transport\"\n\nfunc main() {}\n"); err != nil {
		return err
	}
	for _, args := range [][]string{{"get", lib + "@" + pretended}, {"build", lib + "/..."}, {"mod", "tidy"}, {"vet", "./..."}} {
		if _, err := u.run("library", "go", args...); err != nil {
			return err
		}
	}
	return nil
}

// tryExporters links the separately tagged modules with the library, each in its own module of a user, so that none
// provides what another one lacks.
func (t *tree) tryExporters(u *user) error {
	for _, m := range t.published() {
		if !strings.HasPrefix(m.dir, "rpc/") {
			continue
		}
		if err := u.write(m.dir+"/go.mod", "module example.org/metrics\n\ngo 1.26.0\n"); err != nil {
			return err
		}
		if err := u.write(m.dir+"/main.go", "package main\n\nimport _ \""+m.path+"\"\n\nfunc main() {}\n"); err != nil {
			return err
		}
		for _, args := range [][]string{{"get", m.path + "@" + pretended}, {"vet", "./..."}, {"build", "-o", os.DevNull, "."}} {
			if _, err := u.run(m.dir, "go", args...); err != nil {
				return err
			}
		}
	}
	return nil
}

func (t *tree) tryCommand(u *user) error {
	if _, err := u.run("", "go", "install", t.published()[0].path+"/cmd/rpcrdma@"+pretended); err != nil {
		return err
	}
	switch said, err := u.run("", u.bin("rpcrdma"), "version"); {
	case err != nil:
		return err
	case !strings.HasPrefix(said, "rpcrdma "+pretended+", "):
		return fmt.Errorf("rpcrdma version says %q", said)
	}
	if _, err := u.run("", "go", "build", "-o", u.bin("demo"), filepath.Join(t.root, "tools", "demo", "main.go")); err != nil {
		return err
	}
	_, err := u.run("", u.bin("demo"), "-command", u.bin("rpcrdma"), "-from", filepath.Join(t.root, "examples"), "-largest", "1048576")
	return err
}

// tryGenerator compiles a .x file and compares the result with the committed one.
func (t *tree) tryGenerator(u *user) error {
	if _, err := u.run("", "go", "install", t.published()[0].path+"/cmd/xdrgen@"+pretended); err != nil {
		return err
	}
	echo := filepath.Join(t.root, "examples", "echo")
	source, err := os.ReadFile(filepath.Join(echo, "echo.x"))
	if err != nil {
		return err
	}
	want, err := os.ReadFile(filepath.Join(echo, "echo.go"))
	if err != nil {
		return err
	}
	if err := u.write("echo/echo.x", string(source)); err != nil {
		return err
	}
	if _, err := u.run("echo", u.bin("xdrgen"), "echo.x"); err != nil {
		return err
	}
	got, err := os.ReadFile(filepath.Join(u.dir, "echo", "echo.go"))
	if err == nil && !bytes.Equal(got, want) {
		err = errors.New("xdrgen makes another echo.go than the one in examples/echo")
	}
	return err
}

// tryPage makes the page's test follow the page in this user's environment.
func (t *tree) tryPage(u *user) error {
	test := filepath.Join(filepath.Dir(u.dir), "examples.test")
	build := exec.Command("go", "test", "-c", "-o", test, "./examples")
	build.Dir = t.root
	if out, err := build.CombinedOutput(); err != nil {
		return fmt.Errorf("go test -c: %w\n%s", err, out)
	}
	cmd := exec.Command(test, "-test.run=^TestGettingStarted$", "-test.v")
	cmd.Dir = filepath.Join(t.root, "examples")
	cmd.Env = append(u.env, "RPCRDMA_RELEASED=1")
	out, err := cmd.CombinedOutput()
	if err == nil && !bytes.Contains(out, []byte("--- PASS: TestGettingStarted")) {
		err = errors.New("the test did not run")
	}
	if err != nil {
		return fmt.Errorf("%w\n%s", err, out)
	}
	return nil
}
