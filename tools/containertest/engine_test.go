//go:build linux

package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestHindrance: what container runtimes say when they cannot start a container, word for
// word.
func TestHindrance(t *testing.T) {
	for said, want := range map[string]hindrance{
		"Error: crun: setrlimit `RLIMIT_NOFILE`: Operation not permitted: OCI permission denied": limits,
		"Error: runc: runc create failed: unable to start container process: error during container init: " +
			"error setting rlimits for ready process: error setting rlimit type 7: operation not permitted: OCI permission denied": limits,
		"docker: Error response from daemon: failed to create task for container: failed to create shim task: OCI runtime create failed: " +
			"runc create failed: unable to start container process: error setting rlimit type 8: operation not permitted: unknown": limits,
		"Error: crun: cgroups in hybrid mode not supported, drop all controllers from cgroup v1: OCI runtime error":                        cgroups,
		"Error: crun: executable file `/none` not found: No such file or directory: OCI runtime attempted to invoke a command":             none,
		"Error: runc: exec failed: unable to start container process: exec: \"/none\": stat /none: no such file or directory: OCI runtime": none,
		"": none,
	} {
		if got := hindranceIn(said); got != want {
			t.Errorf("%q is %d; want %d", said, got, want)
		}
	}
}

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o777); err != nil {
		t.Fatal(err)
	}
}

func text(t *testing.T, path string) string {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// fakeEngine is an engine that is a shell script. Its arguments are "$*", and the file calls has
// them.
func fakeEngine(t *testing.T, name, script string) (e *engine, calls string) {
	t.Helper()
	dir := t.TempDir()
	calls = filepath.Join(dir, "calls")
	write(t, filepath.Join(dir, name), "#!/bin/sh\necho \"$*\" >>"+calls+"\n"+script)
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
	return &engine{name: name, mark: "mark", work: t.TempDir()}, calls
}

// TestSettle: a Podman that has all hindrances runs containers in the end.
func TestSettle(t *testing.T) {
	e, calls := fakeEngine(t, podman, `
case $1 in run) ;; *) exit 0 ;; esac
conf=$(cat "$CONTAINERS_CONF")
case $conf in
*nofile=*nproc=*) ;;
*) echo "Error: crun: setrlimit" >&2; exit 126 ;;
esac
case $conf in
*'runtime = "runc"'*) echo "exec: stat /none: no such file or directory" >&2; exit 127 ;;
esac
echo "Error: crun: cgroups in hybrid mode not supported" >&2; exit 126
`)
	t.Setenv(configurationVariable, "")
	write(t, filepath.Join(filepath.Dir(calls), "runc"), "#!/bin/sh\n")
	if err := e.settle(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := os.Getenv(configurationVariable); got != e.file("containers.conf") {
		t.Errorf("the configuration is %q", got)
	}
	if said := text(t, calls); strings.Count(said, "run --rm") != 3 || !strings.HasSuffix(said, "rmi -f localhost/mark\n") {
		t.Errorf("%s", said)
	}
}

func TestSettleFails(t *testing.T) {
	t.Setenv(configurationVariable, "")
	for name, said := range map[string]string{
		"podman does not start containers here: Error: no kernel": "Error: no kernel",
		"podman does not start containers here: setrlimit":        "setrlimit", // also with this machine's limits
	} {
		e, _ := fakeEngine(t, podman, `[ "$1" != run ] || { echo "`+said+`" >&2; exit 126; }`)
		if err := e.settle(t.Context()); err == nil || err.Error() != name {
			t.Errorf("%v, want %s", err, name)
		}
	}
	e, calls := fakeEngine(t, podman, `[ "$1" != run ] || { echo "hybrid mode" >&2; exit 126; }`)
	t.Setenv("PATH", filepath.Dir(calls)) // without runc
	if err := e.settle(t.Context()); err == nil || !strings.Contains(err.Error(), "runc is not installed") {
		t.Errorf("%v", err)
	}
	if e, calls = fakeEngine(t, docker, ""); e.settle(t.Context()) != nil {
		t.Error("Docker needs no settling")
	}
	if _, err := os.Stat(calls); err == nil {
		t.Error("Docker was run")
	}
}

func TestConfiguration(t *testing.T) {
	for want, c := range map[string]configuration{
		"[containers]\n[engine]\n": {},
		"[containers]\ndefault_ulimits = [\"a=1:1\"]\n[engine]\nruntime = \"runc\"\n": {ulimits: `"a=1:1"`, runtime: "runc"},
		"[containers]\n[engine]\n[network]\nnetwork_backend = \"netavark\"\n":         {netavark: true},
	} {
		if got := c.String(); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}

// TestFindEngine: Docker counts only when its daemon runs.
func TestFindEngine(t *testing.T) {
	for want, script := range map[string]string{docker: "exit 0", podman: `[ "$1" != info ]`} {
		_, calls := fakeEngine(t, docker, script)
		write(t, filepath.Join(filepath.Dir(calls), podman), "#!/bin/sh\n")
		e, err := findEngine(t.Context())
		if err != nil || e.name != want {
			t.Fatalf("%+v, %v; want %s", e, err, want)
		}
		os.RemoveAll(e.work)
	}
	dir := t.TempDir()
	t.Setenv("PATH", dir)
	if _, err := findEngine(t.Context()); err == nil || !strings.Contains(err.Error(), "scripts/setup container-test") {
		t.Errorf("no engine at all: %v", err)
	}
	write(t, filepath.Join(dir, podman), "#!/bin/sh\necho broken >&2\nexit 125\n")
	if _, err := findEngine(t.Context()); err == nil || err.Error() != "podman does not work here: broken" {
		t.Errorf("a Podman that does not work: %v", err)
	}
}

// TestClose: what has our mark is removed, each kind in its way.
func TestClose(t *testing.T) {
	e, calls := fakeEngine(t, podman, `
case "$*" in
"ps -aq --filter name=mark") printf 'one\ntwo\n' ;;
"volume ls -q --filter name=mark") echo three ;;
esac
`)
	write(t, filepath.Join(filepath.Dir(calls), "docker-compose"), "#!/bin/sh\necho \"compose $COMPOSE_PROJECT_NAME $*\" >>"+calls+"\n")
	stopped := false
	e.stopService = func() { stopped = true }
	e.close()
	want := `compose mark down -v
ps -aq --filter name=mark
rm -f one two
volume ls -q --filter name=mark
volume rm -f three
network ls --format {{.Name}} --filter name=mark
`
	if got := text(t, calls); got != want {
		t.Errorf("got:\n%swant:\n%s", got, want)
	}
	if _, err := os.Stat(e.work); err == nil || !stopped {
		t.Error("the directory or the service remains")
	}
}
