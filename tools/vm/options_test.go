//go:build linux

package main

import (
	"errors"
	"flag"
	"reflect"
	"strings"
	"testing"
	"time"
)

func TestParseOptions(t *testing.T) {
	defaults := options{devices: "both", limit: 15 * time.Minute, memory: 3072, cpus: 2, accel: "auto", kernelPackage: "linux-image-amd64"}
	with := func(change func(*options), command ...string) options {
		o := defaults
		change(&o)
		o.command = command
		return o
	}
	for args, want := range map[string]options{
		"true":                       with(func(*options) {}, "true"),
		"sh -c --dev":                with(func(*options) {}, "sh", "-c", "--dev"),
		"--dev rxe -- --odd --dev x": with(func(o *options) { o.devices = "rxe" }, "--odd", "--dev", "x"),
		"--dev=siw --timeout=7 --mem=512 --cpus=1 --accel=tcg ls": with(func(o *options) {
			o.devices, o.limit, o.memory, o.cpus, o.accel = "siw", 7*time.Second, 512, 1, "tcg"
		}, "ls"),
		"--nfsd --console --out dir --kernel-package linux-image-7.2 ls": with(func(o *options) {
			o.nfsd, o.console, o.out, o.kernelPackage = true, true, "dir", "linux-image-7.2"
		}, "ls"),
		"--plugin /p.so,out=/o --cpus 1 ls": with(func(o *options) { o.plugin, o.cpus, o.accel = "/p.so,out=/o", 1, "tcg" }, "ls"),
	} {
		if got, err := parseOptions(strings.Fields(args)); err != nil || !reflect.DeepEqual(*got, want) {
			t.Errorf("%s:\n got %+v, %v\nwant %+v", args, got, err, want)
		}
	}
}

func TestParseOptionsErrors(t *testing.T) {
	for args, want := range map[string]string{
		"":                                      "no command",
		"--dev rxe":                             "no command",
		"--dev":                                 "dev",
		"--dev ib ls":                           "rxe siw both none",
		"--accel xen ls":                        "auto kvm tcg",
		"--timeout 0 ls":                        "number",
		"--timeout 1.5 ls":                      "number",
		"--mem 3072M ls":                        "number",
		"--cpus -1 ls":                          "number",
		"--timeout 12345678 a":                  "number",
		"--colour ls":                           "colour",
		"--plugin p.so ls":                      "take turns",
		"--plugin p.so --accel kvm --cpus 1 ls": "TCG",
	} {
		_, err := parseOptions(strings.Fields(args))
		var wrong *usageError
		if !errors.As(err, &wrong) || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "scripts/vm --help") {
			t.Errorf("%q: %v; want a usage error about %q", args, err, want)
		}
	}
	for _, help := range []string{"-h", "--help", "--dev rxe --help"} {
		if _, err := parseOptions(strings.Fields(help)); !errors.Is(err, flag.ErrHelp) {
			t.Errorf("%s: %v", help, err)
		}
	}
}

// TestUsageNamesOptions: each option is described.
func TestUsageNamesOptions(t *testing.T) {
	for _, name := range []string{"dev", "timeout", "mem", "cpus", "out", "nfsd", "accel", "plugin", "kernel-package", "console", "help"} {
		if !strings.Contains(usage, "--"+name+" ") {
			t.Errorf("--%s is not in the usage text", name)
		}
	}
}
