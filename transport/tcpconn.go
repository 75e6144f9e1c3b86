package transport

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"runtime"
	"sync/atomic"
	"time"

	"github.com/rpcrdma/rpcrdma/fabric"
	"github.com/rpcrdma/rpcrdma/internal/lockorder"
	"github.com/rpcrdma/rpcrdma/proto/oncrpc"
	"github.com/rpcrdma/rpcrdma/rpc"
	"github.com/rpcrdma/rpcrdma/transport/internal/arena"
	"github.com/rpcrdma/rpcrdma/transport/internal/records"
)

// ONC RPC over TCP, for the same callers and the same handlers: each RPC message is a record (RFC 5531 section 11) with
// all of its data. Calls go in both directions, and the message type determines which half of this end a record is for,
// as over RDMA.
//
// One goroutine reads a connection, and executes Inline calls. A goroutine that has something to send writes it,
// together with the messages of others, or leaves it to the goroutine that is writing: see package records. Neither
// waits for a peer that does not read, so two ends that write to each other at full speed keep reading.

// A tcpConn is one connection over TCP, either end of it.
type tcpConn struct {
	core
	nc net.Conn
	r  *records.Reader
	w  *records.Writer

	secured atomic.Pointer[tls.ConnectionState] // nil without TLS

	state lockorder.Value[tcpState]
	spare []byte  // the reader's: for the next long reply
	head  [8]byte // the reader's

	lingers bool // the reader's: its latest reply waits for a message that another goroutine is about to send

	answers tcpAnswers // for the calls that this end executes
}

// tcpState is shared by the goroutines that use a connection.
type tcpState struct {
	life
	calls tcpCalls
}

// newTCPConn makes a connection on nc, without reading from it yet.
func newTCPConn(nc net.Conn, cfg *config, r role, usage *arena.Usage) *tcpConn {
	c := &tcpConn{nc: nc}
	c.core.init(c, tcpProvider, cfg, r)
	st := c.state.Init(rankConn)
	st.life.init(&c.core)
	st.calls.init(&st.life, newTCPCall)
	if r == roleClient {
		st.calls.setGrant(cfg.Credits, cfg.Credits)
	}
	st.watch.spoke = time.Now()
	if t, ok := nc.(tlsConn); ok {
		c.noteTLS(t)
	}
	c.answers.init(c, usage)
	c.r = records.NewReader(nc, cfg.MaxMessage, cfg.StallTimeout)
	c.w = records.NewWriter(nc, records.Options{
		Stall: cfg.StallTimeout, Resumable: resumable(nc), Failed: c.unwritable, Written: c.written, Rested: c.rested,
	})
	return c
}

// resumable reports whether a write to nc that exceeded its deadline can be continued, as on a socket.
func resumable(nc net.Conn) bool {
	switch nc.(type) {
	case *net.TCPConn, *net.UnixConn:
		return true
	}
	return false
}

// written is called after a write, with the number of short replies in it.
func (c *tcpConn) written(answers int) {
	if answers > 0 {
		c.answers.answered(answers)
	}
	c.state.Lock().calls.written(false)
	c.state.Unlock()
}

// rested is called when nothing is left to write.
func (c *tcpConn) rested() {
	c.state.Lock().calls.written(true)
	c.state.Unlock()
	c.answers.checkIdle()
}

// unwritable ends a connection that cannot be written to.
func (c *tcpConn) unwritable(err error) {
	switch {
	case errors.Is(err, records.ErrStalled):
		c.breakOff(&rpc.StallError{For: c.cfg.StallTimeout, Replies: 1})
	case errors.Is(err, records.ErrStuck):
		c.breakOff(errStuck)
	case errors.Is(err, net.ErrClosed): // by this end
	default:
		// Data from before the end is read first: a peer that has closed its end may have answered calls before.
		// Reading finds the end, too.
		time.AfterFunc(lingerTime, func() {
			c.breakOff(&fabric.ConnError{Provider: tcpProvider, Remote: true, Cause: err})
		})
	}
}

// ---- reading

// serve reads the connection until it ends.
func (c *tcpConn) serve() {
	err := c.secure()
	if err == nil {
		err = c.read()
	}
	err = c.readError(err)
	c.noteBroken(err)
	c.finish(err)
}

// noteBroken notifies the Observer if the connection ends because the peer has violated the protocol.
func (c *tcpConn) noteBroken(err error) {
	if errors.As(err, new(*rpc.PeerError)) {
		c.public.refused(0, err)
	}
}

// A tlsConn is a connection with TLS: a *tls.Conn, or a wrapper around one.
type tlsConn interface {
	net.Conn
	HandshakeContext(ctx context.Context) error
	ConnectionState() tls.ConnectionState
}

// secure finishes the handshake of a connection that has arrived with TLS.
func (c *tcpConn) secure() error {
	t, ok := c.nc.(tlsConn)
	if !ok || c.secured.Load() != nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), c.cfg.SetupTimeout)
	defer cancel()
	if err := t.HandshakeContext(ctx); err != nil {
		return fmt.Errorf("TLS handshake: %w", err)
	}
	c.noteTLS(t)
	return nil
}

// noteTLS stores the TLS state, if the handshake is complete.
func (c *tcpConn) noteTLS(t tlsConn) {
	if state := t.ConnectionState(); state.HandshakeComplete {
		c.secured.Store(&state)
	}
}

// read reads records until the stream ends. Replies that were deferred while there was more to read are written before
// it waits. Lingering replies are sent with the messages of the goroutines that it has woken.
func (c *tcpConn) read() error {
	heard := 0 // messages since it last waited
	for {
		waits := !c.r.Ready()
		if waits {
			if c.lingers {
				c.lingers = false
				runtime.Gosched()
			}
			c.w.Flush()
			if c.role == roleServer {
				c.answers.keepPace(heard)
			}
			heard = 0
			c.answers.reads(true)
		}
		if err := c.r.Next(); err != nil {
			return err
		}
		if waits {
			c.answers.reads(false)
		}
		heard++
		c.heard.Add(1)
		msg, whole, err := c.r.Whole()
		switch {
		case err != nil:
		case whole:
			err = c.takeShort(msg)
		default:
			err = c.takeLong()
		}
		if err != nil {
			return err
		}
	}
}

// takeShort processes a message in memory that the reader owns.
func (c *tcpConn) takeShort(msg []byte) error {
	xid, dir, ok := oncrpc.Peek(msg)
	switch {
	case ok && dir == oncrpc.Reply:
		c.replyReceived(xid, msg)
	case ok && dir == oncrpc.Call && c.answers.serves():
		return c.takeCall(msg)
	default:
		c.drop(xid, ok && dir == oncrpc.Call)
	}
	return nil
}

// drop ignores a message. A call is valid, even though this end executes none.
func (c *tcpConn) drop(xid uint32, call bool) {
	inc(&c.stats.Dropped)
	if !call {
		c.public.refused(xid, errNoRPC)
	}
}

// takeLong processes a message that is read piece by piece, into its own memory.
func (c *tcpConn) takeLong() error {
	head := c.head[:]
	n, err := io.ReadFull(c.r, head)
	if err != nil && err != io.EOF && err != io.ErrUnexpectedEOF {
		return err
	}
	// If the stream ended early, rather than the message, Skip finds that out.
	xid, dir, ok := oncrpc.Peek(head[:n])
	switch {
	case ok && dir == oncrpc.Reply:
		return c.takeLongReply(xid, head)
	case ok && dir == oncrpc.Call && c.answers.serves():
		return c.takeLongCall(head)
	}
	if err := c.r.Skip(); err != nil {
		return err
	}
	c.drop(xid, ok && dir == oncrpc.Call)
	return nil
}

// readError returns the reason for the end of a connection after reading has failed with err.
func (c *tcpConn) readError(err error) error {
	var size *records.SizeError
	switch {
	case errors.As(err, &size):
		return &rpc.PeerError{Reason: "it sent a message of more than MaxMessage bytes"}
	case errors.Is(err, records.ErrEmptyFragment):
		return &rpc.PeerError{Reason: "it sent an empty fragment"}
	case err == io.EOF:
		return &fabric.ConnError{Provider: tcpProvider, Remote: true, Clean: true}
	case errors.Is(err, os.ErrDeadlineExceeded):
		return &rpc.StallError{For: c.cfg.StallTimeout, Calls: 1}
	case errors.Is(err, net.ErrClosed):
		return &fabric.ConnError{Provider: tcpProvider, Cause: err}
	}
	var peer *rpc.PeerError
	if errors.As(err, &peer) {
		return err
	}
	return &fabric.ConnError{Provider: tcpProvider, Remote: true, Cause: err}
}

// lingerTime is how long a connection with nothing left to send waits for the peer to close its end.
const lingerTime = time.Second

// tcpProvider is the name of TCP in place of a provider's name.
const tcpProvider = "tcp"

// ---- the end

// finish ends the connection: first no goroutine uses memory of calls any longer, then all waiters are notified. It is
// called once, by the goroutine that has read the connection.
func (c *tcpConn) finish(reason error) {
	c.hangUp(c.nc.Close)
	c.w.Close()
	st := c.state.Lock()
	st.life.end(reason)
	st.calls.fail(st.err)
	onEnd := st.onEnd
	c.state.Unlock()
	c.answers.end()
	c.over(onEnd)
}

func (c *tcpConn) lock() *life { return &c.state.Lock().life }
func (c *tcpConn) unlock()     { c.state.Unlock() }

// sever closes the stream. The reader notices.
func (c *tcpConn) sever() {
	c.answers.giveUp()
	c.hangUp(c.nc.Close)
}

// hangUp calls end to close the stream, or one direction of it. With TLS that sends an alert, for which crypto/tls
// waits: 5 seconds for a peer that does not read, and forever if an answer to the peer's own records is still being
// written. After alertTime the socket is closed without the alert.
func (c *tcpConn) hangUp(end func() error) error {
	if t, ok := c.nc.(interface{ NetConn() net.Conn }); ok {
		socket := t.NetConn()
		defer time.AfterFunc(alertTime, func() { socket.Close() }).Stop()
	}
	return end()
}

// alertTime is how long a peer may take to receive the alert that the connection ends.
const alertTime = 50 * time.Millisecond

func (c *tcpConn) bulky() bool   { return c.arena.Bulky() }
func (c *tcpConn) inFlight() int { return c.answers.inFlight() }

func (c *tcpConn) abort() {
	c.setClosing()
	c.sever()
}

func (c *tcpConn) close() error {
	c.abort()
	<-c.done
	return nil
}

// shutdown lets the calls in flight return, and then ends the connection.
func (c *tcpConn) shutdown(ctx context.Context) error {
	if err := c.drainCalls(ctx); err != nil {
		return err
	}
	return c.close()
}

// ---- what is known

func (c *tcpConn) local() net.Addr  { return c.nc.LocalAddr() }
func (c *tcpConn) remote() net.Addr { return c.nc.RemoteAddr() }

func (c *tcpConn) encryption() *tls.ConnectionState {
	return c.secured.Load()
}

func (c *tcpConn) info() rpc.ConnInfo {
	st := c.state.Lock()
	i := rpc.ConnInfo{Provider: tcpProvider, LocalAddr: c.local(), RemoteAddr: c.remote()}
	calls := 0
	if st.allowed {
		calls = st.grant
	}
	c.state.Unlock()
	if i.Credits, i.BackwardCredits = calls, int(c.answers.allowed.Load()); c.role == roleServer {
		i.Credits, i.BackwardCredits = i.BackwardCredits, i.Credits
	}
	return i
}

// look does for a TCP connection what conn.look does. The writer itself notices when a peer takes nothing, so this end
// never waits for the peer here.
func (c *tcpConn) look(now time.Time) (awaits bool) {
	since, writing := c.w.Since()
	w := &c.state.Lock().watch
	w.note(c.heard.Load(), now)
	trim := w.trims(now)
	c.state.Unlock()
	if writing && now.Sub(since) >= slowTime {
		c.tenant.Restart()
	}
	if trim {
		c.arena.Sweep()
	}
	return false
}

func (c *tcpConn) detail(s *rpc.ConnStats) {
	s.Waiting = c.state.Lock().calls.queue.Len()
	c.state.Unlock()
}

// start leaves the call to a goroutine: only the goroutines that wait for calls can end them here.
func (c *tcpConn) start(*pendingCall, func(error)) bool { return false }

// A tcpWaiter waits alone: the connection has a goroutine that reads it.
type tcpWaiter struct {
	c    *tcpConn
	bell chan struct{} // has capacity one
}

func (c *tcpConn) newWaiter() rpc.Waiter { return &tcpWaiter{c, make(chan struct{}, 1)} }

func (w *tcpWaiter) Wait(ctx context.Context) error {
	select {
	case <-w.bell:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	case <-w.c.ended():
		return w.c.endErr()
	}
}

func (w *tcpWaiter) Wake(bool) { poke(w.bell) }
