package transport

import (
	"context"
	"math"

	"github.com/rpcrdma/rpcrdma/fabric"
	"github.com/rpcrdma/rpcrdma/proto/oncrpc"
	"github.com/rpcrdma/rpcrdma/proto/xdr"
)

// Procedures is a Handler with a function for each procedure, by its number. Calls of
// others are answered with PROC_UNAVAIL.
type Procedures map[uint32]HandlerFunc

// ServeRPC calls the function of the procedure.
func (p Procedures) ServeRPC(ctx context.Context, req *Request, res *Response) {
	if f := p[req.Proc]; f != nil {
		f(ctx, req, res)
	} else {
		res.Fail(oncrpc.ProcUnavail)
	}
}

// ListenAndServe listens on addr and serves the connections that come: see [Server.Listen]
// and [Server.Serve]. It returns when ctx ends, with ctx's error, or when the server is
// closed, with net.ErrClosed. Connections live on.
func (s *Server) ListenAndServe(ctx context.Context, p fabric.Provider, addr string) error {
	l, err := s.Listen(ctx, p, addr)
	if err != nil {
		return err
	}
	stop := context.AfterFunc(ctx, func() { l.Close() })
	defer stop()
	if err := s.Serve(l); ctx.Err() == nil {
		return err
	}
	return ctx.Err()
}

// A ResultDecoder decodes the results of a call. It is an [xdr.Decoder], with one method
// more, for results that may have come in write chunks.
type ResultDecoder struct {
	xdr.Decoder
	call *Call
	next int // of WriteItems
}

// Decoder returns a decoder of the results of a call that has succeeded.
func (call *Call) Decoder() ResultDecoder {
	return ResultDecoder{Decoder: xdr.NewDecoder(call.Results), call: call}
}

// Item decodes the next result that has a WriteItem, and returns its data, which is at the
// start of the item's Buf: placed there by the server's adapter, or copied from the message
// if it came inline. It is the caller's to call Item for the results in the order of
// WriteItems. Data that is longer than Buf is an error of the decoder.
func (d *ResultDecoder) Item() []byte {
	if d.next == len(d.call.WriteItems) {
		d.Fail("a result without a WriteItem")
		return nil
	}
	w := &d.call.WriteItems[d.next]
	d.next++
	if !w.Chunked {
		return w.Buf[:copy(w.Buf, d.Opaque(uint32(len(w.Buf))))]
	}
	n := int(min(d.Uint32(), math.MaxInt32))
	// A server may write the XDR padding, too (RFC 8166 section 3.4.6.2).
	if d.Err() == nil && (n > w.N || w.N != n && w.N != min(xdr.Padded(n), len(w.Buf))) {
		d.Fail("a length that is not that of the write chunk")
	}
	if d.Err() != nil {
		return nil
	}
	return w.Buf[:n]
}
