package iwarp

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"net/netip"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/rpcrdma/rpcrdma/fabric"
	"github.com/rpcrdma/rpcrdma/internal/llp"
	"github.com/rpcrdma/rpcrdma/internal/lockorder"
	"github.com/rpcrdma/rpcrdma/proto/mpa"
)

// A listener reads the MPA request of each incoming connection on a separate goroutine, so that a slow peer does not
// delay others.
type listener struct {
	p    *Provider
	attr fabric.ConnAttr
	cfg  Config
	addr *net.TCPAddr
	sock socket

	backlog llp.Backlog
	wg      sync.WaitGroup // the accepting goroutine and the handshakes

	handshakes lockorder.Value[handshakes]
}

// Handshakes holds the connections of a listener that have not sent a complete MPA request, under the lock of
// listener.handshakes.
type handshakes struct {
	pending []handshaker // oldest first
	down    bool
}

// A handshaker is a TCP connection that has not sent a complete MPA request.
type handshaker struct {
	f    *os.File
	host netip.Addr
}

var _ fabric.Listener = (*listener)(nil)

// Listen implements fabric.Provider.
func (p *Provider) Listen(ctx context.Context, addr string, attr fabric.ConnAttr) (fabric.Listener, error) {
	attr, err := p.checkAttr(attr)
	if err != nil {
		return nil, err
	}
	if err := p.mayOpen(addr); err != nil {
		return nil, err
	}
	cfg := p.cfg.withDefaults()
	nl, err := cfg.ListenTCP(ctx, addr)
	if err != nil {
		return nil, &SetupError{Addr: addr, Reason: "cannot listen", Err: err}
	}
	sock, err := listeningSocket(nl)
	nl.Close()
	if err != nil {
		return nil, &SetupError{Addr: addr, Reason: "descriptor", Err: err}
	}
	l := &listener{
		p: p, attr: attr, cfg: cfg, addr: nl.Addr().(*net.TCPAddr), sock: sock,
		backlog: llp.NewBacklog(cfg.Backlog),
	}
	l.handshakes.Init(lockorder.IwarpListener)
	ls := p.listening.Lock()
	closed := ls.closed
	if ls.on == nil {
		ls.on = make(map[*listener]struct{})
	}
	if !closed {
		ls.on[l] = struct{}{}
	}
	p.listening.Unlock()
	if closed { // by a concurrent Close
		sock.f.Close()
		return nil, p.mayOpen(addr)
	}
	l.wg.Go(l.run)
	return l, nil
}

// listenTCP is the default of Config.ListenTCP.
func listenTCP(ctx context.Context, addr string) (*net.TCPListener, error) {
	var lc net.ListenConfig
	l, err := lc.Listen(ctx, "tcp", addr)
	if err != nil {
		return nil, err
	}
	return l.(*net.TCPListener), nil
}

// Addr implements fabric.Listener.
func (l *listener) Addr() net.Addr { return l.addr }

// Accept implements fabric.Listener.
func (l *listener) Accept(ctx context.Context) (fabric.Conn, error) {
	return l.backlog.Accept(ctx)
}

// Close implements fabric.Listener.
func (l *listener) Close() error {
	l.backlog.Close(func() {
		l.sock.f.Close()
		hs := l.handshakes.Lock()
		hs.down = true
		for _, h := range hs.pending {
			h.f.SetDeadline(past)
		}
		l.handshakes.Unlock()
		l.wg.Wait()
	})
	delete(l.p.listening.Lock().on, l)
	l.p.listening.Unlock()
	return nil
}

// acceptPause keeps a listener that has run out of descriptors from spinning.
const acceptPause = 10 * time.Millisecond

// run accepts TCP connections until the listener is closed.
func (l *listener) run() {
	var next socket
	var peer *net.TCPAddr
	var err error
	accept := func(fd uintptr) bool {
		next, peer, err = acceptSocket(int(fd))
		return err != errAgain
	}
	buf := make([]byte, maxStart)
	for {
		if rerr := l.sock.at.Read(accept); rerr != nil {
			return // it has been closed
		}
		if err != nil {
			// The process is out of descriptors, or accept failed for another reason. Closing a pending handshake
			// frees a descriptor. If none is pending, wait.
			if !l.makeRoom() {
				select {
				case <-l.backlog.Closed():
					return
				case <-time.After(acceptPause):
				}
			}
			continue
		}
		// The request has usually arrived already: see listeningSocket.
		s, from, in := next, peer, startReader{buf: buf}
		if l.cfg.TLS != nil {
			s.secure(l.p.tlsConfig(""), false)
		} else {
			var v [1]iovec
			setIovec(&v[0], buf)
			if in.n, err = s.stream.Readv(v[:]); err == nil && in.n > 0 {
				if done, err := in.whole(mpa.Request); done && err == nil {
					l.request(s, from, &in)
					continue
				}
			}
		}
		if !l.admit(s.f, from) {
			s.f.Close()
			continue
		}
		in.buf = append([]byte(nil), buf...)
		l.wg.Go(func() { l.handshake(s, from, &in) })
	}
}

// admit adds f to the list of pending handshakes. If the list is full, f replaces another connection. admit returns
// false if the listener is closed.
func (l *listener) admit(f *os.File, from *net.TCPAddr) bool {
	hs := l.handshakes.Lock()
	defer l.handshakes.Unlock()
	if hs.down {
		return false
	}
	if len(hs.pending) >= l.cfg.MaxPending {
		hs.giveUp()
	}
	hs.pending = append(hs.pending, handshaker{f, from.AddrPort().Addr().Unmap()})
	return true
}

// makeRoom drops a pending handshake. It returns false if none is pending.
func (l *listener) makeRoom() bool {
	hs := l.handshakes.Lock()
	defer l.handshakes.Unlock()
	if len(hs.pending) == 0 {
		return false
	}
	hs.giveUp()
	return true
}

// giveUp ends the oldest handshake of the host that has the most, so that a host that sends no requests can only crowd
// out itself.
func (hs *handshakes) giveUp() {
	count := make(map[netip.Addr]int, len(hs.pending))
	most := 0
	for _, h := range hs.pending {
		count[h.host]++
		most = max(most, count[h.host])
	}
	i := slices.IndexFunc(hs.pending, func(h handshaker) bool { return count[h.host] == most })
	hs.pending[i].f.SetDeadline(past) // its goroutine does the rest
	hs.pending = slices.Delete(hs.pending, i, i+1)
}

// dismiss removes f from the list. It returns false if giveUp has removed f already, or if the listener is closed.
func (l *listener) dismiss(f *os.File) bool {
	hs := l.handshakes.Lock()
	defer l.handshakes.Unlock()
	if i := hs.find(f); i >= 0 {
		hs.pending = slices.Delete(hs.pending, i, i+1)
		return !hs.down
	}
	return false
}

// handshake reads the rest of a request and passes it to Accept.
func (l *listener) handshake(s socket, from *net.TCPAddr, in *startReader) {
	l.p.open.handshakes.Add(1)
	over := sync.OnceFunc(func() { l.p.open.handshakes.Add(-1) })
	defer over()
	// Set the deadline before the check, so that it does not overwrite the deadline of giveUp or Close.
	err := s.f.SetDeadline(time.Now().Add(l.cfg.RequestTimeout))
	if err == nil && l.pends(s.f) {
		done := false
		if s.secured != nil {
			err = l.secure(&s)
		} else if in.n > 0 {
			done, err = in.whole(mpa.Request)
		}
		if !done && err == nil {
			err = in.readAll(s.peerIO(), mpa.Request)
		}
	}
	kept := l.dismiss(s.f)
	if err != nil || !kept {
		if err == mpa.ErrPrivateDataLen || err == mpa.ErrRevision {
			sendReject(&s, &mpa.Start{Revision: in.start.Revision}, false, nil)
		}
		s.f.Close()
		return
	}
	s.f.SetDeadline(time.Time{})
	over() // before Accept returns the request
	l.request(s, from, in)
}

// secure performs the TLS handshake. A peer that does not use TLS receives an alert, so that it can report that TLS is
// required.
func (l *listener) secure(s *socket) error {
	err := s.secured.handshake()
	if errors.As(err, new(tls.RecordHeaderError)) {
		s.f.Write([]byte{tlsAlert, 3, 3, 0, 2, 2, 70}) // fatal, protocol_version: RFC 8446 section 6
	}
	return err
}

// pends reports whether f is still in the list.
func (l *listener) pends(f *os.File) bool {
	hs := l.handshakes.Lock()
	defer l.handshakes.Unlock()
	return !hs.down && hs.find(f) >= 0
}

// find returns the index of f in the list, or -1.
func (hs *handshakes) find(f *os.File) int {
	return slices.IndexFunc(hs.pending, func(h handshaker) bool { return h.f == f })
}

// request validates a complete request and passes it to Accept.
func (l *listener) request(s socket, from *net.TCPAddr, in *startReader) {
	req := in.start
	enhanced := req.Revision >= 2 && req.Flags&mpa.FlagEnhanced != 0
	// This side does not support markers, and as a responder may decline them (RFC 5044
	// section 7.1.1). A request cannot reject, and nothing may follow it before the reply
	// (section 7.1.2).
	if req.Flags&mpa.FlagMarkers != 0 || req.Flags&mpa.FlagReject != 0 || in.more() {
		sendReject(&s, &req, enhanced, nil)
		s.f.Close()
		return
	}
	local := l.addr
	if local.IP.IsUnspecified() {
		var err error
		if local, err = localAddr(s.fd); err != nil {
			s.f.Close()
			return
		}
	}
	by := &setup{passive: true, req: req, peerData: in.privateData(), laddr: local, raddr: from, link: link{sock: s}}
	if enhanced {
		mpa.ConsumeEnhanced(by.peerData, &by.reqRDMA) // cannot fail: ConsumeStart has checked the length
		by.peerData = by.peerData[mpa.EnhancedLen:]
	}
	l.backlog.Add(l.p.newConn(l.attr, by))
}
