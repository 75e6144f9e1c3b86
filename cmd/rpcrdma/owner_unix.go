//go:build unix

package main

import (
	"io/fs"
	"os"
	"syscall"
)

// ownFile tells whether a file belongs to the user of this process.
func ownFile(info fs.FileInfo) bool {
	sys, ok := info.Sys().(*syscall.Stat_t)
	return ok && int(sys.Uid) == os.Geteuid()
}
