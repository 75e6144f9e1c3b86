package grpcrdma

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/stats"
	"google.golang.org/grpc/status"

	"github.com/rpcrdma/rpcrdma/fabric"
	"github.com/rpcrdma/rpcrdma/grpcrdma/internal/wire"
	"github.com/rpcrdma/rpcrdma/rpc"
	"github.com/rpcrdma/rpcrdma/transport"
)

// ClientConn makes calls and streams. It implements grpc.ClientConnInterface for generated clients. Its methods are
// safe for concurrent use.
type ClientConn struct {
	end   *endpoint
	conn  func(ctx context.Context) (rpc.Conn, error)
	close func() error // or nil
	opts  *options

	methods sync.Map     // string -> *method
	known   atomic.Int32 // entries in methods
	calls   sync.Pool    // *rpc.Call
	unaries sync.Pool    // *unary
	bodies  sync.Pool    // *[]byte: memory for result bodies
}

var _ grpc.ClientConnInterface = (*ClientConn)(nil)

// method remembers the shape of its latest results, because the next results are likely to have it too.
type method struct {
	last     atomic.Pointer[outline]
	observed rpc.Procedure
}

// maxMethods bounds the number of methods remembered, because a proxy takes their names from its callers.
const maxMethods = 4096

// outline holds the sizes, in bytes, of results that need chunks.
type outline struct {
	sizes wire.Offers
	items int // how many sizes are of items; one more is the body's
}

// Dial connects to a Server at addr with provider p, which may be transport.TCP. A lost connection is reestablished.
// The caller must close the ClientConn.
func Dial(ctx context.Context, p fabric.Provider, addr string, opts ...Option) (*ClientConn, error) {
	return dial([]string{addr}, opts, func(addr string, cfg *transport.ClientConfig) (*transport.Client, error) {
		return transport.Dial(ctx, p, addr, cfg)
	})
}

// DialAll returns a ClientConn for several servers that offer the same services, or for several connections to one
// server: it opens one connection to each of addrs. Unary calls and new streams are spread round-robin over the
// connections that are up. A stream stays on its connection. DialAll does not wait for the servers: connections are
// made, and lost ones reestablished, in the background. The error is about p or the options.
func DialAll(p fabric.Provider, addrs []string, opts ...Option) (*ClientConn, error) {
	return dial(addrs, opts, func(addr string, cfg *transport.ClientConfig) (*transport.Client, error) {
		return transport.NewClient(p, addr, cfg)
	})
}

func dial(addrs []string, opts []Option, one func(addr string, cfg *transport.ClientConfig) (*transport.Client, error)) (*ClientConn, error) {
	if len(addrs) == 0 {
		return nil, errors.New("grpcrdma: no address")
	}
	cc, cfg := newClientConn(opts)
	all := new(clients)
	for _, addr := range addrs {
		cl, err := one(addr, cfg)
		if err != nil {
			return nil, errors.Join(err, all.close())
		}
		all.list = append(all.list, cl)
	}
	cc.conn, cc.close = all.conn, all.close
	return cc, nil
}

// clients holds the transport clients of a ClientConn, one for each connection.
type clients struct {
	list []*transport.Client
	turn atomic.Uint32
}

// conn returns the next connection in turn that is up. If none is up, it returns the first that comes up.
func (all *clients) conn(ctx context.Context) (conn rpc.Conn, err error) {
	for range all.list {
		// A connection that is down passes its turn on, and is reestablished by this call. The others get equal shares
		// of its turns.
		turn := all.turn.Add(1)
		_, conn, err = all.list[turn%uint32(len(all.list))].OpenStream(ended, opening)
		if err == nil {
			return conn, nil
		}
	}
	if ctx.Err() != nil {
		return nil, err
	}
	return all.first(ctx)
}

// first returns the first connection that comes up.
func (all *clients) first(ctx context.Context) (conn rpc.Conn, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	type outcome struct {
		conn rpc.Conn
		err  error
	}
	outcomes := make(chan outcome, len(all.list))
	for _, cl := range all.list {
		go func() {
			_, conn, err := cl.OpenStream(ctx, opening)
			outcomes <- outcome{conn, err}
		}()
	}
	for range all.list {
		o := <-outcomes
		if o.err == nil {
			return o.conn, nil
		}
		err = o.err
	}
	return nil, err
}

func (all *clients) close() (err error) {
	for _, cl := range all.list {
		err = errors.Join(err, cl.Close())
	}
	return err
}

func newClientConn(opts []Option) (*ClientConn, *transport.ClientConfig) {
	cc := &ClientConn{opts: newOptions(opts)}
	cc.end = &endpoint{cfg: cc.opts.limits}
	if cc.opts.services != nil {
		cc.end = &cc.opts.services.endpoint
	}
	cfg := transport.ClientConfig{Config: Config(max(cc.opts.recv, defaultRecv))}
	if own := cc.opts.transport; own != nil {
		cfg = *own
	}
	cfg.Streams = true
	cfg.Callbacks = append(slices.Clip(cfg.Callbacks), program(cc.end))
	return cc, &cfg
}

// NewClientConn returns a ClientConn for services that the other end of c offers. It is for calls from a server to its
// client: c is a connection on which the Server executes calls. The caller keeps owning c.
func (s *Server) NewClientConn(c rpc.Conn, opts ...Option) *ClientConn {
	return &ClientConn{
		end: &s.endpoint, opts: newOptions(opts),
		conn: func(context.Context) (rpc.Conn, error) { return c, c.Err() },
	}
}

// Close closes the connections that Dial or DialAll made. Their calls and streams end with UNAVAILABLE.
func (cc *ClientConn) Close() error {
	if cc.close == nil {
		return nil
	}
	return cc.close()
}

// call returns an rpc.Call from the pool.
func (cc *ClientConn) call(proc uint32) *rpc.Call {
	call, ok := cc.calls.Get().(*rpc.Call)
	if !ok {
		call = new(rpc.Call)
	}
	call.Prog, call.Vers, call.Proc, call.Names, call.NoResend = prog, vers, proc, names, true
	call.Observed = rpc.Procedure{}
	call.Args, call.ReadItems, call.WriteItems, call.MaxResults = call.Args[:0], call.ReadItems[:0], call.WriteItems[:0], shortReply
	return call
}

// put returns a finished call to the pool.
func (cc *ClientConn) put(call *rpc.Call) {
	clear(call.ReadItems)
	clear(call.WriteItems)
	if cap(call.Args) <= 64<<10 {
		cc.calls.Put(call)
	}
}

// Invoke implements grpc.ClientConnInterface.
func (cc *ClientConn) Invoke(ctx context.Context, name string, args, reply any, opts ...grpc.CallOption) error {
	if len(cc.opts.unaryClient) == 0 {
		return cc.invoke(ctx, name, args, reply, opts)
	}
	next := func(ctx context.Context, name string, args, reply any, _ *grpc.ClientConn, opts ...grpc.CallOption) error {
		return cc.invoke(ctx, name, args, reply, opts)
	}
	for i := len(cc.opts.unaryClient) - 1; i >= 0; i-- {
		inner, f := next, cc.opts.unaryClient[i]
		next = func(ctx context.Context, name string, args, reply any, _ *grpc.ClientConn, opts ...grpc.CallOption) error {
			return f(ctx, name, args, reply, nil, inner, opts...)
		}
	}
	return next(ctx, name, args, reply, nil, opts...)
}

// info reads the options of a call.
func (cc *ClientConn) info(opts []grpc.CallOption) (c callInfo, err error) {
	c.recv, c.send, c.shapes = cc.opts.recv, cc.opts.send, &cc.end.shapes
	if err = c.apply(cc.opts.calls); err == nil {
		err = c.apply(opts)
	}
	return c, err
}

// invoke makes a unary call.
func (cc *ClientConn) invoke(ctx context.Context, name string, args, reply any, opts []grpc.CallOption) (err error) {
	u, ok := cc.unaries.Get().(*unary)
	if !ok {
		u = new(unary)
	}
	defer func() {
		*u = unary{body: u.body[:0]}
		cc.unaries.Put(u)
	}()
	u.cc, u.name = cc, name
	if u.info, err = cc.info(opts); err != nil {
		return err
	}
	if cc.opts.stats != nil {
		ctx = u.begin(ctx, cc.opts.stats, name, false, false)
	}
	err = failure(u.make(ctx, args, reply))
	u.info.ended(u.header, u.trailer, err)
	u.end(u.trailer, err)
	return err
}

// unary is a unary call in progress.
type unary struct {
	clientEvents
	cc              *ClientConn
	info            callInfo
	body            []byte // memory for a short body
	name            string
	header, trailer metadata.MD
}

// timeLeft returns the time until ctx's deadline, in nanoseconds, or 0 if it has none.
func timeLeft(ctx context.Context) (uint64, error) {
	end, ok := ctx.Deadline()
	if !ok {
		return 0, ctx.Err()
	}
	left := time.Until(end)
	if left <= 0 {
		return 0, context.DeadlineExceeded
	}
	return uint64(left), ctx.Err()
}

// make makes the call and reads its results.
func (u *unary) make(ctx context.Context, args, reply any) error {
	cc := u.cc
	conn, err := cc.connect(ctx, u.info.waitForReady)
	if err != nil {
		return err
	}
	u.info.setPeer(conn)
	l := cc.end.link(conn, nil)
	req := wire.Request{Id: l.nextID(), Method: u.name}
	if req.Timeout, err = timeLeft(ctx); err != nil {
		return err
	}
	var md metadata.MD
	if req.Header, md, err = u.info.metadata(ctx, conn, u.name); err != nil {
		return err
	}
	u.outHeader(u.name, md, conn)
	p, err := u.info.pack(u.body[:0], args, u.info.send)
	if err != nil {
		return err
	}
	if cap(p.body) <= maxScratch {
		u.body = p.body
	}
	req.Layout = p.layout
	proc := uint32(wire.GrpcUnary)
	if len(p.items) > 0 {
		proc = wire.GrpcPlaced
	}
	call := cc.call(proc)
	m := cc.method(u.name)
	call.Observed = m.observed
	var lent *[]byte
	req.Offered, lent = cc.offer(call, m, u.info.into)
	call.Args = req.Append(call.Args)
	addBulk(call, p.items, p.body)
	u.outPayload(args, &p)
	left := false
	if len(call.WriteItems) > 0 && len(call.ReadItems) == 0 && u.info.into == nil {
		left, err = callApart(ctx, conn, call)
	} else {
		err = conn.Call(ctx, call)
	}
	if err == nil {
		err = u.results(ctx, conn, call, m, req.Id, reply, lent)
	} else if ctx.Err() != nil {
		l.out.push(&wire.Frame{Id: req.Id, Own: true, Content: wire.Content{Kind: wire.KindCancel}}, false)
	}
	if !left {
		cc.put(call)
	}
	return err
}

// callApart makes a call that does not refer to memory of the program. If ctx ends first, the call can therefore be
// left to run on its connection. Revoking its memory instead would break the connection when the late reply arrives.
func callApart(ctx context.Context, conn rpc.Conn, call *rpc.Call) (left bool, err error) {
	w := conn.NewWaiter()
	ended := make(chan error, 1)
	if !conn.Start(call, func(err error) {
		ended <- err
		w.Wake(false)
	}) {
		return false, conn.Call(ctx, call)
	}
	for {
		err := w.Wait(ctx)
		select {
		case err := <-ended:
			return false, err
		default:
		}
		if err != nil {
			return true, err
		}
	}
}

// results reads the results of the call. It fetches results that are parked.
func (u *unary) results(ctx context.Context, conn rpc.Conn, call *rpc.Call, m *method, id uint64, reply any, lent *[]byte) error {
	r, p, err := readResults(call)
	if err == nil && r.Parked {
		fetch := u.cc.call(wire.GrpcFetch)
		defer u.cc.put(fetch)
		lent = nil
		r, p, err = u.fetch(ctx, conn, fetch, id, &r)
	}
	if err != nil {
		return err
	}
	u.header, u.trailer = fromPairs(r.Header), fromPairs(r.Trailer)
	u.inHeader(u.header, conn)
	if err := fromWire(&r.Status); err != nil {
		return err
	}
	m.learn(&p)
	code, err := u.info.coding.of(&p.layout)
	if err == nil {
		err = code.unpack(&p, reply, u.info.recv)
	}
	if lent != nil && len(p.items) == 0 { // otherwise an item may be in it, and the message refers to it
		u.cc.bodies.Put(lent)
	}
	if err == nil {
		u.inPayload(reply, &p)
	}
	return err
}

// readResults decodes the results of a call. They refer to the call's memory.
func readResults(call *rpc.Call) (r wire.Reply, p packed, err error) {
	d := call.Decoder()
	r.Decode(&d.Decoder)
	p.items, p.body = results(call, &d)
	p.layout = r.Layout
	return r, p, d.End()
}

// fetch fetches, with call, the results of the call with this id, which were longer than it had room for.
func (u *unary) fetch(ctx context.Context, conn rpc.Conn, call *rpc.Call, id uint64, of *wire.Reply) (r wire.Reply, p packed, err error) {
	total := uint64(0)
	for _, n := range of.Sizes {
		total += uint64(n)
	}
	if total > uint64(u.info.recv) {
		return r, p, status.Errorf(codes.ResourceExhausted, "grpcrdma: received message larger than max (%d vs. %d)", total, u.info.recv)
	}
	t := wire.Ticket{Id: id, Offered: of.Sizes}
	call.Args = t.Append(call.Args)
	call.MaxResults = int(min(max(of.Rest, shortReply), mostReply))
	offer(call, of.Sizes, true, u.info.into)
	if err := conn.Call(ctx, call); err != nil {
		return r, p, err
	}
	if r, p, err = readResults(call); err == nil && r.Parked {
		err = &rpc.BadReplyError{Reason: "results that were fetched are parked"}
	}
	return r, p, err
}

// ---- sizes of results

func (cc *ClientConn) method(name string) *method {
	if m, ok := cc.methods.Load(name); ok {
		return m.(*method)
	}
	m := &method{observed: observedByName(name)}
	if cc.known.Load() >= maxMethods {
		return m
	}
	other, loaded := cc.methods.LoadOrStore(name, m)
	if !loaded {
		cc.known.Add(1)
	}
	return other.(*method)
}

// offer gives call memory for results of the same shape as its method's latest, using the buffers of own first. It
// returns the sizes of the buffers. If only a body is expected, its memory is lent from the pool.
func (cc *ClientConn) offer(call *rpc.Call, m *method, own [][]byte) (offered wire.Offers, lent *[]byte) {
	var last outline
	if l := m.last.Load(); l != nil {
		last = *l
	}
	if len(own) == 0 && last.items == 0 && len(last.sizes) == 1 {
		b, ok := cc.bodies.Get().(*[]byte)
		if n := int(last.sizes[0]); !ok || len(*b) < n || len(*b) > 4*n {
			b = new([]byte)
			*b = make([]byte, n)
		}
		call.Receive(*b)
		return wire.Offers{uint32(len(*b))}, b
	}
	return offer(call, last.sizes, false, own), nil
}

// offer gives call memory of the wanted sizes, using the buffers of own first, and returns the sizes of the buffers. If
// exact is set, the sizes are known, and buffers of own that are too short are not used.
func offer(call *rpc.Call, want wire.Offers, exact bool, own [][]byte) wire.Offers {
	n := len(want)
	if !exact {
		n = max(n, len(own))
	}
	if n == 0 {
		return nil
	}
	offered := make(wire.Offers, 0, n)
	for i := range n {
		var b []byte
		if i < len(own) && (!exact || len(own[i]) >= int(want[i])) {
			b = own[i]
		} else {
			b = make([]byte, want[i])
		}
		call.Receive(b)
		offered = append(offered, uint32(len(b)))
	}
	return offered
}

// learn remembers the sizes of results that need chunks, rounded up.
func (m *method) learn(p *packed) {
	sizes := sizes(p)
	if len(sizes) == 0 {
		return
	}
	last := m.last.Load()
	now := &outline{sizes: sizes, items: len(p.items)}
	same := last != nil && len(last.sizes) == len(sizes) && last.items == now.items
	for i, n := range sizes {
		now.sizes[i] = (n + 1023) &^ 1023
		same = same && now.sizes[i] <= last.sizes[i] && now.sizes[i] >= last.sizes[i]/2
	}
	if !same {
		m.last.Store(now)
	}
}

// ---- connections

// connect returns the connection to use. If wait is false, it does not wait for a lost connection to come back.
func (cc *ClientConn) connect(ctx context.Context, wait bool) (rpc.Conn, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if conn, err := cc.conn(ended); err == nil {
		return conn, nil // usually it is up already
	}
	if !wait {
		short, cancel := context.WithTimeout(ctx, failFast)
		defer cancel()
		conn, err := cc.conn(short)
		var lost *rpc.LostError
		if err != nil && ctx.Err() == nil && errors.Is(err, context.DeadlineExceeded) && errors.As(err, &lost) {
			return nil, &callError{codes.Unavailable, fmt.Errorf("no connection at the moment: %w", cmp.Or(lost.Reason, errConnecting))}
		}
		return conn, err
	}
	return cc.conn(ctx)
}

var errConnecting = errors.New("still connecting for the first time")

// opening is a call that stands for any call when a connection is requested. Immutable.
var opening = &rpc.Call{Prog: prog, Vers: vers}

// ended is a canceled context. Immutable.
var ended = func() context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	return ctx
}()

// failFast is how long a call waits for a lost connection, unless it is wait-for-ready.
const failFast = time.Second

// ---- statistics

// clientEvents reports the events of an outgoing call.
type clientEvents struct{ observed }

func (o *clientEvents) begin(ctx context.Context, handlers []stats.Handler, name string, clientStream, serverStream bool) context.Context {
	for _, h := range handlers {
		ctx = h.TagRPC(ctx, &stats.RPCTagInfo{FullMethodName: name})
	}
	o.handlers, o.ctx, o.client, o.began = handlers, ctx, true, time.Now()
	o.handle(&stats.Begin{Client: true, BeginTime: o.began, IsClientStream: clientStream, IsServerStream: serverStream})
	return ctx
}

func (o *clientEvents) outHeader(name string, md metadata.MD, conn rpc.Conn) {
	if o.handlers != nil {
		o.handle(&stats.OutHeader{Client: true, FullMethod: name, Header: md, RemoteAddr: conn.RemoteAddr(), LocalAddr: conn.Info().LocalAddr})
	}
}

func (o *clientEvents) inHeader(md metadata.MD, conn rpc.Conn) {
	if o.handlers != nil {
		o.handle(&stats.InHeader{Client: true, Header: md, RemoteAddr: conn.RemoteAddr()})
	}
}

func (o *clientEvents) end(trailer metadata.MD, err error) {
	if o.handlers != nil {
		o.handle(&stats.InTrailer{Client: true, Trailer: trailer})
		o.handle(&stats.End{Client: true, BeginTime: o.began, EndTime: time.Now(), Trailer: trailer, Error: err})
	}
}
