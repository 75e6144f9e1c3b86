package grpcrdma_test

import (
	"os"
	"testing"

	"github.com/rpcrdma/rpcrdma/internal/testing/leak"
	"github.com/rpcrdma/rpcrdma/internal/testing/testbed"
)

func TestMain(m *testing.M) {
	testbed.OpenDevices()
	os.Exit(leak.Main(m))
}
