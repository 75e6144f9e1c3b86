package interop

import (
	"context"
	"net"
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

// openDevices has librdmacm open the devices that there are, which it does once
// and for the life of the process: after that, a descriptor that stays is a leak.
func openDevices() {
	p, err := rdmacm.New(rdmacm.Config{})
	if err != nil {
		return
	}
	for _, kind := range []string{rxe, siw} {
		addr, lack := deviceAddr(sysfs, kind, "ADDR", os.Getenv)
		if lack != "" {
			continue
		}
		if l, err := p.Listen(context.Background(), net.JoinHostPort(addr, "0"), fabric.ConnAttr{}); err == nil {
			l.Close()
		}
	}
}
