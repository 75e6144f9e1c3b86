package transport

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"

	"github.com/rpcrdma/rpcrdma/fabric"
	"github.com/rpcrdma/rpcrdma/proto/oncrpc"
	"github.com/rpcrdma/rpcrdma/proto/rpcrdma"
	"github.com/rpcrdma/rpcrdma/proto/xdr"
)

// A Handler executes the procedures of a program.
type Handler interface {
	// ServeRPC executes req and fills res; the reply goes out when it returns.
	// req and what it points to are valid until then. ctx ends with the
	// connection. Procedure 0 does not get here: the server answers it.
	ServeRPC(ctx context.Context, req *Request, res *Response)
}

// A HandlerFunc is a function as a Handler.
type HandlerFunc func(ctx context.Context, req *Request, res *Response)

// ServeRPC calls f.
func (f HandlerFunc) ServeRPC(ctx context.Context, req *Request, res *Response) { f(ctx, req, res) }

// A Program is a program that a server executes.
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

	// Inline says which procedures are quick and never block: they run on
	// the goroutine that moves the connection, with no hand-off. Nil: none.
	Inline func(vers, proc uint32) bool
}

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
		it.key = own.key
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
		return nil
	}
	return b.b[:n:n]
}

// Fail makes the reply an error of RPC in place of results: oncrpc.GarbageArgs,
// ProcUnavail or SystemErr.
func (w *Response) Fail(stat oncrpc.AcceptStat) { w.fail = stat }

// own returns the exchange's own buffer that data is at the start of.
func (x *exch) own(data []byte) *buffer {
	for _, b := range x.mems {
		if len(data) > 0 && &b.b[0] == &data[0] {
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
	if err != nil {
		x.failed = true
		return nil, fabric.LocalDMAKey
	}
	return b.b[:copy(b.b, data)], b.key
}

// A Server executes calls. It serves any number of listeners, of any providers,
// with the same programs.
type Server struct {
	cfg   *Config
	stats *counters

	mu        sync.Mutex
	programs  map[uint32]*Program
	bridges   []*bridge
	listeners map[*Listener]struct{}
	conns     map[*conn]struct{}
	setups    int // connections being set up
	accepted  uint64
	closing   bool
	idle      chan struct{} // closed when closing and no connection is left
}

// NewServer makes a server. A nil cfg is the default configuration.
func NewServer(cfg *Config) (*Server, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, err
	}
	return &Server{
		cfg: cfg, stats: new(counters),
		programs:  make(map[uint32]*Program),
		listeners: make(map[*Listener]struct{}),
		conns:     make(map[*conn]struct{}),
		idle:      make(chan struct{}),
	}, nil
}

// Register adds a program. It must be done before Serve.
func (s *Server) Register(p Program) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if p.Handler == nil || p.Low > p.High {
		return fmt.Errorf("transport: program %d has no handler or no versions", p.Number)
	}
	if s.programs[p.Number] != nil {
		return fmt.Errorf("transport: program %d is registered twice", p.Number)
	}
	s.programs[p.Number] = &p
	return nil
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
	fl, err := p.Listen(ctx, addr, s.cfg.connAttr(roleServer))
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
// then net.ErrClosed.
func (s *Server) Serve(l *Listener) error {
	defer func() {
		l.Close()
		s.mu.Lock()
		delete(s.listeners, l)
		s.mu.Unlock()
	}()
	for {
		fc, err := l.fl.Accept(context.Background())
		if err != nil {
			if errors.Is(err, net.ErrClosed) {
				return net.ErrClosed
			}
			return fmt.Errorf("accept on %s: %w", l.Addr(), err)
		}
		s.mu.Lock()
		full := s.closing || len(s.conns)+s.setups >= s.cfg.MaxConns
		if !full {
			s.setups++
		}
		s.mu.Unlock()
		if full {
			fc.Reject(nil)
			continue
		}
		go s.serveConn(fc, l.provider)
	}
}

// serveConn sets up a connection and leads it until it ends.
func (s *Server) serveConn(fc fabric.Conn, provider string) {
	c := newConn(fc, provider, s.cfg, roleServer)
	c.stats = s.stats
	c.leading = true
	c.rsp.svc = s
	c.rsp.ctx, c.rsp.cancel = context.WithCancel(context.Background())

	ctx, cancel := context.WithTimeout(context.Background(), s.cfg.SetupTimeout)
	err := c.accept(ctx)
	cancel()

	s.mu.Lock()
	if err == nil && s.closing {
		err = net.ErrClosed
	}
	if err == nil {
		s.setups--
		s.conns[c] = struct{}{}
		s.accepted++
	}
	s.mu.Unlock()
	if err != nil {
		s.log("connection not set up", c, err)
		c.discard()
		s.mu.Lock()
		s.setups--
		s.checkIdle()
		s.mu.Unlock()
		return
	}

	c.serve()
	s.mu.Lock()
	delete(s.conns, c)
	bridges := s.bridges
	s.checkIdle()
	s.mu.Unlock()
	for _, b := range bridges {
		b.forget(c)
	}
	var closed *ClosedError
	var ce *fabric.ConnError
	if errors.As(c.endErr(), &closed) && closed.Reason != nil && !(errors.As(closed.Reason, &ce) && ce.Clean) {
		s.log("connection ended", c, closed.Reason)
	}
}

func (s *Server) log(msg string, c *conn, err error) {
	if s.cfg.Logger != nil {
		s.cfg.Logger.Warn(msg, "peer", c.addr(), "provider", c.provider, "err", err)
	}
}

// serve leads a server's connection for all its life.
func (c *conn) serve() {
	for c.step() {
		if ctx := c.drain.Load(); ctx != nil {
			c.rsp.stop = true
			if c.rsp.inUse() == 0 {
				_ = c.fc.Disconnect(*ctx)
				c.mu.Lock()
				c.closing = true
				c.mu.Unlock()
				c.finish(nil)
				return
			}
		}
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

// dispatch finds the program of a call (RFC 5531 section 9). Leader.
func (s *Server) dispatch(x *exch) {
	n, err := oncrpc.ConsumeCall(x.msg, &x.call)
	if err != nil || x.call.XID != x.hdr.XID {
		x.refuse(rpcrdma.ErrChunk)
		return
	}
	if x.begin() != nil {
		x.refuse(rpcrdma.ErrChunk)
		return
	}
	call := &x.call
	if call.RPCVers != oncrpc.Version {
		x.replyError(oncrpc.ReplyHeader{
			Stat: oncrpc.MsgDenied, RejectStat: oncrpc.RPCMismatch, Low: oncrpc.Version, High: oncrpc.Version,
		})
		return
	}
	p := s.programs[call.Prog]
	x.readReply = p != nil && p.ReadReplies
	switch {
	case x.hdr.Align > 1 && (p == nil || !p.Padded):
		x.refuse(rpcrdma.ErrChunk) // nobody would find the data
	case p == nil && call.Prog == rpcrdma.ConfigProgram && s.cfg.RFC5666.configures():
		x.configure(x.msg[n:])
	case p == nil:
		for _, b := range s.bridges {
			if !b.takes(call.Prog) {
				continue
			}
			if !x.chunksFit(b.binding, n) {
				x.replyError(oncrpc.ReplyHeader{AcceptStat: oncrpc.GarbageArgs})
				return
			}
			x.later()
			b.dispatch(x)
			return
		}
		x.replyError(oncrpc.ReplyHeader{AcceptStat: oncrpc.ProgUnavail})
	case call.Vers < p.Low || call.Vers > p.High:
		x.replyError(oncrpc.ReplyHeader{AcceptStat: oncrpc.ProgMismatch, Low: p.Low, High: p.High})
	case call.Proc == 0:
		x.reply(nil)
	case !x.chunksFit(p.Binding, n):
		x.replyError(oncrpc.ReplyHeader{AcceptStat: oncrpc.GarbageArgs})
	case p.Inline != nil && p.Inline(call.Vers, call.Proc):
		x.run(p.Handler, n)
	default:
		x.later()
		go x.run(p.Handler, n)
	}
}

// chunksFit compares the read chunks of a call, whose arguments start at offset n of its
// message, with what the binding says: each is an item that may be one, and has as many
// bytes as its length word says, or as many with padding (RFC 5666 section 3.4).
func (x *exch) chunksFit(b Binding, n int) bool {
	reads := x.hdr.Reads
	for len(reads) > 0 && reads[0].Position == 0 {
		reads = reads[1:]
	}
	if b == nil || len(reads) == 0 {
		return true
	}
	call := &x.call
	x.ranges, _ = b.Call(Procedure{call.Prog, call.Vers, call.Proc}, x.msg[n:], x.ranges[:0])
	for items := x.ranges; len(reads) > 0; {
		at, sum := int(reads[0].Position), 0
		for len(reads) > 0 && int(reads[0].Position) == at {
			sum += int(reads[0].Length)
			reads = reads[1:]
		}
		for len(items) > 0 && n+items[0].Offset < at {
			items = items[1:]
		}
		if len(items) == 0 || n+items[0].Offset != at || sum != items[0].Length && sum != xdr.Padded(items[0].Length) {
			return false
		}
	}
	return true
}

// run executes a call whose arguments start at offset n of its message.
func (x *exch) run(h Handler, n int) {
	call := &x.call
	x.req = Request{
		Procedure: Procedure{call.Prog, call.Vers, call.Proc},
		XID:       call.XID, Cred: call.Cred, Verf: call.Verf,
		Args: x.msg[n:], at: n, x: x,
	}
	x.res = Response{Results: x.results(), x: x}
	h.ServeRPC(x.c.rsp.ctx, &x.req, &x.res)
	if x.res.fail != oncrpc.Success {
		x.dropItems()
		x.replyError(oncrpc.ReplyHeader{AcceptStat: x.res.fail})
		return
	}
	x.reply(x.res.Results)
}

// dropItems forgets the results of a call that failed after all.
func (x *exch) dropItems() {
	for i := range x.items {
		if f := x.items[i].release; f != nil {
			f()
		}
	}
	clear(x.items)
	x.items = x.items[:0]
}
