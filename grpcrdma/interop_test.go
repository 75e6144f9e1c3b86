package grpcrdma_test

import (
	"context"
	"flag"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/interop"
	testgrpc "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/status"

	"github.com/rpcrdma/rpcrdma/fabric"
	"github.com/rpcrdma/rpcrdma/grpcrdma"
)

var interopRounds = flag.Int("interop", 3, "how often TestInterop runs each case")

// interopCases are those of grpc-go that are about neither credentials of Google nor balancers. A failure
// ends the process, with a message.
var interopCases = []struct {
	name string
	do   func(context.Context, testgrpc.TestServiceClient, ...grpc.CallOption)
}{
	{"EmptyUnary", interop.DoEmptyUnaryCall},
	{"LargeUnary", interop.DoLargeUnaryCall},
	{"ClientStreaming", interop.DoClientStreaming},
	{"ServerStreaming", interop.DoServerStreaming},
	{"PingPong", interop.DoPingPong},
	{"EmptyStream", interop.DoEmptyStream},
	{"TimeoutOnSleepingServer", interop.DoTimeoutOnSleepingServer},
	{"CancelAfterBegin", interop.DoCancelAfterBegin},
	{"CancelAfterFirstResponse", interop.DoCancelAfterFirstResponse},
	{"CustomMetadata", interop.DoCustomMetadata},
	{"StatusCodeAndMessage", interop.DoStatusCodeAndMessage},
	{"SpecialStatusMessage", interop.DoSpecialStatusMessage},
}

// TestInterop runs grpc-go's own interoperability cases with its service, which is not changed.
func TestInterop(t *testing.T) {
	onBeds(t, testInterop)
}

func testInterop(t *testing.T, p fabric.Provider, addr string) {
	srv := grpcrdma.NewServer()
	testgrpc.RegisterTestServiceServer(srv, interop.NewTestServer())
	cc := serve(t, p, addr, srv)
	client, ctx := testgrpc.NewTestServiceClient(cc), context.Background()
	for _, tc := range interopCases {
		t.Run(tc.name, func(t *testing.T) {
			for range *interopRounds {
				tc.do(ctx, client)
			}
		})
	}
	t.Run("UnimplementedService", func(t *testing.T) {
		interop.DoUnimplementedService(ctx, testgrpc.NewUnimplementedServiceClient(cc))
	})
	t.Run("UnimplementedMethod", func(t *testing.T) {
		var req, reply testgrpc.Empty
		err := cc.Invoke(ctx, "/grpc.testing.TestService/UnimplementedCall", &req, &reply)
		if status.Code(err) != codes.Unimplemented {
			t.Error(err)
		}
	})
}
