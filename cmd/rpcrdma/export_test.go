package main

import (
	"io/fs"
	"syscall"
	"testing"

	"github.com/rpcrdma/rpcrdma/nfs"
)

// TestScarceDescriptors: a server without descriptors has its clients try again, and does not
// tell them that there is something wrong with the file.
func TestScarceDescriptors(t *testing.T) {
	for _, errno := range []syscall.Errno{syscall.EMFILE, syscall.ENFILE} {
		if s := statusOf(&fs.PathError{Op: "open", Path: "x", Err: errno}); s != nfs.StatusJukebox {
			t.Errorf("%v: %v", errno, s)
		}
	}
}
