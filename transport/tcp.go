package transport

import (
	"bufio"
	"errors"
	"net"
	"sync"
	"time"

	"github.com/rpcrdma/rpcrdma/proto/oncrpc"
	"github.com/rpcrdma/rpcrdma/transport/internal/budget"
)

// LimitTCP returns a listener for a server of plain ONC RPC over TCP that runs beside this
// one. Its connections carry records (RFC 5531 section 11) and are subject to the limits of
// the same Config. They count towards MaxConns, in total and by host. A connection has at most
// Credits calls in flight: calls that were read and for which no record has been written. A
// call reserves its length, or MaxMessage if it comes in several fragments, and 1 MiB for its
// reply, within MaxMemory and MaxTotalMemory. Nothing is read while there is no room. A peer
// that takes no data for StallTimeout, or stops in the middle of a call for that long, loses
// the connection with a *StallError. Accept waits while the process is out of descriptors.
//
// Closing the listener leaves connections open, and so does closing the Server.
func (s *Server) LimitTCP(l net.Listener) net.Listener { return &limitedListener{l, s} }

type limitedListener struct {
	net.Listener
	s *Server
}

func (l *limitedListener) Accept() (net.Conn, error) {
	s := l.s
	var lc *limitedConn
	err := s.acceptTCP(l.Listener, func(c net.Conn, g *guest) {
		lc = &limitedConn{Conn: c, s: s, g: g, spoke: time.Now(), closed: make(chan struct{}), change: make(chan struct{}, 1)}
		lc.r = bufio.NewReaderSize(c, 32<<10)
		s.memory.Join(&lc.tenant, terms(s.connCfg, g.host, nil, lc.changed))
		s.guests.settle(g, lc)
	})
	if err != nil {
		return nil, err
	}
	return lc, nil
}

// A limitedConn is a connection from a limitedListener. One goroutine at a time reads, and
// one writes.
type limitedConn struct {
	net.Conn
	s      *Server
	g      *guest
	r      *bufio.Reader
	tenant budget.Tenant
	once   sync.Once
	closed chan struct{}
	change chan struct{} // something that the reader waits for

	// The reader's.
	mark  [oncrpc.RecordMarkSize]byte
	given int  // bytes of mark that have been read by the caller; all: they belong to a fragment
	left  int  // bytes of the fragment to come
	last  bool // it is the record's last
	begun bool // a record

	// The writer's.
	out recordCount

	mu      sync.Mutex
	calls   []int // in flight, what they have reserved
	spoke   time.Time
	stopped bool  // the caller has set a deadline for reading
	err     error // why the connection was ended
}

// Read reads from the current call. Before it starts on the next call it waits until there
// is room for that.
func (c *limitedConn) Read(b []byte) (n int, err error) {
	if c.left == 0 && c.given == 0 {
		if err := c.next(); err != nil {
			return 0, c.why(err)
		}
	}
	if k := copy(b, c.mark[c.given:]); k > 0 && c.given < len(c.mark) {
		if c.given += k; c.given < len(c.mark) || c.left > 0 {
			return k, nil
		}
		c.ended()
		return k, nil
	}
	n, err = c.r.Read(b[:min(len(b), c.left)])
	if c.left -= n; c.left == 0 {
		c.ended()
	} else if c.r.Buffered() == 0 {
		c.patience() // from one part to the next
	}
	return n, c.why(err)
}

// ended notes that the caller has read the whole fragment.
func (c *limitedConn) ended() {
	c.given = 0
	if c.begun = !c.last; c.last {
		c.deadline(time.Time{})
	}
}

// next reads the mark of the next fragment and, if that begins a call, reserves memory.
func (c *limitedConn) next() error {
	head, err := c.r.Peek(oncrpc.RecordMarkSize)
	if err != nil {
		return err
	}
	copy(c.mark[:], head)
	_, _ = c.r.Discard(len(c.mark))
	size, last, _ := oncrpc.ConsumeRecordMark(c.mark[:])
	c.left, c.last = int(size), last
	if !c.begun {
		need := c.s.cfg.MaxMessage
		if last {
			need = min(c.left, need)
		}
		if err := c.reserve(need + tcpReply); err != nil {
			return err
		}
	}
	c.patience()
	return nil
}

// reserve waits for a credit, then for n bytes, and adds the call to those in flight.
func (c *limitedConn) reserve(n int) error {
	for {
		c.mu.Lock()
		c.spoke = time.Now()
		full := len(c.calls) >= c.s.cfg.Credits
		c.mu.Unlock()
		if !full {
			break
		}
		if err := c.wait(); err != nil {
			return err
		}
	}
	for !c.tenant.Reserve(int64(n)) {
		if err := c.wait(); err != nil {
			return err
		}
	}
	c.mu.Lock()
	c.calls = append(c.calls, n)
	c.mu.Unlock()
	return nil
}

func (c *limitedConn) wait() error {
	select {
	case <-c.change:
		return nil
	case <-c.closed:
		return net.ErrClosed
	}
}

func (c *limitedConn) changed() {
	select {
	case c.change <- struct{}{}:
	default:
	}
}

// patience sets the deadline for the next part of a call.
func (c *limitedConn) patience() {
	if d := c.s.cfg.StallTimeout; d > 0 && (c.left > 0 || !c.last) {
		c.deadline(time.Now().Add(d))
	}
}

func (c *limitedConn) deadline(t time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.stopped {
		_ = c.Conn.SetReadDeadline(t)
	}
}

// SetReadDeadline replaces the deadlines for stalled calls: servers use it to stop.
func (c *limitedConn) SetReadDeadline(t time.Time) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.stopped = true
	return c.Conn.SetReadDeadline(t)
}

// Write writes replies. It fails when the peer has taken nothing for StallTimeout.
func (c *limitedConn) Write(b []byte) (n int, err error) {
	for {
		if d := c.s.cfg.StallTimeout; d > 0 {
			_ = c.Conn.SetWriteDeadline(time.Now().Add(d))
		}
		var k int
		k, err = c.Conn.Write(b[n:])
		n += k
		if err == nil || k == 0 || !timedOut(err) {
			break
		}
	}
	if timedOut(err) {
		c.breakOff(&StallError{For: c.s.cfg.StallTimeout, Replies: 1})
	}
	for range c.out.ends(b[:n]) {
		c.answered()
	}
	return n, c.why(err)
}

func timedOut(err error) bool {
	var e net.Error
	return errors.As(err, &e) && e.Timeout()
}

// answered releases what the oldest call has reserved. Which call was answered does not
// matter for the sum.
func (c *limitedConn) answered() {
	c.mu.Lock()
	n := 0
	if len(c.calls) > 0 {
		n = c.calls[0]
		c.calls = append(c.calls[:0], c.calls[1:]...)
	}
	c.mu.Unlock()
	c.tenant.Release(int64(n), true)
	c.changed()
}

// why returns the reason if this end has ended the connection, else err.
func (c *limitedConn) why(err error) error {
	if err == nil {
		return nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err != nil {
		return c.err
	}
	if timedOut(err) && !c.stopped {
		return &StallError{For: c.s.cfg.StallTimeout, Calls: 1}
	}
	return err
}

func (c *limitedConn) silence(now time.Time) (d time.Duration, inFlight bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return now.Sub(c.spoke), len(c.calls) > 0
}

func (c *limitedConn) breakOff(err error) {
	c.mu.Lock()
	if c.err == nil {
		c.err = &ClosedError{Addr: c.RemoteAddr().String(), Reason: err}
	}
	c.mu.Unlock()
	c.Conn.Close()
}

// Close ends the connection.
func (c *limitedConn) Close() error {
	err := c.Conn.Close()
	c.once.Do(func() {
		close(c.closed)
		c.tenant.Leave()
		c.mu.Lock()
		n := 0
		for _, k := range c.calls {
			n += k
		}
		c.calls = nil
		c.mu.Unlock()
		c.tenant.Release(int64(n), false)
		c.s.mu.Lock()
		c.s.guests.remove(c.g)
		c.s.mu.Unlock()
	})
	return err
}

// A recordCount counts records in a stream.
type recordCount struct {
	mark []byte
	left int
	last bool
}

// ends returns how many records end in b, the next bytes of the stream.
func (r *recordCount) ends(b []byte) (n int) {
	for len(b) > 0 {
		if r.left == 0 {
			k := min(oncrpc.RecordMarkSize-len(r.mark), len(b))
			r.mark = append(r.mark, b[:k]...)
			if b = b[k:]; len(r.mark) < oncrpc.RecordMarkSize {
				return n
			}
			size, last, _ := oncrpc.ConsumeRecordMark(r.mark)
			r.mark, r.left, r.last = r.mark[:0], int(size), last
		}
		k := min(r.left, len(b))
		b = b[k:]
		if r.left -= k; r.left == 0 && r.last {
			n++
		}
	}
	return n
}
