// Package cmdtest has helpers shared by tests of several packages of the command.
package cmdtest

import (
	"bufio"
	"bytes"
	"context"
	"io"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"testing"

	"github.com/spf13/cobra"

	"github.com/rpcrdma/rpcrdma/internal/testing/leak"
)

// Main runs the tests of a package, and fails if goroutines or descriptors outlive them.
func Main(m *testing.M) int {
	// The first use of signals starts a goroutine that stays. It must not be blamed on a command.
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGTERM)
	signal.Stop(signals)
	return leak.Main(m)
}

// A LineBuffer collects the output of a running command.
type LineBuffer struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

// Write implements io.Writer.
func (b *LineBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.Write(p)
}

func (b *LineBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.String()
}

// Serve runs a serve command in this process until the test ends. It returns the line that the command prints when
// ready.
func Serve(t *testing.T, cmd *cobra.Command, args ...string) (ready string) {
	t.Helper()
	cmd.SetArgs(append([]string{"--addr", "127.0.0.1:0", "--squash", "none"}, args...))
	cmd.SilenceErrors, cmd.SilenceUsage = true, true
	r, w := io.Pipe()
	var stderr LineBuffer
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
