package grpcrdma

import (
	"google.golang.org/grpc"
	"google.golang.org/grpc/stats"

	"github.com/rpcrdma/rpcrdma/transport"
)

// An Option is for one end: for [NewServer], [Dial] or [Server.NewClientConn]. Options that make no sense there do
// nothing.
type Option func(*options)

type options struct {
	limits
	unaryServer  []grpc.UnaryServerInterceptor
	streamServer []grpc.StreamServerInterceptor
	unaryClient  []grpc.UnaryClientInterceptor
	streamClient []grpc.StreamClientInterceptor
	stats        []stats.Handler
	calls        []grpc.CallOption
	unknown      grpc.StreamHandler
	services     *Server
	transport    *transport.ClientConfig
	serving      *transport.ServerConfig
}

func newOptions(opts []Option) *options {
	o := &options{limits: limits{recv: defaultRecv, send: 1<<31 - 1, window: defaultWindow, streams: defaultStreams}}
	for _, f := range opts {
		f(o)
	}
	return o
}

// MaxRecvMsgSize bounds a message that is received, in bytes. The default is 4 MiB, as that of grpc-go.
func MaxRecvMsgSize(n int) Option { return func(o *options) { o.recv = n } }

// MaxSendMsgSize bounds a message that is sent, in bytes. By default only the transport does.
func MaxSendMsgSize(n int) Option { return func(o *options) { o.send = n } }

// Window is how many bytes of messages that are not read yet wait at this end, in each stream: at least 64 KiB.
// A message that is longer waits as well, alone. The default is 4 MiB. A stream begins with
// 64 KiB, and has four times as much each time that half of it has been read, unless the streams of its connection
// have 128 MiB together.
func Window(bytes int) Option { return func(o *options) { o.window = max(bytes, leastWindow) } }

// MaxConcurrentStreams bounds the streams that the other end may have open on a connection. The default is
// 100,000.
func MaxConcurrentStreams(n int) Option { return func(o *options) { o.streams = n } }

// UnaryInterceptor adds interceptors of a server, the first outermost.
func UnaryInterceptor(i ...grpc.UnaryServerInterceptor) Option {
	return func(o *options) { o.unaryServer = append(o.unaryServer, i...) }
}

// StreamInterceptor adds interceptors of a server, the first outermost.
func StreamInterceptor(i ...grpc.StreamServerInterceptor) Option {
	return func(o *options) { o.streamServer = append(o.streamServer, i...) }
}

// WithUnaryInterceptor adds interceptors of a client, the first outermost. Their grpc.ClientConn is nil.
func WithUnaryInterceptor(i ...grpc.UnaryClientInterceptor) Option {
	return func(o *options) { o.unaryClient = append(o.unaryClient, i...) }
}

// WithStreamInterceptor adds interceptors of a client, the first outermost. Their grpc.ClientConn is nil.
func WithStreamInterceptor(i ...grpc.StreamClientInterceptor) Option {
	return func(o *options) { o.streamClient = append(o.streamClient, i...) }
}

// StatsHandler adds a handler of statistics, such as those of otelgrpc, at either end. Handlers see calls,
// not connections.
func StatsHandler(h stats.Handler) Option { return func(o *options) { o.stats = append(o.stats, h) } }

// WithDefaultCallOptions adds options of all calls of a client.
func WithDefaultCallOptions(opts ...grpc.CallOption) Option {
	return func(o *options) { o.calls = append(o.calls, opts...) }
}

// UnknownServiceHandler has a server handle calls of methods that it does not know as streams, with h.
func UnknownServiceHandler(h grpc.StreamHandler) Option { return func(o *options) { o.unknown = h } }

// WithServices has a client execute calls that its server makes, over the same connection.
func WithServices(s *Server) Option { return func(o *options) { o.services = s } }

// WithTransport is the configuration of the connections that [Dial] makes. It is not modified.
func WithTransport(cfg transport.ClientConfig) Option {
	return func(o *options) { o.transport = &cfg }
}

// ServerTransport is the configuration of the server that [Server.Serve] runs. It is not modified.
func ServerTransport(cfg transport.ServerConfig) Option {
	return func(o *options) { o.serving = &cfg }
}

// ---- options of a call

// An intoOption is the call option of Into.
type intoOption struct {
	grpc.EmptyCallOption
	bufs [][]byte
}

// Into has a unary call place long fields of its result in bufs, which belong to the call until it returns: the
// first field of type bytes or string with 4 KiB or more in the first buffer that has no field yet, and so on.
// The result refers to them from then on. A field that does not fit its buffer comes in other memory. The
// content of the buffers is undefined if the call fails.
func Into(bufs ...[]byte) grpc.CallOption { return intoOption{bufs: bufs} }
