package grpcrdma

import (
	"context"
	"errors"
	"net"

	spb "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/rpcrdma/rpcrdma/grpcrdma/internal/wire"
	"github.com/rpcrdma/rpcrdma/proto/oncrpc"
	"github.com/rpcrdma/rpcrdma/proto/rpcrdma"
	"github.com/rpcrdma/rpcrdma/proto/xdr"
	"github.com/rpcrdma/rpcrdma/rpc"
)

// callError is a transport failure with a status code. It unwraps to the cause.
type callError struct {
	code codes.Code
	err  error
}

func (e *callError) Error() string { return e.GRPCStatus().String() }

// GRPCStatus returns the status, for status.FromError.
func (e *callError) GRPCStatus() *status.Status { return status.New(e.code, e.err.Error()) }

func (e *callError) Unwrap() error { return e.err }

// failure converts an error of the transport or of a context to one for gRPC callers. It returns errors that have a
// status unchanged.
func failure(err error) error {
	if err == nil {
		return nil
	}
	if _, ok := status.FromError(err); ok {
		return err
	}
	return &callError{codeOf(err), err}
}

// codeOf returns the code for a transport error, according to the table in docs/grpc.md.
func codeOf(err error) codes.Code {
	var (
		refused *oncrpc.RPCError
		size    *rpc.SizeError
		rdma    *rpc.RDMAError
		reply   *rpc.BadReplyError
		decode  *xdr.DecodeError
		check   *xdr.CheckError
	)
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		return codes.DeadlineExceeded
	case errors.Is(err, context.Canceled):
		return codes.Canceled
	case errors.As(err, &size), errors.As(err, &check):
		return codes.ResourceExhausted
	case errors.As(err, &refused):
		return codeOfRefusal(refused)
	case errors.As(err, &rdma):
		if rdma.Code == rpcrdma.ErrVers {
			return codes.Unavailable
		}
		return codes.Internal
	case errors.As(err, &reply), errors.As(err, &decode), errors.Is(err, errPlaces):
		return codes.Internal
	case errors.Is(err, net.ErrClosed), errors.As(err, new(*rpc.NotReadyError)), errors.As(err, new(net.Error)):
		return codes.Unavailable
	}
	return codes.Unavailable
}

// codeOfRefusal returns the code for a call that the server refused to execute.
func codeOfRefusal(e *oncrpc.RPCError) codes.Code {
	switch {
	case e.Stat == oncrpc.MsgDenied && e.RejectStat == oncrpc.AuthError:
		return codes.Unauthenticated
	case e.Stat == oncrpc.MsgDenied:
		return codes.Unimplemented
	case e.AcceptStat == oncrpc.ProgUnavail, e.AcceptStat == oncrpc.ProgMismatch, e.AcceptStat == oncrpc.ProcUnavail:
		return codes.Unimplemented
	}
	return codes.Internal
}

// maxText is the longest text of a status, in bytes.
const maxText = 16 << 10

// statusOf returns the status of a handler's error.
func statusOf(err error) *status.Status {
	if err == nil {
		return nil
	}
	if s, ok := status.FromError(err); ok {
		return s
	}
	return status.FromContextError(err)
}

// toWire encodes a status. It omits details that are too long.
func toWire(s *status.Status) (w wire.Status) {
	if s == nil {
		return w
	}
	w.Code, w.Message = uint32(s.Code()), s.Message()
	if len(w.Message) > maxText {
		w.Message = w.Message[:maxText]
	}
	if p := s.Proto(); len(p.GetDetails()) > 0 {
		if b, err := proto.Marshal(p); err == nil && len(b) <= wire.MaxMetadata {
			w.Details = b
		}
	}
	return w
}

// fromWire decodes a status. It returns nil for OK.
func fromWire(w *wire.Status) error {
	if w.Code == uint32(codes.OK) {
		return nil
	}
	p := &spb.Status{Code: int32(w.Code), Message: w.Message}
	if len(w.Details) > 0 {
		var d spb.Status
		if proto.Unmarshal(w.Details, &d) == nil && d.Code == p.Code {
			p.Details = d.Details
		}
	}
	return status.ErrorProto(p)
}
