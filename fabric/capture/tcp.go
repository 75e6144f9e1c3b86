package capture

import (
	"net"
	"slices"
	"sync"
)

// Listener returns a listener that records all connections accepted from l, as [Writer.Conn] does. It is for ONC RPC
// over TCP, in addition to RDMA.
func (w *Writer) Listener(l net.Listener) net.Listener { return &tcpListener{l, w} }

type tcpListener struct {
	net.Listener
	w *Writer
}

func (l *tcpListener) Accept() (net.Conn, error) {
	nc, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return l.w.Conn(nc, false), nil
}

// Conn wraps nc, a TCP connection, and records its reads and writes, as TCP segments in both framings. active reports
// whether this end opened the connection. Data is recorded before it is written, whether or not the write succeeds. The
// result has CloseWrite if nc does, but it is not a *net.TCPConn.
func (w *Writer) Conn(nc net.Conn, active bool) net.Conn {
	s := &stream{active: active, plain: true}
	s.local, s.remote = w.addresses(nc, active)
	w.add(event{at: now(), s: s, kind: kindUp, out: active})
	c := &tcpConn{Conn: nc, w: w, s: s}
	if half, ok := nc.(closeWriter); ok {
		return &tcpHalfConn{c, half}
	}
	return c
}

type closeWriter interface{ CloseWrite() error }

// tcpConn is a recorded TCP connection.
type tcpConn struct {
	net.Conn
	w    *Writer
	s    *stream
	once sync.Once // records the end
}

// tcpHalfConn is a tcpConn that can be closed for writing.
type tcpHalfConn struct {
	*tcpConn
	half closeWriter
}

func (c *tcpHalfConn) CloseWrite() error { return c.half.CloseWrite() }

func (c *tcpConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	c.record(b[:n], false)
	return n, err
}

func (c *tcpConn) Write(b []byte) (int, error) {
	c.record(b, true)
	return c.Conn.Write(b)
}

func (c *tcpConn) Close() error {
	c.once.Do(func() { c.w.add(event{at: now(), s: c.s, kind: kindDown, out: true}) })
	return c.Conn.Close()
}

// record records bytes of the stream.
func (c *tcpConn) record(b []byte, out bool) {
	for part := range slices.Chunk(b, maxData) {
		kept := part[:c.w.cfg.kept(len(part))]
		if c.w.room(len(kept)) {
			c.w.add(event{at: now(), s: c.s, kind: kindBytes, out: out, data: slices.Clone(kept), size: len(part)})
		}
	}
}
