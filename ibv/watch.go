//go:build linux && cgo

package ibv

import (
	"context"
	"errors"
	"os"

	"github.com/rpcrdma/rpcrdma/internal/pollfd"
)

// A watch waits for events of a library descriptor, for one goroutine at a time.
type watch struct {
	fd   *pollfd.FD
	turn chan struct{} // holds a token while a goroutine waits
}

func newWatch(fd int, name string) (*watch, error) {
	p, err := pollfd.New(fd, name)
	if err != nil {
		return nil, err
	}
	return &watch{fd: p, turn: make(chan struct{}, 1)}, nil
}

// next calls take until it returns true or ctx is done. It calls take at least once, even if ctx is already done, but
// never after the watch is closed.
func (w *watch) next(ctx context.Context, take func() bool) error {
	select {
	case w.turn <- struct{}{}:
	default:
		select {
		case w.turn <- struct{}{}:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	defer func() { <-w.turn }()
	if ctx.Done() != nil {
		defer context.AfterFunc(ctx, w.fd.Wake)()
	}
	taken := false
	look := func() bool {
		taken = take()
		return taken || ctx.Err() != nil
	}
	for {
		// A Wake may arrive before take has been called, so look checks the context.
		switch err := w.fd.Await(look); {
		case errors.Is(err, os.ErrClosed):
			return ErrClosed
		case err == nil && !taken:
			return ctx.Err()
		case err != pollfd.ErrWoken:
			return err
		}
	}
}
