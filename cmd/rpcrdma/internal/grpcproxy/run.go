package grpcproxy

import (
	"cmp"
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"log/slog"
	"net"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	_ "google.golang.org/grpc/encoding/gzip" // peers on HTTP/2 may use it
	"google.golang.org/grpc/status"

	"github.com/rpcrdma/rpcrdma/cmd/rpcrdma/internal/cli"
	"github.com/rpcrdma/rpcrdma/cmd/rpcrdma/internal/connect"
	"github.com/rpcrdma/rpcrdma/cmd/rpcrdma/internal/explain"
	"github.com/rpcrdma/rpcrdma/cmd/rpcrdma/internal/provider"
	"github.com/rpcrdma/rpcrdma/fabric"
	"github.com/rpcrdma/rpcrdma/grpcrdma"
	"github.com/rpcrdma/rpcrdma/transport"
)

// Counts is what the command prints at its end with --json.
type Counts struct {
	Calls  uint64 `json:"calls"`
	Failed uint64 `json:"failed"` // calls that did not end with OK
}

// proxy is a running grpc-proxy command.
type proxy struct {
	*options
	passer
	log    *slog.Logger
	stderr io.Writer
	front  front
	back   io.Closer
}

// front is the side that clients call.
type front struct {
	where    string // where it listens
	serve    func() error
	graceful func() // stops it after calls have ended
	stop     func() // stops it at once
}

// run runs the proxy until ctx ends.
func (o *options) run(ctx context.Context, stdout, stderr io.Writer) error {
	p := &proxy{options: o, log: o.Logger(stderr), stderr: stderr}
	err := p.open(ctx)
	if err == nil {
		err = p.serve(ctx, stdout)
	}
	if p.back != nil {
		err = cmp.Or(err, p.back.Close())
	}
	if err != nil {
		return fmt.Errorf("grpc-proxy: %s", explain.Text(err))
	}
	if o.JSON {
		return cli.PrintJSON(stdout, Counts{p.calls.Load(), p.failed.Load()})
	}
	return nil
}

// open opens both sides. The caller must close back, even after an error.
func (p *proxy) open(ctx context.Context) error {
	if !p.reverse {
		b := newBackend(p.dial)
		p.back, p.server = b, b.get
		return p.listenHTTP(ctx)
	}
	creds, err := p.clientCredentials()
	if err != nil {
		return err
	}
	cc, err := grpc.NewClient(p.to, grpc.WithTransportCredentials(creds), grpc.WithDefaultCallOptions(
		grpc.ForceCodecV2(rawCodec{}), grpc.MaxCallRecvMsgSize(p.limit())))
	if err != nil {
		return err
	}
	p.back, p.server = cc, func(context.Context) (grpc.ClientConnInterface, error) { return cc, nil }
	return p.listenRDMA(ctx)
}

func (p *proxy) limit() int { return int(p.maxMessage) }

// config returns the configuration of our transport, for either end.
func (p *proxy) config() transport.Config {
	cfg := grpcrdma.Config(max(p.limit(), defaultMessage))
	cfg.Logger = p.log
	return cfg
}

// serve passes calls until ctx ends, and then stops gracefully.
func (p *proxy) serve(ctx context.Context, stdout io.Writer) error {
	done := make(chan error, 1)
	go func() { done <- p.front.serve() }()
	err := p.announce(stdout)
	if b, ok := p.back.(*backend); ok && err == nil {
		b.begin() // so that a missing server is noticed before the first call
	}
	if err == nil {
		select {
		case <-ctx.Done():
		case err = <-done:
			done <- nil
		}
	}
	late, cancel := connect.Within(context.Background(), p.Timeout, func() error {
		if n := p.active.Load(); n > 0 {
			return fmt.Errorf("calls still under way after %v were cut off (%d)", p.Timeout, n)
		}
		return nil // idle connections of clients
	})
	defer cancel()
	stop := context.AfterFunc(late, p.front.stop)
	p.front.graceful()
	if !stop() {
		if cut := context.Cause(late); cut != context.Canceled {
			err = cmp.Or(err, cut)
		}
	}
	p.front.stop()
	p.running.Wait()
	return cmp.Or(err, <-done)
}

// announce prints that the proxy is ready, and where.
func (p *proxy) announce(stdout io.Writer) error {
	to := p.to
	switch {
	case p.reverse:
		to += " (HTTP/2)"
	case p.Shm() != "":
		to = p.Shm() + " (shm)"
	default:
		to += fmt.Sprintf(" (%s)", p.Provider.Value)
	}
	w := stdout
	if p.JSON {
		w = p.stderr
	}
	_, err := fmt.Fprintf(w, "rpcrdma: listening on %s, passing gRPC calls to %s\n", p.front.where, to)
	return err
}

// ---- HTTP/2

// maxStreams limits the calls in flight on a client's connection, as package grpcrdma does on the other side.
const maxStreams = 100_000

// listenHTTP opens the front for clients on HTTP/2.
func (p *proxy) listenHTTP(ctx context.Context) error {
	how := "HTTP/2"
	opts := []grpc.ServerOption{
		grpc.ForceServerCodecV2(rawCodec{}), grpc.UnknownServiceHandler(p.handle), grpc.MaxRecvMsgSize(p.limit()),
		grpc.MaxConcurrentStreams(maxStreams), grpc.WaitForHandlers(true),
	}
	if p.cert != "" {
		pair, err := tls.LoadX509KeyPair(p.cert, p.key)
		if err != nil {
			return connect.CertError("--http-cert and --http-key", err)
		}
		how += " over TLS"
		opts = append(opts, grpc.Creds(credentials.NewTLS(&tls.Config{Certificates: []tls.Certificate{pair}, MinVersion: tls.VersionTLS12})))
	}
	l, err := new(net.ListenConfig).Listen(ctx, "tcp", p.addr)
	if err != nil {
		return &connect.ListenError{Flag: "addr", Addr: p.addr, Err: err}
	}
	srv := grpc.NewServer(opts...)
	p.front = front{
		where:    fmt.Sprintf("%v (%s)", l.Addr(), how),
		serve:    func() error { return srv.Serve(l) },
		graceful: srv.GracefulStop, stop: srv.Stop,
	}
	return nil
}

// clientCredentials returns the credentials for a connection to a server on HTTP/2.
func (p *proxy) clientCredentials() (credentials.TransportCredentials, error) {
	if !p.tls && p.ca == "" {
		return insecure.NewCredentials(), nil
	}
	cfg := &tls.Config{MinVersion: tls.VersionTLS12}
	if p.ca != "" {
		pool, err := connect.ReadAuthorities("--http-ca", p.ca)
		if err != nil {
			return nil, err
		}
		cfg.RootCAs = pool
	}
	return credentials.NewTLS(cfg), nil
}

// ---- RDMA

// dial connects to the server. It logs an error if news is set.
func (p *proxy) dial(ctx context.Context, news bool) (cc *grpcrdma.ClientConn, err error) {
	stderr := p.stderr
	if !news {
		stderr = io.Discard // already printed, such as what auto stands for
	}
	program := grpcrdma.NewServer().Program()
	err = p.Connect(ctx, stderr, p.to, program.Number, program.High, func(ctx context.Context, adapter fabric.Provider, addr string, tls *transport.TLS) (err error) {
		cfg := p.config()
		cfg.TLS = tls
		cc, err = grpcrdma.Dial(ctx, adapter, addr, grpcrdma.MaxRecvMsgSize(p.limit()), grpcrdma.WithTransport(transport.ClientConfig{Config: cfg}))
		return err
	})
	if err == nil {
		return cc, nil
	}
	text := explain.Text(err)
	if news && ctx.Err() == nil {
		p.log.Error("calls fail until there is a connection", "err", text)
	}
	return nil, status.Error(codes.Unavailable, "grpc-proxy: "+text)
}

// listenRDMA opens the front for clients over RDMA, shared memory or TCP.
func (p *proxy) listenRDMA(ctx context.Context) (err error) {
	cfg := p.config()
	if cfg.TLS, err = p.TLS(p.stderr); err != nil {
		return err
	}
	srv := grpcrdma.NewServer(grpcrdma.UnknownServiceHandler(p.handle), grpcrdma.MaxRecvMsgSize(p.limit()),
		grpcrdma.ServerTransport(transport.ServerConfig{Config: cfg}))
	var adapter fabric.Provider
	at, flag := p.Shm(), "shm"
	if at == "" {
		at, flag = p.addr, "addr"
		adapter, err = p.NewServer(ctx, p.stderr, at)
	} else {
		adapter, err = p.NewShared()
	}
	if err != nil {
		return err
	}
	l, err := srv.Listen(ctx, adapter, at)
	if err == nil && adapter.Name() == provider.RDMA {
		if err = provider.CheckServing(ctx, l.Addr().String()); err != nil {
			l.Close()
		}
	}
	if err != nil {
		return &connect.ListenError{Flag: flag, Addr: at, Err: err}
	}
	p.front = front{
		where:    fmt.Sprintf("%v (%s)", l.Addr(), adapter.Name()),
		serve:    func() error { return srv.Serve(l) },
		graceful: srv.GracefulStop, stop: srv.Stop,
	}
	return nil
}
