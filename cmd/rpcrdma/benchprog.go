package main

import (
	"context"

	"github.com/rpcrdma/rpcrdma/proto/oncrpc"
	"github.com/rpcrdma/rpcrdma/proto/xdr"
	"github.com/rpcrdma/rpcrdma/transport"
)

// The benchmark program moves bytes and does nothing else with them. Its number is
// from the range that RFC 5531 section 13.1 leaves to users. In the language of RFC
// 5531 section 12:
//
//	program RPCRDMA_BENCH {
//		version RPCRDMA_BENCH_V1 {
//			void         NULL(void)           = 0;
//			opaque       ECHO(opaque<>)       = 1;  /* what came */
//			unsigned int SINK(opaque<>)       = 2;  /* how many bytes came */
//			opaque       SOURCE(unsigned int) = 3;  /* so many bytes */
//		} = 1;
//	} = 0x20524442;
//
// The argument of SINK may travel as a read chunk, the result of SOURCE as a write
// chunk; ECHO is for what fits inline. SOURCE sends what the memory holds that it
// is given, and never anything of another connection's.
const (
	benchProgram = 0x20524442
	benchVersion = 1

	benchEcho   = 1
	benchSink   = 2
	benchSource = 3
)

// benchmarkProgram returns the program.
func benchmarkProgram() transport.Program {
	return transport.Program{
		Number: benchProgram, Low: benchVersion, High: benchVersion,
		Handler: transport.HandlerFunc(serveBench), Idempotent: transport.Every,
		Inline: func(_, proc uint32) bool { return proc == benchEcho },
	}
}

func serveBench(_ context.Context, req *transport.Request, res *transport.Response) {
	d := xdr.NewDecoder(req.Args)
	switch req.Proc {
	case benchEcho, benchSink:
		data := d.Opaque(uint32(len(req.Args)))
		if d.End() != nil {
			res.Fail(oncrpc.GarbageArgs)
			return
		}
		if req.Proc == benchSink {
			res.Results = xdr.AppendUint32(res.Results, uint32(len(data)))
		} else {
			res.Results = xdr.AppendOpaque(res.Results, data)
		}
	case benchSource:
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
