package grpcrdma

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"net"
	"reflect"
	"runtime/debug"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	"github.com/rpcrdma/rpcrdma/fabric"
	"github.com/rpcrdma/rpcrdma/grpcrdma/internal/wire"
	"github.com/rpcrdma/rpcrdma/proto/xdr"
	"github.com/rpcrdma/rpcrdma/rpc"
	"github.com/rpcrdma/rpcrdma/transport"
)

// Server executes calls of gRPC services. It is a grpc.ServiceRegistrar. Register the services before it serves. One
// Server can serve any number of transport.Servers, and calls that servers make to their clients: see [Server.Program].
type Server struct {
	endpoint
	opts *options

	services map[string]*service

	running running

	mine     sync.Once
	server   *transport.Server // that Serve runs
	unserved error             // why server is nil
}

var _ grpc.ServiceRegistrar = (*Server)(nil)

type service struct {
	impl    any
	desc    *grpc.ServiceDesc
	methods map[string]*unaryMethod
	streams map[string]*grpc.StreamDesc
}

type unaryMethod struct {
	*grpc.MethodDesc
	observed rpc.Procedure
}

// NewServer returns a Server without services.
func NewServer(opts ...Option) *Server {
	o := newOptions(opts)
	s := &Server{opts: o, services: make(map[string]*service)}
	s.endpoint = endpoint{srv: s, cfg: o.limits}
	return s
}

// RegisterService implements grpc.ServiceRegistrar. It panics if impl does not implement desc, or if the service is
// already registered.
func (s *Server) RegisterService(desc *grpc.ServiceDesc, impl any) {
	if impl != nil {
		if want := reflect.TypeOf(desc.HandlerType).Elem(); !reflect.TypeOf(impl).Implements(want) {
			panic(fmt.Sprintf("grpcrdma: %T is no %v", impl, want))
		}
	}
	if _, twice := s.services[desc.ServiceName]; twice {
		panic("grpcrdma: service registered twice: " + desc.ServiceName)
	}
	svc := &service{impl: impl, desc: desc, methods: make(map[string]*unaryMethod), streams: make(map[string]*grpc.StreamDesc)}
	methods := methodsOf(desc)
	for i := range desc.Methods {
		m := &desc.Methods[i]
		svc.methods[m.MethodName] = &unaryMethod{m, procedureOf(desc.ServiceName, methods, m.MethodName)}
	}
	for i := range desc.Streams {
		svc.streams[desc.Streams[i].StreamName] = &desc.Streams[i]
	}
	s.services[desc.ServiceName] = svc
}

// GetServiceInfo describes the services, for the reflection service.
func (s *Server) GetServiceInfo() map[string]grpc.ServiceInfo {
	all := make(map[string]grpc.ServiceInfo, len(s.services))
	for name, svc := range s.services {
		info := grpc.ServiceInfo{Metadata: svc.desc.Metadata}
		for _, m := range svc.desc.Methods {
			info.Methods = append(info.Methods, grpc.MethodInfo{Name: m.MethodName})
		}
		for _, m := range svc.desc.Streams {
			info.Methods = append(info.Methods, grpc.MethodInfo{
				Name: m.StreamName, IsClientStream: m.ClientStreams, IsServerStream: m.ServerStreams,
			})
		}
		all[name] = info
	}
	return all
}

// lookup returns the service of a method, and the method's name within it.
func (s *Server) lookup(method string) (svc *service, name string) {
	method = strings.TrimPrefix(method, "/")
	i := strings.LastIndexByte(method, '/')
	if i < 0 {
		return nil, ""
	}
	return s.services[method[:i]], method[i+1:]
}

// Program returns the program that carries the services, for transport.Server.Register. A client that executes calls of
// its server puts it in ClientConfig.Callbacks: see [WithServices].
func (s *Server) Program() rpc.Program { return program(&s.endpoint) }

// Config returns a transport configuration for messages of up to maxMessage bytes, for a server or a client. It permits
// the other end chunks in both directions.
func Config(maxMessage int) transport.Config {
	return transport.Config{PeerChunks: transport.AllChunks, MaxMessage: maxMessage + overhead}
}

// overhead bounds how much longer a message of the transport is than the gRPC message in it, in bytes.
const overhead = 1 << 20

// transport returns the server that Listen and Serve use.
func (s *Server) transport() (*transport.Server, error) {
	s.mine.Do(func() {
		cfg := s.opts.serving
		if cfg == nil {
			cfg = &transport.ServerConfig{Config: Config(max(s.opts.recv, defaultRecv))}
		}
		if s.server, s.unserved = transport.NewServer(cfg); s.unserved == nil {
			s.unserved = s.server.Register(s.Program())
		}
	})
	return s.server, s.unserved
}

// Listen listens at addr with provider p, which may be transport.TCP. It may be called several times, also with
// different providers. See transport.Server.Listen.
func (s *Server) Listen(ctx context.Context, p fabric.Provider, addr string) (*transport.Listener, error) {
	t, err := s.transport()
	if err != nil {
		return nil, err
	}
	return t.Listen(ctx, p, addr)
}

// Serve accepts connections on l, a listener returned by Listen, until the Server is stopped. It then returns nil.
func (s *Server) Serve(l *transport.Listener) error {
	t, err := s.transport()
	if err == nil {
		err = t.Serve(l)
	}
	if s.running.stopped() && errors.Is(err, net.ErrClosed) {
		return nil
	}
	return err
}

// ListenAndServe calls Listen and then Serve.
func (s *Server) ListenAndServe(ctx context.Context, p fabric.Provider, addr string) error {
	l, err := s.Listen(ctx, p, addr)
	if err != nil {
		return err
	}
	return s.Serve(l)
}

// GracefulStop rejects new calls and streams, waits for the handlers to return, and closes the connections.
func (s *Server) GracefulStop() {
	s.running.stop()
	s.running.wait()
	s.endpoint.flush()
	if t, err := s.transport(); err == nil {
		t.Shutdown(context.Background())
	}
}

// Stop closes all connections at once.
func (s *Server) Stop() {
	s.running.stop()
	if t, err := s.transport(); err == nil {
		t.Close()
	}
	s.running.wait()
}

// running counts the handlers of streams. The transport does not know about them.
type running struct {
	mu   sync.Mutex
	n    int
	over bool          // reject new handlers
	idle chan struct{} // closed when the last handler returns; nil: no waiter
}

// begin reports whether a handler may start.
func (r *running) begin() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.over {
		r.n++
	}
	return !r.over
}

func (r *running) end() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.n--; r.n == 0 && r.idle != nil {
		close(r.idle)
		r.idle = nil
	}
}

func (r *running) stop() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.over = true
}

func (r *running) stopped() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.over
}

// wait waits until all handlers have returned. Call it after stop.
func (r *running) wait() {
	r.mu.Lock()
	var idle chan struct{}
	if r.n > 0 {
		if r.idle == nil {
			r.idle = make(chan struct{})
		}
		idle = r.idle
	}
	r.mu.Unlock()
	if idle != nil {
		<-idle
	}
}

// ---- calls

const (
	// shortReply is how much room a call offers for its results in addition to chunks, in bytes. That part is sent
	// inline.
	shortReply = 2 << 10
	// mostReply is the longest such part, in bytes: both kinds of metadata, and a status with its details.
	mostReply = 4*wire.MaxMetadata + 8<<10
)

// unaryCall is a unary call being executed, and its handler's context. Most of the context is created when the handler
// first uses it.
type unaryCall struct {
	serverCall
	srv      *Server
	code     coding
	args     packed
	base     context.Context // from the transport
	deadline time.Time       // zero: none
	caller   *peer.Peer

	making sync.Mutex
	made   context.Context // nil: not created yet
	stop   context.CancelFunc
	over   bool
}

var _ context.Context = (*unaryCall)(nil)

// serveUnary executes a unary call.
func (s *Server) serveUnary(e *endpoint, ctx context.Context, req *rpc.Request, res *rpc.Response) {
	var r wire.Request
	d := req.Decoder()
	r.Decode(&d)
	c := &unaryCall{serverCall: serverCall{method: r.Method}, srv: s, code: coding{shapes: &e.shapes}}
	c.args.items, c.args.body = takeBulk(&d)
	c.args.layout = r.Layout
	if err := d.End(); err != nil {
		res.FailArgs(req, err)
		return
	}
	if !req.Kept() { // this includes UNARY, whatever the peer says
		cloneAll(c.args.items)
	}
	l := e.link(req.Conn(), ctx)
	c.base = ctx
	if r.Timeout > 0 {
		c.deadline = time.Now().Add(time.Duration(min(r.Timeout, math.MaxInt64)))
	}
	defer c.cancel()
	l.begin(r.Id, c.cancel)
	defer l.finish(r.Id)

	var out packed
	err := c.execute(l, req, &r, &out)
	c.args = packed{} // the program may hold on to the context
	c.reply(l, req, res, &r, &out, err)
}

// context returns the context that implements the handler's context. It creates it on first use.
func (c *unaryCall) context() context.Context {
	c.making.Lock()
	defer c.making.Unlock()
	if c.made == nil {
		var ctx context.Context
		if c.deadline.IsZero() {
			ctx, c.stop = context.WithCancel(c.base)
		} else {
			ctx, c.stop = context.WithDeadline(c.base, c.deadline)
		}
		if c.over {
			c.stop()
		}
		c.made = c.values(ctx, c.caller)
	}
	return c.made
}

// cancel ends the handler's context.
func (c *unaryCall) cancel() {
	c.making.Lock()
	c.over = true
	stop := c.stop
	c.making.Unlock()
	if stop != nil {
		stop()
	}
}

// Deadline implements context.Context.
func (c *unaryCall) Deadline() (time.Time, bool) { return c.context().Deadline() }

// Done implements context.Context.
func (c *unaryCall) Done() <-chan struct{} { return c.context().Done() }

// Err implements context.Context.
func (c *unaryCall) Err() error { return c.context().Err() }

// Value implements context.Context.
func (c *unaryCall) Value(key any) any { return c.context().Value(key) }

// withTimeout is context.WithTimeout with the remaining time of a call. 0 means no limit.
func withTimeout(ctx context.Context, left uint64) (context.Context, context.CancelFunc) {
	if left == 0 {
		return context.WithCancel(ctx)
	}
	return context.WithTimeout(ctx, time.Duration(min(left, math.MaxInt64)))
}

// execute calls the handler of the call.
func (c *unaryCall) execute(l *link, req *rpc.Request, r *wire.Request, out *packed) (err error) {
	s := c.srv
	if s == nil || s.running.stopped() {
		return s.unavailable(r.Method)
	}
	if err := checkPairs(r.Header); err != nil {
		return err
	}
	svc, name := s.lookup(r.Method)
	var m *unaryMethod
	if svc != nil {
		m = svc.methods[name]
	}
	switch {
	case m != nil:
		req.Observed = m.observed
	case s.opts.unknown == nil:
		return unknownMethod(r.Method, svc)
	}
	c.caller, c.in = l.caller(req), fromPairs(r.Header)
	var ctx context.Context = c
	if s.opts.stats != nil {
		ctx = c.begin(ctx, s.opts.stats, req.Conn(), false, false)
		defer func() { c.end(err) }()
	}
	if m == nil {
		return s.unaryUnknown(ctx, &c.serverCall, &c.code, c.decode, out)
	}
	defer s.recovered(r.Method, &err)
	v, err := m.Handler(svc.impl, ctx, c.decode, chainUnary(s.opts.unaryServer))
	if err != nil {
		return err
	}
	if *out, err = c.code.pack(nil, v, s.opts.send); err == nil {
		c.outPayload(v, out)
	}
	return err
}

// decode decodes the arguments into v.
func (c *unaryCall) decode(v any) error {
	if err := c.code.as(&c.args.layout); err != nil {
		return err
	}
	if err := c.code.unpack(&c.args, v, c.srv.opts.recv); err != nil {
		return err
	}
	c.inPayload(v, &c.args)
	return nil
}

// unavailable returns the error of a program that does not execute calls.
func (s *Server) unavailable(method string) error {
	if s == nil {
		return unknownMethod(method, nil)
	}
	return status.Error(codes.Unavailable, "the server is stopping")
}

// unknownMethod returns the error for a method that is not registered, worded as in grpc-go.
func unknownMethod(method string, svc *service) error {
	name := strings.TrimPrefix(method, "/")
	i := strings.LastIndexByte(name, '/')
	switch {
	case i < 0:
		return status.Errorf(codes.Unimplemented, "malformed method name: %q", method)
	case svc == nil:
		return status.Errorf(codes.Unimplemented, "unknown service %v", name[:i])
	}
	return status.Errorf(codes.Unimplemented, "unknown method %v for service %v", name[i+1:], name[:i])
}

// recovered turns a panic into an error, as the transport does for its own handlers.
func (s *Server) recovered(method string, err *error) {
	if v := recover(); v != nil {
		*err = status.Errorf(codes.Internal, "grpcrdma: the handler panicked: %v", v)
		log := slog.Default()
		if cfg := s.opts.serving; cfg != nil && cfg.Logger != nil {
			log = cfg.Logger
		}
		log.Error("grpcrdma: a handler panicked", "method", method, "panic", v, "stack", string(debug.Stack()))
	}
}

// chainUnary combines interceptors into one.
func chainUnary(list []grpc.UnaryServerInterceptor) grpc.UnaryServerInterceptor {
	switch len(list) {
	case 0:
		return nil
	case 1:
		return list[0]
	}
	return func(ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
		next := handler
		for i := len(list) - 1; i >= 0; i-- {
			inner := next
			next = func(ctx context.Context, req any) (any, error) { return list[i](ctx, req, info, inner) }
		}
		return next(ctx, req)
	}
}

// ---- replies

// reply encodes the results of a unary call.
func (st *serverCall) reply(l *link, req *rpc.Request, res *rpc.Response, r *wire.Request, out *packed, err error) {
	var w wire.Reply
	st.mu.Lock()
	st.sent = true
	header, trailer := st.header, st.trailer
	st.mu.Unlock()
	if err == nil {
		w.Header, err = pairs(nil, header)
	}
	if err == nil {
		w.Trailer, err = pairs(nil, trailer)
	}
	if err != nil {
		*out = packed{}
		w.Status = toWire(statusOf(err))
		w.Header, _ = pairs(nil, header)
		w.Trailer, _ = pairs(nil, trailer)
	} else {
		w.Layout = out.layout
	}
	if fits(out, r.Offered) && addResults(res, &w, out, shortReply) {
		return
	}
	short := wire.Reply{Parked: true, Rest: uint32(len(w.Append(nil)) + bulkSize(out)), Sizes: sizes(out)}
	l.park(parked{r.Id, w, *out})
	addResults(res, &short, &packed{}, shortReply)
}

// fits reports whether the results fit inline or in the chunks offered for them.
func fits(p *packed, offered wire.Offers) bool {
	for i, n := range sizes(p) {
		if i == len(offered) || n > offered[i] {
			return false
		}
	}
	return true
}

// sizes returns the sizes of the items and the body that go to chunks.
func sizes(p *packed) (list wire.Offers) {
	for _, it := range p.items {
		list = append(list, uint32(len(it)))
	}
	if len(p.body) >= wire.BodyChunk {
		list = append(list, uint32(len(p.body)))
	}
	return list
}

// bulkSize returns the length that the items and the body add to the results, not counting what goes to chunks.
func bulkSize(p *packed) int {
	n := (2 + len(p.items)) * xdr.Unit
	if len(p.body) < wire.BodyChunk {
		n += xdr.Padded(len(p.body))
	}
	return n
}

// addResults appends results. It returns false if they are longer than most or exceed the room of the call, not
// counting what goes to chunks. The memory of p belongs to the response until the response has been sent.
func addResults(res *rpc.Response, w *wire.Reply, p *packed, most int) bool {
	before := res.Results
	res.Results = w.Append(before)
	if n := bulkSize(p); n > res.Room() || len(res.Results)-len(before)+n > most {
		res.Results = before
		return false
	}
	res.Results = xdr.AppendUint32(res.Results, uint32(len(p.items)))
	for _, it := range p.items {
		res.AddItem(it, nil)
	}
	if len(p.body) < wire.BodyChunk {
		res.Results = xdr.AppendOpaque(res.Results, p.body)
	} else {
		res.AddItem(p.body, nil)
	}
	return true
}

// serveFetch returns parked results to the client.
func (e *endpoint) serveFetch(ctx context.Context, req *rpc.Request, res *rpc.Response) {
	var t wire.Ticket
	d := req.Decoder()
	t.Decode(&d)
	if err := d.End(); err != nil {
		res.FailArgs(req, err)
		return
	}
	p, ok := e.link(req.Conn(), ctx).fetch(t.Id)
	if ok && fits(&p.packed, t.Offered) && addResults(res, &p.reply, &p.packed, mostReply) {
		return
	}
	w := wire.Reply{Status: toWire(status.New(codes.ResourceExhausted, "grpcrdma: the results had to make room for later ones, or do not fit"))}
	addResults(res, &w, &packed{}, shortReply)
}
