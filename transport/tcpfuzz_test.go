package transport

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rpcrdma/rpcrdma/proto/oncrpc"
	"github.com/rpcrdma/rpcrdma/proto/xdr"
	"github.com/rpcrdma/rpcrdma/rpc"
)

// recorded is a message as a record, in fragments of at most n bytes.
func recorded(n int, msg []byte) (b []byte) {
	for {
		k := min(n, len(msg))
		b = append(oncrpc.AppendRecordMark(b, k, k == len(msg)), msg[:k]...)
		if msg = msg[k:]; len(msg) == 0 {
			return b
		}
	}
}

// A modestService is one that makes at most 64 KiB of anything for its caller.
type modestService struct{ onceService }

func (s *modestService) ServeRPC(ctx context.Context, req *rpc.Request, res *rpc.Response) {
	if req.Proc == procLong || req.Proc == procTwo || req.Proc == procAlloc {
		for args := req.Args; len(args) >= 4; args = args[4:] {
			if word(args, 0) > 1<<16 {
				res.Fail(oncrpc.GarbageArgs)
				return
			}
		}
	}
	s.onceService.ServeRPC(ctx, req, res)
}

func (s *modestService) program() rpc.Program {
	p := s.onceService.program()
	p.Handler = s
	return p
}

// FuzzServeTCP sends a server a stream of arbitrary bytes. The server must answer or end the connection, without leaks
// or crashes.
func FuzzServeTCP(f *testing.F) {
	echo := appendCall(nil, 5, procEcho, opaque("hello")...)
	for _, b := range [][]byte{
		recorded(1<<20, echo),
		append(recorded(10, echo), recorded(1<<20, appendCall(nil, 6, procAlloc, 0, 0, 0x40, 0))...),
		recorded(1<<20, appendCall(nil, 7, procLong, 0, 0, 8, 0)),
		recorded(1<<20, appendCall(nil, 8, procTwo, 0, 0, 0, 9, 0, 0, 0x20, 0)),
		recorded(300, appendCall(nil, 9, procArgs, make([]byte, 1000)...)),
		recorded(1<<20, append(oncrpc.AppendReply(nil, &oncrpc.ReplyHeader{XID: 5}), 1, 2, 3, 4)),
		append(recorded(1<<20, echo), 0x80, 0, 0),
		{0, 0, 0, 0}, {0xff, 0xff, 0xff, 0xff},
	} {
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		if len(b) > 8<<10 {
			return
		}
		svc := &modestService{}
		tcpServer(t, &Settings{MaxMessage: 1 << 20, Credits: 5}, []rpc.Program{svc.program()}, func(st *tcpStage) {
			svc.gate = make(chan struct{})
			close(svc.gate)
			p := st.arrive("a:1").listen()
			go p.Write(b)
			synctest.Wait()
			time.Sleep(time.Minute)
			p.Close()
		})
	})
}

// FuzzDialTCP answers a call with a stream of arbitrary bytes, in which the xid 5 stands for the call's xid. The call
// must end in time, without leaks or crashes.
func FuzzDialTCP(f *testing.F) {
	reply := append(oncrpc.AppendReply(nil, &oncrpc.ReplyHeader{XID: 5}), opaque("results")...)
	for _, b := range [][]byte{
		recorded(1<<20, reply), recorded(3, reply),
		recorded(1<<20, append(reply, make([]byte, 6000)...)),
		recorded(1<<20, append(reply, make([]byte, 2000)...)),
		recorded(1<<20, oncrpc.AppendReply(nil, &oncrpc.ReplyHeader{XID: 5, AcceptStat: oncrpc.ProgMismatch, Low: 1, High: 2})),
		append(recorded(1<<20, appendCall(nil, 5, procEcho, opaque("hello")...)), recorded(1<<20, reply)...),
		recorded(1<<20, xdr.AppendUint32(xdr.AppendUint32(nil, 5), 7)),
		{0, 0, 0, 0}, {0xff, 0xff, 0xff, 0xff}, {0x80, 0, 0, 9, 0, 0, 0, 5, 0, 0, 0, 1},
	} {
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		if len(b) > 8<<10 {
			return
		}
		svc := &modestService{}
		cfg := &Settings{NoReconnect: true, Callbacks: []rpc.Program{svc.program()}, MaxMessage: 1 << 20, KeepAlive: -1,
			random: func() uint64 { return 4 }} // so that the first xid is 5
		tcpClient(t, cfg, func(sc *tcpScene, p *tcpPeer) {
			svc.gate = make(chan struct{})
			close(svc.gate)
			ctx, cancel := context.WithTimeout(bg, time.Minute)
			defer cancel()
			call := rpc.Call{Prog: testProg, Vers: 1, Proc: 1, MaxResults: 100, WriteItems: []rpc.WriteItem{{Buf: make([]byte, 5000)}}}
			done := async(sc.cl, ctx, &call)
			if xid, _ := p.received("the call", 1); xid != 5 {
				t.Fatalf("the xid is %d", xid)
			}
			go p.Write(b)
			if err := <-done; err == nil {
				d := call.Decoder()
				d.Item()
				if n := len(call.Results); n > 5000+100+24 {
					t.Errorf("%d bytes of results", n)
				}
			}
			synctest.Wait()
		})
	})
}
