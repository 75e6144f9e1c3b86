package grpcrdma

import (
	"bytes"
	"context"
	"io"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
)

// unaryStream presents a unary call to a stream handler: one message in each direction. It implements
// grpc.ServerStream. Goroutines of the handler may outlive it. They then get nothing, because the transport has
// reclaimed the memory.
type unaryStream struct {
	ctx    context.Context
	call   *serverCall
	decode func(any) error
	encode func(any) (packed, error)

	mu   sync.Mutex
	read bool
	sent bool
	over bool // the handler has returned
	out  packed
}

var _ grpc.ServerStream = (*unaryStream)(nil)

// unaryUnknown executes a unary call with the handler for unknown methods.
func (s *Server) unaryUnknown(ctx context.Context, st *serverCall, code *coding, decode func(any) error, out *packed) error {
	us := &unaryStream{ctx: ctx, call: st, decode: decode, encode: func(m any) (packed, error) { return code.pack(nil, m, s.opts.send) }}
	defer us.end() // even after a panic
	desc := &grpc.StreamDesc{Handler: s.opts.unknown, ClientStreams: true, ServerStreams: true}
	if err := s.runStream(us, st.method, desc, nil); err != nil {
		return err
	}
	if !us.end() {
		return status.Error(codes.Internal, "grpcrdma: the handler of a unary call sent no message")
	}
	*out = us.out
	return nil
}

// end reports whether there is a reply, and prevents a later one.
func (us *unaryStream) end() bool {
	us.mu.Lock()
	defer us.mu.Unlock()
	us.over = true
	return us.sent
}

// SetHeader implements grpc.ServerStream.
func (us *unaryStream) SetHeader(md metadata.MD) error { return us.call.SetHeader(md) }

// SendHeader implements grpc.ServerStream.
func (us *unaryStream) SendHeader(md metadata.MD) error { return us.call.SendHeader(md) }

// SetTrailer implements grpc.ServerStream.
func (us *unaryStream) SetTrailer(md metadata.MD) { _ = us.call.SetTrailer(md) }

// Context implements grpc.ServerStream.
func (us *unaryStream) Context() context.Context { return us.ctx }

// RecvMsg implements grpc.ServerStream.
func (us *unaryStream) RecvMsg(m any) error {
	us.mu.Lock()
	defer us.mu.Unlock()
	switch {
	case us.over:
		return status.Error(codes.Canceled, "grpcrdma: the handler has returned")
	case us.read:
		return io.EOF
	}
	us.read = true
	return us.decode(m)
}

// SendMsg implements grpc.ServerStream. It copies the message, because the message is sent with the reply, and the
// handler may modify it before then.
func (us *unaryStream) SendMsg(m any) error {
	us.mu.Lock()
	defer us.mu.Unlock()
	switch {
	case us.over:
		return status.Error(codes.Canceled, "grpcrdma: the handler has returned")
	case us.sent:
		return status.Error(codes.Internal, "grpcrdma: a second message for a unary call")
	}
	p, err := us.encode(m)
	if err != nil {
		return err
	}
	for i := range p.items {
		p.items[i] = bytes.Clone(p.items[i])
	}
	us.out, us.sent = p, true
	us.call.outPayload(m, &p)
	return nil
}
