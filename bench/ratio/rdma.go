package main

import (
	"fmt"
	"os"
	"strings"

	"github.com/rpcrdma/rpcrdma/bench"
	"github.com/rpcrdma/rpcrdma/bench/internal/measure"
	"github.com/rpcrdma/rpcrdma/rdmacm"
)

// devicePairs lists what is compared on RDMA devices: calls, with what a C program
// does on the same device with the same number of messages. The environment tells
// the devices' addresses, as scripts/vm sets them.
func devicePairs(cverbs string) ([]measure.Pair, error) {
	var pairs []measure.Pair
	for _, kind := range []string{"rxe", "siw"} {
		host := os.Getenv("RPCRDMA_" + strings.ToUpper(kind) + "_ADDR")
		if host == "" {
			continue
		}
		at := make(map[rdmacm.WaitMode]bench.Site)
		for _, mode := range []rdmacm.WaitMode{rdmacm.WaitPoll, rdmacm.WaitEvent, rdmacm.WaitAdaptive} {
			p, err := rdmacm.New(rdmacm.Config{Wait: mode})
			if err != nil {
				return nil, err
			}
			at[mode] = bench.Site{Name: fmt.Sprintf("%s/mode=%v", kind, mode), Provider: p, Host: host}
		}
		c := func(command string, size int) bench.Workload { return bench.CVerbs(cverbs, command, host, size) }
		poll, event, adaptive := at[rdmacm.WaitPoll], at[rdmacm.WaitEvent], at[rdmacm.WaitAdaptive]
		const mib = 1 << 20
		pairs = append(pairs,
			measure.Pair{ID: kind + " 1", What: "RPC NULL polled, over a polled ping-pong in C", A: bench.Null(poll, 1), B: []bench.Workload{c("pingpong -m poll", 0)}, Floor: 1.6, Goal: 1.3},
			measure.Pair{ID: kind + " 2", What: "RPC NULL with events, over a ping-pong in C with events", A: bench.Null(event, 1), B: []bench.Workload{c("pingpong -m event", 0)}, Floor: 1.5, Goal: 1.25},
			measure.Pair{ID: kind + " 3", What: "RPC NULL adaptive, over the better of polled and with events", A: bench.Null(adaptive, 1), B: []bench.Workload{bench.Null(poll, 1), bench.Null(event, 1)}, Floor: 1.5, Goal: 1.2},
			measure.Pair{ID: kind + " 6", What: "RPC echo of 64 B, 32 outstanding, over a pipeline of 32 in C", Kind: measure.Rate, A: bench.Echo(adaptive, 64, 32), B: []bench.Workload{c("pipeline -m poll -d 32", 0), c("pipeline -m event -d 32", 0)}, Floor: 0.6, Goal: 0.8},
			measure.Pair{ID: kind + " 7a", What: "1 MiB read through a write chunk, 4 outstanding, over Writes in C", Kind: measure.Rate, A: bench.Push(adaptive, mib, 4), B: []bench.Workload{c("stream -m poll -o write -d 4", mib), c("stream -m event -o write -d 4", mib), bench.WriteBW(host, mib)}, Floor: 0.85, Goal: 0.95},
			measure.Pair{ID: kind + " 7b", What: "the same, 1 outstanding, over request, Write and reply in C", Kind: measure.Rate, A: bench.Push(adaptive, mib, 1), B: []bench.Workload{c("stream -m poll -o push -d 1", mib), c("stream -m event -o push -d 1", mib)}},
			measure.Pair{ID: kind + " 7c", What: "1 MiB written through a read chunk, 4 outstanding, over Reads in C", Kind: measure.Rate, A: bench.Pull(adaptive, mib, 4), B: []bench.Workload{c("stream -m poll -o read -d 4", mib), c("stream -m event -o read -d 4", mib)}, Floor: 0.85, Goal: 0.95},
			measure.Pair{ID: kind + " back 1", What: "RPC NULL with an idle backchannel, over one without", A: bench.NullWithCallbacks(event, 1), B: []bench.Workload{bench.Null(event, 1)}, Floor: 1.1, Goal: 1},
			measure.Pair{ID: kind + " back 2", What: "RPC NULL from the server, over one from the client", A: bench.BackwardNull(event, 1), B: []bench.Workload{bench.Null(event, 1)}, Floor: 1.1, Goal: 1},
			measure.Pair{ID: kind + " v2 1", What: "RPC echo of 1.5 KiB in version 2, over version 1 with 1024 bytes inline", Kind: measure.Rate, A: bench.Echo(event, 1536, 1), B: []bench.Workload{bench.EchoV1(event, 1536, 1)}, Floor: 1.3},
			measure.Pair{ID: kind + " v2 2", What: "the same with 3.5 KiB", Kind: measure.Rate, A: bench.Echo(event, 3584, 1), B: []bench.Workload{bench.EchoV1(event, 3584, 1)}, Floor: 1.3},
		)
	}
	if len(pairs) == 0 {
		return nil, fmt.Errorf("neither RPCRDMA_RXE_ADDR nor RPCRDMA_SIW_ADDR tells the address of an RDMA device: run it with scripts/vm")
	}
	return pairs, nil
}
