// Package tree implements the commands that list and modify the directories of an NFS server: ls, stat, mv, mkdir, rm
// and exports.
package tree

import (
	"bufio"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/rpcrdma/rpcrdma/cmd/rpcrdma/internal/cli"
	"github.com/rpcrdma/rpcrdma/cmd/rpcrdma/internal/explain"
	"github.com/rpcrdma/rpcrdma/cmd/rpcrdma/internal/remote"
	"github.com/rpcrdma/rpcrdma/nfs"
)

// NewLs returns the command ls.
func NewLs() *cobra.Command {
	var o remote.Options
	var long, recursive bool
	cmd := &cobra.Command{
		Use:        "ls URL",
		SuggestFor: []string{"list", "dir", "ll", "find"},
		Short:      "List a directory of an NFS server",
		Long: `List a directory of an NFS server, or a single file.

URL is nfs://HOST[:PORT]/EXPORT/PATH; the default port is 20049. Each name is on its own
line, in quotes if it has unprintable characters. Names are sorted, or in the server's order
if a directory has more than 65,536. For a server that does not export its root, nfs://HOST/
lists its exports.

Names that cannot be listed are reported, the others are listed, and the exit status is 1.`,
		Example: `  rpcrdma ls -l nfs://server/srv/data
  rpcrdma ls -r --json nfs://server/srv/data | jq '.entries[].size'`,
		ValidArgsFunction: cli.Positions(remote.CompleteURL),
		Args:              cli.WantArgs("URL"),
		RunE: func(cmd *cobra.Command, args []string) error {
			u, err := o.ParseURL(cmd, args[0])
			if err != nil {
				return err
			}
			ctx, r, err := o.Dial(cmd, u, "ls "+args[0])
			if err != nil {
				return err
			}
			l := lister{
				r: r, long: long, recursive: recursive, json: o.JSON,
				out: bufio.NewWriter(cmd.OutOrStdout()), stderr: cmd.ErrOrStderr(),
			}
			err = l.list(ctx)
			err = r.Failed(ctx, err)
			r.End(err == nil)
			if flushErr := l.out.Flush(); err == nil {
				err = flushErr
			}
			if err == nil && l.skipped > 0 {
				err = fmt.Errorf("%s: %s skipped", r.Name, cli.Things(l.skipped))
			}
			return err
		},
	}
	remote.AddOptions(cmd, &o)
	cmd.Flags().BoolVarP(&long, "long", "l", false, "print mode, links, owner, group, size, time, and targets of symbolic links")
	cmd.Flags().BoolVarP(&recursive, "recursive", "r", false, "list everything below the directory")
	return cmd
}

// lister lists the object at a URL.
type lister struct {
	r                     *remote.Target
	long, recursive, json bool
	out                   *bufio.Writer
	stderr                io.Writer
	begun                 bool // the start of the JSON object has been printed
	printed, skipped      int
}

// EntryJSON is an entry for --json.
type EntryJSON struct {
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

// list prints entries as they arrive, with bounded memory. The JSON object is complete even after an error.
func (l *lister) list(ctx context.Context) error {
	err := l.walk(ctx)
	if l.json && (l.begun || err == nil) {
		if headErr := l.head(); headErr != nil {
			return cmp.Or(err, headErr)
		}
		end := "]\n}\n"
		if l.printed > 0 {
			end = "\n  ]\n}\n"
		}
		io.WriteString(l.out, end)
	}
	return err
}

// head prints the JSON object up to its first entry, once.
func (l *lister) head() error {
	if l.begun {
		return nil
	}
	l.begun = true
	url, err := json.Marshal(l.r.URL.String())
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(l.out, "{\n  \"url\": %s,\n  \"entries\": [", cli.PlainJSON(url))
	return err
}

// entry prints an entry of the JSON object.
func (l *lister) entry(e *EntryJSON) error {
	if err := l.head(); err != nil {
		return err
	}
	text, err := json.MarshalIndent(e, "    ", "  ")
	if err != nil {
		return err
	}
	separator := "\n    "
	if l.printed > 0 {
		separator = ",\n    "
	}
	io.WriteString(l.out, separator)
	l.printed++
	_, err = l.out.Write(cli.PlainJSON(text))
	return err
}

// skip reports an object that cannot be listed.
func (l *lister) skip(path string, err error) {
	l.skipped++
	cli.PrintSkipped(l.stderr, l.json, l.r.Name, path, explain.Text(err))
}

func (l *lister) walk(ctx context.Context) error {
	err := l.under(ctx, l.r.URL.Path, "")
	if none, ok := errors.AsType[*nfs.NoExportError](err); ok && l.r.URL.Path == "/" && len(none.Exports) > 0 {
		return l.exports(ctx, none.Exports)
	}
	return err
}

// exports lists the exports of a server that does not export its root.
func (l *lister) exports(ctx context.Context, list []nfs.Export) error {
	for _, e := range list {
		name := strings.TrimPrefix(path.Clean(e.Dir), "/")
		if !l.long && !l.json && !l.recursive { // then it need not be accessible
			io.WriteString(l.out, explain.Printable(name)+"/\n")
			continue
		}
		root, err := l.r.Stat(ctx, e.Dir)
		if err == nil {
			err = l.print(ctx, name, &root)
		}
		if err == nil && l.recursive {
			err = l.under(ctx, e.Dir, name)
		}
		if err != nil && !remote.ConcernsOne(ctx, err) && !errors.As(err, new(*nfs.MountError)) {
			return explain.Item(name, err)
		} else if err != nil {
			l.skip(name, err)
		}
	}
	return nil
}

// under lists the object at a path of the server, with names below prefix.
func (l *lister) under(ctx context.Context, at, prefix string) error {
	root, err := l.r.Stat(ctx, at)
	if err != nil {
		return err
	}
	if !root.IsDir() {
		return l.print(ctx, path.Base(root.Path), &root)
	}
	if !l.recursive {
		l.r.Known.Add(root.Handle, root.Path)
		for e, err := range l.r.Entries(ctx, root.Handle) {
			var bad *nfs.NameError
			switch {
			case errors.As(err, &bad):
				l.skip(bad.Name, err)
			case err != nil && e.Name == "":
				return err
			case err != nil:
				l.skip(e.Name, err)
			default:
				if err := l.print(ctx, e.Name, &nfs.Node{Handle: e.Handle.Handle, Attr: e.Attr.Attr}); err != nil {
					return explain.Item(e.Name, err)
				}
			}
		}
		return nil
	}
	return l.r.Walk(ctx, at, func(n nfs.Node, err error) error {
		rel := remote.Below(n.Path, root.Path)
		if rel != "" {
			rel = remote.InDir(prefix, rel)
		}
		var bad *nfs.NameError
		switch {
		case errors.As(err, &bad):
			l.skip(remote.InDir(rel, bad.Name), err)
			return nil
		case err != nil && rel == "":
			return err
		case err != nil && remote.ConcernsOne(ctx, err):
			l.skip(rel, err)
			return nil
		case err != nil:
			return explain.Item(rel, err)
		case n.IsDir():
			l.r.Known.Add(n.Handle, n.Path)
		}
		if rel == "" {
			return nil
		}
		if err := l.print(ctx, rel, &n); err != nil {
			return explain.Item(rel, err)
		}
		return nil
	})
}

// print prints an entry.
func (l *lister) print(ctx context.Context, name string, n *nfs.Node) error {
	var target string
	if n.Attr.Type == nfs.TypeLnk && (l.long || l.json) {
		var err error
		if target, err = l.r.ReadLink(ctx, n.Handle); err != nil {
			if remote.ConcernsOne(ctx, err) {
				l.skip(name, err)
				err = nil
			}
			return err
		}
	}
	mode := n.Attr.FileMode()
	if l.json {
		return l.entry(&EntryJSON{
			Path: name, Type: explain.TypeName(n.Attr.Type), Mode: modeText(mode), Links: n.Attr.Nlink,
			UID: n.Attr.UID, GID: n.Attr.GID, Size: n.Attr.Size, Mtime: n.Attr.MTime.Time(),
			FileID: n.Attr.FileID, Target: target,
		})
	}
	if l.long {
		fmt.Fprintf(l.out, "%s %3d %5d %5d %12d %s ", modeText(mode), n.Attr.Nlink, n.Attr.UID, n.Attr.GID, n.Attr.Size,
			n.Attr.MTime.Time().Local().Format("2006-01-02 15:04:05"))
	}
	io.WriteString(l.out, explain.Printable(name))
	switch {
	case mode.Type() == fs.ModeDir:
		io.WriteString(l.out, "/")
	case target != "":
		io.WriteString(l.out, " -> "+explain.Printable(target))
	}
	return l.out.WriteByte('\n')
}

// modeText formats a mode as ls -l does.
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
	// A capital letter means that the execute permission is missing.
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
