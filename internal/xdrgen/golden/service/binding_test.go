//go:build generated

package service

import (
	"bytes"
	"fmt"
	"slices"
	"testing"

	"github.com/rpcrdma/rpcrdma/internal/testing/testutil"
	"github.com/rpcrdma/rpcrdma/proto/xdr"
	"github.com/rpcrdma/rpcrdma/rpc"
)

func proc(n uint32) rpc.Procedure {
	return rpc.Procedure{Prog: StoreProg, Vers: StoreV1, Proc: n}
}

// message is a value to encode.
type message interface{ Append(b []byte) []byte }

// in returns the data of items.
func in(stream []byte, items []rpc.Range) []string {
	var list []string
	for _, r := range items {
		list = append(list, string(stream[r.Offset:][:r.Length]))
	}
	return list
}

func TestBindingItems(t *testing.T) {
	pair := &Pair{Text: []byte("text"), Mark: &StoreToken{1}, Other: StoreValue("other")}
	bare := &Pair{Other: StoreValue("x")}
	args := []struct {
		name string
		proc uint32
		args message
		want []string
	}{
		{"PUT", StorePut, &PutArgs{Id: StoreId("id"), Value: StoreValue("value"), Flags: 1}, []string{"value"}},
		{"PUT, empty", StorePut, &PutArgs{}, []string{""}},
		{"SWAP", StoreSwap, pair, []string{"text", "other"}},
		{"SWAP, without the option", StoreSwap, bare, []string{"", "x"}},
		{"COPY, which is not SWAP", StoreCopy, pair, []string{"other"}},
		{"GET", StoreGet, &GetArgs{Id: StoreId("id")}, nil},
		{"ECHO", StoreEcho, &GetArgs{Id: StoreId("id")}, nil},
		{"none", StoreClear, &ListArgs{}, nil},
	}
	stale := []rpc.Range{{Offset: 1, Length: 1}}
	for _, tt := range args {
		b := tt.args.Append(nil)
		items, _ := StoreV1Binding{}.Call(proc(tt.proc), b, stale)
		if got := in(b, items); !slices.Equal(got, tt.want) {
			t.Errorf("%s: items %q, want %q", tt.name, got, tt.want)
		}
	}
	results := []struct {
		name string
		proc uint32
		res  message
		want []string
	}{
		{"GET", StoreGet, &GetRes{Ok: GetOk{Tag: []byte("tag"), Value: []byte("value")}}, []string{"value"}},
		{"GET that fails", StoreGet, &GetRes{Status: StoreNoent}, nil},
		{"SWAP", StoreSwap, pair, []string{"text", "other"}},
		{"COPY", StoreCopy, bare, []string{"x"}},
		{"PUT", StorePut, &PutRes{}, nil},
		{"none", StoreClear, &ListArgs{}, nil},
	}
	for _, tt := range results {
		b := tt.res.Append(nil)
		items := slices.Clone(StoreV1Binding{}.Reply(proc(tt.proc), b, false, stale))
		if got := in(b, items); !slices.Equal(got, tt.want) {
			t.Errorf("%s: items %q, want %q", tt.name, got, tt.want)
		}
		// Reduced results: the same without the items, which moves what follows them.
		cut, moved := b, 0
		for i, r := range items {
			cut = slices.Delete(slices.Clone(cut), r.Offset-moved, r.End()-moved)
			items[i].Offset -= moved
			moved += xdr.Padded(r.Length)
		}
		if got := (StoreV1Binding{}).Reply(proc(tt.proc), cut, true, nil); !slices.Equal(got, items) {
			t.Errorf("%s, reduced: %+v, want %+v", tt.name, got, items)
		}
	}
}

// Streams that are cut short, have a tail or lengths that cannot be have no items, and so have
// those of other programs.
func TestBindingHostile(t *testing.T) {
	put := (&PutArgs{Id: StoreId("id"), Value: StoreValue("value")}).Append(nil)
	get := (&GetRes{Ok: GetOk{Tag: []byte("tag"), Value: []byte("value")}}).Append(nil)
	swap := (&Pair{Text: []byte("text"), Other: StoreValue("other")}).Append(nil)
	stale := []rpc.Range{{Offset: 1, Length: 1}}
	none := func(name string, b []byte, p rpc.Procedure) {
		t.Helper()
		if items, _ := (StoreV1Binding{}).Call(p, b, stale); len(items) > 0 {
			t.Errorf("%s: arguments have items %v", name, items)
		}
		for _, reduced := range []bool{false, true} {
			if items := (StoreV1Binding{}).Reply(p, b, reduced, stale); len(items) > 0 {
				t.Errorf("%s: results have items %v, reduced %v", name, items, reduced)
			}
		}
	}
	for p, b := range map[uint32][]byte{StorePut: put, StoreGet: get, StoreSwap: swap} {
		for n := range b {
			if items, _ := (StoreV1Binding{}).Call(proc(p), b[:n], stale); len(items) > 0 {
				t.Errorf("%d bytes of arguments of %d have items", n, p)
			}
			if items := (StoreV1Binding{}).Reply(proc(p), b[:n], false, stale); len(items) > 0 {
				t.Errorf("%d bytes of results of %d have items", n, p)
			}
		}
		none("a tail", append(bytes.Clone(b), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0), proc(p))
	}
	none("nothing", nil, proc(StorePut))
	none("length of 2^32-1", testutil.Hex(t, "00000000 ffffffff 00000000"), proc(StorePut))
	none("length of 2^32-1", testutil.Hex(t, "00000000 00000000 ffffffff 00000000"), proc(StoreGet))
	none("length beyond the limit", testutil.Hex(t, "00000000 00100001 00000000"), proc(StorePut))
	none("option that is no bool", testutil.Hex(t, "00000000 00000000 00000002 00000000"), proc(StoreSwap))
	for _, p := range []rpc.Procedure{
		{Prog: StoreProg + 1, Vers: StoreV1, Proc: StorePut}, {Prog: StoreProg, Vers: StoreV2, Proc: StorePut},
		{Prog: StoreProg, Vers: StoreV1, Proc: 99}, {},
	} {
		none(fmt.Sprintf("%+v", p), put, p)
	}
}

func TestBindingBounds(t *testing.T) {
	bounds := func(p uint32, args message) rpc.ReplyBounds {
		var b []byte
		if args != nil {
			b = args.Append(nil)
		}
		_, r := StoreV1Binding{}.Call(proc(p), b, nil)
		return r
	}
	get := func(n int) rpc.ReplyBounds {
		return rpc.ReplyBounds{MaxResults: 4 + 20 + 4 + 4, Items: [4]int{n}, NumItems: 1}
	}
	for _, tt := range []struct {
		name      string
		got, want rpc.ReplyBounds
	}{
		{"sizes of types", bounds(StorePut, nil), rpc.ReplyBounds{MaxResults: 12}},
		{"void", bounds(StoreClear, nil), rpc.ReplyBounds{}},
		{"no such procedure", bounds(99, nil), rpc.ReplyBounds{}},
		{"no limit", bounds(StoreName, nil), rpc.ReplyBounds{MaxResults: 4 + 65536}},
		{"item with a count", bounds(StoreGet, &GetArgs{Count: 5}), get(8)},
		{"count of 2^32-1", bounds(StoreGet, &GetArgs{Count: 1<<32 - 1}), get(16 << 20)},
		{"arguments that do not decode", bounds(StoreGet, &StoreId{1}), rpc.ReplyBounds{MaxResults: 32}},
		{"list with a count", bounds(StoreList, &ListArgs{Count: 1001}), rpc.ReplyBounds{MaxResults: 8 + 1004}},
		{"items with a number and a limit", bounds(StoreSwap, nil),
			rpc.ReplyBounds{MaxResults: 24, Items: [4]int{65536, MaxValue}, NumItems: 2}},
		{"number for what is no item here", bounds(StoreCopy, nil),
			rpc.ReplyBounds{MaxResults: 24 + 65536, Items: [4]int{MaxValue}, NumItems: 1}},
	} {
		if tt.got != tt.want {
			t.Errorf("%s: %+v, want %+v", tt.name, tt.got, tt.want)
		}
	}
}

func TestIdempotent(t *testing.T) {
	program := StoreV1Program(UnimplementedStoreV1Server{})
	for p, want := range map[uint32]bool{StoreGet: true, StoreSwap: true, StorePut: false, StoreClear: false, 99: false} {
		if program.Idempotent(StoreV1, p) != want || program.Idempotent(StoreV1+1, p) || program.Binding.(rpc.Idempotence).Idempotent(proc(p)) != want {
			t.Errorf("procedure %d: idempotent is not %v", p, want)
		}
	}
	for p, want := range map[uint32]bool{StoreCount: true, StoreEcho: true, StoreGet: false} {
		if program.Inline(StoreV1, p) != want {
			t.Errorf("procedure %d: inline is not %v", p, want)
		}
	}
}

func TestBindingAllocs(t *testing.T) {
	put := (&PutArgs{Id: StoreId("id"), Value: StoreValue("value")}).Append(nil)
	swap := (&Pair{Text: []byte("text"), Mark: &StoreToken{1}, Other: StoreValue("other")}).Append(nil)
	items := make([]rpc.Range, 0, 4)
	if n := testing.AllocsPerRun(100, func() {
		items, _ = StoreV1Binding{}.Call(proc(StorePut), put, items)
		items, _ = StoreV1Binding{}.Call(proc(StoreSwap), swap, items)
		items = StoreV1Binding{}.Reply(proc(StoreSwap), swap, false, items)
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

// For any message, ranges lie inside it, in ascending order, do not overlap, and each is an opaque
// item. A message that decodes has the items that it should.
func FuzzBinding(f *testing.F) {
	f.Add(StorePut, (&PutArgs{Id: StoreId("id"), Value: StoreValue("value"), Flags: 9}).Append(nil))
	f.Add(StoreGet, (&GetRes{Ok: GetOk{Tag: []byte("tag"), Value: []byte("value"), Eof: true}}).Append(nil))
	f.Add(StoreGet, (&GetArgs{Id: StoreId("id"), Count: 1<<32 - 1}).Append(nil))
	f.Add(StoreSwap, (&Pair{Number: 5, Text: []byte("text"), Mark: &StoreToken{1}, Other: StoreValue("other")}).Append(nil))
	f.Add(StoreCopy, (&Pair{Text: []byte("text"), Other: StoreValue("other")}).Append(nil))
	f.Add(StoreList, (&ListArgs{Count: 1 << 31}).Append(nil))
	f.Add(uint32(99), []byte(nil))
	f.Fuzz(func(t *testing.T, p uint32, b []byte) {
		before := bytes.Clone(b)
		args, bounds := StoreV1Binding{}.Call(proc(p), b, nil)
		results := StoreV1Binding{}.Reply(proc(p), b, false, nil)
		for _, items := range [][]rpc.Range{args, results} {
			end := 0
			for _, r := range items {
				if r.Offset < end+xdr.Unit || r.Offset%xdr.Unit != 0 || r.Length < 0 || r.End() > len(b) {
					t.Fatalf("range %+v in a stream of %d bytes", r, len(b))
				}
				if n, _ := xdr.ConsumeUint32(b[r.Offset-xdr.Unit:]); int(n) != r.Length {
					t.Fatalf("range %+v behind length %d", r, n)
				}
				end = r.End()
			}
		}
		end := 0
		for _, r := range (StoreV1Binding{}).Reply(proc(p), b, true, nil) {
			if r.Offset < end+xdr.Unit || r.Offset > len(b) || r.Length < 0 || r.End() < 0 {
				t.Fatalf("range %+v in a reduced stream of %d bytes", r, len(b))
			}
			end = r.Offset
		}
		if bounds.MaxResults < 0 || bounds.MaxResults > 17<<20 || bounds.NumItems < 0 || bounds.NumItems > 2 ||
			bounds.Items[0] < 0 || bounds.Items[0] > 16<<20 {
			t.Fatalf("bounds %+v", bounds)
		}
		d := xdr.NewDecoder(b)
		var want, got []string
		switch p {
		case StorePut:
			var v PutArgs
			v.Decode(&d)
			want, got = []string{string(v.Value)}, in(b, args)
		case StoreGet:
			var v GetRes
			if v.Decode(&d); v.Status == StoreOk {
				want = []string{string(v.Ok.Value)}
			}
			got = in(b, results)
		case StoreSwap:
			var v Pair
			v.Decode(&d)
			want, got = []string{string(v.Text), string(v.Other)}, in(b, results)
		default:
			return
		}
		if d.End() == nil && !slices.Equal(got, want) {
			t.Fatalf("items %q, want %q", got, want)
		}
		if !bytes.Equal(b, before) {
			t.Fatal("the stream was changed")
		}
	})
}
