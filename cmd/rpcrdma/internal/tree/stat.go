package tree

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"github.com/rpcrdma/rpcrdma/cmd/rpcrdma/internal/cli"
	"github.com/rpcrdma/rpcrdma/cmd/rpcrdma/internal/explain"
	"github.com/rpcrdma/rpcrdma/cmd/rpcrdma/internal/remote"
	"github.com/rpcrdma/rpcrdma/nfs"
)

// NewStat returns the command stat.
func NewStat() *cobra.Command {
	var o remote.Options
	var follow bool
	cmd := &cobra.Command{
		Use:        "stat URL...",
		SuggestFor: []string{"info", "attr"},
		Short:      "Print the attributes of files of an NFS server",
		Long: `Print all attributes of files and directories of an NFS server.

URL is nfs://HOST[:PORT]/EXPORT/PATH; the default port is 20049. For a symbolic link, the
command prints the link's own attributes unless -L is given. Times are in this machine's time
zone, in JSON in UTC. -v also prints the file handle. For statistics of a server see 'rpcrdma
stats'.`,
		Example: `  rpcrdma stat nfs://server/srv/data/report.pdf
  rpcrdma stat --json nfs://server/srv/data | jq -r .mtime`,
		ValidArgsFunction: remote.CompleteURL,
		Args:              cli.WantArgs("URL..."),
		RunE: func(cmd *cobra.Command, args []string) error {
			out := cmd.OutOrStdout()
			return o.Each(cmd, args, func(ctx context.Context, r *remote.Target) error {
				s, err := attributes(ctx, r, follow)
				switch {
				case err != nil:
					return err
				case o.JSON:
					return cli.PrintJSON(out, s)
				}
				return s.print(out, o.Verbose)
			})
		},
	}
	remote.AddOptions(cmd, &o)
	cmd.Flags().Lookup("json").Usage = "print one JSON object for each URL"
	cmd.Flags().Lookup("verbose").Usage = "print file handles, too, and log to standard error"
	cmd.Flags().BoolVarP(&follow, "dereference", "L", false, "follow symbolic links")
	return cmd
}

// StatJSON is everything that a server reports about a file, for --json.
type StatJSON struct {
	URL    string    `json:"url"`
	Type   string    `json:"type"`
	Mode   string    `json:"mode"`        // as in ls -l
	Perm   string    `json:"permissions"` // in octal
	Links  uint32    `json:"links"`
	UID    uint32    `json:"uid"`
	GID    uint32    `json:"gid"`
	Size   uint64    `json:"size"`
	Used   uint64    `json:"used"`             // bytes of disk space
	Device string    `json:"device,omitempty"` // MAJOR:MINOR of a device
	FSID   uint64    `json:"fsid"`
	FileID uint64    `json:"fileid"`
	Atime  time.Time `json:"atime"`
	Mtime  time.Time `json:"mtime"`
	Ctime  time.Time `json:"ctime"`
	Target string    `json:"target,omitempty"` // of a symbolic link
	Handle string    `json:"handle"`           // in hexadecimal
}

// attributes fetches the attributes of the object at the URL.
func attributes(ctx context.Context, r *remote.Target, follow bool) (*StatJSON, error) {
	resolve := r.Lstat
	if follow {
		resolve = r.Stat
	}
	n, err := resolve(ctx, r.URL.Path)
	if err != nil {
		return nil, err
	}
	a := &n.Attr
	mode := a.FileMode()
	s := &StatJSON{
		URL: r.URL.String(), Type: explain.TypeName(a.Type), Mode: modeText(mode), Perm: fmt.Sprintf("%04o", a.Mode&0o7777),
		Links: a.Nlink, UID: a.UID, GID: a.GID, Size: a.Size, Used: a.Used, FSID: a.FSID, FileID: a.FileID,
		Atime: a.ATime.Time(), Mtime: a.MTime.Time(), Ctime: a.CTime.Time(), Handle: n.Handle.String(),
	}
	switch a.Type {
	case nfs.TypeLnk:
		s.Target, err = r.ReadLink(ctx, n.Handle)
	case nfs.TypeBlk, nfs.TypeChr:
		s.Device = fmt.Sprintf("%d:%d", a.Rdev.Major, a.Rdev.Minor)
	}
	return s, err
}

// print prints the attributes as text.
func (s *StatJSON) print(w io.Writer, handle bool) error {
	out := bufio.NewWriter(w)
	fmt.Fprintln(out, s.URL)
	row := func(name, format string, args ...any) {
		fmt.Fprintf(out, "  %-12s %s\n", name, fmt.Sprintf(format, args...))
	}
	row("type", "%s", s.Type)
	if s.Target != "" {
		row("target", "%s", explain.Printable(s.Target))
	}
	row("mode", "%s %s", s.Mode, s.Perm)
	row("links", "%d", s.Links)
	row("owner", "%d", s.UID)
	row("group", "%d", s.GID)
	row("size", "%d bytes", s.Size)
	row("disk space", "%d bytes", s.Used)
	if s.Device != "" {
		row("device", "%s", s.Device)
	}
	row("file system", "%#x", s.FSID)
	row("file id", "%d", s.FileID)
	for _, t := range []struct {
		name string
		time time.Time
	}{{"accessed", s.Atime}, {"modified", s.Mtime}, {"changed", s.Ctime}} {
		row(t.name, "%s", t.time.Local().Format("2006-01-02 15:04:05.000000000 -0700"))
	}
	if handle {
		row("handle", "%s", s.Handle)
	}
	return out.Flush()
}
