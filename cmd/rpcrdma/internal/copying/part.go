package copying

import (
	"context"

	"github.com/rpcrdma/rpcrdma/cmd/rpcrdma/internal/remote"
	"github.com/rpcrdma/rpcrdma/nfs"
)

// createPart creates an empty file with a unique name in a directory.
func (t *transfer) createPart(ctx context.Context, dir nfs.FileHandle, mode uint32) (string, nfs.FileHandle, error) {
	part := remote.PartName()
	fh, _, err := t.Create(ctx, &nfs.CreateArgs{
		Where: nfs.DirOpArgs{Dir: dir, Name: part},
		Mode:  nfs.Guarded,
		Attr:  nfs.SetAttr{SetMode: true, Mode: mode},
	})
	if remote.IsStatus(err, nfs.StatusExist) && t.Resent() {
		// No other process knows the name.
		fh, err = t.ours(ctx, dir, part, nfs.TypeReg)
	}
	return part, fh, err
}

// symlinkPart creates a symbolic link with a unique name in a directory.
func (t *transfer) symlinkPart(ctx context.Context, dir nfs.FileHandle, target string) (string, nfs.FileHandle, error) {
	part := remote.PartName()
	fh, _, err := t.Symlink(ctx, dir, part, target, new(nfs.SetAttr))
	if remote.IsStatus(err, nfs.StatusExist) && t.Resent() {
		fh, err = t.ours(ctx, dir, part, nfs.TypeLnk)
	}
	return part, fh, err
}

// ours looks up what a call has created if its reply was lost.
func (t *transfer) ours(ctx context.Context, dir nfs.FileHandle, name string, kind nfs.FileType) (nfs.FileHandle, error) {
	fh, attr, err := t.LookupAttr(ctx, dir, name)
	if err == nil && attr.Type != kind {
		err = &nfs.Error{Op: "CREATE", Status: nfs.StatusExist}
	}
	return fh, err
}

// renamePart renames the result of createPart or symlinkPart to its final name.
func (t *transfer) renamePart(ctx context.Context, dir, fh nfs.FileHandle, part, name string) error {
	err := t.Rename(ctx, dir, part, dir, name)
	if remote.IsMissing(err) && t.Resent() {
		if there, attr, e := t.LookupAttr(ctx, dir, name); e == nil && t.SameFile(ctx, fh, there, attr) {
			return nil // the first attempt succeeded
		}
	}
	return err
}
