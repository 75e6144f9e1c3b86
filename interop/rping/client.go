package rping

import (
	"context"
	"fmt"

	"github.com/rpcrdma/rpcrdma/fabric"
)

// A Client pings servers, each Run over a connection of its own.
type Client struct {
	Provider fabric.Provider

	// Count is the number of pings. With zero, there is no end to them but
	// that of the context or the connection.
	Count int

	// Size is the length of the text in bytes, with the zero at its end.
	// Default: DefaultSize.
	Size int

	// Validate compares what comes back with what was sent.
	Validate bool

	// OnPing, if set, is called with what has come back, which is valid until
	// it returns. The server waits meanwhile.
	OnPing func(text []byte)
}

// Run connects to addr, pings, and disconnects. It returns how many pings have
// come back; with an error unless all have and the server has disconnected in
// order, too.
func (c *Client) Run(ctx context.Context, addr string) (pings int, err error) {
	size := c.Size
	if size == 0 {
		size = DefaultSize
	}
	if size < MinSize {
		return 0, fmt.Errorf("rping: a text of %d bytes is too short: %d is the least", size, MinSize)
	}
	conn, err := c.Provider.Resolve(ctx, addr, attr)
	if err != nil {
		return 0, &SetupError{err}
	}
	defer conn.Close()
	s, err := newSession(conn)
	if err != nil {
		return 0, &SetupError{err}
	}
	text, err := conn.RegMR(make([]byte, size), fabric.AccessRemoteRead)
	if err != nil {
		return 0, &SetupError{err}
	}
	echo, err := conn.RegMR(make([]byte, size), fabric.AccessLocalWrite|fabric.AccessRemoteWrite)
	if err != nil {
		return 0, &SetupError{err}
	}
	if err := conn.Connect(ctx, nil); err != nil {
		return 0, &SetupError{err}
	}
	for ; c.Count == 0 || pings < c.Count; pings++ {
		PutText(text.Bytes(), pings)
		clear(echo.Bytes()) // of the ping before
		if err := s.offer(ctx, text); err != nil {
			return pings, err
		}
		if err := s.offer(ctx, echo); err != nil {
			return pings, err
		}
		if c.Validate {
			if err := compare(pings, echo.Bytes(), text.Bytes()); err != nil {
				return pings, err
			}
		}
		if c.OnPing != nil {
			c.OnPing(echo.Bytes())
		}
	}
	if err := conn.Disconnect(ctx); err != nil {
		return pings, fmt.Errorf("rping: disconnect: %w", err)
	}
	return pings, nil
}

// offer tells the server where mr is and waits for it to go on.
func (s *session) offer(ctx context.Context, mr fabric.MR) error {
	putMessage(s.out.Bytes(), mr.Segment())
	if err := s.do(ctx, s.send()); err != nil {
		return err
	}
	_, err := s.receive(ctx)
	return err
}
