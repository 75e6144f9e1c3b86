//go:build linux

package iwarp

import (
	"bytes"
	"context"
	"testing"
	"time"

	"github.com/rpcrdma/rpcrdma/fabric"
)

// join connects two ends of one provider.
func join(t testing.TB, p *Provider, attr fabric.ConnAttr) (client, server *Conn) {
	t.Helper()
	return joinTwo(t, p, p, attr)
}

func joinTwo(t testing.TB, cp, sp *Provider, attr fabric.ConnAttr) (client, server *Conn) {
	t.Helper()
	noNudges(cp)
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	l, err := sp.Listen(ctx, "127.0.0.1:0", attr)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	cc, err := cp.Resolve(ctx, l.Addr().String(), attr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { cc.Close() })
	connected := make(chan error, 1)
	go func() { connected <- cc.Connect(ctx, []byte("hello")) }()
	sc, err := l.Accept(ctx)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { sc.Close() })
	if err := sc.Accept(ctx, []byte("welcome")); err != nil {
		t.Fatal(err)
	}
	if err := <-connected; err != nil {
		t.Fatal(err)
	}
	return cc.(*Conn), sc.(*Conn)
}

// next drives c until it has a completion.
func next(t testing.TB, c *Conn) fabric.WC {
	t.Helper()
	var wc [1]fabric.WC
	for {
		n, err := c.Poll(wc[:])
		if err != nil {
			t.Fatal(err)
		}
		if n > 0 {
			return wc[0]
		}
		if err := c.Wait(); err != nil {
			t.Fatal(err)
		}
	}
}

func TestFirstWords(t *testing.T) {
	a, b := join(t, New(Config{}), fabric.ConnAttr{})
	if got := a.PeerPrivateData(); string(got) != "welcome" {
		t.Errorf("the reply says %q", got)
	}
	in := make([]byte, 100)
	if err := b.PostRecv([]fabric.RecvWR{{ID: 7, SGE: fabric.SGE{Buf: in}}}); err != nil {
		t.Fatal(err)
	}
	mem := make([]byte, 1<<20)
	mr, err := b.RegMR(mem, fabric.AccessLocalWrite|fabric.AccessRemoteWrite|fabric.AccessRemoteRead)
	if err != nil {
		t.Fatal(err)
	}
	seg := mr.Segment()
	data := bytes.Repeat([]byte("0123456789abcdef"), 1<<16)
	back := make([]byte, 1<<20)
	if err := a.Post([]fabric.SendWR{
		{ID: 1, Op: fabric.OpWrite, RKey: seg.Handle, RemoteOffset: seg.Offset, SGL: []fabric.SGE{{Buf: data}}},
		{ID: 2, Op: fabric.OpRead, Flags: fabric.Signaled, RKey: seg.Handle, RemoteOffset: seg.Offset, SGL: []fabric.SGE{{Buf: back}}},
		{ID: 3, Op: fabric.OpSend, Flags: fabric.Signaled, SGL: []fabric.SGE{{Buf: []byte("first ")}, {Buf: []byte("words")}}},
	}); err != nil {
		t.Fatal(err)
	}
	wc := next(t, b)
	if wc.ID != 7 || wc.Status != 0 || string(in[:wc.Len]) != "first words" {
		t.Fatalf("received %+v %q", wc, in[:wc.Len])
	}
	if wc := next(t, a); wc.ID != 2 || wc.Status != 0 || wc.Len != 1<<20 || !bytes.Equal(back, data) {
		t.Fatalf("read %+v", wc)
	}
	if wc := next(t, a); wc.ID != 3 || wc.Status != 0 {
		t.Fatalf("sent %+v", wc)
	}
}
