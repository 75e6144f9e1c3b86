package nfs

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"strconv"
	"syscall"
	"time"

	"github.com/rpcrdma/rpcrdma/proto/oncrpc"
	"github.com/rpcrdma/rpcrdma/proto/xdr"
)

// Limits of MOUNT over TCP.
const (
	tcpTimeout  = 15 * time.Second // for a connection or a reply, if the context has no earlier deadline
	maxTCPReply = 1 << 20          // bytes

	// The reserved ports, and how many of them are tried.
	lowReserved, highReserved = 665, 1023
	reservedTries             = 16
)

// A tcpConn makes RPC calls over TCP with record marking (RFC 5531 section 11), one
// at a time.
type tcpConn struct {
	net.Conn
	cred oncrpc.Auth
	xid  uint32
	buf  []byte
}

// dialTCP connects to addr. With reserved it binds a port below 1024 if the process may:
// servers refuse other ports for exports that are "secure", the default on Linux.
func dialTCP(ctx context.Context, addr string, cred oncrpc.Auth, reserved bool) (*tcpConn, error) {
	var c net.Conn
	var err error
	if reserved {
		c, err = dialReserved(ctx, addr)
	}
	if c == nil && err == nil {
		d := net.Dialer{Timeout: tcpTimeout}
		c, err = d.DialContext(ctx, "tcp", addr)
	}
	if err != nil {
		return nil, err
	}
	return &tcpConn{Conn: c, cred: cred, xid: rand.Uint32()}, nil
}

// dialReserved returns neither connection nor error if no reserved port can be bound.
func dialReserved(ctx context.Context, addr string) (net.Conn, error) {
	const ports = highReserved - lowReserved + 1
	first := rand.IntN(ports)
	for i := range reservedTries {
		d := net.Dialer{
			Timeout:   tcpTimeout,
			LocalAddr: &net.TCPAddr{Port: lowReserved + (first+i)%ports},
		}
		c, err := d.DialContext(ctx, "tcp", addr)
		var se *os.SyscallError
		switch {
		case err == nil:
			return c, nil
		case errors.Is(err, os.ErrPermission):
			return nil, nil
		case errors.Is(err, syscall.EADDRINUSE), errors.Is(err, syscall.EADDRNOTAVAIL):
			// In use, or in TIME_WAIT with this server.
		case errors.As(err, &se) && se.Syscall == "bind":
		default:
			return nil, err
		}
	}
	return nil, nil
}

// call makes a call and decodes its results with decode.
func (t *tcpConn) call(ctx context.Context, prog, vers, proc uint32, args []byte, decode func(*xdr.Decoder)) error {
	t.xid++
	h := oncrpc.CallHeader{
		XID: t.xid, RPCVers: oncrpc.Version, Prog: prog, Vers: vers, Proc: proc, Cred: t.cred,
	}
	b := oncrpc.AppendRecordMark(t.buf[:0], h.Size()+len(args), true)
	b = oncrpc.AppendCall(b, &h)
	t.buf = append(b, args...)

	if err := t.SetDeadline(time.Now().Add(tcpTimeout)); err != nil {
		return err
	}
	// A deadline in the past makes the I/O below fail at once. stop returns true if it was not
	// set; only then can the connection be used for the next call.
	stop := context.AfterFunc(ctx, func() { t.SetDeadline(time.Unix(1, 0)) })
	err := t.exchange()
	if !stop() && err != nil {
		return ctx.Err()
	}
	if err != nil {
		return err
	}

	var r oncrpc.ReplyHeader
	n, err := oncrpc.ConsumeReply(t.buf, &r)
	if err != nil {
		return &BadReplyError{Op: "RPC over TCP", Reason: err.Error()}
	}
	if r.XID != t.xid {
		return &BadReplyError{Op: "RPC over TCP", Reason: "it answers another call"}
	}
	if err := r.Err(); err != nil {
		var re *oncrpc.RPCError
		if errors.As(err, &re) {
			re.Prog, re.Vers, re.Proc = prog, vers, proc
		}
		return err
	}
	d := xdr.NewDecoder(t.buf[n:])
	decode(&d)
	if err := d.End(); err != nil {
		return &BadReplyError{Op: "RPC over TCP", Reason: err.Error()}
	}
	return nil
}

// exchange sends the record in t.buf and reads the reply record into it.
func (t *tcpConn) exchange() error {
	if _, err := t.Write(t.buf); err != nil {
		return err
	}
	t.buf = t.buf[:0]
	for {
		var mark [oncrpc.RecordMarkSize]byte
		if _, err := io.ReadFull(t, mark[:]); err != nil {
			return cutShort(err)
		}
		size, last, _ := oncrpc.ConsumeRecordMark(mark[:])
		// With empty fragments the peer could keep this loop running forever.
		if size == 0 && !last {
			return &BadReplyError{Op: "RPC over TCP", Reason: "empty fragment"}
		}
		if uint64(size) > uint64(maxTCPReply-len(t.buf)) {
			return &BadReplyError{Op: "RPC over TCP", Reason: "more than " + strconv.Itoa(maxTCPReply) + " bytes"}
		}
		start := len(t.buf)
		t.buf = append(t.buf, make([]byte, size)...)
		if _, err := io.ReadFull(t, t.buf[start:]); err != nil {
			return cutShort(err)
		}
		if last {
			return nil
		}
	}
}

// cutShort is the error of an incomplete reply. It is not io.EOF, which a caller could take
// for the end of a file.
func cutShort(err error) error {
	if err == io.EOF || err == io.ErrUnexpectedEOF {
		return &BadReplyError{Op: "RPC over TCP", Reason: "the server hung up"}
	}
	return fmt.Errorf("reading the reply: %w", err)
}

// noEOF converts io.EOF where the stream must not end.
func noEOF(err error) error {
	if err == io.EOF {
		return io.ErrUnexpectedEOF
	}
	return err
}
