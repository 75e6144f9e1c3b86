package simfabric

import (
	"context"
	"io"
	"net"
	"os"
	"slices"
	"time"

	"github.com/rpcrdma/rpcrdma/fabric"
)

// streamWindow is how many bytes of a stream may be in flight or unread.
const streamWindow = 32 << 10

// stream implements net.Conn on an end that has no queues. It is the TCP of this network. The fabric's lock protects
// all fields.
type stream struct {
	e       *end
	in      []byte // arrived but not read
	eof     bool   // the peer sends nothing more
	out     int    // bytes not yet read by the peer
	shut    bool   // this end sends nothing more
	closed  bool
	full    time.Time    // nothing is accepted before then
	expires [2]time.Time // deadlines of Read and Write
}

// Dial connects to a listener of ListenStream. The events of a stream are those of the setup, Post for each Write (its
// Err means that nothing is accepted for the delay), Arrive for each piece, as for a Send, and Learn.
func (f *Fabric) Dial(ctx context.Context, addr string) (net.Conn, error) {
	c, err := f.Resolve(ctx, addr, fabric.ConnAttr{})
	if err != nil {
		return nil, err
	}
	s := newStream(c)
	if err := c.Connect(ctx, nil); err != nil {
		s.Close()
		return nil, err
	}
	return s, nil
}

func newStream(c fabric.Conn) *stream {
	e := c.(*end)
	e.stream = &stream{e: e}
	return e.stream
}

// ListenStream returns a listener for Dial.
func (f *Fabric) ListenStream(addr string) (net.Listener, error) {
	ctx, cancel := context.WithCancel(context.Background())
	l, err := f.Listen(ctx, addr, fabric.ConnAttr{})
	if err != nil {
		cancel()
		return nil, err
	}
	return &streamListener{l, ctx, cancel}, nil
}

type streamListener struct {
	fabric.Listener
	ctx    context.Context
	cancel context.CancelFunc
}

// Accept implements net.Listener.
func (l *streamListener) Accept() (net.Conn, error) {
	for {
		c, err := l.Listener.Accept(l.ctx)
		if err != nil {
			return nil, net.ErrClosed
		}
		s := newStream(c)
		ctx, cancel := context.WithTimeout(l.ctx, time.Second)
		err = c.Accept(ctx, nil) // otherwise a client that has already left would block it
		cancel()
		if err == nil {
			return s, nil
		}
		s.Close()
	}
}

// Close implements net.Listener.
func (l *streamListener) Close() error {
	l.cancel()
	return l.Listener.Close()
}

// lock locks the fabric, and returns the function to unlock it.
func (s *stream) lock() (unlock func()) {
	s.e.f.mu.Lock()
	return s.e.f.unlock
}

// wait waits for any event or for the deadline.
func (s *stream) wait(deadline time.Time) {
	f := s.e.f
	if !deadline.IsZero() {
		f.at(deadline, s.e.cond.Broadcast)
	}
	f.wait(&s.e.cond)
}

func expired(t time.Time) bool { return !t.IsZero() && !t.After(time.Now()) }

// Read implements net.Conn.
func (s *stream) Read(b []byte) (int, error) {
	defer s.lock()()
	for {
		switch {
		case s.closed:
			return 0, net.ErrClosed
		case expired(s.expires[0]):
			return 0, os.ErrDeadlineExceeded
		case len(s.in) > 0:
			n := copy(b, s.in)
			s.in = s.in[n:]
			s.e.peer.stream.out -= n
			s.e.peer.cond.Broadcast()
			return n, nil
		case s.eof:
			return 0, io.EOF
		case s.e.err != nil:
			return 0, s.lost()
		}
		s.wait(s.expires[0])
	}
}

// Write implements net.Conn.
func (s *stream) Write(b []byte) (n int, err error) {
	e := s.e
	e.pause()
	defer e.pause()
	defer s.lock()()
	v := e.decide(Post, 0)
	if v.CutBefore {
		e.cut()
	}
	if v.Err != nil {
		s.full = time.Now().Add(v.Delay)
	}
	for n < len(b) {
		room := min(streamWindow-s.out, len(b)-n)
		switch {
		case s.closed || s.shut:
			return n, net.ErrClosed
		case expired(s.expires[1]):
			return n, os.ErrDeadlineExceeded
		case e.err != nil:
			return n, s.lost()
		case s.full.After(time.Now()):
			e.f.at(s.full, e.cond.Broadcast)
			s.wait(s.expires[1])
		case room <= 0:
			s.wait(s.expires[1])
		default:
			if h := Hash(e.f.cfg.Seed, uint64(e.no), uint64(e.side), uint64(e.counts[Arrive]), 't'); h%4 == 0 {
				room = 1 + int(h>>8%uint64(room))
			}
			s.send(slices.Clone(b[n : n+room]))
			n += room
		}
	}
	if v.CutAfter {
		e.cut()
	}
	return n, nil
}

// carry arranges for do to be called when what was sent before has arrived.
func (s *stream) carry(do func(p *stream)) {
	s.e.arrive(&request{SendWR: fabric.SendWR{Op: fabric.OpSend}}, true, func() { do(s.e.peer.stream) })
}

// send sends a piece. A peer that has closed its end resets the connection.
func (s *stream) send(data []byte) {
	s.out += len(data)
	s.carry(func(p *stream) {
		if p.closed {
			s.reset()
			return
		}
		p.in = append(p.in, data...)
		p.e.cond.Broadcast()
	})
}

// lost returns the error of a connection that has ended. It is not net.ErrClosed.
func (s *stream) lost() error {
	if cause := s.e.err.Cause; cause != nil {
		return cause
	}
	return errReset
}

func (s *stream) reset() {
	s.e.over(&fabric.ConnError{Provider: s.e.f.Name(), Remote: true, Cause: errReset})
}

// CloseWrite ends the data that this end sends.
func (s *stream) CloseWrite() error {
	defer s.lock()()
	s.fin()
	return nil
}

func (s *stream) fin() {
	if !s.shut && s.e.established {
		s.carry(func(p *stream) { p.eof = true; p.e.cond.Broadcast() })
	}
	s.shut = true
	s.e.cond.Broadcast()
}

// Close implements net.Conn. Data that was sent arrives, unless there is unread input.
func (s *stream) Close() error {
	defer s.lock()()
	e := s.e
	switch {
	case s.closed:
		return net.ErrClosed
	case !e.established:
		s.closed = true
		e.close()
		return nil
	case len(s.in) > 0:
		s.carry((*stream).reset)
	default:
		s.fin()
	}
	s.closed = true
	e.f.openConns--
	e.cond.Broadcast()
	return nil
}

func (s *stream) LocalAddr() net.Addr  { return s.e.local }
func (s *stream) RemoteAddr() net.Addr { return s.e.remote }

// SetDeadline implements net.Conn.
func (s *stream) SetDeadline(t time.Time) error { return s.setDeadline(t, 0, 1) }

// SetReadDeadline implements net.Conn.
func (s *stream) SetReadDeadline(t time.Time) error { return s.setDeadline(t, 0) }

// SetWriteDeadline implements net.Conn.
func (s *stream) SetWriteDeadline(t time.Time) error { return s.setDeadline(t, 1) }

func (s *stream) setDeadline(t time.Time, of ...int) error {
	defer s.lock()()
	for _, i := range of {
		s.expires[i] = t
	}
	s.e.cond.Broadcast()
	return nil
}
