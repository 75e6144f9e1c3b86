package iwarp

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"time"

	"github.com/rpcrdma/rpcrdma/fabric"
	"github.com/rpcrdma/rpcrdma/proto/ddp"
	"github.com/rpcrdma/rpcrdma/proto/mpa"
	"github.com/rpcrdma/rpcrdma/proto/rdmap"
)

// Set-up is a request from the side that connects and a reply from the side
// that accepts, and then iWARP (RFC 5044 section 7.1, RFC 6581):
//
//	initiator                                  responder
//	    | -- MPA Request, IRD and ORD wanted -->  |
//	    | <-- MPA Reply, IRD and ORD granted --   |
//	    | -- first FPDU ----------------------->  |   and only then
//	    | <------------------------- first FPDU - |

// localFPDU is the longest ULPDU to a peer on this host or one that is known to
// take it. Its payload is a multiple of eight in tagged segments.
const localFPDU = ddp.TaggedLen + 65000

func lacksPrivateData(n int) error {
	return &fabric.CapabilityError{Provider: name, Capability: fmt.Sprintf("private data of %d bytes (at most %d)", n, MaxPrivateData)}
}

// beginSetup moves the connection into set-up. end must be called with the
// result.
func (c *Conn) beginSetup(ctx context.Context, passive bool) (sctx context.Context, end func(error) error, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.state == stateOver:
		return nil, nil, c.connErrLocked()
	case c.passive != passive:
		return nil, nil, fmt.Errorf("%w: Connect is for resolved connections, Accept and Reject for requests", ErrMisuse)
	case c.state != stateNew:
		return nil, nil, fmt.Errorf("%w: set-up has begun already", ErrMisuse)
	}
	sctx, cancel := context.WithCancel(ctx)
	done := make(chan struct{})
	c.state, c.cancelSetup, c.setupDone = stateSetup, cancel, done
	return sctx, func(err error) error {
		defer close(done)
		defer cancel()
		if err == nil {
			return nil
		}
		var rejected *fabric.RejectError
		if errors.As(err, &rejected) {
			c.end(&failure{err: fabric.ConnError{Provider: name, Remote: true, Cause: err}})
			return err
		}
		if c.shut.Load() {
			c.end(&failure{err: fabric.ConnError{Provider: name, Clean: true}})
			return c.connErr()
		}
		if ctx.Err() != nil {
			err = context.Cause(ctx)
		}
		c.end(&failure{err: fabric.ConnError{Provider: name, Cause: err}})
		return err
	}, nil
}

// bound makes reads and writes of tc fail when ctx ends or d has passed.
func bound(ctx context.Context, tc *net.TCPConn, d time.Duration) (release func()) {
	if d > 0 {
		tc.SetDeadline(time.Now().Add(d))
	}
	stop := context.AfterFunc(ctx, func() { tc.SetDeadline(past) })
	return func() { stop() }
}

// Connect implements fabric.Conn.
func (c *Conn) Connect(ctx context.Context, privateData []byte) error {
	if len(privateData) > MaxPrivateData {
		return lacksPrivateData(len(privateData))
	}
	sctx, end, err := c.beginSetup(ctx, false)
	if err != nil {
		return err
	}
	return end(c.connect(sctx, privateData))
}

func (c *Conn) connect(ctx context.Context, privateData []byte) error {
	tc, err := c.dial(ctx)
	if err != nil {
		return &SetupError{Addr: c.target, Reason: "no TCP connection", Err: err}
	}
	release := bound(ctx, tc, c.p.cfg.withDefaults().ReplyTimeout)
	rtr, err := c.initiate(tc, privateData)
	release()
	if err == nil {
		err = c.establish(ctx, tc)
	}
	if err != nil {
		tc.Close()
		return err
	}
	if rtr != 0 {
		// RFC 6581 section 4.3: the frame that lets the responder send.
		c.mu.Lock()
		c.pushSend(&fabric.SendWR{Op: rtr, RKey: noSTag}, true)
		c.mu.Unlock()
		c.kick()
	}
	c.startNudging()
	return nil
}

func (c *Conn) dial(ctx context.Context) (*net.TCPConn, error) {
	var d net.Dialer
	var errs []error
	for _, a := range c.addrs {
		conn, err := d.DialContext(ctx, "tcp", a.String())
		if err == nil {
			return conn.(*net.TCPConn), nil
		}
		errs = append(errs, err)
		if ctx.Err() != nil {
			break
		}
	}
	return nil, errors.Join(errs...)
}

// initiate is the initiator's side of the handshake. rtr is the operation of
// the Ready To Receive frame that has been agreed on, or zero.
func (c *Conn) initiate(tc *net.TCPConn, privateData []byte) (rtr fabric.Opcode, err error) {
	cfg := &c.p.cfg
	refuse := func(reason string, err error) (fabric.Opcode, error) {
		return 0, &SetupError{Addr: c.target, Reason: reason, Err: err}
	}
	s := mpa.Start{Kind: mpa.Request, Flags: mpa.FlagEnhanced, Revision: mpa.MaxRevision, PDLength: mpa.EnhancedLen + len(privateData)}
	if cfg.CRC || cfg.RequireCRC {
		s.Flags |= mpa.FlagCRC
	}
	want := mpa.Enhanced{IRD: uint16(c.attr.InboundReads), ORD: uint16(c.attr.OutboundReads)}
	if cfg.PeerToPeer {
		want.PeerToPeer, want.RTRWrite, want.RTRRead = true, true, true
	}
	frame := mpa.AppendStart(make([]byte, 0, mpa.StartLen+s.PDLength), &s)
	frame = mpa.AppendEnhanced(frame, &want)
	frame = append(frame, privateData...)
	if _, err := tc.Write(frame); err != nil {
		return refuse("request not sent", err)
	}

	var rep mpa.Start
	pd, err := readStart(tc, &rep, mpa.Reply)
	if err != nil {
		return refuse("no usable reply", err)
	}
	var got mpa.Enhanced
	enhanced := rep.Revision >= 2 && rep.Flags&mpa.FlagEnhanced != 0
	if enhanced {
		mpa.ConsumeEnhanced(pd, &got) // long enough: ConsumeStart has seen to it
		pd = pd[mpa.EnhancedLen:]
	}
	if rep.Flags&mpa.FlagReject != 0 {
		return 0, &fabric.RejectError{Addr: c.target, PrivateData: pd}
	}
	if rep.Flags&mpa.FlagMarkers != 0 {
		return refuse("the peer demands markers", nil)
	}
	if waiting, _ := peekConn(tc); waiting {
		// RFC 5044 section 7.1.2.
		return refuse("the peer sends before it has been sent to", nil)
	}
	c.crc = (s.Flags|rep.Flags)&mpa.FlagCRC != 0
	ird, ord := c.attr.InboundReads, c.attr.OutboundReads
	if enhanced {
		if got.ORD != mpa.ReadsUnknown && int(got.ORD) > ird {
			// RFC 6581 section 9: a responder asks for no more than it was
			// offered.
			c.refuseReply(tc, mpa.CodeInsufficientIRD)
			return refuse(fmt.Sprintf("the peer wants %d Reads at once, and was offered %d", got.ORD, ird), nil)
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
				c.refuseReply(tc, mpa.CodeNoMatchingRTR)
				return refuse("the peer has chosen no Ready To Receive frame that it was offered", nil)
			}
		}
	}
	c.mu.Lock()
	c.ird, c.ord, c.peerData = ird, ord, pd
	c.mu.Unlock()
	return rtr, nil
}

// refuseReply tells the responder by a Terminate message why its reply is not
// acceptable. RFC 6581 section 8.
func (c *Conn) refuseReply(tc *net.TCPConn, code mpa.Code) {
	ulpdu := ddp.AppendUntagged(nil, &ddp.Untagged{Last: true, ULP: rdmap.Control(rdmap.OpTerminate), QN: rdmap.QNTerminate, MSN: 1})
	ulpdu = rdmap.AppendTerminate(ulpdu, &rdmap.Terminate{Cause: llp(code)})
	tc.Write(mpa.AppendFPDU(nil, ulpdu, c.crc))
}

// readStart reads a start-up frame of the given kind and nothing behind it.
func readStart(r io.Reader, s *mpa.Start, kind mpa.Kind) (privateData []byte, err error) {
	var b [mpa.StartLen]byte
	for n := 0; ; {
		m, rerr := r.Read(b[n:])
		n += m
		_, err := mpa.ConsumeStart(b[:n], s)
		if err == nil {
			break
		}
		if err != mpa.ErrShort {
			return nil, err
		}
		if rerr != nil {
			if rerr == io.EOF {
				rerr = io.ErrUnexpectedEOF
			}
			return nil, rerr
		}
	}
	if s.Kind != kind {
		return nil, mpa.ErrKey
	}
	if s.PDLength == 0 {
		return nil, nil
	}
	privateData = make([]byte, s.PDLength)
	if _, err := io.ReadFull(r, privateData); err != nil {
		return nil, err
	}
	return privateData, nil
}

// peekConn reports whether the peer has sent more, or ended its side.
func peekConn(tc *net.TCPConn) (waiting, eof bool) {
	rc, err := tc.SyscallConn()
	if err != nil {
		return false, true
	}
	rc.Control(func(fd uintptr) { waiting, eof = peek(int(fd)) })
	return waiting, eof
}

// establish turns a TCP connection after its handshake into an iWARP stream. It
// takes over the descriptor; tc is closed.
func (c *Conn) establish(ctx context.Context, tc *net.TCPConn) error {
	tc.SetDeadline(time.Time{})
	if err := ctx.Err(); err != nil {
		return err
	}
	f, err := tc.File() // a descriptor of our own, in the poller on its own
	if err != nil {
		return &SetupError{Addr: tc.RemoteAddr().String(), Reason: "descriptor", Err: err}
	}
	rc, err := f.SyscallConn()
	if err == nil {
		err = rc.Control(func(fd uintptr) { c.sock = socket{f: f, rc: rc, fd: int(fd)} })
	}
	if err == nil {
		err = f.SetDeadline(time.Time{}) // fails if the poller does not watch it
	}
	if err != nil {
		f.Close()
		return &SetupError{Addr: tc.RemoteAddr().String(), Reason: "descriptor", Err: err}
	}
	c.sizeSegments(tc)
	c.held.Store(c.passive)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.laddr, c.raddr = tc.LocalAddr(), tc.RemoteAddr()
	if c.state != stateSetup {
		f.Close()
		return net.ErrClosed
	}
	tc.Close()
	c.state = stateUp
	c.up.Store(true)
	return nil
}

// sizeSegments decides how much goes into one FPDU.
func (c *Conn) sizeSegments(tc *net.TCPConn) {
	ulpdu := mpa.MaxULPDU
	switch fpdu := c.p.cfg.MaxFPDU; {
	case fpdu > 0:
		ulpdu = mpa.MULPDU(fpdu)
	case sameHost(tc):
		ulpdu = localFPDU
	default:
		if emss := segmentSize(c.sock.fd); emss > 0 {
			ulpdu = mpa.MULPDU(emss)
		}
	}
	// Payloads of a multiple of eight keep what follows aligned; a segment of
	// less than that would never get a message across.
	c.maxTagged = max(ulpdu-ddp.TaggedLen, 8) &^ 7
	c.maxUntagged = max(ulpdu-ddp.UntaggedLen, 8) &^ 7
}

func sameHost(tc *net.TCPConn) bool {
	l, lok := tc.LocalAddr().(*net.TCPAddr)
	r, rok := tc.RemoteAddr().(*net.TCPAddr)
	return lok && rok && (r.IP.IsLoopback() || r.IP.Equal(l.IP))
}

// Accept implements fabric.Conn.
func (c *Conn) Accept(ctx context.Context, privateData []byte) error {
	if len(privateData) > MaxPrivateData {
		return lacksPrivateData(len(privateData))
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	sctx, end, err := c.beginSetup(ctx, true)
	if err != nil {
		return err
	}
	tc := c.takeRequest()
	release := bound(sctx, tc, 0)
	err = c.respond(tc, privateData)
	release()
	if err == nil {
		err = c.establish(sctx, tc)
	}
	if err != nil {
		tc.Close()
	}
	return end(err)
}

// takeRequest takes the TCP connection of a request out of Close's reach: from
// now on it is the set-up's to close.
func (c *Conn) takeRequest() *net.TCPConn {
	c.mu.Lock()
	defer c.mu.Unlock()
	tc := c.tcp
	c.tcp = nil
	return tc
}

// respond is the responder's half of the handshake.
func (c *Conn) respond(tc *net.TCPConn, privateData []byte) error {
	addr := tc.RemoteAddr().String()
	if waiting, eof := peekConn(tc); waiting {
		// RFC 5044 section 7.1.2: the initiator waits for the reply.
		c.replyReject(tc, nil)
		return &SetupError{Addr: addr, Reason: "the peer sends before it has been answered"}
	} else if eof {
		return &SetupError{Addr: addr, Reason: "the peer has given up", Err: io.ErrUnexpectedEOF}
	}
	rep := mpa.Start{Kind: mpa.Reply, Flags: c.req.Flags & mpa.FlagCRC, Revision: c.req.Revision, PDLength: len(privateData)}
	if c.p.cfg.RequireCRC {
		rep.Flags |= mpa.FlagCRC
	}
	ird, ord := c.attr.InboundReads, c.attr.OutboundReads
	var grant mpa.Enhanced
	if c.enhanced() {
		rep.Flags |= mpa.FlagEnhanced
		rep.PDLength += mpa.EnhancedLen
		// What is granted is what is in force: our ORD no more than the
		// peer's IRD, and our IRD no more than it will use.
		if c.reqRDMA.IRD != mpa.ReadsUnknown {
			ord = min(ord, int(c.reqRDMA.IRD))
		}
		if c.reqRDMA.ORD != mpa.ReadsUnknown {
			ird = min(ird, int(c.reqRDMA.ORD))
		}
		grant = mpa.Enhanced{IRD: uint16(ird), ORD: uint16(ord)}
		if c.reqRDMA.PeerToPeer {
			grant.PeerToPeer = true
			// RFC 6581 section 4.3: one of what was offered. A Write costs
			// the least.
			switch {
			case c.reqRDMA.RTRWrite:
				grant.RTRWrite = true
			case c.reqRDMA.RTRRead:
				grant.RTRRead = true
			case c.reqRDMA.RTRSend:
				grant.RTRSend = true
				c.rtrFPDU = true
			default:
				grant.RTRWrite = true
			}
		}
	}
	c.crc = rep.Flags&mpa.FlagCRC != 0
	frame := mpa.AppendStart(make([]byte, 0, mpa.StartLen+rep.PDLength), &rep)
	if c.enhanced() {
		frame = mpa.AppendEnhanced(frame, &grant)
	}
	frame = append(frame, privateData...)
	c.mu.Lock()
	c.ird, c.ord = ird, ord
	c.mu.Unlock()
	if _, err := tc.Write(frame); err != nil {
		return &SetupError{Addr: addr, Reason: "reply not sent", Err: err}
	}
	return nil
}

func (c *Conn) enhanced() bool {
	return c.req.Revision >= 2 && c.req.Flags&mpa.FlagEnhanced != 0
}

// replyReject sends a rejection, which is as long as there is room for in the
// socket: a peer that does not read does not get it.
func (c *Conn) replyReject(tc *net.TCPConn, privateData []byte) error {
	return sendReject(tc, &c.req, c.enhanced(), privateData)
}

func sendReject(tc *net.TCPConn, req *mpa.Start, enhanced bool, privateData []byte) error {
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
	tc.SetWriteDeadline(time.Now().Add(time.Second))
	_, err := tc.Write(frame)
	return err
}

// Reject implements fabric.Conn.
func (c *Conn) Reject(privateData []byte) error {
	if len(privateData) > MaxPrivateData {
		return lacksPrivateData(len(privateData))
	}
	_, end, err := c.beginSetup(context.Background(), true)
	if err != nil {
		return err
	}
	tc := c.takeRequest()
	err = c.replyReject(tc, privateData)
	tc.Close()
	end(ErrRejected)
	c.Close()
	if err != nil && !errors.Is(err, os.ErrDeadlineExceeded) {
		return &SetupError{Addr: c.raddr.String(), Reason: "rejection not sent", Err: err}
	}
	return nil
}
