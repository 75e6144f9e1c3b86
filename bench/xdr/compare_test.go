//go:build generated

package xdr

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"

	goxdrlib "github.com/xdrpp/goxdr/xdr"

	"github.com/rpcrdma/rpcrdma/bench"
	"github.com/rpcrdma/rpcrdma/bench/xdr/buildbarn"
	"github.com/rpcrdma/rpcrdma/bench/xdr/goxdr"
	"github.com/rpcrdma/rpcrdma/bench/xdr/ours"
	"github.com/rpcrdma/rpcrdma/proto/xdr"
)

// kind is one of the messages of compare.x, for each compiler.
type kind struct {
	name      string
	ours      func() message
	goxdr     func() goxdrlib.XdrType
	buildbarn func(io.Reader) (io.WriterTo, int64, error)
}

// message is a generated type of ours.
type message interface {
	Append(b []byte) []byte
	Decode(d *xdr.Decoder)
	Check() error
}

// kinds lists the messages.
func kinds() []kind {
	return []kind{
		{"attributes", func() message { return new(ours.Attributes) }, func() goxdrlib.XdrType { return new(goxdr.Attributes) },
			func(r io.Reader) (io.WriterTo, int64, error) {
				v := new(buildbarn.Attributes)
				n, err := v.ReadFrom(r)
				return v, n, err
			}},
		{"read", func() message { return new(ours.ReadResult) }, func() goxdrlib.XdrType { return new(goxdr.Read_result) },
			func(r io.Reader) (io.WriterTo, int64, error) {
				v, n, err := buildbarn.ReadReadResult(r)
				return v, n, err
			}},
		{"listing", func() message { return new(ours.Listing) }, func() goxdrlib.XdrType { return new(goxdr.Listing) },
			func(r io.Reader) (io.WriterTo, int64, error) {
				v := new(buildbarn.Listing)
				n, err := v.ReadFrom(r)
				return v, n, err
			}},
		{"mixed", func() message { return new(ours.Mixed) }, func() goxdrlib.XdrType { return new(goxdr.Mixed) },
			func(r io.Reader) (io.WriterTo, int64, error) {
				v := new(buildbarn.Mixed)
				n, err := v.ReadFrom(r)
				return v, n, err
			}},
	}
}

// An outcome is a codec's result for input: the bytes that it consumes, and the encoding of the
// value.
type outcome struct {
	used int
	out  []byte
	err  error
}

func (k kind) byOurs(in []byte) (o outcome) {
	v, d := k.ours(), xdr.NewDecoder(in)
	d.Strict() // as the others are
	if v.Decode(&d); d.Err() != nil {
		o.err = d.Err()
		return o
	}
	o.used, o.out = d.Offset(), v.Append(nil)
	return o
}

func (k kind) byGoxdr(in []byte) (o outcome) {
	defer func() { // its way to return errors
		if r := recover(); r != nil {
			err, ok := r.(error)
			if !ok {
				panic(r)
			}
			o = outcome{err: err}
		}
	}()
	v, r := k.goxdr(), bytes.NewReader(in)
	v.XdrMarshal(goxdrlib.XdrIn{In: r}, "")
	var out bytes.Buffer
	v.XdrMarshal(goxdrlib.XdrOut{Out: &out}, "")
	return outcome{used: len(in) - r.Len(), out: out.Bytes()}
}

func (k kind) byBuildbarn(in []byte) (o outcome) {
	r := bytes.NewReader(in)
	v, _, err := k.buildbarn(r)
	if err != nil {
		return outcome{err: err}
	}
	var out bytes.Buffer
	if _, err := v.WriteTo(&out); err != nil {
		return outcome{err: fmt.Errorf("encoding: %w", err)}
	}
	return outcome{used: len(in) - r.Len(), out: out.Bytes()}
}

// values are one message of each kind, in their order.
func values() []message {
	attr := ours.Attributes{
		Type: ours.Link, Mode: 0o644, Links: 1, Size: 1 << 40, Number: 7, Modified: ours.TimeStamp{Seconds: 1, Nanoseconds: 2},
	}
	listing := ours.Listing{Verifier: [8]byte{1, 2, 3}, Eof: true}
	for i := range 32 {
		listing.Entries = append(listing.Entries, ours.Entry{
			Number: uint64(i), Name: fmt.Sprintf("name of a file, %d", i), Handle: bytes.Repeat([]byte{byte(i)}, 32),
		})
	}
	return []message{
		&attr,
		&ours.ReadResult{Ok: ours.ReadOk{File: ours.OptionalAttributes{Follow: true, Attr: attr}, Count: 4096, Eof: true, Data: make([]byte, 4096)}},
		&listing,
		&ours.Mixed{A: -1, B: -2, Numbers: []int32{1, 2, 3, 4, 5, 6, 7}, Pair: [2]int64{3, -4}, Text: "text", Odd: [5]byte{1, 2, 3, 4, 5},
			Attr: &attr, Times: []ours.TimeStamp{{Seconds: 1}, {Nanoseconds: 2}}},
	}
}

// agree compares what the three make of one input.
func agree(t *testing.T, k kind, in []byte) {
	t.Helper()
	mine := k.byOurs(in)
	for _, other := range []struct {
		name string
		outcome
	}{{"goxdr", k.byGoxdr(in)}, {"buildbarn", k.byBuildbarn(in)}} {
		switch {
		case mine.err != nil && other.err != nil:
		case mine.err == nil && other.err == nil:
			if mine.used != other.used || !bytes.Equal(mine.out, other.out) {
				t.Errorf("%s takes %d bytes and encodes\n%x; ours takes %d and encodes\n%x", other.name, other.used, other.out, mine.used, mine.out)
			}
		case mine.err == nil && strings.Contains(other.err.Error(), "non-ASCII"):
			// RFC 4506 section 4.11 says ASCII; NFS sends UTF-8.
		case mine.err != nil && undefined(mine.err):
			// An enumerator that is not defined: RFC 4506 section 4.3 makes it an error.
		default:
			t.Errorf("error of ours: %v; of %s: %v", mine.err, other.name, other.err)
		}
	}
}

// undefined reports whether an error is about the value of an enumeration.
func undefined(err error) bool {
	var e *xdr.DecodeError
	return errors.As(err, &e) && strings.HasSuffix(e.What, "which is not defined")
}

// FuzzAgree gives the three codecs the same input.
func FuzzAgree(f *testing.F) {
	for i, v := range values() {
		f.Add(uint8(i), v.Append(nil))
	}
	f.Add(uint8(1), []byte{0, 0, 0, 2, 0, 0, 0, 0})
	f.Add(uint8(3), make([]byte, 64))
	f.Fuzz(func(t *testing.T, which uint8, in []byte) {
		list := kinds()
		agree(t, list[int(which)%len(list)], in)
	})
}

// Each message, and each of its bytes changed in turn.
func TestAgree(t *testing.T) {
	for i, k := range kinds() {
		in := values()[i].Append(nil)
		if len(in) > 1024 {
			in = in[:1024:1024] // the data of a read, and a long listing
		}
		agree(t, k, in)
		full := values()[i].Append(nil)
		if o := k.byGoxdr(full); o.err != nil || !bytes.Equal(o.out, full) {
			t.Errorf("%s: goxdr does not read what ours encodes: %v", k.name, o.err)
		}
		if o := k.byBuildbarn(full); o.err != nil || !bytes.Equal(o.out, full) {
			t.Errorf("%s: buildbarn does not read what ours encodes: %v", k.name, o.err)
		}
		for j := range min(256, len(full)) {
			for _, flip := range []byte{1, 0x80} {
				changed := bytes.Clone(full)
				changed[j] ^= flip
				agree(t, k, changed)
			}
		}
	}
}

// processor reports the CPU time of an iteration, which other programs on the machine change less
// than the time.
func processor(b *testing.B) func() {
	before := bench.ProcessorTime()
	return func() { b.ReportMetric(float64(bench.ProcessorTime()-before)/float64(b.N), "cpu-ns/op") }
}

func BenchmarkDecode(b *testing.B) {
	for i, k := range kinds() {
		in := values()[i].Append(nil)
		b.Run("message="+k.name+"/codec=ours", func(b *testing.B) {
			v := k.ours()
			b.SetBytes(int64(len(in)))
			b.ReportAllocs()
			defer processor(b)()
			var d xdr.Decoder
			for b.Loop() {
				d = xdr.NewDecoder(in)
				if v.Decode(&d); d.Err() != nil {
					b.Fatal(d.Err())
				}
			}
		})
		b.Run("message="+k.name+"/codec=goxdr", func(b *testing.B) {
			b.SetBytes(int64(len(in)))
			b.ReportAllocs()
			defer processor(b)()
			for b.Loop() {
				k.goxdr().XdrMarshal(goxdrlib.XdrIn{In: bytes.NewReader(in)}, "")
			}
		})
		b.Run("message="+k.name+"/codec=buildbarn", func(b *testing.B) {
			b.SetBytes(int64(len(in)))
			b.ReportAllocs()
			defer processor(b)()
			for b.Loop() {
				if _, _, err := k.buildbarn(bytes.NewReader(in)); err != nil {
					b.Fatal(err)
				}
			}
		})
		decodeProtobuf(b, k.name, values()[i])
	}
}

func BenchmarkEncode(b *testing.B) {
	for i, k := range kinds() {
		v := values()[i]
		in := v.Append(nil)
		theirs := k.goxdr()
		theirs.XdrMarshal(goxdrlib.XdrIn{In: bytes.NewReader(in)}, "")
		others, _, err := k.buildbarn(bytes.NewReader(in))
		if err != nil {
			b.Fatal(err)
		}
		b.Run("message="+k.name+"/codec=ours", func(b *testing.B) {
			b.SetBytes(int64(len(in)))
			b.ReportAllocs()
			defer processor(b)()
			var out []byte
			for b.Loop() {
				out = v.Append(out[:0])
			}
		})
		var out bytes.Buffer
		b.Run("message="+k.name+"/codec=goxdr", func(b *testing.B) {
			b.SetBytes(int64(len(in)))
			b.ReportAllocs()
			defer processor(b)()
			for b.Loop() {
				out.Reset()
				theirs.XdrMarshal(goxdrlib.XdrOut{Out: &out}, "")
			}
		})
		b.Run("message="+k.name+"/codec=buildbarn", func(b *testing.B) {
			b.SetBytes(int64(len(in)))
			b.ReportAllocs()
			defer processor(b)()
			for b.Loop() {
				out.Reset()
				if _, err := others.WriteTo(&out); err != nil {
					b.Fatal(err)
				}
			}
		})
		encodeProtobuf(b, k.name, v)
	}
}
