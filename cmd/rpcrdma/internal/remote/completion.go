package remote

import (
	"context"
	"io"
	"net/url"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"github.com/rpcrdma/rpcrdma/cmd/rpcrdma/internal/cli"
	"github.com/rpcrdma/rpcrdma/cmd/rpcrdma/internal/connect"
	"github.com/rpcrdma/rpcrdma/nfs"
)

// CompleteURL completes a URL: its host from what this machine knows, and its path by asking the server. If the server
// does not answer, there is no completion; an error would only get in the way.
func CompleteURL(cmd *cobra.Command, _ []string, text string) ([]string, cobra.ShellCompDirective) {
	const more = cobra.ShellCompDirectiveNoFileComp | cobra.ShellCompDirectiveNoSpace
	const scheme = "nfs://"
	rest, ok := strings.CutPrefix(text, scheme)
	if !ok || !strings.Contains(rest, "/") {
		var list []string
		for _, host := range connect.KnownHosts(os.DirFS("/")) {
			if strings.Contains(host, ":") {
				host = "[" + host + "]"
			}
			list = append(list, scheme+host+"/")
		}
		return list, more
	}
	ctx, cancel := context.WithTimeout(cmd.Context(), cli.CompletionTime)
	defer cancel()
	return remoteNames(ctx, cmd, text), more
}

// remoteNames returns URLs that begin with text, a URL with a complete host: the entries of its last directory, or the
// server's exports.
func remoteNames(ctx context.Context, given *cobra.Command, text string) (list []string) {
	cut := strings.LastIndexByte(text, '/') + 1
	dir, begun := text[:cut], text[cut:]
	begun, err := url.PathUnescape(begun)
	if err != nil {
		return nil
	}
	cmd := &cobra.Command{}
	cmd.SetErr(io.Discard)
	var o Options
	AddOptions(cmd, &o)
	o.Timeout = cli.CompletionTime
	// Not all flags, because nothing is to be recorded.
	for _, name := range append(connect.TLSFlags(), "provider", "wait", "unsafe-windows", "rpcbind", "mount-port", "sec", "keytab", "principal") {
		if f := given.Flags().Lookup(name); f != nil && f.Changed && cmd.Flags().Set(name, f.Value.String()) != nil {
			return nil
		}
	}
	u, err := o.ParseURL(cmd, dir)
	if err != nil {
		return nil
	}
	ctx, r, err := o.DialWithin(ctx, cmd, u, "")
	if err != nil {
		return nil
	}
	defer r.End(false)
	add := func(name, end string) bool {
		if strings.HasPrefix(name, begun) {
			list = append(list, dir+cli.EscapeAll(name)+end)
		}
		return len(list) < cli.CompletionNames
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
	exports, _ := r.Exports(ctx) // without exports there is no completion
	for _, e := range exports {
		below, ok := strings.CutPrefix(e.Dir, strings.TrimSuffix(u.Path, "/")+"/")
		if ok && !add(below, "/") {
			break
		}
	}
	return list
}
