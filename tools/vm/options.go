//go:build linux

package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

// options holds the command line.
type options struct {
	devices       string // rxe, siw, both or none
	limit         time.Duration
	memory        int // MiB
	cpus          int
	out           string // empty: not set
	nfsd          bool
	accel         string // auto, kvm or tcg
	plugin        string // plugin for QEMU, with arguments; empty: none
	kernelPackage string
	console       bool
	command       []string
}

// parseOptions parses the command line. The error is [flag.ErrHelp] if the user asks for help.
func parseOptions(args []string) (*options, error) {
	o := &options{devices: "both", limit: 900 * time.Second, memory: 3072, cpus: 2, accel: "auto"}
	f := flag.NewFlagSet("vm", flag.ContinueOnError)
	f.SetOutput(io.Discard)
	f.Func("dev", "", oneOf(&o.devices, "rxe", "siw", "both", "none"))
	f.Func("timeout", "", seconds(&o.limit))
	f.Func("mem", "", number(&o.memory))
	f.Func("cpus", "", number(&o.cpus))
	f.StringVar(&o.out, "out", "", "")
	f.BoolVar(&o.nfsd, "nfsd", false, "")
	f.Func("accel", "", oneOf(&o.accel, "auto", "kvm", "tcg"))
	f.StringVar(&o.plugin, "plugin", "", "")
	f.StringVar(&o.kernelPackage, "kernel-package", "linux-image-amd64", "")
	f.BoolVar(&o.console, "console", false, "")
	if err := f.Parse(args); errors.Is(err, flag.ErrHelp) {
		return nil, err
	} else if err != nil {
		return nil, &usageError{err.Error()}
	}
	if o.command = f.Args(); len(o.command) == 0 {
		return nil, &usageError{"no command is given"}
	}
	if o.plugin != "" {
		switch {
		case o.accel == "kvm":
			return nil, &usageError{"--plugin is for TCG"}
		case o.cpus != 1:
			return nil, &usageError{"--plugin wants --cpus 1: the processors of a machine whose clock counts instructions take turns"}
		}
		o.accel = "tcg"
	}
	return o, nil
}

// usageError is an invalid command line.
type usageError struct{ what string }

func (e *usageError) Error() string { return e.what + ": see 'scripts/vm --help'" }

// oneOf accepts one of some words.
func oneOf(to *string, words ...string) func(string) error {
	return func(value string) error {
		if !slices.Contains(words, value) {
			return fmt.Errorf("it must be one of %s", strings.Join(words, " "))
		}
		*to = value
		return nil
	}
}

var numeral = regexp.MustCompile(`^[1-9][0-9]{0,6}$`)

// number accepts a positive number of up to seven digits.
func number(to *int) func(string) error {
	return func(value string) error {
		if !numeral.MatchString(value) {
			return errors.New("it must be a number from 1 to 9999999")
		}
		n, err := strconv.Atoi(value)
		*to = n
		return err
	}
}

// seconds accepts such a number as a duration.
func seconds(to *time.Duration) func(string) error {
	return func(value string) error {
		var n int
		err := number(&n)(value)
		*to = time.Duration(n) * time.Second
		return err
	}
}
