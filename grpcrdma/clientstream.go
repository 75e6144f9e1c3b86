package grpcrdma

import (
	"context"
	"errors"
	"io"
	"runtime"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/rpcrdma/rpcrdma/grpcrdma/internal/wire"
)

// clientStream is the client's end of a stream. It implements grpc.ClientStream.
type clientStream struct {
	clientEvents
	s    *stream
	desc *grpc.StreamDesc
	info callInfo
	ctx  context.Context
	stop func() bool // stops watching ctx

	mu     sync.Mutex
	closed bool // CloseSend has been called
	over   bool // the caller knows how the stream ended
}

var _ grpc.ClientStream = (*clientStream)(nil)

// NewStream implements grpc.ClientConnInterface. The stream ends with ctx.
func (cc *ClientConn) NewStream(ctx context.Context, desc *grpc.StreamDesc, name string, opts ...grpc.CallOption) (grpc.ClientStream, error) {
	next := func(ctx context.Context, desc *grpc.StreamDesc, _ *grpc.ClientConn, name string, opts ...grpc.CallOption) (grpc.ClientStream, error) {
		return cc.newStream(ctx, desc, name, opts)
	}
	for i := len(cc.opts.streamClient) - 1; i >= 0; i-- {
		inner, f := next, cc.opts.streamClient[i]
		next = func(ctx context.Context, desc *grpc.StreamDesc, _ *grpc.ClientConn, name string, opts ...grpc.CallOption) (grpc.ClientStream, error) {
			return f(ctx, desc, nil, name, inner, opts...)
		}
	}
	return next(ctx, desc, nil, name, opts...)
}

func (cc *ClientConn) newStream(ctx context.Context, desc *grpc.StreamDesc, name string, opts []grpc.CallOption) (grpc.ClientStream, error) {
	info, err := cc.info(opts)
	if err != nil {
		return nil, err
	}
	cs := &clientStream{desc: desc, info: info, ctx: ctx}
	if cc.opts.stats != nil {
		cs.ctx = cs.begin(ctx, cc.opts.stats, name, desc.ClientStreams, desc.ServerStreams)
	}
	if err := cs.start(cc, name); err != nil {
		err = failure(err)
		cs.info.ended(nil, nil, err)
		cs.end(nil, err)
		return nil, err
	}
	return cs, nil
}

// start opens the stream.
func (cs *clientStream) start(cc *ClientConn, name string) error {
	conn, err := cc.connect(cs.ctx, cs.info.waitForReady)
	if err != nil {
		return err
	}
	cs.info.setPeer(conn)
	open := wire.Open{Method: name, Layout: cs.info.layout()}
	if open.Timeout, err = timeLeft(cs.ctx); err != nil {
		return err
	}
	var md metadata.MD
	if open.Header, md, err = cs.info.metadata(cs.ctx, conn, name); err != nil {
		return err
	}
	l := cc.end.link(conn, nil)
	cs.s = newStream(l, streamID{l.nextID(), true})
	if err := l.add(cs.s); err != nil {
		return err
	}
	cs.outHeader(name, md, conn)
	if err := cs.s.write(cs.ctx, wire.Content{Kind: wire.KindOpen, Open: open}); err != nil {
		return err
	}
	s, ctx := cs.s, cs.ctx
	cs.stop = context.AfterFunc(ctx, func() { s.canceled(ctx) })
	runtime.AddCleanup(cs, (*stream).abandon, s) // as grpc-go
	return nil
}

// Header implements grpc.ClientStream.
func (cs *clientStream) Header() (metadata.MD, error) {
	md, err := cs.s.awaitHeader(cs.ctx)
	if err != nil {
		return nil, failure(err)
	}
	return md, nil
}

// Trailer implements grpc.ClientStream.
func (cs *clientStream) Trailer() metadata.MD {
	cs.s.mu.Lock()
	defer cs.s.mu.Unlock()
	return cs.s.in.trailer
}

// Context implements grpc.ClientStream.
func (cs *clientStream) Context() context.Context { return cs.ctx }

// CloseSend implements grpc.ClientStream.
func (cs *clientStream) CloseSend() error {
	cs.mu.Lock()
	again := cs.closed
	cs.closed = true
	cs.mu.Unlock()
	if !again {
		_ = cs.s.write(cs.ctx, wire.Content{Kind: wire.KindHalfClose}) // RecvMsg reports the error
	}
	return nil
}

// SendMsg implements grpc.ClientStream. It returns io.EOF if the stream has ended. RecvMsg then returns the reason.
func (cs *clientStream) SendMsg(m any) error {
	cs.mu.Lock()
	closed := cs.closed
	cs.mu.Unlock()
	if closed {
		return status.Error(codes.Internal, "SendMsg called after CloseSend")
	}
	p, fault, err := cs.s.sendMsg(cs.ctx, &cs.info.coding, m, cs.info.send)
	switch {
	case fault != nil:
		cs.s.mu.Lock()
		cs.s.reset(fault)
		cs.s.mu.Unlock()
		return fault
	case err != nil:
		if !cs.desc.ClientStreams { // the caller reads only through this call
			return nil
		}
		return io.EOF
	}
	cs.outPayload(m, &p)
	if !cs.desc.ClientStreams {
		return cs.CloseSend()
	}
	return nil
}

// RecvMsg implements grpc.ClientStream.
func (cs *clientStream) RecvMsg(m any) error {
	p, err := cs.s.next(cs.ctx)
	if err != nil {
		return cs.finish(err)
	}
	code, err := cs.info.coding.of(&p.layout)
	if err == nil {
		err = code.unpack(&p, m, cs.info.recv)
	}
	if err != nil {
		cs.s.mu.Lock()
		cs.s.reset(err)
		cs.s.mu.Unlock()
		return cs.finish(err)
	}
	cs.inPayload(m, &p)
	if cs.desc.ServerStreams {
		return nil
	}
	// There is only one result, so the stream's final status is part of it.
	switch _, err := cs.s.next(cs.ctx); {
	case err == io.EOF:
		cs.finish(err)
		return nil
	case err != nil:
		return cs.finish(err)
	}
	err = status.Error(codes.Internal, "cardinality violation: expected <EOF> for non server-streaming RPCs, but received another message")
	cs.s.mu.Lock()
	cs.s.reset(err)
	cs.s.mu.Unlock()
	return cs.finish(err)
}

// finish records that the caller knows how the stream ended.
func (cs *clientStream) finish(err error) error {
	cs.stop()
	if err != io.EOF {
		err = failure(err)
	}
	cs.mu.Lock()
	again := cs.over
	cs.over = true
	cs.mu.Unlock()
	if again {
		return err
	}
	end := err
	if errors.Is(err, io.EOF) {
		end = nil
	}
	cs.s.mu.Lock()
	header, trailer := cs.s.in.header, cs.s.in.trailer
	cs.s.mu.Unlock()
	cs.info.ended(header, trailer, end)
	cs.end(trailer, end)
	if !cs.desc.ServerStreams && err == io.EOF {
		return status.Error(codes.Internal, "cardinality violation: received no response message from non-server-streaming RPC")
	}
	return err
}
