package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/rpcrdma/rpcrdma/internal/limited"
)

// gitLimit is more than git ever takes here.
const gitLimit = time.Minute

// git runs git, in a directory.
func git(ctx context.Context, dir string, input []byte, args ...string) (string, error) {
	cmd := exec.Command("git", args...)
	cmd.Dir = dir
	cmd.Stdin = bytes.NewReader(input)
	// A directory for temporary files may be in somebody's repository: git apply would
	// look for the files at its top.
	cmd.Env = append(os.Environ(), "GIT_CEILING_DIRECTORIES="+filepath.Dir(dir), "LC_ALL=C")
	r, err := (&limited.Program{Cmd: cmd, Limit: gitLimit, MaxOutput: maxOutput}).Run(ctx)
	if exit := (*exec.ExitError)(nil); errors.As(err, &exit) {
		err = errors.New(strings.ReplaceAll(r.Said(), "\n", "; "))
	}
	return string(r.Stdout), err
}

// applies reports why a patch does not apply to a tree.
func applies(ctx context.Context, tree string, d *defect) error {
	if _, err := git(ctx, tree, d.patch, "apply", "--check", "-"); err != nil {
		return fmt.Errorf("the patch does not apply: %w", err)
	}
	return nil
}

// copyTree copies the files of the repository at root that git does not ignore, as they
// are now, to a directory.
func copyTree(ctx context.Context, root, to string) error {
	list, err := git(ctx, root, nil, "ls-files", "-z", "--cached", "--others", "--exclude-standard")
	if err != nil {
		return err
	}
	for _, name := range strings.Split(strings.TrimSuffix(list, "\x00"), "\x00") {
		from := filepath.Join(root, name)
		info, err := os.Lstat(from)
		if errors.Is(err, fs.ErrNotExist) {
			continue // deleted, and not yet for git
		}
		if err != nil {
			return err
		}
		at := filepath.Join(to, name)
		if err := os.MkdirAll(filepath.Dir(at), 0o777); err != nil {
			return err
		}
		if info.Mode()&fs.ModeSymlink != 0 {
			target, err := os.Readlink(from)
			if err == nil {
				err = os.Symlink(target, at)
			}
			if err != nil {
				return err
			}
			continue
		}
		b, err := os.ReadFile(from)
		if err == nil {
			err = os.WriteFile(at, b, info.Mode().Perm())
		}
		if err != nil {
			return err
		}
	}
	return nil
}
