package bench

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"runtime"
	"sync"
	"sync/atomic"
)

// tcpPair is both ends of a connection over loopback.
func tcpPair() (client, server *net.TCPConn, err error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, nil, err
	}
	defer l.Close()
	c, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		return nil, nil, err
	}
	s, err := l.Accept()
	if err != nil {
		c.Close()
		return nil, nil, err
	}
	return c.(*net.TCPConn), s.(*net.TCPConn), nil
}

// A tcpServer runs serve on the server's end of a connection.
type tcpServer struct {
	client, server *net.TCPConn
	done           chan error
}

func startTCP(serve func(*net.TCPConn) error) (*tcpServer, error) {
	c, s, err := tcpPair()
	if err != nil {
		return nil, err
	}
	t := &tcpServer{client: c, server: s, done: make(chan error, 1)}
	go func() { t.done <- serve(s) }()
	return t, nil
}

// close ends the connection from the client's side and waits for the server, which
// is expected to have met the end of the stream.
func (t *tcpServer) close() error {
	err := t.client.Close()
	served := <-t.done
	if errors.Is(served, io.EOF) {
		served = nil
	}
	return errors.Join(err, served, t.server.Close())
}

// TCPEcho sends size bytes and reads them back: the round trip that every call has
// in it, with nothing added.
func TCPEcho(size int) Workload {
	return Workload{
		Name: fmt.Sprintf("TCPEcho/size=%d", size),
		Setup: func() (*Instance, error) {
			t, err := startTCP(func(c *net.TCPConn) error {
				buf := make([]byte, size)
				for {
					if _, err := io.ReadFull(c, buf); err != nil {
						return err
					}
					if _, err := c.Write(buf); err != nil {
						return err
					}
				}
			})
			if err != nil {
				return nil, err
			}
			buf := make([]byte, size)
			return &Instance{
				Call: func(int) error {
					if _, err := t.client.Write(buf); err != nil {
						return err
					}
					_, err := io.ReadFull(t.client, buf)
					return err
				},
				Close: t.close,
			}, nil
		},
	}
}

// TCPCopy writes size bytes at a time, and the other side reads as many, at most
// read at once, into the place where they are to be: the plainest loop that moves
// bulk data. One byte goes back when everything has arrived, at a Flush.
func TCPCopy(size, read int) Workload {
	return Workload{
		Name:  fmt.Sprintf("TCPCopy/size=%s/read=%s", binaryPrefix(size), binaryPrefix(read)),
		Bytes: size,
		Setup: func() (*Instance, error) {
			var sent atomic.Int64 // bytes that the server has to see before it answers
			t, err := startTCP(func(c *net.TCPConn) error {
				dst := make([]byte, size)
				var seen int64
				at := 0
				for {
					n, err := c.Read(dst[at:min(at+read, size)])
					if err != nil {
						return err
					}
					seen += int64(n)
					if at += n; at == size {
						at = 0
						if seen == sent.Load() {
							if _, err := c.Write(dst[:1]); err != nil {
								return err
							}
						}
					}
				}
			})
			if err != nil {
				return nil, err
			}
			src := make([]byte, size)
			var total int64
			write := func() error {
				total += int64(size)
				_, err := t.client.Write(src)
				return err
			}
			return &Instance{
				Call: func(int) error { return write() },
				Flush: func() error {
					// The server must know what is the last before it comes.
					sent.Store(total + int64(size))
					if err := write(); err != nil {
						return err
					}
					_, err := io.ReadFull(t.client, make([]byte, 1))
					return err
				},
				Close: t.close,
			}, nil
		},
	}
}

// TCPPipelined is what an expert writes by hand for one purpose: messages of size
// bytes, depth of them outstanding, a table of slots to find the caller of an
// answer, writes and answers coalesced.
func TCPPipelined(size, depth int) Workload {
	return Workload{
		Name:  fmt.Sprintf("TCPPipelined/size=%d/depth=%d", size, depth),
		Depth: depth,
		Setup: func() (*Instance, error) {
			t, err := startTCP(func(c *net.TCPConn) error { return echoInBulk(c, size) })
			if err != nil {
				return nil, err
			}
			p := &pipeline{
				conn:    t.client,
				size:    size,
				pending: make([]byte, 0, depth*size),
				writing: make([]byte, 0, depth*size),
				slots:   make([]pipelineSlot, depth),
				done:    make(chan struct{}),
			}
			for i := range p.slots {
				p.slots[i].answered = make(chan struct{}, 1)
				p.slots[i].message = make([]byte, size)
				binary.BigEndian.PutUint32(p.slots[i].message, uint32(i))
			}
			go p.read()
			return &Instance{
				Call: p.call,
				Close: func() error {
					err := t.close()
					<-p.done
					return err
				},
			}, nil
		},
	}
}

// echoInBulk answers all messages that one Read has brought with one Write.
func echoInBulk(c *net.TCPConn, size int) error {
	buf := make([]byte, 64<<10)
	have := 0
	for {
		n, err := c.Read(buf[have:])
		if err != nil {
			return err
		}
		have += n
		whole := have - have%size
		if whole == 0 {
			continue
		}
		if _, err := c.Write(buf[:whole]); err != nil {
			return err
		}
		have = copy(buf, buf[whole:have])
	}
}

type pipelineSlot struct {
	message  []byte
	answered chan struct{}
}

type pipeline struct {
	conn  *net.TCPConn
	size  int
	slots []pipelineSlot
	done  chan struct{} // closed when no more answers come

	mu       sync.Mutex
	flushing bool
	pending  []byte // to be written
	writing  []byte // owned by whoever flushes
}

// call sends the message of a worker's slot and waits for the answer. The first
// to come writes for all who come while it does.
func (p *pipeline) call(worker int) error {
	slot := &p.slots[worker]
	p.mu.Lock()
	p.pending = append(p.pending, slot.message...)
	if !p.flushing {
		p.flushing = true
		p.mu.Unlock()
		runtime.Gosched() // let others who are ready join
		p.mu.Lock()
		for len(p.pending) > 0 {
			p.pending, p.writing = p.writing[:0], p.pending
			p.mu.Unlock()
			if _, err := p.conn.Write(p.writing); err != nil {
				return err
			}
			p.mu.Lock()
		}
		p.flushing = false
	}
	p.mu.Unlock()
	select {
	case <-slot.answered:
		return nil
	case <-p.done:
		return net.ErrClosed
	}
}

// read hands answers to their slots.
func (p *pipeline) read() {
	defer close(p.done)
	buf := make([]byte, 64<<10)
	have := 0
	for {
		n, err := p.conn.Read(buf[have:])
		if err != nil {
			return
		}
		have += n
		at := 0
		for ; have-at >= p.size; at += p.size {
			slot := binary.BigEndian.Uint32(buf[at:])
			if uint64(slot) >= uint64(len(p.slots)) {
				return
			}
			p.slots[slot].answered <- struct{}{}
		}
		have = copy(buf, buf[at:have])
	}
}

// binaryPrefix prints a size as benchmarks name it.
func binaryPrefix(n int) string {
	switch {
	case n >= 1<<20 && n%(1<<20) == 0:
		return fmt.Sprintf("%dMi", n>>20)
	case n >= 1<<10 && n%(1<<10) == 0:
		return fmt.Sprintf("%dKi", n>>10)
	}
	return fmt.Sprint(n)
}
