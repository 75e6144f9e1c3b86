package main

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"io/fs"
	"path"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/rpcrdma/rpcrdma/nfs"
)

func newLs() *cobra.Command {
	var o nfsOptions
	var long, recursive bool
	cmd := &cobra.Command{
		Use:   "ls URL",
		Short: "List a directory of an NFS server",
		Long: `List a directory of an NFS server, or a single file.

URL is nfs://HOST[:PORT]/EXPORT/PATH, the port is 20049 unless it says another. Names
are printed one to a line, those with unprintable characters in quotes.`,
		Example: `  rpcrdma ls -l nfs://server/srv/data
  rpcrdma ls -r --json nfs://server/srv/data | jq '.entries[].size'`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			u, err := o.parseURL(cmd, args[0])
			if err != nil {
				return err
			}
			ctx, r, err := o.dial(cmd, u, "ls "+args[0])
			if err != nil {
				return err
			}
			l := lister{r: r, long: long, recursive: recursive, json: o.json, out: bufio.NewWriter(cmd.OutOrStdout())}
			err = l.list(ctx)
			err = r.failed(ctx, err)
			r.close(err == nil)
			if flushErr := l.out.Flush(); err == nil {
				err = flushErr
			}
			return err
		},
	}
	addNFSOptions(cmd, &o)
	cmd.Flags().BoolVarP(&long, "long", "l", false, "print mode, links, owner, group, size, time, and where symbolic links lead")
	cmd.Flags().BoolVarP(&recursive, "recursive", "r", false, "list everything below, too")
	return cmd
}

// A lister prints what there is at a URL.
type lister struct {
	r                     *remote
	long, recursive, json bool
	out                   *bufio.Writer
	entries               []entryJSON
}

// entryJSON is an entry as it is printed with --json.
type entryJSON struct {
	Path   string    `json:"path"`
	Type   string    `json:"type"`
	Mode   string    `json:"mode"`
	Links  uint32    `json:"links"`
	UID    uint32    `json:"uid"`
	GID    uint32    `json:"gid"`
	Size   uint64    `json:"size"`
	Mtime  time.Time `json:"mtime"`
	FileID uint64    `json:"fileid"`
	Target string    `json:"target,omitempty"` // of a symbolic link
}

func (l *lister) list(ctx context.Context) error {
	l.entries = []entryJSON{}
	if err := l.walk(ctx); err != nil {
		return err
	}
	if !l.json {
		return nil
	}
	return printJSON(l.out, struct {
		URL     string      `json:"url"`
		Entries []entryJSON `json:"entries"`
	}{l.r.url.String(), l.entries})
}

func (l *lister) walk(ctx context.Context) error {
	root, err := l.r.Stat(ctx, l.r.url.Path)
	if err != nil {
		return err
	}
	if !root.IsDir() {
		return l.print(ctx, path.Base(root.Path), &root)
	}
	if !l.recursive {
		entries, err := l.r.ListDir(ctx, root.Handle)
		if err != nil {
			return err
		}
		for _, e := range entries {
			if err := l.print(ctx, e.Name, &nfs.Node{Handle: e.Handle.Handle, Attr: e.Attr.Attr}); err != nil {
				return &itemError{e.Name, err}
			}
		}
		return nil
	}
	return l.r.Walk(ctx, l.r.url.Path, func(n nfs.Node, err error) error {
		rel := below(n.Path, root.Path)
		switch {
		case err != nil && rel == "":
			return err
		case err != nil:
			return &itemError{rel, err}
		case rel == "":
			return nil
		}
		if err := l.print(ctx, rel, &n); err != nil {
			return &itemError{rel, err}
		}
		return nil
	})
}

// below is the part of path below dir, both clean and absolute.
func below(path, dir string) string {
	return strings.TrimPrefix(strings.TrimPrefix(path, dir), "/")
}

// print prints an entry.
func (l *lister) print(ctx context.Context, name string, n *nfs.Node) error {
	var target string
	if n.Attr.Type == nfs.TypeLnk && (l.long || l.json) {
		var err error
		if target, err = l.r.ReadLink(ctx, n.Handle); err != nil {
			return err
		}
	}
	mode := n.Attr.FileMode()
	if l.json {
		l.entries = append(l.entries, entryJSON{
			Path: name, Type: typeName(n.Attr.Type), Mode: modeText(mode), Links: n.Attr.Nlink,
			UID: n.Attr.UID, GID: n.Attr.GID, Size: n.Attr.Size, Mtime: n.Attr.MTime.Time(),
			FileID: n.Attr.FileID, Target: target,
		})
		return nil
	}
	if l.long {
		fmt.Fprintf(l.out, "%s %3d %5d %5d %12d %s ", modeText(mode), n.Attr.Nlink, n.Attr.UID, n.Attr.GID, n.Attr.Size,
			n.Attr.MTime.Time().Local().Format("2006-01-02 15:04:05"))
	}
	io.WriteString(l.out, printable(name))
	switch {
	case mode.Type() == fs.ModeDir:
		io.WriteString(l.out, "/")
	case target != "":
		io.WriteString(l.out, " -> "+printable(target))
	}
	return l.out.WriteByte('\n')
}

// modeText is a mode as ls prints it.
func modeText(m fs.FileMode) string {
	b := []byte("-rwxrwxrwx")
	switch m.Type() {
	case fs.ModeDir:
		b[0] = 'd'
	case fs.ModeSymlink:
		b[0] = 'l'
	case fs.ModeDevice:
		b[0] = 'b'
	case fs.ModeDevice | fs.ModeCharDevice:
		b[0] = 'c'
	case fs.ModeSocket:
		b[0] = 's'
	case fs.ModeNamedPipe:
		b[0] = 'p'
	case fs.ModeIrregular:
		b[0] = '?'
	}
	for i := 1; i < len(b); i++ {
		if m&(1<<(9-i)) == 0 {
			b[i] = '-'
		}
	}
	// A capital letter stands where the right to execute is missing.
	for _, special := range []struct {
		bit   fs.FileMode
		at    int
		lower byte
	}{{fs.ModeSetuid, 3, 's'}, {fs.ModeSetgid, 6, 's'}, {fs.ModeSticky, 9, 't'}} {
		if m&special.bit != 0 {
			if b[special.at] == '-' {
				b[special.at] = special.lower - 'a' + 'A'
			} else {
				b[special.at] = special.lower
			}
		}
	}
	return string(b)
}

// typeName is a word for a file type.
func typeName(t nfs.FileType) string {
	switch t {
	case nfs.TypeReg:
		return "file"
	case nfs.TypeDir:
		return "directory"
	case nfs.TypeLnk:
		return "link"
	case nfs.TypeBlk:
		return "block device"
	case nfs.TypeChr:
		return "character device"
	case nfs.TypeSock:
		return "socket"
	case nfs.TypeFIFO:
		return "fifo"
	}
	return t.String()
}
