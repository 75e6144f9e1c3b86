package expose

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/rpcrdma/rpcrdma/fabric"
	"github.com/rpcrdma/rpcrdma/transport/internal/arena"
)

const (
	localWrite  = fabric.AccessLocalWrite
	remoteRead  = fabric.AccessRemoteRead
	remoteWrite = fabric.AccessRemoteWrite
)

var errScripted = errors.New("scripted")

// A card is an adapter that records its calls.
type card struct {
	fabric.Conn
	log   []string
	keys  uint32
	fails string // of RegMR, AllocMW and Prepare, the one that fails
}

func (c *card) say(what string, args ...any) { c.log = append(c.log, fmt.Sprintf(what, args...)) }

// said checks what has been asked for since the last time.
func (c *card) said(t *testing.T, want ...string) {
	t.Helper()
	if !slices.Equal(c.log, want) {
		t.Errorf("the adapter was asked for %q, want %q", c.log, want)
	}
	c.log = nil
}

func (c *card) RegMR(b []byte, access fabric.Access) (fabric.MR, error) {
	if c.fails == "RegMR" {
		return nil, errScripted
	}
	c.keys++
	c.say("reg %d: %d bytes, rights %d", c.keys, len(b), access)
	return &cardMR{card: c, mem: b, key: c.keys}, nil
}

func (c *card) RegForeign(mem fabric.Foreign, access fabric.Access) (fabric.MR, error) {
	c.keys++
	c.say("reg %d: %d foreign bytes at %#x, rights %d", c.keys, mem.Len, mem.Addr, access)
	return &cardMR{card: c, mem: make([]byte, mem.Len), key: c.keys}, nil
}

func (c *card) AllocMW() (fabric.MW, error) {
	if c.fails == "AllocMW" {
		return nil, errScripted
	}
	c.keys++
	c.say("alloc %d", c.keys)
	return &cardMW{card: c, key: c.keys << 8}, nil
}

type cardMR struct {
	fabric.MR
	card *card
	mem  []byte
	key  uint32
}

func (m *cardMR) LKey() uint32 { return m.key }
func (m *cardMR) Segment() fabric.Segment {
	return fabric.Segment{Handle: m.key, Length: uint32(len(m.mem)), Offset: 1 << 40}
}
func (m *cardMR) Close() error { m.card.say("close %d", m.key); return nil }

type cardMW struct {
	fabric.MW
	card *card
	key  uint32
}

// Prepare names the window by a key of which the last part is new each time.
func (w *cardMW) Prepare(mem fabric.SGE, access fabric.Access) (fabric.Segment, error) {
	if w.card.fails == "Prepare" {
		return fabric.Segment{}, errScripted
	}
	w.key++
	w.card.say("prepare %#x: %d bytes of key %d, rights %d", w.key, mem.Len(), mem.LKey, access)
	return fabric.Segment{Handle: w.key, Length: uint32(mem.Len())}, nil
}

// lend exposes mem with l, under the ID 5.
func lend(t *testing.T, l *Loan, wrs *[]fabric.SendWR, mem fabric.SGE, access fabric.Access) fabric.Segment {
	t.Helper()
	seg, err := l.Expose(wrs, 5, mem, access)
	if err != nil {
		t.Fatal(err)
	}
	return seg
}

// program is memory of the program, arena memory that is registered already.
func program(n int) fabric.SGE { return fabric.SGE{Buf: make([]byte, n), LKey: fabric.LocalDMAKey} }
func mapped(n int) fabric.SGE  { return fabric.SGE{Buf: make([]byte, n), LKey: 77} }

func TestExpose(t *testing.T) {
	for _, tt := range []struct {
		name     string
		windows  bool
		localDMA bool
		mem      fabric.SGE
		access   fabric.Access
		want     []string
		end      []string
	}{
		{"V1-11-3 V1-11-4 without windows, for the peer to read", false, false, program(100), remoteRead,
			[]string{"reg 1: 100 bytes, rights 4"}, []string{"close 1"}},
		{"V1-11-3 V1-11-4 without windows, for the peer to write", false, false, program(100), remoteWrite,
			[]string{"reg 1: 100 bytes, rights 3"}, []string{"close 1"}},
		{"V1-11-3 V1-11-4 without windows arena memory is registered, too, and apart", false, true, mapped(100), remoteRead,
			[]string{"reg 1: 100 bytes, rights 4"}, []string{"close 1"}},
		{"V1-11-3 V1-11-4 a window over memory of the program, to read: the memory has no rights", true, false, program(100), remoteRead,
			[]string{"alloc 1", "reg 2: 100 bytes, rights 0", "prepare 0x101: 100 bytes of key 2, rights 4"}, []string{"close 2"}},
		{"V1-11-3 V1-11-4 a window over memory of the program, to write: the memory has no rights for the peer", true, false, program(100), remoteWrite,
			[]string{"alloc 1", "reg 2: 100 bytes, rights 1", "prepare 0x101: 100 bytes of key 2, rights 2"}, []string{"close 2"}},
		{"V1-11-3 a window over arena memory", true, false, mapped(100), remoteWrite,
			[]string{"alloc 1", "prepare 0x101: 100 bytes of key 77, rights 2"}, nil},
		{"V1-11-3 a window over memory of the program, which the adapter takes", true, true, program(100), remoteWrite,
			[]string{"alloc 1", "prepare 0x101: 100 bytes of key 0, rights 2"}, nil},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c := &card{}
			l := NewLoan(&Adapter{Conn: c, Windows: tt.windows, LocalDMA: tt.localDMA})
			var wrs []fabric.SendWR
			seg := lend(t, &l, &wrs, tt.mem, tt.access)
			c.said(t, tt.want...)
			if l.Len() != 1 || seg.Length != 100 || seg.Handle == 0 {
				t.Errorf("%d exposed, named %+v", l.Len(), seg)
			}
			if tt.windows && (len(wrs) != 1 || wrs[0].Op != fabric.OpBindMW || wrs[0].ID != 5 || wrs[0].MW != l.parts[0].mw) || !tt.windows && wrs != nil {
				t.Errorf("requests %+v", wrs)
			}
			l.End()
			c.said(t, tt.end...)
			l.End()
			if l.Len() != 0 {
				t.Errorf("%d exposed after the end", l.Len())
			}
			if tt.windows { // nor does a window over arena memory deregister what lay under it
				lend(t, &l, &wrs, mapped(8), remoteRead)
				c.log = nil
				l.End()
			}
			c.said(t) // nothing is deregistered twice
		})
	}
}

func TestWindows(t *testing.T) {
	c := &card{}
	l := NewLoan(&Adapter{Conn: c, Windows: true})
	other := NewLoan(l.a)
	var wrs []fabric.SendWR
	var keys []uint32
	for range 3 {
		keys = append(keys, lend(t, &l, &wrs, mapped(8), remoteRead).Handle)
	}
	theirs := lend(t, &other, &wrs, mapped(8), remoteRead).Handle

	t.Run("PVT-3.2-4 the peer closes an open window of this loan, once", func(t *testing.T) {
		if l.Invalidated(theirs) || l.Invalidated(0) || !l.Invalidated(keys[1]) || l.Invalidated(keys[1]) {
			t.Error("an open window of this loan, once")
		}
	})
	t.Run("PVT-3.2-4 V1-7-1 the others are invalidated here, signaled, once", func(t *testing.T) {
		before := []fabric.SendWR{{ID: 1}}
		got := l.Revoke(before, 6)
		if len(got) != 3 || got[0].ID != 1 {
			t.Fatalf("%+v", got)
		}
		for i, key := range []uint32{keys[0], keys[2]} {
			if wr := got[i+1]; wr.ID != 6 || wr.Op != fabric.OpLocalInv || wr.Flags != fabric.Signaled || wr.RKey != key {
				t.Errorf("%+v, want handle %#x", wr, key)
			}
		}
		if l.Revoke(nil, 6) != nil || l.Invalidated(keys[0]) {
			t.Error("a closed window is open")
		}
	})
	t.Run("V1-7-1 windows are kept, and bound again under another handle", func(t *testing.T) {
		l.End()
		c.log = nil
		wrs = wrs[:0]
		if again := lend(t, &l, &wrs, mapped(8), remoteWrite).Handle; again != keys[0]+1 {
			t.Errorf("handle %#x after %#x", again, keys[0])
		}
		c.said(t, "prepare 0x102: 8 bytes of key 77, rights 2")
		if l.Invalidated(keys[0]) || l.Invalidated(keys[1]) || len(l.Revoke(nil, 6)) != 1 {
			t.Error("windows of the message before are open")
		}
	})
	t.Run("windows that are abandoned serve no other message", func(t *testing.T) {
		l.Abandon()
		l.End()
		c.log = nil
		lend(t, &l, &wrs, mapped(8), remoteRead)
		c.said(t, "alloc 5", "prepare 0x501: 8 bytes of key 77, rights 4")
	})
	t.Run("the other loan has its window still", func(t *testing.T) {
		if !other.Invalidated(theirs) {
			t.Error("it is closed")
		}
	})

	t.Run("memory without windows is nothing to invalidate", func(t *testing.T) {
		l := NewLoan(&Adapter{Conn: &card{}})
		key := lend(t, &l, nil, mapped(8), remoteRead).Handle
		if l.Invalidated(key) || l.Revoke(nil, 6) != nil {
			t.Error("a registration is a window")
		}
	})
}

func TestExposeFails(t *testing.T) {
	for _, tt := range []struct {
		name    string
		windows bool
		fails   string
		before  []string // the adapter was asked for, without rest
	}{
		{"registering, without windows", false, "RegMR", nil},
		{"allocating a window", true, "AllocMW", nil},
		{"registering what lies under a window", true, "RegMR", []string{"alloc 1"}},
		{"preparing a window", true, "Prepare", []string{"alloc 1", "reg 2: 8 bytes, rights 1", "close 2"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c := &card{fails: tt.fails}
			l := NewLoan(&Adapter{Conn: c, Windows: tt.windows})
			var wrs []fabric.SendWR
			if _, err := l.Expose(&wrs, 5, program(8), remoteWrite); err != errScripted {
				t.Errorf("error %v", err)
			}
			c.said(t, tt.before...)
			if l.Len() != 0 || wrs != nil || l.Revoke(nil, 6) != nil {
				t.Errorf("%d exposed, requests %v", l.Len(), wrs)
			}
			l.End()
			c.said(t)
			c.fails = ""
			lend(t, &l, &wrs, program(8), remoteWrite)
			if l.Len() != 1 {
				t.Error("the next time it is exposed")
			}
		})
	}
}

// TestForeign: foreign memory is registered, however short it is and whatever the adapter takes.
func TestForeign(t *testing.T) {
	mem := fabric.SGE{Foreign: &fabric.Foreign{Addr: 0x7000, Len: 8}}
	bouncing := &Adapter{BounceMax: 1000}
	for _, tt := range []struct {
		name string
		a    *Adapter
		want []string
	}{
		{"for the message", &Adapter{}, []string{"reg 1: 8 foreign bytes at 0x7000, rights 3", "close 1"}},
		{"beside bounce buffers", bouncing, []string{"reg 1: 8 foreign bytes at 0x7000, rights 3", "close 1"}},
		{"under a window", &Adapter{Windows: true}, []string{"alloc 1", "reg 2: 8 foreign bytes at 0x7000, rights 1", "prepare 0x101: 8 bytes of key 2, rights 2", "close 2"}},
		{"under a window, with local DMA", &Adapter{Windows: true, LocalDMA: true}, []string{"alloc 1", "reg 2: 8 foreign bytes at 0x7000, rights 1", "prepare 0x101: 8 bytes of key 2, rights 2", "close 2"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c := &card{}
			tt.a.Conn = c
			if tt.a == bouncing {
				tt.a.Bounce = arena.New(&card{}, arena.Options{Small: 1024, Remote: true})
			}
			l := NewBouncingLoan(tt.a)
			var wrs []fabric.SendWR
			if seg := lend(t, &l, &wrs, mem, fabric.AccessRemoteWrite); seg.Length != 8 || !l.Direct() {
				t.Errorf("named %+v", seg)
			}
			l.Revoke(nil, 1)
			l.End()
			c.said(t, tt.want...)
		})
	}
}

func TestBounceBuffers(t *testing.T) {
	const most = 10_000
	// begin returns a loan on an adapter without windows that has bounce buffers.
	begin := func(t *testing.T) (*card, *Loan) {
		c := &card{}
		l := NewBouncingLoan(&Adapter{Conn: c, Bounce: arena.New(c, arena.Options{Small: 1024, Remote: true}), BounceMax: most})
		if _, seg := l.Buffer(1); seg.Length != 1 {
			t.Fatal("no buffer")
		}
		l.End() // the first slabs are mapped
		lend(t, &l, nil, program(most), remoteRead)
		l.End()
		c.log = nil
		return c, &l
	}
	for _, tt := range []struct {
		name    string
		mem     fabric.SGE
		bounces bool
	}{
		{"short", program(100), true},
		{"as long as may be", program(most), true},
		{"longer", program(most + 1), false},
		{"registered already", mapped(100), false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c, l := begin(t)
			for i := range tt.mem.Buf {
				tt.mem.Buf[i] = byte(i + 1)
			}
			seg := lend(t, l, nil, tt.mem, remoteRead)
			if int(seg.Length) != len(tt.mem.Buf) || l.Direct() == tt.bounces || (len(c.log) == 0) != tt.bounces {
				t.Errorf("named %+v, the adapter was asked for %q", seg, c.log)
			}
			if tt.bounces && !bytes.Equal(l.parts[0].bounce.Bytes[:len(tt.mem.Buf)], tt.mem.Buf) {
				t.Error("the peer reads something else")
			}
			if l.End(); l.a.Bounce.Stats().Buffers != 0 {
				t.Error("a buffer is kept")
			}
		})
	}
	t.Run("a message's own", func(t *testing.T) {
		_, l := begin(t)
		for n, want := range map[int]bool{1: true, most: true, most + 1: false} {
			if b, _ := l.Buffer(n); (b != nil) != want {
				t.Errorf("of %d bytes: %v", n, b != nil)
			}
		}
		l.End()
	})
	t.Run("Fetch copies what the peer has written, and no more", func(t *testing.T) {
		_, l := begin(t)
		mem := program(100)
		lend(t, l, nil, mem, remoteWrite)
		b := l.parts[0].bounce.Bytes
		for i := range b {
			b[i] = 7
		}
		l.Fetch(0, 60)
		if n := slices.Index(mem.Buf, 0); n != 60 || slices.Contains(mem.Buf[n:], 7) {
			t.Errorf("%v", mem.Buf)
		}
		l.End()
	})
	t.Run("one that is given up is kept until its reply", func(t *testing.T) {
		_, l := begin(t)
		lend(t, l, nil, program(100), remoteWrite)
		l.GiveUp()
		if l.Late() != 1 || l.Len() != 0 || l.a.Bounce.Stats().Buffers != 1 {
			t.Errorf("%d late, %+v", l.Late(), l.a.Bounce.Stats())
		}
		if l.Settle(); l.Late() != 0 || l.a.Bounce.Stats().Buffers != 0 {
			t.Errorf("%d late, %+v", l.Late(), l.a.Bounce.Stats())
		}
	})
}
