// Package cli is the part of the command that uses no network: the tree of commands with help, manual pages and
// completion, invalid command lines, exit statuses, and output that all commands share.
package cli

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os/signal"
	"slices"
	"syscall"

	"github.com/spf13/cobra"
)

// Run runs the command that args select, and returns the exit status.
func Run(root *cobra.Command, args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	root.SetArgs(append([]string{}, args...)) // nil would mean os.Args
	root.SetIn(stdin)
	root.SetOut(stdout)
	root.SetErr(stderr)
	var unprinted error
	help := root.HelpFunc()
	root.SetHelpFunc(func(cmd *cobra.Command, args []string) { // it returns no error
		var text bytes.Buffer
		out := cmd.OutOrStdout()
		cmd.SetOut(&text)
		help(cmd, args)
		_, unprinted = out.Write(text.Bytes())
	})
	cmd, err := root.ExecuteC()
	err = cmp.Or(err, unprinted)
	switch {
	case err == nil:
		return 0
	case errors.Is(err, ErrReported):
		return 1
	}
	status := 1
	usage, ok := errors.AsType[*usageError](err)
	if ok {
		status = 2
		if name := firstWord(args); cmd == root && name != "" { // flags of an unknown command are not flags of root
			err = &usageError{root.Name(), unknownCommand(root, name)}
		}
	}
	asked, flagErr := cmd.Flags().GetBool("json")
	// Flags after an invalid flag are not parsed.
	asJSON := asked || ok && (flagErr == nil || cmd == root) && slices.Contains(args, "--json")
	PrintError(stderr, asJSON, err, status)
	if ok && !asJSON {
		fmt.Fprintf(stderr, "Run '%s --help' for how it is used.\n", usage.command)
	}
	return status
}

// A Group is a titled part of the list of commands. Commands without a group are listed last.
type Group struct {
	ID, Title string
	Commands  []*cobra.Command
}

// Root builds the tree of the commands of all groups.
func Root(groups []Group) *cobra.Command {
	version := false // some people try --version first
	root := &cobra.Command{
		Use:   "rpcrdma",
		Short: "ONC RPC over RDMA from the command line",
		Long: `ONC RPC over RDMA from the command line: serve files over NFS, copy them, and test and
measure servers. It also works without RDMA devices, with RDMA in software.

'rpcrdma COMMAND --help' describes a command, with examples and all flags with their
defaults. The exit status is 0 for success, 1 if the work failed or part of it was skipped,
and 2 if the command line was wrong. Errors go to standard error, with --json as JSON
objects.`,
		Example: `  rpcrdma serve --dir /srv/data
  rpcrdma ls -l nfs://localhost/
  rpcrdma get -r nfs://localhost/reports copy-of-reports
  rpcrdma ping localhost`,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return nil
			}
			return unknownCommand(cmd, args[0])
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
	root.Flags().BoolVar(&version, "version", false, "print what this binary was built from")
	for _, g := range groups {
		if g.ID != "" {
			root.AddGroup(&cobra.Group{ID: g.ID, Title: g.Title})
		}
		for _, cmd := range g.Commands {
			cmd.GroupID = g.ID
			root.AddCommand(cmd)
		}
	}
	root.SetHelpCommand(newHelp(root))
	root.InitDefaultHelpCmd()
	usageErrors(root)
	addCompletions(root)
	return root
}

// newHelp returns the help command, which rejects a word that is not a command.
func newHelp(root *cobra.Command) *cobra.Command {
	return &cobra.Command{
		Use:   "help [COMMAND]",
		Short: "Print the help of a command",
		Args:  WantArgs("[COMMAND]"),
		ValidArgsFunction: func(_ *cobra.Command, args []string, _ string) (names []string, _ cobra.ShellCompDirective) {
			for _, cmd := range root.Commands() {
				if len(args) == 0 && (cmd.IsAvailableCommand() || cmd.IsAdditionalHelpTopicCommand()) {
					names = append(names, cmd.Name()+"\t"+cmd.Short)
				}
			}
			return names, cobra.ShellCompDirectiveNoFileComp
		},
		RunE: func(help *cobra.Command, args []string) error {
			cmd, rest, err := root.Find(args)
			if err != nil || len(rest) > 0 {
				return &usageError{root.Name(), unknownCommand(root, args[0])}
			}
			cmd.InitDefaultHelpFlag() // it is in the list of flags
			cmd.SetOut(help.OutOrStdout())
			return cmd.Help()
		},
	}
}

// NewTopic returns a help topic: cobra lists a command that cannot run as a topic.
func NewTopic(name, short, text string) *cobra.Command {
	return &cobra.Command{Use: name, Short: short, Long: text}
}

// ErrInterrupted is the reason for stopping after SIGINT or SIGTERM.
var ErrInterrupted = errors.New("interrupted")

// Interruptible returns a context that is canceled with ErrInterrupted by the first SIGINT or SIGTERM. The second one
// ends the process.
func Interruptible(parent context.Context) (ctx context.Context, stop func()) {
	signals, stopSignals := signal.NotifyContext(parent, syscall.SIGINT, syscall.SIGTERM)
	ctx, cancel := context.WithCancelCause(parent)
	detach := context.AfterFunc(signals, func() {
		stopSignals()
		cancel(ErrInterrupted)
	})
	return ctx, func() {
		detach()
		stopSignals()
		cancel(nil)
	}
}
