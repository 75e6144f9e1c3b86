package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"strings"

	"github.com/spf13/cobra"

	"github.com/rpcrdma/rpcrdma/nfs"
)

func newMv() *cobra.Command {
	var o nfsOptions
	cmd := &cobra.Command{
		Use:        "mv FROM TO",
		SuggestFor: []string{"move", "rename", "ren"},
		Short:      "Rename or move a file or directory on an NFS server",
		Long: `Rename a file or directory on an NFS server, or move it to another directory of the same
export.

FROM and TO are nfs://HOST[:PORT]/EXPORT/PATH; the default port is 20049. TO is the new
name, or a directory to move it into. An existing file of the new name is replaced. A
symbolic link is moved itself. From one server or export to another, 'rpcrdma cp' copies.`,
		Example: `  rpcrdma mv nfs://server/srv/data/draft.txt nfs://server/srv/data/report.txt
  rpcrdma mv nfs://server/srv/data/report.txt nfs://server/srv/data/done/`,
		ValidArgsFunction: positions(completeURL, completeURL),
		Args:              wantArgs("FROM", "TO"),
		RunE: func(cmd *cobra.Command, args []string) error {
			from, err := o.parseURL(cmd, args[0])
			if err != nil {
				return err
			}
			to, err := o.parseURL(cmd, args[1])
			if err != nil {
				return err
			}
			if from.Addr() != to.Addr() {
				return usage(cmd, fmt.Errorf("%s and %s are different servers: copy with 'rpcrdma cp' and remove with 'rpcrdma rm'", from.Addr(), to.Addr()))
			}
			ctx, r, err := o.dial(cmd, from, "mv "+args[0])
			if err != nil {
				return err
			}
			err = r.failed(ctx, move(ctx, r, to.Path, strings.HasSuffix(args[1], "/")))
			r.close(err == nil)
			return err
		},
	}
	addNFSOptions(cmd, &o)
	cmd.Flags().Lookup("json").Usage = "print errors as JSON objects"
	return cmd
}

// move moves what is at the URL to the path to, or into the directory there, which mustBeDir
// requires.
func move(ctx context.Context, r *remote, to string, mustBeDir bool) error {
	from := r.url.Path
	what, err := r.Lstat(ctx, from)
	if err != nil {
		return err
	}
	there, err := r.Stat(ctx, to)
	switch {
	case err == nil && there.IsDir() && there.Handle == what.Handle:
		return fmt.Errorf("%s is the same directory", printable(to))
	case err == nil && there.IsDir():
		to = path.Join(to, path.Base(from))
	case err != nil && !isMissing(err):
		return atItem(to, err)
	case mustBeDir && err == nil:
		return atItem(to, &nfs.Error{Op: "RENAME", Status: nfs.StatusNotDir})
	case mustBeDir:
		return atItem(to, err)
	}
	fromMount, err := r.Mount(ctx, from)
	if err != nil {
		return err
	}
	toMount, err := r.Mount(ctx, to)
	switch {
	case err != nil:
		return atItem(to, err)
	case fromMount.Rest == "":
		return errors.New("is an export, which cannot be moved")
	case fromMount.Export != toMount.Export:
		return fmt.Errorf("exports %s and %s are different: copy with 'rpcrdma cp' and remove with 'rpcrdma rm'",
			printable(fromMount.Export), printable(toMount.Export))
	case what.IsDir() && strings.HasPrefix(to+"/", from+"/"):
		return fmt.Errorf("cannot be moved into itself, to %s", printable(to))
	}
	err = r.RenamePath(ctx, from, to)
	switch {
	case isMissing(err): // what is moved was there
		return fmt.Errorf("the directory above %s does not exist ('rpcrdma mkdir -p' makes it)", printable(to))
	case errors.Is(err, fs.ErrExist):
		return atItem(to, err)
	}
	return err
}
