package grpcrdma

import (
	"google.golang.org/grpc"
	"google.golang.org/grpc/stats"

	"github.com/rpcrdma/rpcrdma/transport"
)

// An Option configures a [Server] or a [ClientConn]. Options that do not apply are ignored.
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

// MaxRecvMsgSize sets the largest message received, in bytes. The default is 4 MiB, as in grpc-go.
func MaxRecvMsgSize(n int) Option { return func(o *options) { o.recv = n } }

// MaxSendMsgSize sets the largest message sent, in bytes. By default only the transport limits it.
func MaxSendMsgSize(n int) Option { return func(o *options) { o.send = n } }

// Window sets how many bytes of unread messages may wait at this end of each stream: at least 64 KiB, 4 MiB by default.
// A longer message may wait too, but alone. A stream starts with 64 KiB. Its window grows fourfold each time half of it
// has been read, as long as the windows of its connection have grown by less than 128 MiB in total.
func Window(bytes int) Option { return func(o *options) { o.window = max(bytes, leastWindow) } }

// MaxConcurrentStreams sets how many streams the other end may have open on a connection. The default is 100,000.
func MaxConcurrentStreams(n int) Option { return func(o *options) { o.streams = n } }

// UnaryInterceptor adds interceptors to a server. The first one is outermost.
func UnaryInterceptor(i ...grpc.UnaryServerInterceptor) Option {
	return func(o *options) { o.unaryServer = append(o.unaryServer, i...) }
}

// StreamInterceptor adds interceptors to a server. The first one is outermost.
func StreamInterceptor(i ...grpc.StreamServerInterceptor) Option {
	return func(o *options) { o.streamServer = append(o.streamServer, i...) }
}

// WithUnaryInterceptor adds interceptors to a client. The first one is outermost. Their grpc.ClientConn is nil.
func WithUnaryInterceptor(i ...grpc.UnaryClientInterceptor) Option {
	return func(o *options) { o.unaryClient = append(o.unaryClient, i...) }
}

// WithStreamInterceptor adds interceptors to a client. The first one is outermost. Their grpc.ClientConn is nil.
func WithStreamInterceptor(i ...grpc.StreamClientInterceptor) Option {
	return func(o *options) { o.streamClient = append(o.streamClient, i...) }
}

// StatsHandler adds a statistics handler, such as otelgrpc's, at either end. Handlers see calls, not connections.
func StatsHandler(h stats.Handler) Option { return func(o *options) { o.stats = append(o.stats, h) } }

// WithDefaultCallOptions adds options to all calls of a client.
func WithDefaultCallOptions(opts ...grpc.CallOption) Option {
	return func(o *options) { o.calls = append(o.calls, opts...) }
}

// UnknownServiceHandler makes a server pass calls of unknown methods to h, as streams.
func UnknownServiceHandler(h grpc.StreamHandler) Option { return func(o *options) { o.unknown = h } }

// WithServices makes a client execute calls of its server over the same connection, with the services of s.
func WithServices(s *Server) Option { return func(o *options) { o.services = s } }

// WithTransport sets the configuration of the connections that [Dial] and [DialAll] make. cfg is not modified.
func WithTransport(cfg transport.ClientConfig) Option {
	return func(o *options) { o.transport = &cfg }
}

// ServerTransport sets the configuration of the server that [Server.Serve] runs. cfg is not modified.
func ServerTransport(cfg transport.ServerConfig) Option {
	return func(o *options) { o.serving = &cfg }
}

// ---- options of a call

// intoOption is the call option returned by Into.
type intoOption struct {
	grpc.EmptyCallOption
	bufs [][]byte
}

// Into makes a unary call place long fields of its result in bufs. They belong to the call until it returns. Each field
// of type bytes or string of 4 KiB or more goes to the next unused buffer, and the result refers to it afterwards. A
// field that does not fit its buffer is placed in other memory. If the call fails, the contents of the buffers are
// undefined.
func Into(bufs ...[]byte) grpc.CallOption { return intoOption{bufs: bufs} }
