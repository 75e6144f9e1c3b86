package main

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

	"github.com/rpcrdma/rpcrdma/nfs"
)

func newLs() *cobra.Command {
	var o nfsOptions
	var long, recursive bool
	cmd := &cobra.Command{
		Use:        "ls URL",
		SuggestFor: []string{"list", "dir", "ll", "find"},
		Short:      "List a directory of an NFS server",
		Long: `List a directory of an NFS server, or a single file.

URL is nfs://HOST[:PORT]/EXPORT/PATH; the default port is 20049. Each name is a line, in
quotes if it has unprintable characters. Names are sorted, or in the server's order if a
directory has more than 65,536.

What cannot be listed is reported, everything else is listed, and the exit status is 1.`,
		Example: `  rpcrdma ls -l nfs://server/srv/data
  rpcrdma ls -r --json nfs://server/srv/data | jq '.entries[].size'`,
		ValidArgsFunction: positions(completeURL),
		Args:              wantArgs("URL"),
		RunE: func(cmd *cobra.Command, args []string) error {
			u, err := o.parseURL(cmd, args[0])
			if err != nil {
				return err
			}
			ctx, r, err := o.dial(cmd, u, "ls "+args[0])
			if err != nil {
				return err
			}
			l := lister{
				r: r, long: long, recursive: recursive, json: o.json,
				out: bufio.NewWriter(cmd.OutOrStdout()), stderr: cmd.ErrOrStderr(),
			}
			err = l.list(ctx)
			err = r.failed(ctx, err)
			r.close(err == nil)
			if flushErr := l.out.Flush(); err == nil {
				err = flushErr
			}
			if err == nil && l.skipped > 0 {
				err = fmt.Errorf("%s: %s skipped", r.name, things(l.skipped))
			}
			return err
		},
	}
	addNFSOptions(cmd, &o)
	cmd.Flags().BoolVarP(&long, "long", "l", false, "print mode, links, owner, group, size, time, and targets of symbolic links")
	cmd.Flags().BoolVarP(&recursive, "recursive", "r", false, "list everything below the directory")
	return cmd
}

// A lister lists what is at a URL.
type lister struct {
	r                     *remote
	long, recursive, json bool
	out                   *bufio.Writer
	stderr                io.Writer
	begun                 bool // the start of the JSON object has been printed
	printed, skipped      int
}

// entryJSON is an entry as --json prints it.
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

// list prints entries as they arrive, in bounded memory. The JSON object is complete even
// after an error.
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
	url, err := json.Marshal(l.r.url.String())
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(l.out, "{\n  \"url\": %s,\n  \"entries\": [", plainJSON(url))
	return err
}

// entry prints an entry of the JSON object.
func (l *lister) entry(e *entryJSON) error {
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
	_, err = l.out.Write(plainJSON(text))
	return err
}

// skip reports something that cannot be listed.
func (l *lister) skip(path string, err error) {
	l.skipped++
	printSkipped(l.stderr, l.json, l.r.name, path, explain(err))
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
		l.r.known.add(root.Handle, root.Path)
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
					return atItem(e.Name, err)
				}
			}
		}
		return nil
	}
	return l.r.Walk(ctx, l.r.url.Path, func(n nfs.Node, err error) error {
		rel := below(n.Path, root.Path)
		var bad *nfs.NameError
		switch {
		case errors.As(err, &bad):
			l.skip(inDir(rel, bad.Name), err)
			return nil
		case err != nil && rel == "":
			return err
		case err != nil && concernsOne(ctx, err):
			l.skip(rel, err)
			return nil
		case err != nil:
			return atItem(rel, err)
		case n.IsDir():
			l.r.known.add(n.Handle, n.Path)
		}
		if rel == "" {
			return nil
		}
		if err := l.print(ctx, rel, &n); err != nil {
			return atItem(rel, err)
		}
		return nil
	})
}

// below returns the part of path below dir. Both are clean and absolute.
func below(path, dir string) string {
	return strings.TrimPrefix(strings.TrimPrefix(path, dir), "/")
}

// print prints an entry.
func (l *lister) print(ctx context.Context, name string, n *nfs.Node) error {
	var target string
	if n.Attr.Type == nfs.TypeLnk && (l.long || l.json) {
		var err error
		if target, err = l.r.ReadLink(ctx, n.Handle); err != nil {
			if concernsOne(ctx, err) {
				l.skip(name, err)
				err = nil
			}
			return err
		}
	}
	mode := n.Attr.FileMode()
	if l.json {
		return l.entry(&entryJSON{
			Path: name, Type: typeName(n.Attr.Type), Mode: modeText(mode), Links: n.Attr.Nlink,
			UID: n.Attr.UID, GID: n.Attr.GID, Size: n.Attr.Size, Mtime: n.Attr.MTime.Time(),
			FileID: n.Attr.FileID, Target: target,
		})
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

// modeText returns a mode in the form of ls -l.
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
	// A capital letter means that the right to execute is missing.
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

// typeName returns a word for a file type.
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
	return fmt.Sprintf("thing of unknown type %d", uint32(t))
}
