package transport

import (
	"os"
	"testing"

	"github.com/rpcrdma/rpcrdma/fabric"
	"github.com/rpcrdma/rpcrdma/internal/leak"
	"github.com/rpcrdma/rpcrdma/internal/rdmatest"
	"github.com/rpcrdma/rpcrdma/rdmacm"
)

func TestMain(m *testing.M) {
	openDevices()
	os.Exit(leak.Main(m))
}

// openDevices opens the RDMA devices that tests use: librdmacm never closes them,
// and they are not left behind by a test.
func openDevices() {
	p, err := rdmacm.New(rdmacm.Config{})
	if err != nil {
		return // the tests tell
	}
	for _, addr := range rdmatest.Addrs() {
		if l, err := p.Listen(bg, addr+":0", fabric.ConnAttr{}); err == nil {
			l.Close()
		}
	}
}
