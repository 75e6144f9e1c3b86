//go:build !linux

package serving

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"

	"github.com/rpcrdma/rpcrdma/nfs/nfsd"
)

// OpenDir fails: directories can be exported only on Linux.
func OpenDir(string, bool, *State, *slog.Logger) (nfsd.FS, io.Closer, error) {
	return nil, nil, fmt.Errorf("serving files needs Linux: %w", errors.ErrUnsupported)
}

func permits(*os.File, bool, *nfsd.Caller) bool { return false }
