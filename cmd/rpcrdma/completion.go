package main

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/netip"
	"net/url"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/rpcrdma/rpcrdma/nfs"
)

// Bounds of what the shell completes: it waits for it, and a server says what it is made of.
const (
	completionTime  = 2 * time.Second
	completionNames = 1000    // of a directory, of hosts
	completionFile  = 1 << 20 // bytes of a system file
)

// shells are those that completion has a script for, in the order of the help.
func shells() []string { return []string{"bash", "zsh", "fish", "powershell"} }

// newCompletion takes the place of the command that cobra would add, which takes a shell that it does
// not know for a question about itself.
func newCompletion() *cobra.Command {
	known := shells()
	return &cobra.Command{
		Use:        "completion SHELL",
		SuggestFor: []string{"complete"},
		Short:      "Print the script with which a shell completes",
		Long: `Print the script with which a shell, bash, zsh, fish or powershell, completes commands,
flags, files, hosts and what servers export. Packages bring it for the first three.

It is read by shells that are started afterwards. The examples are for the user; for all
users of a machine the files are /usr/share/bash-completion/completions/rpcrdma (which needs
the package bash-completion), /usr/share/zsh/site-functions/_rpcrdma and
/usr/share/fish/vendor_completions.d/rpcrdma.fish.`,
		Example: `  rpcrdma completion bash >~/.local/share/bash-completion/completions/rpcrdma
  rpcrdma completion zsh >"${fpath[1]}/_rpcrdma"
  rpcrdma completion fish >~/.config/fish/completions/rpcrdma.fish
  rpcrdma completion powershell >>$PROFILE`,
		ValidArgsFunction: positions(words(known...)),
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

// words are completions without anything else.
func words(list ...string) cobra.CompletionFunc {
	return cobra.FixedCompletions(list, cobra.ShellCompDirectiveNoFileComp)
}

// addCompletions has the shell complete flags and arguments, of cmd and its subcommands.
func addCompletions(cmd *cobra.Command) {
	cmd.Flags().VisitAll(func(f *pflag.Flag) {
		if complete := completionOf(f); complete != nil {
			// Its only error is a second one for a flag.
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

// A completer is the value of a flag that knows what it can be.
type completer interface{ completions() []string }

// completionOf completes the value of a flag for which its command has not said how. nil is a file, or
// no value at all.
func completionOf(f *pflag.Flag) cobra.CompletionFunc {
	if v, ok := f.Value.(completer); ok {
		return words(v.completions()...)
	}
	if _, ok := f.Annotations[ofFiles]; ok || f.Value.Type() == "bool" {
		return nil
	}
	return cobra.NoFileCompletions
}

// completeFlag has the shell complete the value of a flag.
func completeFlag(cmd *cobra.Command, name string, complete cobra.CompletionFunc) {
	if err := cmd.RegisterFlagCompletionFunc(name, complete); err != nil {
		panic(err) // there is no such flag
	}
}

// ofFiles is an annotation of flags whose values are files.
const ofFiles = "rpcrdma_files"

// completeFile has the shell complete the value of a flag with the names of files.
func completeFile(cmd *cobra.Command, name string) {
	if err := cmd.Flags().SetAnnotation(name, ofFiles, nil); err != nil {
		panic(err) // there is no such flag
	}
}

// directories completes the name of a directory of this machine.
func directories(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
	return nil, cobra.ShellCompDirectiveFilterDirs
}

// exportDirectories is directories for a value that goes on behind it.
func exportDirectories(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
	return nil, cobra.ShellCompDirectiveFilterDirs | cobra.ShellCompDirectiveNoSpace
}

// completeList completes the last of several words with commas between them.
func completeList(from []string) cobra.CompletionFunc {
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

// localAddresses completes an address of this machine, with a port.
func localAddresses(port int) cobra.CompletionFunc {
	return func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
		list := []string{fmt.Sprintf(":%d", port)}
		for _, p := range localPrefixes() {
			list = append(list, netip.AddrPortFrom(p.Addr(), uint16(port)).String())
		}
		return list, cobra.ShellCompDirectiveNoFileComp
	}
}

// localNetworks completes a network that this machine is in.
func localNetworks(*cobra.Command, []string, string) (list []string, _ cobra.ShellCompDirective) {
	for _, p := range localPrefixes() {
		list = append(list, p.Masked().String())
	}
	return list, cobra.ShellCompDirectiveNoFileComp
}

// localPrefixes are the addresses of this machine, without those that need a zone.
func localPrefixes() (list []netip.Prefix) {
	addrs, _ := net.InterfaceAddrs() // without them there is nothing to complete
	for _, a := range addrs {
		if p, err := netip.ParsePrefix(a.String()); err == nil && !p.Addr().IsLinkLocalUnicast() {
			list = append(list, p)
		}
	}
	return list
}

// files completes the name of a file of this machine.
func files(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
	return nil, cobra.ShellCompDirectiveDefault
}

// positions completes one argument after the other, and nothing behind them.
func positions(each ...cobra.CompletionFunc) cobra.CompletionFunc {
	return func(cmd *cobra.Command, args []string, text string) ([]string, cobra.ShellCompDirective) {
		if len(args) >= len(each) {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		return each[len(args)](cmd, args, text)
	}
}

// completeHost completes the name of a server.
func completeHost(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
	return knownHosts(os.DirFS("/")), cobra.ShellCompDirectiveNoFileComp
}

// completeURL completes a URL: its host from what this machine knows, its path by asking the server.
// Without an answer there is nothing to complete: nobody wants to read of errors then.
func completeURL(cmd *cobra.Command, _ []string, text string) ([]string, cobra.ShellCompDirective) {
	const more = cobra.ShellCompDirectiveNoFileComp | cobra.ShellCompDirectiveNoSpace
	const scheme = "nfs://"
	rest, ok := strings.CutPrefix(text, scheme)
	if !ok || !strings.Contains(rest, "/") {
		var list []string
		for _, host := range knownHosts(os.DirFS("/")) {
			if strings.Contains(host, ":") {
				host = "[" + host + "]"
			}
			list = append(list, scheme+host+"/")
		}
		return list, more
	}
	ctx, cancel := context.WithTimeout(cmd.Context(), completionTime)
	defer cancel()
	return remoteNames(ctx, cmd, text), more
}

// remoteNames returns URLs that begin with one that has a path: what is in its last directory, or
// what the server exports.
func remoteNames(ctx context.Context, given *cobra.Command, text string) (list []string) {
	cut := strings.LastIndexByte(text, '/') + 1
	dir, begun := text[:cut], text[cut:]
	begun, err := url.PathUnescape(begun)
	if err != nil {
		return nil
	}
	cmd := &cobra.Command{}
	cmd.SetErr(io.Discard)
	var o nfsOptions
	addNFSOptions(cmd, &o)
	o.timeout = completionTime
	// Not all of them: nothing is to be recorded.
	for _, name := range []string{"provider", "wait", "unsafe-windows", "rpcbind", "mount-port"} {
		if f := given.Flags().Lookup(name); f != nil && f.Changed && cmd.Flags().Set(name, f.Value.String()) != nil {
			return nil
		}
	}
	u, err := o.parseURL(cmd, dir)
	if err != nil {
		return nil
	}
	ctx, r, err := o.dialWithin(ctx, cmd, u, "")
	if err != nil {
		return nil
	}
	defer r.close(false)
	add := func(name, end string) bool {
		if strings.HasPrefix(name, begun) {
			list = append(list, dir+escapeAll(name)+end)
		}
		return len(list) < completionNames
	}
	if node, err := r.Stat(ctx, u.Path); err == nil {
		for e, err := range r.Entries(ctx, node.Handle) {
			if err != nil && e.Name == "" {
				break
			}
			end := ""
			if e.Attr.Attr.Type == nfs.TypeDir {
				end = "/"
			}
			if !add(e.Name, end) {
				break
			}
		}
		return list
	}
	exports, _ := r.Exports(ctx) // none is no completion
	for _, e := range exports {
		below, ok := strings.CutPrefix(e.Dir, strings.TrimSuffix(u.Path, "/")+"/")
		if ok && !add(below, "/") {
			break
		}
	}
	return list
}

// escapeAll escapes whatever means something to a shell or in a URL: a server has chosen the name.
func escapeAll(name string) string {
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

// knownHosts are the hosts that NFS is mounted from, and those of the table of hosts.
func knownHosts(root fs.FS) []string {
	var list []string
	add := func(host string) {
		if len(list) < completionNames && escapeAll(host) == strings.ReplaceAll(host, ":", "%3A") && !slices.Contains(list, host) {
			list = append(list, host)
		}
	}
	eachLine(root, "proc/self/mounts", func(fields []string) {
		if len(fields) > 2 && strings.HasPrefix(fields[2], "nfs") {
			if i := strings.LastIndex(fields[0], ":/"); i > 0 {
				add(bareHost(fields[0][:i]))
			}
		}
	})
	eachLine(root, "etc/hosts", func(fields []string) {
		for _, name := range fields[1:] {
			// Names of groups, which Debian has there.
			if !strings.HasPrefix(name, "ip6-") {
				add(name)
			}
		}
	})
	return list
}

// eachLine calls f with the fields of each line that has some and is no comment. It reads no further
// than completionFile.
func eachLine(root fs.FS, name string, f func(fields []string)) {
	file, err := root.Open(name)
	if err != nil {
		return
	}
	defer file.Close()
	for lines := bufio.NewScanner(io.LimitReader(file, completionFile)); lines.Scan(); {
		text, _, _ := strings.Cut(lines.Text(), "#")
		if fields := strings.Fields(text); len(fields) > 0 {
			f(fields)
		}
	}
}
