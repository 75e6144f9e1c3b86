package transport_test

import (
	"bytes"
	"testing"

	"github.com/rpcrdma/rpcrdma/internal/testing/leak"
	"github.com/rpcrdma/rpcrdma/internal/testing/rdmatest"
	"github.com/rpcrdma/rpcrdma/iwarp"
	"github.com/rpcrdma/rpcrdma/proto/xdr"
	"github.com/rpcrdma/rpcrdma/rdmacm"
	"github.com/rpcrdma/rpcrdma/rpc"
)

func TestRDMATransport(t *testing.T) {
	for _, kind := range rdmatest.Kinds() {
		t.Run(kind, func(t *testing.T) { runSuite(t, onDevice(t, kind, rdmacm.Config{})) })
	}
}

// TestRDMAModes checks other ways to wait for completions.
func TestRDMAModes(t *testing.T) {
	for _, kind := range rdmatest.Kinds() {
		for _, tt := range []struct {
			name string
			cfg  rdmacm.Config
		}{
			{"Event", rdmacm.Config{Wait: rdmacm.WaitEvent}},
			{"Poll", rdmacm.Config{Wait: rdmacm.WaitPoll}},
			{"SharedCQ", rdmacm.Config{SharedCQ: 8192}},
		} {
			t.Run(kind+"/"+tt.name, func(t *testing.T) {
				leak.Check(t)
				b := onDevice(t, kind, tt.cfg)
				t.Run("Long", func(t *testing.T) { testLong(t, b) })
				t.Run("EndsUnderLoad", func(t *testing.T) { testEndsUnderLoad(t, b) })
			})
		}
	}
}

// TestRDMAInvalidation checks V1-11-3 PVT-3.2-1: remote invalidation of windows that are bound in the same list as the
// call's Send. Only rxe has windows, and only on request.
func TestRDMAInvalidation(t *testing.T) {
	b := onDevice(t, "rxe", rdmacm.Config{UnsafeWindows: true})
	t.Run("the handle is dead after the reply", func(t *testing.T) { testInvalidated(t, b) })
	t.Run("suite", func(t *testing.T) {
		t.Run("Sizes", func(t *testing.T) { testSizes(t, b) })
		t.Run("Shapes", func(t *testing.T) { testShapes(t, b) })
		t.Run("EndsUnderLoad", func(t *testing.T) { testEndsUnderLoad(t, b) })
	})
}

// TestRDMAInvalidatingServer checks PVT-3.2-4: a server on siw, which has no windows, invalidates the windows of a
// client of another provider.
func TestRDMAInvalidatingServer(t *testing.T) {
	b := onDevice(t, "siw", rdmacm.Config{})
	w := b.start(t, nil)
	w.provider = iwarp.New(iwarp.Config{})
	cl := w.dial(t, nil)
	if !cl.Info().RemoteInvalidation {
		t.Fatal("remote invalidation was not agreed on")
	}
	call := rpc.Call{Prog: prog, Vers: 1, Proc: procMake, WriteItems: []rpc.WriteItem{{Buf: make([]byte, 1<<20)}}, MaxResults: 8}
	call.Args = xdr.AppendUint32(xdr.AppendUint32(nil, 1<<20), 3)
	for range 20 {
		if err := cl.Call(bg, &call); err != nil {
			t.Fatal(err)
		}
	}
	want := make([]byte, 1<<20)
	fill(want, 3)
	if n := cl.Stats().Invalidated; n < 20 || !bytes.Equal(call.WriteItems[0].Buf, want) {
		t.Errorf("%d of 20 replies came with an invalidation", n)
	}
}
