package transport

import (
	"context"

	"github.com/rpcrdma/rpcrdma/internal/origin"
	"github.com/rpcrdma/rpcrdma/rpc"
)

// contexts are the contexts of a connection's handlers. They are part of the connection, so that a call allocates none.
type contexts struct {
	list [2][2]handlerContext // by whether the reply is remembered, and whether the handler is Inline
}

// init makes the contexts that end with the connection, from own.
func (c *contexts) init(cn rpc.Conn, own context.Context) { c.fill(0, cn, own) }

// remember makes the contexts of handlers with remembered replies, from all.
func (c *contexts) remember(all context.Context) { c.fill(1, c.list[0][0].conn, all) }

func (c *contexts) fill(i int, cn rpc.Conn, from context.Context) {
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

// A handlerContext is the context of a handler. It ends with the connection or, if the reply will be remembered, with
// the client or server.
type handlerContext struct {
	context.Context
	conn   rpc.Conn
	inline bool
}

// Value returns the transport's values for the call.
func (h *handlerContext) Value(key any) any {
	switch key.(type) {
	case origin.ConnKey:
		return h.conn
	case origin.InlineKey:
		if h.inline {
			return true
		}
		return nil
	}
	return h.Context.Value(key)
}
