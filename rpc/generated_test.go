package rpc

import (
	"bytes"
	"context"
	"testing"

	"github.com/rpcrdma/rpcrdma/internal/testing/testutil"
	"github.com/rpcrdma/rpcrdma/proto/oncrpc"
	"github.com/rpcrdma/rpcrdma/proto/xdr"
)

// A Call that is used again has nothing of what it was before.
func TestCalls(t *testing.T) {
	var calls Calls
	call := calls.Get(&oncrpc.Program{Number: 1, Vers: 2}, 3)
	call.Cred, call.MaxResults, call.NoResend = oncrpc.Auth{Body: []byte("cred")}, 4, true
	call.Args = append(call.Args, 1, 2, 3, 4)
	call.ReadItems = append(call.ReadItems, ReadItem{Offset: 4, Data: []byte("data")})
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

// An empty buffer accepts an item without data, and no other.
func TestReceiveNothing(t *testing.T) {
	for _, tt := range []struct {
		size uint32
		n    int // bytes in the chunk
		ok   bool
	}{{0, 0, true}, {1, 0, false}, {1, 1, false}, {2, 0, false}} {
		var call Call
		call.Receive(nil)
		if len(call.WriteItems) != 1 || len(call.WriteItems[0].Buf) == 0 {
			t.Fatalf("WriteItems are %+v", call.WriteItems)
		}
		call.Results = xdr.AppendOpaque(nil, make([]byte, tt.size))
		if tt.n > 0 {
			call.WriteItems[0].Chunked, call.WriteItems[0].N = true, tt.n
			call.Results = call.Results[:4]
		}
		d := call.Decoder()
		if data := d.Item(); len(data) > 0 || (d.End() == nil) != tt.ok {
			t.Errorf("%d bytes: %q, %v", tt.size, data, d.Err())
		}
	}
}

func TestWalk(t *testing.T) {
	stream := xdr.AppendOpaque(xdr.AppendUint32(nil, 7), []byte("hello"))
	walk := func(stream []byte, reduced bool) ([]Range, bool) {
		w := NewWalk(stream, reduced, []Range{{9, 9}})
		w.Uint32()
		w.Item(5)
		return w.Items()
	}
	if items, ok := walk(stream, false); !ok || len(items) != 1 || items[0] != (Range{Offset: 8, Length: 5}) {
		t.Errorf("items %+v, %v", items, ok)
	}
	if items, ok := walk(stream[:8], true); !ok || len(items) != 1 || items[0] != (Range{Offset: 8, Length: 5}) {
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

// named is a Binding with one item at offset 4, for its version alone.
type named struct{ version uint32 }

func (n named) Call(p Procedure, _ []byte, items []Range) ([]Range, ReplyBounds) {
	return append(items[:0], Range{Offset: 4, Length: int(n.version)}), ReplyBounds{MaxResults: int(n.version)}
}

func (n named) Reply(p Procedure, _ []byte, _ bool, items []Range) []Range {
	return append(items[:0], Range{Offset: 4, Length: int(n.version)})
}

func TestVersions(t *testing.T) {
	only := func(proc uint32) func(vers, proc uint32) bool { return func(_, p uint32) bool { return p == proc } }
	program := func(vers uint32) Program {
		return Program{
			Number: 7, Low: vers, High: vers, Binding: named{vers}, Padded: true, Idempotent: only(vers), Inline: only(vers + 1),
			Handler: HandlerFunc(func(_ context.Context, _ *Request, res *Response) {
				res.Results = append(res.Results, byte(vers))
			}),
		}
	}
	all, err := Versions(program(2), program(5), program(3))
	testutil.Must(t, err)
	if all.Number != 7 || all.Low != 2 || all.High != 5 || !all.Padded || all.ReadReplies || all.Independent {
		t.Errorf("program %+v", all)
	}
	alone, waits := program(2), program(3)
	alone.Independent = true
	for _, tt := range []struct {
		list []Program
		want bool
	}{{[]Program{alone}, true}, {[]Program{alone, waits}, false}, {[]Program{waits, alone}, false}} {
		if p, err := Versions(tt.list...); err != nil || p.Independent != tt.want {
			t.Errorf("Versions(%d of them): Independent is %v, want %v; %v", len(tt.list), p.Independent, tt.want, err)
		}
	}
	for _, vers := range []uint32{2, 3, 5} {
		var res Response
		all.Handler.ServeRPC(t.Context(), &Request{Procedure: Procedure{Prog: 7, Vers: vers, Proc: 1}}, &res)
		args, bounds := all.Binding.Call(Procedure{Prog: 7, Vers: vers, Proc: 1}, nil, nil)
		results := all.Binding.Reply(Procedure{Prog: 7, Vers: vers, Proc: 1}, nil, false, nil)
		if !bytes.Equal(res.Results, []byte{byte(vers)}) || args[0].Length != int(vers) || results[0].Length != int(vers) || bounds.MaxResults != int(vers) {
			t.Errorf("version %d: results %v, items %v and %v, bounds %+v", vers, res.Results, args, results, bounds)
		}
		if !all.Idempotent(vers, vers) || all.Idempotent(vers, vers+1) || !all.Inline(vers, vers+1) || all.Inline(vers, vers) {
			t.Errorf("version %d: idempotent or inline as another", vers)
		}
	}
	var res Response
	all.Handler.ServeRPC(t.Context(), &Request{Procedure: Procedure{Prog: 7, Vers: 4, Proc: 1}}, &res)
	items, bounds := all.Binding.Call(Procedure{Prog: 7, Vers: 4, Proc: 1}, nil, nil)
	if res.Status().AcceptStat != oncrpc.ProcUnavail || len(items)+len(all.Binding.Reply(Procedure{Prog: 7, Vers: 4, Proc: 1}, nil, false, nil)) > 0 || bounds != (ReplyBounds{}) || all.Idempotent(4, 4) || all.Inline(4, 5) {
		t.Errorf("a version that there is not: %v, %v", res.Status(), items)
	}

	other, unbound := program(3), program(3)
	other.Number, unbound.Binding = 8, nil
	for name, list := range map[string][]Program{
		"none": nil, "without a handler": {{Number: 7}}, "of two programs": {program(2), other},
		"a version twice": {program(2), program(2)}, "with and without a Binding": {program(2), unbound},
	} {
		if _, err := Versions(list...); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}
