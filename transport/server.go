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
	"github.com/rpcrdma/rpcrdma/proto/xdr"
	"github.com/rpcrdma/rpcrdma/transport/internal/arena"
	"github.com/rpcrdma/rpcrdma/transport/internal/budget"
)

// A Handler executes the procedures of a program.
type Handler interface {
	// ServeRPC executes req and fills res; the reply goes out when it returns.
	// req and what it points to are valid until then. ctx ends with the
	// connection, or, if the reply is to be remembered, with the server: a client
	// that has lost its connection comes back for it. Procedure 0 does not get
	// here: the server answers it. If ServeRPC panics the caller is told SYSTEM_ERR,
	// and Config.Logger the panic with its stack; nothing else ends.
	ServeRPC(ctx context.Context, req *Request, res *Response)
}

// A HandlerFunc is a function as a Handler.
type HandlerFunc func(ctx context.Context, req *Request, res *Response)

// ServeRPC calls f.
func (f HandlerFunc) ServeRPC(ctx context.Context, req *Request, res *Response) { f(ctx, req, res) }

// A Program is a program that a server executes, or a client for its server.
type Program struct {
	Number    uint32
	Low, High uint32 // versions, inclusive
	Handler   Handler

	// Binding is the upper-layer binding, of which the server asks what of a call may
	// be in read chunks: one that has anything else there, or another number of bytes
	// than its length word says, is answered with GARBAGE_ARGS. Nil: the handler finds
	// out.
	Binding Binding

	// Padded says that the handler decodes its arguments with Request.Decoder, so
	// that calls may come with RDMA_MSGP. See Config.RFC5666.
	Padded bool

	// ReadReplies says that the upper-layer binding allows read chunks in replies
	// (RFC 5666 section 3.4). See Config.RFC5666.
	ReadReplies bool

	// Idempotent says which procedures may be executed again when a client that has lost
	// its connection sends their calls again, because nothing changes by it. The replies
	// of the others are remembered for that case; see ReplyCache. Nil: none may.
	Idempotent func(vers, proc uint32) bool

	// Inline says which procedures are quick and never block: they run on
	// the goroutine that moves the connection, with no hand-off. Nil: none.
	Inline func(vers, proc uint32) bool
}

// Every says yes to all procedures, for Program.Inline and Program.Idempotent.
func Every(vers, proc uint32) bool { return true }

// A Request is a call as a Handler sees it.
type Request struct {
	Procedure
	XID        uint32
	Cred, Verf oncrpc.Auth

	// Args are the whole XDR-encoded arguments: what came through read chunks
	// is in its place.
	Args []byte

	at int // of Args in the message
	x  *exch
}

// Decoder returns a decoder of Args that skips the padding of an RDMA_MSGP call.
func (r *Request) Decoder() xdr.Decoder {
	return xdr.NewPaddedDecoder(r.Args, r.at, xdr.Padding{Align: r.x.hdr.Align, Thresh: r.x.hdr.Thresh})
}

// RemoteAddr is the client's address.
func (r *Request) RemoteAddr() net.Addr { return r.x.c.fc.RemoteAddr() }

// A Response takes the results of a call.
type Response struct {
	// Results is to be appended to: the XDR-encoded results. As long as they
	// fit inline they are built where they are sent from.
	Results []byte

	x    *exch
	fail oncrpc.AcceptStat
	deny oncrpc.AuthStat
}

// AddItem appends an opaque result that the upper-layer binding makes eligible
// for a write chunk: its length word to Results, and data, which goes to the
// next write chunk of the call, or inline with its padding if there is none.
//
// data belongs to the response until the adapter is done with it, after
// ServeRPC has returned: it must not change before release, which may be nil,
// is called. On providers that take registered memory alone, data that is not
// from Alloc is copied.
func (w *Response) AddItem(data []byte, release func()) {
	w.Results = xdr.AppendUint32(w.Results, uint32(len(data)))
	w.x.addItem(len(w.Results), data, release)
}

// addItem adds an item at a place of the stream.
func (x *exch) addItem(at int, data []byte, release func()) {
	it := item{at: at, data: data, key: fabric.LocalDMAKey, release: release}
	if own := x.own(data); own != nil {
		it.key = own.LKey
	} else if x.c.caps.LocalDMA {
		x.charge(len(data))
	} else {
		it.data, it.key = x.local(data)
	}
	x.items = append(x.items, it)
}

// Alloc returns n bytes of the connection's memory for AddItem, to be filled by
// the handler. They are the response's until the reply is out, and need no
// release. It returns nil when n is over the server's MaxMessage or there is no
// memory.
func (w *Response) Alloc(n int) []byte {
	if n < 0 || n > w.x.c.cfg.MaxMessage {
		return nil
	}
	b, err := w.x.alloc(n)
	if err != nil {
		if orphan(err) {
			return make([]byte, n)
		}
		return nil
	}
	return b.Bytes[:n:n]
}

// Fail makes the reply an error of RPC in place of results: oncrpc.GarbageArgs,
// ProcUnavail or SystemErr.
func (w *Response) Fail(stat oncrpc.AcceptStat) { w.fail = stat }

// Deny makes the reply one that refuses the call's credential, in place of results:
// oncrpc.AuthBadCred, AuthTooWeak and the like. RFC 5531 section 9, rejected_reply.
func (w *Response) Deny(stat oncrpc.AuthStat) { w.deny = stat }

// orphan tells whether there was no memory because the connection has ended, which the
// adapter knows before we do: the reply can only be remembered.
func orphan(err error) bool { return errors.Is(err, net.ErrClosed) }

// own returns the exchange's own buffer that data is at the start of.
func (x *exch) own(data []byte) *arena.Buffer {
	for _, b := range x.mems {
		if len(data) > 0 && &b.Bytes[0] == &data[0] {
			return b
		}
	}
	return nil
}

// local returns a copy of data in memory with a local key. Without memory the call
// fails.
func (x *exch) local(data []byte) ([]byte, uint32) {
	if len(data) == 0 {
		return nil, fabric.LocalDMAKey
	}
	b, err := x.alloc(len(data))
	if orphan(err) {
		return data, fabric.LocalDMAKey
	}
	if err != nil {
		x.failed = true
		return nil, fabric.LocalDMAKey
	}
	return b.Bytes[:copy(b.Bytes, data)], b.LKey
}

// A Server executes calls. It serves any number of listeners, of any providers,
// with the same programs.
type Server struct {
	cfg     ServerConfig // with its defaults in place
	connCfg *config      // what its connections work with
	stats   *counters
	memory  *budget.Budget

	*registry

	mu        lockorder.Mutex
	bridges   []*bridge
	listeners map[*Listener]struct{}
	conns     map[*conn]struct{}
	setups    int // connections being set up
	guests    guests
	sweeping  bool // see sweep
	accepted  uint64
	closing   bool
	idle      chan struct{} // closed when closing and no connection is left
}

// NewServer makes a server. A nil cfg is the default configuration.
func NewServer(cfg *ServerConfig) (*Server, error) {
	own, conns, err := cfg.settle()
	if err != nil {
		return nil, err
	}
	s := &Server{
		cfg: own, connCfg: conns, stats: new(counters),
		memory:    budget.New(own.MaxTotalMemory),
		listeners: make(map[*Listener]struct{}),
		conns:     make(map[*conn]struct{}),
		guests:    guests{hosts: make(map[string]*guestHost), most: own.MaxConns, mostSetups: max(own.MaxConns/8, 16)},
		idle:      make(chan struct{}),
	}
	s.mu.Init(rankServer)
	s.registry = newRegistry(conns)
	s.other = s.dispatchOther
	return s, nil
}

// Register adds a program. It must be done before Serve.
func (s *Server) Register(p Program) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.register(p)
}

// A Listener is an address at which a server can be reached.
type Listener struct {
	fl       fabric.Listener
	provider string
}

// Addr is the address, with the real port.
func (l *Listener) Addr() net.Addr { return l.fl.Addr() }

// Close stops listening. Connections live on.
func (l *Listener) Close() error { return l.fl.Close() }

// Listen announces the server at addr ("host:port", port 0 picks one) through
// provider p. Serve then takes connections.
func (s *Server) Listen(ctx context.Context, p fabric.Provider, addr string) (*Listener, error) {
	if p == nil {
		return nil, errNoProvider
	}
	fl, err := p.Listen(ctx, addr, s.connCfg.connAttr(roleServer))
	if err != nil {
		return nil, fmt.Errorf("listen on %s over %s: %w", addr, p.Name(), err)
	}
	l := &Listener{fl: fl, provider: p.Name()}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closing {
		fl.Close()
		return nil, net.ErrClosed
	}
	s.listeners[l] = struct{}{}
	return l, nil
}

// Serve takes connections from l until l or the server is closed; the error is
// then net.ErrClosed. While there are no descriptors, or no memory, it waits for some.
func (s *Server) Serve(l *Listener) error {
	defer func() {
		l.Close()
		s.mu.Lock()
		delete(s.listeners, l)
		s.mu.Unlock()
	}()
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
			fc.Reject([]byte(busyMark)[:min(len(busyMark), fc.Capabilities().MaxPrivateData)])
		}
	}
}

// scarce tells whether there was no connection for want of something that there may be more
// of in a moment.
func scarce(err error) bool {
	for _, e := range []error{syscall.EMFILE, syscall.ENFILE, syscall.ENOMEM, syscall.ENOBUFS, syscall.ECONNABORTED} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}

// growStack makes the stack of a new goroutine as long as that of a connection gets, while
// there is next to nothing on it that would have to be moved, frame by frame, later on.
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
	c.stats = s.stats
	c.execute(s.registry, s.memory, c.host())
	c.lineage = s.cache.NewLineage() // before the client learns that there is a connection

	ctx, cancel := context.WithTimeout(g.ctx, s.cfg.SetupTimeout)
	err := l.accept(ctx)
	cancel()

	s.mu.Lock()
	if err == nil && s.closing {
		err = net.ErrClosed
	}
	if err == nil {
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
		l.discard()
		s.mu.Lock()
		s.setups--
		s.guests.remove(g)
		s.checkIdle()
		s.mu.Unlock()
		return
	}

	l.serve()
	var closed *ClosedError
	var ce *fabric.ConnError
	if errors.As(c.endErr(), &closed) && closed.Reason != nil && !(errors.As(closed.Reason, &ce) && ce.Clean) {
		s.log("connection ended", c, closed.Reason)
	}
	s.mu.Lock()
	bridges := s.bridges
	s.mu.Unlock()
	for _, b := range bridges {
		b.forget(c)
	}
	// Close may return from here on.
	s.mu.Lock()
	delete(s.conns, c)
	s.guests.remove(g)
	s.checkIdle()
	s.mu.Unlock()
}

func (s *Server) log(msg string, c *conn, err error) {
	if s.cfg.Logger != nil {
		s.cfg.Logger.Warn(msg, "peer", c.addr(), "provider", c.provider, "err", err)
	}
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

// stop refuses new connections and returns those there are.
func (s *Server) stop() []*conn {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closing = true
	for l := range s.listeners {
		l.Close()
	}
	for _, b := range s.bridges {
		b.Close()
	}
	s.checkIdle()
	conns := make([]*conn, 0, len(s.conns))
	for c := range s.conns {
		conns = append(conns, c)
	}
	return conns
}

// Shutdown stops listening, answers the calls that have arrived, and ends all
// connections in order. When ctx ends first they are closed at once, and ctx's
// error is returned.
func (s *Server) Shutdown(ctx context.Context) error {
	for _, c := range s.stop() {
		c.drain.Store(&ctx)
		c.fc.Wake()
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
// adapter has let go of all memory; handlers may still be running, with their
// context ended. It may be called twice.
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
	st := s.stats.snapshot()
	s.mu.Lock()
	st.Conns, st.OpenConns = s.accepted, uint64(len(s.conns))
	s.mu.Unlock()
	return st
}

// dispatchOther takes calls to the programs that the transport serves itself, and to
// those of bridges, whose arguments start at offset n.
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
		proc := Procedure{call.Prog, call.Vers, call.Proc}
		i, ok := b.binding.(Idempotence)
		switch {
		case !x.chunksFit(b.binding, n):
			x.replyError(l, oncrpc.ReplyHeader{AcceptStat: oncrpc.GarbageArgs})
		case call.Proc != 0 && s.recall(l, x, ok && i.Idempotent(proc)):
		default:
			x.detach()
			b.dispatch(x)
		}
		return true
	}
	return false
}
