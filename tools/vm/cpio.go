//go:build linux

package main

import (
	"fmt"
	"io"
)

// File types in the mode of a cpio header.
const (
	cpioDir  = 0o040000
	cpioFile = 0o100000
)

// cpioWriter writes an archive in the format that the kernel unpacks as its first root
// file system: "new ASCII", see Documentation/driver-api/early-userspace/buffer-format.rst
// of Linux. Errors stick: only close returns one.
type cpioWriter struct {
	w       io.Writer
	written int // number of bytes
	inode   int
	err     error
}

// dir adds a directory. Its parents must be added first.
func (c *cpioWriter) dir(name string) { c.entry(name, cpioDir|0o755, nil) }

// file adds a file.
func (c *cpioWriter) file(name string, perm int, content []byte) {
	c.entry(name, cpioFile|perm, content)
}

// close writes the end of the archive.
func (c *cpioWriter) close() error {
	c.entry("TRAILER!!!", 0, nil)
	return c.err
}

func (c *cpioWriter) entry(name string, mode int, content []byte) {
	c.inode++
	links := 1
	if mode&cpioDir != 0 {
		links = 2
	}
	// The length of the name includes the terminating zero byte. Owner, time, devices and checksum are zero.
	c.write(fmt.Appendf(nil, "070701%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%s\x00",
		c.inode, mode, 0, 0, links, 0, len(content), 0, 0, 0, 0, len(name)+1, 0, name))
	c.write(content)
}

// write writes bytes, padded with zeros to a multiple of four.
func (c *cpioWriter) write(p []byte) {
	if c.err != nil {
		return
	}
	padded := append(p[:len(p):len(p)], make([]byte, -(c.written+len(p))&3)...)
	_, c.err = c.w.Write(padded)
	c.written += len(padded)
}
