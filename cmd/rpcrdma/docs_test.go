package main

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/spf13/cobra"
)

// commandLine finds command lines in text: a subcommand and its arguments. Immutable.
var commandLine = regexp.MustCompile("(cmd/)?\\brpcrdma ([a-z]+)((?: [^\\s`|&#'\"\\\\]+)*)")

// containerArgs finds the items of the arguments of a container. Immutable.
var containerArgs = regexp.MustCompile(`(?:(?::latest)?\n +args:| +#.*)?\n +- (serve|--[a-z])`)

// TestDocumentedCommands checks that the subcommand and the flags of every command line in
// the documentation exist.
func TestDocumentedCommands(t *testing.T) {
	const root = "../.."
	if _, err := os.Stat(filepath.Join(root, "go.work")); errors.Is(err, fs.ErrNotExist) {
		t.Skip("the documentation is in the repository, and this module is not: there is no go.work above it")
	}
	commands := newRoot()
	checked := 0
	for _, pattern := range []string{"*.md", "docs/*.md", "docs/*/*.md", "docs/*/*/*.md", "Dockerfile", "compose.yaml", "cmd/rpcrdma/*.go", "deploy/*/rpcrdma.*", "deploy/package/*", "deploy/kubernetes/*.yaml"} {
		files, err := filepath.Glob(filepath.Join(root, pattern))
		if err != nil || len(files) == 0 {
			t.Fatalf("%s: %d files, %v", pattern, len(files), err)
		}
		for _, file := range files {
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			text = containerArgs.ReplaceAll(text, []byte(" $1"))
			for _, m := range commandLine.FindAllStringSubmatch(string(text), -1) {
				cmd := subcommand(commands, m[2])
				if cmd == nil {
					if m[1] == "" && strings.Contains(m[3], " -") { // else it is the package, or a sentence
						t.Errorf("%s: %s: there is no such command", file, m[0])
					}
					continue
				}
				checked++
				for _, arg := range strings.Fields(m[3]) {
					if strings.HasPrefix(arg, "-") && arg != "-" && !hasFlag(cmd, arg) {
						t.Errorf("%s: %s: there is no flag %s", file, m[0], arg)
					}
				}
			}
		}
	}
	if checked < 50 {
		t.Errorf("%d command lines were found: the search for them is broken", checked)
	}
}

func subcommand(root *cobra.Command, name string) *cobra.Command {
	for _, cmd := range root.Commands() {
		if cmd.Name() == name {
			return cmd
		}
	}
	return nil
}

// hasFlag reports whether an argument sets a flag of cmd.
func hasFlag(cmd *cobra.Command, arg string) bool {
	cmd.InitDefaultHelpFlag()
	name, _, _ := strings.Cut(strings.TrimRight(arg, ".,:;)]"), "=")
	if long, ok := strings.CutPrefix(name, "--"); ok {
		return cmd.Flags().Lookup(long) != nil
	}
	return len(name) > 1 && cmd.Flags().ShorthandLookup(name[1:2]) != nil
}

// The name of a flag's value is a word of its own.
func TestFlagUsage(t *testing.T) {
	glued := regexp.MustCompile(`\b[A-Z]{2,}[a-z]+`)
	for _, cmd := range newRoot().Commands() {
		if word := glued.FindString(cmd.Flags().FlagUsages()); word != "" {
			t.Errorf("%s: a flag is explained with %q", cmd.Name(), word)
		}
	}
}
