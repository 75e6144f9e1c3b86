package grpcproxy_test

import (
	"bufio"
	"context"
	"io"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/rpcrdma/rpcrdma/cmd/rpcrdma/internal/cmdtest"
	"github.com/rpcrdma/rpcrdma/cmd/rpcrdma/internal/grpcproxy"
	"github.com/rpcrdma/rpcrdma/fabric"
	"github.com/rpcrdma/rpcrdma/grpcrdma"
	"github.com/rpcrdma/rpcrdma/internal/testing/leak"
	"github.com/rpcrdma/rpcrdma/internal/testing/testutil"
	"github.com/rpcrdma/rpcrdma/iwarp"
	"github.com/rpcrdma/rpcrdma/shm"
	"github.com/rpcrdma/rpcrdma/transport"
)

func TestMain(m *testing.M) { os.Exit(cmdtest.Main(m)) }

// A running is a grpc-proxy command in this process.
type running struct {
	addr   string
	stderr *cmdtest.LineBuffer
	stop   func() error // as SIGTERM does
}

var listening = regexp.MustCompile(`listening on (\S+) \(`)

// start runs grpc-proxy until the test ends, when it must have succeeded.
func start(t *testing.T, args ...string) *running {
	t.Helper()
	cmd := grpcproxy.New()
	cmd.SetArgs(args)
	cmd.SilenceErrors, cmd.SilenceUsage = true, true
	r, w := io.Pipe()
	p := &running{stderr: new(cmdtest.LineBuffer)}
	cmd.SetOut(w)
	cmd.SetErr(p.stderr)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() {
		err := cmd.ExecuteContext(ctx)
		w.CloseWithError(err)
		done <- err
	}()
	stopped := false
	p.stop = func() error {
		stopped = true
		cancel()
		return <-done
	}
	t.Cleanup(func() {
		if stopped {
			return
		}
		if err := p.stop(); err != nil {
			t.Errorf("grpc-proxy: %v\n%s", err, p.stderr)
		}
	})
	line, err := bufio.NewReader(r).ReadString('\n')
	match := listening.FindStringSubmatch(line)
	if err != nil || match == nil {
		t.Fatalf("grpc-proxy says %q, %v\n%s", line, err, p.stderr)
	}
	p.addr = match[1]
	return p
}

// A bed is a way through a proxy, in one direction.
type bed struct {
	name    string
	reverse bool
	adapter fabric.Provider
	addr    string // to listen on, there
	option  string // that chooses the adapter
}

// beds are both directions over each of the adapters that every machine has, and over TCP where that matters.
func beds(tcp bool) (list []bed) {
	for _, b := range []bed{
		{"iwarp", false, iwarp.New(iwarp.Config{}), "127.0.0.1:0", "--provider=iwarp"},
		{"shm", false, shm.New(shm.Config{}), "", "--shm="},
		{"tcp", false, transport.TCP{}, "127.0.0.1:0", "--provider=tcp"},
	} {
		if b.name == "tcp" && !tcp {
			continue
		}
		list = append(list, b)
		b.name, b.reverse = b.name+" reverse", true
		list = append(list, b)
	}
	return list
}

// onBeds runs a test on each bed.
func onBeds(t *testing.T, tcp bool, test func(t *testing.T, b bed)) {
	for _, b := range beds(tcp) {
		t.Run(b.name, func(t *testing.T) {
			leak.Check(t)
			if b.addr == "" {
				b.addr = filepath.Join(t.TempDir(), "s")
				b.option += b.addr
			}
			test(t, b)
		})
	}
}

// serveRDMA runs a server with the adapter of b until the test ends, and returns its address.
func serveRDMA(t *testing.T, b bed, srv *grpcrdma.Server) string {
	t.Helper()
	l, err := srv.Listen(context.Background(), b.adapter, b.addr)
	testutil.Must(t, err)
	done := make(chan error, 1)
	go func() { done <- srv.Serve(l) }()
	t.Cleanup(func() {
		srv.Stop()
		testutil.Must(t, <-done)
	})
	return l.Addr().String()
}

// serveHTTP runs a server on HTTP/2 until the test ends, and returns its address.
func serveHTTP(t *testing.T, srv *grpc.Server) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	testutil.Must(t, err)
	done := make(chan error, 1)
	go func() { done <- srv.Serve(l) }()
	t.Cleanup(func() {
		srv.Stop()
		testutil.Must(t, <-done)
	})
	return l.Addr().String()
}

// through serves what register registers on one side of a proxy, and returns a client on the other.
func through(t *testing.T, b bed, register func(grpc.ServiceRegistrar), args ...string) (grpc.ClientConnInterface, *running) {
	t.Helper()
	const large = 64 << 20 // so that limits are the proxy's
	args = append([]string{b.option}, args...)
	if b.reverse {
		srv := grpc.NewServer(grpc.MaxRecvMsgSize(large), grpc.WaitForHandlers(true))
		register(srv)
		args = append(args, "--reverse", serveHTTP(t, srv))
		if _, isShm := b.adapter.(*shm.Provider); !isShm {
			args = append(args, "--addr", b.addr)
		}
		p := start(t, args...)
		return dialRDMA(t, b, p.addr, grpcrdma.MaxRecvMsgSize(large)), p
	}
	srv := grpcrdma.NewServer(grpcrdma.MaxRecvMsgSize(large))
	register(srv)
	to := serveRDMA(t, b, srv)
	if b.adapter.Name() == "shm" {
		to = "localhost"
	}
	p := start(t, append(args, "--addr", "127.0.0.1:0", to)...)
	return dialHTTP(t, p.addr, grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(large))), p
}

func dialRDMA(t *testing.T, b bed, addr string, opts ...grpcrdma.Option) *grpcrdma.ClientConn {
	t.Helper()
	cc, err := grpcrdma.Dial(context.Background(), b.adapter, addr, opts...)
	testutil.Must(t, err)
	t.Cleanup(func() { cc.Close() })
	return cc
}

func dialHTTP(t *testing.T, addr string, opts ...grpc.DialOption) *grpc.ClientConn {
	t.Helper()
	cc, err := grpc.NewClient(addr, append([]grpc.DialOption{grpc.WithTransportCredentials(insecure.NewCredentials())}, opts...)...)
	testutil.Must(t, err)
	t.Cleanup(func() { cc.Close() })
	return cc
}

// ---- a service

// A peer is a service that programs in other languages have as well: test.Peer, with messages of
// google.protobuf.BytesValue.
type peer struct {
	waiting chan struct{} // a value for each call of Wait that has begun
	ended   chan error    // and for each that has ended: why
	silent  chan struct{} // closed: Silent reads
}

func newPeer() *peer {
	return &peer{make(chan struct{}, 10), make(chan error, 10), make(chan struct{})}
}

func (p *peer) register(s grpc.ServiceRegistrar) {
	desc := &grpc.ServiceDesc{ServiceName: "test.Peer", HandlerType: (*any)(nil)}
	for name, h := range map[string]func(grpc.ServerStream) error{
		"Echo": echo, "Fail": fail, "Wait": p.wait, "Silent": p.silence,
	} {
		desc.Streams = append(desc.Streams, grpc.StreamDesc{
			StreamName: name, ClientStreams: true, ServerStreams: true,
			Handler: func(_ any, s grpc.ServerStream) error { return h(s) },
		})
	}
	s.RegisterService(desc, p)
}

// answers makes metadata of the call's own.
func answers(s grpc.ServerStream) metadata.MD {
	md, _ := metadata.FromIncomingContext(s.Context())
	return metadata.MD{"x-text": md["x-text"], "x-raw-bin": md["x-raw-bin"]}
}

// echo returns each message, and the metadata in header and trailer.
func echo(s grpc.ServerStream) error {
	s.SetTrailer(answers(s))
	if err := s.SendHeader(answers(s)); err != nil {
		return err
	}
	for {
		var m wrapperspb.BytesValue
		if err := s.RecvMsg(&m); err != nil {
			if err == io.EOF {
				return nil
			}
			return err
		}
		if err := s.SendMsg(&m); err != nil {
			return err
		}
	}
}

// failure is how Fail fails.
func failure() error {
	st, _ := status.New(codes.FailedPrecondition, "not today: ü, \n%").WithDetails(durationpb.New(time.Minute))
	return st.Err()
}

func fail(s grpc.ServerStream) error {
	s.SetTrailer(answers(s))
	return failure()
}

// wait sends its header and waits for the end of the call.
func (p *peer) wait(s grpc.ServerStream) error {
	if err := s.SendHeader(answers(s)); err != nil {
		return err
	}
	p.waiting <- struct{}{}
	<-s.Context().Done()
	p.ended <- s.Context().Err()
	return status.FromContextError(s.Context().Err()).Err()
}

// silence reads nothing for a time.
func (p *peer) silence(s grpc.ServerStream) error {
	select {
	case <-p.silent:
	case <-s.Context().Done():
	}
	return echo(s)
}
