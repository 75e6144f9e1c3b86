// Release keeps the modules of this repository so that others can fetch them, and makes the
// tags of a version.
//
//	release list                      the published modules, each after those that it requires
//	release tidy [-w]                 go mod tidy of every module, as a check or for good
//	release prepare VERSION           writes VERSION into the module files
//	release check [-tagged] VERSION   lists what is in the way of VERSION
//	release tag [-create] VERSION     prints the tags, or creates them
//	release proxy -version VERSION DIR   a module proxy of files, from the tree as it is
//	release test                      installs everything from such a proxy, as a user would
//
// A clone is one workspace, and what its modules require of each other is replaced in go.work. Those
// that users fetch may have no replace directives of their own: the go command refuses to install
// from such a module. What a nested module requires of the others is their last released version,
// or v0.0.0-00010101000000-000000000000 before there is one. Modules bench and tools are for
// clones alone; they keep their replace directives and have no tags.
//
// A version is released in one commit, with all its tags on it. Prepare makes that possible:
// it writes VERSION into go.work and each go.mod, and into each go.sum the hashes that the module proxy will
// find, which it knows because no module contains another one's files.
//
//	$ $EDITOR CHANGELOG.md                # a section "## VERSION", and nothing under "## Unreleased"
//	$ git commit -am 'changelog: v0.1.0'
//	$ go run ./tools/release prepare v0.1.0
//	$ git commit -am 'release v0.1.0'
//	$ go run ./tools/release tag -create v0.1.0
package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

func main() {
	root, err := top()
	if err == nil {
		err = run(root, os.Args[1:], os.Stdout)
	}
	if err != nil {
		fmt.Fprintf(os.Stderr, "release: %v\n", err)
		os.Exit(1)
	}
}

var errUsage = errors.New("usage: release list | tidy [-w] | prepare VERSION | check [-tagged] VERSION | " +
	"tag [-create] VERSION | proxy -version VERSION DIR | test")

// run executes a command on the repository at root.
func run(root string, args []string, w io.Writer) error {
	if len(args) == 0 {
		return errUsage
	}
	flags := flag.NewFlagSet(args[0], flag.ContinueOnError)
	flags.SetOutput(io.Discard)
	var (
		write   = flags.Bool("w", false, "write the files")
		tagged  = flags.Bool("tagged", false, "want the tags on the commit that is checked out")
		create  = flags.Bool("create", false, "create the tags")
		version = flags.String("version", "", "`VERSION` of the modules")
	)
	if err := flags.Parse(args[1:]); err != nil {
		return fmt.Errorf("%w (%w)", errUsage, err)
	}
	tree, err := load(root)
	if err != nil {
		return err
	}
	switch args, n := flags.Args(), flags.NArg(); {
	case flags.Name() == "list" && n == 0:
		for _, m := range tree.published() {
			if _, err := fmt.Fprintln(w, m.path); err != nil {
				return err
			}
		}
		return nil
	case flags.Name() == "tidy" && n == 0:
		return tree.tidy(*write, w)
	case flags.Name() == "prepare" && n == 1:
		return tree.prepare(args[0])
	case flags.Name() == "check" && n == 1:
		return tree.check(args[0], *tagged)
	case flags.Name() == "tag" && n == 1:
		return tree.tag(args[0], *create, w)
	case flags.Name() == "proxy" && n == 1 && *version != "":
		return tree.proxy(args[0], *version)
	case flags.Name() == "test" && n == 0:
		return tree.try(w)
	}
	return errUsage
}

// top returns the directory of go.work.
func top() (string, error) {
	out, err := exec.Command("go", "env", "GOWORK").Output()
	if err != nil {
		return "", fmt.Errorf("go env: %w", err)
	}
	work := strings.TrimSpace(string(out))
	if work == "" || work == "off" {
		return "", errors.New("not in the workspace of a clone")
	}
	return filepath.Dir(work), nil
}
