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

func lacksPrivateData(n int) error {
	return &fabric.CapabilityError{Provider: name, Capability: fmt.Sprintf("private data of %d bytes (at most %d)", n, MaxPrivateData)}
}

// beginSetup moves the connection to stateSetup. endSetup must be called with the result.
func (c *Conn) beginSetup(passive bool) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.state == stateOver:
		return c.connErrLocked()
	case c.passive != passive:
		return fmt.Errorf("%w: Connect is for resolved connections, Accept and Reject for requests", ErrMisuse)
	case c.state != stateNew:
		return fmt.Errorf("%w: connection setup has already begun", ErrMisuse)
	}
	c.state = stateSetup
	c.setups.Add(1)
	return nil
}

// endSetup ends the connection if its setup has failed, and returns the reason.
func (c *Conn) endSetup(ctx context.Context, err error) error {
	defer c.setups.Done()
	if err == nil {
		return nil
	}
	c.dropSocket()
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
}

// useSocket makes s the socket of the current setup, which Close may interrupt.
func (c *Conn) useSocket(s socket) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.sock = s
	if c.shut.Load() {
		return net.ErrClosed
	}
	return nil
}

// dropSocket closes the socket after a failed setup.
func (c *Conn) dropSocket() {
	c.mu.Lock()
	s := c.sock
	c.sock = socket{}
	c.mu.Unlock()
	if s.f != nil {
		s.f.Close()
	}
}

// bounded calls wait, which waits for the socket, and interrupts it when ctx ends, when Close
// is called, or, if d is not zero, after d.
func (c *Conn) bounded(ctx context.Context, d time.Duration, wait func() error) error {
	f := c.sock.f
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
	if c.shut.Load() {
		return net.ErrClosed
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	return wait()
}

// Connect implements fabric.Conn.
func (c *Conn) Connect(ctx context.Context, privateData []byte) error {
	if len(privateData) > MaxPrivateData {
		return lacksPrivateData(len(privateData))
	}
	if err := c.beginSetup(false); err != nil {
		return err
	}
	return c.endSetup(ctx, c.connect(ctx, privateData))
}

func (c *Conn) connect(ctx context.Context, privateData []byte) error {
	if err := c.dial(ctx); err != nil {
		return &SetupError{Addr: c.target, Reason: "no TCP connection", Err: err}
	}
	return c.greet(ctx, privateData)
}

// greet does the initiator's handshake on the TCP connection.
func (c *Conn) greet(ctx context.Context, privateData []byte) error {
	rtr, err := c.initiate(ctx, privateData)
	if err == nil {
		err = c.establish(ctx)
	}
	if err != nil {
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

// dial connects to the first address that can be reached.
func (c *Conn) dial(ctx context.Context) error {
	var errs []error
	for _, a := range c.addrs {
		err := c.dialTo(ctx, a)
		if err == nil {
			return nil
		}
		c.dropSocket()
		errs = append(errs, &net.OpError{Op: "dial", Net: "tcp", Addr: a, Err: err})
		if ctx.Err() != nil || c.shut.Load() {
			break
		}
	}
	if len(errs) == 1 {
		return errs[0]
	}
	return errors.Join(errs...)
}

func (c *Conn) dialTo(ctx context.Context, a *net.TCPAddr) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	s, finish, err := startConnect(a)
	if err != nil {
		return err
	}
	if err := c.useSocket(s); err != nil {
		return err
	}
	if finish != nil {
		err = c.bounded(ctx, 0, func() (err error) {
			werr := s.rc.Write(func(uintptr) (done bool) {
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
	local, err := localAddr(s.fd)
	if err != nil {
		return err
	}
	if local.Port == a.Port && local.IP.Equal(a.IP) {
		return errSelf
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.laddr, c.raddr = local, a
	return nil
}

// errSelf: TCP connects a socket to itself if it picks the destination port as the source port
// and nothing listens there (RFC 9293 section 3.5, simultaneous open).
var errSelf = errors.New("connection to itself")

// initiate is the initiator's side of the handshake. rtr is the operation of
// the Ready To Receive frame that has been agreed on, or zero.
func (c *Conn) initiate(ctx context.Context, privateData []byte) (rtr fabric.Opcode, err error) {
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
	if err := c.say(ctx, frame); err != nil {
		return refuse("MPA request not sent", c.netError("write", err))
	}

	st, ok := c.p.stages.Get().(*stage)
	if !ok {
		st = new(stage)
	}
	defer c.p.stages.Put(st)
	in := startReader{buf: st[:]}
	err = c.bounded(ctx, cfg.withDefaults().ReplyTimeout, func() error { return in.readAll(c.sock.f, mpa.Reply) })
	if err == mpa.ErrKey {
		err = &StrangerError{Answer: append([]byte(nil), in.buf[:min(in.n, maxAnswer)]...)}
	}
	if err != nil {
		return refuse("no valid MPA reply", c.netError("read", err))
	}
	rep, pd := in.start, in.privateData()
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
		return refuse("the peer requires markers", nil)
	}
	if in.more() {
		// RFC 5044 section 7.1.2.
		return refuse("the peer sent before the first message of this side", nil)
	}
	c.crc = (s.Flags|rep.Flags)&mpa.FlagCRC != 0
	ird, ord := c.attr.InboundReads, c.attr.OutboundReads
	if enhanced {
		if got.ORD != mpa.ReadsUnknown && int(got.ORD) > ird {
			// RFC 6581 section 9: a responder's ORD must not exceed the offered IRD.
			c.refuseReply(mpa.CodeInsufficientIRD)
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
				c.refuseReply(mpa.CodeNoMatchingRTR)
				return refuse("the peer chose none of the offered Ready To Receive frames", nil)
			}
		}
	}
	c.mu.Lock()
	c.ird, c.ord, c.peerData = ird, ord, pd
	c.mu.Unlock()
	return rtr, nil
}

// netError returns an error of the socket's os.File as one of the network, so that it is not
// taken for one of a file with the name "tcp". Others it returns as they are.
func (c *Conn) netError(op string, err error) error {
	if file, ok := err.(*fs.PathError); ok {
		return &net.OpError{Op: op, Net: "tcp", Source: c.laddr, Addr: c.raddr, Err: file.Err}
	}
	return err
}

// refuseReply sends a Terminate message that says why the reply is not acceptable. RFC 6581
// section 8.
func (c *Conn) refuseReply(code mpa.Code) {
	ulpdu := ddp.AppendUntagged(nil, &ddp.Untagged{Last: true, ULP: rdmap.Control(rdmap.OpTerminate), QN: rdmap.QNTerminate, MSN: 1})
	ulpdu = rdmap.AppendTerminate(ulpdu, &rdmap.Terminate{Cause: llp(code)})
	c.sock.f.Write(mpa.AppendFPDU(nil, ulpdu, c.crc))
}

// say sends a start-up frame. It normally fits into the buffer of a new socket.
func (c *Conn) say(ctx context.Context, frame []byte) error {
	var v [1]iovec
	setIovec(&v[0], frame)
	n, err := writev(c.sock.fd, v[:])
	if err != nil && err != errAgain {
		return err
	}
	if n == len(frame) {
		return nil
	}
	return c.bounded(ctx, 0, func() error {
		_, err := c.sock.f.Write(frame[n:])
		return err
	})
}

// A startReader reads a start-up frame. It may read beyond the frame, since nothing may follow
// before the frame has been answered.
type startReader struct {
	buf   []byte // at least maxStart bytes
	n     int    // bytes of buf that have been read
	start mpa.Start
}

// maxStart is one byte more than the longest frame, to detect that something follows it.
const maxStart = mpa.StartLen + mpa.MaxPrivateData + 1

// whole parses what has been read. done reports that the frame is complete.
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

// establish turns a TCP connection after its handshake into an iWARP stream.
func (c *Conn) establish(ctx context.Context) error {
	c.sizeSegments()
	c.held.Store(c.passive)
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := ctx.Err(); err != nil {
		return err
	}
	if c.shut.Load() || c.state != stateSetup {
		return net.ErrClosed
	}
	// This fails if the poller does not watch the socket.
	if err := c.sock.f.SetDeadline(time.Time{}); err != nil {
		return &SetupError{Addr: c.raddr.String(), Reason: "descriptor", Err: err}
	}
	c.state = stateUp
	c.up.Store(true)
	return nil
}

// sizeSegments sets the segment sizes.
func (c *Conn) sizeSegments() {
	ulpdu := mpa.MaxULPDU
	switch fpdu := c.p.cfg.MaxFPDU; {
	case fpdu > 0:
		ulpdu = mpa.MULPDU(fpdu)
	case c.sameHost():
		ulpdu = localFPDU
	default:
		if emss := segmentSize(c.sock.fd); emss > 0 {
			ulpdu = mpa.MULPDU(emss)
		}
	}
	// Payloads of a multiple of eight keep the rest of a message aligned. At least eight bytes
	// make progress.
	c.maxTagged = max(ulpdu-ddp.TaggedLen, 8) &^ 7
	c.maxUntagged = max(ulpdu-ddp.UntaggedLen, 8) &^ 7
}

func (c *Conn) sameHost() bool {
	l, lok := c.laddr.(*net.TCPAddr)
	r, rok := c.raddr.(*net.TCPAddr)
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
	if err := c.beginSetup(true); err != nil {
		return err
	}
	err := c.respond(ctx, privateData)
	if err == nil {
		err = c.establish(ctx)
	}
	return c.endSetup(ctx, err)
}

// respond is the responder's half of the handshake.
func (c *Conn) respond(ctx context.Context, privateData []byte) error {
	if waiting, eof := peek(c.sock.fd); waiting {
		// RFC 5044 section 7.1.2: the initiator waits for the reply.
		c.replyReject(nil)
		return &SetupError{Addr: c.raddr.String(), Reason: "the peer sends before it has been answered"}
	} else if eof {
		return &SetupError{Addr: c.raddr.String(), Reason: "the peer has given up", Err: io.ErrUnexpectedEOF}
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
		// The reply states the effective values: our ORD is at most the peer's IRD, and our
		// IRD at most the peer's ORD.
		if c.reqRDMA.IRD != mpa.ReadsUnknown {
			ord = min(ord, int(c.reqRDMA.IRD))
		}
		if c.reqRDMA.ORD != mpa.ReadsUnknown {
			ird = min(ird, int(c.reqRDMA.ORD))
		}
		grant = mpa.Enhanced{IRD: uint16(ird), ORD: uint16(ord)}
		if c.reqRDMA.PeerToPeer {
			grant.PeerToPeer = true
			// RFC 6581 section 4.3: choose one of those offered. A Write is the cheapest.
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
	if err := c.say(ctx, frame); err != nil {
		return &SetupError{Addr: c.raddr.String(), Reason: "reply not sent", Err: c.netError("write", err)}
	}
	return nil
}

func (c *Conn) enhanced() bool {
	return c.req.Revision >= 2 && c.req.Flags&mpa.FlagEnhanced != 0
}

// replyReject sends a rejection without waiting for space in the socket: a peer that does not
// read may not get it.
func (c *Conn) replyReject(privateData []byte) error {
	return sendReject(c.sock.f, &c.req, c.enhanced(), privateData)
}

func sendReject(f *os.File, req *mpa.Start, enhanced bool, privateData []byte) error {
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
	f.SetWriteDeadline(time.Now().Add(time.Second))
	_, err := f.Write(frame)
	return err
}

// Reject implements fabric.Conn.
func (c *Conn) Reject(privateData []byte) error {
	if len(privateData) > MaxPrivateData {
		return lacksPrivateData(len(privateData))
	}
	if err := c.beginSetup(true); err != nil {
		return err
	}
	err := c.replyReject(privateData)
	c.endSetup(context.Background(), ErrRejected)
	c.Close()
	if err != nil && !errors.Is(err, os.ErrDeadlineExceeded) {
		return &SetupError{Addr: c.raddr.String(), Reason: "rejection not sent", Err: c.netError("write", err)}
	}
	return nil
}
