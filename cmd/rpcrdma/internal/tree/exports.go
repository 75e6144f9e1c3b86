package tree

import (
	"cmp"
	"fmt"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/rpcrdma/rpcrdma/cmd/rpcrdma/internal/cli"
	"github.com/rpcrdma/rpcrdma/cmd/rpcrdma/internal/connect"
	"github.com/rpcrdma/rpcrdma/cmd/rpcrdma/internal/explain"
	"github.com/rpcrdma/rpcrdma/cmd/rpcrdma/internal/remote"
	"github.com/rpcrdma/rpcrdma/nfs"
)

// ExportsJSON is the result of exports for --json.
type ExportsJSON struct {
	Server  string       `json:"server"`
	Exports []ExportJSON `json:"exports"`
}

// ExportJSON is an export for --json.
type ExportJSON struct {
	Path    string   `json:"path"`
	Clients []string `json:"clients"` // empty: everyone
}

// NewExports returns the command exports.
func NewExports() *cobra.Command {
	var o remote.Options
	cmd := &cobra.Command{
		Use:   "exports HOST[:PORT]",
		Short: "List what an NFS server exports, and to whom",
		Long: `List the directories that an NFS server exports, and the clients that may mount them, as
'showmount -e' does. The default port is 20049.`,
		Example: `  rpcrdma exports server
  rpcrdma exports --provider tcp --json nas | jq -r '.exports[].path'`,
		ValidArgsFunction: cli.Positions(connect.CompleteHost),
		Args:              cli.WantArgs("HOST[:PORT]"),
		RunE: func(cmd *cobra.Command, args []string) error {
			u, err := o.CheckServer(cmd, args[0])
			if err != nil {
				return err
			}
			ctx, r, err := o.Dial(cmd, u, "exports "+args[0])
			if err != nil {
				return err
			}
			list, err := r.Exports(ctx)
			err = r.Failed(ctx, err)
			r.End(err == nil)
			if err != nil {
				return err
			}
			return printExports(cmd, o.JSON, u, list)
		},
	}
	remote.AddOptions(cmd, &o)
	return cmd
}

// printExports prints the exports as showmount does.
func printExports(cmd *cobra.Command, asJSON bool, u *nfs.URL, list []nfs.Export) error {
	out := cmd.OutOrStdout()
	if asJSON {
		j := ExportsJSON{Server: u.Addr(), Exports: []ExportJSON{}}
		for _, e := range list {
			j.Exports = append(j.Exports, ExportJSON{e.Dir, append([]string{}, e.Groups...)})
		}
		return cli.PrintJSON(out, j)
	}
	fmt.Fprintf(out, "Export list for %s:\n", u.Host)
	w := tabwriter.NewWriter(out, 0, 0, 1, ' ', 0)
	for _, e := range list {
		fmt.Fprintf(w, "%s\t%s\n", explain.Printable(e.Dir), cmp.Or(explain.Printable(strings.Join(e.Groups, ",")), "(everyone)"))
	}
	return w.Flush()
}
