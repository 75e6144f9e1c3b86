//go:build linux

package main

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func TestImageIn(t *testing.T) {
	for depends, want := range map[string]string{
		"": "",
		"linux-image-amd64\n  Depends: linux-image-6.1.0-48-amd64\n":                                        "linux-image-6.1.0-48-amd64",
		"meta\n  PreDepends: dpkg\n |Depends: linux-image-7.2.13+deb14-amd64\n  Depends: linux-image-6.1\n": "linux-image-7.2.13+deb14-amd64",
		"meta\n  Depends: <linux-image>\n  Suggests: linux-image-6.1.0-48-amd64\n":                          "",
	} {
		if got := imageIn([]byte(depends)); got != want {
			t.Errorf("%q: %q, want %q", depends, got, want)
		}
	}
}

func TestHeadersIn(t *testing.T) {
	depends := `linux-headers-6.1.0-48-amd64
  Depends: linux-headers-6.1.0-48-common
  Depends: linux-kbuild-6.1
    linux-kbuild-6.1:i386
  Depends: linux-compiler-gcc-12-x86
  Recommends: linux-headers-other
`
	want := []string{"linux-headers-6.1.0-48-common", "linux-kbuild-6.1"}
	if got := headersIn([]byte(depends)); !slices.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
}

// fakePrograms puts shell scripts in front of the programs of this machine.
func fakePrograms(t *testing.T, programs map[string]string) {
	t.Helper()
	dir := t.TempDir()
	for name, script := range programs {
		write(t, filepath.Join(dir, name), "#!/bin/sh\n"+script)
	}
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
}

// TestFetchWithNewLists: this machine's lists name a file that no longer exists, and
// new ones are fetched without touching them, once.
func TestFetchWithNewLists(t *testing.T) {
	a := newApt(t.TempDir())
	calls := filepath.Join(a.dir, "calls")
	fakePrograms(t, map[string]string{"apt-get": `echo "$*" >>` + calls + `
case "$*" in
*update) exit 0 ;;
*Dir::State::lists=*"download good=1.2") echo content >good_1.2.deb ;;
*) echo "E: 404 Not Found" >&2; exit 100 ;;
esac
`})
	if err := a.fetch(t.Context(), "good", "1.2"); err != nil {
		t.Fatal(err)
	}
	if !exists(a.file("good")) {
		t.Error("the package is not where it belongs")
	}
	err := a.fetch(t.Context(), "bad", "")
	var wrong *packageError
	if !errors.As(err, &wrong) || wrong.name != "bad" || !strings.Contains(err.Error(), "404 Not Found") {
		t.Errorf("a missing package: %v", err)
	}
	text, _ := os.ReadFile(calls)
	if n := strings.Count(string(text), " update\n"); n != 1 {
		t.Errorf("the lists were fetched %d times:\n%s", n, text)
	}
	if strings.Count(string(text), "APT::Sandbox::User=root") != strings.Count(string(text), "\n") {
		t.Errorf("a call as another user:\n%s", text)
	}
}
