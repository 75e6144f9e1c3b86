package pieces

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"flag"
	"io"
	"maps"
	"net"
	"slices"
	"sync"
	"testing"

	"github.com/rpcrdma/rpcrdma/internal/testing/rdmatest"
	"github.com/rpcrdma/rpcrdma/internal/testing/testbed"
	"github.com/rpcrdma/rpcrdma/proto/oncrpc"
	"github.com/rpcrdma/rpcrdma/proto/xdr"
	"github.com/rpcrdma/rpcrdma/rpc"
	"github.com/rpcrdma/rpcrdma/transport"
)

// With more than memory has:
//
//	go test ./rpc/pieces -run TestTransport -object 10737418240 -timeout 1h
var objectSize = flag.Int64("object", 16<<20+5, "`bytes` of the object that TestTransport moves each way")

// The program of TestTransport reads and writes one object, which it does not keep.
const (
	objectProgram = 0x20000079
	procRead      = 1 // opaque (unsigned hyper offset, unsigned int count)
	procWrite     = 2 // void (unsigned hyper offset, opaque data)
)

// fill makes b the part of the object at off, which is a multiple of 8.
func fill(b []byte, off int64) {
	var word [8]byte
	for i := 0; i < len(b); i += 8 {
		binary.LittleEndian.PutUint64(word[:], uint64(off+int64(i))*0x9E3779B97F4A7C15)
		copy(b[i:], word[:])
	}
}

// An object is generated when it is read. What is written to it is checked: each piece by itself, as
// pieces arrive in any order.
type object struct {
	size int64

	mu     sync.Mutex
	pieces map[int64]piece
}

type piece struct {
	n   int
	sum [sha256.Size]byte
}

func (o *object) ServeRPC(_ context.Context, req *rpc.Request, res *rpc.Response) {
	d := req.Decoder()
	off := int64(d.Uint64())
	switch req.Proc {
	case procRead:
		n := min(int64(d.Uint32()), max(o.size-off, 0))
		data := res.Alloc(int(n))
		if d.End() != nil || int64(len(data)) < n {
			res.Fail(oncrpc.SystemErr)
			return
		}
		fill(data, off)
		res.AddItem(data, nil)
	case procWrite:
		data := d.Opaque(1 << 30)
		if d.End() != nil {
			res.Fail(oncrpc.GarbageArgs)
			return
		}
		p := piece{len(data), sha256.Sum256(data)}
		o.mu.Lock()
		o.pieces[off] = p
		o.mu.Unlock()
	}
}

// An items is the Binding of the program: data of both procedures may be chunks.
type items struct{}

func (items) Call(p rpc.Procedure, args []byte, list []rpc.Range) ([]rpc.Range, rpc.ReplyBounds) {
	b := rpc.ReplyBounds{}
	if p.Proc == procRead && len(args) == 12 {
		b = rpc.ReplyBounds{MaxResults: 4, NumItems: 1, Items: [4]int{int(binary.BigEndian.Uint32(args[8:]))}}
	}
	if p.Proc == procWrite && len(args) > 12 {
		list = append(list, rpc.Range{Offset: 12, Length: int(binary.BigEndian.Uint32(args[8:]))})
	}
	return list, b
}

func (items) Reply(p rpc.Procedure, results []byte, _ bool, list []rpc.Range) []rpc.Range {
	if p.Proc == procRead && len(results) >= 4 {
		list = append(list, rpc.Range{Offset: 4, Length: int(binary.BigEndian.Uint32(results))})
	}
	return list
}

// TestTransport: an object larger than any message goes through a stream in each direction, with 16 MiB of pieces
// at the client and as much for calls at the server, over iwarp and TCP. Checksums are equal.
func TestTransport(t *testing.T) {
	t.Run("iwarp", func(t *testing.T) {
		b := testbed.Iwarp()
		b.Check(t)
		testObject(t, b)
	})
	t.Run("TCP", func(t *testing.T) { testObject(t, &testbed.Bed{Provider: transport.TCP{}, Host: "127.0.0.1"}) })
}

// TestRDMATransport is TestTransport on devices.
func TestRDMATransport(t *testing.T) {
	for _, kind := range rdmatest.Kinds() {
		t.Run(kind, func(t *testing.T) {
			b := testbed.Device(t, kind)
			b.Check(t)
			testObject(t, b)
		})
	}
}

func testObject(t *testing.T, b *testbed.Bed) {
	p, host := b.Provider, b.Host
	o := &object{size: *objectSize, pieces: make(map[int64]piece)}
	s, err := transport.NewServer(&transport.ServerConfig{Config: transport.Config{MaxMemory: 16 << 20}, MaxTotalMemory: 16 << 20})
	if err != nil {
		t.Fatal(err)
	}
	err = s.Register(rpc.Program{Number: objectProgram, Low: 1, High: 1, Handler: o, Binding: items{}, Idempotent: rpc.Every, Independent: true})
	if err != nil {
		t.Fatal(err)
	}
	l, err := s.Listen(t.Context(), p, net.JoinHostPort(host, "0"))
	if err != nil {
		t.Fatal(err)
	}
	go s.Serve(l)
	defer s.Close()
	cl, err := transport.Dial(t.Context(), p, l.Addr().String(), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer cl.Close()
	options := Options{Size: 2 << 20}

	sum := func(f func(w io.Writer)) string {
		h := sha256.New()
		f(h)
		return string(h.Sum(nil))
	}
	generated := sum(func(w io.Writer) { generate(w, *objectSize) })
	read := sum(func(w io.Writer) {
		r := NewReader(t.Context(), func(ctx context.Context, p []byte, off int64) (int, error) { return readPiece(ctx, cl, p, off) }, options)
		defer r.Close()
		if n, err := io.Copy(w, r); n != *objectSize || err != nil {
			t.Errorf("%d bytes, want %d: %v", n, *objectSize, err)
		}
	})
	if read != generated {
		t.Error("what was read is not the object")
	}

	w := NewWriter(t.Context(), func(ctx context.Context, p []byte, off int64) error { return writePiece(ctx, cl, p, off) }, options)
	generate(w, *objectSize)
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	end := int64(0)
	o.mu.Lock()
	defer o.mu.Unlock()
	buf := make([]byte, options.Size)
	for _, off := range slices.Sorted(maps.Keys(o.pieces)) {
		p := o.pieces[off]
		if fill(buf[:p.n], off); off != end || sha256.Sum256(buf[:p.n]) != p.sum {
			t.Fatalf("the piece of %d bytes at %d is not the object's", p.n, off)
		}
		end += int64(p.n)
	}
	if end != *objectSize {
		t.Errorf("%d bytes were written, want %d", end, *objectSize)
	}
	if st := cl.Stats(); p.Name() != "tcp" && (st.WriteChunk == 0 || st.ReadChunk == 0) {
		t.Errorf("no data was placed: %+v", st)
	}
}

// generate writes the object to w.
func generate(w io.Writer, size int64) {
	buf := make([]byte, 1<<20)
	for off := int64(0); off < size; off += int64(len(buf)) {
		buf = buf[:min(size-off, int64(len(buf)))]
		fill(buf, off)
		if _, err := w.Write(buf); err != nil {
			return // which Close reports
		}
	}
}

func readPiece(ctx context.Context, cl *transport.Client, p []byte, off int64) (int, error) {
	call := rpc.Call{Prog: objectProgram, Vers: 1, Proc: procRead}
	call.Args = xdr.AppendUint32(xdr.AppendUint64(nil, uint64(off)), uint32(len(p)))
	call.MaxResults = 4
	call.Receive(p)
	if err := cl.Call(ctx, &call); err != nil {
		return 0, err
	}
	d := call.Decoder()
	data := d.Item()
	return len(data), d.End()
}

func writePiece(ctx context.Context, cl *transport.Client, p []byte, off int64) error {
	call := rpc.Call{Prog: objectProgram, Vers: 1, Proc: procWrite}
	call.Args = xdr.AppendUint32(xdr.AppendUint64(nil, uint64(off)), uint32(len(p)))
	call.ReadItems = []rpc.ReadItem{{Offset: len(call.Args), Data: p}}
	return cl.Call(ctx, &call)
}
