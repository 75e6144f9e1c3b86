package bench

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"runtime"
	"sync"
)

// TCPEcho sends size bytes and reads them back: the plain round trip that every call includes.
func TCPEcho(size int) Workload {
	return Workload{
		Name:   fmt.Sprintf("TCPEcho/size=%d", size),
		Server: &Server{Kind: "echo", Size: size},
		Client: func(addr string) (*Instance, error) {
			c, err := dialServer(addr)
			if err != nil {
				return nil, err
			}
			buf := make([]byte, size)
			return &Instance{
				Call: func(int) error {
					if _, err := c.Write(buf); err != nil {
						return err
					}
					_, err := io.ReadFull(c, buf)
					return err
				},
				Close: c.Close,
			}, nil
		},
	}
}

// TCPEchoConns is TCPEcho on several connections, with depth callers that cycle through them.
func TCPEchoConns(size, conns, depth int) Workload {
	return Workload{
		Name:   fmt.Sprintf("TCPEcho/size=%d/conns=%d/depth=%d", size, conns, depth),
		Depth:  depth,
		Server: &Server{Kind: "echo", Size: size},
		Client: func(addr string) (*Instance, error) {
			// conn is a connection with one caller at a time.
			type conn struct {
				sync.Mutex
				net.Conn
				buf []byte
			}
			list := make([]conn, conns)
			end := func() error {
				var errs []error
				for i := range list {
					if list[i].Conn != nil {
						errs = append(errs, list[i].Close())
					}
				}
				return errors.Join(errs...)
			}
			for i := range list {
				c, err := dialServer(addr)
				if err != nil {
					return nil, errors.Join(err, end())
				}
				list[i].Conn, list[i].buf = c, make([]byte, size)
			}
			next := make([]int, depth)
			return &Instance{
				Call: func(worker int) error {
					c := &list[(worker+next[worker]*depth)%conns]
					next[worker]++
					c.Lock()
					defer c.Unlock()
					if _, err := c.Write(c.buf); err != nil {
						return err
					}
					_, err := io.ReadFull(c, c.buf)
					return err
				},
				Close: end,
			}, nil
		},
	}
}

func echo(c net.Conn, size int) error {
	buf := make([]byte, size)
	for {
		if _, err := io.ReadFull(c, buf); err != nil {
			return err
		}
		if _, err := c.Write(buf); err != nil {
			return err
		}
	}
}

// TCPCopy writes size bytes at a time, and the other side reads them, at most read bytes at once, directly into their
// destination: the simplest loop for bulk data. On Flush, one byte confirms that everything has arrived.
func TCPCopy(size, read int) Workload {
	return Workload{
		Name:   fmt.Sprintf("TCPCopy/size=%s/read=%s", binaryPrefix(size), binaryPrefix(read)),
		Bytes:  size,
		Server: &Server{Kind: "copy", Size: size, Read: read},
		Client: func(addr string) (*Instance, error) {
			c, err := dialServer(addr)
			if err != nil {
				return nil, err
			}
			src, last := make([]byte, size), make([]byte, size)
			last[0] = 1
			return &Instance{
				Call: func(int) error {
					_, err := c.Write(src)
					return err
				},
				Flush: func() error {
					if _, err := c.Write(last); err != nil {
						return err
					}
					_, err := io.ReadFull(c, make([]byte, 1))
					return err
				},
				Close: c.Close,
			}, nil
		},
	}
}

// receive is the other side. It confirms data that begins with a byte of 1.
func receive(c net.Conn, size, read int) error {
	dst := make([]byte, size)
	at := 0
	for {
		n, err := c.Read(dst[at:min(at+read, size)])
		if err != nil {
			return err
		}
		if at += n; at == size {
			at = 0
			if dst[0] != 0 {
				if _, err := c.Write(dst[:1]); err != nil {
					return err
				}
			}
		}
	}
}

// TCPDial connects, exchanges as many bytes as connection setup of iWARP, makes one more round
// trip, and closes.
func TCPDial() Workload {
	return Workload{
		Name:   "TCPDial",
		Server: &Server{Kind: "mpa"},
		Client: func(addr string) (*Instance, error) {
			buf := make([]byte, greeting)
			closed := false
			return &Instance{
				Call: func(int) error {
					if closed {
						return net.ErrClosed
					}
					c, err := dialServer(addr)
					if err != nil {
						return err
					}
					defer c.Close()
					for range 2 { // the greeting and a first call
						if _, err := c.Write(buf); err != nil {
							return err
						}
						if _, err := io.ReadFull(c, buf); err != nil {
							return err
						}
					}
					return nil
				},
				Close: func() error { closed = true; return nil },
			}, nil
		},
	}
}

// greeting is the length of an MPA request (RFC 5044 section 7.1.1) with the enhanced
// data of RFC 6581 and the private data of RFC 8797.
const greeting = 20 + 4 + 8

func greet(c net.Conn) error { return echo(c, greeting) }

// TCPPipelined is a hand-optimized protocol: messages of size bytes, depth of them outstanding, a table of slots to
// find the caller of a reply, coalesced writes and replies.
func TCPPipelined(size, depth int) Workload {
	return Workload{
		Name:   fmt.Sprintf("TCPPipelined/size=%d/depth=%d", size, depth),
		Depth:  depth,
		Server: &Server{Kind: "bulk", Size: size},
		Client: func(addr string) (*Instance, error) {
			c, err := dialServer(addr)
			if err != nil {
				return nil, err
			}
			p := &pipeline{
				conn:    c,
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
					err := c.Close()
					<-p.done
					return err
				},
			}, nil
		},
	}
}

// echoInBulk answers all messages of one Read with one Write.
func echoInBulk(c net.Conn, size int) error {
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
	conn  net.Conn
	size  int
	slots []pipelineSlot
	done  chan struct{} // closed after the last reply

	mu       sync.Mutex
	flushing bool
	pending  []byte // to be written
	writing  []byte // owned by the flushing goroutine
}

// call sends the message of a worker's slot and waits for the reply. The first caller also writes the messages of
// callers that arrive meanwhile.
func (p *pipeline) call(worker int) error {
	slot := &p.slots[worker]
	p.mu.Lock()
	p.pending = append(p.pending, slot.message...)
	if !p.flushing {
		p.flushing = true
		p.mu.Unlock()
		runtime.Gosched() // let other runnable callers join
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

// read delivers replies to their slots.
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

// binaryPrefix formats a size for the name of a benchmark.
func binaryPrefix(n int) string {
	switch {
	case n >= 1<<20 && n%(1<<20) == 0:
		return fmt.Sprintf("%dMi", n>>20)
	case n >= 1<<10 && n%(1<<10) == 0:
		return fmt.Sprintf("%dKi", n>>10)
	}
	return fmt.Sprint(n)
}
