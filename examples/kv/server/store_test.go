package main

import (
	"testing"

	"github.com/rpcrdma/rpcrdma/examples/kv"
	"github.com/rpcrdma/rpcrdma/rpc"
	"github.com/rpcrdma/rpcrdma/transport/transporttest"
)

func TestPutAndGet(t *testing.T) {
	client := transporttest.New(t).Connect(func(s rpc.Registrar) error {
		return kv.RegisterStoreV1(s, newStore())
	})
	values := kv.NewStoreV1Client(client)
	if status, err := values.Put(t.Context(), "key", kv.Value("value")); status != kv.Ok || err != nil {
		t.Error(status, err)
	}
	if res, err := values.Get(t.Context(), "key", make([]byte, kv.MaxValue)); string(res.Value) != "value" || err != nil {
		t.Error(res, err)
	}
}
