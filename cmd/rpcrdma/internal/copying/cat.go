package copying

import (
	"context"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/rpcrdma/rpcrdma/cmd/rpcrdma/internal/cli"
	"github.com/rpcrdma/rpcrdma/cmd/rpcrdma/internal/remote"
	"github.com/rpcrdma/rpcrdma/nfs"
)

// NewCat returns the command cat.
func NewCat() *cobra.Command {
	var o remote.Options
	var parallel int
	cmd := &cobra.Command{
		Use:        "cat URL...",
		SuggestFor: []string{"read", "print", "show"},
		Short:      "Print files of an NFS server",
		Long: `Print files of an NFS server to standard output, one after the other, with nothing between
them.

URL is nfs://HOST[:PORT]/EXPORT/PATH; the default port is 20049. A file that cannot be
printed is reported, the others are printed, and the exit status is 1. It is also 1 if a file
changed while it was read: the output may then mix versions of the file.`,
		Example: `  rpcrdma cat nfs://server/etc/motd
  rpcrdma cat nfs://server/logs/1.gz nfs://server/logs/2.gz | zcat`,
		ValidArgsFunction: remote.CompleteURL,
		Args:              cli.WantArgs("URL..."),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := remote.CheckParallel(cmd, parallel); err != nil {
				return err
			}
			return o.Each(cmd, args, func(ctx context.Context, r *remote.Target) error {
				return printFile(ctx, r, cmd.OutOrStdout(), parallel)
			})
		},
	}
	remote.AddOptions(cmd, &o)
	cmd.Flags().Lookup("json").Usage = "print errors as JSON objects"
	remote.AddParallelOption(cmd, &parallel)
	return cmd
}

// outputReads limits the memory for a file that goes to standard output, in READs of 1 MiB.
const outputReads = 64

// printFile copies the file at the URL to w, in order.
func printFile(ctx context.Context, r *remote.Target, w io.Writer, parallel int) error {
	f, err := r.Open(ctx, r.URL.Path)
	if err != nil {
		return err
	}
	defer r.Known.Add(f.Handle, f.Path)()
	// READs of 1 MiB run in parallel, as many as the credits and --parallel permit. The file may grow or shrink
	// meanwhile: it ends where the server says.
	buf := make([]byte, min(parallel, outputReads)<<20)
	for off, end := int64(0), false; !end; {
		n, err := f.ReadAt(ctx, buf, off)
		if _, err := w.Write(buf[:n]); err != nil {
			return fmt.Errorf("standard output: %w", err)
		}
		off += int64(n)
		if end = err == io.EOF; err != nil && !end {
			return err
		}
	}
	after, err := r.GetAttr(ctx, f.Handle)
	if err == nil && !f.Attr.SameVersion(&after) {
		err = &nfs.ChangedError{Before: f.Attr, After: after}
	}
	return err
}
