package iwarp

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"time"

	"github.com/rpcrdma/rpcrdma/fabric"
	"github.com/rpcrdma/rpcrdma/internal/llp"
	"github.com/rpcrdma/rpcrdma/proto/ddp"
	"github.com/rpcrdma/rpcrdma/proto/mpa"
	"github.com/rpcrdma/rpcrdma/proto/rdmap"
)

// Connection setup is an MPA request from the initiator and a reply from the responder (RFC
// 5044 section 7.1, RFC 6581):
//
//	initiator                                  responder
//	    | -- MPA Request, IRD and ORD wanted -->  |
//	    | <-- MPA Reply, IRD and ORD granted --   |
//	    | -- first FPDU ----------------------->  |   and only then
//	    | <------------------------- first FPDU - |

// localFPDU is the longest ULPDU to a peer on this host. Its payload is a multiple of eight in
// tagged segments.
const localFPDU = ddp.TaggedLen + 65000

// checkPrivateData returns an error if b is too long.
func (c *Conn) checkPrivateData(b []byte) error {
	if len(b) > MaxPrivateData {
		return c.p.lacks(fmt.Sprintf("private data of %d bytes (at most %d)", len(b), MaxPrivateData))
	}
	return nil
}

// A setup establishes a connection. It is owned by the goroutine that began it, in Connect, Accept or Reject, and is
// not used after these return.
type setup struct {
	c            *Conn
	passive      bool
	target       string         // as given to Resolve
	addrs        []*net.TCPAddr // of target
	laddr, raddr net.Addr
	req          mpa.Start // the peer's request, if passive
	reqRDMA      mpa.Enhanced
	peerData     []byte
	over         llp.Setup // replaces MPA over TCP; nil for TCP
	link
}

// beginSetup moves the connection to phaseSetup. The caller must pass the result of the setup to its end method.
func (c *Conn) beginSetup(passive bool) (*setup, error) {
	st := c.state.Lock()
	defer c.state.Unlock()
	switch {
	case st.phase == phaseOver:
		return nil, st.connErr()
	case c.passive != passive:
		return nil, fmt.Errorf("%w: Connect is for resolved connections, Accept and Reject for requests", ErrMisuse)
	case st.phase != phaseNew:
		return nil, fmt.Errorf("%w: connection setup has already begun", ErrMisuse)
	}
	s := st.setup
	st.phase, st.setup = phaseSetup, nil
	c.setups.Add(1)
	return s, nil
}

// end completes the setup, whose result is err. If the setup has failed, it ends the connection and returns the reason.
func (s *setup) end(ctx context.Context, err error) error {
	c := s.c
	defer c.setups.Done()
	if err == nil {
		return nil
	}
	s.dropSocket()
	var rejected *fabric.RejectError
	if errors.As(err, &rejected) {
		c.end(&failure{err: fabric.ConnError{Remote: true, Cause: err}})
		return err
	}
	if c.shut.Load() {
		c.end(&failure{err: fabric.ConnError{Clean: true}})
		return c.connErr()
	}
	if ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	c.end(&failure{err: fabric.ConnError{Cause: err}})
	return err
}

// useSocket makes sock the socket of the setup, which Close may interrupt.
func (s *setup) useSocket(sock socket) error {
	s.sock = sock
	s.c.state.Lock().sock = sock
	s.c.state.Unlock()
	if s.c.shut.Load() { // Close sets it before it looks for the socket
		return net.ErrClosed
	}
	return nil
}

// dropSocket closes the socket after a failed setup.
func (s *setup) dropSocket() {
	sock := s.sock
	s.useSocket(socket{})
	if sock.at != nil {
		sock.at.Close()
		sock.stream.Close()
	}
	if s.over != nil {
		s.over.Close()
	}
}

// bounded calls wait, which waits for the socket. It interrupts wait when ctx ends, when Close is called, or, if d is
// not zero, after d.
func (s *setup) bounded(ctx context.Context, d time.Duration, wait func() error) error {
	f := s.sock.at
	if d > 0 {
		if err := f.SetDeadline(time.Now().Add(d)); err != nil {
			return err
		}
	}
	if ctx.Done() != nil {
		stop := context.AfterFunc(ctx, func() { f.SetDeadline(past) })
		defer stop() // fails only if ctx has ended, and the setup with it
	}
	// Close sets shut before it sets the deadline.
	if s.c.shut.Load() {
		return net.ErrClosed
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	return wait()
}

// Connect implements fabric.Conn.
func (c *Conn) Connect(ctx context.Context, privateData []byte) error {
	if err := c.checkPrivateData(privateData); err != nil {
		return err
	}
	s, err := c.beginSetup(false)
	if err != nil {
		return err
	}
	return s.end(ctx, s.connect(ctx, privateData))
}

func (s *setup) connect(ctx context.Context, privateData []byte) error {
	if s.over != nil {
		return s.connectOver(ctx, privateData)
	}
	if err := s.dial(ctx); err != nil {
		return &SetupError{Addr: s.target, Reason: "no TCP connection", Err: err}
	}
	return s.greet(ctx, privateData)
}

// greet performs the initiator's handshake on the TCP connection.
func (s *setup) greet(ctx context.Context, privateData []byte) error {
	c := s.c
	rtr, err := s.initiate(ctx, privateData)
	if err == nil {
		err = s.establish(ctx)
	}
	if err != nil {
		return err
	}
	if rtr != 0 {
		// RFC 6581 section 4.3: the frame that lets the responder send.
		c.state.Lock().pushSend(&fabric.SendWR{Op: rtr, RKey: noSTag}, nil, true)
		c.state.Unlock()
		c.kick()
	}
	c.startNudging()
	return nil
}

// dial connects to the first reachable address.
func (s *setup) dial(ctx context.Context) error {
	var errs []error
	for _, a := range s.addrs {
		err := s.dialTo(ctx, a)
		if err == nil {
			return nil
		}
		s.dropSocket()
		errs = append(errs, &net.OpError{Op: "dial", Net: "tcp", Addr: a, Err: err})
		if ctx.Err() != nil || s.c.shut.Load() {
			break
		}
	}
	if len(errs) == 1 {
		return errs[0]
	}
	return errors.Join(errs...)
}

func (s *setup) dialTo(ctx context.Context, a *net.TCPAddr) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	sock, finish, err := startConnect(a)
	if err != nil {
		return err
	}
	if err := s.useSocket(sock); err != nil {
		return err
	}
	if finish != nil {
		err = s.bounded(ctx, 0, func() (err error) {
			werr := sock.at.Write(func(uintptr) (done bool) {
				done, err = finish()
				return done
			})
			if err == nil {
				err = werr
			}
			return err
		})
		if err != nil {
			return err
		}
	}
	local, err := localAddr(sock.fd)
	if err != nil {
		return err
	}
	if local.Port == a.Port && local.IP.Equal(a.IP) {
		return errSelf
	}
	s.laddr, s.raddr = local, a
	st := s.c.state.Lock()
	st.laddr, st.raddr = local, a
	s.c.state.Unlock()
	return nil
}

// errSelf: TCP connects a socket to itself if it picks the destination port as the source port
// and nothing listens there (RFC 9293 section 3.5, simultaneous open).
var errSelf = errors.New("connection to itself")

// initiate performs the initiator's half of the handshake. rtr is the operation of the Ready To Receive frame that both
// ends agreed on, or zero.
func (s *setup) initiate(ctx context.Context, privateData []byte) (rtr fabric.Opcode, err error) {
	cfg := &s.c.p.cfg
	refuse := func(reason string, err error) (fabric.Opcode, error) {
		return 0, &SetupError{Addr: s.target, Reason: reason, Err: err}
	}
	if cfg.TLS != nil {
		host, _, _ := net.SplitHostPort(s.target)
		s.sock.secure(s.c.p.tlsConfig(host), true)
		if err := s.useSocket(s.sock); err != nil {
			return 0, err
		}
		if err := s.bounded(ctx, cfg.withDefaults().ReplyTimeout, s.sock.secured.handshake); err != nil {
			return refuse(whyNoTLS(err), s.netError("handshake", err))
		}
	}
	start := mpa.Start{Kind: mpa.Request, Flags: mpa.FlagEnhanced, Revision: mpa.MaxRevision, PDLength: mpa.EnhancedLen + len(privateData)}
	if cfg.CRC || cfg.RequireCRC {
		start.Flags |= mpa.FlagCRC
	}
	want := mpa.Enhanced{IRD: uint16(s.c.attr.InboundReads), ORD: uint16(s.c.attr.OutboundReads)}
	if cfg.PeerToPeer {
		want.PeerToPeer, want.RTRWrite, want.RTRRead = true, true, true
	}
	frame := mpa.AppendStart(make([]byte, 0, mpa.StartLen+start.PDLength), &start)
	frame = mpa.AppendEnhanced(frame, &want)
	frame = append(frame, privateData...)
	if err := s.say(ctx, frame); err != nil {
		return refuse("MPA request not sent", s.netError("write", err))
	}

	st, ok := s.c.p.stages.Get().(*stage)
	if !ok {
		st = new(stage)
	}
	defer s.c.p.stages.Put(st)
	in := startReader{buf: st[:]}
	err = s.bounded(ctx, cfg.withDefaults().ReplyTimeout, func() error { return in.readAll(s.sock.peerIO(), mpa.Reply) })
	if err == mpa.ErrKey {
		err = &StrangerError{Answer: append([]byte(nil), in.buf[:min(in.n, maxAnswer)]...)}
	}
	if err != nil {
		return refuse("no valid MPA reply", s.netError("read", err))
	}
	rep, pd := in.start, in.privateData()
	var got mpa.Enhanced
	enhanced := rep.Revision >= 2 && rep.Flags&mpa.FlagEnhanced != 0
	if enhanced {
		mpa.ConsumeEnhanced(pd, &got) // cannot fail: ConsumeStart has checked the length
		pd = pd[mpa.EnhancedLen:]
	}
	if rep.Flags&mpa.FlagReject != 0 {
		return 0, &fabric.RejectError{Addr: s.target, PrivateData: pd}
	}
	if rep.Flags&mpa.FlagMarkers != 0 {
		return refuse("the peer requires markers", nil)
	}
	if in.more() {
		// RFC 5044 section 7.1.2.
		return refuse("the peer sent before the first message of this side", nil)
	}
	s.crc = (start.Flags|rep.Flags)&mpa.FlagCRC != 0
	ird, ord := s.c.attr.InboundReads, s.c.attr.OutboundReads
	if enhanced {
		if got.ORD != mpa.ReadsUnknown && int(got.ORD) > ird {
			// RFC 6581 section 9: a responder's ORD must not exceed the offered IRD.
			s.refuseReply(mpa.CodeInsufficientIRD)
			return refuse(fmt.Sprintf("the peer wants %d concurrent Reads, was offered %d", got.ORD, ird), nil)
		}
		if got.IRD != mpa.ReadsUnknown {
			ord = min(ord, int(got.IRD))
		}
		if cfg.PeerToPeer && got.PeerToPeer {
			switch {
			case got.RTRWrite:
				rtr = fabric.OpWrite
			case got.RTRRead && ord > 0:
				rtr = fabric.OpRead
			default:
				s.refuseReply(mpa.CodeNoMatchingRTR)
				return refuse("the peer chose none of the offered Ready To Receive frames", nil)
			}
		}
	}
	s.ird, s.ord = ird, ord
	s.c.state.Lock().peerData = pd
	s.c.state.Unlock()
	return rtr, nil
}

// netError converts an error of the socket's os.File to a net.OpError, so that it does not look like an error of a file
// named "tcp". It returns other errors unchanged.
func (s *setup) netError(op string, err error) error {
	if file, ok := err.(*fs.PathError); ok {
		return &net.OpError{Op: op, Net: "tcp", Source: s.laddr, Addr: s.raddr, Err: file.Err}
	}
	return err
}

// refuseReply sends a Terminate message with the reason why the reply is not acceptable. RFC 6581 section 8.
func (s *setup) refuseReply(code mpa.Code) {
	ulpdu := ddp.AppendUntagged(nil, &ddp.Untagged{Last: true, ULP: rdmap.Control(rdmap.OpTerminate), QN: rdmap.QNTerminate, MSN: 1})
	ulpdu = rdmap.AppendTerminate(ulpdu, &rdmap.Terminate{Cause: llpCause(code)})
	s.sock.peerIO().Write(mpa.AppendFPDU(nil, ulpdu, s.crc))
}

// say sends a start-up frame. It normally fits into the buffer of a new socket.
func (s *setup) say(ctx context.Context, frame []byte) error {
	n := 0
	if s.sock.secured == nil {
		var v [1]iovec
		setIovec(&v[0], frame)
		var err error
		if n, err = s.sock.stream.Writev(v[:]); err != nil && err != errAgain {
			return err
		}
	}
	if n == len(frame) {
		return nil
	}
	return s.bounded(ctx, 0, func() error {
		_, err := s.sock.peerIO().Write(frame[n:])
		return err
	})
}

// A startReader reads a start-up frame. It may read beyond the frame, because nothing may follow the frame before it is
// answered.
type startReader struct {
	buf   []byte // at least maxStart bytes
	n     int    // bytes of buf that have been read
	start mpa.Start
}

// maxStart is one byte more than the longest frame, to detect that something follows it.
const maxStart = mpa.StartLen + mpa.MaxPrivateData + 1

// whole parses what has been read. done reports whether the frame is complete.
func (r *startReader) whole(kind mpa.Kind) (done bool, err error) {
	_, err = mpa.ConsumeStart(r.buf[:r.n], &r.start)
	switch {
	case err == mpa.ErrShort:
		return false, nil
	case err != nil:
		return false, err
	case r.start.Kind != kind:
		return false, mpa.ErrKey
	}
	return r.n >= mpa.StartLen+r.start.PDLength, nil
}

// readAll reads until the frame is complete.
func (r *startReader) readAll(from io.Reader, kind mpa.Kind) error {
	for {
		n, rerr := from.Read(r.buf[r.n:maxStart])
		r.n += n
		if done, err := r.whole(kind); done || err != nil {
			return err
		}
		if rerr == io.EOF {
			rerr = io.ErrUnexpectedEOF
		}
		if rerr != nil {
			return rerr
		}
	}
}

// privateData returns a copy of the frame's private data.
func (r *startReader) privateData() []byte {
	return append([]byte(nil), r.buf[mpa.StartLen:mpa.StartLen+r.start.PDLength]...)
}

// more reports whether something follows the frame.
func (r *startReader) more() bool { return r.n > mpa.StartLen+r.start.PDLength }

// establish turns a TCP connection into an iWARP stream, after the handshake.
func (s *setup) establish(ctx context.Context) error {
	c := s.c
	s.sizeSegments()
	if sec := s.sock.secured; sec != nil {
		sec.records.waits = false
	}
	l := new(link)
	*l = s.link
	l.share, _ = l.sock.stream.(llp.Sharer)
	c.held.Store(c.passive && !l.eitherFirst)
	c.attach(l)
	st := c.state.Lock()
	defer c.state.Unlock()
	if err := ctx.Err(); err != nil {
		return err
	}
	if c.shut.Load() || st.phase != phaseSetup {
		return net.ErrClosed
	}
	// SetDeadline fails if the poller does not watch the socket.
	if err := l.sock.at.SetDeadline(time.Time{}); err != nil {
		return &SetupError{Addr: s.raddr.String(), Reason: "descriptor", Err: err}
	}
	st.phase = phaseUp
	c.link.Store(l)
	return nil
}

// attach sets the link of the sender and the receiver, before either runs.
func (c *Conn) attach(l *link) {
	c.tx.Lock().link = l
	c.tx.Unlock()
	c.rx.Lock().link = l
	c.rx.Unlock()
}

// sizeSegments sets the segment sizes.
func (s *setup) sizeSegments() {
	ulpdu := mpa.MaxULPDU
	switch fpdu := s.c.p.cfg.MaxFPDU; {
	case fpdu > 0:
		ulpdu = mpa.MULPDU(fpdu)
	case s.over != nil || s.sock.secured != nil || s.sameHost():
		ulpdu = localFPDU
	default:
		if emss := segmentSize(s.sock.fd); emss > 0 {
			ulpdu = mpa.MULPDU(emss)
		}
	}
	// Payloads of a multiple of eight bytes keep the rest of a message aligned. At least eight bytes are needed to make
	// progress.
	s.maxTagged = max(ulpdu-ddp.TaggedLen, 8) &^ 7
	s.maxUntagged = max(ulpdu-ddp.UntaggedLen, 8) &^ 7
}

func (s *setup) sameHost() bool {
	l, lok := s.laddr.(*net.TCPAddr)
	r, rok := s.raddr.(*net.TCPAddr)
	return lok && rok && (r.IP.IsLoopback() || r.IP.Equal(l.IP))
}

// Accept implements fabric.Conn.
func (c *Conn) Accept(ctx context.Context, privateData []byte) error {
	if err := c.checkPrivateData(privateData); err != nil {
		return err
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	s, err := c.beginSetup(true)
	if err != nil {
		return err
	}
	err = s.respond(ctx, privateData)
	if err == nil {
		err = s.establish(ctx)
	}
	return s.end(ctx, err)
}

// respond performs the responder's half of the handshake.
func (s *setup) respond(ctx context.Context, privateData []byte) error {
	if s.over != nil {
		return s.acceptOver(ctx, privateData)
	}
	if waiting, eof := peek(s.sock.fd); waiting {
		// RFC 5044 section 7.1.2: the initiator must not send before it has the reply.
		s.replyReject(nil)
		return &SetupError{Addr: s.raddr.String(), Reason: "the peer sends before it has been answered"}
	} else if eof {
		return &SetupError{Addr: s.raddr.String(), Reason: "the peer has given up", Err: io.ErrUnexpectedEOF}
	}
	rep := mpa.Start{Kind: mpa.Reply, Flags: s.req.Flags & mpa.FlagCRC, Revision: s.req.Revision, PDLength: len(privateData)}
	if s.c.p.cfg.RequireCRC {
		rep.Flags |= mpa.FlagCRC
	}
	ird, ord := s.c.attr.InboundReads, s.c.attr.OutboundReads
	var grant mpa.Enhanced
	if s.enhanced() {
		rep.Flags |= mpa.FlagEnhanced
		rep.PDLength += mpa.EnhancedLen
		// The reply states the effective values: our ORD is at most the peer's IRD, and our
		// IRD at most the peer's ORD.
		if s.reqRDMA.IRD != mpa.ReadsUnknown {
			ord = min(ord, int(s.reqRDMA.IRD))
		}
		if s.reqRDMA.ORD != mpa.ReadsUnknown {
			ird = min(ird, int(s.reqRDMA.ORD))
		}
		grant = mpa.Enhanced{IRD: uint16(ird), ORD: uint16(ord)}
		if s.reqRDMA.PeerToPeer {
			grant.PeerToPeer = true
			// RFC 6581 section 4.3: choose one of the offered frames. A Write is the cheapest.
			switch {
			case s.reqRDMA.RTRWrite:
				grant.RTRWrite = true
			case s.reqRDMA.RTRRead:
				grant.RTRRead = true
			case s.reqRDMA.RTRSend:
				grant.RTRSend = true
				s.rtrFPDU = true
			default:
				grant.RTRWrite = true
			}
		}
	}
	s.crc = rep.Flags&mpa.FlagCRC != 0
	frame := mpa.AppendStart(make([]byte, 0, mpa.StartLen+rep.PDLength), &rep)
	if s.enhanced() {
		frame = mpa.AppendEnhanced(frame, &grant)
	}
	frame = append(frame, privateData...)
	s.ird, s.ord = ird, ord
	if err := s.say(ctx, frame); err != nil {
		return &SetupError{Addr: s.raddr.String(), Reason: "reply not sent", Err: s.netError("write", err)}
	}
	return nil
}

func (s *setup) enhanced() bool {
	return s.req.Revision >= 2 && s.req.Flags&mpa.FlagEnhanced != 0
}

// replyReject sends a rejection. It waits at most a second for space in the socket, so a peer that does not read may
// not receive it.
func (s *setup) replyReject(privateData []byte) error {
	if s.over != nil {
		return s.over.Reject(privateData)
	}
	return sendReject(&s.sock, &s.req, s.enhanced(), privateData)
}

func sendReject(s *socket, req *mpa.Start, enhanced bool, privateData []byte) error {
	rep := mpa.Start{Kind: mpa.Reply, Flags: mpa.FlagReject | req.Flags&mpa.FlagCRC, Revision: min(req.Revision, mpa.MaxRevision), PDLength: len(privateData)}
	if enhanced {
		rep.Flags |= mpa.FlagEnhanced
		rep.PDLength += mpa.EnhancedLen
	}
	frame := mpa.AppendStart(make([]byte, 0, mpa.StartLen+rep.PDLength), &rep)
	if enhanced {
		frame = mpa.AppendEnhanced(frame, &mpa.Enhanced{})
	}
	frame = append(frame, privateData...)
	s.f.SetWriteDeadline(time.Now().Add(time.Second))
	_, err := s.peerIO().Write(frame)
	return err
}

// Reject implements fabric.Conn.
func (c *Conn) Reject(privateData []byte) error {
	if err := c.checkPrivateData(privateData); err != nil {
		return err
	}
	s, err := c.beginSetup(true)
	if err != nil {
		return err
	}
	err = s.replyReject(privateData)
	s.end(context.Background(), ErrRejected)
	c.Close()
	if err != nil && !errors.Is(err, os.ErrDeadlineExceeded) {
		return &SetupError{Addr: s.raddr.String(), Reason: "rejection not sent", Err: s.netError("write", err)}
	}
	return nil
}
