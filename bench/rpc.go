package bench

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/rpc"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

// NetRPC echoes size bytes over the standard library's net/rpc, with its own
// encoding.
func NetRPC(size, depth int) Workload {
	return Workload{
		Name:  fmt.Sprintf("NetRPC/size=%d/depth=%d", size, depth),
		Depth: depth,
		Setup: func() (*Instance, error) {
			server := rpc.NewServer()
			if err := server.RegisterName("Echo", netRPCEcho{}); err != nil {
				return nil, err
			}
			t, err := startTCP(func(c *net.TCPConn) error {
				server.ServeConn(c)
				return nil
			})
			if err != nil {
				return nil, err
			}
			client := rpc.NewClient(t.client)
			args := make([]byte, size)
			replies := make([][]byte, depth)
			return &Instance{
				Call: func(worker int) error {
					return client.Call("Echo.Echo", &args, &replies[worker])
				},
				Close: func() error {
					err := client.Close()
					<-t.done
					return err
				},
			}, nil
		},
	}
}

type netRPCEcho struct{}

// Echo is the only method of the service.
func (netRPCEcho) Echo(args, reply *[]byte) error {
	*reply = *args
	return nil
}

// GRPC echoes size bytes with unary calls of gRPC. See [GRPCPut] for tuned.
func GRPC(size, depth int, tuned bool) Workload {
	return Workload{
		Name:  fmt.Sprintf("GRPC/size=%d/depth=%d/tuned=%t", size, depth, tuned),
		Depth: depth,
		Setup: func() (*Instance, error) { return startGRPC("/bench.Bench/Echo", size, depth, tuned) },
	}
}

// GRPCPut sends size bytes with each unary call of gRPC; the answer is empty.
//
// Not tuned it is used as its documentation teaches: protocol buffers, here the
// well-known type for bytes, and default options. Tuned it has large flow-control
// windows, no encoding at all, and receives into buffers that are used again.
func GRPCPut(size int, tuned bool) Workload {
	return Workload{
		Name:  fmt.Sprintf("GRPC/put=%s/tuned=%t", binaryPrefix(size), tuned),
		Bytes: size,
		Setup: func() (*Instance, error) { return startGRPC("/bench.Bench/Put", size, 1, tuned) },
	}
}

// rawCodec carries *[]byte as it is.
type rawCodec struct{}

func (rawCodec) Name() string { return "raw" }

func (rawCodec) Marshal(v any) (mem.BufferSlice, error) {
	b, ok := v.(*[]byte)
	if !ok {
		return nil, fmt.Errorf("cannot marshal %T", v)
	}
	return mem.BufferSlice{mem.SliceBuffer(*b)}, nil
}

func (rawCodec) Unmarshal(data mem.BufferSlice, v any) error {
	b, ok := v.(*[]byte)
	if !ok {
		return fmt.Errorf("cannot unmarshal into %T", v)
	}
	n := data.Len()
	if cap(*b) < n {
		*b = make([]byte, n)
	}
	*b = (*b)[:n]
	data.CopyTo(*b)
	return nil
}

// buffers keeps the server's message buffers for the next call.
type buffers chan *[]byte

func (p buffers) get(size int) *[]byte {
	select {
	case b := <-p:
		return b
	default:
		b := make([]byte, 0, size)
		return &b
	}
}

func (p buffers) put(b *[]byte) {
	select {
	case p <- b:
	default:
	}
}

// A grpcMethod is what a code generator would have made for one method.
type grpcMethod = func(srv any, ctx context.Context, decode func(any) error, _ grpc.UnaryServerInterceptor) (any, error)

// protoMethods returns Echo and Put for messages of protocol buffers.
func protoMethods() (echo, put grpcMethod) {
	empty := new(wrapperspb.BytesValue)
	echo = func(_ any, _ context.Context, decode func(any) error, _ grpc.UnaryServerInterceptor) (any, error) {
		in := new(wrapperspb.BytesValue)
		return in, decode(in)
	}
	put = func(_ any, _ context.Context, decode func(any) error, _ grpc.UnaryServerInterceptor) (any, error) {
		return empty, decode(new(wrapperspb.BytesValue))
	}
	return echo, put
}

// rawMethods returns Echo and Put for rawCodec.
func rawMethods(size, depth int) (echo, put grpcMethod) {
	pool := make(buffers, depth)
	var empty []byte
	echo = func(_ any, _ context.Context, decode func(any) error, _ grpc.UnaryServerInterceptor) (any, error) {
		in := new([]byte) // sent after we return: nobody says when it is free again
		return in, decode(in)
	}
	put = func(_ any, _ context.Context, decode func(any) error, _ grpc.UnaryServerInterceptor) (any, error) {
		in := pool.get(size)
		defer pool.put(in)
		return &empty, decode(in)
	}
	return echo, put
}

// startGRPC begins to serve, and connects.
func startGRPC(method string, size, depth int, tuned bool) (*Instance, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	limit := 2*size + 4096
	serverOptions := []grpc.ServerOption{grpc.MaxRecvMsgSize(limit)}
	clientOptions := []grpc.DialOption{
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.MaxCallSendMsgSize(limit)),
	}
	var echo, put grpcMethod
	if tuned {
		const window = 4 << 20
		serverOptions = append(serverOptions, grpc.ForceServerCodecV2(rawCodec{}),
			grpc.InitialWindowSize(window), grpc.InitialConnWindowSize(window))
		clientOptions = append(clientOptions, grpc.WithDefaultCallOptions(grpc.ForceCodecV2(rawCodec{})),
			grpc.WithInitialWindowSize(window), grpc.WithInitialConnWindowSize(window))
		echo, put = rawMethods(size, depth)
	} else {
		echo, put = protoMethods()
	}

	server := grpc.NewServer(serverOptions...)
	server.RegisterService(&grpc.ServiceDesc{
		ServiceName: "bench.Bench",
		HandlerType: (*any)(nil),
		Methods: []grpc.MethodDesc{
			{MethodName: "Echo", Handler: echo},
			{MethodName: "Put", Handler: put},
		},
	}, struct{}{})
	served := make(chan error, 1)
	go func() { served <- server.Serve(l) }()

	client, err := grpc.NewClient("passthrough:///"+l.Addr().String(), clientOptions...)
	if err != nil {
		server.Stop()
		return nil, errors.Join(err, <-served)
	}
	var args any = wrapperspb.Bytes(make([]byte, size))
	replies := make([]any, depth)
	for i := range replies {
		replies[i] = new(wrapperspb.BytesValue)
	}
	if tuned {
		raw := make([]byte, size)
		args = &raw
		for i := range replies {
			replies[i] = new([]byte)
		}
	}
	return &Instance{
		Call: func(worker int) error {
			return client.Invoke(context.Background(), method, args, replies[worker])
		},
		Close: func() error {
			err := client.Close()
			server.Stop()
			return errors.Join(err, <-served)
		},
	}, nil
}
