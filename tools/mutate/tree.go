package main

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/rpcrdma/rpcrdma/internal/limited"
)

// gitLimit is more time than git ever needs here.
const gitLimit = time.Minute

// git runs git in a directory and returns its output.
func git(ctx context.Context, dir string, args ...string) (string, error) {
	cmd := exec.Command("git", args...)
	cmd.Dir = dir
	r, err := (&limited.Program{Cmd: cmd, Limit: gitLimit, MaxOutput: maxOutput}).Run(ctx)
	if exit := (*exec.ExitError)(nil); errors.As(err, &exit) {
		err = errors.New(strings.ReplaceAll(r.Said(), "\n", "; "))
	}
	return string(r.Stdout), err
}

// copyTree copies the files of the repository at root that git does not ignore, in their current state, to a directory.
func copyTree(ctx context.Context, root, to string) error {
	list, err := git(ctx, root, "ls-files", "-z", "--cached", "--others", "--exclude-standard")
	if err != nil {
		return err
	}
	for name := range strings.SplitSeq(strings.TrimSuffix(list, "\x00"), "\x00") {
		if err := copyFile(filepath.Join(root, name), filepath.Join(to, name)); err != nil {
			return err
		}
	}
	return nil
}

// copyFile copies a file or a symbolic link. A file listed by git may have been deleted.
func copyFile(from, to string) error {
	info, err := os.Lstat(from)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(to), 0o777); err != nil {
		return err
	}
	if info.Mode()&fs.ModeSymlink != 0 {
		target, err := os.Readlink(from)
		if err != nil {
			return err
		}
		return os.Symlink(target, to)
	}
	b, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	return os.WriteFile(to, b, info.Mode().Perm())
}
