package transport

import (
	"errors"
	"testing"

	"github.com/rpcrdma/rpcrdma/fabric"
	"github.com/rpcrdma/rpcrdma/rpc"
	"github.com/rpcrdma/rpcrdma/transport/internal/plan"
)

// TestTakesForeign checks that foreign memory is refused where the data of items may need copying.
func TestTakesForeign(t *testing.T) {
	mem := &fabric.Foreign{Addr: 4096, Len: 8}
	read := rpc.Call{ReadItems: []rpc.ReadItem{{Data: []byte("own")}, {Foreign: mem}}}
	write := rpc.Call{WriteItems: []rpc.WriteItem{{Foreign: mem}}}
	for _, tt := range []struct {
		name  string
		call  rpc.Call
		terms plan.Terms
		ok    bool
	}{
		{"an argument", read, plan.Terms{Chunks: plan.OnePosition}, true},
		{"a result", write, plan.Terms{Chunks: plan.AnyChunks}, true},
		{"an argument of a protected call", read, plan.Terms{Chunks: plan.AnyChunks, Protected: true}, false},
		{"a result of a protected call", write, plan.Terms{Chunks: plan.AnyChunks, Protected: true}, false},
		{"an argument without read chunks", read, plan.Terms{Chunks: plan.NoReads}, false},
		{"a result without read chunks", write, plan.Terms{Chunks: plan.NoReads}, true},
		{"an argument without chunks", read, plan.Terms{}, false},
		{"a result without chunks", write, plan.Terms{}, false},
		{"none", rpc.Call{ReadItems: read.ReadItems[:1]}, plan.Terms{Protected: true}, true},
	} {
		err := (&pendingCall{Call: &tt.call}).takesForeign(&tt.terms)
		var foreign *rpc.ForeignError
		if (err == nil) != tt.ok || err != nil && (!errors.As(err, &foreign) || foreign.Len != 8 || foreign.Result == (foreign.Index == 1)) {
			t.Errorf("%s: %v", tt.name, err)
		}
	}
}
