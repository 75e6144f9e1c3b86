package rpcrdma

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"testing"

	"github.com/rpcrdma/rpcrdma/internal/testing/testutil"
	"github.com/rpcrdma/rpcrdma/proto/xdr"
)

// The bytes were written by hand from the XDR in docs/protocol.md.
var propertiesGolden = []struct {
	name string
	wire string
	p    Properties
}{
	{"offer", "00000000 00010000 00004000 00000001",
		Properties{Dir: PropOffer, SendSize: 65536, RecvSize: 16384, RemoteInvalidation: true}},
	{"accept with the smallest sizes", "00000001 00001000 00001000 00000000",
		Properties{Dir: PropAccept, SendSize: 4096, RecvSize: 4096}},
	{"the largest sizes", "00000001 fffffffc fffffffc 00000000",
		Properties{Dir: PropAccept, SendSize: math.MaxUint32 - 3, RecvSize: math.MaxUint32 - 3}},
	{"malformed", "00000002 00000001", Properties{Dir: PropReject, Reason: PropMalformed}},
	{"not now", "00000002 00000002", Properties{Dir: PropReject, Reason: PropNotNow}},
	{"a reason that nobody knows", "00000002 ffffffff", Properties{Dir: PropReject, Reason: math.MaxUint32}},
}

func TestPropertiesGolden(t *testing.T) {
	for _, tt := range propertiesGolden {
		t.Run(tt.name, func(t *testing.T) {
			wire := testutil.Hex(t, tt.wire)
			if want := map[PropDir]int{PropOffer: PropertiesSize, PropAccept: PropertiesSize, PropReject: PropRejectSize}[tt.p.Dir]; len(wire) != want {
				t.Fatalf("the vector has %d bytes, not %d", len(wire), want)
			}
			if got := AppendProperties([]byte("x"), tt.p)[1:]; !bytes.Equal(got, wire) {
				t.Errorf("encoded %x, want %x", got, wire)
			}
			if got, err := ConsumeProperties(wire); err != nil || got != tt.p {
				t.Errorf("decoded %+v, %v; want %+v", got, err, tt.p)
			}
		})
	}
}

// The operation in a whole message: the client's offer.
func TestPropertiesMessage(t *testing.T) {
	h := Header{XID: 0x0a0b0c0d, Vers: Version2, Credit: 32, Proc: ProcOptional, OptType: OptProperties,
		OptInfo: AppendProperties(nil, propertiesGolden[0].p)}
	wire := testutil.Hex(t, "0a0b0c0d 00000002 00000020 00000005  52500001 00000010  00000000 00010000 00004000 00000001")
	if got := AppendHeader(nil, &h); !bytes.Equal(got, wire) {
		t.Errorf("encoded\n%x, want\n%x", got, wire)
	}
	var got Header
	if n, err := ConsumeHeader(wire, &got, bothVersions); err != nil || n != len(wire) || got.OptType != OptProperties {
		t.Fatalf("n = %d, error %v, operation %#x", n, err, got.OptType)
	}
	if p, err := ConsumeProperties(got.OptInfo); err != nil || p != propertiesGolden[0].p {
		t.Errorf("properties %+v, %v", p, err)
	}
}

func TestConsumePropertiesRefuses(t *testing.T) {
	for _, tt := range []struct {
		name   string
		wire   string
		offset int
		what   string
		read   Properties // before the fault
	}{
		{"nothing, which is an offer", "", 0, "uint32 is cut short", Properties{}},
		{"part of a word", "000000", 0, "uint32 is cut short", Properties{}},
		{"an unknown message", "00000003 00001000 00001000 00000000", 0, "rdma_dir is unknown", Properties{Dir: 3}},
		{"an offer of one size", "00000000 00001000", 8, "uint32 is cut short", Properties{SendSize: 4096}},
		{"an offer without flags", "00000000 00001000 00002000 000000", 12, "uint32 is cut short", Properties{SendSize: 4096, RecvSize: 8192}},
		{"bytes behind an offer", "00000000 00001000 00001000 00000000 00", 16, "bytes after the last item", Properties{SendSize: 4096, RecvSize: 4096}},
		{"a send size below 4096", "00000000 00000ffc 00001000 00000000", 4, "rdma_send_size is below 4096, or no multiple of 4", Properties{SendSize: 4092, RecvSize: 4096}},
		{"a send size that is no multiple of four", "00000000 00001001 00001000 00000000", 4, "rdma_send_size is below 4096, or no multiple of 4", Properties{SendSize: 4097, RecvSize: 4096}},
		{"a receive size below 4096", "00000001 00001000 00000000 00000000", 8, "rdma_recv_size is below 4096, or no multiple of 4", Properties{Dir: PropAccept, SendSize: 4096}},
		{"a receive size that is no multiple of four", "00000001 00001000 ffffffff 00000001", 8, "rdma_recv_size is below 4096, or no multiple of 4",
			Properties{Dir: PropAccept, SendSize: 4096, RecvSize: math.MaxUint32, RemoteInvalidation: true}},
		{"a rejection without reason", "00000002", 4, "uint32 is cut short", Properties{Dir: PropReject}},
		{"bytes behind a rejection", "00000002 00000001 00000000", 8, "bytes after the last item", Properties{Dir: PropReject, Reason: PropMalformed}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			p, err := ConsumeProperties(testutil.Hex(t, tt.wire))
			var bad *xdr.DecodeError
			if !errors.As(err, &bad) || bad.Offset != tt.offset || bad.What != tt.what {
				t.Errorf("error %+v, want byte %d, %q", err, tt.offset, tt.what)
			}
			if p != tt.read {
				t.Errorf("read %+v, want %+v", p, tt.read)
			}
		})
	}
}

// Undefined bits of rdma_flags are ignored.
func TestPropertiesFlags(t *testing.T) {
	for flags, want := range map[string]bool{"00000001": true, "ffffffff": true, "fffffffe": false} {
		p, err := ConsumeProperties(testutil.Hex(t, "00000000 00001000 00001000"+flags))
		if err != nil || p.RemoteInvalidation != want {
			t.Errorf("flags %s: %+v, %v", flags, p, err)
		}
	}
}

func TestPropertiesSendInline(t *testing.T) {
	client := Properties{Dir: PropOffer, SendSize: 8192, RecvSize: 4096}
	server := Properties{Dir: PropAccept, SendSize: 65536, RecvSize: 16384}
	huge := Properties{SendSize: math.MaxUint32 - 3, RecvSize: math.MaxUint32 - 3}
	if call, reply, most := client.SendInline(server), server.SendInline(client), huge.SendInline(huge); call != 8192 || reply != 4096 || most != math.MaxInt32 {
		t.Errorf("calls of %d bytes, replies of %d, at most %d", call, reply, most)
	}
}

func TestPropertiesPanics(t *testing.T) {
	defer func() {
		if r := recover(); r != "rpcrdma: the properties operation has no RDMA_PROP_DIR(3)" {
			t.Errorf("recovered %v", r)
		}
	}()
	AppendProperties(nil, Properties{Dir: 3})
}

func TestPropertiesStrings(t *testing.T) {
	for _, tt := range []struct {
		v    fmt.Stringer
		want string
	}{
		{PropOffer, "RDMA_PROP_OFFER"}, {PropAccept, "RDMA_PROP_ACCEPT"}, {PropReject, "RDMA_PROP_REJECT"}, {PropDir(9), "RDMA_PROP_DIR(9)"},
		{PropMalformed, "RDMA_PROP_MALFORMED"}, {PropNotNow, "RDMA_PROP_NOT_NOW"}, {PropReason(9), "RDMA_PROP_REASON(9)"},
	} {
		if got := tt.v.String(); got != tt.want {
			t.Errorf("got %q, want %q", got, tt.want)
		}
	}
}

func TestPropertiesAllocs(t *testing.T) {
	buf := make([]byte, 0, 64)
	if n := testing.AllocsPerRun(100, func() {
		for i := range propertiesGolden {
			if p, err := ConsumeProperties(AppendProperties(buf, propertiesGolden[i].p)); err != nil || p != propertiesGolden[i].p {
				t.Error("not what was encoded")
			}
		}
	}); n != 0 {
		t.Errorf("the properties operation allocates %v times", n)
	}
}

func FuzzConsumeProperties(f *testing.F) {
	for _, tt := range propertiesGolden {
		f.Add(testutil.Hex(f, tt.wire))
	}
	f.Add(testutil.Hex(f, "00000000 00001000 00001000 fffffffe"))
	f.Fuzz(func(t *testing.T, b []byte) {
		p, err := ConsumeProperties(b)
		if err != nil {
			var bad *xdr.DecodeError
			if !errors.As(err, &bad) || bad.Offset > len(b) || bad.What == "" {
				t.Fatalf("%x: error %+v", b, err)
			}
			return
		}
		enc := AppendProperties(nil, p)
		want := bytes.Clone(b)
		if p.Dir != PropReject {
			// One of the flags is preserved.
			copy(want[12:], []byte{0, 0, 0, want[15] & 1})
		}
		if !bytes.Equal(enc, want) {
			t.Fatalf("%x is decoded as %+v, which is %x", b, p, enc)
		}
	})
}
