// Command rpcrdma inspects, tests and uses RPC-over-RDMA from a shell.
//
// The exit status is 0 for success, 1 if the work failed, and 2 if the command line made
// no sense. Errors go to standard error, with --json as JSON objects.
package main

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/spf13/cobra"
)

func main() {
	os.Exit(run(os.Args[1:], os.Stdin, os.Stdout, os.Stderr))
}

// run is main with its environment as arguments. It returns the exit status.
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
	asked, flagErr := cmd.Flags().GetBool("json")
	asJSON := flagErr == nil && asked
	printError(stderr, asJSON, err, status)
	if ok && !asJSON {
		fmt.Fprintf(stderr, "Run '%s --help' for how it is used.\n", usage.command)
	}
	return status
}

// printError reports an error for which the exit status is as given.
func printError(stderr io.Writer, asJSON bool, err error, status int) {
	if asJSON {
		_ = json.NewEncoder(stderr).Encode(errorJSON{err.Error(), status}) // there is nobody left to tell
		return
	}
	fmt.Fprintf(stderr, "rpcrdma: %v\n", err)
}

// errorJSON is the error of a command, as --json prints it to standard error.
type errorJSON struct {
	Error  string `json:"error"`
	Status int    `json:"status"` // the exit status
}

// skippedJSON is something that was skipped, as --json prints it to standard error.
type skippedJSON struct {
	Skipped string `json:"skipped"` // the path
	Reason  string `json:"reason"`
}

// printSkipped reports that the work called name has skipped path.
func printSkipped(stderr io.Writer, asJSON bool, name, path, why string) {
	if asJSON {
		_ = json.NewEncoder(stderr).Encode(skippedJSON{path, why})
		return
	}
	fmt.Fprintf(stderr, "rpcrdma: %s: %s skipped: %s\n", name, cmp.Or(printable(path), `""`), why)
}

// errReported is a failure that has been reported already.
var errReported = errors.New("failed, as reported")

// newRoot builds the command tree. Every subcommand is a line here and a file.
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
	root.Flags().BoolVar(&version, "version", false, "print what this binary was built from")
	root.AddCommand(
		newServe(),
		newLs(),
		newStat(),
		newCat(),
		newGet(),
		newPut(),
		newCp(),
		newMv(),
		newMkdir(),
		newRm(),
		newWatch(),
		newPing(),
		newBench(),
		newProbe(),
		newStats(),
		newDevices(),
		newDecode(),
		newVersion(),
		newDemo(),
		newTopic("providers", "The RDMA adapters that --provider chooses from", providerHelp),
		newTopic("rpcbind", "Finding a server's port with --rpcbind", rpcbindHelp),
	)
	usageErrors(root)
	return root
}

// newTopic returns a help topic. A command that does not run is listed as such.
func newTopic(name, short, text string) *cobra.Command {
	return &cobra.Command{Use: name, Short: short, Long: text}
}

// wantArgs returns a check for arguments with these names. One in brackets is optional, and of
// one that ends in "..." there may be several.
func wantArgs(names ...string) cobra.PositionalArgs {
	return func(_ *cobra.Command, args []string) error {
		var missing []string
		for _, name := range names[min(len(args), len(names)):] {
			if !strings.HasPrefix(name, "[") {
				missing = append(missing, strings.TrimSuffix(name, "..."))
			}
		}
		switch last := len(names) - 1; {
		case len(missing) == 1:
			return fmt.Errorf("argument %s is missing", missing[0])
		case len(missing) > 1:
			return fmt.Errorf("arguments %s are missing", strings.Join(missing, " and "))
		case len(args) > len(names) && (last < 0 || !strings.HasSuffix(names[last], "...")):
			return fmt.Errorf("unexpected argument %q", args[len(names)])
		}
		return nil
	}
}

// usageError is a command line that makes no sense, as opposed to work that failed.
type usageError struct {
	command string // the command whose help would explain
	err     error
}

func (e *usageError) Error() string { return e.err.Error() }
func (e *usageError) Unwrap() error { return e.err }

// usageErrors makes every error about flags and arguments a *usageError, in cmd and its
// subcommands.
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
