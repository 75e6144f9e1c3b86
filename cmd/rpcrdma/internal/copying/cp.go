package copying

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"strings"

	"github.com/spf13/cobra"

	"github.com/rpcrdma/rpcrdma/cmd/rpcrdma/internal/cli"
	"github.com/rpcrdma/rpcrdma/cmd/rpcrdma/internal/explain"
	"github.com/rpcrdma/rpcrdma/cmd/rpcrdma/internal/remote"
	"github.com/rpcrdma/rpcrdma/nfs"
)

// NewCp returns the command cp.
func NewCp() *cobra.Command {
	var o transferOptions
	cmd := &cobra.Command{
		Use:        "cp FROM TO",
		SuggestFor: []string{"copy", "sync", "rsync"},
		Short:      "Copy files on an NFS server, or from one to another",
		Long: `Copy a file, or with -r a directory, on an NFS server or from one server to another. The
data passes through this machine, but not through its disk: NFS version 3 has no copy.

FROM and TO are nfs://HOST[:PORT]/EXPORT/PATH; the default port is 20049. TO is the name of
the copy, or a directory to put it into. With -r, the directory TO becomes a copy of FROM:
it is created if it does not exist, and other files in it are kept.

A file appears under its name only when it is complete and on the server's disk, and has not
changed during the copy. Symbolic links below FROM become symbolic links, wherever they lead.
Special files, files that cannot be read or written, and files that change meanwhile are
skipped: they are reported, everything else is copied, and the exit status is 1. Incomplete
copies made by this command, .rpcrdma-*.part, are not copied.

Copies have the permissions of their originals. A directory that is read-only for its owner
becomes read-only at the end, when it is complete. If the destination of a single file is a
symbolic link, the file that it leads to is replaced, and the link stays.

` + remote.RetryHelp + resumeHelp,
		Example: `  rpcrdma cp nfs://server/srv/data/report.pdf nfs://server/srv/data/report-2.pdf
  rpcrdma cp -r -P 32 nfs://old/srv/data nfs://new/srv/data`,
		ValidArgsFunction: cli.Positions(remote.CompleteURL, remote.CompleteURL),
		Args:              cli.WantArgs("FROM", "TO"),
		RunE: func(cmd *cobra.Command, args []string) (err error) {
			if err := checkDirection(cmd, args); err != nil {
				return err
			}
			from, err := o.ParseURL(cmd, args[0])
			if err != nil {
				return err
			}
			to, err := o.ParseURL(cmd, args[1])
			if err != nil {
				return err
			}
			if err := remote.CheckParallel(cmd, o.parallel); err != nil {
				return err
			}
			same := from.Addr() == to.Addr()
			ctx, src, err := o.Dial(cmd, from, "cp "+args[0])
			if err != nil {
				return err
			}
			var dst *remote.Target
			if same {
				shared := *src
				to.Port = from.Port // it may come from rpcbind
				shared.URL = to
				dst = &shared
			} else {
				defer func() { src.End(err == nil) }()
				if ctx, dst, err = o.DialWithin(ctx, cmd, to, "cp "+args[1]); err != nil {
					return err
				}
			}
			dst.Name = fmt.Sprintf("cp %s to %s", args[0], args[1])
			t, err := o.newTransfer(cmd, dst)
			t.from, t.sameServer = src, same
			t.wantsDir = strings.HasSuffix(args[1], "/")
			if err == nil {
				err = t.cp(ctx, src, o.recursive)
			}
			return t.finish(ctx, ResultJSON{From: from.String()}, cmd.OutOrStdout(), err)
		},
	}
	addTransferOptions(cmd, &o)
	return cmd
}

// cp copies the file or directory at the URL of from.
func (t *transfer) cp(ctx context.Context, from *remote.Target, recursive bool) error {
	node, err := from.Stat(ctx, from.URL.Path)
	switch {
	case err != nil:
		return remote.ReadError(err)
	case node.IsDir() && !recursive:
		return errIsDir
	case node.IsDir():
		return t.cpTree(ctx, from, node)
	case node.Attr.Type != nfs.TypeReg:
		return fmt.Errorf("is a %s, which cannot be copied", explain.TypeName(node.Attr.Type))
	}
	dir, name, err := t.target(ctx, path.Base(node.Path))
	if err != nil {
		return err
	}
	if t.sameServer {
		if there, _, err := t.Lookup(ctx, dir.Handle, name); err == nil && there == node.Handle {
			return errSameFile
		}
	}
	t.meter = newMeter(t.stderr, int64(min(node.Attr.Size, 1<<62)))
	defer t.meter.close()
	return t.cpFile(ctx, from, &node, remoteName{dir: dir.Handle, path: path.Join(dir.Path, name), name: name}, t.parallel)
}

// errSameFile is the reason why nothing is copied.
var errSameFile = errors.New("both are the same")

// isTarget reports whether a source directory is the target directory. A handle is meaningful only to its server (RFC
// 1813 section 2.5), and other servers may use equal ones. But two addresses may belong to one server: a name created
// in one directory then appears in the other.
func (t *transfer) isTarget(ctx context.Context, from *remote.Target, dir, target nfs.FileHandle) (bool, error) {
	if dir != target || t.sameServer {
		return dir == target, nil
	}
	part, _, err := t.createPart(ctx, target, 0o600)
	if err != nil {
		return false, err
	}
	defer t.discard(ctx, target, part)
	_, _, err = from.Lookup(ctx, dir, part)
	if remote.IsMissing(err) {
		return false, nil
	}
	return err == nil, remote.ReadError(err)
}

// cpFile copies a file from the other server.
func (t *transfer) cpFile(ctx context.Context, from *remote.Target, n *nfs.Node, to remoteName, parallel int) error {
	url := *from.URL
	url.Path = n.Path
	to.from = url.String()
	src := openRemote(ctx, from, n)
	defer src.Close()
	return t.putFile(ctx, src, to, parallel)
}

// branch is a directory of the copy on the path to where the tree is being walked.
type branch struct {
	rel string
	dir nfs.FileHandle
}

// cpTree makes the directory at the URL a copy of one on the other server. It copies files as it finds them, so memory
// does not limit their number.
func (t *transfer) cpTree(ctx context.Context, from *remote.Target, top nfs.Node) error {
	target, err := t.makeTop(ctx, top.Attr.FileMode())
	if err != nil {
		return err
	}
	if same, err := t.isTarget(ctx, from, top.Handle, target.Handle); err != nil {
		return err
	} else if same {
		return errSameFile
	}
	t.meter = newMeter(t.stderr, 1)
	defer t.meter.close()
	type item struct {
		rel string
		dir nfs.FileHandle // directory of the copy
		n   nfs.Node
	}
	files := newCopier(ctx, t.parallel, func(ctx context.Context, f item, parallel int) error {
		to := remoteName{dir: f.dir, path: path.Join(t.URL.Path, f.rel), name: path.Base(f.rel)}
		return t.pass(ctx, f.rel, t.cpFile(ctx, from, &f.n, to, parallel))
	})
	way := []branch{{"", target.Handle}}
	err = from.Walk(ctx, from.URL.Path, func(n nfs.Node, err error) error {
		rel := remote.Below(n.Path, top.Path)
		if name, ok := errors.AsType[*nfs.NameError](err); ok {
			t.skip(remote.InDir(rel, name.Name), "the name cannot be used here")
			return nil
		}
		if err != nil {
			if rel == "" {
				return explain.Item(".", remote.ReadError(err))
			}
			return t.pass(ctx, rel, remote.ReadError(err))
		}
		if n.IsDir() {
			from.Known.Add(n.Handle, n.Path)
		}
		if rel == "" {
			return nil
		}
		if same, err := t.isTarget(ctx, from, n.Handle, target.Handle); err != nil {
			return t.pass(ctx, rel, err)
		} else if same {
			return fs.SkipDir // this is the copy, inside the original
		}
		for len(way) > 1 && way[len(way)-1].rel != strings.TrimPrefix(path.Dir("/"+rel), "/") {
			way = way[:len(way)-1]
		}
		dir := way[len(way)-1].dir
		switch {
		case n.IsDir():
			fh, err := t.makeDir(ctx, dir, rel, n.Attr.FileMode())
			if err != nil {
				if err := t.pass(ctx, rel, err); err != nil {
					return err
				}
				return fs.SkipDir
			}
			t.dirs++
			way = append(way, branch{rel, fh})
		case n.Attr.Type == nfs.TypeReg && remote.IsPart(path.Base(rel)):
		case n.Attr.Type == nfs.TypeReg:
			t.meter.more(int64(min(n.Attr.Size, 1<<62)))
			return files.add(item{rel, dir, n}, int64(min(n.Attr.Size, 1<<62)))
		case n.Attr.Type == nfs.TypeLnk:
			target, err := from.ReadLink(ctx, n.Handle)
			if err = remote.ReadError(err); err == nil {
				err = t.putLink(ctx, target, dir, path.Base(rel))
			}
			return t.pass(ctx, rel, err)
		default:
			t.skip(rel, "it is a "+explain.TypeName(n.Attr.Type))
		}
		return nil
	})
	if err := files.wait(err); err != nil {
		return err
	}
	return t.finishRemoteDirs(ctx)
}
