package transport_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/rpcrdma/rpcrdma/proto/oncrpc"
	"github.com/rpcrdma/rpcrdma/proto/xdr"
	"github.com/rpcrdma/rpcrdma/rpc"
	"github.com/rpcrdma/rpcrdma/transport"
)

// Calls of all shapes: several bulk arguments and several bulk results, with words between and after
// them, of any size.
//
//	arguments  words, n, n times (opaque, word), m, m sizes, words after the results, seed
//	results    n SHA-256s, m times (opaque, word), words times a word
const shapeProg = prog + 100

type shapes struct{}

func (shapes) ServeRPC(_ context.Context, req *rpc.Request, res *rpc.Response) {
	d := req.Decoder()
	for range d.Count(1<<20, 4) {
		d.Uint32()
	}
	for range d.Count(16, 8) {
		sum := sha256.Sum256(d.Opaque(1 << 30))
		res.Results = append(res.Results, sum[:]...)
		if d.Uint32() != between {
			d.Fail("not the word between two items")
		}
	}
	sizes := make([]int, d.Count(16, 4))
	for i := range sizes {
		sizes[i] = int(d.Uint32())
	}
	words, seed := d.Uint32(), d.Uint32()
	if d.End() != nil {
		res.Fail(oncrpc.GarbageArgs)
		return
	}
	for i, size := range sizes {
		b := res.Alloc(size)
		fill(b, seed+uint32(i))
		res.AddItem(b, nil)
		res.Results = xdr.AppendUint32(res.Results, between)
	}
	for i := range words {
		res.Results = xdr.AppendUint32(res.Results, i)
	}
}

const between = 0xbe73eeee

// A shape is the parts of a call, in bytes.
type shape struct {
	lead  int   // words in front of the arguments
	in    []int // bulk arguments
	out   []int // bulk results
	spare []int // what their buffers are longer; fewer than results: the others have none
	words int   // after the results
}

func (s shape) String() string {
	return fmt.Sprintf("%d words, in %v, out %v, spare %v, %d words", s.lead, s.in, s.out, s.spare, s.words)
}

// run makes a call of the shape and looks at all that comes back. Without offer the
// client names no place for the results.
func (s shape) run(cl *transport.Client, offer bool) error {
	call := rpc.Call{Prog: shapeProg, Vers: 1, Proc: 1}
	call.Args = append(xdr.AppendUint32(nil, uint32(s.lead)), make([]byte, 4*s.lead)...)
	call.Args = xdr.AppendUint32(call.Args, uint32(len(s.in)))
	for i, size := range s.in {
		data := make([]byte, size)
		fill(data, uint32(100+i))
		call.Args = xdr.AppendUint32(call.Args, uint32(size))
		call.ReadItems = append(call.ReadItems, rpc.ReadItem{Offset: len(call.Args), Data: data})
		call.Args = xdr.AppendUint32(call.Args, between)
	}
	call.Args = xdr.AppendUint32(call.Args, uint32(len(s.out)))
	most := len(s.in)*sha256.Size + 8*len(s.out) + 4*s.words
	for i, size := range s.out {
		call.Args = xdr.AppendUint32(call.Args, uint32(size))
		switch {
		case !offer:
		case i < len(s.spare) && size+s.spare[i] > 0:
			call.WriteItems = append(call.WriteItems, rpc.WriteItem{Buf: make([]byte, size+s.spare[i])})
		default:
			most += xdr.Padded(size)
		}
	}
	if offer {
		call.MaxResults = most
	}
	call.Args = xdr.AppendUint32(call.Args, uint32(s.words))
	call.Args = xdr.AppendUint32(call.Args, 7)

	if err := cl.Call(bg, &call); err != nil {
		return err
	}
	d := xdr.NewDecoder(call.Results)
	for i := range s.in {
		if want := sha256.Sum256(call.ReadItems[i].Data); !bytes.Equal(d.FixedOpaque(sha256.Size), want[:]) {
			return fmt.Errorf("argument %d arrived differently", i)
		}
	}
	for i, size := range s.out {
		want := make([]byte, size)
		fill(want, 7+uint32(i))
		var got []byte
		if i < len(call.WriteItems) && call.WriteItems[i].Chunked {
			if n := int(d.Uint32()); n != size || call.WriteItems[i].N < n || call.WriteItems[i].N > xdr.Padded(n) {
				return fmt.Errorf("result %d: %d bytes in the chunk, count %d, want %d", i, call.WriteItems[i].N, n, size)
			}
			got = call.WriteItems[i].Buf[:size]
		} else {
			got = d.Opaque(1 << 30)
		}
		if !bytes.Equal(got, want) {
			return fmt.Errorf("result %d came back differently", i)
		}
		if d.Uint32() != between {
			return fmt.Errorf("no word behind result %d", i)
		}
	}
	for i := range s.words {
		if d.Uint32() != uint32(i) {
			return fmt.Errorf("word %d came back differently", i)
		}
	}
	return d.End()
}

// randomShape picks sizes on both sides of every threshold, up to largest.
func randomShape(r *rand.Rand, largest int) (s shape) {
	size := func() int {
		switch r.IntN(6) {
		case 0:
			return 0
		case 1:
			return r.IntN(100)
		case 2:
			return 900 + r.IntN(3500)
		case 3:
			return primes[r.IntN(len(primes))]
		case 4:
			return r.IntN(largest)
		}
		return r.IntN(1 << 16)
	}
	for range r.IntN(4) {
		s.in = append(s.in, size())
	}
	for range r.IntN(4) {
		s.out = append(s.out, size())
		if len(s.spare) == len(s.out)-1 && (len(s.out) == 1 || r.IntN(4) > 0) {
			s.spare = append(s.spare, []int{0, 1, 5000}[r.IntN(3)])
		}
	}
	if r.IntN(3) == 0 {
		s.words = r.IntN(5000)
	}
	if r.IntN(4) == 0 {
		s.lead = r.IntN(5000)
	}
	// A result without a place stands after those that have one.
	for i := len(s.spare); i < len(s.out); i++ {
		s.out[i] %= 20_000
	}
	for i := range s.spare {
		if s.out[i]+s.spare[i] == 0 {
			s.spare[i] = 1
		}
	}
	return s
}

var primes = []int{2, 3, 5, 7, 1021, 4093, 4099, 65521, 65537, 131071, 524287, 1048573}

// testShapes moves random data of random sizes both ways, in calls of all shapes.
func testShapes(t *testing.T, b *bed) {
	const seed = 8166
	largest := 8 << 20
	if b.slow > 1 {
		largest = 1 << 20
	}
	const message = 64 << 20
	old := &transport.RFC5666{Align: 64, Thresh: 512, InflateLengths: true}
	for _, tt := range []struct {
		name           string
		client, server transport.Settings
	}{
		{"LinuxChunks", transport.Settings{}, transport.Settings{}},
		{"AllChunks V1-3.8-1 V1-5.1-3 V1-5.1-5", transport.Settings{PeerChunks: transport.AllChunks}, transport.Settings{}},
		{"small messages, many segments", transport.Settings{PeerChunks: transport.AllChunks, InlineSend: 4096, InlineRecv: 2048, MaxSegment: 300_000}, transport.Settings{}},
		{"RFC 5666", transport.Settings{RFC5666: old}, transport.Settings{RFC5666: old}},
		{"RFC 5666, AllChunks", transport.Settings{PeerChunks: transport.AllChunks, RFC5666: old, InlineSend: 16384}, transport.Settings{RFC5666: old, InlineRecv: 32768}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			tt.client.MaxMessage, tt.server.MaxMessage = message, message
			tt.client.Limits.ReadSegments, tt.server.Limits.ReadSegments = 2048, 2048
			w := b.start(t, &tt.server)
			cl := w.dial(t, &tt.client)
			r := rand.New(rand.NewPCG(seed, 1))
			const enough = 50 // for each shape to come up
			calls := b.count(150)
			for i := range calls {
				s := randomShape(r, largest)
				if err := s.run(cl, true); err != nil {
					t.Fatalf("call %d of %v: %v", i, s, err)
				}
			}
			st := cl.Stats()
			if calls < enough {
				return
			}
			if st.Inline == 0 || st.ReadChunk == 0 || st.WriteChunk == 0 || st.ReplyChunk == 0 || st.LongCall == 0 {
				t.Errorf("not all shapes were used: %+v", st)
			}
		})
	}
}

// testReadReplies: V1-3.5-3 V1-3.8-5 V1-3.8-6 V1-5.1-4 replies with read chunks, for which
// the client says RDMA_DONE.
func testReadReplies(t *testing.T, b *bed) {
	old := &transport.RFC5666{}
	w := b.start(t, &transport.Settings{RFC5666: old, MaxMessage: 64 << 20})
	cl := w.dial(t, &transport.Settings{RFC5666: old, MaxMessage: 64 << 20})
	r := rand.New(rand.NewPCG(5666, 1))
	for i := range b.count(100) {
		s := randomShape(r, 1<<20)
		s.spare = nil
		if err := s.run(cl, false); err != nil {
			t.Fatalf("call %d of %v: %v", i, s, err)
		}
	}
	if st := cl.Stats(); st.Done == 0 || st.Done > st.Calls {
		t.Errorf("%d RDMA_DONE for %d calls", st.Done, st.Calls)
	}
	if st := w.server.Stats(); st.Dropped > 0 {
		t.Errorf("the server has ignored %d messages", st.Dropped)
	}

	// A client of RFC 8166 gets an error instead, and its connection stays.
	plain := w.dial(t, &transport.Settings{MaxMessage: 64 << 20, Version: transport.Version1})
	long := shape{out: []int{50_000}}
	var refused *rpc.BadReplyError
	if err := long.run(plain, false); !errors.As(err, &refused) {
		t.Errorf("a client that takes no read chunks got %v", err)
	}
	if err := plain.Null(bg, prog, 1); err != nil {
		t.Error(err)
	}
}
