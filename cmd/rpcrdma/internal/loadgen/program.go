package loadgen

import (
	"context"

	"github.com/rpcrdma/rpcrdma/proto/oncrpc"
	"github.com/rpcrdma/rpcrdma/proto/xdr"
	"github.com/rpcrdma/rpcrdma/rpc"
	"github.com/rpcrdma/rpcrdma/transport"
)

// The benchmark program. Its number is from the range that RFC 5531 section 13.1 leaves
// to users. In the language of RFC 5531 section 12:
//
//	program RPCRDMA_BENCH {
//		version RPCRDMA_BENCH_V1 {
//			void         NULL(void)           = 0;
//			opaque       ECHO(opaque<>)       = 1;  /* its argument */
//			unsigned int SINK(opaque<>)       = 2;  /* how many bytes */
//			opaque       SOURCE(unsigned int) = 3;  /* that many bytes */
//		} = 1;
//	} = 0x20524442;
//
// The argument of SINK may be a read chunk, the result of SOURCE a write chunk; ECHO is
// for data that fits inline. SOURCE sends whatever is in the connection's own memory,
// never data of another connection.
const (
	ProgramNumber  = 0x20524442
	ProgramVersion = 1

	ProcEcho   = 1
	ProcSink   = 2
	ProcSource = 3
)

// Program returns the benchmark program for a server to register. It has no state.
func Program() rpc.Program {
	return rpc.Program{
		Number: ProgramNumber, Low: ProgramVersion, High: ProgramVersion,
		Handler: rpc.HandlerFunc(serve), Idempotent: rpc.Every,
		Inline: func(_, proc uint32) bool { return proc == ProcEcho },
	}
}

func serve(_ context.Context, req *rpc.Request, res *rpc.Response) {
	d := xdr.NewDecoder(req.Args)
	switch req.Proc {
	case ProcEcho, ProcSink:
		data := d.Opaque(uint32(len(req.Args)))
		if d.End() != nil {
			res.Fail(oncrpc.GarbageArgs)
			return
		}
		if req.Proc == ProcSink {
			res.Results = xdr.AppendUint32(res.Results, uint32(len(data)))
		} else {
			res.Results = xdr.AppendOpaque(res.Results, data)
		}
	case ProcSource:
		n := d.Uint32()
		if d.End() != nil {
			res.Fail(oncrpc.GarbageArgs)
			return
		}
		if n > transport.DefaultMaxMessage {
			res.Fail(oncrpc.SystemErr)
			return
		}
		data := res.Alloc(int(n))
		if data == nil && n > 0 {
			res.Fail(oncrpc.SystemErr)
			return
		}
		res.AddItem(data, nil)
	default:
		res.Fail(oncrpc.ProcUnavail)
	}
}
