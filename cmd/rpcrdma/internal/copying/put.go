package copying

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/rpcrdma/rpcrdma/cmd/rpcrdma/internal/cli"
	"github.com/rpcrdma/rpcrdma/cmd/rpcrdma/internal/explain"
	"github.com/rpcrdma/rpcrdma/cmd/rpcrdma/internal/remote"
	"github.com/rpcrdma/rpcrdma/nfs"
)

// NewPut returns the command put.
func NewPut() *cobra.Command {
	var o transferOptions
	cmd := &cobra.Command{
		Use:        "put LOCAL URL",
		SuggestFor: []string{"upload", "send", "push", "write"},
		Short:      "Copy files to an NFS server",
		Long: `Copy a file, or with -r a directory, to an NFS server.

URL is nfs://HOST[:PORT]/EXPORT/PATH; the default port is 20049. It is the name of the
copy, or a directory to put it into. With -r, the URL's directory becomes a copy of LOCAL:
it is created if it does not exist, and other files in it are kept.

A file appears under its name only when it is complete and on the server's disk, and was the
same at the end as at the beginning. Symbolic links below LOCAL become symbolic links,
wherever they lead. Special files and files that cannot be read, that the server refuses, or
that change meanwhile are skipped: they are reported, everything else is copied, and the exit
status is 1. Incomplete copies that this command has made, .rpcrdma-*.part, are left out. If
LOCAL is -, the file is read from standard input; a file of that name is ./-.

Copies have the permissions of their originals. A directory that is read-only for its owner
becomes read-only at the end, when it is complete. If the destination of a single file is a
symbolic link, the file that it leads to is replaced, and the link stays.

` + remote.RetryHelp + resumeHelp,
		Example: `  rpcrdma put report.pdf nfs://server/srv/data/
  tar c data | rpcrdma put - nfs://server/srv/data.tar
  rpcrdma put -r -P 32 data nfs://server/srv/copy-of-data
  rpcrdma put -r --resume --retry 10m data nfs://server/srv/copy-of-data`,
		ValidArgsFunction: cli.Positions(cli.Files, remote.CompleteURL),
		Args:              cli.WantArgs("LOCAL", "URL"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := checkDirection(cmd, args); err != nil {
				return err
			}
			u, err := o.ParseURL(cmd, args[1])
			if err != nil {
				return err
			}
			if err := remote.CheckParallel(cmd, o.parallel); err != nil {
				return err
			}
			// Report local errors before connecting.
			var info fs.FileInfo
			fromStdin := args[0] == "-"
			if fromStdin {
				if o.recursive || o.resume {
					return cli.Usage(cmd, errors.New("standard input is only one file: - is not for -r and --resume"))
				}
			} else {
				info, err = os.Stat(args[0])
				switch {
				case err != nil:
					return fmt.Errorf("put %s: %w", args[1], explain.Error(err))
				case info.IsDir() && !o.recursive:
					return fmt.Errorf("put %s: %s %w", args[1], args[0], errIsDir)
				case !info.IsDir() && !info.Mode().IsRegular():
					return fmt.Errorf("put %s: %s is neither a file nor a directory", args[1], args[0])
				}
			}
			ctx, r, err := o.Dial(cmd, u, "put "+args[1])
			if err != nil {
				return err
			}
			t, err := o.newTransfer(cmd, r)
			t.wantsDir = strings.HasSuffix(args[1], "/")
			switch {
			case err != nil:
			case fromStdin:
				err = t.putStream(ctx, cmd.InOrStdin())
			case info.IsDir():
				err = t.putTree(ctx, args[0])
			default:
				err = t.put(ctx, args[0])
			}
			return t.finish(ctx, ResultJSON{Local: args[0]}, cmd.OutOrStdout(), err)
		},
	}
	addTransferOptions(cmd, &o)
	return cmd
}

// put copies a file to the URL.
func (t *transfer) put(ctx context.Context, local string) error {
	dir, name, err := t.target(ctx, filepath.Base(local))
	if err != nil {
		return err
	}
	real, err := filepath.EvalSymlinks(local) // follow links, because the file was named explicitly
	if err != nil {
		return err
	}
	root, err := os.OpenRoot(filepath.Dir(real))
	if err != nil {
		return err
	}
	defer root.Close()
	src, err := openLocal(root, filepath.Base(real))
	if err != nil {
		return err
	}
	defer src.Close()
	v, err := src.version()
	if err != nil {
		return err
	}
	from, err := filepath.Abs(local)
	if err != nil {
		return err
	}
	t.meter = newMeter(t.stderr, v.Size)
	defer t.meter.close()
	return t.putFile(ctx, src, remoteName{dir.Handle, path.Join(dir.Path, name), name, from}, t.parallel)
}

// target returns the directory and the name for a copy at the URL, or, if the URL is a directory, in it under the name
// base.
func (t *transfer) target(ctx context.Context, base string) (dir nfs.Node, name string, err error) {
	node, err := t.Stat(ctx, t.URL.Path)
	switch {
	case err == nil && node.IsDir() && base == "":
		return node, "", nil
	case err == nil && node.IsDir():
		return t.throughLink(ctx, node, base)
	case t.wantsDir:
		if err == nil {
			err = &nfs.Error{Op: "LOOKUP", Status: nfs.StatusNotDir}
		}
		return node, "", err
	case err != nil && !remote.IsMissing(err):
		return node, "", err
	}
	dir, err = t.Stat(ctx, path.Dir(t.URL.Path))
	if err != nil {
		return dir, "", err
	}
	return t.throughLink(ctx, dir, path.Base(t.URL.Path))
}

// throughLink returns where a file written to a name in a directory ends up: elsewhere if the name is that of a
// symbolic link.
func (t *transfer) throughLink(ctx context.Context, dir nfs.Node, name string) (nfs.Node, string, error) {
	_, attr, err := t.LookupAttr(ctx, dir.Handle, name)
	if err != nil || attr.Type != nfs.TypeLnk {
		return dir, name, nil // not a link, or the copy itself reports the error
	}
	real, err := t.RealPath(ctx, path.Join(dir.Path, name))
	if remote.IsMissing(err) {
		err = errDangling
	}
	if err == nil {
		dir, err = t.Stat(ctx, path.Dir(real))
	}
	return dir, path.Base(real), err
}

// errDangling is the reason why a file is not written.
var errDangling = errors.New("is a symbolic link to something that does not exist; 'rpcrdma rm' removes it")

// remoteName is the destination of a copy on a server, and its original.
type remoteName struct {
	dir  nfs.FileHandle
	path string // path on the server
	name string // name in dir
	from string // original: an absolute path, or a URL
}

// putFile copies a file to a name on the server, where it appears once complete.
func (t *transfer) putFile(ctx context.Context, src source, to remoteName, parallel int) (err error) {
	v, err := src.version()
	if err != nil {
		return err
	}
	var rec *record
	if t.records != "" {
		_, attr, err := t.LookupAttr(ctx, to.dir, to.name)
		switch {
		case err == nil && attr.Type == nfs.TypeReg && v.isCopy(int64(attr.Size), attr.MTime):
			t.meter.spare(v.Size)
			t.has()
			return nil
		case err != nil && !remote.IsMissing(err) && !remote.IsStatus(err, nfs.StatusStale): // another client is replacing it
			return err
		}
		url := *t.URL
		url.Path = to.path
		if v.Size >= ResumeLeast {
			rec, err = openRecord(t.records, to.from, url.String(), v)
		} else {
			err = dropRecord(t.records, to.from, url.String(), func(part string) { t.discard(ctx, to.dir, part) })
		}
		if err != nil {
			return err
		}
	}
	keep := false
	if rec != nil {
		defer func() { rec.close(keep) }()
	}
	// A server may refuse WRITE to a read-only file.
	part, fh, err := t.putPart(ctx, to.dir, rec, v.mode|0o600)
	if err != nil {
		return err
	}
	defer func() {
		switch {
		case err == nil:
		case rec != nil && rec.Done > 0 && !isChanged(err):
			keep, err = true, &keptError{err, rec.Done}
		default:
			t.discard(ctx, to.dir, part)
		}
	}()
	defer t.Known.Add(fh, to.path)()
	if err := t.upload(ctx, src, fh, v, rec, parallel); err != nil {
		return err
	}
	now, err := src.version()
	switch {
	case err != nil:
		return err
	case !v.same(now):
		return &changedError{v, now}
	}
	var set nfs.SetAttr
	if v.mode&0o600 != 0o600 {
		set.SetMode, set.Mode = true, v.mode
	}
	if t.records != "" {
		set.MTimeHow, set.MTime = nfs.SetToClientTime, v.MTime
	}
	if set != (nfs.SetAttr{}) {
		if err := t.SetAttr(ctx, fh, &set); err != nil {
			return err
		}
	}
	if err := t.renamePart(ctx, to.dir, fh, part, to.name); err != nil {
		return err
	}
	t.meter.finished()
	return nil
}

// putPart finds the incomplete copy of a record, or creates one. rec may be nil.
func (t *transfer) putPart(ctx context.Context, dir nfs.FileHandle, rec *record, mode uint32) (part string, fh nfs.FileHandle, err error) {
	if rec != nil && rec.Part != "" {
		fh, attr, err := t.LookupAttr(ctx, dir, rec.Part)
		switch {
		case err == nil && attr.Type == nfs.TypeReg && attr.FileID == rec.PartID && attr.Size >= uint64(rec.Done):
			return rec.Part, fh, nil
		case err != nil && !remote.IsMissing(err):
			return "", fh, err
		}
	}
	if rec != nil {
		if stale := rec.anew(); stale != "" {
			t.discard(ctx, dir, stale)
		}
	}
	part, fh, err = t.createPart(ctx, dir, mode)
	if err != nil || rec == nil {
		return part, fh, err
	}
	attr, err := t.GetAttr(ctx, fh)
	if err == nil {
		rec.Part, rec.PartID = part, attr.FileID
		err = rec.save(0)
	}
	if err != nil {
		t.discard(ctx, dir, part)
	}
	return part, fh, err
}

// upload copies the missing part of a file.
func (t *transfer) upload(ctx context.Context, src source, fh nfs.FileHandle, v version, rec *record, parallel int) error {
	progress := t.meter.file()
	if rec == nil {
		_, err := t.Upload(ctx, fh, src, v.Size, &nfs.TransferOptions{Parallel: parallel, Progress: progress})
		return shorter(err)
	}
	t.meter.spare(rec.Done)
	moved := int64(0)
	return steps(rec.Done, v.Size, func(from, to int64) error {
		n, err := t.Upload(ctx, fh, src, to, &nfs.TransferOptions{
			Parallel: parallel, Offset: from, Progress: func(n int64) { progress(moved + n) },
		})
		moved += n
		if err != nil {
			return shorter(err)
		}
		return rec.save(to)
	})
}

// leftover is a file on the server that remains to be removed.
type leftover struct {
	dir  nfs.FileHandle
	name string
}

// cleanupTimeout limits each attempt to remove leftovers: on the connection of the put, and on a new one.
const cleanupTimeout = 2 * time.Second

// discard removes an incomplete file, even after an interrupt has ended ctx. If the connection is lost, clean has to do
// it, because canceling a call while the server transfers its data may end the connection.
func (t *transfer) discard(ctx context.Context, dir nfs.FileHandle, name string) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanupTimeout)
	defer cancel()
	if err := t.Remove(ctx, dir, name); err != nil && !remote.IsMissing(err) {
		t.mu.Lock()
		t.left = append(t.left, leftover{dir, name})
		t.mu.Unlock()
	}
}

// clean removes what discard could not, over a new connection. It names the files that it cannot remove.
func (t *transfer) clean() {
	if len(t.left) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), cleanupTimeout)
	defer cancel()
	c, err := t.Redial(ctx)
	if err == nil {
		defer c.Close()
	}
	for _, l := range t.left {
		if err == nil {
			if err = c.Remove(ctx, l.dir, l.name); err == nil || remote.IsMissing(err) {
				err = nil
				continue
			}
		}
		t.Notice(t.stderr, t.json, l.name+" may be left on the server, in the directory of the copy")
	}
}

// localItem is an object below the directory being copied.
type localItem struct {
	rel  string
	size int64
	mode fs.FileMode
	dir  nfs.FileHandle // its destination directory, or zero
}

// putTree makes the URL's directory a copy of a local one.
func (t *transfer) putTree(ctx context.Context, local string) error {
	root, err := os.OpenRoot(local)
	if err != nil {
		return err
	}
	defer root.Close()
	// List everything first: if the server is on this machine, the copy may grow inside the original.
	var dirs, files, links []localItem
	var total int64
	err = fs.WalkDir(root.FS(), ".", func(rel string, d fs.DirEntry, err error) error {
		var info fs.FileInfo
		if err == nil {
			info, err = d.Info()
		}
		if err != nil && rel != "." {
			t.skip(rel, explain.Text(err))
			return ctx.Err()
		}
		if err != nil {
			return explain.Item(rel, err)
		}
		item := localItem{rel: rel, size: info.Size(), mode: info.Mode()}
		switch {
		case info.IsDir():
			dirs = append(dirs, item)
		case info.Mode().IsRegular() && remote.IsPart(d.Name()):
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
	above, err := filepath.Abs(local)
	if err != nil {
		return err
	}
	from := newFolders(root)
	defer from.close()
	copies := newCopier(ctx, t.parallel, func(ctx context.Context, f localItem, parallel int) error {
		src, err := openBelow(from, f.rel)
		if err == nil {
			to := remoteName{f.dir, path.Join(t.URL.Path, f.rel), path.Base(f.rel), filepath.Join(above, f.rel)}
			err = t.putFile(ctx, src, to, parallel)
			src.Close()
		}
		return t.pass(ctx, f.rel, err)
	})
	for _, f := range files {
		if f.dir.IsZero() {
			continue
		}
		if err = copies.add(f, f.size); err != nil {
			break
		}
	}
	if err := copies.wait(err); err != nil {
		return err
	}
	for _, l := range links {
		if l.dir.IsZero() {
			continue
		}
		target, err := root.Readlink(l.rel)
		if err == nil {
			err = t.putLink(ctx, filepath.ToSlash(target), l.dir, path.Base(l.rel))
		}
		if err := t.pass(ctx, l.rel, err); err != nil {
			return err
		}
	}
	return t.finishRemoteDirs(ctx)
}

// finishRemoteDirs is finishDirs on the server.
func (t *transfer) finishRemoteDirs(ctx context.Context) error {
	return t.finishDirs(ctx, func(d openedDir) error {
		attr, err := t.GetAttr(ctx, d.fh)
		if err != nil || attr.Mode&d.more == 0 {
			return err
		}
		return t.SetAttr(ctx, d.fh, &nfs.SetAttr{SetMode: true, Mode: attr.Mode &^ d.more & 0o7777})
	})
}

// openRemoteDir gives the owner of a directory on the server the rights to fill it until the copy is complete. attr is
// nil if the directory is new; mode is that of the original.
func (t *transfer) openRemoteDir(ctx context.Context, rel string, fh nfs.FileHandle, attr *nfs.Attr, mode fs.FileMode) {
	more := uint32(ownerRights &^ mode.Perm())
	if more == 0 {
		return
	}
	if attr != nil && more&^attr.Mode != 0 {
		_ = t.SetAttr(ctx, fh, &nfs.SetAttr{SetMode: true, Mode: (attr.Mode | more) & 0o7777}) // failures to create files in it are reported
	}
	t.opened = append(t.opened, openedDir{rel: rel, fh: fh, more: more})
}

// makeDirs creates the directories, the URL's first and each before its contents, and sets the directory of each file
// and link.
func (t *transfer) makeDirs(ctx context.Context, dirs, files, links []localItem) error {
	top, err := t.makeTop(ctx, dirs[0].mode)
	if err != nil {
		return err
	}
	// Skip files below a directory that could not be created.
	handles := map[string]nfs.FileHandle{".": top.Handle}
	for _, d := range dirs[1:] {
		parent, ok := handles[path.Dir(d.rel)]
		if !ok {
			continue
		}
		fh, err := t.makeDir(ctx, parent, d.rel, d.mode)
		if err != nil {
			if err := t.pass(ctx, d.rel, err); err != nil {
				return err
			}
			continue
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

// makeTop creates the directory at the URL unless it exists.
func (t *transfer) makeTop(ctx context.Context, mode fs.FileMode) (nfs.Node, error) {
	top, err := t.Stat(ctx, t.URL.Path)
	made := remote.IsMissing(err)
	if made {
		top, err = t.MakeDir(ctx, t.URL.Path, uint32(mode.Perm()|ownerRights))
		if errors.Is(err, fs.ErrExist) && t.Resent() {
			top, err = t.Stat(ctx, t.URL.Path)
		}
	}
	switch {
	case err == nil && !top.IsDir():
		err = &nfs.Error{Op: "MKDIR", Status: nfs.StatusNotDir}
	case err == nil && (made || t.mayBeOurs(top.Attr.Mode)):
		t.openRemoteDir(ctx, ".", top.Handle, &top.Attr, mode)
	}
	return top, err
}

// makeDir creates a directory unless it exists.
func (t *transfer) makeDir(ctx context.Context, dir nfs.FileHandle, rel string, mode fs.FileMode) (nfs.FileHandle, error) {
	var before *nfs.Attr
	fh, _, err := t.Mkdir(ctx, dir, path.Base(rel), &nfs.SetAttr{SetMode: true, Mode: uint32(mode.Perm() | ownerRights)})
	if errors.Is(err, fs.ErrExist) {
		var attr nfs.Attr
		fh, attr, err = t.LookupAttr(ctx, dir, path.Base(rel))
		if err == nil && attr.Type != nfs.TypeDir {
			err = errOtherInTheWay
		}
		before = &attr
	}
	if err == nil {
		t.openRemoteDir(ctx, rel, fh, before, mode)
	}
	return fh, err
}

// errOtherInTheWay is the reason why a directory is not copied.
var errOtherInTheWay = errors.New("a file on the server is in the way of this directory")

// putLink creates a symbolic link.
func (t *transfer) putLink(ctx context.Context, target string, dir nfs.FileHandle, name string) error {
	part, fh, err := t.symlinkPart(ctx, dir, target)
	if err != nil {
		return err
	}
	if err := t.renamePart(ctx, dir, fh, part, name); err != nil {
		t.discard(ctx, dir, part)
		return err
	}
	t.links++
	return nil
}

// Standard input is read in blocks: one is read while another is written.
const (
	StreamBlock  = 16 << 20 // bytes
	streamBlocks = 2
)

// inputBlock is a part of standard input.
type inputBlock struct {
	data []byte
	err  error // why it is the last block; io.EOF: the end
}

// putStream creates a file from the data of r.
func (t *transfer) putStream(ctx context.Context, r io.Reader) (err error) {
	if t.wantsDir {
		return errors.New("is a directory: standard input needs the name of a file")
	}
	dir, name, err := t.target(ctx, "")
	if err == nil && name == "" {
		err = errors.New("is a directory: standard input needs the name of a file")
	}
	if err != nil {
		return err
	}
	part, fh, err := t.createPart(ctx, dir.Handle, 0o644)
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			t.discard(ctx, dir.Handle, part)
		}
	}()
	defer t.Known.Add(fh, t.URL.Path)()
	// The reader may block forever; it then ends with the process.
	free, full := make(chan []byte, streamBlocks), make(chan inputBlock, streamBlocks)
	for range streamBlocks {
		free <- make([]byte, StreamBlock)
	}
	go func() {
		for buf := range free {
			n, err := io.ReadFull(r, buf)
			if err == io.ErrUnexpectedEOF {
				err = io.EOF
			}
			full <- inputBlock{buf[:n], err}
			if err != nil {
				return
			}
		}
	}()
	defer close(free)
	progress := t.meter.file()
	for off := int64(0); ; {
		var b inputBlock
		select {
		case b = <-full:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		if b.err != nil && b.err != io.EOF {
			return fmt.Errorf("standard input: %w", b.err)
		}
		n, err := t.WriteAt(ctx, fh, b.data, off)
		if err != nil {
			return err
		}
		off += int64(n)
		progress(off)
		if b.err == io.EOF {
			break
		}
		free <- b.data[:StreamBlock]
	}
	if err := t.renamePart(ctx, dir.Handle, fh, part, name); err != nil {
		return err
	}
	t.meter.finished()
	return nil
}
