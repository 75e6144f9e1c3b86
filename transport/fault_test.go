package transport_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"

	"github.com/rpcrdma/rpcrdma/fabric/fabrictest"
	"github.com/rpcrdma/rpcrdma/proto/xdr"
	"github.com/rpcrdma/rpcrdma/rpc"
	"github.com/rpcrdma/rpcrdma/transport"
)

// testFaults: whatever the adapter refuses, and whenever it breaks, every call returns, and nothing
// is left. A wrapper around the real adapter injects the faults.
func testFaults(t *testing.T, b *bed) {
	passages := []int{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12}
	if b.slow > 1 {
		passages = []int{1, 2, 3, 6}
	}
	for at := fabrictest.AtResolve; at <= fabrictest.AtCompletion; at++ {
		for _, do := range []fabrictest.Action{fabrictest.Fail, fabrictest.Break} {
			for _, side := range []fabrictest.Side{fabrictest.Dialed, fabrictest.Taken} {
				for _, n := range passages {
					fault := fabrictest.Fault{At: at, Do: do, Side: side, N: n}
					struck := false
					ok := t.Run(fmt.Sprintf("%v/%v/side%d/%d", at, do, side, n), func(t *testing.T) {
						struck = b.underFault(t, fault)
					})
					if !struck || !ok {
						break // it does not happen so often
					}
				}
			}
		}
	}
}

func (b *bed) underFault(t *testing.T, fault fabrictest.Fault) (struck bool) {
	inner, live := b.provider(t)
	p := fabrictest.Faulty(inner, fabrictest.Plan{fault})
	defer func() { struck = p.Struck(0) > 0 }()
	ctx, cancel := context.WithTimeout(bg, b.patience())
	defer cancel()

	s, err := transport.NewServer(nil)
	if err != nil {
		t.Fatal(err)
	}
	svc := &service{}
	err = s.Register(rpc.Program{Number: prog, Low: 1, High: 1, Handler: svc,
		Inline: func(_, proc uint32) bool { return proc == procEcho }})
	if err != nil {
		t.Fatal(err)
	}
	l, err := s.Listen(ctx, p, b.addr)
	if err != nil {
		if !errors.Is(err, fabrictest.ErrInjected) {
			t.Error(err)
		}
		return
	}
	served := make(chan error, 1)
	go func() { served <- s.Serve(l) }()
	defer func() {
		s.Close()
		l.Close()
		<-served
		live.check(t)
	}()

	cl, err := transport.Dial(ctx, p, l.Addr().String(), transport.Once(nil).Client())
	if err != nil {
		if ctx.Err() != nil {
			t.Errorf("Dial hangs: %v", err)
		}
		return
	}
	defer cl.Close()
	data := make([]byte, 70_000)
	var wg sync.WaitGroup
	for _, proc := range []uint32{procEcho, procSlow} {
		wg.Go(func() {
			buf := make([]byte, len(data))
			for _, n := range []int{10, len(data), 100, len(data)} {
				call := rpc.Call{Prog: prog, Vers: 1, Proc: proc, Args: xdr.AppendUint32(nil, uint32(n)), MaxResults: 8,
					ReadItems:  []rpc.ReadItem{{Offset: 4, Data: data[:n]}},
					WriteItems: []rpc.WriteItem{{Buf: buf[:n]}}}
				if err := cl.Call(ctx, &call); err != nil && ctx.Err() != nil {
					t.Errorf("call hangs: %v", err)
				}
			}
		})
	}
	wg.Wait()
	return
}
