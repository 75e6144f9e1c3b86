package shm

import (
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/rpcrdma/rpcrdma/internal/llp"
	"github.com/rpcrdma/rpcrdma/iwarp"
)

// Connection setup is a message each way over the Unix socket. Positions of fields:
//
//	 0  magic, which names the version of all this
//	 8  kind: request, accept or reject
//	10  IRD, ORD and the length of the private data, which follows
//
// A request carries two descriptors, the memory of its sender and a bell; an acceptance its sender's memory.
const (
	magic     = "rpcrdma\x02"
	headerLen = 16
	maxHello  = headerLen + iwarp.MaxPrivateData

	maxFDs = 4 // that are received of one message; those beyond the kernel closes
)

type kind uint16

const (
	request kind = iota + 1
	accept
	reject
)

// fds is how many descriptors a message has.
func (k kind) fds() int {
	switch k {
	case request:
		return 2
	case accept:
		return 1
	}
	return 0
}

// say sends a message, which fits into the buffer of a new socket.
func say(c *net.UnixConn, k kind, o llp.Offer, fds ...int) error {
	b := append(make([]byte, 0, maxHello), magic...)
	for _, v := range []int{int(k), o.IRD, o.ORD, len(o.PrivateData)} {
		b = binary.BigEndian.AppendUint16(b, uint16(v))
	}
	b = append(b, o.PrivateData...)
	var rights []byte
	if len(fds) > 0 {
		rights = unix.UnixRights(fds...)
	}
	n, _, err := c.WriteMsgUnix(b, rights, nil)
	if err == nil && n < len(b) {
		err = io.ErrShortWrite
	}
	return err
}

// A StrangerError is a peer that has sent something else than the message which was expected. The
// connection setup ends.
type StrangerError struct {
	Reason string // for humans
}

func (e *StrangerError) Error() string { return "the peer is no rpcrdma program: " + e.Reason }

// hear receives a message of one of the kinds, and its descriptors, which the caller closes.
func hear(c *net.UnixConn, kinds ...kind) (k kind, o llp.Offer, fds []int, err error) {
	defer func() {
		if err != nil {
			closeAll(fds)
			fds = nil
		}
	}()
	strange := func(format string, args ...any) (kind, llp.Offer, []int, error) {
		return 0, o, fds, &StrangerError{fmt.Sprintf(format, args...)}
	}
	b, rights := make([]byte, maxHello+1), make([]byte, unix.CmsgSpace(4*maxFDs))
	for n, want := 0, headerLen; ; {
		got, gotRights, _, _, err := c.ReadMsgUnix(b[n:], rights)
		if n += got; err == nil && got == 0 {
			err = io.ErrUnexpectedEOF
		}
		fds = append(fds, descriptors(rights[:gotRights])...)
		switch {
		case err != nil:
			return 0, o, fds, err
		case len(fds) > maxFDs:
			return strange("it sends more than %d descriptors", maxFDs)
		case n < want:
			continue
		case string(b[:len(magic)]) != magic:
			return strange("it begins with %q", b[:len(magic)])
		}
		word := func(i int) int { return int(binary.BigEndian.Uint16(b[len(magic)+2*i:])) }
		k, o.IRD, o.ORD = kind(word(0)), word(1), word(2)
		want = headerLen + word(3)
		switch {
		case !slices.Contains(kinds, k):
			return strange("a message of kind %d", k)
		case want > maxHello || n > want:
			return strange("a message of %d bytes", max(n, want))
		case n < want:
			continue
		case len(fds) != k.fds():
			return strange("%d descriptors with a message of kind %d", len(fds), k)
		}
		o.PrivateData = b[headerLen:n:n]
		return k, o, fds, nil
	}
}

// descriptors returns those of a control message. They are closed on exec: ReadMsgUnix asks for that.
func descriptors(rights []byte) (fds []int) {
	messages, err := unix.ParseSocketControlMessage(rights)
	if err != nil {
		return nil
	}
	for i := range messages {
		if got, err := unix.ParseUnixRights(&messages[i]); err == nil {
			fds = append(fds, got...)
		}
	}
	return fds
}

func closeAll(fds []int) {
	for _, fd := range fds {
		unix.Close(fd)
	}
}

// A setup makes one connection, over conn.
type setup struct {
	cfg    *Config
	target string        // of the end that asks
	conn   *net.UnixConn // at that end nil until it connects
	fds    []int         // of the request, at the end that was asked
	done   bool          // a stream has taken over conn
}

var _ llp.Setup = (*setup)(nil)

// Close implements llp.Setup.
func (s *setup) Close() {
	if s.conn != nil && !s.done {
		s.conn.Close()
	}
	closeAll(s.fds)
	s.fds = nil
}

// stream connects the memories, with the descriptors of the other one and of the bell.
func (s *setup) stream(mine memory, theirFD, bell int) (llp.Stream, error) {
	theirs, err := theirMemory(theirFD)
	if err == nil {
		err = s.conn.SetDeadline(time.Time{})
	}
	if err != nil {
		theirs.unmap()
		return nil, err
	}
	s.done = true
	return newStream(mine, theirs, bell, s.conn), nil
}

// Connect implements llp.Setup.
func (s *setup) Connect(ctx context.Context, o llp.Offer) (made llp.Stream, answer llp.Offer, err error) {
	defer func() { err = s.failed("no connection", err) }()
	var dialer net.Dialer
	c, err := dialer.DialContext(ctx, "unix", s.target)
	if err != nil {
		return nil, answer, err
	}
	s.conn = c.(*net.UnixConn)
	if err := s.conn.SetDeadline(time.Now().Add(s.cfg.ReplyTimeout)); err != nil {
		return nil, answer, err
	}
	stop := context.AfterFunc(ctx, func() { s.conn.SetDeadline(past) })
	defer stop()
	mine, fd, err := newMemory(s.cfg)
	if err != nil {
		return nil, answer, err
	}
	defer unix.Close(fd)
	bell, theirs, err := newBell()
	defer func() {
		if made == nil {
			mine.unmap()
			unix.Close(bell)
		}
	}()
	if err != nil {
		return nil, answer, err
	}
	err = say(s.conn, request, o, fd, theirs)
	unix.Close(theirs)
	if err != nil {
		return nil, answer, err
	}
	k, answer, fds, err := hear(s.conn, accept, reject)
	defer closeAll(fds)
	if err != nil || k == reject {
		return nil, answer, err
	}
	made, err = s.stream(mine, fds[0], bell)
	return made, answer, err
}

// Accept implements llp.Setup.
func (s *setup) Accept(ctx context.Context, o llp.Offer) (made llp.Stream, err error) {
	defer func() { err = s.failed("request not accepted", err) }()
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	mine, fd, err := newMemory(s.cfg)
	if err != nil {
		return nil, err
	}
	defer unix.Close(fd)
	defer func() {
		if made == nil {
			mine.unmap()
		}
	}()
	if made, err = s.stream(mine, s.fds[0], s.fds[1]); err != nil {
		return nil, err
	}
	unix.Close(s.fds[0])
	s.fds = nil
	if err := say(s.conn, accept, o, fd); err != nil {
		made.File().Close()
		made.Close()
		mine = memory{} // the stream has unmapped it
		return nil, err
	}
	return made, nil
}

// Reject implements llp.Setup.
func (s *setup) Reject(privateData []byte) error {
	return s.failed("rejection not sent", say(s.conn, reject, llp.Offer{PrivateData: privateData}))
}

// failed says what has failed.
func (s *setup) failed(what string, err error) error {
	if err == nil {
		return nil
	}
	_, remote := s.Addrs()
	return setupError(remote.String(), what, err)
}

// Addrs implements llp.Setup.
func (s *setup) Addrs() (local, remote net.Addr) {
	if s.conn == nil {
		return nil, Addr{Name: s.target, UID: noID, GID: noID}
	}
	to := Addr{Name: s.conn.RemoteAddr().String(), UID: noID, GID: noID}
	if rc, err := s.conn.SyscallConn(); err == nil {
		rc.Control(func(fd uintptr) {
			if cred, err := unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED); err == nil {
				to.PID, to.UID, to.GID = int(cred.Pid), cred.Uid, cred.Gid
			}
		})
	}
	return Addr{Name: s.conn.LocalAddr().String(), PID: os.Getpid(), UID: uint32(os.Getuid()), GID: uint32(os.Getgid())}, to
}

var past = time.Unix(1, 0)
