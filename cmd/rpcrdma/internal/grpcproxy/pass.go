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

// A passer passes calls to a server.
type passer struct {
	server  func(context.Context) (grpc.ClientConnInterface, error)
	running sync.WaitGroup // goroutines of calls, beside those of handlers
	active  atomic.Int64
	calls   atomic.Uint64
	failed  atomic.Uint64
}

// both is every call: whether it is a stream is known to the ends alone.
var both = &grpc.StreamDesc{ClientStreams: true, ServerStreams: true}

// handle is a grpc.StreamHandler: it passes one call. Its goroutine passes replies, and one more requests. Each
// has one message at most, which it has read and not sent, so that flow control reaches from end to end.
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

// A requestError is a request that does not pass, which ends the call.
type requestError struct{ err error }

func (e *requestError) Error() string { return e.err.Error() }

// requests passes the messages of the client, until it sends no further ones. It ends with the handler at the
// latest, after which in has no messages.
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
				return nil // replies learns why
			}
			return err
		}
	}
}

// replies passes the header as soon as it is there, then messages. It returns how the call has ended.
func replies(in grpc.ServerStream, out grpc.ClientStream) error {
	// Without a header there is the status alone, which RecvMsg returns.
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

// contentType is of a hop: each end of one writes its own.
const contentType = "content-type"

// passed is the metadata of a call on the other side. Both ends leave out what gRPC keeps for itself.
func passed(md metadata.MD) metadata.MD {
	if _, ok := md[contentType]; ok {
		md = md.Copy()
		delete(md, contentType)
	}
	return md
}

// checkType refuses messages that the other side would take for ones of Protocol Buffers.
func checkType(md metadata.MD) error {
	for _, t := range md[contentType] {
		if _, sub, ok := strings.Cut(t, "+"); ok && !strings.HasPrefix(sub, "proto") {
			return status.Errorf(codes.Unimplemented, "grpc-proxy: messages of %q do not pass, those of Protocol Buffers do", t)
		}
	}
	return nil
}
