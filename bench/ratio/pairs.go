package main

import (
	"fmt"

	"github.com/rpcrdma/rpcrdma/bench"
	"github.com/rpcrdma/rpcrdma/bench/internal/measure"
	"github.com/rpcrdma/rpcrdma/bench/internal/result"
	"github.com/rpcrdma/rpcrdma/transport"
)

const (
	kib = 1 << 10
	mib = 1 << 20
	gib = 1 << 30
)

func list(w ...bench.Workload) []bench.Workload { return w }

// split appends to each pair one with the servers of both sides in separate processes. If used is set, that is the
// normal use of the rows, and the second pair has the floor and the goal. Otherwise the second pair has none.
func split(pairs []measure.Pair, used bool) []measure.Pair {
	var all []measure.Pair
	for _, p := range pairs {
		far := p
		far.ID += result.Apart
		far.What += ", servers in processes of their own"
		far.B = nil
		var ok bool
		if far.A, ok = p.A.Split(); ok {
			for _, b := range p.B {
				if b, ok = b.Split(); ok {
					far.B = append(far.B, b)
				}
			}
		}
		switch {
		case len(far.B) != len(p.B):
			all = append(all, p)
			continue
		case used:
			p.Floor, p.Want = 0, 0
		default:
			far.Floor, far.Want = 0, 0
		}
		all = append(all, p, far)
	}
	return all
}

// softwarePlan returns the plan for the software adapter over loopback, which runs anywhere. Rows of this module have
// floors and goals; rows with an ID that begins with "ref" compare other implementations, as a reference for the
// machine.
func softwarePlan() plan {
	const rate = result.Rate
	echo := bench.TCPEcho(64)
	copyLoop := list(bench.TCPCopy(mib, 64*kib), bench.TCPCopy(mib, 256*kib), bench.TCPCopy(mib, mib))
	sw, crc := bench.Software(bench.Adapter{}), bench.Software(bench.Adapter{CRC: true})
	small := bench.Software(bench.Adapter{MaxFPDU: 1428})
	null := bench.Null(sw, 1)
	group := bench.Ends{Group: 2}
	hogs := bench.Hogs(numCPU())

	pairs := split([]measure.Pair{
		{ID: "13", Goal: 13, What: "RPC NULL, over TCP echo of 64 B", A: null, B: list(echo), Floor: 1.4, Want: 1.25},
		{ID: "14a", Goal: 14, What: "RPC NULL, over net/rpc", A: null, B: list(bench.NetRPC(64, 1)), Floor: 0.8, Want: 0.55},
		{ID: "14b", Goal: 14, What: "RPC NULL, over gRPC", A: null, B: list(bench.GRPC(64, 1, false)), Floor: 0.5, Want: 0.3},
		{ID: "15a", Goal: 15, What: "RPC echo of 64 B, 32 outstanding from one goroutine, over TCP pipelined by hand", Kind: rate, A: bench.EchoPiped(sw, 64, 32), B: list(bench.TCPPipelined(64, 32)), Floor: 0.6, Want: 0.8},
		{ID: "15g", Goal: 15, What: "RPC echo of 64 B, 32 outstanding from as many goroutines, over TCP pipelined by hand", Kind: rate, A: bench.Echo(sw, 64, 32), B: list(bench.TCPPipelined(64, 32)), Want: 0.6},
		{ID: "15b", Goal: 15, What: "RPC echo of 64 B, 32 outstanding, over net/rpc", Kind: rate, A: bench.Echo(sw, 64, 32), B: list(bench.NetRPC(64, 32)), Floor: 2, Want: 3.5},
		{ID: "15c", Goal: 15, What: "RPC echo of 64 B, 32 outstanding, over gRPC", Kind: rate, A: bench.Echo(sw, 64, 32), B: list(bench.GRPC(64, 32, false)), Floor: 3, Want: 5},
	}, false)
	pairs = append(pairs, split([]measure.Pair{
		{ID: "10a", Goal: 10, What: "1 MiB read through a write chunk, over a TCP copy loop", Kind: rate, A: bench.Push(sw, mib, 1), B: copyLoop, Floor: 0.8, Want: 0.95},
		{ID: "10b", Goal: 10, What: "1 MiB read through a write chunk, with CRC, over a TCP copy loop", Kind: rate, A: bench.Push(crc, mib, 1), B: copyLoop, Floor: 0.65, Want: 0.85},
		{ID: "10c", Goal: 10, What: "1 MiB read through a write chunk, 4 outstanding, over a TCP copy loop", Kind: rate, A: bench.Push(sw, mib, 4), B: copyLoop, Floor: 0.8, Want: 0.95},
		{ID: "10d", Goal: 10, What: "1 MiB written through a read chunk, over a TCP copy loop", Kind: rate, A: bench.Pull(sw, mib, 1), B: copyLoop, Floor: 0.8, Want: 0.95},
		{ID: "10w", Goal: 10, What: "1 MiB Writes of the adapter alone, over a TCP copy loop", Kind: rate, A: bench.Write(sw, mib, 4), B: copyLoop, Floor: 0.75, Want: 0.95},
		{ID: "10x", Goal: 10, What: "the same with CRC", Kind: rate, A: bench.Write(crc, mib, 4), B: copyLoop, Floor: 0.65, Want: 0.85},
		{ID: "12", Goal: 12, What: "1 MiB Writes in FPDUs of 1428 bytes, over a TCP copy loop", Kind: rate, A: bench.Write(small, mib, 4), B: copyLoop, Floor: 0.4, Want: 0.55},
		{ID: "16", Goal: 16, What: "1 MiB written through a read chunk, over gRPC", Kind: rate, A: bench.Pull(sw, mib, 1), B: list(bench.GRPCPut(mib, false)), Floor: 2.5, Want: 3.5},
		{ID: "24", Goal: 24, What: "RPC NULL, 128 outstanding on 1000 connections, over one connection", Kind: rate, A: bench.NullConns(sw, 1000, 128), B: list(bench.NullConns(sw, 1, 128)), Floor: 0.5, Want: 0.8},
		{ID: "24t", Goal: 24, What: "RPC NULL, 128 outstanding on 1000 connections, over TCP echo on as many", Kind: rate, A: bench.NullConns(sw, 1000, 128), B: list(bench.TCPEchoConns(64, 1000, 128)), Floor: 0.8, Want: 1.2},
		{ID: "28", Goal: 28, What: "RPC NULL, p99 beside a live heap of 1 GiB that is collected all the time, over without", Of: result.P99, A: null.In("heap=1Gi", bench.Garbage(gib)), B: list(null), Floor: 2, Want: 1.5, Rounds: 10, Longer: 3},
		{ID: "31a", Goal: 31, What: "256 KiB through read chunks, 4 outstanding, over write chunks", Kind: rate, A: bench.Pull(sw, 256*kib, 4), B: list(bench.Push(sw, 256*kib, 4)), Floor: 0.9, Want: 1},
		{ID: "31b", Goal: 31, What: "the same with 2 MiB", Kind: rate, A: bench.Pull(sw, 2*mib, 4), B: list(bench.Push(sw, 2*mib, 4)), Floor: 0.9, Want: 1},
	}, true)...)
	pairs = append(pairs, []measure.Pair{
		{ID: "14c", What: "RPC NULL, over gRPC tuned", A: null, B: list(bench.GRPC(64, 1, true))},
		{ID: "14d", What: "RPC NULL, over ttrpc", A: null, B: list(bench.TTRPC(64, 1))},
		{ID: "14e", What: "RPC echo of 64 B, over ONC RPC on TCP", A: bench.Echo(sw, 64, 1), B: list(bench.ONCRPCTCP(64, 1))},
		{ID: "15d", What: "RPC echo of 64 B, 32 outstanding, over ttrpc", Kind: rate, A: bench.Echo(sw, 64, 32), B: list(bench.TTRPC(64, 32))},
		{ID: "15e", What: "RPC echo of 64 B, 32 outstanding, over ONC RPC on TCP", Kind: rate, A: bench.Echo(sw, 64, 32), B: list(bench.ONCRPCTCP(64, 32))},
		{ID: "16t", What: "1 MiB written through a read chunk, over gRPC tuned", Kind: rate, A: bench.Pull(sw, mib, 1), B: list(bench.GRPCPut(mib, true))},
		{ID: "25", Goal: 25, What: "RPC NULL, 32 outstanding, p99 over p50", Of: result.SelfP99, A: bench.Null(sw, 32), Floor: 5, Want: 3},
		{ID: "27", Goal: 27, What: "RPC NULL, 4 times as many callers as credits, over as many", Kind: rate, A: bench.OverCommit(sw, 16, 64), B: list(bench.OverCommit(sw, 16, 16)), Floor: 0.9, Want: 0.98},
		{ID: "28t", What: "TCP echo of 64 B, p99 beside that heap, over without", Of: result.P99, A: echo.In("heap=1Gi", bench.Garbage(gib)), B: list(echo), Rounds: 10, Longer: 3},
		{ID: "30", Goal: 30, What: "connect, RPC NULL, close, over net.Dial, a greeting and a round trip", Kind: rate, A: bench.Connect(sw), B: list(bench.TCPDial()), Floor: 0.6, Want: 0.85},
		{ID: "30 v1", What: "the same with version 1 alone, which asks nothing first", Kind: rate, A: bench.ConnectWith(sw, bench.Ends{Version1: true}), B: list(bench.TCPDial())},
		{ID: "hog 1", What: "RPC NULL beside a hog for each CPU, over TCP echo beside them", A: null.In(fmt.Sprintf("hogs=%d", numCPU()), hogs), B: list(echo.In(fmt.Sprintf("hogs=%d", numCPU()), hogs))},
		{ID: "hog 2", What: "RPC NULL with GOMAXPROCS=1, over TCP echo with it", A: null.In("procs=one", bench.OneProcessor), B: list(echo.In("procs=one", bench.OneProcessor))},
		{ID: "reg 1", What: "64 KiB read through a write chunk that the caller invalidates, over one that the server does", Kind: rate, A: bench.PushWith(sw, bench.Ends{LocalInv: true}, 64*kib, 1), B: list(bench.Push(sw, 64*kib, 1))},
		{ID: "cancel 1", What: "RPC NULL with a context that could end, over one that cannot", A: bench.NullContext(sw), B: list(null)},
		{ID: "cancel 2", Goal: 32, What: "RPC that is given up while it runs, and its late reply, over RPC NULL", A: bench.Cancelled(sw, bench.Ends{}, 64), B: list(null), Floor: 20, Want: 5},
		{ID: "cancel 3", What: "the same with 64 KiB in a read chunk, over one that ends well", A: bench.Cancelled(sw, bench.Ends{LocalInv: true}, 64*kib), B: list(bench.Pull(sw, 64*kib, 1))},
		{ID: "back 1", What: "RPC NULL with an idle backchannel, over one without", A: bench.NullWithCallbacks(sw, 1), B: list(null), Floor: 1.1, Want: 1},
		{ID: "back 2", What: "RPC NULL from the server, over one from the client", A: bench.BackwardNull(sw, 1), B: list(null), Floor: 1.1, Want: 1},
		{ID: "v2 1", What: "RPC echo of 1.5 KiB in version 2, over version 1 with 1024 bytes inline", Kind: rate, A: bench.Echo(sw, 1536, 1), B: list(bench.EchoV1(sw, 1536, 1))},
		{ID: "v2 2", What: "the same with 3.5 KiB", Kind: rate, A: bench.Echo(sw, 3584, 1), B: list(bench.EchoV1(sw, 3584, 1))},
		{ID: "ref 1", What: "net/rpc, 64 B echo, over TCP echo", A: bench.NetRPC(64, 1), B: list(echo)},
		{ID: "ref 2", What: "gRPC, 64 B echo, over TCP echo", A: bench.GRPC(64, 1, false), B: list(echo)},
		{ID: "ref 3", What: "net/rpc, 32 outstanding, over TCP pipelined by hand", Kind: rate, A: bench.NetRPC(64, 32), B: list(bench.TCPPipelined(64, 32))},
		{ID: "ref 7", What: "TCP echo, 128 outstanding on 1000 connections, over TCP pipelined by hand on one", Kind: rate, A: bench.TCPEchoConns(64, 1000, 128), B: list(bench.TCPPipelined(64, 128))},
		{ID: "ref 4", What: "gRPC, 32 outstanding, over TCP pipelined by hand", Kind: rate, A: bench.GRPC(64, 32, false), B: list(bench.TCPPipelined(64, 32))},
		{ID: "ref 5", What: "gRPC, 1 MiB put, over a TCP copy loop", Kind: rate, A: bench.GRPCPut(mib, false), B: copyLoop},
		{ID: "ref 6", What: "gRPC tuned, 1 MiB put, over a TCP copy loop", Kind: rate, A: bench.GRPCPut(mib, true), B: copyLoop},
	}...)

	// Two connections help only if the ends do not share processors, so there should be at least two processes.
	apart := func(w bench.Workload) bench.Workload { w, _ = w.Split(); return w }
	pairs = append(pairs, []measure.Pair{
		{ID: "group 1", What: "1 MiB read through a write chunk, 8 outstanding, over a group of two connections, over one connection, the server in a process of its own", Kind: rate, A: apart(bench.PushWith(sw, group, mib, 8)), B: list(apart(bench.Push(sw, mib, 8))), Want: 1.6},
		{ID: "group 2", What: "1 MiB written through a read chunk, as in group 1", Kind: rate, A: apart(bench.PullWith(sw, group, mib, 8)), B: list(apart(bench.Pull(sw, mib, 8))), Want: 1.6},
		{ID: "group 3", What: "RPC NULL, one at a time, as in group 1", A: apart(bench.NullWith(sw, group, 1)), B: list(apart(null)), Floor: 1.1, Want: 1},
		{ID: "group 4", What: "RPC NULL, 32 outstanding, as in group 1", Kind: rate, A: apart(bench.NullWith(sw, group, 32)), B: list(apart(bench.Null(sw, 32))), Floor: 0.9, Want: 1},
		{ID: "group 5", What: "RPC NULL, 256 outstanding with 128 credits on a connection, as in group 1", Kind: rate, A: apart(bench.NullWith(sw, group, 256)), B: list(apart(bench.Null(sw, 256))), Floor: 0.9, Want: 1},
		{ID: "group 6", What: "RPC NULL, 32 outstanding, spread over two connections, over one, as in group 1", Kind: rate, A: apart(bench.NullConns(sw, 2, 32)), B: list(apart(bench.Null(sw, 32)))},
	}...)

	// Messages without an item to place, such as ones marshaled whole, are long in both directions.
	tcp := bench.Over("tcp", "127.0.0.1", transport.TCP{})
	for i, size := range []int{16 * kib, 64 * kib, 256 * kib, mib, 4*mib - kib} {
		id, what := string(rune('a'+i)), fmt.Sprintf("RPC echo of %d KiB that is not placed", size/kib)
		pairs = append(pairs, []measure.Pair{
			{ID: "34" + id, Goal: 34, What: what + ", over gRPC", Kind: rate, A: apart(bench.Echo(sw, size, 1)), B: list(apart(bench.GRPC(size, 1, false))), Floor: 1, Want: 2},
			{ID: "34" + id + "t", What: what + ", over transport.TCP, in one process", Kind: rate, A: bench.Echo(sw, size, 1), B: list(bench.Echo(tcp, size, 1)), Want: 1},
		}...)
	}

	// gRPC services, the servers in processes of their own.
	ours, theirs := bench.GRPCAt(sw), bench.GRPCGo
	pairs = append(pairs, []measure.Pair{
		{ID: "35a", Goal: 35, What: "gRPC service, unary call with 64 B, over grpc-go", A: apart(bench.GRPCEcho(ours, 64, 1, false)), B: list(apart(bench.GRPCEcho(theirs, 64, 1, false))), Floor: 1, Want: 0.5},
		{ID: "35b", Goal: 35, What: "the same, 32 outstanding", Kind: rate, A: apart(bench.GRPCEcho(ours, 64, 32, false)), B: list(apart(bench.GRPCEcho(theirs, 64, 32, false))), Floor: 1.5, Want: 3},
		{ID: "35c", Goal: 35, What: "the same, 1 MiB in one field, into fresh memory", Kind: rate, A: apart(bench.GRPCEcho(ours, mib, 1, false)), B: list(apart(bench.GRPCEcho(theirs, mib, 1, false))), Floor: 1, Want: 2},
		{ID: "35d", Goal: 35, What: "the same, into memory of the caller's", Kind: rate, A: apart(bench.GRPCEcho(ours, mib, 1, true)), B: list(apart(bench.GRPCEcho(theirs, mib, 1, false))), Floor: 1, Want: 3},
		{ID: "35e", Goal: 35, What: "gRPC stream of 1 KiB messages, one way, over grpc-go", Kind: rate, A: apart(bench.GRPCStream(ours, kib)), B: list(apart(bench.GRPCStream(theirs, kib))), Floor: 1.2, Want: 2},
		{ID: "35f", Goal: 35, What: "gRPC stream, 64 B each way in turns, over grpc-go", A: apart(bench.GRPCTurns(ours, 64)), B: list(apart(bench.GRPCTurns(theirs, 64))), Floor: 1.8, Want: 0.5},
	}...)
	for i, size := range []int{16 * kib, 64 * kib, 256 * kib, mib, 4*mib - 8*kib} {
		pairs = append(pairs, measure.Pair{
			ID: "35" + string(rune('g'+i)), Goal: 35, What: fmt.Sprintf("gRPC service, %d KiB in strings of 100 B, over grpc-go", size/kib), Kind: rate,
			A: apart(bench.GRPCSpread(ours, size)), B: list(apart(bench.GRPCSpread(theirs, size))), Floor: 0.7, Want: 1,
		})
	}

	// TLS below iWARP, over crypto/tls by itself.
	secure := bench.Software(bench.Adapter{TLS: true})
	pairs = append(pairs, []measure.Pair{
		{ID: "36a", Goal: 36, What: "RPC NULL over iwarp with TLS, over an echo of 64 B by crypto/tls", A: apart(bench.Null(secure, 1)), B: list(apart(echo.OverTLS())), Floor: 1.6, Want: 1.3},
		{ID: "36b", Goal: 36, What: "1 MiB read through a write chunk over iwarp with TLS, over a copy loop by crypto/tls", Kind: rate, A: apart(bench.Push(secure, mib, 1)), B: list(apart(bench.TCPCopy(mib, mib).OverTLS())), Floor: 0.8, Want: 0.9},
		{ID: "36c", Goal: 36, What: "the same with 8 outstanding", Kind: rate, A: apart(bench.Push(secure, mib, 8)), B: list(apart(bench.TCPCopy(mib, mib).OverTLS())), Floor: 0.8, Want: 0.9},
		{ID: "36d", What: "RPC NULL over iwarp with TLS, over one without", A: apart(bench.Null(secure, 1)), B: list(apart(null))},
	}...)

	// Shared memory is between two processes.
	mem := bench.Shared()
	memNull, ring := apart(bench.Null(mem, 1)), apart(bench.RingPing(64))
	shared := bench.GRPCAt(mem)
	unix := func(w bench.Workload) []bench.Workload { return list(apart(w.OverUnix())) }
	unixCopies := list(apart(bench.TCPCopy(mib, 64*kib).OverUnix()), apart(bench.TCPCopy(mib, 256*kib).OverUnix()), apart(bench.TCPCopy(mib, mib).OverUnix()))
	pairs = append(pairs, []measure.Pair{
		{ID: "35s", Goal: 35, What: "gRPC service, unary call with 64 B over shared memory, over grpc-go on a Unix socket", A: apart(bench.GRPCEcho(shared, 64, 1, false)), B: unix(bench.GRPCEcho(theirs, 64, 1, false)), Floor: 0.8, Want: 0.3},
		{ID: "35t", Goal: 35, What: "gRPC stream, 64 B each way in turns over shared memory, over grpc-go on a Unix socket", A: apart(bench.GRPCTurns(shared, 64)), B: unix(bench.GRPCTurns(theirs, 64)), Floor: 1.2, Want: 0.5},
		{ID: "33a", Goal: 33, What: "RPC NULL over shared memory, over a ping-pong written by hand there", A: memNull, B: list(ring), Want: 1.6},
		{ID: "33b", Goal: 33, What: "the same, over an echo of 64 B on a Unix socket", A: memNull, B: unix(echo), Floor: 0.8, Want: 0.3},
		{ID: "33c", Goal: 33, What: "the same, over gRPC on a Unix socket", A: memNull, B: unix(bench.GRPC(64, 1, false)), Floor: 0.3, Want: 0.15},
		{ID: "33d", Goal: 33, What: "the same, over ttrpc on a Unix socket", A: memNull, B: unix(bench.TTRPC(64, 1)), Floor: 0.4, Want: 0.2},
		{ID: "33e", Goal: 33, What: "the same, over net/rpc on a Unix socket", A: memNull, B: unix(bench.NetRPC(64, 1)), Floor: 0.5, Want: 0.25},
		{ID: "33f", Goal: 33, What: "the same, over iwarp", A: memNull, B: list(apart(null))},
		{ID: "33g", Goal: 33, What: "RPC NULL, 32 outstanding, over shared memory, over iwarp", Kind: rate, A: apart(bench.Null(mem, 32)), B: list(apart(bench.Null(sw, 32))), Floor: 1, Want: 3},
		{ID: "33h", Goal: 33, What: "1 MiB read through a write chunk over shared memory, over a memmove between two mappings", Kind: rate, A: apart(bench.Push(mem, mib, 1)), B: list(bench.Memmove(mib)), Floor: 0.1, Want: 0.8},
		{ID: "33i", Goal: 33, What: "the same, over a copy loop on a Unix socket", Kind: rate, A: apart(bench.Push(mem, mib, 1)), B: unixCopies, Floor: 1, Want: 1.5},
		{ID: "33j", Goal: 33, What: "1 MiB written through a read chunk over shared memory, over that loop", Kind: rate, A: apart(bench.Pull(mem, mib, 1)), B: unixCopies, Floor: 1, Want: 1.5},
		{ID: "33s", Goal: 33, What: "RPC echo of 64 B over shared memory, over a ping-pong of shmipc-go", A: apart(bench.Echo(mem, 64, 1)), B: list(apart(bench.Shmipc(64))), Want: 0.5},
		{ID: "33t", Goal: 33, What: "the same with 3 KiB", A: apart(bench.Echo(mem, 3*kib, 1)), B: list(apart(bench.Shmipc(3 * kib))), Want: 0.5},
		{ID: "33u", Goal: 33, What: "the same with 64 KiB, each way in a chunk", A: apart(bench.Move(mem, 64*kib, 1)), B: list(apart(bench.Shmipc(64 * kib))), Want: 0.8},
		{ID: "33v", Goal: 33, What: "the same with 1 MiB", A: apart(bench.Move(mem, mib, 1)), B: list(apart(bench.Shmipc(mib))), Want: 0.8},
		{ID: "33k", Goal: 33, What: "RPC NULL, 128 outstanding on 1000 connections, over one connection, over shared memory", Kind: rate, A: apart(bench.NullConns(mem, 1000, 128)), B: list(apart(bench.NullConns(mem, 1, 128))), Want: 0.5},
	}...)

	return plan{
		title: "The software adapter, over loopback",
		pairs: tasks(pairs),
		values: []valueTask{
			countTask("", sw, false),
			idleTask("", sw, 100, 128, 72, 2, 1),
		},
		distributions: []measure.Distribution{{
			ID: "latency", What: "Time of single calls, one at a time",
			Points: []measure.Point{
				{Series: "TCP echo, 64 B", W: echo}, {Series: "RPC NULL", W: null}, {Series: "net/rpc", W: bench.NetRPC(64, 1)},
				{Series: "ttrpc", W: bench.TTRPC(64, 1)}, {Series: "gRPC", W: bench.GRPC(64, 1, false)},
			},
		}},
		sweeps: []sweepTask{
			sizeSweep("", sw),
			throughputSweep(sw, true),
			depthSweep(sw, true),
			connsSweep(sw, 1000),
			processorSweep(sw, numCPU()),
		},
		missing: missing(true),
	}
}
