package transport

import "context"

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
func ConnFromContext(ctx context.Context) *Conn {
	cn, _ := ctx.Value(connKey{}).(*Conn)
	return cn
}

// IsInline reports whether ctx is that of a handler which the program names Inline, or made from it:
// its goroutine moves the connection, and must not wait.
func IsInline(ctx context.Context) bool { return ctx.Value(inlineKey{}) != nil }

type (
	connKey   struct{}
	inlineKey struct{}
)

// contexts are those of the handlers of a connection. They are part of it, so that a call allocates
// none.
type contexts struct {
	list [2][2]handlerContext // by whether the reply is remembered, and whether the handler is Inline
}

// init makes those that end with the connection, from own.
func (c *contexts) init(cn *Conn, own context.Context) { c.fill(0, cn, own) }

// remember makes the contexts of handlers with replies that are remembered, from all.
func (c *contexts) remember(all context.Context) { c.fill(1, c.list[0][0].conn, all) }

func (c *contexts) fill(i int, cn *Conn, from context.Context) {
	c.list[i] = [2]handlerContext{{from, cn, false}, {from, cn, true}}
}

// of returns the context of a call.
func (c *contexts) of(remembered, inline bool) context.Context {
	i, j := 0, 0
	if remembered {
		i = 1
	}
	if inline {
		j = 1
	}
	return &c.list[i][j]
}

// A handlerContext is the context of a handler: it ends with the connection, or, if the reply is to
// be remembered, with the client or server.
type handlerContext struct {
	context.Context
	conn   *Conn
	inline bool
}

// Value returns what the transport knows of the call.
func (h *handlerContext) Value(key any) any {
	switch key.(type) {
	case connKey:
		return h.conn
	case inlineKey:
		if h.inline {
			return true
		}
		return nil
	}
	return h.Context.Value(key)
}
