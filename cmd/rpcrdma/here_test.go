package main

import (
	"bufio"
	"bytes"
	"context"
	"io"
	"sync"
	"testing"

	"github.com/spf13/cobra"
)

// A lineBuffer collects the output of a running process.
type lineBuffer struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (b *lineBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.Write(p)
}

func (b *lineBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.String()
}

// serveHere runs a serve command in this process until the test ends. It returns the line that the command
// prints when it is ready.
func serveHere(t *testing.T, cmd *cobra.Command, args ...string) (ready string) {
	t.Helper()
	cmd.SetArgs(append([]string{"--addr", "127.0.0.1:0", "--squash", "none"}, args...))
	cmd.SilenceErrors, cmd.SilenceUsage = true, true
	r, w := io.Pipe()
	var stderr lineBuffer
	cmd.SetOut(w)
	cmd.SetErr(&stderr)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() {
		err := cmd.ExecuteContext(ctx)
		w.CloseWithError(err)
		done <- err
	}()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("serve: %v\n%s", err, &stderr)
		}
	})
	ready, err := bufio.NewReader(r).ReadString('\n')
	if err != nil {
		t.Fatalf("serve says %q, %v\n%s", ready, err, &stderr)
	}
	return ready
}
