package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"path"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/rpcrdma/rpcrdma/nfs"
)

func newPut() *cobra.Command {
	var o transferOptions
	cmd := &cobra.Command{
		Use:   "put LOCAL URL",
		Short: "Copy files to an NFS server",
		Long: `Copy a file, or with -r a directory, to an NFS server.

URL is nfs://HOST[:PORT]/EXPORT/PATH; the default port is 20049. It is the name of the
copy, or a directory to put it into. With -r, the URL's directory becomes a copy of LOCAL:
it is made if it does not exist, and other files in it are kept.

A file appears under its name only when it is complete and on the server's disk. Symbolic
links below LOCAL become symbolic links, wherever they lead. Special files and files that
cannot be read are skipped: they are reported, everything else is copied, and the exit
status is 1.`,
		Example: `  rpcrdma put report.pdf nfs://server/srv/data/
  rpcrdma put -r -P 32 data nfs://server/srv/copy-of-data`,
		Args: wantArgs("LOCAL", "URL"),
		RunE: func(cmd *cobra.Command, args []string) error {
			u, err := o.parseURL(cmd, args[1])
			if err != nil {
				return err
			}
			if err := checkParallel(cmd, o.parallel); err != nil {
				return err
			}
			// Local errors need no server.
			info, err := os.Stat(args[0])
			switch {
			case err != nil:
				return fmt.Errorf("put %s: %w", args[1], explained(err))
			case info.IsDir() && !o.recursive:
				return fmt.Errorf("put %s: %s %w", args[1], args[0], errIsDir)
			case !info.IsDir() && !info.Mode().IsRegular():
				return fmt.Errorf("put %s: %s is neither a file nor a directory", args[1], args[0])
			}
			ctx, r, err := o.dial(cmd, u, "put "+args[1])
			if err != nil {
				return err
			}
			t := &transfer{remote: r, parallel: o.parallel, json: o.json, stderr: cmd.ErrOrStderr(), start: time.Now(), meter: new(meter)}
			if info.IsDir() {
				err = t.putTree(ctx, args[0])
			} else {
				err = t.put(ctx, args[0])
			}
			return t.finish(ctx, args[0], o.json, cmd.OutOrStdout(), err)
		},
	}
	addTransferOptions(cmd, &o)
	return cmd
}

// put copies a file to the URL.
func (t *transfer) put(ctx context.Context, local string) error {
	node, err := t.Stat(ctx, t.url.Path)
	name := filepath.Base(local)
	switch {
	case err == nil && node.IsDir():
	case strings.HasSuffix(t.name, "/"):
		if err == nil {
			err = &nfs.Error{Op: "LOOKUP", Status: nfs.StatusNotDir}
		}
		return err
	case err == nil || isMissing(err):
		name = path.Base(t.url.Path)
		if node, err = t.Stat(ctx, path.Dir(t.url.Path)); err != nil {
			return err
		}
	default:
		return err
	}
	root, err := os.OpenRoot(filepath.Dir(local))
	if err != nil {
		return err
	}
	defer root.Close()
	info, err := root.Stat(filepath.Base(local))
	if err != nil {
		return err
	}
	t.meter = newMeter(t.stderr, info.Size())
	defer t.meter.close()
	return t.putFile(ctx, root, filepath.Base(local), node.Handle, name, t.parallel)
}

func isMissing(err error) bool {
	var status *nfs.Error
	return errors.As(err, &status) && status.Status == nfs.StatusNoEnt
}

// putFile copies a local file to name in a directory, where it appears when it is
// complete.
func (t *transfer) putFile(ctx context.Context, root *os.Root, local string, dir nfs.FileHandle, name string, parallel int) (err error) {
	f, err := root.Open(local)
	if err != nil {
		return err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return err
	}
	// A server may refuse WRITE to a file that is read-only.
	mode := uint32(info.Mode().Perm())
	part := partName()
	fh, _, err := t.Create(ctx, &nfs.CreateArgs{
		Where: nfs.DirOpArgs{Dir: dir, Name: part},
		Mode:  nfs.Guarded,
		Attr:  nfs.SetAttr{SetMode: true, Mode: mode | 0o600},
	})
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			t.discard(ctx, dir, part)
		}
	}()
	defer t.known.add(fh, local)()
	if _, err := t.Upload(ctx, fh, f, info.Size(), &nfs.TransferOptions{
		Parallel: parallel, Progress: t.meter.file(),
	}); err != nil {
		return err
	}
	if mode&0o600 != 0o600 {
		if err := t.SetAttr(ctx, fh, &nfs.SetAttr{SetMode: true, Mode: mode}); err != nil {
			return err
		}
	}
	if err := t.Rename(ctx, dir, part, dir, name); err != nil {
		return err
	}
	t.meter.finished()
	return nil
}

// A leftover is a file on the server that remains to be removed.
type leftover struct {
	dir  nfs.FileHandle
	name string
}

// cleanupTimeout bounds each attempt to remove leftovers: on the connection of the put,
// and on a new one.
const cleanupTimeout = 2 * time.Second

// discard removes an incomplete file, even after an interrupt has ended ctx. If the
// connection is lost, clean has to do it: cancelling a call while the server moves its
// data may end the connection.
func (t *transfer) discard(ctx context.Context, dir nfs.FileHandle, name string) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanupTimeout)
	defer cancel()
	if err := t.Remove(ctx, dir, name); err != nil && !isMissing(err) {
		t.mu.Lock()
		t.left = append(t.left, leftover{dir, name})
		t.mu.Unlock()
	}
}

// clean removes what discard could not, over a connection of its own. What is left all
// the same is named.
func (t *transfer) clean() {
	if len(t.left) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), cleanupTimeout)
	defer cancel()
	c, err := t.again(ctx)
	if err == nil {
		defer c.Close()
	}
	for _, l := range t.left {
		if err == nil {
			if err = c.Remove(ctx, l.dir, l.name); err == nil || isMissing(err) {
				err = nil
				continue
			}
		}
		fmt.Fprintf(t.stderr, "rpcrdma: %s: %s may be left on the server, in the directory of the copy\n", t.name, l.name)
	}
}

// A localItem is something below the directory that is being copied.
type localItem struct {
	rel  string
	size int64
	mode fs.FileMode
	dir  nfs.FileHandle // of the directory that it goes to
}

// putTree makes the URL's directory a copy of a local one.
func (t *transfer) putTree(ctx context.Context, local string) error {
	root, err := os.OpenRoot(local)
	if err != nil {
		return err
	}
	defer root.Close()
	// List everything first: if the server is on this machine, the copy may grow inside the
	// original.
	var dirs, files, links []localItem
	var total int64
	err = fs.WalkDir(root.FS(), ".", func(rel string, d fs.DirEntry, err error) error {
		var info fs.FileInfo
		if err == nil {
			info, err = d.Info()
		}
		if err != nil && rel != "." {
			t.skip(rel, explain(err))
			return ctx.Err()
		}
		if err != nil {
			return &itemError{rel, err}
		}
		item := localItem{rel: rel, size: info.Size(), mode: info.Mode()}
		switch {
		case info.IsDir():
			dirs = append(dirs, item)
		case info.Mode().IsRegular():
			files = append(files, item)
			total += item.size
		case info.Mode().Type() == fs.ModeSymlink:
			links = append(links, item)
		default:
			t.skip(rel, "it is a special file")
		}
		return ctx.Err()
	})
	if err != nil {
		return err
	}
	if err := t.makeDirs(ctx, dirs, files, links); err != nil {
		return err
	}

	t.meter = newMeter(t.stderr, total)
	defer t.meter.close()
	copies := newCopier(ctx, t.parallel, func(ctx context.Context, f localItem, parallel int) error {
		return t.put1(ctx, f, t.putFile(ctx, root, f.rel, f.dir, path.Base(f.rel), parallel))
	})
	for _, f := range files {
		if err = copies.add(f, f.size); err != nil {
			break
		}
	}
	if err := copies.wait(err); err != nil {
		return err
	}
	for _, l := range links {
		if err := t.put1(ctx, l, t.putLink(ctx, root, l)); err != nil {
			return err
		}
	}
	return nil
}

// put1 handles the result of copying one item. An item that cannot be read locally is
// skipped.
func (t *transfer) put1(ctx context.Context, item localItem, err error) error {
	var local *fs.PathError
	switch {
	case err == nil:
		return nil
	case ctx.Err() == nil && !errors.Is(err, net.ErrClosed) && (errors.As(err, &local) || errors.Is(err, io.ErrUnexpectedEOF)):
		t.skip(item.rel, explain(err))
		return nil
	}
	return &itemError{item.rel, err}
}

// makeDirs makes the directories, the URL's first and each before its contents, and sets
// the directory of each file and link.
func (t *transfer) makeDirs(ctx context.Context, dirs, files, links []localItem) error {
	top, err := t.Stat(ctx, t.url.Path)
	switch {
	case isMissing(err):
		if top, err = t.MakeDir(ctx, t.url.Path, uint32(dirs[0].mode.Perm())); err != nil {
			return err
		}
	case err != nil:
		return err
	case !top.IsDir():
		return &nfs.Error{Op: "MKDIR", Status: nfs.StatusNotDir}
	}
	handles := map[string]nfs.FileHandle{".": top.Handle}
	for _, d := range dirs[1:] {
		fh, err := t.makeDir(ctx, handles[path.Dir(d.rel)], path.Base(d.rel), d.mode)
		if err != nil {
			return &itemError{d.rel, err}
		}
		handles[d.rel] = fh
		t.dirs++
	}
	for _, items := range [][]localItem{files, links} {
		for i := range items {
			items[i].dir = handles[path.Dir(items[i].rel)]
		}
	}
	return nil
}

// makeDir makes a directory unless it exists.
func (t *transfer) makeDir(ctx context.Context, dir nfs.FileHandle, name string, mode fs.FileMode) (nfs.FileHandle, error) {
	fh, _, err := t.Mkdir(ctx, dir, name, &nfs.SetAttr{SetMode: true, Mode: uint32(mode.Perm() | 0o700)})
	if !errors.Is(err, fs.ErrExist) {
		return fh, err
	}
	fh, attr, err := t.Lookup(ctx, dir, name)
	if err != nil {
		return fh, err
	}
	if !attr.Present {
		if attr.Attr, err = t.GetAttr(ctx, fh); err != nil {
			return fh, err
		}
	}
	if attr.Attr.Type != nfs.TypeDir {
		return fh, &nfs.Error{Op: "MKDIR", Status: nfs.StatusNotDir}
	}
	return fh, nil
}

// putLink copies a symbolic link.
func (t *transfer) putLink(ctx context.Context, root *os.Root, l localItem) error {
	target, err := root.Readlink(l.rel)
	if err != nil {
		return err
	}
	part := partName()
	if _, _, err := t.Symlink(ctx, l.dir, part, filepath.ToSlash(target), &nfs.SetAttr{}); err != nil {
		return err
	}
	if err := t.Rename(ctx, l.dir, part, l.dir, path.Base(l.rel)); err != nil {
		t.discard(ctx, l.dir, part)
		return err
	}
	t.links++
	return nil
}
