package rpcbind

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"strings"
	"time"

	"github.com/rpcrdma/rpcrdma/proto/oncrpc"
	"github.com/rpcrdma/rpcrdma/proto/xdr"
)

// Initial and maximum interval between retransmissions over UDP.
const (
	firstWait = 500 * time.Millisecond
	lastWait  = 8 * time.Second
)

// A conn is a connection for one operation.
type conn struct {
	net.Conn
	netid  Netid          // TCP, TCP6, UDP or UDP6
	remote netip.AddrPort // rpcbind itself
	wait   time.Duration  // firstWait, except in tests
	buf    []byte         // the reply
}

func dial(ctx context.Context, network, addr string) (*conn, error) {
	var d net.Dialer
	nc, err := d.DialContext(ctx, network, addr)
	if err != nil {
		return nil, ended(ctx, err)
	}
	c := &conn{Conn: nc, netid: TCP, wait: firstWait}
	switch a := nc.RemoteAddr().(type) {
	case *net.TCPAddr:
		c.remote = a.AddrPort()
	case *net.UDPAddr:
		c.netid, c.remote = UDP, a.AddrPort()
	}
	c.remote = netip.AddrPortFrom(c.remote.Addr().Unmap(), c.remote.Port())
	c.netid = c.netid.For(c.remote.Addr())
	return c, nil
}

// ended returns err, or the context's error if that caused it.
func ended(ctx context.Context, err error) error {
	if err != nil && ctx.Err() != nil {
		return ctx.Err()
	}
	return err
}

// call makes a call and decodes the results with decode, which must consume all of them.
func (c *conn) call(ctx context.Context, vers uint32, p uint32, args []byte, decode func(*xdr.Decoder)) error {
	h := oncrpc.CallHeader{XID: rand.Uint32(), RPCVers: oncrpc.Version, Prog: Program, Vers: vers, Proc: p}
	msg := append(oncrpc.AppendCall(nil, &h), args...)

	// A deadline in the past makes reads and writes fail at once.
	stop := context.AfterFunc(ctx, func() { c.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	exchange := c.exchangeTCP
	if strings.HasPrefix(string(c.netid), string(UDP)) {
		exchange = c.exchangeUDP
	}
	reply, err := exchange(ctx, h.XID, msg)
	if err != nil {
		return ended(ctx, err)
	}

	var r oncrpc.ReplyHeader
	n, err := oncrpc.ConsumeReply(reply, &r)
	if err != nil {
		return &BadReplyError{err}
	}
	if err := r.Err(); err != nil {
		if refusal, ok := err.(*oncrpc.RPCError); ok {
			refusal.Prog, refusal.Vers, refusal.Proc = h.Prog, h.Vers, h.Proc
		}
		return err
	}
	d := xdr.NewDecoder(reply[n:])
	decode(&d)
	if err := d.End(); err != nil {
		return &BadReplyError{err}
	}
	return nil
}

// answers reports whether a message is the reply to xid. Others are ignored: they are late or
// forged.
func answers(msg []byte, xid uint32) bool {
	got, t, ok := oncrpc.Peek(msg)
	return ok && t == oncrpc.Reply && got == xid
}

// exchangeUDP retransmits the call until there is a reply. The socket is connected, so the
// kernel drops datagrams from other addresses. All calls are idempotent. Retransmissions have
// the same xid, so that a late reply to the first call is accepted.
func (c *conn) exchangeUDP(ctx context.Context, xid uint32, msg []byte) ([]byte, error) {
	if c.buf == nil {
		c.buf = make([]byte, 1<<16) // the longest datagram
	}
	for wait := c.wait; ; wait = min(2*wait, lastWait) {
		if _, err := c.Write(msg); err != nil {
			return nil, err
		}
		if err := c.SetReadDeadline(time.Now().Add(wait)); err != nil {
			return nil, err
		}
		// Check ctx after setting the deadline: if it ends later, its deadline overrides this
		// one.
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		for {
			n, err := c.Read(c.buf)
			if errors.Is(err, os.ErrDeadlineExceeded) && ctx.Err() == nil {
				break
			}
			if err != nil {
				return nil, err
			}
			if answers(c.buf[:n], xid) {
				return c.buf[:n], nil
			}
		}
	}
}

// exchangeTCP sends the call and reads records until one is the reply. RFC 5531 section 11.
func (c *conn) exchangeTCP(_ context.Context, xid uint32, msg []byte) ([]byte, error) {
	record := oncrpc.AppendRecordMark(make([]byte, 0, oncrpc.RecordMarkSize+len(msg)), len(msg), true)
	if _, err := c.Write(append(record, msg...)); err != nil {
		return nil, err
	}
	for {
		if err := c.readRecord(); err != nil {
			return nil, err
		}
		if answers(c.buf, xid) {
			return c.buf, nil
		}
	}
}

func (c *conn) readRecord() error {
	c.buf = c.buf[:0]
	for {
		var mark [oncrpc.RecordMarkSize]byte
		if _, err := io.ReadFull(c, mark[:]); err != nil {
			return cutShort(err)
		}
		size, last, _ := oncrpc.ConsumeRecordMark(mark[:])
		switch {
		case size == 0 && !last:
			return &BadReplyError{errors.New("empty fragment")} // the peer could send them forever
		case uint64(size) > uint64(maxReply-len(c.buf)):
			return &BadReplyError{fmt.Errorf("over %d bytes", maxReply)}
		}
		start := len(c.buf)
		c.buf = append(c.buf, make([]byte, size)...)
		if _, err := io.ReadFull(c, c.buf[start:]); err != nil {
			return cutShort(err)
		}
		if last {
			return nil
		}
	}
}

// cutShort: the stream must not end before the end of the reply.
func cutShort(err error) error {
	if err == io.EOF || err == io.ErrUnexpectedEOF {
		return &BadReplyError{fmt.Errorf("the connection ended first: %w", io.ErrUnexpectedEOF)}
	}
	return err
}
