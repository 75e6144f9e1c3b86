package grpcrdma

import (
	"context"
	"errors"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/stats"

	"github.com/rpcrdma/rpcrdma/rpc"
)

// serverCall is the part of a call, unary or not, that is accessible through the handler's context. It implements
// grpc.ServerTransportStream.
type serverCall struct {
	method string
	observed
	sendHeader func(metadata.MD) error // for a stream; nil: the header is sent with the reply

	mu      sync.Mutex
	header  metadata.MD
	trailer metadata.MD
	sent    bool // the header has been sent
}

var _ grpc.ServerTransportStream = (*serverCall)(nil)

var errHeaderSent = errors.New("grpcrdma: the header has been sent")

// context returns the context for a handler.
func (c *serverCall) context(ctx context.Context, caller *peer.Peer, md metadata.MD) context.Context {
	c.in = md
	return c.values(ctx, caller)
}

// values adds to ctx the values that a handler may look up.
func (c *serverCall) values(ctx context.Context, caller *peer.Peer) context.Context {
	ctx = grpc.NewContextWithServerTransportStream(ctx, c)
	ctx = metadata.NewIncomingContext(ctx, c.in)
	return peer.NewContext(ctx, caller)
}

// Method implements grpc.ServerTransportStream.
func (c *serverCall) Method() string { return c.method }

// SetHeader implements grpc.ServerTransportStream.
func (c *serverCall) SetHeader(md metadata.MD) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.sent {
		return errHeaderSent
	}
	c.header = metadata.Join(c.header, md)
	return nil
}

// SendHeader implements grpc.ServerTransportStream. The header of a unary call is sent with the reply.
func (c *serverCall) SendHeader(md metadata.MD) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.sent {
		return errHeaderSent
	}
	c.header = metadata.Join(c.header, md)
	c.sent = true
	if c.sendHeader == nil {
		return nil
	}
	c.outHeader(c.header)
	return c.sendHeader(c.header)
}

// SetTrailer implements grpc.ServerTransportStream.
func (c *serverCall) SetTrailer(md metadata.MD) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.trailer = metadata.Join(c.trailer, md)
	return nil
}

// ---- statistics

// observed reports the events of a call to handlers. Without handlers it does nothing.
type observed struct {
	handlers []stats.Handler
	ctx      context.Context
	client   bool
	began    time.Time
	in       metadata.MD // header received
}

// begin reports the first event of a call on the server.
func (c *serverCall) begin(ctx context.Context, handlers []stats.Handler, conn rpc.Conn, clientStream, serverStream bool) context.Context {
	for _, h := range handlers {
		ctx = h.TagRPC(ctx, &stats.RPCTagInfo{FullMethodName: c.method})
	}
	c.observed.handlers, c.observed.ctx, c.began = handlers, ctx, time.Now()
	c.handle(&stats.InHeader{FullMethod: c.method, RemoteAddr: conn.RemoteAddr(), Header: c.in})
	c.handle(&stats.Begin{BeginTime: c.began, IsClientStream: clientStream, IsServerStream: serverStream})
	return ctx
}

func (o *observed) handle(s stats.RPCStats) {
	for _, h := range o.handlers {
		h.HandleRPC(o.ctx, s)
	}
}

func (o *observed) inPayload(v any, p *packed) {
	if o.handlers != nil {
		n := p.size()
		o.handle(&stats.InPayload{Client: o.client, Payload: v, Length: n, CompressedLength: n, WireLength: n, RecvTime: time.Now()})
	}
}

func (o *observed) outPayload(v any, p *packed) {
	if o.handlers != nil {
		n := p.size()
		o.handle(&stats.OutPayload{Client: o.client, Payload: v, Length: n, CompressedLength: n, WireLength: n, SentTime: time.Now()})
	}
}

func (o *observed) outHeader(md metadata.MD) {
	if o.handlers != nil {
		o.handle(&stats.OutHeader{Client: o.client, Header: md})
	}
}

// end reports the last event of a call.
func (c *serverCall) end(err error) {
	if c.handlers == nil {
		return
	}
	c.mu.Lock()
	trailer := c.trailer
	c.mu.Unlock()
	c.handle(&stats.OutTrailer{Trailer: trailer})
	if err != nil {
		err = statusOf(err).Err()
	}
	c.handle(&stats.End{BeginTime: c.began, EndTime: time.Now(), Trailer: trailer, Error: err})
}
