package cli

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// Limits for completion: the shell waits for it, and the data comes from a server.
const (
	CompletionTime  = 2 * time.Second // wait for a server
	CompletionNames = 1000            // names in a directory, or hosts
	CompletionFile  = 1 << 20         // bytes of a system file
)

// shells returns the shells for which completion has a script, in the order of the help.
func shells() []string { return []string{"bash", "zsh", "fish", "powershell"} }

// NewCompletion returns the command that replaces cobra's own, which answers an unknown shell with help.
func NewCompletion() *cobra.Command {
	known := shells()
	return &cobra.Command{
		Use:        "completion SHELL",
		SuggestFor: []string{"complete"},
		Short:      "Print a shell's completion script",
		Long: `Print a completion script for bash, zsh, fish or powershell. It completes commands, flags,
files, hosts and exports of servers. Packages include it for the first three shells.

Shells read the script when they start. The examples install it for one user; for all users
of a machine the files are /usr/share/bash-completion/completions/rpcrdma (which needs the
package bash-completion), /usr/share/zsh/site-functions/_rpcrdma and
/usr/share/fish/vendor_completions.d/rpcrdma.fish.`,
		Example: `  rpcrdma completion bash >~/.local/share/bash-completion/completions/rpcrdma
  rpcrdma completion zsh >"${fpath[1]}/_rpcrdma"
  rpcrdma completion fish >~/.config/fish/completions/rpcrdma.fish
  rpcrdma completion powershell >>$PROFILE`,
		ValidArgsFunction: Positions(Words(known...)),
		Args: func(_ *cobra.Command, args []string) error {
			one := strings.Join(known[:len(known)-1], ", ") + " or " + known[len(known)-1]
			switch {
			case len(args) == 0:
				return fmt.Errorf("argument SHELL is missing: want %s", one)
			case !slices.Contains(known, args[0]):
				return fmt.Errorf("SHELL is %q: want %s", args[0], one)
			case len(args) > 1:
				return fmt.Errorf("unexpected argument %q", args[1])
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			root, w := cmd.Root(), cmd.OutOrStdout()
			switch args[0] {
			case "zsh":
				return root.GenZshCompletion(w)
			case "fish":
				return root.GenFishCompletion(w, true)
			case "powershell":
				return root.GenPowerShellCompletionWithDesc(w)
			}
			return root.GenBashCompletionV2(w, true)
		},
	}
}

// Words returns a completion with a fixed list of words.
func Words(list ...string) cobra.CompletionFunc {
	return cobra.FixedCompletions(list, cobra.ShellCompDirectiveNoFileComp)
}

// addCompletions registers completions for the flags and arguments of cmd and its subcommands.
func addCompletions(cmd *cobra.Command) {
	cmd.Flags().VisitAll(func(f *pflag.Flag) {
		if complete := completionOf(f); complete != nil {
			// The only possible error is that the flag already has a completion.
			_ = cmd.RegisterFlagCompletionFunc(f.Name, complete)
		}
	})
	if cmd.ValidArgsFunction == nil {
		cmd.ValidArgsFunction = cobra.NoFileCompletions
	}
	for _, sub := range cmd.Commands() {
		addCompletions(sub)
	}
}

// A Completer is a flag value that lists its possible values.
type Completer interface{ Completions() []string }

// completionOf returns the completion for a flag if its command registers none. nil means a file, or no value at all.
func completionOf(f *pflag.Flag) cobra.CompletionFunc {
	if v, ok := f.Value.(Completer); ok {
		return Words(v.Completions()...)
	}
	if _, ok := f.Annotations[ofFiles]; ok || f.Value.Type() == "bool" {
		return nil
	}
	return cobra.NoFileCompletions
}

// CompleteFlag registers the completion for the value of a flag.
func CompleteFlag(cmd *cobra.Command, name string, complete cobra.CompletionFunc) {
	if err := cmd.RegisterFlagCompletionFunc(name, complete); err != nil {
		panic(err) // there is no such flag
	}
}

// ofFiles is the annotation of flags with files as values.
const ofFiles = "rpcrdma_files"

// CompleteFile makes the shell complete the value of a flag with file names.
func CompleteFile(cmd *cobra.Command, name string) {
	if err := cmd.Flags().SetAnnotation(name, ofFiles, nil); err != nil {
		panic(err) // there is no such flag
	}
}

// Directories completes the name of a local directory.
func Directories(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
	return nil, cobra.ShellCompDirectiveFilterDirs
}

// ExportDirectories completes the name of a local directory in a value that continues after it.
func ExportDirectories(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
	return nil, cobra.ShellCompDirectiveFilterDirs | cobra.ShellCompDirectiveNoSpace
}

// CompleteList completes the last of several words separated by commas.
func CompleteList(from []string) cobra.CompletionFunc {
	return func(_ *cobra.Command, _ []string, text string) (list []string, _ cobra.ShellCompDirective) {
		before := text[:strings.LastIndexByte(text, ',')+1]
		given := strings.Split(before, ",")
		for _, word := range from {
			if !slices.Contains(given, word) {
				list = append(list, before+word)
			}
		}
		return list, cobra.ShellCompDirectiveNoFileComp | cobra.ShellCompDirectiveNoSpace
	}
}

// Files completes the name of a local file.
func Files(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
	return nil, cobra.ShellCompDirectiveDefault
}

// Positions completes one argument after the other, and nothing after the last one.
func Positions(each ...cobra.CompletionFunc) cobra.CompletionFunc {
	return func(cmd *cobra.Command, args []string, text string) ([]string, cobra.ShellCompDirective) {
		if len(args) >= len(each) {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		return each[len(args)](cmd, args, text)
	}
}

// EscapeAll escapes characters with a meaning in a shell or in a URL: the name was chosen by a server.
func EscapeAll(name string) string {
	var b strings.Builder
	for _, c := range []byte(name) {
		switch {
		case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', '0' <= c && c <= '9', strings.IndexByte("-._/", c) >= 0:
			b.WriteByte(c)
		default:
			fmt.Fprintf(&b, "%%%02X", c)
		}
	}
	return b.String()
}
