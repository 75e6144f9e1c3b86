//go:build linux

package main

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// fakeHost has a kernel in its cache that nothing boots.
func fakeHost(t *testing.T) (*host, kernel) {
	t.Helper()
	h := &host{scripts: realTemp(t), cache: realTemp(t), work: realTemp(t)}
	write(t, filepath.Join(h.scripts, "guest", "init"), "init")
	k := kernel{filepath.Join(h.cache, "6.1.0-48-amd64")}
	write(t, k.image(), "kernel")
	return h, k
}

// fakeQEMU is the head of a shell script in the place of QEMU, which finds its
// directory and its console in the arguments.
const fakeQEMU = `
echo "$*" >>"$FAKE_CALLS"
for arg; do
	case $arg in
	*,mount_tag=control,*) control=${arg#*path=} control=${control%%,*} ;;
	file:*) console=${arg#file:} ;;
	esac
done
`

// fakeGuest is a guest with a script as its QEMU, with the files of its output.
func fakeGuest(t *testing.T, opts *options, script string) (g *guest, calls string) {
	t.Helper()
	h, k := fakeHost(t)
	calls = filepath.Join(h.work, "calls")
	t.Setenv("FAKE_CALLS", calls)
	fakePrograms(t, map[string]string{qemu: fakeQEMU + script})
	opts.cpus, opts.memory = 1, 64
	if opts.limit == 0 {
		opts.limit = time.Minute
	}
	g, err := h.newGuest(opts, k)
	if err != nil {
		t.Fatal(err)
	}
	for to, name := range map[**os.File]string{&g.stdout: "out", &g.stderr: "err"} {
		if *to, err = os.Create(filepath.Join(h.work, name)); err != nil {
			t.Fatal(err)
		}
	}
	return g, calls
}

func text(t *testing.T, path string) string {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// TestRun: output and exit status are the command's, and the console is shown on request.
func TestRun(t *testing.T) {
	g, calls := fakeGuest(t, &options{console: true}, `
: >"$control/started"
echo to stdout >"$control/stdout"
echo to stderr >"$control/stderr"
echo to the console >"$console"
echo 7 >"$control/status"
`)
	status, err := g.run(t.Context(), &machine{accel: "tcg"})
	if status != 7 || err != nil {
		t.Errorf("%d, %v", status, err)
	}
	if got := text(t, g.stdout.Name()); got != "to stdout\n" {
		t.Errorf("stdout %q", got)
	}
	if got := text(t, g.stderr.Name()); !strings.Contains(got, "to stderr\n") || !strings.Contains(got, "to the console\n") {
		t.Errorf("stderr %q", got)
	}
	if n := strings.Count(text(t, calls), "\n"); n != 1 {
		t.Errorf("QEMU ran %d times", n)
	}
}

// TestRunPanics: the kernel's last words are kept in --out.
func TestRunPanics(t *testing.T) {
	out := t.TempDir()
	g, _ := fakeGuest(t, &options{out: out}, `
: >"$control/started"
echo "Kernel panic: siw_destroy_listen+" >"$console"
`)
	if _, err := g.run(t.Context(), &machine{accel: "tcg"}); !errors.Is(err, errPanicked) {
		t.Errorf("%v", err)
	}
	if got := text(t, filepath.Join(out, "console")); !strings.Contains(got, "siw_destroy_listen+") {
		t.Errorf("%q", got)
	}
}

func TestRunTimeLimit(t *testing.T) {
	for name, started := range map[string]bool{"": false, ": >\"$control/started\"\n": true} {
		g, _ := fakeGuest(t, &options{limit: 300 * time.Millisecond}, name+"exec sleep 60")
		_, err := g.run(t.Context(), &machine{accel: "tcg"})
		var limit *limitError
		if !errors.As(err, &limit) || limit.started != started {
			t.Errorf("started %t: %#v", started, err)
		}
	}
}

// TestRunKillsQEMU: a QEMU that ignores the request to end is killed.
func TestRunKillsQEMU(t *testing.T) {
	g, _ := fakeGuest(t, &options{limit: 300 * time.Millisecond}, `
trap '' TERM
: >"$control/started"
sleep 10
sleep 10 # if only the first was stopped
`)
	begin := time.Now()
	_, err := g.run(t.Context(), &machine{accel: "tcg"})
	if took := time.Since(begin); exitStatus(err) != statusLimit || took < killDelay {
		t.Errorf("%v after %v", err, took)
	}
}

// TestRunAgain: a guest that hangs while it starts is started again, once.
func TestRunAgain(t *testing.T) {
	const spin = `while :; do :; done`
	g, calls := fakeGuest(t, &options{}, `
if [ "$(wc -l <"$FAKE_CALLS")" = 1 ]; then `+spin+`; fi
: >"$control/started"
echo 0 >"$control/status"
`)
	g.patience = 50 * time.Millisecond
	if status, err := g.run(t.Context(), &machine{accel: "tcg"}); status != 0 || err != nil {
		t.Errorf("%d, %v", status, err)
	}
	if n := strings.Count(text(t, calls), "\n"); n != 2 {
		t.Errorf("QEMU ran %d times", n)
	}

	g, calls = fakeGuest(t, &options{limit: time.Second}, spin)
	g.patience = 50 * time.Millisecond
	if _, err := g.run(t.Context(), &machine{accel: "tcg"}); exitStatus(err) != statusLimit {
		t.Errorf("a guest that hangs both times: %v", err)
	}
	if n := strings.Count(text(t, calls), "\n"); n != 2 {
		t.Errorf("QEMU ran %d times", n)
	}
}

// TestRunStopped: a signal stops QEMU, whatever the guest has left.
func TestRunStopped(t *testing.T) {
	ctx, stop := context.WithCancelCause(t.Context())
	g, _ := fakeGuest(t, &options{}, `
: >"$control/started"
echo 0 >"$control/status"
echo ready >"$control/stdout"
exec sleep 60
`)
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	g.stdout = w
	go func() {
		r.Read(make([]byte, 6))
		stop(&signalError{syscall.SIGINT})
	}()
	if _, err := g.run(ctx, &machine{accel: "tcg"}); exitStatus(err) != 130 {
		t.Errorf("%v", err)
	}
}

// TestRunUnread: when the reader of the output is gone, the machine is stopped.
func TestRunUnread(t *testing.T) {
	g, _ := fakeGuest(t, &options{}, ": >\"$control/started\"\necho text >\"$control/stdout\"\nexec sleep 60")
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	r.Close()
	g.stdout = w
	if _, err := g.run(t.Context(), &machine{accel: "tcg"}); exitStatus(err) != 141 {
		t.Errorf("%v", err)
	}
}

func TestRunQEMUFails(t *testing.T) {
	g, _ := fakeGuest(t, &options{}, "echo cannot do it >&2; exit 1")
	_, err := g.run(t.Context(), &machine{accel: "tcg"})
	var failed *qemuError
	if !errors.As(err, &failed) || failed.status != 1 {
		t.Errorf("%v", err)
	}
	if got := text(t, g.qemuLog()); got != "cannot do it\n" {
		t.Errorf("the log is %q", got)
	}
}
