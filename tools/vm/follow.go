//go:build linux

package main

import (
	"io"
	"os"
	"time"
)

// followInterval is how often a file is looked at: the command's output is late by that
// at most.
const followInterval = 50 * time.Millisecond

// stream is a file that grows, and where it is copied to.
type stream struct {
	from io.ReadCloser
	to   io.Writer
}

// streams are the guest's output to the user. The console is there and empty before QEMU is.
func (g *guest) streams() (list []stream, err error) {
	if err := os.WriteFile(g.console(), nil, 0o666); err != nil {
		return nil, err
	}
	type pair struct {
		path string
		to   *os.File
	}
	pairs := []pair{{g.file(controlStdout), g.stdout}, {g.file(controlStderr), g.stderr}}
	if g.opts.console {
		pairs = append(pairs, pair{g.console(), g.stderr})
	}
	for _, p := range pairs {
		f, err := os.Open(p.path)
		if err != nil {
			return nil, err
		}
		list = append(list, stream{f, p.to})
	}
	return list, nil
}

// follow copies the file as it grows, until ended is closed and all is copied. The error
// is an [outputError].
func (s stream) follow(ended <-chan struct{}) error {
	defer s.from.Close()
	look := time.NewTicker(followInterval)
	defer look.Stop()
	for last := false; ; {
		// Output written before the end is read after it.
		if _, err := io.Copy(s.to, s.from); err != nil {
			return &outputError{err}
		}
		if last {
			return nil
		}
		select {
		case <-look.C:
		case <-ended:
			last = true
		}
	}
}
