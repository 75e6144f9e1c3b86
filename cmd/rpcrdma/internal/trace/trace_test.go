package trace

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/rpcrdma/rpcrdma/internal/testing/testutil"
)

// The captures in testdata are of one get, one put and one ls with our server: loopback.pcap was
// recorded by tcpdump, with iWARP on the loopback interface, the others are of --capture at the
// server.
var captures = []string{"loopback.pcap", "iwarp.pcapng", "roce.pcapng"}

func load(t testing.TB, name string) []byte {
	t.Helper()
	b, err := os.ReadFile(filepath.Join("testdata", name))
	testutil.Must(t, err)
	return b
}

// TestGolden compares the output for a capture, as text and as JSON.
func TestGolden(t *testing.T) {
	for _, name := range captures {
		t.Run(name, func(t *testing.T) {
			f, err := Read(bytes.NewReader(load(t, name)), true)
			testutil.Must(t, err, f.Err)
			var text, json bytes.Buffer
			testutil.Must(t, f.Text(&text), f.JSON(&json))
			testutil.Golden(t, filepath.Join("testdata", name+".golden"), text.Bytes())
			testutil.Golden(t, filepath.Join("testdata", name+".json.golden"), json.Bytes())
		})
	}
}

// shape returns the part that all captures of the test have in common.
func shape(f *File) (s string) {
	for _, c := range f.Conversations {
		s += fmt.Sprintf("version %d, unanswered %d, holes %d, anomalies %v\n", c.Version, c.Unanswered, c.Holes, c.Rules)
		lines := []string{}
		for _, p := range c.Procedures {
			lines = append(lines, fmt.Sprintf("%s: %d calls, %d failed, %d %d %d %d %d, %d %d\n", p.Name, p.Count, p.Failed,
				p.Inline, p.ReadChunk, p.WriteChunk, p.LongCall, p.ReplyChunk, p.ReadBytes, p.WriteBytes))
		}
		slices.Sort(lines)
		s += strings.Join(lines, "")
	}
	return s
}

func readAll(t testing.TB, b []byte) *File {
	t.Helper()
	f, err := Read(bytes.NewReader(b), false)
	testutil.Must(t, err)
	return f
}

// TestSame: all three captures show the same session.
func TestSame(t *testing.T) {
	want := shape(readAll(t, load(t, captures[0])))
	for _, part := range []string{"NFS v3 READ: 1 calls, 0 failed, 0 0 1 0 0, 0 5001", "NFS v3 WRITE: 1 calls, 0 failed, 0 1 0 0 0, 5001 0", "NFS v3 READDIRPLUS: 1 calls, 0 failed, 0 0 0 0 1, 0 "} {
		if !strings.Contains(want, part) {
			t.Errorf("%q is not in\n%s", part, want)
		}
	}
	for _, name := range captures[1:] {
		if got := shape(readAll(t, load(t, name))); got != want {
			t.Errorf("%s: got\n%s\nwant\n%s", name, got, want)
		}
	}
}

// packetsOf returns the packets of a file.
func packetsOf(t testing.TB, b []byte) (all []Packet) {
	t.Helper()
	d, err := NewReader(bytes.NewReader(b))
	testutil.Must(t, err)
	for {
		var p Packet
		err := d.Next(&p)
		if err == io.EOF {
			return all
		}
		testutil.Must(t, err)
		p.Data = slices.Clone(p.Data)
		all = append(all, p)
	}
}

// pcap writes a file in the older format.
func pcap(order binary.AppendByteOrder, nanos bool, link uint32, packets []Packet) []byte {
	magic, unit := uint32(0xa1b2c3d4), int64(1000)
	if nanos {
		magic, unit = 0xa1b23c4d, 1
	}
	b := order.AppendUint32(nil, magic)
	b = order.AppendUint16(b, 2)
	b = order.AppendUint16(b, 4)
	b = append(b, make([]byte, 8)...)
	b = order.AppendUint32(b, 1<<18)
	b = order.AppendUint32(b, link)
	for _, p := range packets {
		b = order.AppendUint32(b, uint32(p.At/1e9))
		b = order.AppendUint32(b, uint32(p.At%1e9/unit))
		b = order.AppendUint32(b, uint32(len(p.Data)))
		b = order.AppendUint32(b, uint32(p.Size))
		b = append(b, p.Data...)
	}
	return b
}

// pcapng writes a file in the newer format, with blocks that are of no interest.
func pcapng(order binary.AppendByteOrder, link uint32, resolution byte, packets []Packet) (b []byte) {
	block := func(kind uint32, body []byte) {
		body = append(body, make([]byte, -len(body)&3)...)
		b = order.AppendUint32(b, kind)
		b = order.AppendUint32(b, uint32(len(body)+12))
		b = append(b, body...)
		b = order.AppendUint32(b, uint32(len(body)+12))
	}
	head := order.AppendUint32(nil, 0x1a2b3c4d)
	head = order.AppendUint16(head, 1)
	block(0x0a0d0d0a, append(head, make([]byte, 10)...))
	iface := append(order.AppendUint16(nil, uint16(link)), make([]byte, 6)...)
	iface = order.AppendUint16(iface, 9)
	iface = order.AppendUint16(iface, 1)
	block(1, append(iface, resolution, 0, 0, 0))
	block(0xbad, []byte("not known"))
	for _, p := range packets {
		at := uint64(p.At)
		if resolution == 0x80|20 {
			at = uint64(p.At/1e9)<<20 | uint64(p.At%1e9)<<20/1e9
		}
		body := order.AppendUint32(nil, 0)
		body = order.AppendUint32(body, uint32(at>>32))
		body = order.AppendUint32(body, uint32(at))
		body = order.AppendUint32(body, uint32(len(p.Data)))
		body = order.AppendUint32(body, uint32(p.Size))
		body = append(append(body, p.Data...), make([]byte, -len(p.Data)&3)...)
		if p.Comment != "" {
			body = order.AppendUint16(body, 1)
			body = order.AppendUint16(body, uint16(len(p.Comment)))
			body = append(body, p.Comment...)
		}
		block(6, body)
	}
	return b
}

// front replaces the first drop bytes of packets by others.
func front(packets []Packet, drop int, put string) []Packet {
	all := slices.Clone(packets)
	for i := range all {
		p := &all[i]
		p.Data = append([]byte(put), p.Data[drop:]...)
		p.Size += len(put) - drop
	}
	return all
}

// ipv6 makes IPv6 of the IPv4 of Ethernet packets, with an extension header.
func ipv6(packets []Packet) []Packet {
	all := slices.Clone(packets)
	for i := range all {
		b := all[i].Data
		ip := b[14:]
		total := binary.BigEndian.Uint16(ip[2:]) - 20
		six := append([]byte{}, b[:12]...)
		six = append(six, 0x86, 0xdd, 0x60, 0, 0, 0)
		six = binary.BigEndian.AppendUint16(six, total+8)
		six = append(six, 60, 64) // destination options
		six = append(append(append(six, 0xfd), make([]byte, 11)...), ip[12:16]...)
		six = append(append(append(six, 0xfd), make([]byte, 11)...), ip[16:20]...)
		six = append(six, ip[9], 0, 1, 4, 0, 0, 0, 0)
		all[i].Data = append(six, ip[20:]...)
		all[i].Size = len(all[i].Data)
	}
	return all
}

// TestContainers: formats of files and links make no difference.
func TestContainers(t *testing.T) {
	for _, name := range []string{"loopback.pcap", "roce.pcapng"} {
		p := packetsOf(t, load(t, name))
		for i := range p {
			p[i].Comment = "" // which only one of the formats has
		}
		plain := readAll(t, pcap(binary.LittleEndian, true, linkEthernet, p))
		want := shape(plain)
		little, big := binary.LittleEndian, binary.BigEndian
		cooked := "\x00\x00\x03\x04\x00\x06\x00\x00\x00\x00\x00\x00\x00\x00"
		for what, file := range map[string][]byte{
			"little endian":       pcap(little, false, linkEthernet, p),
			"big endian":          pcap(big, false, linkEthernet, p),
			"nanoseconds, little": pcap(little, true, linkEthernet, p),
			"nanoseconds, big":    pcap(big, true, linkEthernet, p),
			"pcapng, little":      pcapng(little, linkEthernet, 9, p),
			"pcapng, big":         pcapng(big, linkEthernet, 9, p),
			"pcapng, binary time": pcapng(big, linkEthernet, 0x80|20, p),
			"two sections":        slices.Concat(pcapng(big, linkEthernet, 9, p[:30]), pcapng(little, linkEthernet, 9, p[30:])),
			"VLAN":                pcap(little, false, linkEthernet, front(p, 14, "ddddddssssss\x81\x00\x00\x05\x08\x00")),
			"two VLAN tags":       pcap(little, false, linkEthernet, front(p, 14, "ddddddssssss\x88\xa8\x00\x05\x81\x00\x00\x05\x08\x00")),
			"Linux cooked":        pcap(little, false, linkCooked, front(p, 14, cooked+"\x08\x00")),
			"Linux cooked 2":      pcap(big, false, linkCooked2, front(p, 14, "\x08\x00\x00\x00"+cooked+"\x00\x00")),
			"raw":                 pcap(little, false, linkRaw, front(p, 14, "")),
			"IPv4":                pcap(little, false, linkIPv4, front(p, 14, "")),
			"BSD loopback":        pcap(little, false, linkNull, front(p, 14, "\x02\x00\x00\x00")),
			"IPv6":                pcap(little, false, linkEthernet, ipv6(p)),
			"IPv6, raw":           pcapng(little, linkIPv6, 9, front(ipv6(p), 14, "")),
		} {
			f, err := Read(bytes.NewReader(file), false)
			testutil.Must(t, err, f.Err)
			if got := shape(f); got != want {
				t.Errorf("%s, %s: got\n%s\nwant\n%s", name, what, got, want)
			}
			if d := f.Last - f.First - (plain.Last - plain.First); d < -2000 || d > 2000 {
				t.Errorf("%s, %s: the session takes %d ns longer", name, what, d)
			}
		}
	}
}

// TestDisorder: packets that come again or change places make no difference.
func TestDisorder(t *testing.T) {
	for _, name := range captures {
		p := packetsOf(t, load(t, name))
		want := shape(readAll(t, pcapng(binary.LittleEndian, linkEthernet, 9, p)))
		start := 7 // after the set-up
		swapped := slices.Clone(p)
		for i := start; i+1 < len(p); i += 2 {
			x, y := &swapped[i], &swapped[i+1]
			var a, b segment
			if dissect(x, &a) && dissect(y, &b) && a.from == b.from && a.size > 0 && b.size > 0 && a.flags&tcpFIN == 0 && b.flags&tcpFIN == 0 && !connects(x) && !connects(y) {
				x.Data, y.Data, x.Size, y.Size = y.Data, x.Data, y.Size, x.Size
				x.Comment, y.Comment = y.Comment, x.Comment
			}
		}
		if got := shape(readAll(t, pcapng(binary.LittleEndian, linkEthernet, 9, swapped))); got != want {
			t.Errorf("%s, packets swapped: got\n%s\nwant\n%s", name, got, want)
		}
		twice := []Packet{}
		for i := range p {
			twice = append(twice, p[i])
			if !connects(&p[i]) && i > start {
				twice = append(twice, p[i])
			}
		}
		f := readAll(t, pcapng(binary.LittleEndian, linkEthernet, 9, twice))
		if got := shape(f); got != want {
			t.Errorf("%s, packets sent twice: got\n%s\nwant\n%s", name, got, want)
		}
		if f.Conversations[0].Retransmitted == 0 {
			t.Errorf("%s: no packet was sent again", name)
		}
	}
}

// connects reports whether a packet belongs to the set-up or the end of a RoCE connection.
func connects(p *Packet) bool {
	var s segment
	var h bth
	return dissect(p, &s) && !s.tcp && h.parse(s.data, s.size) && h.opcode == udSendOnly
}

// TestLoss: what is missing is said, is no anomaly, and hides no more than it has to.
func TestLoss(t *testing.T) {
	for _, name := range captures {
		p := packetsOf(t, load(t, name))
		whole := len(readAll(t, pcapng(binary.LittleEndian, linkEthernet, 9, p)).Conversations)
		for seed := range uint64(50) {
			r := rand.New(rand.NewPCG(seed, 0))
			left := slices.DeleteFunc(slices.Clone(p), func(Packet) bool { return r.IntN(20) == 0 })
			f := readAll(t, pcapng(binary.LittleEndian, linkEthernet, 9, left))
			calls := 0
			for _, c := range f.Conversations {
				for _, x := range c.Procedures {
					calls += x.Count
				}
				for rule, n := range c.Rules {
					t.Errorf("%s, seed %d: %d times %s", name, seed, n, rule)
				}
			}
			if len(f.Conversations) > whole+3 || calls < 5 {
				t.Errorf("%s, seed %d: %d conversations, %d calls", name, seed, len(f.Conversations), calls)
			}
		}
	}
}

// TestSnapped: captures with packets cut short still show the calls.
func TestSnapped(t *testing.T) {
	for _, name := range captures {
		p := packetsOf(t, load(t, name))
		for i := range p {
			p[i].Data = p[i].Data[:min(len(p[i].Data), 300)]
		}
		f := readAll(t, pcapng(binary.LittleEndian, linkEthernet, 9, p))
		s := shape(f)
		parts := []string{"NFS v3 WRITE: 1 calls", "NFS v3 READ: 1 calls", "NFS v3 READDIRPLUS: 1 calls"}
		if name == "loopback.pcap" {
			parts = parts[:1] // the others have replies in one packet with an RDMA Write
		}
		for _, part := range parts {
			if !strings.Contains(s, part) {
				t.Errorf("%s: %q is not in\n%s", name, part, s)
			}
		}
		if strings.Contains(s, "map[V") {
			t.Errorf("%s: there are anomalies in\n%s", name, s)
		}
	}
}

// TestDamagedFiles: a file that ends in the middle is read up to there, and one that is wrong is refused.
func TestDamagedFiles(t *testing.T) {
	b := load(t, "iwarp.pcapng")
	f, err := Read(bytes.NewReader(b[:len(b)/2]), false)
	testutil.Must(t, err)
	if f.Err == nil || len(f.Conversations) == 0 {
		t.Errorf("of half a file: %v, %d conversations", f.Err, len(f.Conversations))
	}
	for _, bad := range []string{"", "abc", "abcdefgh", string(b[:10]), string(load(t, "loopback.pcap")[:20])} {
		if _, err := Read(strings.NewReader(bad), false); !errors.Is(err, ErrFormat) {
			t.Errorf("%q: %v", bad, err)
		}
	}
	wrong := slices.Clone(b)
	binary.LittleEndian.PutUint32(wrong[binary.LittleEndian.Uint32(b[4:])+4:], 1<<31)
	if f, err := Read(bytes.NewReader(wrong), false); err == nil && f.Err == nil {
		t.Error("a block of 2 GiB was read")
	}
}

// TestNothing: of a file without RPC-over-RDMA one learns what else it has.
func TestNothing(t *testing.T) {
	const sought = "no RPC-over-RDMA: looked for iWARP over TCP, on any port, and RoCE v2, on UDP port 4791, and found "
	tcp := packetsOf(t, load(t, "loopback.pcap"))
	roce := packetsOf(t, load(t, "roce.pcapng"))
	headers, others := slices.Clone(tcp[:9]), slices.Clone(tcp[:5])
	for i := range headers { // what is in them was not captured
		headers[i].Data = headers[i].Data[:min(len(headers[i].Data), 74)]
	}
	for i := range others { // iWARP of a program that has other private data
		others[i].Data = bytes.Replace(others[i].Data, []byte("\xf6\xab\x0e\x18"), []byte("else"), 1)
	}
	for _, tt := range []struct {
		packets []Packet
		want    string
	}{
		{nil, "no packets"},
		{headers, "9 packets: 9 TCP in 1 connection (0 iWARP)"},
		{others, "5 packets: 5 TCP in 1 connection (1 iWARP)"},
		{roce[:1], "1 packet: 1 RoCE v2"},
		{[]Packet{headers[0], roce[0], {Data: []byte("who has?"), Size: 8}}, "3 packets: 1 TCP in 1 connection (0 iWARP), 1 RoCE v2, 1 other"},
	} {
		f := readAll(t, pcapng(binary.LittleEndian, linkEthernet, 9, tt.packets))
		if got := f.Nothing(); len(f.Conversations) > 0 || got != sought+tt.want {
			t.Errorf("%d conversations, and\n%s, want\n%s", len(f.Conversations), got, tt.want)
		}
	}
}

// TestHostileComments: comments do nothing to a terminal.
func TestHostileComments(t *testing.T) {
	for _, name := range captures[1:] {
		p := packetsOf(t, load(t, name))
		for i := range p {
			p[i].Comment += "\x1b[2J\u202e\n" + strings.Repeat("x", 1000)
		}
		f := readAll(t, pcapng(binary.LittleEndian, linkEthernet, 9, p))
		var text bytes.Buffer
		testutil.Must(t, f.Text(&text))
		for line := range strings.Lines(text.String()) {
			if len(line) > 400 || strings.ContainsAny(line, "\x1b\u202e") {
				t.Errorf("%s: %.300q", name, line)
			}
		}
		if !strings.Contains(text.String(), "?[2J") {
			t.Errorf("%s: no comment is printed in\n%s", name, &text)
		}
	}
}

// FuzzRead: no file makes the reader fail, and its text and JSON can be printed.
func FuzzRead(f *testing.F) {
	for _, name := range captures {
		b := load(f, name)
		f.Add(b[:min(len(b), 2500)])
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		x, err := Read(bytes.NewReader(b), true)
		if (err == nil) == (x == nil) {
			t.Fatalf("%v, %v", x, err)
		}
		if err == nil {
			testutil.Must(t, x.Text(io.Discard), x.JSON(io.Discard))
		}
	})
}

// FuzzPackets mutates what is in the packets, and not the file around them.
func FuzzPackets(f *testing.F) {
	f.Add(uint16(9), uint16(60), byte(0x40), uint8(1))
	f.Add(uint16(20), uint16(57), byte(0xff), uint8(2))
	base := make([][]Packet, len(captures))
	for i, name := range captures {
		base[i] = packetsOf(f, load(f, name))
	}
	f.Fuzz(func(t *testing.T, n, at uint16, xor byte, file uint8) {
		p := slices.Clone(base[int(file)%len(base)])
		x := &p[int(n)%len(p)]
		x.Data = slices.Clone(x.Data)
		x.Data[int(at)%len(x.Data)] ^= xor
		got := readAll(t, pcapng(binary.LittleEndian, linkEthernet, 9, p))
		testutil.Must(t, got.Text(io.Discard), got.JSON(io.Discard))
	})
}
