package gen

import (
	"bytes"
	"testing"

	"github.com/rpcrdma/rpcrdma/internal/testing/testutil"
	"github.com/rpcrdma/rpcrdma/proto/oncrpc"
	"github.com/rpcrdma/rpcrdma/proto/xdr"
	"github.com/rpcrdma/rpcrdma/rpc"
)

// A Call that is used again has nothing of what it was before.
func TestCalls(t *testing.T) {
	var calls Calls
	call := calls.Get(&oncrpc.Program{Number: 1, Vers: 2}, 3)
	call.Cred, call.MaxResults, call.NoResend = oncrpc.Auth{Body: []byte("cred")}, 4, true
	call.Args = append(call.Args, 1, 2, 3, 4)
	call.ReadItems = append(call.ReadItems, rpc.ReadItem{Offset: 4, Data: []byte("data")})
	call.Receive(make([]byte, 5))
	call.Results = []byte("results")
	reads, writes := call.ReadItems, call.WriteItems
	calls.Put(call)
	if reads[0].Data != nil || writes[0].Buf != nil {
		t.Error("a Call that nobody uses holds memory of its caller")
	}
	for range 10 { // the pool may forget
		call = calls.Get(&oncrpc.Program{Number: 5, Vers: 6}, 7)
		if call.Prog != 5 || call.Vers != 6 || call.Proc != 7 || call.Cred.Body != nil || call.MaxResults != 0 || call.NoResend ||
			len(call.Args)+len(call.ReadItems)+len(call.WriteItems)+len(call.Results) > 0 {
			t.Errorf("call is %+v", call)
		}
		calls.Put(call)
	}
}

func TestWalk(t *testing.T) {
	stream := xdr.AppendOpaque(xdr.AppendUint32(nil, 7), []byte("hello"))
	walk := func(stream []byte, reduced bool) ([]rpc.Range, bool) {
		w := NewWalk(stream, reduced, []rpc.Range{{Offset: 9, Length: 9}})
		w.Uint32()
		w.Item(5)
		return w.Items()
	}
	if items, ok := walk(stream, false); !ok || len(items) != 1 || items[0] != (rpc.Range{Offset: 8, Length: 5}) {
		t.Errorf("items %+v, %v", items, ok)
	}
	if items, ok := walk(stream[:8], true); !ok || len(items) != 1 || items[0] != (rpc.Range{Offset: 8, Length: 5}) {
		t.Errorf("reduced: items %+v, %v", items, ok)
	}
	long := testutil.Hex(t, "00000007 00000006 00000000 00000000")
	for _, stream := range [][]byte{nil, stream[:12], stream[:7], long, long[:8], append(bytes.Clone(stream), 0, 0, 0, 0)} {
		for _, reduced := range []bool{false, true} {
			if items, ok := walk(stream, reduced); ok || len(items) > 0 {
				t.Errorf("%x: items %+v, reduced %v", stream, items, reduced)
			}
		}
	}
	w := NewWalk(testutil.Hex(t, "ffffffff"), true, nil)
	if w.Item(1<<32 - 1); w.Err() == nil {
		t.Error("an item of 4 GiB is understood")
	}
}

func TestCounted(t *testing.T) {
	for _, tt := range []struct{ got, want int }{
		{Counted(uint32(5)), 8}, {Counted(uint32(1<<32 - 1)), 16 << 20}, {Counted(uint64(1<<64 - 1)), 16 << 20},
		{Counted(int32(-1)), 0}, {Counted(int64(-1 << 63)), 0}, {Counted(int64(4)), 4},
	} {
		if tt.got != tt.want {
			t.Errorf("%d, want %d", tt.got, tt.want)
		}
	}
}
