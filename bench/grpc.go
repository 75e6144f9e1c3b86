package bench

import (
	"context"
	"errors"
	"fmt"
	"io"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/structpb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/rpcrdma/rpcrdma/grpcrdma"
)

// A Maker makes calls of a gRPC service: with package grpcrdma at a site, or with grpc-go and default options.
type Maker struct {
	At   Site
	Ours bool
}

// GRPCGo is grpc-go.
var GRPCGo = Maker{}

// GRPCAt is package grpcrdma.
func GRPCAt(at Site) Maker { return Maker{at, true} }

// workload returns a workload for either kind of maker, for messages of up to size bytes.
func (s Maker) workload(name string, size, depth int, begin func(cc grpc.ClientConnInterface) (*Instance, error)) Workload {
	server := &Server{Kind: "grpc", Size: size, Depth: depth}
	dial := func(addr string) (grpc.ClientConnInterface, func() error, error) {
		cc, err := grpcClient(addr, size, false)
		if err != nil {
			return nil, nil, err
		}
		return cc, cc.Close, nil
	}
	by := "grpc-go"
	if s.Ours {
		by = s.At.Name
		server.Kind, server.Site = "grpcrdma", s.At
		dial = func(addr string) (grpc.ClientConnInterface, func() error, error) { return s.dial(addr, size) }
	}
	return Workload{
		Name: fmt.Sprintf("GRPC%s/by=%s/size=%d/depth=%d", name, by, size, depth), Depth: depth, Server: server,
		Client: func(addr string) (*Instance, error) {
			cc, closes, err := dial(addr)
			if err != nil {
				return nil, err
			}
			in, err := begin(cc)
			if err != nil {
				return nil, errors.Join(err, closes())
			}
			end := in.Close
			in.Close = func() error {
				if end != nil {
					return errors.Join(end(), closes())
				}
				return closes()
			}
			return in, nil
		},
	}
}

func (s Maker) dial(addr string, size int) (grpc.ClientConnInterface, func() error, error) {
	p, err := s.At.tap()
	if err != nil {
		return nil, nil, err
	}
	cc, err := grpcrdma.Dial(context.Background(), p.through(), addr, grpcrdma.MaxRecvMsgSize(grpcLimit(size)))
	if err != nil {
		return nil, nil, errors.Join(err, p.Close())
	}
	return cc, func() error { return errors.Join(cc.Close(), p.Close()) }, nil
}

func (s *Server) serveGRPCRDMA() (*far, error) {
	p, err := s.Site.tap()
	if err != nil {
		return nil, err
	}
	srv := grpcrdma.NewServer(grpcrdma.MaxRecvMsgSize(grpcLimit(s.Size)))
	srv.RegisterService(grpcService(protoMethods()), struct{}{})
	l, err := srv.Listen(context.Background(), p.through(), s.Site.listen())
	if err != nil {
		return nil, errors.Join(err, p.Close())
	}
	served := make(chan error, 1)
	go func() { served <- srv.Serve(l) }()
	return &far{addr: l.Addr().String(), close: func() error {
		srv.Stop()
		return errors.Join(<-served, p.Close())
	}}, nil
}

// grpcService describes the service of the workloads, as generated code does.
func grpcService(echo, put grpcMethod) *grpc.ServiceDesc {
	return &grpc.ServiceDesc{
		ServiceName: "bench.Bench",
		HandlerType: (*any)(nil),
		Methods: []grpc.MethodDesc{
			{MethodName: "Echo", Handler: echo},
			{MethodName: "Put", Handler: put},
			{MethodName: "Spread", Handler: func(_ any, _ context.Context, decode func(any) error, _ grpc.UnaryServerInterceptor) (any, error) {
				in := new(structpb.ListValue)
				return in, decode(in)
			}},
		},
		Streams: []grpc.StreamDesc{
			{StreamName: "Turns", ClientStreams: true, ServerStreams: true, Handler: func(_ any, s grpc.ServerStream) error {
				return sink(s, func(*wrapperspb.BytesValue) bool { return true })
			}},
			{StreamName: "Sink", ClientStreams: true, ServerStreams: true, Handler: func(_ any, s grpc.ServerStream) error {
				return sink(s, func(m *wrapperspb.BytesValue) bool { return len(m.Value) == 0 })
			}},
		},
	}
}

// sink receives messages, and echoes those for which answers returns true.
func sink(s grpc.ServerStream, answers func(*wrapperspb.BytesValue) bool) error {
	for {
		m := new(wrapperspb.BytesValue)
		err := s.RecvMsg(m)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err == nil && answers(m) {
			err = s.SendMsg(m)
		}
		if err != nil {
			return err
		}
	}
}

// GRPCEcho echoes size bytes in one field with unary calls. Results are placed in fresh memory or, with own, in the
// caller's, which grpc-go does not support.
func GRPCEcho(s Maker, size, depth int, own bool) Workload {
	name := "Echo"
	if own {
		name += "Into"
	}
	return s.workload(name, size, depth, func(cc grpc.ClientConnInterface) (*Instance, error) {
		args := wrapperspb.Bytes(make([]byte, size))
		options := make([][]grpc.CallOption, depth)
		for i := range options {
			if own && s.Ours {
				options[i] = []grpc.CallOption{grpcrdma.Into(make([]byte, size))}
			}
		}
		return &Instance{Call: func(worker int) error {
			return cc.Invoke(context.Background(), "/bench.Bench/Echo", args, new(wrapperspb.BytesValue), options[worker]...)
		}}, nil
	})
}

// GRPCSpread echoes messages of size bytes without a long field: strings of 100 bytes.
func GRPCSpread(s Maker, size int) Workload {
	return s.workload("Spread", size, 1, func(cc grpc.ClientConnInterface) (*Instance, error) {
		args := new(structpb.ListValue)
		for proto.Size(args) < size {
			args.Values = append(args.Values, make([]*structpb.Value, max(1, size/200))...)
			for i := range args.Values {
				args.Values[i] = structpb.NewStringValue(fmt.Sprintf("%0100d", i))
			}
		}
		return &Instance{Call: func(int) error {
			return cc.Invoke(context.Background(), "/bench.Bench/Spread", args, new(structpb.ListValue))
		}}, nil
	})
}

// stream opens a stream that ends with the instance.
func stream(cc grpc.ClientConnInterface, name string) (grpc.ClientStream, func() error, error) {
	ctx, cancel := context.WithCancel(context.Background())
	s, err := cc.NewStream(ctx, &grpc.StreamDesc{ClientStreams: true, ServerStreams: true}, "/bench.Bench/"+name)
	return s, func() error { cancel(); return nil }, err
}

// GRPCTurns echoes size bytes over a stream, one message at a time.
func GRPCTurns(s Maker, size int) Workload {
	return s.workload("Turns", size, 1, func(cc grpc.ClientConnInterface) (*Instance, error) {
		st, end, err := stream(cc, "Turns")
		m := wrapperspb.Bytes(make([]byte, size))
		return &Instance{Close: end, Call: func(int) error {
			return errors.Join(st.SendMsg(m), st.RecvMsg(new(wrapperspb.BytesValue)))
		}}, err
	})
}

// GRPCStream sends messages of size bytes over a stream, in one direction.
func GRPCStream(s Maker, size int) Workload {
	return s.workload("Stream", size, 1, func(cc grpc.ClientConnInterface) (*Instance, error) {
		st, end, err := stream(cc, "Sink")
		m := wrapperspb.Bytes(make([]byte, size))
		return &Instance{
			Close: end, Call: func(int) error { return st.SendMsg(m) },
			Flush: func() error {
				return errors.Join(st.SendMsg(new(wrapperspb.BytesValue)), st.RecvMsg(new(wrapperspb.BytesValue)))
			},
		}, err
	})
}
