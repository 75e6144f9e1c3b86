package cli

import (
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// Errors for invalid command lines. Their exit status is 2.

// usageError is an invalid command line, as opposed to a command that failed.
type usageError struct {
	command string // command for the suggested --help
	err     error
}

func (e *usageError) Error() string { return e.err.Error() }

func (e *usageError) Unwrap() error { return e.err }

// Usage returns err as a command line error of cmd.
func Usage(cmd *cobra.Command, err error) error {
	return &usageError{command: cmd.CommandPath(), err: err}
}

// usageErrors turns every error about flags and arguments into a *usageError, in cmd and its subcommands.
func usageErrors(cmd *cobra.Command) {
	wrap := func(cmd *cobra.Command, err error) error {
		if err == nil {
			return nil
		}
		return Usage(cmd, err)
	}
	cmd.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error { return wrap(cmd, flagError(cmd, err)) })
	if check := cmd.Args; check != nil {
		cmd.Args = func(cmd *cobra.Command, args []string) error { return wrap(cmd, check(cmd, args)) }
	}
	for _, sub := range cmd.Commands() {
		usageErrors(sub)
	}
}

// flagError explains an error of a flag.
func flagError(cmd *cobra.Command, err error) error {
	var (
		unknown *pflag.NotExistError
		missing *pflag.ValueRequiredError
		invalid *pflag.InvalidValueError
	)
	switch {
	case errors.As(err, &unknown) && unknown.GetSpecifiedShortnames() != "":
		return fmt.Errorf("unknown flag -%s", unknown.GetSpecifiedName())
	case errors.As(err, &unknown) && unknown.GetSpecifiedName() == "port":
		if addr := cmd.Flags().Lookup("addr"); addr != nil {
			return fmt.Errorf("unknown flag --port: the port to listen on is part of --addr, such as --addr %s", addr.DefValue[max(0, strings.LastIndexByte(addr.DefValue, ':')):])
		}
		return errors.New("unknown flag --port: the port of a server follows its name, such as HOST:20049")
	case errors.As(err, &unknown):
		var names []string
		cmd.Flags().VisitAll(func(f *pflag.Flag) { names = append(names, f.Name) })
		if near := nearest(unknown.GetSpecifiedName(), names); near != "" {
			return fmt.Errorf("unknown flag --%s, did you mean --%s?", unknown.GetSpecifiedName(), near)
		}
		return fmt.Errorf("unknown flag --%s", unknown.GetSpecifiedName())
	case errors.As(err, &missing):
		return fmt.Errorf("--%s needs a value", missing.GetFlag().Name)
	case errors.As(err, &invalid):
		f := invalid.GetFlag()
		return fmt.Errorf("--%s is %q: %s", f.Name, invalid.GetValue(), wanted(f, invalid.Unwrap()))
	}
	return err
}

// wanted describes the valid values of a flag. err is its parse error, which describes them for our own flag types.
func wanted(f *pflag.Flag, err error) string {
	switch f.Value.Type() {
	case "int", "int64":
		return "want a whole number"
	case "uint32":
		return "want a whole number of 0 to 4294967295"
	case "bool":
		return "want true or false"
	case "duration":
		return "want a time such as 500ms, 90s or 2m"
	}
	return err.Error()
}

// otherCommands maps commands that people know from elsewhere to what to type instead. Immutable.
var otherCommands = map[string]string{
	"mount":     "as root, 'mount -t nfs -o vers=3,proto=rdma,port=20049,nolock HOST:/EXPORT /MNT' mounts; 'rpcrdma ls HOST:/EXPORT' needs no mount",
	"umount":    "'umount /MNT' unmounts",
	"showmount": "'rpcrdma exports HOST' lists the exports of a server",
	"exportfs":  "'rpcrdma serve --export DIR' exports, and 'rpcrdma exports HOST' lists exports",
	"rpcinfo":   "'rpcrdma ping --prog NUMBER --vers VERSION HOST' asks for a program",
	"nfsstat":   "'rpcrdma stats' prints statistics",
}

// unknownCommand returns the error for a first argument that is not a command.
func unknownCommand(root *cobra.Command, name string) error {
	if instead, ok := otherCommands[strings.ToLower(name)]; ok {
		return fmt.Errorf("unknown command %q: %s", name, instead)
	}
	var names []string
	near := ""
	for _, cmd := range root.Commands() {
		if !cmd.IsAvailableCommand() {
			continue
		}
		if cmd.Name() == name { // after a flag
			return fmt.Errorf("flags belong after the command: 'rpcrdma %s FLAGS'", name)
		}
		names = append(names, cmd.Name())
		for _, synonym := range cmd.SuggestFor {
			if strings.EqualFold(name, synonym) {
				near = cmd.Name()
			}
		}
	}
	if near == "" {
		near = nearest(strings.ToLower(name), names)
	}
	if near != "" {
		return fmt.Errorf("unknown command %q, did you mean %q?", name, near)
	}
	return fmt.Errorf("unknown command %q", name)
}

// firstWord returns the first argument that is not a flag, or "".
func firstWord(args []string) string {
	for _, arg := range args {
		if !strings.HasPrefix(arg, "-") {
			return arg
		}
	}
	return ""
}

// maxTypos is how many letters of a word may be wrong for it to be suggested.
const maxTypos = 2

// nearest returns the word that differs least from word. It returns "" if all differ by more than maxTypos letters, or
// by as many as word has.
func nearest(word string, words []string) (near string) {
	least := min(maxTypos+1, len(word))
	for _, w := range words {
		if d := distance(word, w); d < least {
			near, least = w, d
		}
	}
	return near
}

// distance returns how many bytes must be added, removed or replaced to turn a into b.
func distance(a, b string) int {
	row := make([]int, len(b)+1) // of the matrix of distances between all prefixes of a and b
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			d := diagonal
			if a[i] != b[j] {
				d = 1 + min(diagonal, row[j], row[j+1])
			}
			diagonal, row[j+1] = row[j+1], d
		}
	}
	return row[len(b)]
}

// WantArgs returns a check for arguments with these names. A name in brackets is optional, and one that ends in "..."
// may be repeated.
func WantArgs(names ...string) cobra.PositionalArgs {
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
