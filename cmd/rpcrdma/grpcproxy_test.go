package main

import (
	"bufio"
	"context"
	"net"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"

	"github.com/rpcrdma/rpcrdma/cmd/rpcrdma/internal/grpcproxy"
	"github.com/rpcrdma/rpcrdma/grpcrdma"
	"github.com/rpcrdma/rpcrdma/internal/testing/leak"
	"github.com/rpcrdma/rpcrdma/internal/testing/testutil"
	"github.com/rpcrdma/rpcrdma/iwarp"
)

// TestGRPCProxy: the process passes calls, and ends with SIGTERM, when it has counted them. Its package has the
// other tests.
func TestGRPCProxy(t *testing.T) {
	leak.Check(t)
	srv := grpcrdma.NewServer()
	healthpb.RegisterHealthServer(srv, health.NewServer())
	l, err := srv.Listen(t.Context(), iwarp.New(iwarp.Config{}), "127.0.0.1:0")
	testutil.Must(t, err)
	done := make(chan error, 1)
	go func() { done <- srv.Serve(l) }()
	defer func() {
		srv.Stop()
		testutil.Must(t, <-done)
	}()

	ctx, cancel := context.WithTimeout(t.Context(), testTimeout)
	defer cancel()
	cmd := command(ctx, "grpc-proxy", "--json", "--addr", "127.0.0.1:0", l.Addr().String())
	stdout := new(strings.Builder)
	cmd.Stdout = stdout
	stderr, err := cmd.StderrPipe()
	testutil.Must(t, err, cmd.Start())
	ready, err := bufio.NewReader(stderr).ReadString('\n')
	match := listening.FindStringSubmatch(ready)
	if want := "(HTTP/2), passing gRPC calls to " + l.Addr().String() + " (iwarp)\n"; match == nil || !strings.HasSuffix(ready, want) {
		t.Fatalf("it says %q, %v, want %q", ready, err, want)
	}
	cc, err := grpc.NewClient(match[1], grpc.WithTransportCredentials(insecure.NewCredentials()))
	testutil.Must(t, err)
	defer cc.Close()
	client := healthpb.NewHealthClient(cc)
	if r, err := client.Check(ctx, new(healthpb.HealthCheckRequest)); err != nil || r.Status != healthpb.HealthCheckResponse_SERVING {
		t.Errorf("%v, %v", r, err)
	}
	if _, err := client.Check(ctx, &healthpb.HealthCheckRequest{Service: "none"}); status.Code(err) != codes.NotFound {
		t.Error(err)
	}
	testutil.Must(t, cmd.Process.Signal(syscall.SIGTERM), cmd.Wait())
	if got, want := decodeJSON[grpcproxy.Counts](t, stdout.String()), (grpcproxy.Counts{Calls: 2, Failed: 1}); got != want {
		t.Errorf("it prints %+v, want %+v", got, want)
	}
}

// TestGRPCProxyMistakes: options that make no sense are refused, and what cannot be opened is named.
func TestGRPCProxyMistakes(t *testing.T) {
	dir := t.TempDir()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	testutil.Must(t, err)
	defer l.Close()
	testutil.WriteFiles(t, dir, map[string]string{"text": "no certificate"})
	newPlace(map[string]string{"TAKEN": l.Addr().String(), "FILE": filepath.Join(dir, "text"), "NONE": filepath.Join(dir, "none")}).tellAll(t, []mistake{
		{2, "grpc-proxy", "argument HOST[:PORT] is missing"},
		{2, "grpc-proxy a b", `unexpected argument "b"`},
		{2, "grpc-proxy :1", `want HOST or HOST:PORT, got ":1"`},
		{2, "grpc-proxy --addr 50051 host", `--addr: want HOST or HOST:PORT, got "50051": a port alone is written :50051`},
		{2, "grpc-proxy --http-cert FILE host", "--http-cert and --http-key must be given together"},
		{2, "grpc-proxy --reverse --http-cert FILE --http-key FILE host", "--http-cert and --http-key are for serving HTTP/2, which --reverse does not do"},
		{2, "grpc-proxy --http-tls host", "--http-tls and --http-ca are for --reverse"},
		{2, "grpc-proxy --http-ca FILE host", "--http-tls and --http-ca are for --reverse"},
		{2, "grpc-proxy --max-message none host", `--max-message is "none": want a number of bytes, optionally followed by K, M or G`},
		{2, "grpc-proxy --max-message 1G host", "--max-message is 1073741824, want at most 1023M"},
		{2, "grpc-proxy --shm NONE --provider rdma host", "--shm and --provider are mutually exclusive"},
		{2, "grpc-proxy --reverse --shm NONE --addr :1 host", "--shm and --addr are mutually exclusive"},
		{2, "grpc-proxy --provider udp host", `--provider is "udp": want iwarp, rdma, auto or tcp`},
		{2, "grpc-proxy --port 1 host", "unknown flag --port: the port to listen on is part of --addr, such as --addr :50051"},
		{1, "grpc-proxy --addr TAKEN host", "grpc-proxy: listening on TAKEN: address already in use: stop what has it, or give --addr another port, 0 for a free one"},
		{1, "grpc-proxy --reverse --addr TAKEN host", "grpc-proxy: listening on TAKEN: address already in use: stop what has it, or give --addr another port, 0 for a free one"},
		{1, "grpc-proxy --http-cert NONE --http-key FILE host", "grpc-proxy: local file NONE: no such file or directory"},
		{1, "grpc-proxy --http-cert FILE --http-key FILE host", "grpc-proxy: --http-cert and --http-key: tls: failed to find any PEM data in certificate input"},
		{1, "grpc-proxy --reverse --http-ca NONE host", "grpc-proxy: local file NONE: no such file or directory"},
		{1, "grpc-proxy --reverse --http-ca FILE host", "grpc-proxy: --http-ca: no PEM certificate in FILE"},
	})
}
