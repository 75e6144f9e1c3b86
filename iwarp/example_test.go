//go:build linux

package iwarp_test

import (
	"context"
	"fmt"

	"github.com/rpcrdma/rpcrdma/fabric"
	"github.com/rpcrdma/rpcrdma/iwarp"
)

// A server exposes memory to a client, which writes to it and sends a message.
func Example() {
	ctx := context.Background()
	p := iwarp.New(iwarp.Config{})
	l, err := p.Listen(ctx, "127.0.0.1:0", fabric.ConnAttr{})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer l.Close()

	done := make(chan struct{})
	go func() {
		defer close(done)
		c, err := l.Accept(ctx)
		if err != nil {
			return
		}
		defer c.Close()
		mr, err := c.RegMR(make([]byte, 64), fabric.AccessLocalWrite|fabric.AccessRemoteWrite)
		if err != nil {
			return
		}
		note := make([]byte, 16)
		c.PostRecv([]fabric.RecvWR{{ID: 1, SGE: fabric.SGE{Buf: note}}})
		// The segment is sent as private data.
		seg := mr.Segment()
		if err := c.Accept(ctx, fmt.Appendf(nil, "%d %d", seg.Handle, seg.Offset)); err != nil {
			return
		}
		wc := await(c)
		n := int(note[0])
		fmt.Printf("received %d byte(s), and %q is there\n", wc.Len, mr.Bytes()[:n])
	}()

	c, err := p.Resolve(ctx, l.Addr().String(), fabric.ConnAttr{})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer c.Close()
	if err := c.Connect(ctx, nil); err != nil {
		fmt.Println(err)
		return
	}
	var seg fabric.Segment
	fmt.Sscan(string(c.PeerPrivateData()), &seg.Handle, &seg.Offset)
	text := []byte("straight into place")
	err = c.Post([]fabric.SendWR{
		{Op: fabric.OpWrite, RKey: seg.Handle, RemoteOffset: seg.Offset, SGL: []fabric.SGE{{Buf: text}}},
		{Op: fabric.OpSend, SGL: []fabric.SGE{{Buf: []byte{byte(len(text))}}}},
	})
	if err != nil {
		fmt.Println(err)
	}
	<-done
	// Output: received 1 byte(s), and "straight into place" is there
}

func await(c fabric.Conn) fabric.WC {
	var wc [1]fabric.WC
	for c.Wait() == nil {
		if n, err := c.Poll(wc[:]); n > 0 || err != nil {
			break
		}
	}
	return wc[0]
}
