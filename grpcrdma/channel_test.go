package grpcrdma_test

import (
	"testing"

	"github.com/fullstorydev/grpchan/grpchantesting"

	"github.com/rpcrdma/rpcrdma/fabric"
	"github.com/rpcrdma/rpcrdma/grpcrdma"
)

// TestChannel runs the cases that grpchan has for all that is a grpc.ClientConnInterface.
func TestChannel(t *testing.T) {
	onBeds(t, testChannel)
}

func testChannel(t *testing.T, p fabric.Provider, addr string) {
	srv := grpcrdma.NewServer()
	grpchantesting.RegisterTestServiceServer(srv, &grpchantesting.TestServer{})
	grpchantesting.RunChannelTestCases(t, serve(t, p, addr, srv), true)
}
