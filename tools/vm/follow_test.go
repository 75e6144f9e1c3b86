//go:build linux

package main

import (
	"bytes"
	"errors"
	"io"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// growing is a file in memory that grows while it is read.
type growing struct {
	mu   sync.Mutex
	rest []byte
}

func (g *growing) add(text string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.rest = append(g.rest, text...)
}

func (g *growing) Read(p []byte) (int, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if len(g.rest) == 0 {
		return 0, io.EOF
	}
	n := copy(p, g.rest)
	g.rest = g.rest[n:]
	return n, nil
}

func (g *growing) Close() error { return nil }

// TestFollow: what is written is seen soon, and what was written last before the end is
// not lost.
func TestFollow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var from growing
		var to bytes.Buffer
		ended, done := make(chan struct{}), make(chan error, 1)
		go func() { done <- stream{&from, &to}.follow(ended) }()
		from.add("one ")
		time.Sleep(followInterval + 1)
		synctest.Wait()
		if to.String() != "one " {
			t.Errorf("after an interval: %q", to.String())
		}
		from.add("two")
		close(ended)
		if err := <-done; err != nil || to.String() != "one two" {
			t.Errorf("at the end: %q, %v", to.String(), err)
		}
	})
}

// TestFollowUnread: a copy that cannot be written ends at once.
func TestFollowUnread(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var from growing
		from.add("text")
		r, w := io.Pipe()
		r.Close()
		var lost *outputError
		if err := (stream{&from, w}).follow(nil); !errors.As(err, &lost) || !errors.Is(err, io.ErrClosedPipe) {
			t.Errorf("%v", err)
		}
	})
}
