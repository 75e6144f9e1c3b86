package main

import (
	"syscall"

	gonfs "github.com/willscott/go-nfs"
)

// stat tells how full the file system of the export's directory is.
func (v *view) stat(s *gonfs.FSStat) error {
	dir, err := v.root.Open(".")
	if err != nil {
		return err
	}
	defer dir.Close()
	var st syscall.Statfs_t
	if err := syscall.Fstatfs(int(dir.Fd()), &st); err != nil {
		return err
	}
	block := uint64(st.Bsize)
	s.TotalSize, s.FreeSize, s.AvailableSize = st.Blocks*block, st.Bfree*block, st.Bavail*block
	s.TotalFiles, s.FreeFiles, s.AvailableFiles = st.Files, st.Ffree, st.Ffree
	if v.readOnly {
		s.AvailableSize, s.AvailableFiles = 0, 0
	}
	return nil
}
