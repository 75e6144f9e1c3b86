//go:build !linux || !cgo

package verbs

import (
	"context"
	"net"
	"time"

	"github.com/rpcrdma/rpcrdma/rdmacm"
)

func serve(context.Context, net.Listener, string, func(string, ...any)) error {
	return rdmacm.ErrNotBuilt
}

func (o *options) step(context.Context, string, string, hello, func(int, time.Duration)) (*Row, error) {
	return nil, rdmacm.ErrNotBuilt
}
