package rping

import (
	"context"
	"errors"
	"fmt"

	"github.com/rpcrdma/rpcrdma/fabric"
)

// A Server answers pings. Each Serve answers those of one client.
type Server struct {
	Provider fabric.Provider

	// MaxSize is the length of the longest text accepted. Default: DefaultMaxSize.
	MaxSize int

	// Validate compares each text with that of rping(1).
	Validate bool

	// OnPing, if set, is called with each text, which is valid until it returns. The client
	// waits meanwhile.
	OnPing func(text []byte)
}

// Listen listens at addr.
func (s *Server) Listen(ctx context.Context, addr string) (fabric.Listener, error) {
	return s.Provider.Listen(ctx, addr, attr)
}

// Serve accepts one connection and answers its pings, as ServeConn does.
func (s *Server) Serve(ctx context.Context, l fabric.Listener) (pings int, err error) {
	conn, err := l.Accept(ctx)
	if err != nil {
		return 0, &SetupError{err}
	}
	return s.ServeConn(ctx, conn)
}

// ServeConn accepts a connection request, answers pings, and closes the connection. It returns the number of pings. The
// error is nil if the client disconnected gracefully after a ping.
func (s *Server) ServeConn(ctx context.Context, conn fabric.Conn) (pings int, err error) {
	defer conn.Close()
	e, err := newSession(conn)
	if err != nil {
		return 0, &SetupError{err}
	}
	size := s.MaxSize
	if size == 0 {
		size = DefaultMaxSize
	}
	buf, err := conn.RegMR(make([]byte, size), fabric.AccessLocalWrite)
	if err != nil {
		return 0, &SetupError{err}
	}
	var want []byte
	if s.Validate {
		want = make([]byte, size)
	}
	if err := conn.Accept(ctx, nil); err != nil {
		return 0, &SetupError{err}
	}
	for ; ; pings++ {
		from, err := e.receive(ctx)
		if err != nil {
			var end *fabric.ConnError
			if errors.As(err, &end) && end.Remote && end.Clean {
				return pings, nil
			}
			return pings, err
		}
		if int64(from.Length) > int64(size) {
			return pings, &PeerError{Reason: fmt.Sprintf("a text of %d bytes, the limit is %d", from.Length, size)}
		}
		data := sge(buf, int(from.Length))
		if err := e.do(ctx, fabric.SendWR{ID: idRead, Op: fabric.OpRead, Flags: fabric.Signaled,
			SGL: []fabric.SGE{data}, RKey: from.Handle, RemoteOffset: from.Offset}); err != nil {
			return pings, err
		}
		if s.Validate {
			PutText(want[:len(data.Buf)], pings)
			if err := compare(pings, data.Buf, want[:len(data.Buf)]); err != nil {
				return pings, err
			}
		}
		if s.OnPing != nil {
			s.OnPing(data.Buf)
		}
		if err := e.do(ctx, e.send()); err != nil {
			return pings, err
		}
		to, err := e.receive(ctx)
		if err != nil {
			return pings, err
		}
		if to.Length < from.Length {
			return pings, &PeerError{Reason: fmt.Sprintf("a buffer of %d bytes for a text of %d", to.Length, from.Length)}
		}
		// The Send arrives after the Write's data has been placed, so one Post is enough.
		if err := e.do(ctx, fabric.SendWR{ID: idWrite, Op: fabric.OpWrite, SGL: []fabric.SGE{data}, RKey: to.Handle, RemoteOffset: to.Offset}, e.send()); err != nil {
			return pings, err
		}
	}
}
