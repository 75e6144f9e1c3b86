package main

import (
	"context"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/rpcrdma/rpcrdma/nfs"
)

func newCat() *cobra.Command {
	var o nfsOptions
	var parallel int
	cmd := &cobra.Command{
		Use:        "cat URL...",
		SuggestFor: []string{"read", "print", "show"},
		Short:      "Print files of an NFS server",
		Long: `Print files of an NFS server to standard output, one after the other and without
anything between them.

URL is nfs://HOST[:PORT]/EXPORT/PATH; the default port is 20049. A file that cannot be
printed is reported, the others are printed, and the exit status is 1. It is also 1 if a
file has changed while it was read: what was printed need not be one version of it.`,
		Example: `  rpcrdma cat nfs://server/etc/motd
  rpcrdma cat nfs://server/logs/1.gz nfs://server/logs/2.gz | zcat`,
		ValidArgsFunction: completeURL,
		Args:              wantArgs("URL..."),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := checkParallel(cmd, parallel); err != nil {
				return err
			}
			return o.each(cmd, args, func(ctx context.Context, r *remote) error {
				return printFile(ctx, r, cmd.OutOrStdout(), parallel)
			})
		},
	}
	addNFSOptions(cmd, &o)
	cmd.Flags().Lookup("json").Usage = "print errors as JSON objects"
	addParallelOption(cmd, &parallel)
	return cmd
}

// outputReads bounds the memory for a file that goes to standard output, in READs of 1 MiB.
const outputReads = 64

// printFile copies the file at the URL to w, in order.
func printFile(ctx context.Context, r *remote, w io.Writer, parallel int) error {
	f, err := r.Open(ctx, r.url.Path)
	if err != nil {
		return err
	}
	defer r.known.add(f.Handle, f.Path)()
	// READs of 1 MiB run in parallel, as many as credits and the parallel option
	// allows. The file may grow or shrink meanwhile: its end is where the server says.
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
