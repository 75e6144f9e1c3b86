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

// Files of the control directory, which host and guest share.
const (
	controlJob     = "job"     // what to run, as bash assignments for guest/start
	controlModules = "modules" // path to the kernel's modules
	controlStart   = "start"   // path to guest/start
	controlOut     = "out"     // path of --out, if set
	controlStarted = "started" // created when the command is about to run
	controlStdout  = "stdout"  // output of the command, which the host copies as it grows
	controlStderr  = "stderr"
	controlStatus  = "status" // exit status of the command; if missing, the run has failed
)

// job is the task of guest/start.
type job struct {
	directory   string // working directory of the command
	devices     string
	nfsd        bool
	merged      bool // stdout and stderr are the same file
	command     []string
	environment []string
}

// String returns the job in bash syntax.
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

// passed matches the variables of our environment that the command gets. Others may have names that bash does not
// accept.
var passed = regexp.MustCompile(`^(RPCRDMA_|GO)[A-Za-z0-9_]*=`)

// jobEnvironment returns the environment for the command, derived from ours.
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

// newGuest writes the guest's task to a control directory.
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

// sameFile reports whether two files are the same pipe or file, so that the order of writes to both matters.
func sameFile(a, b *os.File) bool {
	x, err := a.Stat()
	if err != nil {
		return false
	}
	y, err := b.Stat()
	return err == nil && os.SameFile(x, y)
}
