package rpc

import (
	"bytes"
	"context"
	"testing"

	"github.com/rpcrdma/rpcrdma/internal/testing/testutil"
	"github.com/rpcrdma/rpcrdma/proto/oncrpc"
	"github.com/rpcrdma/rpcrdma/proto/xdr"
)

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
