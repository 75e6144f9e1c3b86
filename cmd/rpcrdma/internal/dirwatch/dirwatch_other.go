//go:build !linux

package dirwatch

import (
	"io/fs"
	"os"
)

// keysFollow is unset because a renamed directory must be watched again under its new path.
const keysFollow = false

// watchLimit returns how many directories may be watched.
func watchLimit() int { return MaxDirs }

// slots has nothing to allocate, because paths are watched.
type slots struct{}

// keep returns f, and its path as the key for fsnotify.
func (s *slots) keep(f *os.File, path string) (*os.File, string, error) { return f, path, nil }

// open opens a directory again.
func (w *Watcher) open(d *watched) (*os.Root, error) { return w.root.OpenRoot(d.path()) }

// still fails unless the directory at a path, which is now being watched, is the one that info describes.
func still(path string, info fs.FileInfo) error {
	now, err := os.Lstat(path)
	if err == nil && !os.SameFile(now, info) {
		err = errReplaced
	}
	return err
}

// fileID is not needed, because paths are watched.
type fileID struct{}

// idOf returns no ID.
func idOf(fs.FileInfo) (fileID, bool) { return fileID{}, false }
