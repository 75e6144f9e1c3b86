//go:build linux

package main

import (
	"archive/tar"
	"bytes"
	"slices"
	"strings"
	"testing"
)

// fakeStep is a check on an engine that is a shell script.
func fakeStep(t *testing.T, script string) *step {
	t.Helper()
	e, _ := fakeEngine(t, podman, script)
	return &step{engine: e, ctx: t.Context()}
}

// TestChecks: each check passes with an engine as it should be, and fails with one that is
// not.
func TestChecks(t *testing.T) {
	tests := []struct {
		name   string
		run    func(*step) error
		script string
		want   string // of the error; empty: none
	}{
		{"small", isSmall, "echo 15000000", ""},
		{"large", isSmall, "echo 120000001", "at most 120000000"},
		{"without a size", isSmall, "exit 1", "exit status 1"},

		{"labels", hasLabels, "echo text", ""},
		{"a label is missing", hasLabels, `case "$*" in *licenses*) echo "<no value>" ;; *) echo x ;; esac`, "no label licenses"},
		{"a label is empty", hasLabels, `case "$*" in *version*) ;; *) echo x ;; esac`, "no label version"},

		{"no shell", hasNoShell, `case "$*" in *rpcrdma-demo*) ;; *) exit 127 ;; esac`, ""},
		{"a shell", hasNoShell, `case "$*" in *rpcrdma-demo* | */bin/bash*) ;; *) exit 127 ;; esac`, "/bin/bash: it succeeds"},
		{"no shell anywhere", hasNoShell, "exit 127", "exit status 127"},

		{"nobody", isUnprivileged, "echo 65532:65532", ""},
		{"root", isUnprivileged, `case "$*" in *bench*) echo 0:0 ;; *) echo 65532:65532 ;; esac`, "rpcrdma-bench has the user '0:0'"},
		{"no user", isUnprivileged, "echo", "rpcrdma has the user ''"},

		{"providers", runsRDMA, `echo "rpcrdma with cgo"; echo "provider rdma: none"; echo "provider iwarp: usable"`, ""},
		{"no cgo", runsRDMA, `echo "provider rdma: none"; echo "provider iwarp: usable"`, "with cgo"},
		{"one provider", runsRDMA, `echo "rpcrdma with cgo"; echo "provider iwarp: usable"`, "provider rdma"},
		{"the other", runsRDMA, `echo "rpcrdma with cgo"; echo "provider rdma: usable"`, "provider iwarp"},
		{"the wrong one is usable", runsRDMA, `echo "rpcrdma with cgo"; echo "provider rdma: usable"; echo "provider iwarp"`, "usable"},

		{"refused", failsAlone, "echo connection refused >&2; exit 1", ""},
		{"another status", failsAlone, "echo connection refused >&2; exit 2", "status 2, not 1"},
		{"for another reason", failsAlone, "echo no route >&2; exit 1", "refused"},
		{"not refused", failsAlone, "exit 0", "it succeeds"},

		{"benchmarks", benchmarksRun, `case "$*" in *cverbs*) echo no device; exit 1 ;; *ib_send_lat*) echo Version: 6; exit 1 ;; esac`, ""},
		{"a benchmark fails", benchmarksRun, `case "$*" in *-rounds*) exit 1 ;; *cverbs*) echo no device ;; *) echo Version ;; esac`, "exit status 1"},
		{"a benchmark is silent", benchmarksRun, `case "$*" in *stream*) exit 1 ;; *cverbs*) echo no device ;; *) echo Version ;; esac`, "stream does not say"},
		{"no perftest", benchmarksRun, `case "$*" in *cverbs*) echo no device ;; esac`, "Version"},
		{"the suite fails", benchmarksRun, `case "$*" in *-test.run*) exit 2 ;; *cverbs*) echo no device ;; *) echo Version ;; esac`, "exit status 2"},

		{"healthy", isHealthy, `[ "$*" = "healthcheck run mark-server" ]`, ""},
		{"not healthy", isHealthy, "exit 1", "exit status 1"},
		{"unhealthy", isUnhealthy, `[ "$1" != exec ]`, ""},
		{"healthy without a server", isUnhealthy, "", "it succeeds"},

		{"stops", stopsAtOnce, `[ "$1" = stop ] || echo 0`, ""},
		{"is killed", stopsAtOnce, `[ "$1" = stop ] || echo 137`, "status 137"},
		{"does not stop", stopsAtOnce, "exit 125", "exit status 125"},

		{"not read-only", isConfined, "echo false false", "false false"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			err := test.run(fakeStep(t, test.script))
			if test.want == "" && err != nil {
				t.Errorf("%v", err)
			}
			if test.want != "" && (err == nil || !strings.Contains(err.Error(), test.want)) {
				t.Errorf("%v, want %q", err, test.want)
			}
		})
	}
}

func TestLoaderAndDrivers(t *testing.T) {
	drivers := []string{
		"usr/lib/libibverbs/librxe.so", "usr/lib/libibverbs/libsiw.so", "usr/lib/libibverbs/a.so",
		"usr/lib/libibverbs/b.so", "usr/lib/libibverbs/c.so", "usr/lib/libibverbs/d.so",
	}
	names := append([]string{"lib64/", "usr/lib64/ld-linux-x86-64.so.2", "lib64/ld-linux-x86-64.so.2", "usr/lib/libibverbs.so.1"}, drivers...)
	loader, got, err := loaderAndDrivers(names)
	if err != nil || loader != "lib64/ld-linux-x86-64.so.2" || !slices.Equal(got, drivers) {
		t.Errorf("%s, %v, %v", loader, got, err)
	}
	if _, _, err := loaderAndDrivers(names[:len(names)-1]); err == nil {
		t.Error("few drivers are enough")
	}
	if _, _, err := loaderAndDrivers(drivers); err == nil {
		t.Error("an image without a loader is enough")
	}
}

// TestLinksWhole: a driver that lacks a library is found, though the loader's status may be 0.
func TestLinksWhole(t *testing.T) {
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, name := range []string{"lib64/ld-linux-x86-64.so.2", "l/libibverbs/a.so", "l/libibverbs/b.so", "l/libibverbs/c.so", "l/libibverbs/d.so", "l/libibverbs/e.so", "l/libibverbs/f.so"} {
		if err := w.WriteHeader(&tar.Header{Name: name, Typeflag: tar.TypeReg}); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	archive := t.TempDir() + "/tar"
	write(t, archive, b.String())
	script := "[ \"$1\" != export ] || cat " + archive + "\n"
	if err := linksWhole(fakeStep(t, script)); err != nil {
		t.Errorf("%v", err)
	}
	for broken, want := range map[string]string{"echo 'libnl => not found'": "l/libibverbs/d.so lacks a library", "exit 1": "exit status 1"} {
		if err := linksWhole(fakeStep(t, script+`case "$*" in */d.so) `+broken+" ;; esac")); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %s", err, want)
		}
	}
}
