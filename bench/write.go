package bench

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"

	"github.com/rpcrdma/rpcrdma/fabric"
)

// Write makes RDMA Writes of size bytes, depth of them outstanding, on a connection of the adapter, without remote
// procedure calls. On Flush, a message and its reply confirm that everything has arrived.
func Write(at Site, size, depth int) Workload {
	return Workload{
		Name:   fmt.Sprintf("Write/prov=%s/size=%s/depth=%d", at.Name, binaryPrefix(size), depth),
		Bytes:  size,
		Server: &Server{Kind: "write", Site: at, Size: size},
		Client: func(addr string) (*Instance, error) { return dialWriter(at, addr, size, depth) },
	}
}

const flushMessage = 4 // bytes

// writeAttr returns the connection attributes of both ends.
func writeAttr(depth int) fabric.ConnAttr { return fabric.ConnAttr{SendDepth: depth + 4, RecvDepth: 4} }

// receiveWrites lets one peer at a time write to memory, and answers its messages.
func (s *Server) receiveWrites() (*far, error) {
	p, err := s.Site.tap()
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(context.Background())
	l, err := p.Listen(ctx, s.Site.listen(), writeAttr(1))
	if err != nil {
		cancel()
		return nil, err
	}
	done := make(chan error, 1)
	go func() {
		var errs []error
		for {
			c, err := l.Accept(ctx)
			if err != nil {
				break
			}
			if err := s.answerWriter(ctx, c); !errors.Is(err, net.ErrClosed) && ctx.Err() == nil {
				errs = append(errs, err)
			}
			errs = append(errs, c.Close())
		}
		done <- errors.Join(errs...)
	}()
	return &far{addr: l.Addr().String(), counters: p.counters, close: func() error {
		cancel()
		p.mu.Lock()
		for _, c := range p.conns {
			c.Close()
		}
		p.mu.Unlock()
		return errors.Join(l.Close(), <-done)
	}}, nil
}

func (s *Server) answerWriter(ctx context.Context, c fabric.Conn) error {
	target, err := c.RegMR(make([]byte, s.Size), fabric.AccessLocalWrite|fabric.AccessRemoteWrite)
	if err != nil {
		return err
	}
	m, err := newMessages(c)
	if err != nil {
		return err
	}
	seg := target.Segment()
	name := binary.BigEndian.AppendUint32(nil, seg.Handle)
	name = binary.BigEndian.AppendUint64(name, seg.Offset)
	if err := c.Accept(ctx, name); err != nil {
		return err
	}
	for {
		if err := m.receive(); err != nil {
			return err
		}
		if err := m.send(); err != nil {
			return err
		}
	}
}

// messages sends and receives short messages, one at a time in each direction, on a connection that also has Writes.
type messages struct {
	c        fabric.Conn
	in, out  fabric.MR
	received bool
	writes   int // completed Writes
	sent     bool
}

const (
	recvID = iota
	sendID
	writeID
)

func newMessages(c fabric.Conn) (*messages, error) {
	in, err := c.RegMR(make([]byte, flushMessage), fabric.AccessLocalWrite)
	if err != nil {
		return nil, err
	}
	out, err := c.RegMR(make([]byte, flushMessage), 0)
	if err != nil {
		return nil, err
	}
	m := &messages{c: c, in: in, out: out, sent: true}
	return m, m.postRecv()
}

func (m *messages) postRecv() error {
	return m.c.PostRecv([]fabric.RecvWR{{ID: recvID, SGE: fabric.SGE{Buf: m.in.Bytes(), LKey: m.in.LKey()}}})
}

// until drives the connection until happened returns true.
func (m *messages) until(happened func() bool) error {
	var wcs [16]fabric.WC
	for !happened() {
		if err := m.c.Wait(); err != nil {
			return err
		}
		n, err := m.c.Poll(wcs[:])
		if err != nil {
			return err
		}
		for _, wc := range wcs[:n] {
			switch {
			case wc.Status == fabric.WCFlushErr:
				// The connection has ended: the next Poll returns the reason.
			case wc.Status != fabric.WCSuccess:
				return fmt.Errorf("request %d: %v", wc.ID, wc.Status)
			case wc.ID == recvID:
				m.received = true
			case wc.ID == sendID:
				m.sent = true
			default:
				m.writes++
			}
		}
	}
	return nil
}

func (m *messages) receive() error {
	if err := m.until(func() bool { return m.received }); err != nil {
		return err
	}
	m.received = false
	return m.postRecv()
}

func (m *messages) send() error {
	if err := m.until(func() bool { return m.sent }); err != nil {
		return err
	}
	m.sent = false
	return m.c.Post([]fabric.SendWR{{ID: sendID, Op: fabric.OpSend, Flags: fabric.Signaled, SGL: []fabric.SGE{{Buf: m.out.Bytes(), LKey: m.out.LKey()}}}})
}

func dialWriter(at Site, addr string, size, depth int) (*Instance, error) {
	p, err := at.tap()
	if err != nil {
		return nil, err
	}
	ctx := context.Background()
	c, err := p.Resolve(ctx, addr, writeAttr(depth))
	if err != nil {
		return nil, err
	}
	m, err := newMessages(c)
	if err == nil {
		err = c.Connect(ctx, nil)
	}
	var source fabric.MR
	if err == nil {
		source, err = c.RegMR(make([]byte, size), 0)
	}
	name := c.PeerPrivateData()
	if err == nil && len(name) < 12 {
		err = fmt.Errorf("the server names its memory with %d bytes", len(name))
	}
	if err != nil {
		return nil, errors.Join(err, c.Close())
	}
	write := []fabric.SendWR{{
		ID: writeID, Op: fabric.OpWrite, Flags: fabric.Signaled,
		SGL:  []fabric.SGE{{Buf: source.Bytes(), LKey: source.LKey()}},
		RKey: binary.BigEndian.Uint32(name), RemoteOffset: binary.BigEndian.Uint64(name[4:]),
	}}
	posted := 0
	return &Instance{
		Call: func(int) error {
			if posted-m.writes >= depth {
				if err := m.until(func() bool { return posted-m.writes < depth }); err != nil {
					return err
				}
			}
			posted++
			return c.Post(write)
		},
		Flush:    func() error { return errors.Join(m.send(), m.receive()) },
		Counters: func() (client, _ Counters) { return p.counters(), Counters{} },
		Close:    c.Close,
	}, nil
}
