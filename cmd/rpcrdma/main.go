// Command rpcrdma is the tool of the module: it looks at, tests and uses
// RPC-over-RDMA from a shell.
//
// Exit status: 0 when all went well, 1 when the work failed, 2 when the command
// line made no sense. Why is said on standard error, with --json as JSON objects.
package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/spf13/cobra"
)

func main() {
	os.Exit(run(os.Args[1:], os.Stdin, os.Stdout, os.Stderr))
}

// run is main with its surroundings as arguments. It returns the exit status.
func run(args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	root := newRoot()
	root.SetArgs(append([]string{}, args...)) // nil would mean os.Args
	root.SetIn(stdin)
	root.SetOut(stdout)
	root.SetErr(stderr)
	cmd, err := root.ExecuteC()
	switch {
	case err == nil:
		return 0
	case errors.Is(err, errReported):
		return 1
	}
	status := 1
	usage, ok := errors.AsType[*usageError](err)
	if ok {
		status = 2
	}
	if asked, flagErr := cmd.Flags().GetBool("json"); flagErr == nil && asked {
		_ = json.NewEncoder(stderr).Encode(errorJSON{err.Error(), status}) // nobody is left to tell
		return status
	}
	fmt.Fprintf(stderr, "rpcrdma: %v\n", err)
	if ok {
		fmt.Fprintf(stderr, "Run '%s --help' for how it is used.\n", usage.command)
	}
	return status
}

// errorJSON is what a command that has failed prints on standard error with --json.
type errorJSON struct {
	Error  string `json:"error"`
	Status int    `json:"status"` // the exit status
}

// skippedJSON is what it prints there about something that is skipped.
type skippedJSON struct {
	Skipped string `json:"skipped"` // the path
	Reason  string `json:"reason"`
}

// printSkipped tells that something is skipped, in work that has a name.
func printSkipped(stderr io.Writer, asJSON bool, name, path, why string) {
	if asJSON {
		_ = json.NewEncoder(stderr).Encode(skippedJSON{path, why})
		return
	}
	fmt.Fprintf(stderr, "rpcrdma: %s: %s skipped: %s\n", name, printable(path), why)
}

// errReported is a failure about which all has been said.
var errReported = errors.New("failed, as reported")

// newRoot builds the command tree. Every subcommand is one line here and one
// file of its own.
func newRoot() *cobra.Command {
	version := false // --version is what people try first
	root := &cobra.Command{
		Use:   "rpcrdma",
		Short: "ONC RPC over RDMA from the command line",
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return nil
			}
			if near := cmd.SuggestionsFor(args[0]); len(near) > 0 {
				return fmt.Errorf("unknown command %q, did you mean %q?", args[0], near[0])
			}
			return fmt.Errorf("unknown command %q", args[0])
		},
		RunE: func(cmd *cobra.Command, _ []string) error {
			if version {
				return printOwnVersion(cmd.OutOrStdout())
			}
			return cmd.Help()
		},
		SilenceErrors: true,
		SilenceUsage:  true,
	}
	root.SuggestionsMinimumDistance = 2
	root.Flags().BoolVar(&version, "version", false, "print what this binary was built from, like the command")
	root.AddCommand(
		newServe(),
		newLs(),
		newGet(),
		newPut(),
		newWatch(),
		newPing(),
		newBench(),
		newProbe(),
		newDevices(),
		newDecode(),
		newVersion(),
		newDemo(),
	)
	usageErrors(root)
	return root
}

// usageError is a command line that made no sense, as opposed to work that
// failed.
type usageError struct {
	command string // the command whose help would explain
	err     error
}

func (e *usageError) Error() string { return e.err.Error() }
func (e *usageError) Unwrap() error { return e.err }

// usageErrors makes every complaint about flags and arguments, in cmd and all
// below it, a *usageError.
func usageErrors(cmd *cobra.Command) {
	wrap := func(cmd *cobra.Command, err error) error {
		if err == nil {
			return nil
		}
		return &usageError{command: cmd.CommandPath(), err: err}
	}
	cmd.SetFlagErrorFunc(wrap)
	if check := cmd.Args; check != nil {
		cmd.Args = func(cmd *cobra.Command, args []string) error { return wrap(cmd, check(cmd, args)) }
	}
	for _, sub := range cmd.Commands() {
		usageErrors(sub)
	}
}
