package tree

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"strings"

	"github.com/spf13/cobra"

	"github.com/rpcrdma/rpcrdma/cmd/rpcrdma/internal/cli"
	"github.com/rpcrdma/rpcrdma/cmd/rpcrdma/internal/connect"
	"github.com/rpcrdma/rpcrdma/cmd/rpcrdma/internal/explain"
	"github.com/rpcrdma/rpcrdma/cmd/rpcrdma/internal/remote"
	"github.com/rpcrdma/rpcrdma/nfs"
)

// NewMv returns the command mv.
func NewMv() *cobra.Command {
	var o remote.Options
	cmd := &cobra.Command{
		Use:        "mv FROM TO",
		SuggestFor: []string{"move", "rename", "ren"},
		Short:      "Rename or move a file or directory on an NFS server",
		Long: `Rename a file or directory on an NFS server, or move it to another directory of the same
export.

FROM and TO are nfs://HOST[:PORT]/EXPORT/PATH; the default port is 20049. TO is the new name,
or a directory to move it into. An existing file with the new name is replaced. A symbolic
link is moved, not its target. To copy between servers or exports, use 'rpcrdma cp'.`,
		Example: `  rpcrdma mv nfs://server/srv/data/draft.txt nfs://server/srv/data/report.txt
  rpcrdma mv nfs://server/srv/data/report.txt nfs://server/srv/data/done/`,
		ValidArgsFunction: cli.Positions(remote.CompleteURL, remote.CompleteURL),
		Args:              cli.WantArgs("FROM", "TO"),
		RunE: func(cmd *cobra.Command, args []string) error {
			from, err := o.ParseURL(cmd, args[0])
			if err != nil {
				return err
			}
			to, err := o.ParseURL(cmd, args[1])
			if err != nil {
				return err
			}
			if from.Addr() != to.Addr() {
				return cli.Usage(cmd, fmt.Errorf("%s and %s are different servers: copy with 'rpcrdma cp' and remove with 'rpcrdma rm'", connect.Server(from), connect.Server(to)))
			}
			ctx, r, err := o.Dial(cmd, from, "mv "+args[0])
			if err != nil {
				return err
			}
			err = r.Failed(ctx, move(ctx, r, to.Path, strings.HasSuffix(args[1], "/")))
			r.End(err == nil)
			return err
		},
	}
	remote.AddOptions(cmd, &o)
	cmd.Flags().Lookup("json").Usage = "print errors as JSON objects"
	return cmd
}

// move moves the object at the URL to the path to, or into the directory there. With mustBeDir, to must be a directory.
func move(ctx context.Context, r *remote.Target, to string, mustBeDir bool) error {
	from := r.URL.Path
	what, err := r.Lstat(ctx, from)
	if err != nil {
		return err
	}
	there, err := r.Stat(ctx, to)
	switch {
	case err == nil && there.IsDir() && there.Handle == what.Handle:
		return fmt.Errorf("%s is the same directory", explain.Printable(to))
	case err == nil && there.IsDir():
		to = path.Join(to, path.Base(from))
	case err != nil && !remote.IsMissing(err):
		return explain.Item(to, err)
	case mustBeDir && err == nil:
		return explain.Item(to, &nfs.Error{Op: "RENAME", Status: nfs.StatusNotDir})
	case mustBeDir:
		return explain.Item(to, err)
	}
	fromMount, err := r.Mount(ctx, from)
	if err != nil {
		return err
	}
	toMount, err := r.Mount(ctx, to)
	switch {
	case err != nil:
		return explain.Item(to, err)
	case fromMount.Rest == "":
		return errors.New("is an export, which cannot be moved")
	case fromMount.Export != toMount.Export:
		return fmt.Errorf("exports %s and %s are different: copy with 'rpcrdma cp' and remove with 'rpcrdma rm'",
			explain.Printable(fromMount.Export), explain.Printable(toMount.Export))
	case what.IsDir() && strings.HasPrefix(to+"/", from+"/"):
		return fmt.Errorf("cannot be moved into itself, to %s", explain.Printable(to))
	}
	err = r.RenamePath(ctx, from, to)
	switch {
	case remote.IsMissing(err): // the source existed
		return fmt.Errorf("the directory above %s does not exist ('rpcrdma mkdir -p' makes it)", explain.Printable(to))
	case errors.Is(err, fs.ErrExist):
		return explain.Item(to, err)
	}
	return err
}
