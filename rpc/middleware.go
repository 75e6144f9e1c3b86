package rpc

import (
	"context"

	"github.com/rpcrdma/rpcrdma/internal/origin"
)

// A Middleware wraps a Handler: it returns one that does something before and after it calls next, or instead. Before,
// it sees the call, and may refuse it (Response.Reject), change its arguments (Request.SetArgs) or put values into the
// context. Afterwards it sees the outcome (Response.Status, Size), which it may change (Response.Join, Results, Verf).
// Config.Middleware wraps all handlers of a client or server; Chain wraps the handler of one program. A panic is
// treated like a handler's: it passes through the outer wrappers, is recovered by the transport, and is answered with
// SYSTEM_ERR.
type Middleware func(next Handler) Handler

// Chain returns h wrapped by wrappers, the first outermost. Without wrappers it returns h itself.
func Chain(h Handler, wrappers ...Middleware) Handler {
	for i := len(wrappers) - 1; i >= 0 && h != nil; i-- {
		h = wrappers[i](h)
	}
	return h
}

// ConnFromContext returns the connection of the call that ctx belongs to: ctx is the context of its handler, or derived
// from it. It returns nil if there is no such call. It is Request.Conn for code without the request.
func ConnFromContext(ctx context.Context) Conn {
	cn, _ := ctx.Value(origin.ConnKey{}).(Conn)
	return cn
}

// IsInline reports whether ctx is the context of an Inline handler, or derived from one: its goroutine drives the
// connection and must not wait.
func IsInline(ctx context.Context) bool { return ctx.Value(origin.InlineKey{}) != nil }

// Aside returns ctx for a goroutine that an Inline handler starts. IsInline is false for it, so the goroutine may wait.
func Aside(ctx context.Context) context.Context {
	if !IsInline(ctx) {
		return ctx
	}
	return aside{ctx}
}

type aside struct{ context.Context }

func (a aside) Value(key any) any {
	if key == (origin.InlineKey{}) {
		return nil
	}
	return a.Context.Value(key)
}
