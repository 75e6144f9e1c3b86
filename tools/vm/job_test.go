//go:build linux

package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// TestJobIsBash: bash reads back what was written, whatever it is.
func TestJobIsBash(t *testing.T) {
	bash, err := exec.LookPath("bash")
	if err != nil {
		t.Skip("bash is not installed, which the guest's scripts are for")
	}
	odd := []string{"", "a b", "it's", `"$HOME" \n`, "two\nlines", "*", "\xff", "-e", "''"}
	j := &job{directory: "/a dir/it's", devices: "both", merged: true, command: odd, environment: []string{"GOFLAGS=-a -b", "RPCRDMA_X=$(false)"}}
	cmd := exec.Command(bash, "-euc", `source /dev/stdin
printf '%s\0' "$directory" "$devices" "$nfsd" "$merged" "${command[@]}" "${environment[@]}"`)
	cmd.Stdin = strings.NewReader(j.String())
	out, err := cmd.Output()
	want := slices.Concat([]string{j.directory, "both", "", "yes"}, odd, j.environment, []string{""})
	if got := strings.Split(string(out), "\x00"); err != nil || !slices.Equal(got, want) {
		t.Errorf("got  %q, %v\nwant %q", got, err, want)
	}
}

func TestJobEnvironment(t *testing.T) {
	got := jobEnvironment([]string{
		"SHELL=/bin/sh", "GOFLAGS=-race", "RPCRDMA_X=a=b", "PATH=/bin:/sbin", "HOME=/home/me", "GO=1", "AGO=1", "GO.X=1", "BASH_FUNC_GO%%=() { :; }",
		scriptsVariable + "=/scripts", "TMPDIR=/elsewhere",
	})
	want := []string{"PATH=/bin:/sbin", "HOME=/home/me", "TMPDIR=/run/tmp", "GO=1", "GOFLAGS=-race", "RPCRDMA_X=a=b"}
	if !slices.Equal(got, want) {
		t.Errorf("got  %q\nwant %q", got, want)
	}
	if got := jobEnvironment([]string{"PATH=/bin", "HOME="}); got[1] != "HOME=/" {
		t.Errorf("an empty HOME: %q", got)
	}
}

func TestSameFile(t *testing.T) {
	open := func(path string) *os.File {
		f, err := os.Create(path)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { f.Close() })
		return f
	}
	dir := t.TempDir()
	a, again, b := open(filepath.Join(dir, "a")), open(filepath.Join(dir, "a")), open(filepath.Join(dir, "b"))
	if !sameFile(a, again) || sameFile(a, b) {
		t.Error("whether two files are one is wrong")
	}
}

// TestNewGuest: the control directory has what guest/init and guest/start read.
func TestNewGuest(t *testing.T) {
	h, k := fakeHost(t)
	out := filepath.Join(realTemp(t), "new", "out")
	g, err := h.newGuest(&options{devices: "rxe", out: out, command: []string{"ls"}}, k)
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{
		controlModules: k.dir + "/lib/modules/" + k.release() + "\n",
		controlStart:   h.scripts + "/guest/start\n",
		controlOut:     out + "\n",
		controlStdout:  "",
		controlStderr:  "",
	} {
		if text, err := os.ReadFile(g.file(name)); err != nil || string(text) != want {
			t.Errorf("%s: %q, %v; want %q", name, text, err, want)
		}
	}
	if text, _ := os.ReadFile(g.file(controlJob)); !strings.Contains(string(text), "'RPCRDMA_OUT="+out+"'") {
		t.Errorf("the job does not tell the command where --out is:\n%s", text)
	}
	if g.started() || exists(g.file(controlStatus)) {
		t.Error("it has run already")
	}
}
