package rpc

import (
	"context"

	"github.com/rpcrdma/rpcrdma/internal/origin"
)

// A Middleware wraps a Handler: it returns one that does something before and after it calls next, or
// instead. It sees the call before, and may refuse it (Response.Reject), change its arguments
// (Request.SetArgs) or put values into the context; and after, its outcome (Response.Status, Size),
// which it may change (Response.Join, Results, Verf). Config.Middleware is around all handlers of a
// client or server; Chain wraps that of one program. A panic is as one of the handler: it passes
// through the wrappers around it, is recovered by the transport, and answered with SYSTEM_ERR.
type Middleware func(next Handler) Handler

// Chain returns h with the wrappers around it, the first outermost. It is h itself without wrappers.
func Chain(h Handler, wrappers ...Middleware) Handler {
	for i := len(wrappers) - 1; i >= 0 && h != nil; i-- {
		h = wrappers[i](h)
	}
	return h
}

// ConnFromContext returns the connection of the call that has ctx as its handler's context, or an
// ancestor of ctx; nil if there is no such call. It is that of Request.Conn, for code without the
// request.
func ConnFromContext(ctx context.Context) Conn {
	cn, _ := ctx.Value(origin.ConnKey{}).(Conn)
	return cn
}

// IsInline reports whether ctx is that of a handler which the program names Inline, or made from it:
// its goroutine moves the connection, and must not wait.
func IsInline(ctx context.Context) bool { return ctx.Value(origin.InlineKey{}) != nil }

// Aside returns ctx for a goroutine that an Inline handler begins: it is not IsInline, and may wait.
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
