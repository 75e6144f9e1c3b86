//go:build !linux

package main

import (
	"errors"
	"fmt"
	"io"
	"log/slog"

	"github.com/rpcrdma/rpcrdma/nfs/nfsd"
)

// openDir fails: directories of other systems are not exported.
func openDir(string, bool, *state, *slog.Logger) (nfsd.FS, io.Closer, error) {
	return nil, nil, fmt.Errorf("serving files needs Linux: %w", errors.ErrUnsupported)
}
