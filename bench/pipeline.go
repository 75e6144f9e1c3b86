package bench

import (
	"context"
	"encoding/binary"
	"fmt"
	"time"

	"github.com/rpcrdma/rpcrdma/rpc"
	"github.com/rpcrdma/rpcrdma/transport"
)

// EchoPiped is Echo with all calls from one goroutine: see [transport.Pipeline].
func EchoPiped(at Site, size, depth int) Workload {
	args := binary.BigEndian.AppendUint32(nil, uint32(size))
	args = append(args, make([]byte, size+(4-size%4)%4)...)
	like := rpc.Call{Prog: benchProgram, Vers: benchVersion, Proc: procEcho, Args: args, MaxResults: len(args)}
	return Workload{
		Name:   fmt.Sprintf("EchoPiped/prov=%s/size=%s/depth=%d", at.Name, binaryPrefix(size), depth),
		Server: &Server{Kind: "rpc", Site: at},
		Client: func(addr string) (*Instance, error) {
			p, err := at.tap()
			if err != nil {
				return nil, err
			}
			client, err := transport.Dial(context.Background(), p, addr, nil)
			if err != nil {
				return nil, err
			}
			calls := make([]rpc.Call, depth)
			for i := range calls {
				calls[i] = like
			}
			pipeline := transport.NewPipeline(client)
			return &Instance{
				Batch:    func(n int) (time.Duration, error) { return keepFull(pipeline, calls, n) },
				Counters: func() (client, _ Counters) { return p.counters(), Counters{} },
				Close: func() error {
					pipeline.Close()
					return client.Close()
				},
			}, nil
		},
	}
}

// keepFull makes n calls, with all of calls in flight.
func keepFull(p *transport.Pipeline, calls []rpc.Call, n int) (time.Duration, error) {
	begin := time.Now()
	for i := range min(n, len(calls)) {
		p.Start(&calls[i])
	}
	for left := n - p.Len(); p.Len() > 0; {
		call, err := p.Wait(context.Background())
		if err != nil {
			return 0, err
		}
		if left > 0 {
			left--
			p.Start(call)
		}
	}
	return time.Since(begin), nil
}
