package rping

import (
	"context"
	"fmt"

	"github.com/rpcrdma/rpcrdma/fabric"
)

// A Client pings servers. Each Run makes a new connection.
type Client struct {
	Provider fabric.Provider

	// Count is the number of pings. Zero means to ping until the context or the connection
	// ends.
	Count int

	// Size is the length of the text in bytes, including the terminating zero. Default:
	// DefaultSize.
	Size int

	// Validate compares the echo with the text that was sent.
	Validate bool

	// OnPing, if set, is called with each echo, which is valid until it returns. The server
	// waits meanwhile.
	OnPing func(text []byte)
}

// Run connects to addr, pings, and disconnects. It returns the number of echoes. The error is nil if all were received
// and the server disconnected gracefully.
func (c *Client) Run(ctx context.Context, addr string) (pings int, err error) {
	size := c.Size
	if size == 0 {
		size = DefaultSize
	}
	if size < MinSize {
		return 0, fmt.Errorf("rping: a text of %d bytes is too short, the minimum is %d", size, MinSize)
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
		clear(echo.Bytes()) // clear that of the previous ping
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

// offer sends the segment of mr to the server and waits for its go-ahead.
func (s *session) offer(ctx context.Context, mr fabric.MR) error {
	putMessage(s.out.Bytes(), mr.Segment())
	if err := s.do(ctx, s.send()); err != nil {
		return err
	}
	_, err := s.receive(ctx)
	return err
}
