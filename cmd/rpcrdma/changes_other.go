//go:build !linux

package main

import (
	"io/fs"
	"os"
)

// keysFollow: a directory that has been renamed has to be watched anew.
const keysFollow = false

// watchLimit is how many directories may be watched.
func watchLimit() int { return maxWatched }

// slots is for systems where descriptors are watched.
type slots struct{}

// keep returns f, and its path, which is how fsnotify is to call it.
func (s *slots) keep(f *os.File, path string) (*os.File, string, error) { return f, path, nil }

// open opens a directory once more.
func (c *changes) open(d *watched) (*os.Root, error) { return c.root.OpenRoot(d.path()) }

// still fails unless what is at a path now, after it has been given to the system to
// watch, is what has been looked at.
func still(path string, info fs.FileInfo) error {
	now, err := os.Lstat(path)
	if err == nil && !os.SameFile(now, info) {
		err = errNotAlone
	}
	return err
}

// A fileID is what makes a file that one. Where paths are watched nobody needs it.
type fileID struct{}

// idOf is the ID of a file, if there is one.
func idOf(fs.FileInfo) (fileID, bool) { return fileID{}, false }
