//go:build generated

package xdr

import (
	"testing"

	"google.golang.org/protobuf/proto"

	"github.com/rpcrdma/rpcrdma/bench/xdr/ours"
	"github.com/rpcrdma/rpcrdma/bench/xdr/protobuf"
)

// vtMessage has the methods that vtprotobuf adds to a message. It encodes backwards, from the end of
// b.
type vtMessage interface {
	proto.Message
	SizeVT() int
	MarshalToSizedBufferVT(b []byte) (int, error)
	UnmarshalVT(b []byte) error
	UnmarshalVTUnsafe(b []byte) error // keeps views of b
}

// inProtobuf returns a message of compare.x as one of compare.proto.
func inProtobuf(v message) vtMessage {
	switch v := v.(type) {
	case *ours.Attributes:
		return attributesInProtobuf(v)
	case *ours.ReadResult:
		return &protobuf.ReadResult{Stat: protobuf.Status(v.Stat), Result: &protobuf.ReadResult_Ok{Ok: &protobuf.ReadOk{
			File: attributesInProtobuf(&v.Ok.File.Attr), Count: v.Ok.Count, Eof: v.Ok.Eof, Data: v.Ok.Data,
		}}}
	case *ours.Listing:
		list := &protobuf.Listing{Verifier: v.Verifier[:], Eof: v.Eof}
		for _, e := range v.Entries {
			list.Entries = append(list.Entries, &protobuf.Entry{Number: e.Number, Name: e.Name, Handle: e.Handle})
		}
		return list
	case *ours.Mixed:
		m := &protobuf.Mixed{A: v.A, B: v.B, Numbers: v.Numbers, Pair: v.Pair[:], Text: v.Text, Odd: v.Odd[:], Attr: attributesInProtobuf(v.Attr)}
		for _, at := range v.Times {
			m.Times = append(m.Times, timeInProtobuf(at))
		}
		return m
	}
	panic("no such message")
}

func attributesInProtobuf(v *ours.Attributes) *protobuf.Attributes {
	return &protobuf.Attributes{
		Type: protobuf.FileType(v.Type), Mode: v.Mode, Links: v.Links, Owner: v.Owner, Group: v.Group,
		Size: v.Size, Used: v.Used, Device: v.Device, Number: v.Number,
		Accessed: timeInProtobuf(v.Accessed), Modified: timeInProtobuf(v.Modified),
	}
}

func timeInProtobuf(v ours.TimeStamp) *protobuf.TimeStamp {
	return &protobuf.TimeStamp{Seconds: v.Seconds, Nanoseconds: v.Nanoseconds}
}

// Both codecs of Protocol Buffers read what the other one writes.
func TestProtobuf(t *testing.T) {
	for i, v := range values() {
		want := inProtobuf(v)
		in, err := proto.Marshal(want)
		if err != nil {
			t.Fatal(err)
		}
		vt := make([]byte, want.SizeVT())
		if n, err := want.MarshalToSizedBufferVT(vt); n != len(vt) || err != nil {
			t.Fatalf("vtprotobuf encodes %d bytes of %d, %v", n, len(vt), err)
		}
		for _, tt := range []struct {
			name   string
			decode func(m vtMessage) error
		}{
			{"protobuf", func(m vtMessage) error { return proto.Unmarshal(vt, m) }},
			{"vtprotobuf", func(m vtMessage) error { return m.UnmarshalVT(in) }},
			{"vtprotobuf, unsafe", func(m vtMessage) error { return m.UnmarshalVTUnsafe(in) }},
		} {
			got := want.ProtoReflect().New().Interface().(vtMessage)
			if err := tt.decode(got); err != nil || !proto.Equal(got, want) {
				t.Errorf("%s: %s decodes %v, %v", kinds()[i].name, tt.name, got, err)
			}
		}
	}
}

// decodeProtobuf measures the decoders of Protocol Buffers. They reuse the message, but nothing that
// it refers to.
func decodeProtobuf(b *testing.B, name string, v message) {
	m := inProtobuf(v)
	in, err := proto.Marshal(m)
	if err != nil {
		b.Fatal(err)
	}
	for _, bb := range []struct {
		name   string
		decode func() error
	}{
		{"protobuf", func() error { return proto.Unmarshal(in, m) }},
		{"vtprotobuf", func() error { proto.Reset(m); return m.UnmarshalVT(in) }},
		{"vtprotobuf-unsafe", func() error { proto.Reset(m); return m.UnmarshalVTUnsafe(in) }},
	} {
		b.Run("message="+name+"/codec="+bb.name, func(b *testing.B) {
			b.SetBytes(int64(len(in)))
			b.ReportAllocs()
			defer processor(b)()
			for b.Loop() {
				if err := bb.decode(); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// encodeProtobuf measures the encoders of Protocol Buffers, into memory that is there.
func encodeProtobuf(b *testing.B, name string, v message) {
	m := inProtobuf(v)
	n := m.SizeVT()
	b.Run("message="+name+"/codec=protobuf", func(b *testing.B) {
		b.SetBytes(int64(n))
		b.ReportAllocs()
		defer processor(b)()
		var out []byte
		for b.Loop() {
			var err error
			if out, err = (proto.MarshalOptions{}).MarshalAppend(out[:0], m); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("message="+name+"/codec=vtprotobuf", func(b *testing.B) {
		b.SetBytes(int64(n))
		b.ReportAllocs()
		defer processor(b)()
		out := make([]byte, n)
		for b.Loop() {
			if _, err := m.MarshalToSizedBufferVT(out[:m.SizeVT()]); err != nil {
				b.Fatal(err)
			}
		}
	})
}
