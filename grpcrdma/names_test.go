package grpcrdma_test

import (
	"context"
	"fmt"
	"io"
	"slices"
	"sync"
	"testing"

	"google.golang.org/grpc/codes"
	testgrpc "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/status"

	"github.com/rpcrdma/rpcrdma/fabric"
	"github.com/rpcrdma/rpcrdma/grpcrdma"
	"github.com/rpcrdma/rpcrdma/internal/testing/testutil"
	"github.com/rpcrdma/rpcrdma/rpc"
	"github.com/rpcrdma/rpcrdma/rpc/names"
	"github.com/rpcrdma/rpcrdma/transport"
)

// An observer counts calls that have ended, by the names of a table.
type observer struct {
	rpc.NoObserver
	table *names.Table

	mu    sync.Mutex
	calls map[string]int
}

func (o *observer) CallEnded(e *rpc.CallEvent) {
	at := o.table.At(o.table.Index(e.Prog, e.Vers, e.Proc))
	o.mu.Lock()
	defer o.mu.Unlock()
	o.calls[at.Program+"/"+at.Procedure]++
}

// TestNames: Observers of both ends name unary calls by their methods, and no peer can make up a name.
func TestNames(t *testing.T) {
	table, err := names.New(grpcrdma.Names(&testgrpc.TestService_ServiceDesc)...)
	if err != nil {
		t.Fatal(err)
	}
	onBeds(t, func(t *testing.T, p fabric.Provider, addr string) {
		here, there := &observer{table: table, calls: make(map[string]int)}, &observer{table: table, calls: make(map[string]int)}
		mine := transport.ClientConfig{Config: grpcrdma.Config(4 << 20)}
		mine.Observer = here
		its := transport.ServerConfig{Config: grpcrdma.Config(4 << 20)}
		its.Observer = there
		long := make([]byte, 64<<10)
		c, cc := client(t, p, addr, &service{
			unary: func(context.Context, *testgrpc.SimpleRequest) (*testgrpc.SimpleResponse, error) {
				return &testgrpc.SimpleResponse{Payload: &testgrpc.Payload{Body: long}}, nil
			},
			duplex: echoStream,
		}, grpcrdma.WithTransport(mine), grpcrdma.ServerTransport(its))
		for range 3 {
			if _, err := c.UnaryCall(t.Context(), &testgrpc.SimpleRequest{Payload: &testgrpc.Payload{Body: long}}); err != nil {
				t.Fatal(err)
			}
		}
		for i := range 100 {
			for _, service := range []string{"grpc.testing.TestService", "none"} {
				err := cc.Invoke(t.Context(), fmt.Sprintf("/%s/Made%d", service, i), &testgrpc.Empty{}, &testgrpc.Empty{})
				if status.Code(err) != codes.Unimplemented {
					t.Fatal(err)
				}
			}
		}
		s, err := c.FullDuplexCall(t.Context())
		if err == nil {
			err = s.CloseSend()
		}
		if err == nil {
			_, err = s.Recv()
		}
		if err != io.EOF {
			t.Fatal(err)
		}
		for end, o := range map[string]*observer{"client": here, "server": there} {
			testutil.Eventually(t, "all calls of the "+end+" have ended", func() bool {
				o.mu.Lock()
				defer o.mu.Unlock()
				return o.calls["grpc.testing.TestService/UnaryCall"] == 3 && o.calls["GRPC/UNARY"] == 200
			})
			o.mu.Lock()
			defer o.mu.Unlock()
			for name := range o.calls {
				if !slices.Contains([]string{"GRPC/UNARY", "GRPC/SEND", "GRPC/FETCH", "grpc.testing.TestService/UnaryCall"}, name) {
					t.Errorf("the %s has %s", end, name)
				}
			}
		}
	})
}
