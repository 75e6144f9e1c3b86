//go:build linux

package iwarp_test

import (
	"context"
	"testing"
	"time"

	"github.com/rpcrdma/rpcrdma/fabric"
	"github.com/rpcrdma/rpcrdma/fabric/fabrictest"
	"github.com/rpcrdma/rpcrdma/iwarp"
)

// TestPostWhileBlocked: requests that are posted while the socket is full, and the writer
// goroutine waits with an earlier batch, are sent after that batch. Nothing else drives the
// sender.
func TestPostWhileBlocked(t *testing.T) {
	p := iwarp.New(iwarp.Config{})
	client, server := fabrictest.Pair(t, p, fabrictest.Setup{})
	const most = 12 << 20
	sink, err := server.RegMR(make([]byte, most), fabric.AccessLocalWrite|fabric.AccessRemoteWrite)
	if err != nil {
		t.Fatal(err)
	}
	data := make([]byte, most)
	var wcs [8]fabric.WC
	for n := 1 << 20; n <= most; n += 512 << 10 {
		if err := server.PostRecv([]fabric.RecvWR{{ID: 1, SGE: fabric.SGE{Buf: make([]byte, 64)}}, {ID: 2, SGE: fabric.SGE{Buf: make([]byte, 64)}}}); err != nil {
			t.Fatal(err)
		}
		send := []fabric.SendWR{{Op: fabric.OpSend, SGL: []fabric.SGE{{Buf: data[:8]}}}}
		// The server does not read: at some size this fills the sockets while the last batch
		// of the list is being written.
		write := fabric.SendWR{Op: fabric.OpWrite, SGL: []fabric.SGE{{Buf: data[:n]}},
			RKey: sink.Segment().Handle, RemoteOffset: sink.Segment().Offset}
		if err := client.Post([]fabric.SendWR{write, send[0]}); err != nil {
			t.Fatal(err)
		}
		if err := client.Post(send); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
		for got := 0; got < 2; {
			if err := fabric.WaitContext(ctx, server); err != nil {
				t.Fatalf("after a Write of %d bytes %d of 2 Sends came: %v", n, got, err)
			}
			k, err := server.Poll(wcs[:])
			if err != nil {
				t.Fatal(err)
			}
			got += k
		}
		cancel()
	}
}
