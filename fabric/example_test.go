package fabric_test

import (
	"context"
	"fmt"
	"log"

	"github.com/rpcrdma/rpcrdma/fabric"
	"github.com/rpcrdma/rpcrdma/iwarp"
)

// Two connected ends: one writes into memory that the other one has exposed, and tells it by a
// message.
func Example() {
	ctx := context.Background()
	must := func(err error) {
		if err != nil {
			log.Fatal(err)
		}
	}
	// next is the next completion, for which a goroutine waits that makes progress meanwhile.
	next := func(c fabric.Conn) fabric.WC {
		var wcs [1]fabric.WC
		for {
			n, err := c.Poll(wcs[:])
			must(err)
			if n == 1 {
				return wcs[0]
			}
			must(c.Wait())
		}
	}
	p := iwarp.New(iwarp.Config{})
	defer p.Close()
	l, err := p.Listen(ctx, "127.0.0.1:0", fabric.ConnAttr{})
	must(err)

	done := make(chan struct{})
	go func() {
		defer close(done)
		c, err := l.Accept(ctx)
		must(err)
		defer c.Close()
		mr, err := c.RegMR(make([]byte, 4096), fabric.AccessLocalWrite|fabric.AccessRemoteWrite)
		must(err)
		message, err := c.RegMR(make([]byte, 64), fabric.AccessLocalWrite)
		must(err)
		must(c.PostRecv([]fabric.RecvWR{{SGE: fabric.SGE{Buf: message.Bytes(), LKey: message.LKey()}}}))
		segment := mr.Segment() // what the peer has to know
		must(c.Accept(ctx, fmt.Appendf(nil, "%d %d", segment.Handle, segment.Offset)))
		wc := next(c)
		fmt.Printf("%s: %q\n", message.Bytes()[:wc.Len], mr.Bytes()[:5])
	}()

	c, err := p.Resolve(ctx, l.Addr().String(), fabric.ConnAttr{})
	must(err)
	defer c.Close()
	mr, err := c.RegMR([]byte("hello, look into your memory"), 0)
	must(err)
	must(c.Connect(ctx, nil))
	var handle uint32
	var offset uint64
	_, err = fmt.Sscan(string(c.PeerPrivateData()), &handle, &offset)
	must(err)
	must(c.Post([]fabric.SendWR{
		{Op: fabric.OpWrite, SGL: []fabric.SGE{{Buf: mr.Bytes()[:5], LKey: mr.LKey()}}, RKey: handle, RemoteOffset: offset},
		{Op: fabric.OpSend, Flags: fabric.Signaled, SGL: []fabric.SGE{{Buf: mr.Bytes()[7:], LKey: mr.LKey()}}},
	}))
	next(c)
	<-done
	// Output: look into your memory: "hello"
}
