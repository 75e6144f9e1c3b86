package capture

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"github.com/rpcrdma/rpcrdma/fabric"
	"github.com/rpcrdma/rpcrdma/internal/testing/testutil"
	"github.com/rpcrdma/rpcrdma/proto/rpcrdma"
)

// A block is one of a capture file.
type block struct {
	kind       uint32
	kept, size int    // of a packet
	data       []byte // of a packet
}

// blocks splits a file, which must consist of whole blocks.
func blocks(t *testing.T, b []byte) (all []block) {
	t.Helper()
	for len(b) > 0 {
		if len(b) < 12 {
			t.Fatalf("%d bytes at the end are no block", len(b))
		}
		n := int(binary.LittleEndian.Uint32(b[4:]))
		if n < 12 || n%4 != 0 || n > len(b) || int(binary.LittleEndian.Uint32(b[n-4:])) != n {
			t.Fatalf("block of %d bytes, %d are left", n, len(b))
		}
		x := block{kind: binary.LittleEndian.Uint32(b)}
		if x.kind == blockPacket {
			x.kept, x.size = int(binary.LittleEndian.Uint32(b[20:])), int(binary.LittleEndian.Uint32(b[24:]))
			x.data = b[28:][:x.kept]
		}
		all = append(all, x)
		b = b[n:]
	}
	return all
}

func packets(all []block) (p []block) {
	for _, b := range all {
		if b.kind == blockPacket {
			p = append(p, b)
		}
	}
	return p
}

func testStream() *stream {
	return &stream{
		local: netip.MustParseAddrPort("192.0.2.1:1234"), remote: netip.MustParseAddrPort("192.0.2.2:20049"),
		active: true, asked: []byte("private"),
	}
}

func (s *stream) sends(n, size int) []event {
	all := make([]event, n)
	for i := range all {
		all[i] = event{at: int64(i), s: s, kind: kindSend, out: i%2 == 0, data: bytes.Repeat([]byte{byte(i)}, size), size: size}
	}
	return all
}

// A gate is a disk that takes nothing until it is opened.
type gate struct {
	mu   sync.Mutex
	b    bytes.Buffer
	open chan struct{}
}

func (g *gate) Write(b []byte) (int, error) {
	<-g.open
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.b.Write(b)
}

// TestSlowDisk: what does not fit the queue is dropped and counted, no call waits, and the file is
// whole.
func TestSlowDisk(t *testing.T) {
	g := &gate{open: make(chan struct{})}
	w := New(g, &Config{Queue: 100_000})
	s := testStream()
	w.add(event{s: s, kind: kindUp})
	w.add(s.sends(1000, 1000)...)
	w.add(event{s: s, kind: kindDown, why: "the end"})
	dropped := w.Stats().Dropped
	if dropped < 900 {
		t.Errorf("%d of 1000 messages were dropped, want more than 900: there is room for 79", dropped)
	}
	close(g.open)
	testutil.Must(t, w.Close())
	p := packets(blocks(t, g.b.Bytes()))
	if want := 5 + 1000 - int(dropped) + 3; len(p) != want {
		t.Errorf("%d packets, want %d", len(p), want)
	}
	if got := w.Stats(); got.Packets != uint64(len(p)) || got.Bytes != uint64(g.b.Len()) {
		t.Errorf("%+v of %d packets in %d bytes", got, len(p), g.b.Len())
	}
	// There is no gap: each segment begins where the one before it in its direction ended.
	next := map[byte]uint32{}
	for i, p := range p[3:] {
		tcp := p.data[etherLen+ipv4Len:]
		from, seq := p.data[11], binary.BigEndian.Uint32(tcp[4:])
		if at, ok := next[from]; ok && at != seq {
			t.Fatalf("packet %d has sequence number %d, want %d", i+3, seq, at)
		}
		next[from] = seq + uint32(p.size-etherLen-ipv4Len-tcpLen)
		if tcp[13]&(tcpFIN|tcpSYN) != 0 {
			next[from]++
		}
	}
}

// TestSnapLen: of each packet only the first bytes of data are kept, and only these are copied.
func TestSnapLen(t *testing.T) {
	var b bytes.Buffer
	w := New(&b, &Config{SnapLen: 100})
	c := newConn(nil, w, true)
	c.s = testStream()
	w.add(event{s: c.s, kind: kindUp})
	whole := make([]byte, 2*maxData+50)
	for i := range whole {
		whole[i] = byte(i / maxData)
	}
	e, ok := c.gather([]fabric.SGE{{Buf: whole[:10]}, {Buf: whole[10:70_000]}, {Buf: whole[70_000:]}}, event{kind: kindWrite})
	if !ok || len(e.data) != 250 || e.size != len(whole) {
		t.Fatalf("%d of %d bytes are copied, want 250 of %d", len(e.data), e.size, len(whole))
	}
	w.add(e)
	testutil.Must(t, w.Close())
	for i, p := range packets(blocks(t, b.Bytes()))[5:] {
		const head = etherLen + ipv4Len + tcpLen + 2 + 14
		data, size, kept, total := 100, maxData, 0, 4
		if i == 2 {
			data, size, kept, total = 50, 50, 6, 6 // whole, with pad and CRC
		}
		if p.kept != head+data+kept || p.size != head+size+total {
			t.Errorf("packet %d: %d of %d bytes, want %d of %d", i, p.kept, p.size, head+data+kept, head+size+total)
			continue
		}
		if want := bytes.Repeat([]byte{byte(i)}, data); !bytes.Equal(p.data[head:][:data], want) {
			t.Errorf("packet %d has data of another segment: %x", i, p.data[head:])
		}
	}
}

// TestRing: as many files as asked for, none longer than asked for, each with the setup of the
// connection in front, and the last packet in the newest.
func TestRing(t *testing.T) {
	name := filepath.Join(t.TempDir(), "ring.pcapng")
	testutil.Must(t, os.WriteFile(name, []byte("older and readable for all"), 0o644))
	w, err := Create(name, &Config{MaxSize: 20_000, Files: 3})
	testutil.Must(t, err)
	s := testStream()
	w.add(event{s: s, kind: kindUp})
	w.add(s.sends(200, 1000)...)
	w.add(event{s: s, kind: kindDown})
	testutil.Must(t, w.Close())
	for i, suffix := range []string{"", ".1", ".2"} {
		st, err := os.Stat(name + suffix)
		testutil.Must(t, err)
		if st.Mode() != 0o600 || st.Size() > 20_000+100 { // and the statistics
			t.Errorf("%s: %d bytes, mode %v", suffix, st.Size(), st.Mode())
		}
		b, err := os.ReadFile(name + suffix)
		testutil.Must(t, err)
		p := packets(blocks(t, b))
		if len(p) < 6 || p[0].data[etherLen+ipv4Len+13] != tcpSYN || !bytes.Contains(p[3].data, []byte("private")) {
			t.Errorf("%s does not begin with the setup", suffix)
		}
		if !bytes.Contains(b, []byte(ContinuedComment)) {
			t.Errorf("%s does not say that it goes on", suffix)
		}
		end := p[len(p)-1].data[etherLen+ipv4Len+13]&tcpPSH == 0
		if end != (i == 0) {
			t.Errorf("%s has the end: %v", suffix, end)
		}
	}
	if left, _ := filepath.Glob(name + "*"); len(left) != 3 {
		t.Errorf("there are %q", left)
	}
}

// TestFull: without a ring, recording ends when the file is full.
func TestFull(t *testing.T) {
	var b bytes.Buffer
	w := New(&b, &Config{MaxSize: 20_000})
	s := testStream()
	w.add(event{s: s, kind: kindUp})
	w.add(s.sends(200, 1000)...)
	w.add(s.sends(1, 1)...)
	testutil.Must(t, w.Close())
	if b.Len() > 20_100 || len(packets(blocks(t, b.Bytes()))) < 15 {
		t.Errorf("%d bytes", b.Len())
	}
	if s := w.Stats(); s.Packets+s.Dropped != 5+201 {
		t.Errorf("%+v, want 206 packets together", s)
	}
}

// TestKilled: without Close, everything that is older than the last write is in the file.
func TestKilled(t *testing.T) {
	name := filepath.Join(t.TempDir(), "killed.pcapng")
	w, err := Create(name, nil)
	testutil.Must(t, err)
	defer w.Close()
	s := testStream()
	w.add(event{s: s, kind: kindUp})
	w.add(s.sends(7, 100)...)
	testutil.Eventually(t, "all packets in the file", func() bool {
		b, err := os.ReadFile(name)
		testutil.Must(t, err)
		return len(packets(blocks(t, b))) == 12
	})
}

var errDisk = errors.New("no space left")

type fullDisk struct{}

func (fullDisk) Write([]byte) (int, error) { return 0, errDisk }

// TestFailingDisk: the first error ends recording, and Close tells it each time.
func TestFailingDisk(t *testing.T) {
	w := New(fullDisk{}, nil)
	s := testStream()
	testutil.Eventually(t, "an error", func() bool {
		w.add(s.sends(1, 10)...)
		return !w.room(0)
	})
	for range 2 {
		if err := w.Close(); !errors.Is(err, errDisk) {
			t.Errorf("Close returned %v", err)
		}
	}
	w.add(s.sends(1, 10)...)
}

// TestCreateRefuses: nothing but a file is replaced.
func TestCreateRefuses(t *testing.T) {
	dir := t.TempDir()
	if _, err := Create(dir, nil); err == nil {
		t.Error("a directory was replaced")
	}
	if _, err := Create(filepath.Join(dir, "none", "x"), nil); err == nil {
		t.Error("a file was made where there is no directory")
	}
}

// TestChunkMemory: what a peer says about our memory is looked up, and never believed.
func TestChunkMemory(t *testing.T) {
	c := newConn(nil, New(io.Discard, nil), true)
	defer c.w.Close()
	mem := make([]byte, 1000)
	c.expose(mem, fabric.Segment{Handle: 7, Offset: 1<<64 - 500, Length: 1000}) // wraps
	for _, tt := range []struct {
		seg  rpcrdma.Segment
		want int // -1: not known
	}{
		{rpcrdma.Segment{Handle: 7, Offset: 1<<64 - 500, Length: 1000}, 1000},
		{rpcrdma.Segment{Handle: 7, Offset: 0, Length: 500}, 500},
		{rpcrdma.Segment{Handle: 7, Offset: 0, Length: 501}, -1},
		{rpcrdma.Segment{Handle: 7, Offset: 1<<64 - 501, Length: 1}, -1},
		{rpcrdma.Segment{Handle: 7, Offset: 1<<64 - 500, Length: 1<<32 - 1}, -1},
		{rpcrdma.Segment{Handle: 7, Offset: 500, Length: 1}, -1},
		{rpcrdma.Segment{Handle: 8, Offset: 1<<64 - 500, Length: 1}, -1},
	} {
		c.turn++
		got, ok := c.find(&tt.seg)
		if ok != (tt.want >= 0) || ok && len(got) != tt.want {
			t.Errorf("%+v: %d bytes, %v, want %d", tt.seg, len(got), ok, tt.want)
		}
	}
	// The same memory twice in one message is copied once.
	c.turn++
	half := rpcrdma.Segment{Handle: 7, Offset: 0, Length: 500}
	if _, ok := c.find(&half); !ok {
		t.Error("not known")
	}
	if _, ok := c.find(&half); ok {
		t.Error("the same memory is copied twice for one message")
	}
	c.conceal(fabric.Segment{Handle: 7}, mem)
	c.turn++
	if _, ok := c.find(&half); ok {
		t.Error("memory is read that is not exposed any more")
	}
}

// FuzzReceived: no message makes the recorder fail or copy more than the exposed memory.
func FuzzReceived(f *testing.F) {
	reply := rpcrdma.AppendHeader(nil, &rpcrdma.Header{XID: 1, Vers: 1, Credit: 1, Proc: rpcrdma.ProcMsg,
		Writes: []rpcrdma.WriteChunk{{{Handle: 7, Length: 6, Offset: 10}}}})
	reply = append(reply, 0, 0, 0, 1, 0, 0, 0, 1)
	f.Add(reply)
	f.Add(rpcrdma.AppendHeader(nil, &rpcrdma.Header{XID: 1, Vers: 2, Credit: 1, Proc: rpcrdma.ProcNomsg,
		HasReply: true, Reply: rpcrdma.WriteChunk{{Handle: 7, Length: 5, Offset: 10}, {Handle: 7, Length: 1 << 31, Offset: 15}}}))
	f.Add(rpcrdma.AppendHeader(nil, &rpcrdma.Header{XID: 1, Vers: 1, Proc: rpcrdma.ProcError, Err: rpcrdma.ErrChunk}))
	f.Fuzz(func(t *testing.T, msg []byte) {
		for _, cfg := range []Config{{}, {Framing: RoCE}, {SnapLen: 3}} {
			var b bytes.Buffer
			w := New(&b, &cfg)
			c := newConn(nil, w, true)
			c.s = testStream()
			w.add(event{s: c.s, kind: kindUp})
			c.expose(make([]byte, 100), fabric.Segment{Handle: 7, Offset: 10, Length: 100})
			c.recvs = []recv{{1, msg}}
			c.completed([]fabric.WC{{ID: 1, Op: fabric.WCRecv, Len: uint32(len(msg))}})
			testutil.Must(t, w.Close())
			copied := 0
			for _, p := range packets(blocks(t, b.Bytes())) {
				copied += p.size
			}
			if most := 100 + len(msg) + 200*(len(msg)/16+len(msg)/maxData+10); copied > most {
				t.Errorf("%d bytes in packets, want %d at most", copied, most)
			}
		}
	})
}

func Example() {
	var file bytes.Buffer
	w := New(&file, &Config{SnapLen: 256})
	p := w.Provider(noProvider{}) // such as iwarp.New(iwarp.Config{})
	_, err := p.Resolve(context.Background(), "192.0.2.1:20049", fabric.ConnAttr{})
	fmt.Println(p.Name(), err)
	fmt.Println(w.Close())
	// Output:
	// none use of closed network connection
	// <nil>
}

type noProvider struct{ fabric.Provider }

func (noProvider) Name() string { return "none" }
func (noProvider) Resolve(context.Context, string, fabric.ConnAttr) (fabric.Conn, error) {
	return nil, net.ErrClosed
}
