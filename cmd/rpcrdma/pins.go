//go:build pins

package main

// No build has this file. It keeps go.mod's choice of modules for commands that
// are being written; the first real import of one makes its line here
// superfluous.
import (
	_ "github.com/schollz/progressbar/v3"
	_ "github.com/willscott/go-nfs"
	_ "github.com/willscott/go-nfs/helpers"
	_ "golang.org/x/term"
)
