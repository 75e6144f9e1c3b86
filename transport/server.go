package transport

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math"
	"net"
	"slices"
	"syscall"
	"time"

	"github.com/rpcrdma/rpcrdma/fabric"
	"github.com/rpcrdma/rpcrdma/internal/lockorder"
	"github.com/rpcrdma/rpcrdma/proto/oncrpc"
	"github.com/rpcrdma/rpcrdma/proto/rpcrdma"
	"github.com/rpcrdma/rpcrdma/rpc"
	"github.com/rpcrdma/rpcrdma/transport/internal/budget"
	"github.com/rpcrdma/rpcrdma/transport/internal/hosts"
	"github.com/rpcrdma/rpcrdma/transport/internal/pace"
)

// A ServerConfig configures a Server. The zero value and a nil pointer select the defaults. It is not modified, and may
// be shared.
type ServerConfig struct {
	Config

	// MaxTotalMemory bounds the memory of all connections of the server together, in bytes. It covers the memory that
	// MaxMemory bounds for one connection, and other mapped memory: that of finished calls until it is unmapped, within
	// seconds or as soon as other calls need it; and the connections' own buffers, which grow with the credits they use
	// or, over TCP, with the calls that have been in flight. A host may hold at most as much as it leaves free for
	// others, and a connection at most a third of what is then left for its host. Calls wait for memory, one of each
	// connection in turn; for a host that holds nothing the memory only has to be free. When the connections' own
	// buffers use more than half, no connection is granted more credits, and a host with 16 connections gets a new one
	// only in place of another. Results in ordinary program memory count; garbage that the Go runtime has not collected
	// does not. Zero is 8 times MaxMemory.
	MaxTotalMemory int

	// MaxConns bounds the connections of a server, including those being set up, which are also limited to an eighth of
	// it, or 16. When MaxConns is reached, a new connection replaces one of the host that has the most, if that host
	// has more than the new connection's host would have: the one without calls in flight that has been silent longest,
	// or else the one that has been silent longest. Otherwise it replaces a connection, of any host, that has made no
	// call in the 2 seconds since it was set up, or else the one that has been silent longest, if that is at least 90
	// seconds and it has no calls in flight. Otherwise the new connection is rejected, and a Client gets a *BusyError.
	// If the connection of a Client was closed, the Client makes another when a call needs it. Zero is 4096, but at
	// most a quarter of the descriptors that the process may have open (RLIMIT_NOFILE) when NewServer is called: a
	// connection may need three, and the program opens files.
	MaxConns int
}

// settle returns cfg with its defaults filled in, and the configuration of its connections.
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

// defaultMaxConns returns the default limit of connections for a process that may have the given number of descriptors.
// See ServerConfig.MaxConns.
func defaultMaxConns(descriptors int) int { return min(4096, max(descriptors/4, 16)) }

// manyDescriptors stands for no limit.
const manyDescriptors = math.MaxInt32

// A Server executes calls. It serves any number of listeners, of any providers,
// with the same programs.
type Server struct {
	cfg     ServerConfig // with its defaults filled in
	connCfg *config      // configuration of its connections
	stats   tally
	memory  *budget.Budget

	pacer *pace.Pacer

	*registry

	mu        lockorder.Mutex
	bridges   []*bridge
	listeners map[*Listener]struct{}
	conns     map[served]struct{}
	setups    int // connections being set up
	guests    hosts.Guests
	sweeping  bool // see sweep
	accepted  uint64
	closing   bool
	idle      chan struct{} // closed when closing is set and no connection is left
}

// NewServer returns a server. A nil cfg is the default configuration.
func NewServer(cfg *ServerConfig) (*Server, error) {
	own, conns, err := cfg.settle()
	if err != nil {
		return nil, err
	}
	s := &Server{
		cfg: own, connCfg: conns,
		memory:    budget.New(own.MaxTotalMemory),
		pacer:     pace.Start(),
		listeners: make(map[*Listener]struct{}),
		conns:     make(map[served]struct{}),
		guests:    hosts.Guests{Most: own.MaxConns, MostSetups: max(own.MaxConns/8, 16)},
		idle:      make(chan struct{}),
	}
	s.mu.Init(rankServer)
	s.registry = newRegistry(conns)
	s.others = s.dispatchOther
	return s, nil
}

// Register adds a program. It must be called before Serve.
func (s *Server) Register(p rpc.Program) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.register(p)
}

// shutdownTime is how long ListenAndServe waits for replies after its context has ended.
const shutdownTime = 10 * time.Second

// A Listener is an address at which a server can be reached.
type Listener struct {
	wire     listener
	provider string
}

// A listener is a source of connections, over RDMA or TCP.
type listener interface {
	Addr() net.Addr
	Close() error
	accept() (arrival, error) // waits for the next connection
}

// An arrival is a connection for which the server has not decided yet whether it has room.
type arrival interface {
	RemoteAddr() net.Addr
	turnAway()
	// serve sets it up on a new goroutine, and serves it until it ends.
	serve(s *Server, g *hosts.Guest)
}

// Addr returns the address, with the actual port.
func (l *Listener) Addr() net.Addr { return l.wire.Addr() }

// Close stops listening. It leaves connections open.
func (l *Listener) Close() error { return l.wire.Close() }

// Listen listens at addr ("host:port", port 0 picks one) through provider p, which may be [TCP]. Pass the Listener to
// Serve, which accepts connections.
func (s *Server) Listen(ctx context.Context, p fabric.Provider, addr string) (*Listener, error) {
	if p == nil {
		return nil, errNoProvider
	}
	l := &Listener{provider: p.Name()}
	var err error
	switch p := p.(type) {
	case StreamProvider:
		var nl net.Listener
		nl, err = p.ListenStream(ctx, addr)
		l.wire = tcpListener{nl}
	default:
		var fl fabric.Listener
		if err = s.connCfg.private(p); err != nil {
			break
		}
		fl, err = p.Listen(ctx, addr, s.connCfg.connAttr(roleServer))
		l.wire = rdmaListener{fl, l.provider}
	}
	if err != nil {
		return nil, fmt.Errorf("listen on %s over %s: %w", addr, l.provider, err)
	}
	if err := s.announce(l); err != nil {
		return nil, err
	}
	return l, nil
}

// announce arranges for the end of the server to close l, at once if it has already ended.
func (s *Server) announce(l *Listener) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closing {
		l.Close()
		return ErrServerClosed
	}
	s.listeners[l] = struct{}{}
	return nil
}

// Serve accepts connections from l. It returns [ErrServerClosed] at once after Close or Shutdown of the server, and
// net.ErrClosed after Close of l alone. While the process is out of descriptors or memory, it waits. For [TCP] see
// [Server.ServeTCP].
func (s *Server) Serve(l *Listener) error {
	defer func() {
		l.Close()
		s.mu.Lock()
		delete(s.listeners, l)
		s.mu.Unlock()
	}()
	var pause time.Duration
	for {
		a, err := l.wire.accept()
		switch {
		case err != nil && s.closes():
			return ErrServerClosed
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
		g := s.admit(a.RemoteAddr())
		if g != nil {
			s.setups++
		}
		s.mu.Unlock()
		if g == nil {
			s.rejected(a.RemoteAddr(), errFull)
			a.turnAway()
			continue
		}
		a.serve(s, g)
	}
}

// admit accepts a connection, in place of another one if necessary. It returns nil if there is no room for it. mu is
// held.
func (s *Server) admit(from net.Addr) *hosts.Guest {
	if s.closing {
		return nil
	}
	host := "peer"
	if from != nil {
		host = hosts.Of(from.String(), s.connCfg.HostBits)
	}
	return s.guests.Admit(host, s.memory.Crowded())
}

func (s *Server) closes() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.closing
}

// scarce reports whether a connection could not be accepted for lack of a resource that may soon be available again.
func scarce(err error) bool {
	for _, e := range []error{syscall.EMFILE, syscall.ENFILE, syscall.ENOMEM, syscall.ENOBUFS, syscall.ECONNABORTED} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}

// join adds a connection to the server. err is the result of its setup. The error that it returns says why it was not
// added.
func (s *Server) join(g *hosts.Guest, c served, err error) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closing {
		err = net.ErrClosed
	} else if err == nil {
		err = g.Ctx.Err() // it had to make room for another
	}
	if err == nil {
		s.setups--
		s.guests.Settle(g, c)
		s.conns[c] = struct{}{}
		s.accepted++
		s.startSweep()
	}
	return err
}

// dropSetup forgets a connection that was not added to the server.
func (s *Server) dropSetup(g *hosts.Guest) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.setups--
	s.guests.Remove(g)
	s.checkIdle()
}

// begin is called before a connection that has joined is driven.
func (s *Server) begin(g *hosts.Guest, c served) {
	c.whenEnded(func() { s.left(g, c) })
	c.seen().begun()
}

// left forgets a connection that has ended.
func (s *Server) left(g *hosts.Guest, c served) {
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
	defer s.mu.Unlock()
	delete(s.conns, c)
	s.guests.Remove(g)
	s.checkIdle()
}

// rejected reports that there will be no connection with the peer.
func (s *Server) rejected(peer net.Addr, err error) {
	o := s.connCfg.observation
	if o == nil {
		return
	}
	n := rpc.Notice{Kind: rpc.NoticeRejected, Peer: "peer", Err: err}
	if peer != nil { // the provider or the listener determines that
		n.Peer = peer.String()
	}
	o.Noticed(n)
}

func (s *Server) log(msg string, c connection, err error) {
	s.connCfg.journal.write(eventEnded, slog.LevelWarn, msg,
		slog.String("peer", c.addr()), slog.String("provider", c.info().Provider), slog.Any("err", err))
}

// checkIdle closes idle when a closing server has no connection left. mu is
// held.
func (s *Server) checkIdle() {
	if s.closing && len(s.conns)+s.setups == 0 {
		select {
		case <-s.idle:
		default:
			close(s.idle)
		}
	}
}

// stop refuses new connections, ends those being set up, and returns the others.
func (s *Server) stop() []served {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closing = true
	for l := range s.listeners {
		l.Close()
	}
	for _, b := range s.bridges {
		b.Close()
	}
	s.guests.CancelSetups()
	s.checkIdle()
	return slices.Collect(maps.Keys(s.conns))
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

// Close stops listening and ends all connections at once. It returns when the adapter no longer uses any memory.
// Handlers may still be running, with their contexts canceled. It may be called more than once.
func (s *Server) Close() error {
	for _, c := range s.stop() {
		c.close()
	}
	<-s.idle
	s.registry.stop()
	return nil
}

// Stats returns the sum of the counters of all connections.
func (s *Server) Stats() rpc.Stats {
	st := s.stats.sum()
	s.mu.Lock()
	st.Conns, st.OpenConns = s.accepted, uint64(len(s.conns))
	s.mu.Unlock()
	return st
}

// Conns returns the open connections, over RDMA and TCP, in no particular order.
func (s *Server) Conns() []*Conn {
	s.mu.Lock()
	defer s.mu.Unlock()
	conns := make([]*Conn, 0, len(s.conns))
	for c := range s.conns {
		conns = append(conns, c.seen())
	}
	return conns
}

// dispatchOther processes calls to programs that the transport itself serves, and to those that bridges serve.
func (s *Server) dispatchOther(x *exch) bool {
	call, l := &x.call, x.leader
	if call.Prog == rpcrdma.ConfigProgram && s.cfg.RFC5666.configures() {
		l.configure(x, x.msg[x.at:])
		return true
	}
	if call.Prog == rpcrdma.PropProgram && x.hdr.Vers == rpcrdma.Version2 {
		l.exchange(x, x.msg[x.at:])
		return true
	}
	for _, b := range s.bridges {
		if !b.takes(call.Prog) {
			continue
		}
		switch {
		case !x.chunksFit(b.prog.Binding):
			x.answer(oncrpc.ReplyHeader{AcceptStat: oncrpc.GarbageArgs}, nil)
		case !b.idempotent(call) && x.recall():
		default:
			x.detach()
			b.execute(x)
		}
		return true
	}
	return false
}

// startSweep starts checking the connections of the server periodically. mu is held.
func (s *Server) startSweep() {
	if !s.sweeping {
		s.sweeping = true
		time.AfterFunc(s.cfg.sweepTime(), s.sweep)
	}
}

func (s *Server) sweep() {
	s.mu.Lock()
	conns := slices.Collect(maps.Keys(s.conns))
	s.mu.Unlock()
	now := time.Now()
	for _, c := range conns {
		c.look(now)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.sweeping = false
	if len(s.conns) > 0 {
		s.startSweep()
	}
}

// ListenAndServe listens on addr and serves the connections that arrive: see [Server.Listen] and [Server.Serve]. When
// ctx ends, it shuts down the whole server, as [Server.Shutdown] does, with 10 seconds for the calls that have arrived,
// and returns [ErrServerClosed]. After Close or Shutdown by another goroutine it returns ErrServerClosed at once.
func (s *Server) ListenAndServe(ctx context.Context, p fabric.Provider, addr string) error {
	l, err := s.Listen(ctx, p, addr)
	if err == nil {
		stop := context.AfterFunc(ctx, func() { l.Close() })
		err = s.Serve(l)
		stop()
	}
	if ctx.Err() == nil {
		return err
	}
	last, cancel := context.WithTimeout(context.WithoutCancel(ctx), shutdownTime)
	defer cancel()
	s.Shutdown(last)
	return ErrServerClosed
}
