package plan

import (
	"math"
	"slices"
	"testing"

	"github.com/rpcrdma/rpcrdma/proto/rpcrdma"
)

func TestPlaceReply(t *testing.T) {
	const header, inline = 24, 1024
	for _, tt := range []struct {
		name    string
		r       Reply
		items   int // bytes that are not in write chunks
		want    ReplyKind
		results int
	}{
		{"V1-5.2-6 a reply as long as the threshold goes inline, and the reply chunk is not used", Reply{Transport: 52, ReplyChunk: true}, 0, ReplyInline, inline - 52 - header},
		{"V1-5.2-2 a reply 4 bytes longer goes to the reply chunk", Reply{Transport: 52, ReplyChunk: true}, 0, ReplyChunk, inline - 52 - header + 4},
		{"V1-5.2-2 items that have no write chunk count", Reply{Transport: 52, ReplyChunk: true}, 4, ReplyChunk, inline - 52 - header},
		{"V1-5.2-2 a transport header as long as the threshold can return the reply chunk", Reply{Transport: 1024, ReplyChunk: true}, 0, ReplyChunk, 4},
		{"V1-3.4-7 a transport header that is longer cannot", Reply{Transport: 1028, ReplyChunk: true}, 0, ReplyTooLong, 4},
		{"V1-3.4-7 without a reply chunk it goes nowhere", Reply{Transport: 28}, 0, ReplyTooLong, 5000},
		{"V1-5.2-4 without a reply chunk it is lent, where that is allowed", Reply{Transport: 28, Lends: true}, 0, ReplyLent, 5000},
		{"V1-5.2-4 with a reply chunk nothing is lent", Reply{Transport: 52, ReplyChunk: true, Lends: true}, 0, ReplyChunk, 5000},
		{"V1-3.4-5 what fits inline is not lent", Reply{Transport: 28, Lends: true}, 0, ReplyInline, 500},
	} {
		t.Run(tt.name, func(t *testing.T) {
			tt.r.Header, tt.r.Results, tt.r.Inline = header, tt.results, inline
			if got := tt.r.Place(tt.items); got != tt.want {
				t.Errorf("%v, want %v", got, tt.want)
			}
		})
	}
	for _, tt := range []struct {
		name                string
		writes, items, want int
	}{
		{"V1-3.6-1 as many write chunks as items", 2, 2, 2},
		{"V1-3.4-16 more write chunks than items", 3, 2, 2},
		{"V1-3.4-13 items without a write chunk are the last", 1, 2, 1},
		{"V1-3.4-5 no write chunk", 0, 2, 0},
		{"no item", 2, 0, 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if got := (&Reply{Writes: tt.writes}).Moved(tt.items); got != tt.want {
				t.Errorf("%d items go to write chunks, want %d", got, tt.want)
			}
		})
	}
}

func TestLend(t *testing.T) {
	const header, inline = 24, 1024
	for _, tt := range []struct {
		name               string
		transport, results int
		n, moved           int
		want               LentKind
	}{
		{"V1-3.4-5 an item goes to a read chunk, and the rest fits just so", 28, inline - 28 - 24 - header, 1, 0, LentItems},
		{"V1-5.1-4 the rest is 4 bytes too long", 28, inline - 28 - 24 - header + 4, 1, 0, LentWhole},
		{"V1-3.4-5 two items, two entries", 28, inline - 28 - 48 - header, 2, 0, LentItems},
		{"V1-5.1-4 the second entry does not fit", 28, inline - 28 - 48 - header + 4, 2, 0, LentWhole},
		{"V1-5.1-4 no item", 28, 5000, 0, 0, LentWhole},
		{"V1-5.1-4 one item of two has been written", 52, 100, 2, 1, LentWhole},
		{"V1-5.1-4 the entry of the position-zero chunk fits just so", inline - 24, 100, 1, 0, LentWhole},
		{"V1-3.4-7 not even that fits", inline - 20, 100, 1, 0, LentNowhere},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := Reply{Transport: tt.transport, Header: header, Results: tt.results, Inline: inline, Lends: true}
			if got := r.Lend(tt.n, tt.moved); got != tt.want {
				t.Errorf("%v, want %v", got, tt.want)
			}
		})
	}
}

// chunk has segments of the given lengths, each with a handle and an offset of its own.
func chunk(lens ...uint32) (c rpcrdma.WriteChunk) {
	for i, n := range lens {
		c = append(c, rpcrdma.Segment{Handle: uint32(i + 1), Length: n, Offset: uint64(i+1) << 40})
	}
	return c
}

func TestInflate(t *testing.T) {
	for _, tt := range []struct {
		name              string
		returned, offered rpcrdma.WriteChunk
		n                 int
		want              rpcrdma.WriteChunk
	}{
		{"V1-3.7-6 the length is rounded up", chunk(5), chunk(100), 5, chunk(8)},
		{"V1-3.7-6 a multiple of 4 stays", chunk(8), chunk(100), 8, chunk(8)},
		{"V1-3.7-6 no data, no padding", chunk(0), chunk(100), 0, chunk(0)},
		{"V1-3.7-6 the last segment used is the longer one", chunk(100, 5, 0), chunk(100, 100, 100), 105, chunk(100, 8, 0)},
		{"V1-3.7-6 all segments together make the padding", chunk(99, 1), chunk(99, 100), 100, chunk(99, 1)},
		{"CTX-8166-3 a segment that is full stays", chunk(5), chunk(5), 5, chunk(5)},
		{"CTX-8166-3 a segment that is nearly full is filled", chunk(5), chunk(7), 5, chunk(7)},
		{"V1-2-1 nearly the longest segment", chunk(math.MaxUint32 - 6), chunk(math.MaxUint32), 1, chunk(math.MaxUint32 - 3)},
		{"V1-2-1 the sum of length and padding does not wrap", chunk(math.MaxUint32 - 1), chunk(math.MaxUint32), 2, chunk(math.MaxUint32)},
		{"a chunk without segments", nil, nil, 5, nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if Inflate(tt.returned, tt.offered, tt.n); !slices.Equal(tt.returned, tt.want) {
				t.Errorf("%v, want %v", tt.returned, tt.want)
			}
		})
	}
}

func TestReturned(t *testing.T) {
	offered := chunk(100, 50)
	handle, offset := chunk(1, 1), chunk(1, 1)
	handle[1].Handle++
	offset[1].Offset++
	for _, tt := range []struct {
		name         string
		got, offered rpcrdma.WriteChunk
		n            int
		ok           bool
	}{
		{"V1-3.6-2 V1-3.6-3 the lengths written are added", chunk(100, 20), offered, 120, true},
		{"V1-3.4-16 all of it is used", chunk(100, 50), offered, 150, true},
		{"V1-3.4-16 nothing is used", chunk(0, 0), offered, 0, true},
		{"V1-5.2-6 an unused chunk has lost its segments", nil, offered, 0, true},
		{"V1-3.6-2 a segment is missing", chunk(100), offered, 0, false},
		{"V1-3.6-2 there is one more", chunk(100, 50, 1), offered, 0, false},
		{"V1-3.6-2 another handle", handle, offered, 0, false},
		{"V1-3.6-2 another offset", offset, offered, 0, false},
		{"V1-3.7-6 the length includes the padding", chunk(100, 52), offered, 152, true},
		{"V1-3.6-2 the length is more than that", chunk(100, 53), offered, 0, false},
		{"V1-3.6-2 a segment without padding is longer", chunk(101, 50), offered, 0, false},
		{"nothing was offered", chunk(1), nil, 0, false},
		{"nothing was offered, nothing returned", nil, nil, 0, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if n, ok := Returned(tt.got, tt.offered); n != tt.n || ok != tt.ok {
				t.Errorf("%d, %v, want %d, %v", n, ok, tt.n, tt.ok)
			}
		})
	}
	t.Run("V1-5.2-3 before anything is written all lengths are zero, and the offer stays", func(t *testing.T) {
		got := Unused(nil, offered)
		if n, ok := Returned(got, offered); n != 0 || !ok || len(got) != 2 || !slices.Equal(offered, chunk(100, 50)) {
			t.Errorf("%v of %v", got, offered)
		}
	})
}

func TestOnlyHandle(t *testing.T) {
	seg := func(h uint32) rpcrdma.Segment { return rpcrdma.Segment{Handle: h, Length: 8} }
	read := func(hs ...uint32) (l []rpcrdma.ReadSegment) {
		for _, h := range hs {
			l = append(l, rpcrdma.ReadSegment{Segment: seg(h)})
		}
		return l
	}
	for _, tt := range []struct {
		name   string
		h      rpcrdma.Header
		handle uint32
		ok     bool
	}{
		{"PVT-4.1-4 no chunk", rpcrdma.Header{}, 0, false},
		{"PVT-3.2-1 one read segment", rpcrdma.Header{Reads: read(7)}, 7, true},
		{"PVT-3.2-1 one write segment", rpcrdma.Header{Writes: []rpcrdma.WriteChunk{{seg(7)}}}, 7, true},
		{"PVT-3.2-1 a reply chunk", rpcrdma.Header{Reply: rpcrdma.WriteChunk{seg(7)}}, 7, true},
		{"V1-2-1 a handle may be zero", rpcrdma.Header{Reply: rpcrdma.WriteChunk{seg(0)}}, 0, true},
		{"PVT-3.2-1 one handle in all lists", rpcrdma.Header{Reads: read(7, 7), Writes: []rpcrdma.WriteChunk{{seg(7)}, {}, {seg(7), seg(7)}}, Reply: rpcrdma.WriteChunk{seg(7)}}, 7, true},
		{"PVT-3.2-1 another in the read list", rpcrdma.Header{Reads: read(7, 8)}, 0, false},
		{"PVT-3.2-1 another in a write chunk", rpcrdma.Header{Reads: read(7), Writes: []rpcrdma.WriteChunk{{seg(7), seg(8)}}}, 0, false},
		{"PVT-3.2-1 another in the reply chunk", rpcrdma.Header{Reads: read(7), Reply: rpcrdma.WriteChunk{seg(8)}}, 0, false},
		{"PVT-3.2-1 another, after zero", rpcrdma.Header{Reads: read(0, 8)}, 0, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if handle, ok := OnlyHandle(&tt.h); handle != tt.handle || ok != tt.ok {
				t.Errorf("%d, %v, want %d, %v", handle, ok, tt.handle, tt.ok)
			}
		})
	}
}
