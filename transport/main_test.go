package transport

import (
	"os"
	"testing"

	"github.com/rpcrdma/rpcrdma/fabric"
	"github.com/rpcrdma/rpcrdma/internal/leak"
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
	for _, kind := range []string{"RXE", "SIW"} {
		if addr := os.Getenv("RPCRDMA_" + kind + "_ADDR"); addr != "" {
			if l, err := p.Listen(bg, addr+":0", fabric.ConnAttr{}); err == nil {
				l.Close()
			}
		}
	}
}
