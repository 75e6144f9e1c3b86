package grpcproxy

import (
	"context"
	"errors"
	"io"
	"strings"
	"sync"
	"sync/atomic"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/rpcrdma/rpcrdma/grpcrdma"
)

// passer passes calls to a server.
type passer struct {
	server  func(context.Context) (grpc.ClientConnInterface, error)
	running sync.WaitGroup // goroutines of calls, in addition to those of handlers
	active  atomic.Int64
	calls   atomic.Uint64
	failed  atomic.Uint64
}

// both describes every call as a bidirectional stream: only its ends know what it is.
var both = &grpc.StreamDesc{ClientStreams: true, ServerStreams: true}

// handle is a grpc.StreamHandler that passes one call. Its goroutine passes replies, and another one requests. Each
// holds at most one message that it has read and not sent, so that flow control works end to end.
func (p *passer) handle(_ any, in grpc.ServerStream) (err error) {
	p.calls.Add(1)
	p.active.Add(1)
	defer func() {
		p.active.Add(-1)
		if err != nil {
			p.failed.Add(1)
		}
	}()
	method, ok := grpc.MethodFromServerStream(in)
	if !ok {
		return status.Error(codes.Internal, "grpc-proxy: the call names no method")
	}
	md, _ := metadata.FromIncomingContext(in.Context())
	if err := checkType(md); err != nil {
		return err
	}
	server, err := p.server(in.Context())
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancelCause(metadata.NewOutgoingContext(in.Context(), passed(md)))
	defer cancel(nil)
	out, err := server.NewStream(ctx, both, method)
	if err != nil {
		return err
	}
	p.running.Go(func() {
		if err := requests(in, out); err != nil {
			cancel(&requestError{err})
		}
	})
	err = replies(in, out)
	in.SetTrailer(passed(out.Trailer()))
	if err != nil {
		if bad, ok := errors.AsType[*requestError](context.Cause(ctx)); ok && status.Code(err) == codes.Canceled {
			return bad.err // why the call was canceled
		}
	}
	return err
}

// requestError is the error of a request that could not be passed, which ends the call.
type requestError struct{ err error }

func (e *requestError) Error() string { return e.err.Error() }

// requests passes the messages of the client until the client has sent the last one. It ends at the latest with the handler,
// after which in returns no messages.
func requests(in grpc.ServerStream, out grpc.ClientStream) error {
	for {
		var m grpcrdma.RawMessage
		if err := in.RecvMsg(&m); err != nil {
			if err == io.EOF {
				return out.CloseSend()
			}
			return err
		}
		if err := out.SendMsg(&m); err != nil {
			if err == io.EOF {
				return nil // replies gets the reason
			}
			return err
		}
	}
}

// replies passes the header as soon as it arrives, then messages. It returns the final status of the call.
func replies(in grpc.ServerStream, out grpc.ClientStream) error {
	// Without a header there is only the status, which RecvMsg returns.
	if md, err := out.Header(); err == nil && md != nil {
		if err := in.SendHeader(passed(md)); err != nil {
			return err
		}
	}
	for {
		var m grpcrdma.RawMessage
		if err := out.RecvMsg(&m); err != nil {
			if err == io.EOF {
				return nil
			}
			return err
		}
		if err := in.SendMsg(&m); err != nil {
			return err
		}
	}
}

// contentType applies to a hop: each end of one sets its own.
const contentType = "content-type"

// passed returns the metadata of a call for the other side. Both ends omit keys reserved for gRPC.
func passed(md metadata.MD) metadata.MD {
	if _, ok := md[contentType]; ok {
		md = md.Copy()
		delete(md, contentType)
	}
	return md
}

// checkType rejects messages that the other side would mistake for Protocol Buffers.
func checkType(md metadata.MD) error {
	for _, t := range md[contentType] {
		if _, sub, ok := strings.Cut(t, "+"); ok && !strings.HasPrefix(sub, "proto") {
			return status.Errorf(codes.Unimplemented, "grpc-proxy: messages of %q do not pass, those of Protocol Buffers do", t)
		}
	}
	return nil
}
