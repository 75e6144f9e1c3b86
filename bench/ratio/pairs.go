package main

import (
	"github.com/rpcrdma/rpcrdma/bench"
	"github.com/rpcrdma/rpcrdma/bench/internal/measure"
	"github.com/rpcrdma/rpcrdma/iwarp"
)

// pairs lists what is compared, one entry a row. Floors and goals stand with the
// rows that are about this module; rows that begin with "ref" put others into
// relation, so that a table says what kind of machine it was made on.
func pairs() []measure.Pair {
	list := func(w ...bench.Workload) []bench.Workload { return w }
	echo := bench.TCPEcho(64)
	copyLoop := list(bench.TCPCopy(1<<20, 64<<10), bench.TCPCopy(1<<20, 256<<10), bench.TCPCopy(1<<20, 1<<20))

	sw, crc := bench.Loopback(iwarp.New(iwarp.Config{})), bench.Loopback(iwarp.New(iwarp.Config{CRC: true}))

	return []measure.Pair{
		{ID: "13", What: "RPC NULL, over TCP echo of 64 B", A: bench.Null(sw, 1), B: list(echo), Floor: 1.4, Goal: 1.25},
		{ID: "14a", What: "RPC NULL, over net/rpc", A: bench.Null(sw, 1), B: list(bench.NetRPC(64, 1)), Floor: 0.8, Goal: 0.55},
		{ID: "14b", What: "RPC NULL, over gRPC", A: bench.Null(sw, 1), B: list(bench.GRPC(64, 1, false)), Floor: 0.5, Goal: 0.3},
		{ID: "14c", What: "RPC NULL, over gRPC tuned", A: bench.Null(sw, 1), B: list(bench.GRPC(64, 1, true))},
		{ID: "15a", What: "RPC echo of 64 B, 32 outstanding, over TCP pipelined by hand", Kind: measure.Rate, A: bench.Echo(sw, 64, 32), B: list(bench.TCPPipelined(64, 32)), Floor: 0.6, Goal: 0.8},
		{ID: "15b", What: "RPC echo of 64 B, 32 outstanding, over net/rpc", Kind: measure.Rate, A: bench.Echo(sw, 64, 32), B: list(bench.NetRPC(64, 32)), Floor: 2, Goal: 3.5},
		{ID: "15c", What: "RPC echo of 64 B, 32 outstanding, over gRPC", Kind: measure.Rate, A: bench.Echo(sw, 64, 32), B: list(bench.GRPC(64, 32, false)), Floor: 3, Goal: 5},
		{ID: "10a", What: "1 MiB read through a write chunk, over a TCP copy loop", Kind: measure.Rate, A: bench.Push(sw, 1<<20, 1), B: copyLoop, Floor: 0.8, Goal: 0.95},
		{ID: "10b", What: "the same with CRC", Kind: measure.Rate, A: bench.Push(crc, 1<<20, 1), B: copyLoop, Floor: 0.65, Goal: 0.85},
		{ID: "10c", What: "the same, 4 outstanding", Kind: measure.Rate, A: bench.Push(sw, 1<<20, 4), B: copyLoop, Floor: 0.8, Goal: 0.95},
		{ID: "10d", What: "1 MiB written through a read chunk, over a TCP copy loop", Kind: measure.Rate, A: bench.Pull(sw, 1<<20, 1), B: copyLoop},
		{ID: "16", What: "1 MiB written through a read chunk, over gRPC", Kind: measure.Rate, A: bench.Pull(sw, 1<<20, 1), B: list(bench.GRPCPut(1<<20, false)), Floor: 2.5, Goal: 3.5},
		{ID: "16t", What: "the same, over gRPC tuned", Kind: measure.Rate, A: bench.Pull(sw, 1<<20, 1), B: list(bench.GRPCPut(1<<20, true))},
		{ID: "back 1", What: "RPC NULL with an idle backchannel, over one without", A: bench.NullWithCallbacks(sw, 1), B: list(bench.Null(sw, 1)), Floor: 1.1, Goal: 1},
		{ID: "back 2", What: "RPC NULL from the server, over one from the client", A: bench.BackwardNull(sw, 1), B: list(bench.Null(sw, 1)), Floor: 1.1, Goal: 1},
		{ID: "v2 1", What: "RPC echo of 1.5 KiB in version 2, over version 1 with 1024 bytes inline", Kind: measure.Rate, A: bench.Echo(sw, 1536, 1), B: list(bench.EchoV1(sw, 1536, 1))},
		{ID: "v2 2", What: "the same with 3.5 KiB", Kind: measure.Rate, A: bench.Echo(sw, 3584, 1), B: list(bench.EchoV1(sw, 3584, 1))},
		{ID: "ref 1", What: "net/rpc, 64 B echo, over TCP echo", A: bench.NetRPC(64, 1), B: list(echo)},
		{ID: "ref 2", What: "gRPC, 64 B echo, over TCP echo", A: bench.GRPC(64, 1, false), B: list(echo)},
		{ID: "ref 3", What: "net/rpc, 32 outstanding, over TCP pipelined by hand", Kind: measure.Rate, A: bench.NetRPC(64, 32), B: list(bench.TCPPipelined(64, 32))},
		{ID: "ref 4", What: "gRPC, 32 outstanding, over TCP pipelined by hand", Kind: measure.Rate, A: bench.GRPC(64, 32, false), B: list(bench.TCPPipelined(64, 32))},
		{ID: "ref 5", What: "gRPC, 1 MiB put, over a TCP copy loop", Kind: measure.Rate, A: bench.GRPCPut(1<<20, false), B: copyLoop},
		{ID: "ref 6", What: "gRPC tuned, 1 MiB put, over a TCP copy loop", Kind: measure.Rate, A: bench.GRPCPut(1<<20, true), B: copyLoop},
	}
}
