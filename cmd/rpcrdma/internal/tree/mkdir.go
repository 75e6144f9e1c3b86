package tree

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/rpcrdma/rpcrdma/cmd/rpcrdma/internal/cli"
	"github.com/rpcrdma/rpcrdma/cmd/rpcrdma/internal/explain"
	"github.com/rpcrdma/rpcrdma/cmd/rpcrdma/internal/remote"
	"github.com/rpcrdma/rpcrdma/nfs"
)

// modeValue is a flag value for permission bits in octal.
type modeValue uint32

func (v *modeValue) Type() string { return "MODE" }

func (v *modeValue) String() string { return fmt.Sprintf("%04o", uint32(*v)) }

func (v *modeValue) Set(s string) error {
	n, err := strconv.ParseUint(s, 8, 32)
	if err != nil || n > 0o7777 {
		return errors.New("want permission bits in octal, such as 0755")
	}
	*v = modeValue(n)
	return nil
}

// NewMkdir returns the command mkdir.
func NewMkdir() *cobra.Command {
	var o remote.Options
	var parents bool
	mode := modeValue(0o755)
	cmd := &cobra.Command{
		Use:        "mkdir URL...",
		SuggestFor: []string{"md"},
		Short:      "Make directories on an NFS server",
		Long: `Make directories on an NFS server.

URL is nfs://HOST[:PORT]/EXPORT/PATH; the default port is 20049. With -p, missing parent
directories are made as well, and an existing directory is not an error.`,
		Example: `  rpcrdma mkdir nfs://server/srv/data/incoming
  rpcrdma mkdir -p -m 0700 nfs://server/srv/data/2026/11`,
		ValidArgsFunction: remote.CompleteURL,
		Args:              cli.WantArgs("URL..."),
		RunE: func(cmd *cobra.Command, args []string) error {
			return o.Each(cmd, args, func(ctx context.Context, r *remote.Target) error {
				if parents {
					return makeAll(ctx, r, uint32(mode))
				}
				_, err := r.MakeDir(ctx, r.URL.Path, uint32(mode))
				switch {
				case remote.IsMissing(err):
					return errors.New("a directory above it is missing (-p makes it)")
				case err != nil && r.IsExport(ctx):
					err = &nfs.Error{Op: "MKDIR", Status: nfs.StatusExist}
				}
				return err
			})
		},
	}
	remote.AddOptions(cmd, &o)
	cmd.Flags().Lookup("json").Usage = "print errors as JSON objects"
	cmd.Flags().BoolVarP(&parents, "parents", "p", false, "make missing parent directories, and accept a directory that exists")
	cmd.Flags().VarP(&mode, "mode", "m", "permissions of the directories")
	return cmd
}

// makeAll creates the directory at the URL and those above it.
func makeAll(ctx context.Context, r *remote.Target, mode uint32) error {
	m, err := r.Mount(ctx, r.URL.Path)
	if err != nil {
		return err
	}
	at := m.Export
	for _, name := range append([]string{""}, strings.Split(m.Rest, "/")...) {
		at = path.Join(at, name)
		n, err := r.Stat(ctx, at)
		if remote.IsMissing(err) {
			n, err = r.MakeDir(ctx, at, mode)
			if errors.Is(err, fs.ErrExist) { // another client created it first, or it is a dangling link
				n, err = r.Stat(ctx, at)
			}
		}
		if err == nil && !n.IsDir() {
			err = &nfs.Error{Op: "MKDIR", Status: nfs.StatusNotDir}
		}
		switch {
		case err != nil && at != r.URL.Path:
			return explain.Item(at, err)
		case err != nil:
			return err
		}
	}
	return nil
}
