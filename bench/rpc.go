package bench

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/rpc"

	"github.com/containerd/ttrpc"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

// NetRPC echoes size bytes over the standard library's net/rpc, with its own
// encoding.
func NetRPC(size, depth int) Workload {
	return Workload{
		Name:   fmt.Sprintf("NetRPC/size=%d/depth=%d", size, depth),
		Depth:  depth,
		Server: &Server{Kind: "netrpc"},
		Client: func(addr string) (*Instance, error) {
			c, err := dialServer(addr)
			if err != nil {
				return nil, err
			}
			client := rpc.NewClient(c)
			args := make([]byte, size)
			replies := make([][]byte, depth)
			return &Instance{
				Call: func(worker int) error {
					return client.Call("Echo.Echo", &args, &replies[worker])
				},
				Close: client.Close,
			}, nil
		},
	}
}

func (s *Server) serveNetRPC() (*far, error) {
	server := rpc.NewServer()
	if err := server.RegisterName("Echo", netRPCEcho{}); err != nil {
		return nil, err
	}
	return s.serve(func(c net.Conn) error {
		server.ServeConn(c)
		return nil
	})
}

type netRPCEcho struct{}

// Echo is the only method of the service.
func (netRPCEcho) Echo(args, reply *[]byte) error {
	*reply = *args
	return nil
}

// GRPC echoes size bytes with unary gRPC calls. See [GRPCPut] for tuned.
func GRPC(size, depth int, tuned bool) Workload {
	return Workload{
		Name:   fmt.Sprintf("GRPC/size=%d/depth=%d/tuned=%t", size, depth, tuned),
		Depth:  depth,
		Server: &Server{Kind: "grpc", Size: size, Depth: depth, Tuned: tuned},
		Client: func(addr string) (*Instance, error) {
			return dialGRPC(addr, "/bench.Bench/Echo", size, depth, tuned)
		},
	}
}

// GRPCPut sends size bytes with each unary call of gRPC; the reply is empty.
//
// Without tuned it uses gRPC as documented: protocol buffers, here the well-known type for bytes, and default options.
// With tuned it uses large flow-control windows and no encoding, and reuses receive buffers.
func GRPCPut(size int, tuned bool) Workload {
	return Workload{
		Name:   fmt.Sprintf("GRPC/put=%s/tuned=%t", binaryPrefix(size), tuned),
		Bytes:  size,
		Server: &Server{Kind: "grpc", Size: size, Depth: 1, Tuned: tuned},
		Client: func(addr string) (*Instance, error) {
			return dialGRPC(addr, "/bench.Bench/Put", size, 1, tuned)
		},
	}
}

// rawCodec sends a *[]byte without encoding.
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

// buffers is a pool of the server's message buffers.
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

// grpcMethod is the handler that a code generator would generate for a method.
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
		in := new([]byte) // sent after the handler returns, so it cannot be reused
		return in, decode(in)
	}
	put = func(_ any, _ context.Context, decode func(any) error, _ grpc.UnaryServerInterceptor) (any, error) {
		in := pool.get(size)
		defer pool.put(in)
		return &empty, decode(in)
	}
	return echo, put
}

const grpcWindow = 4 << 20

// grpcLimit is the longest message for a payload of size bytes.
func grpcLimit(size int) int { return 2*size + 4096 }

func (s *Server) serveGRPC() (*far, error) {
	l, err := s.listen()
	if err != nil {
		return nil, err
	}
	options := []grpc.ServerOption{grpc.MaxRecvMsgSize(grpcLimit(s.Size))}
	echo, put := protoMethods()
	if s.Tuned {
		options = append(options, grpc.ForceServerCodecV2(rawCodec{}),
			grpc.InitialWindowSize(grpcWindow), grpc.InitialConnWindowSize(grpcWindow))
		echo, put = rawMethods(s.Size, s.Depth)
	}
	server := grpc.NewServer(options...)
	server.RegisterService(grpcService(echo, put), struct{}{})
	served := make(chan error, 1)
	go func() { served <- server.Serve(l) }()
	return &far{addr: l.Addr().String(), close: func() error {
		server.Stop()
		return <-served
	}}, nil
}

// grpcClient returns a client for messages with up to size bytes.
func grpcClient(addr string, size int, tuned bool) (*grpc.ClientConn, error) {
	options := []grpc.DialOption{
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.MaxCallSendMsgSize(grpcLimit(size)), grpc.MaxCallRecvMsgSize(max(4<<20, grpcLimit(size)))),
	}
	if tuned {
		options = append(options, grpc.WithDefaultCallOptions(grpc.ForceCodecV2(rawCodec{})),
			grpc.WithInitialWindowSize(grpcWindow), grpc.WithInitialConnWindowSize(grpcWindow))
	}
	target := "passthrough:///" + addr
	if addr[0] == '@' {
		target = "unix-abstract:" + addr[1:]
	}
	return grpc.NewClient(target, options...)
}

func dialGRPC(addr, method string, size, depth int, tuned bool) (*Instance, error) {
	client, err := grpcClient(addr, size, tuned)
	if err != nil {
		return nil, err
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
		Close: client.Close,
	}, nil
}

// TTRPC echoes size bytes with unary calls of containerd's ttrpc, gRPC without HTTP/2.
func TTRPC(size, depth int) Workload {
	return Workload{
		Name:   fmt.Sprintf("TTRPC/size=%d/depth=%d", size, depth),
		Depth:  depth,
		Server: &Server{Kind: "ttrpc"},
		Client: func(addr string) (*Instance, error) {
			c, err := dialServer(addr)
			if err != nil {
				return nil, err
			}
			client := ttrpc.NewClient(c)
			args := wrapperspb.Bytes(make([]byte, size))
			return &Instance{
				Call: func(int) error {
					return client.Call(context.Background(), "bench.Bench", "Echo", args, new(wrapperspb.BytesValue))
				},
				Close: client.Close,
			}, nil
		},
	}
}

func (s *Server) serveTTRPC() (*far, error) {
	server, err := ttrpc.NewServer()
	if err != nil {
		return nil, err
	}
	server.Register("bench.Bench", map[string]ttrpc.Method{
		"Echo": func(_ context.Context, decode func(any) error) (any, error) {
			in := new(wrapperspb.BytesValue)
			return in, decode(in)
		},
	})
	l, err := s.listen()
	if err != nil {
		return nil, err
	}
	served := make(chan error, 1)
	go func() { served <- server.Serve(context.Background(), l) }()
	return &far{addr: l.Addr().String(), close: func() error {
		err := server.Close()
		if end := <-served; !errors.Is(end, ttrpc.ErrServerClosed) {
			err = errors.Join(err, end)
		}
		return err
	}}, nil
}
