package rpcbind

import (
	"bytes"
	"io"
	"net"
	"net/netip"
	"reflect"
	"testing"
	"time"

	"github.com/rpcrdma/rpcrdma/internal/testing/testutil"
	"github.com/rpcrdma/rpcrdma/proto/oncrpc"
	"github.com/rpcrdma/rpcrdma/proto/xdr"
)

// goldenMapping is an rpcb of RFC 1833 section 2.1, put together by hand: r_prog,
// r_vers, r_netid, r_addr, r_owner.
const goldenMapping = `
	000186a3 00000003
	00000004 72646d61
	0000000f 3139322e302e322e312e37382e3831 00
	00000009 737570657275736572 000000`

// goldenList is the end of what rpcbind 1.2.6 answered to DUMP of version 4.
const goldenList = `
	00000001 000186a0 00000003 00000005 6c6f63616c 000000
		00000011 2f72756e2f72706362696e642e736f636b 000000 00000009 737570657275736572 000000
	00000001 000186a3 00000003 00000004 72646d61
		0000000f 3132372e302e302e312e37382e3831 00 00000007 756e6b6e6f776e 00
	00000001 000186a5 00000003 00000003 746370 00
		0000000f 3132372e302e302e312e37382e3832 00 00000007 756e6b6e6f776e 00
	00000000`

// goldenPorts is a pmaplist of RFC 1833 section 3.1: prog, vers, prot, port. The last
// protocol is SCTP.
const goldenPorts = `
	00000001 000186a0 00000002 00000006 0000006f
	00000001 000186a3 00000003 00000011 00000801
	00000001 000186a3 00000003 00000084 00000801
	00000000`

func TestGolden(t *testing.T) {
	t.Run("CTX-1833-1 a mapping", func(t *testing.T) {
		m := Mapping{100003, 3, RDMA, "192.0.2.1.78.81", "superuser"}
		want := testutil.Hex(t, goldenMapping)
		if got := m.append(nil); !bytes.Equal(got, want) {
			t.Errorf("%x, want %x", got, want)
		}
		d := xdr.NewDecoder(want)
		var e entry
		e.Decode(&d)
		if err := d.End(); err != nil || e.mapping() != m {
			t.Errorf("%v, %v", e.mapping(), err)
		}
	})
	t.Run("CTX-1833-1 a port mapper's mapping", func(t *testing.T) {
		e := portMapping{100003, 3, protoTCP, 2049}
		if got, want := e.Append(nil), testutil.Hex(t, "000186a3 00000003 00000006 00000801"); !bytes.Equal(got, want) {
			t.Errorf("%x, want %x", got, want)
		}
	})
	for name, tt := range map[string]struct {
		vers   uint32
		golden string
		want   []Mapping
	}{
		"CTX-1833-1 a list": {version4, goldenList, []Mapping{
			{100000, 3, "local", "/run/rpcbind.sock", "superuser"},
			{100003, 3, RDMA, "127.0.0.1.78.81", "unknown"},
			{100005, 3, TCP, "127.0.0.1.78.82", "unknown"},
		}},
		"CTX-1833-1 a port mapper's list": {version2, goldenPorts, []Mapping{
			{100000, 2, TCP, "0.0.0.0.0.111", ""},
			{100003, 3, UDP, "0.0.0.0.8.1", ""},
			{100003, 3, "132", "0.0.0.0.8.1", ""},
		}},
		"an empty list": {version3, "00000000", nil},
	} {
		t.Run(name, func(t *testing.T) {
			d := xdr.NewDecoder(testutil.Hex(t, tt.golden))
			if got := decodeList(&d, tt.vers); d.End() != nil || !reflect.DeepEqual(got, tt.want) {
				t.Errorf("%v, %v, want %v", got, d.Err(), tt.want)
			}
		})
	}
	t.Run("names", func(t *testing.T) {
		for p, want := range map[uint32]string{1: "SET", 2: "UNSET", 3: "GETADDR", 4: "DUMP", 5: "PROC(5)"} {
			if procName(p) != want {
				t.Errorf("procedure %d is %s", p, procName(p))
			}
		}
	})
}

// A decoded list stays within its limits, and its encoding decodes to the same list.
func FuzzList(f *testing.F) {
	f.Add(testutil.Hex(f, goldenList), false)
	f.Add(testutil.Hex(f, goldenPorts), true)
	f.Add(testutil.Hex(f, "00000001 000186a0 00000004 ffffffff"), false)
	f.Fuzz(func(t *testing.T, b []byte, portmap bool) {
		d := xdr.NewDecoder(b)
		if portmap {
			if list := decodeList(&d, version2); len(list) > len(b)/20 {
				t.Errorf("%d mappings out of %d bytes", len(list), len(b))
			}
			return
		}
		list := decodeList(&d, version4)
		if len(list) > maxMappings || len(list) > len(b)/24 {
			t.Errorf("%d mappings out of %d bytes", len(list), len(b))
		}
		if d.Err() != nil {
			return
		}
		var again []byte
		for _, m := range list {
			again = m.append(xdr.AppendBool(again, true))
		}
		again = xdr.AppendBool(again, false)
		d2 := xdr.NewDecoder(again)
		if back := decodeList(&d2, version4); d2.End() != nil || !reflect.DeepEqual(back, list) || len(again) != d.Offset() {
			t.Errorf("%v becomes %v, %v", list, back, d2.Err())
		}
	})
}

// A recorded is a connection to a peer that sends recorded bytes. A recorded xid of zero is replaced
// by that of the call.
type recorded struct {
	net.Conn
	say  []byte
	mark int // bytes of a record mark before messages
}

func (r *recorded) Write(b []byte) (int, error) {
	if xid := r.say[min(r.mark, len(r.say)):]; len(xid) >= 4 && bytes.Equal(xid[:4], make([]byte, 4)) {
		copy(xid, b[r.mark:][:4])
	}
	return len(b), nil
}

func (r *recorded) Read(b []byte) (int, error) {
	if len(r.say) == 0 {
		return 0, io.EOF
	}
	n := copy(b, r.say)
	r.say = r.say[n:]
	return n, nil
}

func (r *recorded) SetDeadline(time.Time) error     { return nil }
func (r *recorded) SetReadDeadline(time.Time) error { return nil }

// For any bytes over TCP or in a datagram, a call ends with a completely decoded reply or an
// error, and buffers at most the limit of a reply.
func FuzzAnswers(f *testing.F) {
	answer := func(results string) []byte {
		msg := append(reply(0, oncrpc.Success), testutil.Hex(f, results)...)
		return append(oncrpc.AppendRecordMark(nil, len(msg), true), msg...)
	}
	f.Add(answer(goldenList), false, true)
	f.Add(answer(goldenPorts), false, false)
	f.Add(answer("00000801"), false, false)
	f.Add(answer(goldenList)[4:], true, true)
	f.Add(append([]byte{0, 0, 0, 4, 0, 0, 0, 0}, answer(goldenList)...), false, true)
	f.Add([]byte{0x7f, 0xff, 0xff, 0xff}, false, true)
	f.Fuzz(func(t *testing.T, say []byte, udp, four bool) {
		vers := version2
		if four {
			vers = version4
		}
		dial := func() *conn {
			r := &recorded{say: bytes.Clone(say), mark: oncrpc.RecordMarkSize}
			c := &conn{Conn: r, netid: TCP, wait: time.Second, remote: netip.MustParseAddrPort("127.0.0.1:111")}
			if udp {
				c.netid, r.mark = UDP, 0
			}
			return c
		}
		c := dial()
		var list []Mapping
		err := c.call(t.Context(), vers, procDump, nil, func(d *xdr.Decoder) { list = decodeList(d, vers) })
		if err == nil && 20*len(list)+oncrpc.MinReplySize > len(say) {
			t.Fatalf("%d mappings out of %d bytes", len(list), len(say))
		}
		if cap(c.buf) > 2*maxReply+1<<16 {
			t.Fatalf("%d bytes are kept", cap(c.buf))
		}
		for _, netid := range []Netid{TCP, RDMA} { // by GETADDR, and by DUMP
			c = dial()
			if vers == version2 {
				if at, err := getPort(t.Context(), c, Mapping{Prog: 1, Vers: 1, Netid: netid}); err == nil && at.Port() == 0 {
					t.Fatalf("registered at %v", at)
				}
			} else if uaddr, err := getAddr(t.Context(), c, vers, Mapping{Prog: 1, Vers: 1, Netid: netid}); err == nil && len(uaddr) > maxString {
				t.Fatalf("an address of %d bytes", len(uaddr))
			}
		}
	})
}

// Searching a list for one program does not allocate.
func TestListAllocs(t *testing.T) {
	b, ports := testutil.Hex(t, goldenList), testutil.Hex(t, goldenPorts)
	found := 0
	if n := testing.AllocsPerRun(100, func() {
		var e entry
		d := xdr.NewDecoder(b)
		for d.Optional() {
			if e.Decode(&d); Netid(e.netid) == RDMA {
				found++
			}
		}
		var p portEntry
		d = xdr.NewDecoder(ports)
		for d.Optional() {
			p.Decode(&d)
		}
	}); n != 0 || found == 0 {
		t.Errorf("%v allocations, %d found", n, found)
	}
}
