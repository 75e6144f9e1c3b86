package reads

import (
	"bytes"
	"math"
	"slices"
	"testing"

	"github.com/rpcrdma/rpcrdma/proto/rpcrdma"
	"github.com/rpcrdma/rpcrdma/transport/internal/arena"
)

const (
	msg   = rpcrdma.ProcMsg
	nomsg = rpcrdma.ProcNomsg
)

// An entry of a read list: a position and the data that lies there, as bytes.
type entry struct {
	pos  uint32
	data string
}

// header has a read list. The handle of an entry is its place in the list, and its offset
// is far from zero.
func header(proc rpcrdma.Proc, list ...entry) *rpcrdma.Header {
	h := &rpcrdma.Header{Proc: proc}
	for i, e := range list {
		h.Reads = append(h.Reads, rpcrdma.ReadSegment{
			Position: e.pos, Segment: rpcrdma.Segment{Handle: uint32(i), Length: uint32(len(e.data)), Offset: 1 << 40},
		})
	}
	return h
}

// sized has a read list of positions and lengths.
func sized(proc rpcrdma.Proc, list ...uint32) *rpcrdma.Header {
	h := &rpcrdma.Header{Proc: proc}
	for i := 0; i < len(list); i += 2 {
		h.Reads = append(h.Reads, rpcrdma.ReadSegment{Position: list[i], Segment: rpcrdma.Segment{Length: list[i+1]}})
	}
	return h
}

func TestOutline(t *testing.T) {
	const largest = math.MaxUint32
	for _, tt := range []struct {
		name          string
		h             *rpcrdma.Header
		inline, limit int
		want          Layout
		ok            bool
	}{
		{"V1-3.5-1 a message without chunks", sized(msg), 100, 1000, Layout{0, 100}, true},
		{"V1-3.5-1 an item, which may be padded", sized(msg, 44, 50), 100, 1000, Layout{0, 153}, true},
		{"V1-3.4-12 several entries, at one position or more", sized(msg, 44, 50, 44, 50, 100, 7), 100, 1000, Layout{0, 100 + 53 + 53 + 10}, true},
		{"V1-5.1-2 a long call", sized(nomsg, 0, 500), 0, 1000, Layout{1, 500}, true},
		{"V1-5.1-2 a position-zero chunk of several segments", sized(nomsg, 0, 500, 0, 20), 0, 1000, Layout{2, 520}, true},
		{"V1-5.1-3 items beside it", sized(nomsg, 0, 500, 44, 20), 0, 1000, Layout{1, 523}, true},
		{"the most bytes", sized(msg, 44, 897), 100, 1000, Layout{0, 1000}, true},
		{"one byte more", sized(msg, 44, 898), 100, 1000, Layout{}, false},
		{"V1-5.1-2 the most bytes in the position-zero chunk", sized(nomsg, 0, 1000), 0, 1000, Layout{1, 1000}, true},
		{"V1-5.1-2 one byte more in it", sized(nomsg, 0, 999, 0, 2), 0, 1000, Layout{}, false},
		{"V1-4.2-1 lengths whose sum has more than 32 bits", sized(msg, 44, largest, 44, 200), 100, 1000, Layout{}, false},
		{"V1-4.2-1 lengths whose sum has more than 32 bits, at position zero", sized(nomsg, 0, largest, 0, 200), 0, 1000, Layout{}, false},
		{"V1-5.1-1 RDMA_NOMSG without a read list", sized(nomsg), 0, 1000, Layout{}, false},
		{"V1-5.1-1 RDMA_NOMSG without a position-zero chunk", sized(nomsg, 44, 20), 0, 1000, Layout{}, false},
		{"V1-5.1-1 RDMA_NOMSG whose position-zero chunk does not lead", sized(nomsg, 44, 20, 0, 100), 0, 1000, Layout{}, false},
		{"V1-4.1-11 RDMA_MSG with a position-zero chunk", sized(msg, 0, 100), 100, 1000, Layout{}, false},
		{"a message of 8 bytes", sized(nomsg, 0, 8), 0, 1000, Layout{1, 8}, true},
		{"a message too short for its xid and direction", sized(nomsg, 0, 7), 0, 1000, Layout{}, false},
		{"items do not make up for that", sized(msg, 4, 100), 4, 1000, Layout{}, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got, ok := Outline(tt.h, tt.inline, tt.limit)
			if ok != tt.ok || ok && got != tt.want {
				t.Errorf("%+v, %v, want %+v, %v", got, ok, tt.want, tt.ok)
			}
		})
	}
}

// assemble assembles a message in memory with a guard after it, and does its Reads as the
// adapter would. It returns "" when the message is refused.
func assemble(t *testing.T, h *rpcrdma.Header, inline string, list []entry) string {
	t.Helper()
	l, ok := Outline(h, len(inline), 1<<20)
	if !ok {
		t.Fatal("the outline is refused")
	}
	mem := bytes.Repeat([]byte{'#'}, l.Size+64)
	m := Message{Mem: &arena.Buffer{Bytes: mem[:l.Size:l.Size], LKey: 9}}
	if !m.Assemble(h, []byte(inline), l) {
		return ""
	}
	for i := range m.pulls {
		p := &m.pulls[i]
		dst := p.dst[0]
		if dst.LKey != 9 || len(dst.Buf) == 0 {
			t.Fatalf("a Read of %d bytes under key %d", len(dst.Buf), dst.LKey)
		}
		copy(dst.Buf, list[p.handle].data[p.offset-1<<40:][:len(dst.Buf)])
	}
	if !untouched(mem[l.Size:]) {
		t.Fatal("bytes behind the message were written")
	}
	return string(m.Msg)
}

// untouched reports whether memory that was filled with '#' has not been written to.
func untouched(b []byte) bool { return len(bytes.Trim(b, "#")) == 0 }

func TestAssemble(t *testing.T) {
	for _, tt := range []struct {
		name   string
		proc   rpcrdma.Proc
		inline string
		list   []entry
		want   string // "" if the message is refused
	}{
		{"V1-3.5-1 an item of whole words", msg, "xidCdirClen_rest", []entry{{12, "DATA"}}, "xidCdirClen_DATArest"},
		{"V1-3.5-1 an item at the end", msg, "xidCdirClen_", []entry{{12, "DATA"}}, "xidCdirClen_DATA"},
		{"V1-3.7-3 the padding is absent", msg, "xidCdirClen_rest", []entry{{12, "DATAS"}}, "xidCdirClen_DATAS\x00\x00\x00rest"},
		{"V1-3.7-3 the padding is absent at the end", msg, "xidCdirClen_", []entry{{12, "DATAS"}}, "xidCdirClen_DATAS\x00\x00\x00"},
		{"V1-3.7-5 the padding is in the chunk", msg, "xidCdirClen_rest", []entry{{12, "DATAS\x00\x00\x00"}}, "xidCdirClen_DATAS\x00\x00\x00rest"},
		{"V1-3.7-4 the padding is an entry of its own", msg, "xidCdirClen_rest", []entry{{12, "DATAS"}, {12, "\x00\x00\x00"}}, "xidCdirClen_DATAS\x00\x00\x00rest"},
		{"V1-3.7-1 the padding is inline, and zero whatever was sent", msg, "xidCdirClen_???rest", []entry{{12, "DATAS"}}, "xidCdirClen_DATAS\x00\x00\x00rest"},
		{"V1-3.7-1 the padding of both items is inline", msg, "xidCdirClen_???len2??rest", []entry{{12, "DATAS"}, {24, "SECOND"}}, "xidCdirClen_DATAS\x00\x00\x00len2SECOND\x00\x00rest"},
		{"V1-3.7-1 the padding of the first of two items is inline", msg, "xidCdirClen_???len2rest", []entry{{12, "DATAS"}, {24, "SECOND"}}, "xidCdirClen_DATAS\x00\x00\x00len2SECOND\x00\x00rest"},
		{"V1-3.7-1 the padding is inline at the end", msg, "xidCdirClen_???", []entry{{12, "DATAS"}}, "xidCdirClen_DATAS\x00\x00\x00"},
		{"V1-3.7-1 the padding of the second item is inline", msg, "xidCdirClen_len2??rest", []entry{{12, "DATA"}, {20, "SECOND"}}, "xidCdirClen_DATAlen2SECOND\x00\x00rest"},
		{"V1-3.7-2 the next position counts padding that is absent", msg, "xidCdirClen_len2rest", []entry{{12, "DATAS"}, {24, "SECOND"}}, "xidCdirClen_DATAS\x00\x00\x00len2SECOND\x00\x00rest"},
		{"V1-3.4-12 the entries of one position are one item", msg, "xidCdirClen_rest", []entry{{12, "DAT"}, {12, ""}, {12, "ASET"}}, "xidCdirClen_DATASET\x00rest"},
		{"an entry of no bytes", msg, "xidCdirClen_rest", []entry{{12, ""}}, "xidCdirClen_rest"},

		{"V1-5.1-2 a long call", nomsg, "", []entry{{0, "xidCdirCargs"}}, "xidCdirCargs"},
		{"V1-5.1-2 a long call of several segments, of any length", nomsg, "", []entry{{0, "xid"}, {0, ""}, {0, "CdirCa"}, {0, "rgs"}}, "xidCdirCargs"},
		{"V1-5.1-3 an item in the midst of a segment", nomsg, "", []entry{{0, "xidCdirClen_rest"}, {12, "DATA"}}, "xidCdirClen_DATArest"},
		{"V1-5.1-3 two items in the midst of two segments", nomsg, "", []entry{{0, "xidCdirCle"}, {0, "n_len2rest"}, {12, "DATAS"}, {24, "SECOND"}}, "xidCdirClen_DATAS\x00\x00\x00len2SECOND\x00\x00rest"},
		{"V1-5.1-3 an item between two segments", nomsg, "", []entry{{0, "xidCdirClen_"}, {0, "rest"}, {12, "DATA"}}, "xidCdirClen_DATArest"},
		{"V1-5.1-3 an item behind the last segment", nomsg, "", []entry{{0, "xidCdirClen_"}, {12, "DATA"}}, "xidCdirClen_DATA"},

		{"V1-3.4-11 a position at the end of the message", msg, "xidCdirC", []entry{{8, "DATA"}}, "xidCdirCDATA"},
		{"V1-3.4-11 a position behind the end", msg, "xidCdirC", []entry{{12, "DATA"}}, ""},
		{"V1-3.4-11 a position behind the end of a long call", nomsg, "", []entry{{0, "xidCdirC"}, {12, "DATA"}}, ""},
		{"V1-3.4-11 the largest position", msg, "xidCdirC", []entry{{math.MaxUint32 &^ 3, "DATA"}}, ""},
		{"V1-3.4-11 a position with the first bit set", msg, "xidCdirC", []entry{{1 << 31, "DATA"}}, ""},
		{"V1-3.4-11 a position that is no multiple of 4", msg, "xidCdirCargs", []entry{{10, "DATA"}}, ""},
		{"V1-3.4-12 positions out of order", msg, "xidCdirClen_len2rest", []entry{{20, "DATA"}, {12, "DATA"}}, ""},
		{"V1-3.4-12 a position within the item before", msg, "xidCdirClen_len2rest", []entry{{12, "DATADATA"}, {16, "DATA"}}, ""},
		{"V1-3.4-12 a position right behind the item before", msg, "xidCdirClen_rest", []entry{{12, "DATAS"}, {20, "MORE"}}, "xidCdirClen_DATAS\x00\x00\x00MORErest"},
		{"V1-3.4-12 a position in the padding of the item before", msg, "xidCdirClen_rest", []entry{{12, "DATAS"}, {16, "MORE"}}, ""},
		{"V1-5.1-1 position zero again", nomsg, "", []entry{{0, "xidCdirCargs"}, {12, "DATA"}, {0, "DATA"}}, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if got := assemble(t, header(tt.proc, tt.list...), tt.inline, tt.list); got != tt.want {
				t.Errorf("%q, want %q", got, tt.want)
			}
		})
	}

	t.Run("a message that was assembled before leaves nothing", func(t *testing.T) {
		m := Message{Mem: &arena.Buffer{Bytes: make([]byte, 100)}}
		if !m.Assemble(header(nomsg, entry{0, "xidCdirC"}, entry{8, "DATA"}), nil, Layout{Lead: 1}) || !m.Pulls() {
			t.Fatal("there are Reads to do")
		}
		if !m.Assemble(header(msg), []byte("xidCdirC"), Layout{}) || m.Pulls() || string(m.Msg) != "xidCdirC" {
			t.Errorf("%q, %v", m.Msg, m.pulls)
		}
	})
}

func TestItemsBeginAtPages(t *testing.T) {
	const long = 16 << 10
	for _, tt := range []struct {
		name  string
		h     *rpcrdma.Header
		extra int // bytes of memory beyond the size of the message
		want  int // where the message begins
	}{
		{"an item behind 44 bytes", sized(msg, 44, long), 8192, 4096 - 44},
		{"the first of two items", sized(msg, 44, long, 44+long, long), 8192, 4096 - 44},
		{"an item behind more than a page", sized(msg, 5000, long), 8192, 8192 - 5000},
		{"an item at the front of a page", sized(msg, 4096, long), 8192, 0},
		{"an item beside a position-zero chunk", sized(nomsg, 0, 60, 44, long), 8192, 4096 - 44},
		{"a position-zero chunk alone", sized(nomsg, 0, long), 8192, 0},
		{"a short item", sized(msg, 44, long-200), 8192, 0},
		{"just enough memory", sized(msg, 44, long), 4096 - 44, 4096 - 44},
		{"one byte less", sized(msg, 44, long), 4096 - 45, 0},
		{"no more memory than needed", sized(msg, 44, long), 0, 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			inline := 60
			if tt.h.Proc == nomsg {
				inline = 0
			} else if at := int(tt.h.Reads[0].Position); at > inline {
				inline = at
			}
			l, ok := Outline(tt.h, inline, 1<<20)
			mem := bytes.Repeat([]byte{'#'}, l.Size+tt.extra+64)
			end := l.Size + tt.extra
			m := Message{Mem: &arena.Buffer{Bytes: mem[:end:end]}}
			if !ok || !m.Assemble(tt.h, make([]byte, inline), l) {
				t.Fatal("the message is refused")
			}
			for i := range m.pulls {
				clear(m.pulls[i].dst[0].Buf)
			}
			if &m.Msg[0] != &mem[tt.want] || !untouched(mem[:tt.want]) || !untouched(mem[tt.want+len(m.Msg):]) {
				t.Errorf("the message begins at %d, want %d", cap(mem)-cap(m.Msg)-64, tt.want)
			}
		})
	}
}

// FuzzAssemble: where Outline accepts, Assemble writes to the memory of the message alone,
// and each byte of it is either copied or read, once.
func FuzzAssemble(f *testing.F) {
	f.Add(false, uint8(40), []byte{3, 9, 3, 4, 6, 255})
	f.Add(true, uint8(0), []byte{0, 30, 0, 20, 3, 9, 9, 7})
	f.Add(true, uint8(0), []byte{0, 3, 0, 0, 0, 9, 1, 5, 1, 5})
	f.Add(false, uint8(48), []byte{11, 250})
	f.Fuzz(func(t *testing.T, long bool, inline uint8, list []byte) {
		h, in := &rpcrdma.Header{Proc: msg}, bytes.Repeat([]byte{'i'}, int(inline))
		if long {
			h.Proc, in = nomsg, nil // ConsumeHeader allows no bytes after it
		}
		for ; len(list) >= 2 && len(h.Reads) < 40; list = list[2:] {
			pos := uint32(list[0]) * 4
			if list[0] >= 250 {
				pos = math.MaxUint32 - uint32(list[0]) // unaligned, or beyond any message
			}
			n := uint32(list[1])
			if n > 240 {
				n *= 100 // long enough to begin at a page
			}
			h.Reads = append(h.Reads, rpcrdma.ReadSegment{Position: pos, Segment: rpcrdma.Segment{Length: n}})
		}
		l, ok := Outline(h, len(in), 64<<10)
		if !ok {
			return
		}
		end := arena.SizeOf(l.Size)
		mem := bytes.Repeat([]byte{'#'}, end+64)
		m := Message{Mem: &arena.Buffer{Bytes: mem[:end]}}
		if m.Assemble(h, in, l) {
			total := 0
			for i := range m.pulls {
				dst := m.pulls[i].dst[0].Buf
				total += len(dst)
				if !untouched(dst) {
					t.Fatalf("%+v: bytes are read twice, or both copied and read: %q", h.Reads, dst)
				}
				for k := range dst {
					dst[k] = 'r'
				}
			}
			want := 0
			for _, s := range h.Reads {
				want += int(s.Length)
			}
			if total != want || slices.Contains(m.Msg, '#') || len(m.Msg) > l.Size {
				t.Fatalf("%+v: %d of %d bytes are read, message %q", h.Reads, total, want, m.Msg)
			}
		}
		if !untouched(mem[end:]) {
			t.Fatalf("%+v: bytes behind the message were written", h.Reads)
		}
	})
}
