package plan

import (
	"bytes"
	"math"
	"slices"
	"testing"

	"github.com/rpcrdma/rpcrdma/proto/rpcrdma"
	"github.com/rpcrdma/rpcrdma/proto/xdr"
)

// The calls below have an RPC header of 40 bytes (AUTH_NONE) and, where they offer no
// chunks for the reply, a transport header of 28. With the default threshold of 1024 bytes
// that leaves 956 bytes for arguments.
const (
	head = 40
	room = rpcrdma.DefaultInline - rpcrdma.MinHeaderSize - head
)

// longest is the longest segment that a configuration can ask for.
const longest = math.MaxInt & (1<<32 - 4)

// terms are those of a connection with default thresholds.
func terms(chunks Chunks) Terms {
	return Terms{Send: rpcrdma.DefaultInline, Recv: rpcrdma.DefaultInline, Message: 1 << 20, Segment: longest, Chunks: chunks}
}

// foreign are items in foreign memory, those with these numbers.
func foreign(l []Item, numbers ...int) []Item {
	for _, i := range numbers {
		l[i].Foreign = true
	}
	return l
}

// items are of the given lengths, each after a length word of its own.
func items(lens ...int) (l []Item) {
	for i, n := range lens {
		l = append(l, Item{Offset: 4 * (i + 1), Len: n})
	}
	return l
}

func TestPlaceCall(t *testing.T) {
	const all, none = AllItems, NoItems
	linux, full := terms(OnePosition), terms(AnyChunks)
	protected := func(t Terms) Terms { t.Protected = true; return t }
	short := func(t Terms) Terms { t.Segment = 100; return t }
	pad := Padding{Align: 64, Thresh: 512}
	for _, tt := range []struct {
		name   string
		args   int
		items  []Item
		terms  Terms
		pad    Padding
		proc   rpcrdma.Proc
		chunks ItemSet
	}{
		{"V1-3.1-1 a call as long as the threshold goes inline", room, nil, linux, Padding{}, rpcrdma.ProcMsg, none},
		{"V1-4-1 V1-5.1-1 PVT-3.1-3 a call 4 bytes longer, without items, goes to a position-zero chunk", room + 4, nil, linux, Padding{}, rpcrdma.ProcNomsg, none},
		{"V1-3.1-1 an item that fits with its padding goes inline", room - 100, items(97), linux, Padding{}, rpcrdma.ProcMsg, none},
		{"V1-3.4-3 an item whose padding ends behind the threshold goes to a chunk", room - 100, items(101), linux, Padding{}, rpcrdma.ProcMsg, 0},
		{"V1-4.3-2 the read list fits just so beside the arguments", room - 24, items(1000), linux, Padding{}, rpcrdma.ProcMsg, 0},
		{"V1-4.3-2 the arguments leave 4 bytes less than the read list takes", room - 20, items(1000), linux, Padding{}, rpcrdma.ProcNomsg, none},
		{"of an empty item a chunk takes nothing", room + 4, items(0), linux, Padding{}, rpcrdma.ProcNomsg, none},
		{"an item goes to a chunk beside one that is empty", 100, items(0, 5000), full, Padding{}, rpcrdma.ProcMsg, all},

		{"V1-3.4-12 at one position the largest item goes to the chunk", 100, items(500, 600), linux, Padding{}, rpcrdma.ProcMsg, 1},
		{"V1-3.4-12 at one position the first of the largest items goes to the chunk", 100, items(600, 600), linux, Padding{}, rpcrdma.ProcMsg, 0},
		{"at one position two items that are both too long make the call long", 100, items(5000, 6000), linux, Padding{}, rpcrdma.ProcNomsg, none},
		{"V1-3.4-1 a peer that takes all gets a chunk for each", 100, items(5000, 6000), full, Padding{}, rpcrdma.ProcMsg, all},
		{"V1-3.4-1 a peer that takes all gets a chunk for each, even if one would do", 100, items(10, 6000), full, Padding{}, rpcrdma.ProcMsg, all},
		{"V1-4.3-2 two entries fit just so", room - 48, items(5000, 6000), full, Padding{}, rpcrdma.ProcMsg, all},
		{"V1-5.1-3 with long arguments, each item has a chunk beside the position-zero chunk", room - 44, items(5000, 6000), full, Padding{}, rpcrdma.ProcNomsg, all},

		{"39 segments fit beside 20 bytes", room - 936, items(3900), short(linux), Padding{}, rpcrdma.ProcMsg, 0},
		{"of one byte more the segments do not fit", room - 936, items(3901), short(linux), Padding{}, rpcrdma.ProcNomsg, none},
		{"segments of several items count together", room - 936, items(1901, 1901), short(full), Padding{}, rpcrdma.ProcNomsg, all},

		{"V1-11-1 a protected call is not taken apart", 100, items(5000), protected(linux), Padding{}, rpcrdma.ProcNomsg, none},
		{"V1-11-1 a protected call is not taken apart for a peer that takes all", 100, items(5000, 600), protected(full), Padding{}, rpcrdma.ProcNomsg, none},
		{"V1-11-1 a protected call that fits goes inline", 100, items(500), protected(full), Padding{}, rpcrdma.ProcMsg, none},

		{"a foreign item goes to a chunk, however short", 100, foreign(items(8), 0), linux, Padding{}, rpcrdma.ProcMsg, 0},
		{"at one position a foreign item goes before one that is larger", 100, foreign(items(500, 8), 1), linux, Padding{}, rpcrdma.ProcMsg, 1},
		{"two foreign items at one position make the call long", 100, foreign(items(8, 8), 0, 1), linux, Padding{}, rpcrdma.ProcNomsg, none},
		{"two foreign items have a chunk each where that may be", 100, foreign(items(8, 8), 0, 1), full, Padding{}, rpcrdma.ProcMsg, all},
		{"a foreign item is not padded", 100, foreign(items(512), 0), linux, pad, rpcrdma.ProcMsg, 0},
		{"V1-3.9-2 an item of rdma_thresh bytes is padded", 100, items(512), linux, pad, rpcrdma.ProcMsgp, none},
		{"V1-3.9-1 a shorter item is not padded", 100, items(511), linux, pad, rpcrdma.ProcMsg, none},
		{"V1-4.1-9 the padding and its two words fit just so", room - 512 - 63 - 8 - 1, items(512), linux, pad, rpcrdma.ProcMsgp, none},
		{"V1-4.1-9 a call whose padding may not fit has none", room - 512 - 63 - 8 + 3, items(512), linux, pad, rpcrdma.ProcMsg, none},
		{"a call with chunks has no padding", 100, items(5000), linux, pad, rpcrdma.ProcMsg, 0},
		{"V1-3.9-1 a call with arguments of rdma_thresh bytes has no padding", 512, items(512 - 256), linux, Padding{64, 256}, rpcrdma.ProcMsg, none},

		{"BIDI-5.3-2 without chunks a call as long as the threshold is sent", room, nil, terms(NoChunks), Padding{}, rpcrdma.ProcMsg, none},
		{"CCP-6.2-9 without read chunks a call as long as the threshold is sent", room - 500, items(500), terms(NoReads), Padding{}, rpcrdma.ProcMsg, none},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c := Call{Transport: rpcrdma.MinHeaderSize, Header: head, Args: tt.args, Items: tt.items}
			got, problem := PlaceCall(&c, &tt.terms, tt.pad)
			if want := (Placement{tt.proc, tt.chunks}); problem != nil || got != want {
				t.Errorf("placed as %v, %v, want %v", got, problem, want)
			}
		})
	}

	t.Run("V1-5.2-1 the chunks offered for the reply take their part of the threshold", func(t *testing.T) {
		c := Call{Transport: rpcrdma.MinHeaderSize + rpcrdma.WriteChunkSize(1), Header: head, Args: room - rpcrdma.WriteChunkSize(1)}
		if p, _ := PlaceCall(&c, &linux, Padding{}); p.Proc != rpcrdma.ProcMsg {
			t.Errorf("at the threshold: %v", p)
		}
		c.Args += 4
		if p, _ := PlaceCall(&c, &linux, Padding{}); p.Proc != rpcrdma.ProcNomsg {
			t.Errorf("4 bytes more: %v", p)
		}
	})

	message := linux
	message.Message = 6000
	for _, tt := range []struct {
		name  string
		args  int
		items []Item
		terms Terms
		want  *SizeProblem
	}{
		{"a message of the most bytes is sent", 960, items(4997), message, nil},
		{"a message of 4 bytes more is not", 960, items(5001), message, &SizeProblem{"the call message, which Config.MaxMessage bounds,", 6004, 6000}},
		{"a message as long as an int can say is not", 8, items(math.MaxInt - 63), message, &SizeProblem{"the call message, which Config.MaxMessage bounds,", math.MaxInt - 15, 6000}},
		{"BIDI-4.2-1 BIDI-5.3-2 without chunks the threshold is the limit", room + 4, nil, terms(NoChunks), &SizeProblem{"the call message, which may have no chunks,", 1028, 1024}},
		{"BIDI-5.3-2 without chunks items do not help", 100, items(1000), terms(NoChunks), &SizeProblem{"the call message, which may have no chunks,", 1168, 1024}},
		{"CCP-6.2-9 without read chunks the threshold is the limit", 100, items(1000), terms(NoReads), &SizeProblem{"the call message, which may have no read chunks,", 1168, 1024}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c := Call{Transport: rpcrdma.MinHeaderSize, Header: head, Args: tt.args, Items: tt.items}
			_, got := PlaceCall(&c, &tt.terms, Padding{})
			if (got == nil) != (tt.want == nil) || got != nil && *got != *tt.want {
				t.Errorf("%+v, want %+v", got, tt.want)
			}
		})
	}
}

func TestPadding(t *testing.T) {
	for _, tt := range []struct {
		name  string
		pad   Padding
		args  int
		items []Item
		want  int
	}{
		{"no padding is asked for", Padding{}, 100, items(500), 0},
		{"V1-3.9-2 an alignment of 1 takes none", Padding{1, 64}, 60, items(500), 0},
		{"V1-3.9-2 an alignment of 2 takes one byte", Padding{2, 64}, 60, items(500), 1},
		{"a call without items has none", Padding{64, 64}, 60, nil, 0},
		{"V1-3.9-1 an item below the threshold", Padding{64, 64}, 60, items(63), 0},
		{"V1-3.9-1 an item at the threshold", Padding{64, 64}, 60, items(64), 63},
		{"V1-3.9-2 V1-3.9-4 of three items two are long enough", Padding{4096, 64}, 60, items(64, 63, 1000), 2 * 4095},
		{"V1-3.9-4 arguments below the threshold", Padding{64, 64}, 63, items(64), 63},
		{"V1-3.9-4 arguments at the threshold might be padded by mistake", Padding{64, 64}, 64, items(64), 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c := Call{Header: head, Args: tt.args, Items: tt.items}
			if got := tt.pad.Most(&c); got != tt.want {
				t.Errorf("%d bytes, want %d", got, tt.want)
			}
			if c.Header = 0; tt.pad.Most(&c) != 0 {
				t.Error("a call whose header is not known apart has padding")
			}
		})
	}
}

func TestOrdered(t *testing.T) {
	for _, tt := range []struct {
		name  string
		items []Item
		want  bool
	}{
		{"no items", nil, true},
		{"one at the end", []Item{{Offset: 20, Len: 1}}, true},
		{"one behind the end", []Item{{Offset: 21, Len: 1}}, false},
		{"one in front of the start", []Item{{Offset: -4, Len: 1}}, false},
		{"two at one place", []Item{{Offset: 8, Len: 1}, {Offset: 8, Len: 1}}, true},
		{"two in the wrong order", []Item{{Offset: 8, Len: 1}, {Offset: 4, Len: 1}}, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if c := (Call{Header: head, Args: 20, Items: tt.items}); c.Ordered() != tt.want {
				t.Errorf("not %v", tt.want)
			}
		})
	}
}

func TestStream(t *testing.T) {
	c := Call{Header: head, Args: 20, Items: items(5, 8, 6)}
	for _, tt := range []struct {
		name   string
		chunks ItemSet
		size   int
		padded bool
	}{
		{"V1-5.1-1 items in the position-zero chunk have their padding in the stream", NoItems, 60 + 3 + 0 + 2, true},
		{"V1-3.7-2 items in chunks of their own have none", AllItems, 60, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if size, padded := c.Stream(Placement{rpcrdma.ProcNomsg, tt.chunks}); size != tt.size || padded != tt.padded {
				t.Errorf("%d bytes, padded %v, want %d, %v", size, padded, tt.size, tt.padded)
			}
		})
	}
}

func TestPieces(t *testing.T) {
	const msg, nomsg = rpcrdma.ProcMsg, rpcrdma.ProcNomsg
	for _, tt := range []struct {
		name  string
		call  Call
		place Placement
		want  []Piece
	}{
		{"V1-3.1-1 inline", Call{0, head, 20, items(8)}, Placement{msg, NoItems}, nil},
		{"V1-3.4-11 V1-3.4-8 an item stands behind its length word", Call{0, head, 20, items(5)}, Placement{msg, 0}, []Piece{{44, 0, 0, 0}}},
		{"V1-3.4-11 V1-3.7-2 an item inline counts for the position, with its padding", Call{0, head, 20, items(5, 9)}, Placement{msg, 1}, []Piece{{48 + 8, 1, 0, 0}}},
		{"V1-3.4-11 V1-3.7-2 an item in a chunk counts for the position, with its padding", Call{0, head, 20, items(5, 9)}, Placement{msg, AllItems}, []Piece{{44, 0, 0, 0}, {56, 1, 0, 0}}},
		{"an empty item has no chunk", Call{0, head, 20, items(0, 9)}, Placement{msg, AllItems}, []Piece{{48, 1, 0, 0}}},
		{"the header is part of the arguments", Call{0, 0, 60, []Item{{Offset: 44, Len: 5}}}, Placement{msg, 0}, []Piece{{44, 0, 0, 0}}},
		{"V1-5.1-1 a long call without items", Call{0, head, 20, nil}, Placement{nomsg, NoItems}, []Piece{{0, -1, 0, 60}}},
		{"V1-3.4-12 a long call at one position: items and what lies between them, with their padding", Call{0, head, 20, items(5, 8)}, Placement{nomsg, NoItems},
			[]Piece{{0, -1, 0, 44}, {0, 0, 0, 0}, {0, -1, 44, 51}, {0, 1, 0, 0}, {0, -1, 51, 63}}},
		{"an empty item does not part the stream", Call{0, head, 20, items(0, 8)}, Placement{nomsg, NoItems},
			[]Piece{{0, -1, 0, 48}, {0, 1, 0, 0}, {0, -1, 48, 60}}},
		{"behind an item at the end nothing is left", Call{0, head, 4, items(8)}, Placement{nomsg, NoItems}, []Piece{{0, -1, 0, 44}, {0, 0, 0, 0}}},
		{"V1-5.1-3 a long call with chunks for the items", Call{0, head, 20, items(5, 8)}, Placement{nomsg, AllItems},
			[]Piece{{0, -1, 0, 60}, {44, 0, 0, 0}, {56, 1, 0, 0}}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if got := tt.call.Pieces(nil, tt.place); !slices.Equal(got, tt.want) {
				t.Errorf("%v, want %v", got, tt.want)
			}
		})
	}
}

// FuzzCall places a call of any items and puts it together again as a receiver does: what
// stays inline and the pieces are exactly the message, each item once, and RDMA_MSG is not
// longer than the threshold (V1-3.4-3, V1-3.4-11, V1-3.4-12, V1-4-1, V1-5.1-3).
func FuzzCall(f *testing.F) {
	f.Add(false, false, uint16(0), uint16(800), []byte{4, 60, 0, 0, 0, 9})
	f.Add(true, false, uint16(7), uint16(950), []byte{0, 255, 1, 201, 0, 0})
	f.Add(true, true, uint16(100), uint16(20), []byte{1, 250, 1, 250, 1, 250})
	f.Add(false, false, uint16(100), uint16(1000), []byte{1, 250, 1, 250, 1, 250})
	f.Fuzz(func(t *testing.T, full, protected bool, segment, args uint16, data []byte) {
		tm := terms(OnePosition)
		if full {
			tm.Chunks = AnyChunks
		}
		if tm.Protected = protected; segment > 0 {
			tm.Segment = int(segment)
		}
		// Two bytes an item: words in front of it, and a length of up to 2295 bytes.
		c := Call{Transport: rpcrdma.MinHeaderSize, Header: head, Args: int(args) &^ 3}
		for at := 0; len(data) >= 2 && len(c.Items) < 50; data = data[2:] {
			at += 4 * int(data[0]%8)
			if at > c.Args {
				break
			}
			c.Items = append(c.Items, Item{Offset: at, Len: 9 * int(data[1])})
		}
		p, problem := PlaceCall(&c, &tm, Padding{})
		if problem != nil {
			t.Fatal(problem)
		}
		pieces := c.Pieces(nil, p)
		want, inline, stream, bodies := encode(&c, p)
		got, entries := decode(t, pieces, inline, stream, bodies, tm.Segment)
		if !bytes.Equal(got, want) {
			t.Errorf("%v with %v as %v: %v", c, p, pieces, got)
		}
		if n := c.Transport + len(inline) + 24*entries; p.Proc == rpcrdma.ProcMsg && n > tm.Send {
			t.Errorf("%v as %v is %d bytes long", c, p, n)
		}
	})
}

// encode returns a call as a whole, what of it stays inline, and the stream of a long one.
// Every byte but padding is unlike its neighbors.
func encode(c *Call, p Placement) (msg, inline, stream []byte, bodies [][]byte) {
	n := byte(0)
	next := func(size int) []byte {
		b := make([]byte, size)
		for i := range b {
			n = n%251 + 1
			b[i] = n
		}
		return b
	}
	base := next(c.Header + c.Args)
	_, padded := c.Stream(p)
	from := 0
	for i, it := range c.Items {
		to := c.Header + it.Offset
		body := next(it.Len)
		bodies = append(bodies, body)
		pad := make([]byte, xdr.Pad(it.Len))
		msg = slices.Concat(msg, base[from:to], body, pad)
		inline, stream = append(inline, base[from:to]...), append(stream, base[from:to]...)
		if !p.Chunks.Has(i) {
			inline = slices.Concat(inline, body, pad)
		}
		if padded {
			stream = append(stream, pad...)
		}
		from = to
	}
	return append(msg, base[from:]...), append(inline, base[from:]...), append(stream, base[from:]...), bodies
}

// decode puts a call together from its pieces, and returns how many entries its read list
// has.
func decode(t *testing.T, pieces []Piece, inline, stream []byte, bodies [][]byte, segment int) (msg []byte, entries int) {
	data := func(p Piece) []byte {
		if p.Item < 0 {
			return stream[p.From:p.To]
		}
		return bodies[p.Item]
	}
	base := inline
	if len(pieces) > 0 && pieces[0].Position == 0 {
		base = nil
	}
	for _, p := range pieces {
		b := data(p)
		for left := len(b); left > 0; left -= segment {
			entries++
		}
		if p.Position == 0 {
			base = append(base, b...)
			continue
		}
		n := p.Position - len(msg)
		if n < 0 || n > len(base) {
			t.Fatalf("%v: a piece is out of order", pieces)
		}
		msg = slices.Concat(msg, base[:n], b, make([]byte, xdr.Pad(len(b))))
		base = base[n:]
	}
	return append(msg, base...), entries
}

func TestOfferChunks(t *testing.T) {
	const header, room = 24, rpcrdma.DefaultInline - rpcrdma.MinHeaderSize - 24
	tm, limited, protected, short := terms(OnePosition), terms(OnePosition), terms(OnePosition), terms(OnePosition)
	limited.Message = 5000
	protected.Protected = true
	short.Segment = 100
	for _, tt := range []struct {
		name    string
		max     int
		items   []int
		terms   Terms
		want    Offer
		problem *SizeProblem
	}{
		{"V1-3.1-1 for a reply that may be as long as the threshold nothing is offered", room, nil, tm, Offer{}, nil},
		{"V1-5.2-1 for 4 bytes more, a reply chunk with room for all of it", room + 4, nil, tm, Offer{true, header + room + 4}, nil},
		{"V1-3.1-1 for an item that fits with its padding nothing is offered", room - 100, []int{97}, tm, Offer{}, nil},
		{"V1-3.4-4 for an item that does not fit a write chunk", room - 100, []int{101}, tm, Offer{true, 0}, nil},
		{"V1-5.2-1 beside the write list the rest fits just so", room - 24, []int{5000}, tm, Offer{true, 0}, nil},
		{"V1-5.2-1 beside the write list the rest is 4 bytes too long", room - 20, []int{5000}, tm, Offer{true, header + room - 20}, nil},
		{"V1-3.6-3 each item has its write chunk", room - 48, []int{5000, 6000}, tm, Offer{true, 0}, nil},
		{"V1-3.6-3 two write chunks leave 24 bytes less", room - 44, []int{5000, 6000}, tm, Offer{true, header + room - 44}, nil},
		{"V1-3.6-5 segments of limited length make the write list longer", room - (8 + 50*16), []int{5000}, short, Offer{true, 0}, nil},
		{"V1-3.6-5 one segment more leaves no room for the rest", room - (8 + 50*16), []int{5001}, short, Offer{true, header + room - (8 + 50*16)}, nil},
		{"V1-11-1 a protected reply is one reply chunk", 100, []int{5000, 6001}, protected, Offer{false, header + 100 + 5000 + 6004}, nil},
		{"V1-11-1 a protected reply that fits has none", room - 500, []int{500}, protected, Offer{}, nil},
		{"CCP-6.2-9 without read chunks there are write chunks all the same", 100, []int{5000}, terms(NoReads), Offer{true, 0}, nil},
		{"a reply of the most bytes", 900, []int{4073}, limited, Offer{true, 0}, nil},
		{"a reply of 4 bytes more", 900, []int{4077}, limited, Offer{}, &SizeProblem{"the largest reply, which Config.MaxMessage bounds,", 5004, 5000}},
		{"BIDI-5.3-2 without chunks a reply as long as the threshold", room, nil, terms(NoChunks), Offer{}, nil},
		{"BIDI-5.3-2 without chunks a reply 4 bytes longer", room, []int{1}, terms(NoChunks), Offer{}, &SizeProblem{"the largest reply, which may have no chunks,", 1028, 1024}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got, problem := OfferChunks(&Results{Header: header, Max: tt.max, Items: tt.items}, &tt.terms)
			if got != tt.want || (problem == nil) != (tt.problem == nil) || problem != nil && *problem != *tt.problem {
				t.Errorf("%v, %+v, want %v, %+v", got, problem, tt.want, tt.problem)
			}
		})
	}
	t.Run("for foreign memory a write chunk, however short the item", func(t *testing.T) {
		got, problem := OfferChunks(&Results{Header: header, Items: []int{8}, Foreign: true}, &tm)
		if got != (Offer{true, 0}) || problem != nil {
			t.Errorf("%v, %v", got, problem)
		}
	})
}
