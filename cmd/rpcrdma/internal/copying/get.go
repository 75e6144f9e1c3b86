package copying

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"github.com/rpcrdma/rpcrdma/cmd/rpcrdma/internal/cli"
	"github.com/rpcrdma/rpcrdma/cmd/rpcrdma/internal/explain"
	"github.com/rpcrdma/rpcrdma/cmd/rpcrdma/internal/remote"
	"github.com/rpcrdma/rpcrdma/nfs"
)

// NewGet returns the command get.
func NewGet() *cobra.Command {
	var o transferOptions
	cmd := &cobra.Command{
		Use:        "get URL [LOCAL]",
		SuggestFor: []string{"download", "fetch", "pull"},
		Short:      "Copy files from an NFS server",
		Long: `Copy a file, or with -r a directory, from an NFS server.

URL is nfs://HOST[:PORT]/EXPORT/PATH; the default port is 20049. LOCAL is the name of the
copy, or a directory to put it into. With -r, LOCAL becomes a copy of the directory: it is
created if it does not exist, and other files in it are kept. Without LOCAL, the copy goes to
the working directory, under its name on the server. If LOCAL is -, a single file goes to
standard output; to name a file "-", use ./-.

A file appears under its name only when it is complete and has not changed during the copy.
Symbolic links below the directory become symbolic links if they lead to something in it.
Links that lead out of it, special files, files that the server refuses to read, and files
that change while they are copied are skipped: they are reported, everything else is copied,
and the exit status is 1. Incomplete copies made by this command, .rpcrdma-*.part, are not
copied.

Copies have the permissions of their originals, within the umask. A directory that is
read-only for its owner becomes read-only at the end, when it is complete.

` + remote.RetryHelp + resumeHelp,
		Example: `  rpcrdma get nfs://server/srv/data/report.pdf
  rpcrdma get nfs://server/srv/data/report.pdf - | lp
  rpcrdma get -r -P 32 nfs://server/srv/data copy-of-data
  rpcrdma get -r --resume --retry 10m nfs://server/srv/data copy-of-data`,
		ValidArgsFunction: cli.Positions(remote.CompleteURL, cli.Files),
		Args:              cli.WantArgs("URL", "[LOCAL]"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := checkDirection(cmd, args); err != nil {
				return err
			}
			u, err := o.ParseURL(cmd, args[0])
			if err != nil {
				return err
			}
			if err := remote.CheckParallel(cmd, o.parallel); err != nil {
				return err
			}
			local, err := copyName(args, u, o.recursive)
			if err != nil {
				return cli.Usage(cmd, err)
			}
			toStdout := local == "-"
			if toStdout && (o.recursive || o.JSON || o.resume) {
				return cli.Usage(cmd, errors.New("only one file goes to standard output: - is not for -r and --json, nor for --resume"))
			}
			ctx, r, err := o.Dial(cmd, u, "get "+args[0])
			if err != nil {
				return err
			}
			t, err := o.newTransfer(cmd, r)
			switch {
			case err != nil:
			case toStdout:
				err = printFile(ctx, r, cmd.OutOrStdout(), o.parallel)
			default:
				err = t.get(ctx, local, o.recursive)
			}
			return t.finish(ctx, ResultJSON{Local: local}, cmd.OutOrStdout(), err)
		},
	}
	addTransferOptions(cmd, &o)
	return cmd
}

// copyName returns the local path for the copy of a URL: LOCAL, or its own name in the working directory.
func copyName(args []string, u *nfs.URL, recursive bool) (string, error) {
	name := path.Base(u.Path)
	switch {
	case len(args) == 2:
		return args[1], nil
	case !recursive:
		return ".", nil
	case !nfs.ValidName(name):
		return "", fmt.Errorf("the copy of %s needs a name: give LOCAL", u.Path)
	}
	return name, nil
}

// get copies the file or directory at the URL.
func (t *transfer) get(ctx context.Context, local string, recursive bool) error {
	node, err := t.Stat(ctx, t.URL.Path)
	if err != nil {
		return err
	}
	if node.IsDir() {
		if !recursive {
			return errIsDir
		}
		return t.getTree(ctx, node, local)
	}
	if node.Attr.Type != nfs.TypeReg {
		return fmt.Errorf("is a %s, which cannot be copied", explain.TypeName(node.Attr.Type))
	}
	dir, name := filepath.Split(filepath.Clean(local))
	if info, err := os.Stat(local); err == nil && info.IsDir() || strings.HasSuffix(local, string(filepath.Separator)) {
		if dir, name = local, path.Base(node.Path); !nfs.ValidName(name) {
			return &nfs.NameError{Name: name}
		}
	}
	// A link to a device would be replaced too, and root is permitted to.
	if info, err := os.Stat(filepath.Join(dir, name)); err == nil && special(info.Mode()) {
		return &fs.PathError{Op: "rename", Path: filepath.Join(dir, name), Err: errSpecialInTheWay}
	}
	root, err := os.OpenRoot(filepath.Clean(dir))
	if err != nil {
		return err
	}
	defer root.Close()
	if node.Attr.Size > 1<<62 {
		return &nfs.Error{Op: "READ", Status: nfs.StatusFBig}
	}
	t.meter = newMeter(t.stderr, int64(node.Attr.Size))
	defer t.meter.close()
	return t.getLatest(ctx, localName{root, filepath.Clean(dir), name}, &node, t.parallel)
}

// localName is the destination of a local copy.
type localName struct {
	root *os.Root
	dir  string // below root
	name string // in dir
}

// named replaces the name of the incomplete copy in an error by that of the copy, which the user knows.
func (l localName) named(err error) error {
	if path, ok := errors.AsType[*fs.PathError](err); ok && remote.IsPart(filepath.Base(path.Path)) {
		return &fs.PathError{Op: path.Op, Path: filepath.Join(l.dir, l.name), Err: path.Err}
	}
	return err
}

// getTries is how often a small file that keeps changing is read, and how often a file that was replaced is looked up.
const getTries = 3

// getLatest is getFile for a file that may be replaced meanwhile, as programs that save files do. Its handle is then
// stale, and getLatest copies the file that has its name now.
func (t *transfer) getLatest(ctx context.Context, to localName, node *nfs.Node, parallel int) error {
	for try := 1; ; try++ {
		err := t.getFile(ctx, to, node, parallel)
		if try == getTries || !remote.IsStatus(err, nfs.StatusStale) {
			return err
		}
		now, e := t.Lstat(ctx, node.Path)
		if e != nil || now.Attr.Type != nfs.TypeReg || now.Handle == node.Handle {
			return err
		}
		node = &now
	}
}

// getFile copies a file to a name, where it appears once complete.
func (t *transfer) getFile(ctx context.Context, to localName, node *nfs.Node, parallel int) (err error) {
	defer t.Known.Add(node.Handle, node.Path)()
	there, err := to.root.Lstat(to.name)
	if err == nil && special(there.Mode()) {
		return &fs.PathError{Op: "rename", Path: to.name, Err: errSpecialInTheWay}
	}
	attr := node.Attr
	large := attr.Size > smallFile
	if large {
		// Large files are copied last: the listing may be hours old.
		if attr, err = t.GetAttr(ctx, node.Handle); err != nil {
			return err
		}
	}
	v, err := versionOf(&attr)
	if err != nil {
		return err
	}
	if t.records != "" {
		if there != nil && there.Mode().IsRegular() && v.isCopy(there.Size(), nfs.TimeOf(there.ModTime())) {
			t.meter.spare(v.Size)
			t.has()
			return nil
		}
	}
	if t.records != "" {
		from, path, err := t.recorded(to, node)
		switch {
		case err != nil:
			return err
		case v.Size >= ResumeLeast:
			rec, err := openRecord(t.records, from, path, v)
			if err != nil {
				return err
			}
			return t.getLarge(ctx, to, node, attr, v, rec, parallel)
		}
		if err := dropRecord(t.records, from, path, func(part string) { to.root.Remove(part) }); err != nil {
			return err
		}
	}
	part := remote.PartName()
	f, err := to.root.OpenFile(part, os.O_WRONLY|os.O_CREATE|os.O_EXCL, attr.FileMode().Perm())
	if err != nil {
		return to.named(err)
	}
	defer func() {
		if err != nil {
			f.Close()
			to.root.Remove(part)
		}
	}()
	progress := t.meter.file()
	for try := 1; ; try++ {
		_, err = t.Download(ctx, node.Handle, int64(attr.Size), &inTurn{file: f}, &nfs.TransferOptions{
			Parallel: parallel, Progress: progress, Before: &attr,
		})
		changed, ok := errors.AsType[*nfs.ChangedError](err)
		if large || try == getTries || !ok || changed.After.Size > smallFile {
			break
		}
		// The file was modified after it was listed.
		attr = changed.After
		if err := f.Truncate(0); err != nil {
			return err
		}
	}
	if err != nil {
		return to.named(shorter(err))
	}
	if err := f.Close(); err != nil {
		return err
	}
	return t.gotFile(to, part, attr.MTime)
}

// inTurn serializes the writes to a file. Linux does that too, with a lock that blocks threads, and the Go runtime
// starts more of them meanwhile.
type inTurn struct {
	mu   sync.Mutex
	file interface {
		io.WriterAt
		Sync() error
	}
}

func (f *inTurn) WriteAt(p []byte, off int64) (int, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.file.WriteAt(p, off)
}

// special reports whether a file is one that a copy must not replace: a device, a fifo or a socket.
func special(m fs.FileMode) bool { return m&(fs.ModeDevice|fs.ModeNamedPipe|fs.ModeSocket) != 0 }

// errSpecialInTheWay is the reason why a file is not copied.
var errSpecialInTheWay = errors.New("is a special file, which is not replaced; - is standard output")

// gotFile renames a complete copy to its final name.
func (t *transfer) gotFile(to localName, part string, mtime nfs.Time) error {
	if t.records != "" {
		if err := to.root.Chtimes(part, time.Time{}, mtime.Time()); err != nil {
			return err
		}
	}
	if err := to.root.Rename(part, to.name); err != nil {
		return err
	}
	t.meter.finished()
	return nil
}

// recorded returns the names of a file and its copy for a record.
func (t *transfer) recorded(to localName, node *nfs.Node) (from, path string, err error) {
	url := *t.URL
	url.Path = node.Path
	path, err = filepath.Abs(filepath.Join(to.dir, to.name))
	return url.String(), path, err
}

// getLarge is getFile for a file with a record, which it closes.
func (t *transfer) getLarge(
	ctx context.Context, to localName, node *nfs.Node, attr nfs.Attr, v version, rec *record, parallel int,
) (err error) {
	keep := false
	defer func() { rec.close(keep) }()
	perm := attr.FileMode().Perm()
	f, err := openPart(to, rec, perm)
	if err != nil {
		return to.named(err)
	}
	part := rec.Part
	defer func() {
		if err == nil {
			return
		}
		f.Close()
		// If the file has changed, the part is useless.
		if rec.Done == 0 || isChanged(err) {
			to.root.Remove(part)
			return
		}
		keep, err = true, &keptError{err, rec.Done}
	}()
	if err := t.download(ctx, node, &attr, v, rec, &inTurn{file: f}, parallel); err != nil {
		return to.named(shorter(err))
	}
	if more := 0o600 &^ perm; more != 0 { // added so that the part could be reopened
		info, err := f.Stat()
		if err != nil {
			return err
		}
		if err := f.Chmod(info.Mode().Perm() &^ more); err != nil {
			return err
		}
	}
	if err := f.Close(); err != nil {
		return err
	}
	return t.gotFile(to, part, attr.MTime)
}

// download copies the missing part of a file.
func (t *transfer) download(ctx context.Context, node *nfs.Node, before *nfs.Attr, v version, rec *record, out *inTurn, parallel int) error {
	t.meter.spare(rec.Done)
	progress, moved := t.meter.file(), int64(0)
	return steps(rec.Done, v.Size, func(from, to int64) error {
		n, err := t.Download(ctx, node.Handle, to, out, &nfs.TransferOptions{
			Parallel: parallel, Offset: from, Before: before, Progress: func(n int64) { progress(moved + n) },
		})
		if err == nil {
			err = out.file.Sync()
		}
		if err != nil {
			return err
		}
		moved += n
		return rec.save(to)
	})
}

// openPart opens the incomplete copy of a record, or creates one.
func openPart(to localName, rec *record, perm fs.FileMode) (*os.File, error) {
	if rec.Part != "" {
		// Only write to a file of our own.
		info, err := to.root.Lstat(rec.Part)
		if err == nil && info.Mode().IsRegular() && info.Size() >= rec.Done {
			if f, err := to.root.OpenFile(rec.Part, os.O_WRONLY, 0); err == nil {
				return f, nil
			}
		}
	}
	if stale := rec.anew(); stale != "" {
		// It may be gone already.
		to.root.Remove(stale)
	}
	rec.Part = remote.PartName()
	f, err := to.root.OpenFile(rec.Part, os.O_WRONLY|os.O_CREATE|os.O_EXCL, perm|0o600)
	if err != nil {
		return nil, err
	}
	if err := rec.save(0); err != nil {
		f.Close()
		to.root.Remove(rec.Part)
		return nil, err
	}
	return f, nil
}

// found is an object below the directory being copied.
type found struct {
	rel  string // path below LOCAL
	node nfs.Node
}

// getTree makes local a copy of a directory. It copies files as it finds them, so memory does not limit their number.
// Names come from the server: os.Root prevents them, and links on their paths, from leading out of local.
func (t *transfer) getTree(ctx context.Context, top nfs.Node, local string) error {
	var root *os.Root // nil until something is found
	var dirs *folders // of root
	local = filepath.Clean(local)
	open := func() (err error) {
		if root != nil {
			return nil
		}
		if err := os.MkdirAll(filepath.Dir(local), 0o777); err != nil {
			return err
		}
		mode := top.Attr.FileMode().Perm()
		made := os.Mkdir(local, mode|ownerRights)
		if made != nil && !errors.Is(made, fs.ErrExist) {
			return made
		}
		if root, err = os.OpenRoot(local); err != nil {
			return err
		}
		dirs = newFolders(root)
		info, err := root.Lstat(".")
		if err == nil && (made == nil || t.mayBeOurs(uint32(info.Mode()))) {
			t.open(root, ".", mode)
		}
		return err
	}
	defer func() {
		if root != nil {
			dirs.close()
			root.Close()
		}
	}()
	t.meter = newMeter(t.stderr, 1)
	defer t.meter.close()
	files := newCopier(ctx, t.parallel, func(ctx context.Context, f found, parallel int) error {
		dir, err := dirs.enter(filepath.Dir(f.rel))
		if err == nil {
			to := localName{dir.Root, filepath.Join(local, dir.path), filepath.Base(f.rel)}
			err = t.getLatest(ctx, to, &f.node, parallel)
			dirs.leave(dir)
		}
		return t.pass(ctx, filepath.ToSlash(f.rel), err)
	})
	var links []found
	more := false
	err := t.Walk(ctx, t.URL.Path, func(n nfs.Node, err error) error {
		rel := remote.Below(n.Path, top.Path)
		var name *nfs.NameError
		switch {
		case errors.As(err, &name):
			t.skip(remote.InDir(rel, name.Name), "the name cannot be used here")
			return nil
		case err != nil && rel != "":
			return t.pass(ctx, rel, err)
		case err != nil:
			return explain.Item(".", err)
		case n.IsDir():
			t.Known.Add(n.Handle, n.Path)
		}
		if rel == "" || n.Attr.Type == nfs.TypeReg && remote.IsPart(path.Base(rel)) {
			return nil
		}
		if err := open(); err != nil {
			return err
		}
		f := found{filepath.FromSlash(rel), n}
		switch {
		case n.Attr.Type == nfs.TypeDir:
			err := t.getDir(root, f)
			if err == nil {
				return nil
			}
			return cmp.Or(t.pass(ctx, rel, err), fs.SkipDir)
		case n.Attr.Type == nfs.TypeReg && n.Attr.Size > 1<<62:
			t.skip(rel, explain.Text(&nfs.Error{Op: "READ", Status: nfs.StatusFBig}))
		case n.Attr.Type == nfs.TypeReg:
			t.meter.more(int64(n.Attr.Size))
			return files.add(f, int64(n.Attr.Size))
		case n.Attr.Type == nfs.TypeLnk:
			if len(links) < MaxLinks {
				links = append(links, f)
			} else {
				more = true
			}
		default:
			t.skip(rel, "it is a "+explain.TypeName(n.Attr.Type))
		}
		return nil
	})
	if err == nil {
		err = open() // the directory is empty
	}
	if err := files.wait(err); err != nil {
		return err
	}
	// Create links last, so that nothing is written through one, and the directories in their targets exist.
	if more {
		if err := t.getLinks(ctx, root, top); err != nil {
			return err
		}
		links = nil
	}
	for _, l := range links {
		if err := t.pass(ctx, filepath.ToSlash(l.rel), t.getLink(ctx, root, l)); err != nil {
			return err
		}
	}
	return t.finishDirs(ctx, func(d openedDir) error {
		info, err := root.Lstat(d.rel)
		if err != nil || uint32(info.Mode())&d.more == 0 {
			return err
		}
		return root.Chmod(d.rel, info.Mode()&^fs.FileMode(d.more))
	})
}

// mayBeOurs reports whether the existing top of a copy, which has the given mode, may come from an earlier copy: one
// that was interrupted, or one that is read-only like its original.
func (t *transfer) mayBeOurs(mode uint32) bool { return t.records != "" || ownerRights&^mode != 0 }

// open gives the owner of a local directory the rights to fill it until the copy is complete. mode is that of the
// original.
func (t *transfer) open(root *os.Root, rel string, mode fs.FileMode) {
	more := ownerRights &^ mode.Perm()
	if more == 0 {
		return
	}
	if info, err := root.Lstat(rel); err == nil && more&^info.Mode() != 0 {
		_ = root.Chmod(rel, info.Mode()|more) // failures to create files in it are reported
	}
	t.opened = append(t.opened, openedDir{rel: filepath.ToSlash(rel), more: uint32(more)})
}

// finishDirs removes the additional rights from the directories of a complete copy.
func (t *transfer) finishDirs(ctx context.Context, finish func(openedDir) error) error {
	for _, d := range slices.Backward(t.opened) { // subdirectories come first
		if err := t.pass(ctx, d.rel, finish(d)); err != nil {
			return err
		}
	}
	return nil
}

// MaxLinks is how many symbolic links are remembered until all files are copied. If there are more, the tree is listed
// again for them.
const MaxLinks = 1 << 14

// getLinks copies all symbolic links below a directory. Other errors of the directory have already been reported.
func (t *transfer) getLinks(ctx context.Context, root *os.Root, top nfs.Node) error {
	return t.Walk(ctx, t.URL.Path, func(n nfs.Node, err error) error {
		rel := remote.Below(n.Path, top.Path)
		local := filepath.FromSlash(rel)
		switch {
		case err != nil && passable(ctx, err):
			return nil
		case err != nil:
			return explain.Item(cmp.Or(rel, "."), err)
		case n.IsDir() && rel != "":
			if info, err := root.Stat(local); err != nil || !info.IsDir() {
				return fs.SkipDir
			}
		case n.Attr.Type == nfs.TypeLnk:
			return t.pass(ctx, rel, t.getLink(ctx, root, found{local, n}))
		}
		return nil
	})
}

// getDir creates a directory unless it exists.
func (t *transfer) getDir(root *os.Root, d found) error {
	mode := d.node.Attr.FileMode().Perm()
	err := root.Mkdir(d.rel, mode|ownerRights)
	if errors.Is(err, fs.ErrExist) {
		var info fs.FileInfo
		if info, err = root.Stat(d.rel); err == nil && !info.IsDir() {
			err = errInTheWay
		}
	}
	if err == nil {
		t.open(root, d.rel, mode)
		t.dirs++
	}
	return err
}

// errInTheWay is the reason why a directory is not copied.
var errInTheWay = errors.New("a local file is in the way of this directory")

// getLink copies a symbolic link if it stays below LOCAL.
func (t *transfer) getLink(ctx context.Context, root *os.Root, l found) error {
	defer t.Known.Add(l.node.Handle, l.node.Path)()
	target, err := t.ReadLink(ctx, l.node.Handle)
	if err != nil {
		return err
	}
	rel := filepath.ToSlash(l.rel)
	if !staysBelow(root, rel, target) {
		t.skip(rel, "it is a link that leads out, to "+explain.Printable(target))
		return nil
	}
	if there, err := root.Lstat(l.rel); err == nil && special(there.Mode()) {
		return &fs.PathError{Op: "rename", Path: l.rel, Err: errSpecialInTheWay}
	}
	part := filepath.Join(filepath.Dir(l.rel), remote.PartName())
	if err := root.Symlink(filepath.FromSlash(target), part); err != nil {
		return err
	}
	if err := root.Rename(part, l.rel); err != nil {
		root.Remove(part)
		return err
	}
	t.links++
	return nil
}

// staysBelow reports whether a link at rel with this target leads to something in the same tree, whatever other links
// exist or are created later, provided that it holds for each of them.
//
// ".." leads to the real parent of the directory before it. It may therefore follow only real directories: those above
// the link, and those named by the target. The copy never replaces a directory by a link. Names without a ".." after
// them lead down, or through other links, which themselves stay below.
func staysBelow(root *os.Root, rel, target string) bool {
	if target == "" || strings.ContainsRune(target, 0) || path.IsAbs(target) || filepath.IsAbs(filepath.FromSlash(target)) {
		return false
	}
	var way []string
	if dir := path.Dir(rel); dir != "." {
		way = strings.Split(dir, "/")
	}
	known := 0 // elements of way that are real directories
	for _, name := range strings.FieldsFunc(target, func(r rune) bool { return r == '/' || r < 0x80 && os.IsPathSeparator(uint8(r)) }) {
		switch name {
		case ".":
		case "..":
			if len(way) == 0 {
				return false
			}
			for ; known < len(way); known++ {
				info, err := root.Lstat(filepath.Join(way[:known+1]...))
				if err != nil || !info.IsDir() {
					return false
				}
			}
			way = way[:len(way)-1]
			known = len(way)
		default:
			way = append(way, name)
		}
	}
	return filepath.IsLocal(filepath.Join(append(way, ".")...))
}
