//go:build linux

package main

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// The files of the control directory, which host and guest share.
const (
	controlJob     = "job"     // what to run, as assignments in bash that guest/start reads
	controlModules = "modules" // path of the kernel's modules
	controlStart   = "start"   // path of guest/start
	controlOut     = "out"     // path of --out, if there is one
	controlStarted = "started" // appears when the command is about to run
	controlStdout  = "stdout"  // what the command prints, which the host copies as it grows
	controlStderr  = "stderr"
	controlStatus  = "status" // the command's exit status: without it the run has failed
)

// job is the task of guest/start.
type job struct {
	directory   string // in which the command runs
	devices     string
	nfsd        bool
	merged      bool // stdout and stderr are the same file
	command     []string
	environment []string
}

// String writes the job in bash.
func (j *job) String() string {
	return fmt.Sprintf("directory=%s\ndevices=%s\nnfsd=%s\nmerged=%s\ncommand=(%s)\nenvironment=(%s)\n",
		quote(j.directory), quote(j.devices), yes(j.nfsd), yes(j.merged), quoteAll(j.command), quoteAll(j.environment))
}

func yes(is bool) string {
	if is {
		return "yes"
	}
	return ""
}

// quote quotes a string for bash.
func quote(s string) string { return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'" }

func quoteAll(list []string) string {
	quoted := make([]string, len(list))
	for i, s := range list {
		quoted[i] = quote(s)
	}
	return strings.Join(quoted, " ")
}

// passed matches the variables that the command gets from our environment. Others need not
// have names that bash accepts.
var passed = regexp.MustCompile(`^(RPCRDMA_|GO)[A-Za-z0-9_]*=`)

// jobEnvironment is the environment of the command, from ours.
func jobEnvironment(environ []string) []string {
	env := []string{"PATH=", "HOME=/", "TMPDIR=/run/tmp"}
	for _, variable := range slices.Sorted(slices.Values(environ)) {
		switch name, value, _ := strings.Cut(variable, "="); {
		case name == "PATH":
			env[0] = variable
		case name == "HOME" && value != "":
			env[1] = variable
		case passed.MatchString(variable) && name != scriptsVariable:
			env = append(env, variable)
		}
	}
	return env
}

// newGuest leaves for the guest, in a control directory, what it has to do.
func (h *host) newGuest(opts *options, k kernel) (*guest, error) {
	dir, err := os.Getwd()
	if err != nil {
		return nil, err
	}
	g := &guest{host: h, opts: opts, stdout: os.Stdout, stderr: os.Stderr, patience: patience}
	j := &job{
		directory: dir, devices: opts.devices, nfsd: opts.nfsd, merged: sameFile(g.stdout, g.stderr),
		command: opts.command, environment: jobEnvironment(os.Environ()),
	}
	files := map[string]string{
		controlModules: k.modules() + "\n",
		controlStart:   filepath.Join(h.scripts, "guest", "start") + "\n",
		controlStdout:  "",
		controlStderr:  "",
	}
	if opts.out != "" {
		if g.out, err = outDir(opts.out); err != nil {
			return nil, err
		}
		j.environment = append(j.environment, "RPCRDMA_OUT="+g.out)
		files[controlOut] = g.out + "\n"
	}
	files[controlJob] = j.String()
	return g, g.writeControl(files)
}

func (g *guest) writeControl(files map[string]string) error {
	if err := os.Mkdir(g.control(), 0o777); err != nil {
		return err
	}
	for name, text := range files {
		if err := os.WriteFile(g.file(name), []byte(text), 0o666); err != nil {
			return err
		}
	}
	return nil
}

func outDir(dir string) (string, error) {
	if err := os.MkdirAll(dir, 0o777); err != nil {
		return "", fmt.Errorf("--out: %w", err)
	}
	return resolved(dir)
}

// sameFile reports whether two files are one pipe or file, in which the order of what is
// written to either counts.
func sameFile(a, b *os.File) bool {
	x, err := a.Stat()
	if err != nil {
		return false
	}
	y, err := b.Stat()
	return err == nil && os.SameFile(x, y)
}
