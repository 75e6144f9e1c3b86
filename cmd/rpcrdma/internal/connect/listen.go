package connect

import (
	"errors"
	"fmt"
	"strings"
	"syscall"

	"github.com/rpcrdma/rpcrdma/cmd/rpcrdma/internal/explain"
)

// A ListenError reports an address on which the command cannot listen.
type ListenError struct {
	Flag string // flag with the address
	Addr string
	Err  error
}

func (e *ListenError) Error() string { return e.Explain() }

func (e *ListenError) Unwrap() error { return e.Err }

// Explain mentions the address only once.
func (e *ListenError) Explain() string {
	text, ok := explain.RDMA(e.Err)
	if !ok {
		text = fmt.Sprintf("listening on %s: %s", explain.Printable(e.Addr), explain.Text(e.Err))
	}
	var errno syscall.Errno
	if !errors.As(e.Err, &errno) {
		return text
	}
	switch {
	case strings.HasSuffix(text, syscall.EADDRINUSE.Error()):
		text += fmt.Sprintf(": stop what has it, or give --%s another port, 0 for a free one", e.Flag)
	case !ok && errno == syscall.EADDRNOTAVAIL:
		text = fmt.Sprintf("listening on %s: this machine does not have the address: give one that it has, or :PORT for all", explain.Printable(e.Addr))
	case !ok && errno == syscall.EACCES:
		text += ": ports below 1024 are for root"
	}
	return text
}
