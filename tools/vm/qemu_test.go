//go:build linux

package main

import (
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func TestMachineArgs(t *testing.T) {
	for accel, want := range map[string][]string{
		"kvm": {"-nodefaults", "-display", "none", "-no-reboot", "-kernel", "/k", "-initrd", "/i", "-accel", "kvm", "-cpu", "host", "-m", "1", "-append", bootOptions + " probe"},
		"tcg": {
			"-nodefaults", "-display", "none", "-no-reboot", "-kernel", "/k", "-initrd", "/i", "-accel", "tcg,thread=multi,tb-size=512", "-cpu", "max", "-m", "1",
			"-append", bootOptions + " probe " + tcgOptions,
		},
	} {
		m := &machine{kernel: "/k", initrd: "/i", accel: accel}
		if got := m.args([]string{"-m", "1"}, "probe"); !slices.Equal(got, want) {
			t.Errorf("%s:\n got %q\nwant %q", accel, got, want)
		}
	}
	// QEMU has no clock that counts instructions with several threads.
	m := &machine{accel: "tcg", plugin: "/p.so,out=/o"}
	got := strings.Join(m.args(nil), " ")
	if !strings.Contains(got, " -icount shift=0 -plugin /p.so,out=/o -accel tcg,tb-size=512 ") {
		t.Errorf("with a plugin: %s", got)
	}
}

func TestShare(t *testing.T) {
	if got := share("out", "/a,b"); got != "local,path=/a,,b,mount_tag=out,security_model=none,multidevs=remap" {
		t.Errorf("%s", got)
	}
}

// TestGuestArguments: the guest must not be able to write to the host's files, --out aside.
func TestGuestArguments(t *testing.T) {
	g := &guest{host: &host{work: "/w"}, opts: &options{cpus: 3, memory: 5}, out: "/o"}
	args := strings.Join(g.arguments(&machine{accel: "tcg"}), " ")
	for _, want := range []string{
		" -smp 3 ", " -m 5 ", " -serial file:/w/console ", " -virtfs " + share("root", "/") + ",readonly=on ",
		" -virtfs " + share("control", "/w/control") + " ", " -virtfs " + share("out", "/o") + " ",
	} {
		if !strings.Contains(args, want) {
			t.Errorf("%s\nlacks %s", args, want)
		}
	}
	if g.out = ""; strings.Contains(strings.Join(g.arguments(&machine{}), " "), "mount_tag=out") {
		t.Error("a directory is shared without --out")
	}
}

// TestProbe: the answer is left for later runs, and comes from what the guest prints.
func TestProbe(t *testing.T) {
	for print, want := range map[string]string{"probe: the guest runs": "kvm", "KVM internal error": "tcg"} {
		h, k := fakeHost(t)
		calls := filepath.Join(h.work, "calls")
		t.Setenv("FAKE_CALLS", calls)
		fakePrograms(t, map[string]string{qemu: fakeQEMU + "echo '" + print + "' >\"$console\"\n"})
		old, answer := filepath.Join(h.cache, "accel-old"), filepath.Join(h.cache, "accel-now")
		write(t, old, "kvm\n")
		for range 2 {
			if err := h.probe(t.Context(), &machine{kernel: k.image()}, answer); err != nil {
				t.Fatal(err)
			}
		}
		if got := text(t, answer); got != want+"\n" {
			t.Errorf("%q makes %q", print, got)
		}
		if exists(old) {
			t.Error("the answer for an earlier boot is kept")
		}
		if said := text(t, calls); strings.Count(said, "\n") != 1 || !strings.Contains(said, "-accel kvm") || !strings.HasSuffix(said, " probe\n") {
			t.Errorf("QEMU was run with %s", said)
		}
	}
}
