package bench

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"

	"github.com/rpcrdma/rpcrdma/proto/oncrpc"
	"github.com/rpcrdma/rpcrdma/proto/xdr"
)

// ONCRPCTCP echoes size bytes with ONC RPC over TCP, with the codecs of this module and the record marking of RFC 5531
// section 11: the same calls as [Echo], without RDMA. The client finds the caller of a reply by its xid. The server
// executes calls in order, and coalesces replies while more calls are buffered.
func ONCRPCTCP(size, depth int) Workload {
	return Workload{
		Name:   fmt.Sprintf("ONCRPCTCP/size=%d/depth=%d", size, depth),
		Depth:  depth,
		Server: &Server{Kind: "oncrpc", Size: size},
		Client: func(addr string) (*Instance, error) {
			c, err := dialServer(addr)
			if err != nil {
				return nil, err
			}
			r := &recordClient{
				conn: c, args: xdr.AppendOpaque(nil, make([]byte, size)), done: make(chan struct{}),
				calls: make([][]byte, depth), replies: make([]chan error, depth),
			}
			for i := range r.replies {
				r.replies[i] = make(chan error, 1)
			}
			go r.read()
			return &Instance{
				Call: r.call,
				Close: func() error {
					err := c.Close()
					<-r.done
					return err
				},
			}, nil
		},
	}
}

type recordClient struct {
	conn    net.Conn
	args    []byte
	calls   [][]byte     // a record for each worker, reused
	replies []chan error // by xid, which is the worker's number
	done    chan struct{}

	mu sync.Mutex // for writing
}

func (r *recordClient) call(worker int) error {
	h := oncrpc.CallHeader{XID: uint32(worker), RPCVers: oncrpc.Version, Prog: benchProgram, Vers: benchVersion, Proc: procEcho}
	b := oncrpc.AppendRecordMark(r.calls[worker][:0], h.Size()+len(r.args), true)
	b = append(oncrpc.AppendCall(b, &h), r.args...)
	r.calls[worker] = b
	r.mu.Lock()
	_, err := r.conn.Write(b)
	r.mu.Unlock()
	if err != nil {
		return err
	}
	select {
	case err := <-r.replies[worker]:
		return err
	case <-r.done:
		return net.ErrClosed
	}
}

// read delivers replies to their callers.
func (r *recordClient) read() {
	defer close(r.done)
	in := bufio.NewReaderSize(r.conn, 64<<10)
	var record []byte
	for {
		var err error
		if record, err = readRecord(in, record, len(r.args)+1024); err != nil {
			return
		}
		var h oncrpc.ReplyHeader
		n, err := oncrpc.ConsumeReply(record, &h)
		if err != nil || uint64(h.XID) >= uint64(len(r.replies)) {
			return
		}
		err = h.Err()
		if err == nil && len(record)-n != len(r.args) {
			err = errors.New("the reply has another length than the call")
		}
		r.replies[h.XID] <- err
	}
}

// readRecord reads a record of one fragment, of at most most bytes.
func readRecord(in *bufio.Reader, record []byte, most int) ([]byte, error) {
	var mark [oncrpc.RecordMarkSize]byte
	if _, err := io.ReadFull(in, mark[:]); err != nil {
		return record, err
	}
	size, last, _ := oncrpc.ConsumeRecordMark(mark[:])
	if !last || uint64(size) > uint64(most) {
		return record, fmt.Errorf("a record of %d bytes or more", size)
	}
	if cap(record) < int(size) {
		record = make([]byte, size)
	}
	record = record[:size]
	_, err := io.ReadFull(in, record)
	return record, err
}

// serveRecords answers calls.
func serveRecords(c net.Conn, size int) error {
	in, out := bufio.NewReaderSize(c, 64<<10), bufio.NewWriterSize(c, 64<<10)
	var record, reply []byte
	for {
		var err error
		if record, err = readRecord(in, record, size+1024); err != nil {
			return err
		}
		var h oncrpc.CallHeader
		n, err := oncrpc.ConsumeCall(record, &h)
		if err != nil {
			return err
		}
		answer := oncrpc.ReplyHeader{XID: h.XID, Stat: oncrpc.MsgAccepted, AcceptStat: oncrpc.Success}
		reply = oncrpc.AppendRecordMark(reply[:0], answer.Size()+len(record)-n, true)
		reply = append(oncrpc.AppendReply(reply, &answer), record[n:]...)
		if _, err := out.Write(reply); err != nil {
			return err
		}
		if in.Buffered() == 0 {
			if err := out.Flush(); err != nil {
				return err
			}
		}
	}
}
