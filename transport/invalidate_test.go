package transport_test

import (
	"bytes"
	"context"
	"errors"
	"testing"

	"github.com/rpcrdma/rpcrdma/fabric"
	"github.com/rpcrdma/rpcrdma/proto/oncrpc"
	"github.com/rpcrdma/rpcrdma/proto/rpcrdma"
	"github.com/rpcrdma/rpcrdma/proto/xdr"
	"github.com/rpcrdma/rpcrdma/rpc"
	"github.com/rpcrdma/rpcrdma/transport"
)

// testInvalidated: a server that invalidates a client's handle with its reply cannot
// use it any more. The server is made by hand, so that it can try.
func testInvalidated(t *testing.T, b *bed) {
	const size = 1 << 20
	provider, live := b.provider(t)
	defer live.check(t)
	ctx, cancel := context.WithTimeout(bg, b.patience())
	defer cancel()
	l, err := provider.Listen(ctx, b.addr, fabric.ConnAttr{})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	type result struct {
		reads, writes int // segments that the call offered
		end           error
		err           error
	}
	served := make(chan result, 1)
	tried := make(chan struct{}) // closed when the client has its reply
	go func() {
		var r result
		r.err = func() error {
			c, err := l.Accept(ctx)
			if err != nil {
				return err
			}
			defer c.Close()
			memory := func(n int) (fabric.SGE, error) {
				mr, err := c.RegMR(make([]byte, n), fabric.AccessLocalWrite)
				if err != nil {
					return fabric.SGE{}, err
				}
				return fabric.SGE{Buf: mr.Bytes(), LKey: mr.LKey()}, nil
			}
			in, err1 := memory(4096)
			out, err2 := memory(4096)
			data, err3 := memory(size)
			if err := errors.Join(err1, err2, err3, c.PostRecv([]fabric.RecvWR{{ID: 1, SGE: in}})); err != nil {
				return err
			}
			offer := rpcrdma.AppendPrivateData(nil, rpcrdma.PrivateData{RemoteInvalidation: true, SendSize: 4096, RecvSize: 4096})
			if err := c.Accept(ctx, offer); err != nil {
				return err
			}
			next := func() (fabric.WC, error) {
				for {
					var wc [1]fabric.WC
					if n, err := c.Poll(wc[:]); n > 0 || err != nil {
						return wc[0], err
					}
					if err := fabric.WaitContext(ctx, c); err != nil {
						return fabric.WC{}, err
					}
				}
			}
			if _, err := next(); err != nil {
				return err
			}
			var h rpcrdma.Header
			if _, err := rpcrdma.ConsumeHeader(in.Buf, &h, nil); err != nil {
				return err
			}
			r.reads = len(h.Reads)
			for _, chunk := range h.Writes {
				r.writes += len(chunk)
			}
			if r.writes != 1 {
				return errors.New("the call offers no write chunk")
			}
			seg := h.Writes[0][0]
			fill(data.Buf, 9)
			msg := rpcrdma.AppendHeader(out.Buf[:0], &rpcrdma.Header{XID: h.XID, Vers: 1, Credit: 8, Writes: h.Writes, Reply: h.Reply, HasReply: false})
			msg = oncrpc.AppendReply(msg, &oncrpc.ReplyHeader{XID: h.XID})
			msg = xdr.AppendUint32(msg, size)
			write := fabric.SendWR{ID: 2, Op: fabric.OpWrite, SGL: []fabric.SGE{data}, RKey: seg.Handle, RemoteOffset: seg.Offset}
			reply := fabric.SendWR{ID: 3, Op: fabric.OpSendInv, Flags: fabric.Signaled, SGL: []fabric.SGE{{Buf: msg, LKey: out.LKey}}, RKey: seg.Handle}
			if err := c.Post([]fabric.SendWR{write, reply}); err != nil {
				return err
			}
			if wc, err := next(); err != nil || wc.Status != fabric.WCSuccess {
				return errors.Join(err, errors.New("the reply was not sent: "+wc.Status.String()))
			}
			<-tried
			// Now the handle is dead.
			write.Flags, write.ID = fabric.Signaled, 4
			write.SGL = []fabric.SGE{{Buf: data.Buf[:4], LKey: data.LKey}}
			if err := c.Post([]fabric.SendWR{write}); err != nil {
				return err
			}
			wc, err := next()
			for err == nil && wc.ID == 4 && wc.Status == fabric.WCSuccess {
				wc, err = next() // iWARP: the refusal comes later
			}
			if r.end = err; err == nil {
				r.end = errors.New(wc.Status.String())
				if _, err := next(); err != nil {
					r.end = err
				}
			}
			return nil
		}()
		served <- r
	}()
	cl, err := transport.Dial(ctx, provider, l.Addr().String(), transport.Once(&transport.Settings{Version: transport.Version1}).Client())
	if err != nil {
		t.Fatal(err, (<-served).err)
	}
	defer cl.Close()
	if !cl.Info().RemoteInvalidation {
		t.Fatal("remote invalidation was not agreed on")
	}
	buf := make([]byte, size)
	call := rpc.Call{Prog: prog, Vers: 1, WriteItems: []rpc.WriteItem{{Buf: buf}}, MaxResults: 8}
	if err := cl.Call(ctx, &call); err != nil {
		t.Fatal(err)
	}
	want := make([]byte, size)
	fill(want, 9)
	if !bytes.Equal(buf, want) || cl.Stats().Invalidated != 1 {
		t.Errorf("the data differs, or was not invalidated: %+v", cl.Stats())
	}
	clear(buf)
	close(tried)
	r := <-served
	if r.err != nil || r.reads != 0 {
		t.Fatal(r.err, r.reads)
	}
	var end *fabric.ConnError
	if !errors.As(r.end, &end) || end.Clean {
		t.Errorf("a Write to the handle after the reply ended with %v, want the connection's end", r.end)
	}
	t.Log(r.end)
	if !bytes.Equal(buf, make([]byte, size)) {
		t.Error("the memory was written to after the call had returned")
	}
}
