package rpc

import (
	"bytes"
	"errors"
	"testing"

	"github.com/rpcrdma/rpcrdma/fabric"
	"github.com/rpcrdma/rpcrdma/proto/xdr"
)

// An item is decoded in one way, whether it came in its write chunk or inline.
func TestResultDecoder(t *testing.T) {
	inline := func(data string) []byte { return xdr.AppendOpaque(nil, []byte(data)) }
	length := func(n uint32) []byte { return xdr.AppendUint32(nil, n) }
	for _, tt := range []struct {
		name    string
		results []byte
		placed  int // bytes of the write chunk; 0: it was not used
		want    string
		ok      bool
	}{
		{"inline", inline("hello"), 0, "hello", true},
		{"inline, and empty", inline(""), 0, "", true},
		{"inline, too long for Buf", inline("too long an item"), 0, "", false},
		{"in the chunk", length(5), 5, "chunk", true},
		{"in the chunk, with padding", length(5), 8, "chunk", true},
		{"in the chunk, with another length", length(4), 7, "", false},
		{"in the chunk, longer than it", length(9), 8, "", false},
		{"in the chunk, without a length", nil, 5, "", false},
	} {
		buf := make([]byte, 8)
		if tt.placed > 0 {
			copy(buf, "chunk")
		}
		call := Call{Results: append(bytes.Clone(tt.results), 0, 0, 0, 7), WriteItems: []WriteItem{{Buf: buf, Chunked: tt.placed > 0, N: tt.placed}}}
		if tt.results == nil {
			call.Results = nil
		}
		d := call.Decoder()
		data := d.Item()
		after := d.Uint32()
		if err := d.End(); (err == nil) != tt.ok || tt.ok && (string(data) != tt.want || after != 7) {
			t.Errorf("%s: %q, then %d, %v", tt.name, data, after, err)
		}
		if tt.ok && len(data) > 0 && &data[0] != &buf[0] {
			t.Errorf("%s: the data is not in Buf", tt.name)
		}
	}
	d := (&Call{Results: inline("x")}).Decoder()
	if d.Item(); d.Err() == nil {
		t.Error("a result without a WriteItem was decoded")
	}

	// Foreign memory is not written to: data is in the chunk, or an error.
	for _, tt := range []struct {
		name    string
		item    WriteItem
		results []byte
		ok      bool
	}{
		{"in the chunk", WriteItem{Chunked: true, N: 5}, length(5), true},
		{"in the chunk, longer than it", WriteItem{Chunked: true, N: 8}, length(9), false},
		{"none", WriteItem{}, inline(""), true},
		{"inline", WriteItem{}, inline("hello"), false},
	} {
		tt.item.Foreign = &fabric.Foreign{Addr: 1, Len: 8}
		d := (&Call{Results: tt.results, WriteItems: []WriteItem{tt.item}}).Decoder()
		data, err := d.Item(), d.Err()
		var foreign *ForeignError
		if data != nil || (err == nil) != tt.ok || errors.As(err, &foreign) != (tt.name == "inline") {
			t.Errorf("foreign, %s: %q, %v", tt.name, data, err)
		}
	}
}
