package transport

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"sync"

	"github.com/rpcrdma/rpcrdma/proto/oncrpc"
	"github.com/rpcrdma/rpcrdma/proto/xdr"
	"github.com/rpcrdma/rpcrdma/rpc"
	"github.com/rpcrdma/rpcrdma/transport/internal/records"
)

// The record-marking bridge presents a connection as a net.Conn with the record marking of RFC 5531
// section 11, so that any ONC RPC server or client written for TCP runs over RDMA unchanged. A call
// is one record, after its chunks have been fetched; in the reply, the Binding finds the items that
// may go to chunks.

// marked returns the mark of a record of n bytes, with room for the record after it.
func marked(n int) []byte {
	return oncrpc.AppendRecordMark(make([]byte, 0, oncrpc.RecordMarkSize+n), n, true)
}

// inOrder reports whether ranges ascend without overlap within n bytes.
func inOrder(items []rpc.Range, n int) bool {
	from := 0
	for _, it := range items {
		if it.Offset < from || it.Length < 0 || it.Length > n || it.Offset > n-xdr.Padded(it.Length) {
			return false
		}
		from = it.End()
	}
	return true
}

// NewRecordConn returns a net.Conn that carries the record-marked calls of an ONC RPC client written for TCP over cl. b
// decides which parts of the calls and of their replies may travel in chunks. With nil, nothing is placed directly, and
// replies may have up to maxReply bytes. The net.Conn uses the current connection of cl, which must exist, and ends
// with it. Closing the net.Conn closes cl.
func NewRecordConn(cl *Client, b rpc.Binding, maxReply int) net.Conn {
	ctx, cancel := context.WithCancel(context.Background())
	rc := &clientRecords{
		Stream: records.NewStream(), cl: cl, c: cl.latest(), binding: b, maxReply: maxReply, ctx: ctx, cancel: cancel,
		parser: records.Parser{Max: cl.cfg.MaxMessage},
	}
	ended := rc.c.ended()
	go func() { // the reader is notified of the connection's end
		<-ended
		rc.Fail(rc.c.endErr())
	}()
	return rc
}

// clientRecords is a client's connection as a net.Conn.
type clientRecords struct {
	*records.Stream
	cl       *Client
	c        connection // at creation: a net.Conn ends with it
	binding  rpc.Binding
	maxReply int
	ctx      context.Context
	cancel   context.CancelFunc
	calls    sync.WaitGroup

	wmu    sync.Mutex
	parser records.Parser
}

func (rc *clientRecords) LocalAddr() net.Addr  { return rc.c.local() }
func (rc *clientRecords) RemoteAddr() net.Addr { return rc.c.remote() }

// Close ends the connection; calls in flight get no reply.
func (rc *clientRecords) Close() error {
	rc.Fail(net.ErrClosed)
	rc.cancel()
	err := rc.cl.Close()
	rc.calls.Wait()
	return err
}

// Write accepts calls as records, in pieces of any size.
func (rc *clientRecords) Write(b []byte) (int, error) {
	rc.wmu.Lock()
	defer rc.wmu.Unlock()
	if err := rc.Failed(); err != nil {
		return 0, err
	}
	err := rc.parser.Write(b, func(record []byte) error {
		if _, dir, ok := oncrpc.Peek(record); !ok || dir != oncrpc.Call {
			return errors.New("transport: a record written is not an RPC call")
		}
		rc.calls.Add(1)
		go rc.call(record)
		return nil
	})
	if err != nil {
		rc.Fail(err)
		return 0, err
	}
	return len(b), nil
}

// call makes one call and makes its reply readable. If the call fails, so does the net.Conn, as a TCP connection would.
func (rc *clientRecords) call(record []byte) {
	defer rc.calls.Done()
	reply, err := rc.roundTrip(record)
	if err != nil {
		rc.Fail(err)
		return
	}
	rc.Push(reply, nil)
}

func (rc *clientRecords) roundTrip(record []byte) ([]byte, error) {
	var h oncrpc.CallHeader
	n, err := oncrpc.ConsumeCall(record, &h)
	if err != nil {
		return nil, fmt.Errorf("transport: a record written is not an RPC call: %w", err)
	}
	proc := rpc.Procedure{Prog: h.Prog, Vers: h.Vers, Proc: h.Proc}
	call := pendingOf(&rpc.Call{Cred: h.Cred, MaxResults: rc.maxReply})
	call.raw = record
	if rc.binding != nil && !h.Cred.Sealed() { // a sealed call is one piece, and so is its reply
		items, bounds := rc.binding.Call(proc, record[n:], nil)
		call.MaxResults = bounds.MaxResults
		if h.Cred.Protected() {
			// The binding cannot read protected arguments, and nothing may be taken out of them.
			for _, size := range bounds.Items[:bounds.NumItems] {
				call.MaxResults += xdr.Padded(size)
			}
			call.MaxResults += gssOverhead
			items, bounds.NumItems = nil, 0
		}
		if len(items) > 0 && inOrder(items, len(record)-n) {
			call.raw = record[:0:0]
			from := 0
			for _, it := range items {
				at := n + it.Offset
				call.raw = append(call.raw, record[from:at]...)
				call.ReadItems = append(call.ReadItems, rpc.ReadItem{Offset: len(call.raw), Data: record[at : at+it.Length]})
				from = n + it.End()
			}
			call.raw = append(call.raw, record[from:]...)
		}
		for _, size := range bounds.Items[:bounds.NumItems] {
			if size > 0 {
				call.WriteItems = append(call.WriteItems, rpc.WriteItem{Buf: make([]byte, size)})
			}
		}
	}
	xid := h.XID
	if err := rc.c.call(rc.ctx, call); err != nil {
		return nil, err
	}
	msg := call.Results
	binary.BigEndian.PutUint32(msg, xid)
	return rc.restore(proc, msg, call.WriteItems)
}

// gssOverhead is room for the additions of RPCSEC_GSS to results: lengths, a sequence number, a checksum, and the
// padding of a cipher.
const gssOverhead = 1024

// restore inserts the items that were returned in write chunks into the reply, each after its length word.
func (rc *clientRecords) restore(p rpc.Procedure, msg []byte, items []rpc.WriteItem) ([]byte, error) {
	size := len(msg)
	placed := false
	for i := range items {
		if items[i].Chunked {
			placed = true
			size += xdr.Padded(items[i].N)
		}
	}
	if !placed {
		return append(marked(size), msg...), nil
	}
	var h oncrpc.ReplyHeader
	n, err := oncrpc.ConsumeReply(msg, &h)
	if err != nil {
		return nil, err
	}
	places := rc.binding.Reply(p, msg[n:], true, nil)
	if len(places) > len(items) {
		return nil, &rpc.BadReplyError{XID: h.XID, Reason: "it has more items than chunks"}
	}
	for i, pl := range places {
		got, buf := items[i].N, items[i].Buf
		if got != pl.Length && got != min(xdr.Padded(pl.Length), len(buf)) || pl.Length > len(buf) || pl.Offset > len(msg)-n {
			return nil, &rpc.BadReplyError{XID: h.XID, Reason: "its results do not fit its chunks"}
		}
	}
	out := make([]byte, 0, size+oncrpc.RecordMarkSize)
	out = append(out, 0, 0, 0, 0)
	from := 0
	for i, pl := range places {
		out = append(out, msg[from:n+pl.Offset]...)
		out = append(out, items[i].Buf[:pl.Length]...)
		out = append(out, zeros[:xdr.Pad(pl.Length)]...)
		from = n + pl.Offset
	}
	out = append(out, msg[from:]...)
	binary.BigEndian.PutUint32(out, oncrpc.LastFragment|uint32(len(out)-oncrpc.RecordMarkSize))
	return out, nil
}
