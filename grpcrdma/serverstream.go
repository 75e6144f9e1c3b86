package grpcrdma

import (
	"cmp"
	"context"
	"errors"
	"io"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"

	"github.com/rpcrdma/rpcrdma/grpcrdma/internal/wire"
	"github.com/rpcrdma/rpcrdma/rpc"
)

// serverStream is the server's end of a stream. It implements grpc.ServerStream.
type serverStream struct {
	s    *stream
	srv  *Server
	call *serverCall
	ctx  context.Context
	code coding // of the client's opening frame
}

var _ grpc.ServerStream = (*serverStream)(nil)

// serveStream starts the handler of a stream in a new goroutine. It returns an error if the method has no handler.
// serveStream runs on the goroutine that reads the connection.
func (s *Server) serveStream(ctx context.Context, req *rpc.Request, st *stream, o *wire.Open) error {
	if s == nil {
		return s.unavailable(o.Method)
	}
	svc, name := s.lookup(o.Method)
	desc := &grpc.StreamDesc{Handler: s.opts.unknown, ClientStreams: true, ServerStreams: true}
	var impl any
	switch {
	case svc != nil && svc.streams[name] != nil:
		desc, impl = svc.streams[name], svc.impl
	case svc != nil && svc.methods[name] != nil:
		desc, impl = unaryAsStream(svc.methods[name].MethodDesc, s), svc.impl
	case desc.Handler == nil:
		return unknownMethod(o.Method, svc)
	}
	code := coding{shapes: &s.shapes}
	if err := code.as(&o.Layout); err != nil {
		return err
	}
	if !s.running.begin() {
		return s.unavailable(o.Method)
	}
	header := fromPairs(o.Header) // copied, because o refers to memory of the transport
	method, conn, caller := o.Method, st.link.conn, st.link.caller(req)
	ctx, stop := withTimeout(rpc.Aside(ctx), o.Timeout)
	ctx, cancel := context.WithCancelCause(ctx)
	st.mu.Lock()
	st.cancel = cancel
	st.mu.Unlock()
	go func() {
		defer s.running.end()
		defer stop()
		defer cancel(nil)
		call := &serverCall{method: method}
		ss := &serverStream{s: st, srv: s, call: call, code: code}
		call.sendHeader = ss.writeHeader
		ss.ctx = call.context(ctx, caller, header)
		if s.opts.stats != nil {
			ss.ctx = call.begin(ss.ctx, s.opts.stats, conn, desc.ClientStreams, desc.ServerStreams)
		}
		err := s.runStream(ss, method, desc, impl)
		ss.finish(err)
		call.end(err)
	}()
	return nil
}

// runStream calls the handler.
func (s *Server) runStream(ss grpc.ServerStream, method string, desc *grpc.StreamDesc, impl any) (err error) {
	defer s.recovered(method, &err)
	handler := desc.Handler
	info := &grpc.StreamServerInfo{FullMethod: method, IsClientStream: desc.ClientStreams, IsServerStream: desc.ServerStreams}
	for i := len(s.opts.streamServer) - 1; i >= 0; i-- {
		inner := handler
		handler = func(srv any, stream grpc.ServerStream) error { return s.opts.streamServer[i](srv, stream, info, inner) }
	}
	return handler(impl, ss)
}

// unaryAsStream describes a unary method as a stream, because grpc-go clients may call it as one.
func unaryAsStream(m *grpc.MethodDesc, s *Server) *grpc.StreamDesc {
	return &grpc.StreamDesc{StreamName: m.MethodName, Handler: func(impl any, ss grpc.ServerStream) error {
		res, err := m.Handler(impl, ss.Context(), ss.RecvMsg, chainUnary(s.opts.unaryServer))
		if err != nil {
			return err
		}
		return ss.SendMsg(res)
	}}
}

// finish ends the stream after its handler has returned.
func (ss *serverStream) finish(err error) {
	c := ss.call
	c.mu.Lock()
	first := !c.sent
	c.sent = true
	header, trailer := c.header, c.trailer
	c.mu.Unlock()
	if first && len(header) > 0 {
		_ = ss.writeHeader(header)
	}
	end := wire.End{Status: toWire(statusOf(err))}
	if md, tooLong := pairs(nil, trailer); tooLong == nil {
		end.Trailer = md
	} else if err == nil {
		end.Status = toWire(statusOf(tooLong))
	}
	s := ss.s
	_ = s.room(context.Background()) // if the connection ends, so does the stream
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.over {
		s.push(wire.Content{Kind: wire.KindStatus, End: end})
		s.drop()
		if s.in.ended == nil {
			s.in.ended = io.EOF
		}
		s.leave()
	}
}

// writeHeader sends the header.
func (ss *serverStream) writeHeader(md metadata.MD) error {
	list, err := pairs(nil, md)
	if err != nil {
		return err
	}
	return ss.s.write(ss.ctx, wire.Content{Kind: wire.KindHeader, Header: list})
}

// SetHeader implements grpc.ServerStream.
func (ss *serverStream) SetHeader(md metadata.MD) error { return ss.call.SetHeader(md) }

// SendHeader implements grpc.ServerStream.
func (ss *serverStream) SendHeader(md metadata.MD) error { return ss.call.SendHeader(md) }

// SetTrailer implements grpc.ServerStream.
func (ss *serverStream) SetTrailer(md metadata.MD) { _ = ss.call.SetTrailer(md) }

// Context implements grpc.ServerStream.
func (ss *serverStream) Context() context.Context { return ss.ctx }

// SendMsg implements grpc.ServerStream.
func (ss *serverStream) SendMsg(m any) error {
	if err := ss.call.SendHeader(nil); err != nil && !errors.Is(err, errHeaderSent) {
		return err
	}
	p, fault, err := ss.s.sendMsg(ss.ctx, &ss.code, m, ss.srv.opts.send)
	if fault != nil || err != nil {
		return cmp.Or(fault, failure(err))
	}
	ss.call.outPayload(m, &p)
	return nil
}

// RecvMsg implements grpc.ServerStream.
func (ss *serverStream) RecvMsg(m any) error {
	p, err := ss.s.next(ss.ctx)
	if err != nil {
		return err
	}
	code, err := ss.code.of(&p.layout)
	if err != nil {
		return err
	}
	if err := code.unpack(&p, m, ss.srv.opts.recv); err != nil {
		return err
	}
	ss.call.inPayload(m, &p)
	return nil
}
