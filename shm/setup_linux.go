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

// Connection setup exchanges one message in each direction over the Unix socket. The offsets of the fields are:
//
//	 0  magic, which identifies the version of the protocol
//	 8  kind
//	10  IRD, ORD and the length of the private data, which follows the header
//	16  the connection number, which the peer uses in hints to the sender
//
// A request carries three descriptors: the sender's memory, its board and a bell. An acceptance carries the sender's
// memory and board. A request to join a neighbor carries no bell, and its acceptance no board. If the peer does not know
// the neighbor, it replies with unknown, and this end sends a normal request.
const (
	magic     = "rpcrdma\x03"
	headerLen = 20
	maxHello  = headerLen + iwarp.MaxPrivateData

	maxFDs = 4 // room for descriptors in one receive; the kernel closes any others
)

type kind uint16

const (
	request kind = iota + 1
	accept
	reject
	requestJoin
	acceptJoin
	unknown // the neighbor to join is not known: send a request instead
)

// fds returns the number of descriptors that a message of the kind carries.
func (k kind) fds() int {
	switch k {
	case request:
		return 3
	case accept, requestJoin:
		return 2
	case acceptJoin:
		return 1
	}
	return 0
}

// An offer is an llp.Offer with the number of the connection.
type offer struct {
	llp.Offer
	number uint32
}

// say sends a message. The message fits into the buffer of a new socket.
func say(c *net.UnixConn, k kind, o offer, fds ...int) error {
	b := append(make([]byte, 0, maxHello), magic...)
	for _, v := range []int{int(k), o.IRD, o.ORD, len(o.PrivateData)} {
		b = binary.BigEndian.AppendUint16(b, uint16(v))
	}
	b = binary.BigEndian.AppendUint32(b, o.number)
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

// A StrangerError means that a peer sent something other than the expected message. It ends the connection setup.
type StrangerError struct {
	Reason string // for humans
}

func (e *StrangerError) Error() string { return "the peer is no rpcrdma program: " + e.Reason }

// hear receives a message of one of the given kinds and its descriptors. The caller must close the descriptors.
func hear(c *net.UnixConn, kinds ...kind) (k kind, o offer, fds []int, err error) {
	defer func() {
		if err != nil {
			closeAll(fds)
			fds = nil
		}
	}()
	strange := func(format string, args ...any) (kind, offer, []int, error) {
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
		o.number = binary.BigEndian.Uint32(b[len(magic)+8:])
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

// descriptors returns the descriptors in control messages. ReadMsgUnix makes them close-on-exec.
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

// A setup establishes one connection, using conn.
type setup struct {
	p      *Provider
	target string        // address to connect to; initiator only
	conn   *net.UnixConn // nil until the initiator connects
	at     *neighbor     // nil until the setup joins one
	number uint32        // number of the connection at the neighbor
	peer   uint32        // number of the connection at the peer
	fds    []int         // descriptors of the request; responder only
	done   bool          // a stream owns conn and at
}

var _ llp.Setup = (*setup)(nil)

// Close implements llp.Setup.
func (s *setup) Close() {
	if !s.done {
		if s.conn != nil {
			s.conn.Close()
		}
		s.visit(nil)
	}
	closeAll(s.fds)
	s.fds = nil
}

// visit makes n the neighbor of the setup, which takes over the caller's reference to n. The setup leaves its previous
// neighbor.
func (s *setup) visit(n *neighbor) {
	if s.at != nil {
		s.at.exit(s.number)
		s.at.release()
	}
	if s.at = n; n != nil {
		s.number = n.number()
	}
}

// stream returns a stream over the memory of this end and that of the peer.
func (s *setup) stream(mine memory, theirFD int) (llp.Stream, error) {
	theirs, err := theirMemory(theirFD)
	if err == nil {
		err = s.conn.SetDeadline(time.Time{})
	}
	if err != nil {
		theirs.unmap()
		return nil, err
	}
	s.done = true
	return newStream(mine, theirs, s.at, s.number, s.peer, s.conn), nil
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
	if err := s.conn.SetDeadline(time.Now().Add(s.p.cfg.ReplyTimeout)); err != nil {
		return nil, answer, err
	}
	stop := context.AfterFunc(ctx, func() { s.conn.SetDeadline(past) })
	defer stop()
	mine, fd, err := newMemory(&s.p.cfg)
	if err != nil {
		return nil, answer, err
	}
	defer unix.Close(fd)
	defer func() {
		if made == nil {
			mine.unmap()
		}
	}()
	k, got, fds, err := s.ask(o, fd)
	defer closeAll(fds)
	if err != nil || k == reject {
		return nil, got.Offer, err
	}
	s.peer = got.number
	if k == accept {
		if err := s.at.meet(fds[1], neighborKey{target: s.target}); err != nil {
			return nil, answer, err
		}
	}
	made, err = s.stream(mine, fds[0])
	return made, got.Offer, err
}

// ask requests a connection with the memory of fd and returns the answer. If this end has a neighbor at the target
// address, ask first requests to join it.
func (s *setup) ask(o llp.Offer, fd int) (k kind, answer offer, fds []int, err error) {
	if n := s.p.neighbors.find(neighborKey{target: s.target}); n != nil {
		s.visit(n)
		if err := say(s.conn, requestJoin, offer{o, s.number}, fd, n.file); err != nil {
			return 0, answer, nil, err
		}
		k, answer, fds, err = hear(s.conn, acceptJoin, reject, unknown)
		if err != nil || k != unknown {
			return k, answer, fds, err
		}
	}
	bell, theirs, err := newBell()
	if err != nil {
		return 0, answer, nil, err
	}
	defer unix.Close(theirs)
	n, err := s.p.neighbors.newNeighbor(bell)
	if err != nil {
		return 0, answer, nil, err
	}
	s.visit(n)
	if err := say(s.conn, request, offer{o, s.number}, fd, n.file, theirs); err != nil {
		return 0, answer, nil, err
	}
	return hear(s.conn, accept, reject)
}

// heard takes over a request and its descriptors. again reports that this end does not know the neighbor to join, so
// that the peer must send another request.
func (s *setup) heard(k kind, o offer, fds []int) (again bool, err error) {
	s.fds, s.peer = fds, o.number
	if k == request {
		return false, checkBell(fds[2])
	}
	key, err := boardKey(fds[1])
	if err != nil {
		return false, err
	}
	if n := s.p.neighbors.find(key); n != nil {
		s.visit(n)
		return false, nil
	}
	closeAll(s.fds)
	s.fds = nil
	return true, say(s.conn, unknown, offer{})
}

// Accept implements llp.Setup.
func (s *setup) Accept(ctx context.Context, o llp.Offer) (made llp.Stream, err error) {
	defer func() { err = s.failed("request not accepted", err) }()
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	k, fds := acceptJoin, make([]int, 1, 2)
	if s.at == nil {
		n, err := s.p.neighbors.newNeighbor(s.fds[2])
		s.fds = s.fds[:2]
		if err != nil {
			return nil, err
		}
		s.visit(n)
		key, err := boardKey(s.fds[1])
		if err == nil {
			err = n.meet(s.fds[1], key)
		}
		if err != nil {
			return nil, err
		}
		k, fds = accept, append(fds, n.file)
	}
	mine, fd, err := newMemory(&s.p.cfg)
	if err != nil {
		return nil, err
	}
	fds[0] = fd
	defer unix.Close(fd)
	defer func() {
		if made == nil {
			mine.unmap()
		}
	}()
	if made, err = s.stream(mine, s.fds[0]); err != nil {
		return nil, err
	}
	closeAll(s.fds)
	s.fds = nil
	err = say(s.conn, k, offer{o, s.number}, fds...)
	if k == accept {
		s.at.closeFile()
	}
	if err != nil {
		made.Parker().Close()
		made.Close()
		mine = memory{} // the stream has unmapped it
		return nil, err
	}
	return made, nil
}

// Reject implements llp.Setup.
func (s *setup) Reject(privateData []byte) error {
	return s.failed("rejection not sent", say(s.conn, reject, offer{Offer: llp.Offer{PrivateData: privateData}}))
}

// failed wraps err in an error that names the step of the setup, or returns nil.
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
