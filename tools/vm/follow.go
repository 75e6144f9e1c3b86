//go:build linux

package main

import (
	"io"
	"os"
	"time"
)

// followInterval is how often a file is checked, and thus the longest delay of the command's output.
const followInterval = 50 * time.Millisecond

// stream is a growing file, and where it is copied to.
type stream struct {
	from io.ReadCloser
	to   io.Writer
}

// streams returns the guest's output for the user. The console exists and is empty before QEMU starts.
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

// follow copies the file as it grows, until ended is closed and everything is copied. The error is an [outputError].
func (s stream) follow(ended <-chan struct{}) error {
	defer s.from.Close()
	look := time.NewTicker(followInterval)
	defer look.Stop()
	for last := false; ; {
		// Read after the end, to get all output written before it.
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
