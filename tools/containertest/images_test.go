//go:build linux

package main

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestFindBases(t *testing.T) {
	e, _ := fakeEngine(t, docker, "")
	if b, err := e.findBases(t.Context(), false); err != nil || b != publicBases {
		t.Errorf("with a registry: %+v, %v", b, err)
	}
	e, calls := fakeEngine(t, docker, `[ "$1" != pull ]`)
	if b, err := e.findBases(t.Context(), false); err != nil || b != ownBases {
		t.Errorf("with images of an earlier run: %+v, %v", b, err)
	}
	if said := text(t, calls); strings.Contains(said, "build") || strings.Contains(said, "import") {
		t.Errorf("they were made again:\n%s", said)
	}
}

// TestMakeBases: of packages and of a Go, where there is no registry.
func TestMakeBases(t *testing.T) {
	e, calls := fakeEngine(t, podman, `
case "$*" in
build*) shift $(($# - 1)); cp -r "$1" "$COPY" ;;
*inspect*) exit 1 ;;
esac
`)
	bin := filepath.Dir(calls)
	goroot, copied := t.TempDir(), filepath.Join(t.TempDir(), "copy")
	for _, name := range []string{"VERSION", "bin", "pkg", "src", "go.env"} {
		write(t, filepath.Join(goroot, name), name)
	}
	if _, err := os.Stat("/etc/ssl/certs/ca-certificates.crt"); err != nil {
		t.Skip("there are no certificates here, which the image gets")
	}
	t.Setenv("COPY", copied)
	write(t, filepath.Join(bin, "go"), "#!/bin/sh\n[ \"$1\" != env ] || echo "+goroot+"\n")
	write(t, filepath.Join(bin, "mmdebstrap"), "#!/bin/sh\necho \"mmdebstrap $*\" >>"+calls+"\n")
	if err := e.makeBases(t.Context(), true); err != nil {
		t.Fatal(err)
	}
	if recipe := text(t, filepath.Join(copied, "Dockerfile")); !strings.HasPrefix(recipe, "FROM "+ownBases.debian+"\n") {
		t.Errorf("%s", recipe)
	}
	if text(t, filepath.Join(copied, "VERSION")) != "VERSION" {
		t.Error("Go is not in the image")
	}
	for _, want := range []string{"mmdebstrap --quiet", "import ", "-t " + ownBases.golang + " "} {
		if !strings.Contains(text(t, calls), want) {
			t.Errorf("no %s", want)
		}
	}
	write(t, filepath.Join(bin, "mmdebstrap"), "#!/bin/sh\necho E: no mirror >&2\nexit 1\n")
	if err := e.makeBases(t.Context(), true); err == nil || !strings.Contains(err.Error(), "no mirror") {
		t.Errorf("%v", err)
	}
}

func TestBuildArgs(t *testing.T) {
	for name, want := range map[string]string{
		docker: "build --network host -t image --target x .",
		podman: "build --network host --format docker --pull=never --layers -t image --target x .",
	} {
		if got := strings.Join((&engine{name: name}).buildArgs("image", "--target", "x", "."), " "); got != want {
			t.Errorf("%s\nwant %s", got, want)
		}
	}
}

// TestBuildImages: each stage has its image, and the virtual machine's only on request.
func TestBuildImages(t *testing.T) {
	for _, vm := range []bool{true, false} {
		e, calls := fakeEngine(t, docker, "echo 123")
		if err := e.buildImages(t.Context(), bases{"g", "d"}, vm); err != nil {
			t.Fatal(err)
		}
		said := text(t, calls)
		for _, want := range []string{"-t rpcrdma --target runtime --build-arg GO_IMAGE=g --build-arg DEBIAN_IMAGE=d", "-t rpcrdma-demo --target demo", "-t rpcrdma-bench --target bench"} {
			if !strings.Contains(said, want) {
				t.Errorf("no %s in:\n%s", want, said)
			}
		}
		if strings.Contains(said, "--target vm") != vm {
			t.Errorf("vm %t:\n%s", vm, said)
		}
	}
	e, _ := fakeEngine(t, docker, "echo step 1; echo no space >&2; exit 1")
	var failed *buildError
	if err := e.buildImages(t.Context(), publicBases, false); !errors.As(err, &failed) || failed.image != "rpcrdma" || string(failed.said) != "step 1\nno space" {
		t.Errorf("%v", err)
	}
}

func TestLastLines(t *testing.T) {
	for _, c := range []struct {
		text, last, two string
	}{
		{"", "", ""},
		{"a", "a", "a"},
		{"a\nb\nc\n\n", "c", "b\nc"},
	} {
		if last, two := string(lastLine([]byte(c.text))), string(lastLines([]byte(c.text), 2)); last != c.last || two != c.two {
			t.Errorf("%q: %q and %q", c.text, last, two)
		}
	}
}
