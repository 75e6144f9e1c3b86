package transport

import (
	"context"
	"errors"
	"fmt"
	"net"
	"syscall"
	"time"

	"github.com/rpcrdma/rpcrdma/fabric"
	"github.com/rpcrdma/rpcrdma/internal/lockorder"
	"github.com/rpcrdma/rpcrdma/proto/oncrpc"
	"github.com/rpcrdma/rpcrdma/proto/rpcrdma"
	"github.com/rpcrdma/rpcrdma/transport/internal/budget"
)

// A ServerConfig holds what a Server can choose. The zero value and a nil pointer are the
// defaults. It is not modified, and may be shared.
type ServerConfig struct {
	Config

	// MaxTotalMemory bounds what MaxMemory bounds for one connection, for all connections of
	// the server together, in bytes, mapped memory included: memory of finished calls until
	// it is unmapped, which happens within seconds, or at once when other calls need it; and
	// the connections' own buffers, which grow with the credits they use, or over TCP with the
	// calls that have been in flight. A host may hold at most as much as it
	// leaves free for others, and a connection at most a third of what is then left for
	// its host. Calls wait for memory, one of each connection in turn; for a host that
	// holds nothing the memory only has to be free. When the connections' own buffers take
	// more than half, no connection is granted more credits, and a host with 16
	// connections gets no new one except in place of another. Results in ordinary memory
	// of the program count, garbage that the Go runtime has not collected does not. Zero
	// is 8 times MaxMemory.
	MaxTotalMemory int

	// MaxConns bounds the connections of a server, including those being set up, of which
	// there may be an eighth of it, or 16. When the bound is reached, a new connection
	// takes the place of one of the host that has the most, if that host has more than the
	// new connection's host would have: one without calls in flight if there is one, and
	// the longest silent of these. Otherwise it takes the place of the connection, of any
	// host, that has been silent for longest, if that is 90 seconds and no calls of it are
	// in flight. Otherwise the new connection is rejected, and a Client gets a *BusyError.
	// A Client whose connection was closed makes another when a call needs it. Zero is 4096,
	// but at most a quarter of the descriptors that the process may have open (RLIMIT_NOFILE)
	// when NewServer is called: a connection may need three, and the program opens files.
	MaxConns int
}

// settle returns cfg with its defaults in place, and what its connections work with.
func (cfg *ServerConfig) settle() (c ServerConfig, conns *config, err error) {
	if cfg != nil {
		c = *cfg
	}
	if conns, err = c.Config.settle("ServerConfig"); err != nil {
		return c, nil, err
	}
	c.Config = conns.Config
	setDefault(&c.MaxTotalMemory, totalMemory(&c.Config))
	setDefault(&c.MaxConns, defaultMaxConns(descriptors()))
	err = within("ServerConfig", []limit{
		{"MaxTotalMemory", c.MaxTotalMemory, int64(c.MaxMemory), 1 << 40},
		{"MaxConns", c.MaxConns, 1, 1 << 20},
	})
	return c, conns, err
}

// A Server executes calls. It serves any number of listeners, of any providers,
// with the same programs.
type Server struct {
	cfg     ServerConfig // with its defaults in place
	connCfg *config      // what its connections work with
	stats   tally
	memory  *budget.Budget

	pacer pacer

	*registry

	mu           lockorder.Mutex
	bridges      []*bridge
	listeners    map[*Listener]struct{}
	conns        map[*conn]struct{}
	tcpListeners map[*tcpListener]struct{}
	streams      map[*tcpConn]struct{} // see ServeTCP
	setups       int                   // connections being set up
	guests       guests
	sweeping     bool // see sweep
	accepted     uint64
	closing      bool
	idle         chan struct{} // closed when closing and no connection is left
}

// NewServer returns a server. A nil cfg is the default configuration.
func NewServer(cfg *ServerConfig) (*Server, error) {
	own, conns, err := cfg.settle()
	if err != nil {
		return nil, err
	}
	s := &Server{
		cfg: own, connCfg: conns,
		memory:       budget.New(own.MaxTotalMemory),
		pacer:        pacer{start: time.Now()},
		listeners:    make(map[*Listener]struct{}),
		conns:        make(map[*conn]struct{}),
		tcpListeners: make(map[*tcpListener]struct{}),
		streams:      make(map[*tcpConn]struct{}),
		guests:       guests{hosts: make(map[string]*guestHost), most: own.MaxConns, mostSetups: max(own.MaxConns/8, 16)},
		idle:         make(chan struct{}),
	}
	s.mu.Init(rankServer)
	s.registry = newRegistry(conns)
	s.other = s.dispatchOther
	return s, nil
}

// Register adds a program. It must be called before Serve.
func (s *Server) Register(p Program) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.register(p)
}

// A Listener is an address at which a server can be reached.
type Listener struct {
	address
	fl       fabric.Listener // nil: TCP
	tcp      net.Listener    // nil: RDMA
	provider string
}

// An address is what listeners of both kinds have.
type address interface {
	Addr() net.Addr
	Close() error
}

// Addr is the address, with the real port.
func (l *Listener) Addr() net.Addr { return l.address.Addr() }

// Close stops listening. It leaves connections open.
func (l *Listener) Close() error { return l.address.Close() }

// Listen announces the server at addr ("host:port", port 0 picks one) through
// provider p, which may be [TCP]. Serve then takes connections.
func (s *Server) Listen(ctx context.Context, p fabric.Provider, addr string) (*Listener, error) {
	if p == nil {
		return nil, errNoProvider
	}
	l := &Listener{provider: p.Name()}
	var err error
	switch p.(type) {
	case TCP, *TCP:
		var lc net.ListenConfig
		l.tcp, err = lc.Listen(ctx, "tcp", addr)
		l.address = l.tcp
	default:
		l.fl, err = p.Listen(ctx, addr, s.connCfg.connAttr(roleServer))
		l.address = l.fl
	}
	if err != nil {
		return nil, fmt.Errorf("listen on %s over %s: %w", addr, l.provider, err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closing {
		l.Close()
		return nil, net.ErrClosed
	}
	s.listeners[l] = struct{}{}
	return l, nil
}

// Serve accepts connections from l until l or the server is closed; the error is
// then net.ErrClosed. While the process is out of descriptors or memory, it waits.
// Over [TCP] it is [Server.ServeTCP].
func (s *Server) Serve(l *Listener) error {
	defer func() {
		l.Close()
		s.mu.Lock()
		delete(s.listeners, l)
		s.mu.Unlock()
	}()
	if l.tcp != nil {
		return s.ServeTCP(l.tcp)
	}
	var pause time.Duration
	for {
		fc, err := l.fl.Accept(context.Background())
		switch {
		case errors.Is(err, net.ErrClosed):
			return net.ErrClosed
		case scarce(err):
			pause = min(max(2*pause, 5*time.Millisecond), time.Second)
			time.Sleep(pause)
			continue
		case err != nil:
			return fmt.Errorf("accept on %s: %w", l.Addr(), err)
		}
		pause = 0
		s.mu.Lock()
		g := s.admit(fc.RemoteAddr())
		if g != nil {
			s.setups++
		}
		s.mu.Unlock()
		if g != nil {
			go s.serveConn(g, fc, l.provider)
		} else {
			s.rejected(fc.RemoteAddr(), errFull)
			fc.Reject([]byte(busyMark)[:min(len(busyMark), fc.Capabilities().MaxPrivateData)])
		}
	}
}

// scarce reports whether a connection could not be accepted for lack of a resource that may
// be available again in a moment.
func scarce(err error) bool {
	for _, e := range []error{syscall.EMFILE, syscall.ENFILE, syscall.ENOMEM, syscall.ENOBUFS, syscall.ECONNABORTED} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}

// growStack makes the stack of a new goroutine as large as a connection needs it, while there
// are few frames on it to copy.
//
//go:noinline
func growStack(n int) byte {
	var b [3 << 10]byte
	b[n%len(b)] = 1
	return b[0]
}

// serveConn sets up a connection and leads it until it ends.
func (s *Server) serveConn(g *guest, fc fabric.Conn, provider string) {
	growStack(len(provider))
	c, l := newConn(fc, provider, s.connCfg, roleServer, s.memory.Usage())
	c.stats = s.stats.join()
	c.execute(s.registry, s.memory, c.host())
	l.pace.pacer = &s.pacer
	c.lineage = s.cache.NewLineage(machineOf(c.addr()), true) // before the client learns that there is a connection

	ctx, cancel := context.WithTimeout(g.ctx, s.cfg.SetupTimeout)
	err := l.accept(ctx)
	cancel()

	s.mu.Lock()
	if s.closing {
		err = net.ErrClosed
	} else if err == nil {
		err = g.ctx.Err() // it has been thrown out
	}
	if err == nil {
		s.setups--
		s.guests.settle(g, c)
		c.state.Lock().watch.spoke = time.Now()
		c.state.Unlock()
		s.conns[c] = struct{}{}
		s.accepted++
		s.startSweep()
	}
	s.mu.Unlock()
	if err != nil {
		s.log("connection not set up", c, err)
		s.rejected(fc.RemoteAddr(), err)
		l.discard()
		s.mu.Lock()
		s.setups--
		s.guests.remove(g)
		s.checkIdle()
		s.mu.Unlock()
		return
	}

	c.whenEnded(func() { s.left(g, c) })
	c.public.begun()
	l.serve()
}

// left forgets a connection that has ended.
func (s *Server) left(g *guest, c *conn) {
	if err := unorderly(c.endErr()); err != nil {
		s.log("connection ended", c, err)
	}
	s.mu.Lock()
	bridges := s.bridges
	s.mu.Unlock()
	for _, b := range bridges {
		b.forget(c)
	}
	// From here on Close may return.
	s.mu.Lock()
	delete(s.conns, c)
	s.guests.remove(g)
	s.checkIdle()
	s.mu.Unlock()
}

// rejected tells that there will be no connection with the peer.
func (s *Server) rejected(peer net.Addr, err error) {
	o := s.connCfg.observation
	if o == nil {
		return
	}
	n := Notice{Kind: NoticeRejected, Peer: "peer", Err: err}
	if peer != nil { // which is up to the provider, or the listener
		n.Peer = peer.String()
	}
	o.Noticed(n)
}

func (s *Server) log(msg string, c *conn, err error) { s.logEnd(msg, c.addr(), c.provider, err) }

func (s *Server) logEnd(msg, peer, provider string, err error) {
	if s.cfg.Logger != nil {
		s.cfg.Logger.Warn(msg, "peer", peer, "provider", provider, "err", err)
	}
}

// checkIdle closes idle when a closing server has no connection left. mu is
// held.
func (s *Server) checkIdle() {
	if s.closing && len(s.conns)+len(s.streams)+s.setups == 0 {
		select {
		case <-s.idle:
		default:
			close(s.idle)
		}
	}
}

// stop refuses new connections, ends those that are being set up, and returns the others.
func (s *Server) stop() []connection {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closing = true
	for l := range s.listeners {
		l.Close()
	}
	for l := range s.tcpListeners {
		l.Close()
	}
	for _, b := range s.bridges {
		b.Close()
	}
	s.guests.cancelSetups()
	s.checkIdle()
	conns := make([]connection, 0, len(s.conns)+len(s.streams))
	for c := range s.conns {
		conns = append(conns, c)
	}
	for c := range s.streams {
		conns = append(conns, c)
	}
	return conns
}

// Shutdown stops listening, answers the calls that have arrived, and closes all
// connections in order. If ctx ends first, it closes them at once and returns ctx's
// error.
func (s *Server) Shutdown(ctx context.Context) error {
	for _, c := range s.stop() {
		c.drainFor(ctx)
	}
	select {
	case <-s.idle:
		s.registry.stop()
		return nil
	case <-ctx.Done():
		s.Close()
		return ctx.Err()
	}
}

// Close stops listening and ends all connections at once. It returns when the
// adapter no longer uses any memory; handlers may still be running, with their
// context ended. It may be called more than once.
func (s *Server) Close() error {
	for _, c := range s.stop() {
		c.close()
	}
	<-s.idle
	s.registry.stop()
	return nil
}

// Stats returns the sum of the counters of all connections.
func (s *Server) Stats() Stats {
	st := s.stats.sum()
	s.mu.Lock()
	st.Conns, st.OpenConns = s.accepted, uint64(len(s.conns)+len(s.streams))
	s.mu.Unlock()
	return st
}

// Conns returns the connections that are open, over RDMA and TCP, in no order.
func (s *Server) Conns() []*Conn {
	s.mu.Lock()
	defer s.mu.Unlock()
	conns := make([]*Conn, 0, len(s.conns)+len(s.streams))
	for c := range s.conns {
		conns = append(conns, &c.public)
	}
	for c := range s.streams {
		conns = append(conns, &c.public)
	}
	return conns
}

// dispatchOther takes calls of the programs that the transport serves itself, and of those
// that bridges serve. Arguments start at offset n.
func (s *Server) dispatchOther(l *leader, x *exch, n int) bool {
	call := &x.call
	if call.Prog == rpcrdma.ConfigProgram && s.cfg.RFC5666.configures() {
		l.configure(x, x.Msg[n:])
		return true
	}
	if call.Prog == rpcrdma.PropProgram && x.hdr.Vers == rpcrdma.Version2 {
		l.exchange(x, x.Msg[n:])
		return true
	}
	for _, b := range s.bridges {
		if !b.takes(call.Prog) {
			continue
		}
		switch {
		case !x.chunksFit(b.prog.Binding, n):
			x.replyError(l, oncrpc.ReplyHeader{AcceptStat: oncrpc.GarbageArgs})
		case s.recall(l, x, b.idempotent(call)):
		default:
			x.detach()
			b.execute(x, n)
		}
		return true
	}
	return false
}

// startSweep has the connections of the server looked at from now on. mu is held.
func (s *Server) startSweep() {
	if !s.sweeping {
		s.sweeping = true
		time.AfterFunc(s.cfg.sweepTime(), s.sweep)
	}
}

func (s *Server) sweep() {
	s.mu.Lock()
	conns := make([]*conn, 0, len(s.conns))
	for c := range s.conns {
		conns = append(conns, c)
	}
	streams := make([]*tcpConn, 0, len(s.streams))
	for c := range s.streams {
		streams = append(streams, c)
	}
	s.mu.Unlock()
	now := time.Now()
	for _, c := range conns {
		c.look(now)
	}
	for _, c := range streams {
		c.look(now)
	}
	s.mu.Lock()
	s.sweeping = false
	if len(s.conns)+len(s.streams) > 0 {
		s.startSweep()
	}
	s.mu.Unlock()
}
