package main

import (
	"github.com/rpcrdma/rpcrdma/bench"
	"github.com/rpcrdma/rpcrdma/bench/internal/measure"
)

// pairs lists what is compared, one entry a row. Floors and goals stand with the
// rows that are about this module; rows that begin with "ref" put others into
// relation, so that a table says what kind of machine it was made on.
func pairs() []measure.Pair {
	list := func(w ...bench.Workload) []bench.Workload { return w }
	echo := bench.TCPEcho(64)
	copyLoop := list(bench.TCPCopy(1<<20, 64<<10), bench.TCPCopy(1<<20, 256<<10), bench.TCPCopy(1<<20, 1<<20))

	return []measure.Pair{
		{ID: "ref 1", What: "net/rpc, 64 B echo, over TCP echo", A: bench.NetRPC(64, 1), B: list(echo)},
		{ID: "ref 2", What: "gRPC, 64 B echo, over TCP echo", A: bench.GRPC(64, 1, false), B: list(echo)},
		{ID: "ref 3", What: "net/rpc, 32 outstanding, over TCP pipelined by hand", Kind: measure.Rate, A: bench.NetRPC(64, 32), B: list(bench.TCPPipelined(64, 32))},
		{ID: "ref 4", What: "gRPC, 32 outstanding, over TCP pipelined by hand", Kind: measure.Rate, A: bench.GRPC(64, 32, false), B: list(bench.TCPPipelined(64, 32))},
		{ID: "ref 5", What: "gRPC, 1 MiB put, over a TCP copy loop", Kind: measure.Rate, A: bench.GRPCPut(1<<20, false), B: copyLoop},
		{ID: "ref 6", What: "gRPC tuned, 1 MiB put, over a TCP copy loop", Kind: measure.Rate, A: bench.GRPCPut(1<<20, true), B: copyLoop},
	}
}
