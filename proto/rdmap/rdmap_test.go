package rdmap

import (
	"bytes"
	"reflect"
	"testing"

	"github.com/rpcrdma/rpcrdma/internal/testing/testutil"
	"github.com/rpcrdma/rpcrdma/proto/ddp"
	"github.com/rpcrdma/rpcrdma/proto/mpa"
)

func TestControl(t *testing.T) {
	// RV is the upper two bits: RFC 5040 section 4.1.
	for op, want := range map[Opcode]uint8{OpWrite: 0x40, OpReadRequest: 0x41, OpReadResponse: 0x42, OpSend: 0x43, OpTerminate: 0x47} {
		if got := Control(op); got != want {
			t.Errorf("%v: %#x, want %#x", op, got, want)
		}
		if got, err := ParseControl(want); got != op || err != nil {
			t.Errorf("%#x: %v, %v", want, got, err)
		}
	}
	if op, err := ParseControl(0x83); op != OpSend || err != ErrVersion {
		t.Errorf("version 2: %v, %v, want the opcode and ErrVersion", op, err)
	}
	if op, err := ParseControl(0x7e); op != 0xe || err != nil {
		t.Errorf("unknown opcode, reserved bits set: %v, %v", op, err)
	}
}

func TestOpcode(t *testing.T) {
	for op := Opcode(0); op < 16; op++ {
		if op.Tagged() != (op == 0 || op == 2) || op.IsSend() != (op >= 3 && op <= 6) || op.Invalidates() != (op == 4 || op == 6) {
			t.Errorf("%v: tagged %v, Send %v, invalidates %v", op, op.Tagged(), op.IsSend(), op.Invalidates())
		}
	}
}

// Written by hand from the diagram in RFC 5040 section 4.4.
var readVector = struct {
	r    ReadRequest
	wire string
}{
	ReadRequest{SinkSTag: 0xa1a2a3a4, SinkTO: 0xb1b2b3b4b5b6b7b8, Size: 0xc1c2c3c4, SrcSTag: 0xd1d2d3d4, SrcTO: 0xe1e2e3e4e5e6e7e8},
	"a1a2a3a4" + "b1b2b3b4b5b6b7b8" + "c1c2c3c4" + "d1d2d3d4" + "e1e2e3e4e5e6e7e8",
}

func TestReadRequest(t *testing.T) {
	wire := testutil.Hex(t, readVector.wire)
	if got := AppendReadRequest(nil, &readVector.r); !bytes.Equal(got, wire) {
		t.Errorf("encoded as %x, want %x", got, wire)
	}
	var r ReadRequest
	if n, err := ConsumeReadRequest(wire, &r); n != ReadRequestLen || err != nil || r != readVector.r {
		t.Errorf("decoded as %+v, %d, %v", r, n, err)
	}
	for i := range wire {
		if n, err := ConsumeReadRequest(wire[:i], &r); n != 0 || err != ErrShort {
			t.Errorf("first %d bytes: %d, %v", i, n, err)
		}
	}
}

// Written by hand from RFC 5040 section 4.8: Layer and EType share the first byte, HdrCt is
// the upper three bits of the third.
var terminateVectors = []struct {
	name string
	t    Terminate
	wire string
}{
	{"CRC mismatch: no header can be trusted",
		Terminate{Cause: Cause{LayerLLP, mpa.TypeMPA, uint8(mpa.CodeCRC)}}, "20020000"},
	{"tagged: invalid STag of a Write",
		Terminate{Cause: Cause{LayerDDP, uint8(ddp.TypeTagged), ddp.TaggedInvalidSTag}, HasSegment: true, Segment: 14 + 4,
			DDP: ddp.AppendTagged(nil, &ddp.Tagged{Last: true, ULP: 0x40, STag: 7, TO: 8})},
		"1100c000" + "0012" + "c140" + "00000007" + "0000000000000008"},
	{"read request without the right to read",
		Terminate{Cause: Cause{LayerRDMA, uint8(TypeProtection), uint8(CodeAccess)}, HasSegment: true, Segment: 46,
			DDP:   ddp.AppendUntagged(nil, &ddp.Untagged{Last: true, ULP: 0x41, QN: 1, MSN: 1}),
			RDMAP: AppendReadRequest(nil, &readVector.r)},
		"0102e000" + "002e" + "4141" + "00000000" + "00000001" + "00000001" + "00000000" + readVector.wire},
}

func TestTerminate(t *testing.T) {
	for _, tc := range terminateVectors {
		wire := testutil.Hex(t, tc.wire)
		if got := AppendTerminate(nil, &tc.t); !bytes.Equal(got, wire) {
			t.Errorf("%s: encoded as\n%x, want\n%x", tc.name, got, wire)
		}
		var m Terminate
		if n, err := ConsumeTerminate(wire, &m); n != len(wire) || err != nil || !reflect.DeepEqual(m, tc.t) {
			t.Errorf("%s: decoded as %+v, %d, %v", tc.name, m, n, err)
		}
		for i := range wire {
			n, err := ConsumeTerminate(wire[:i], &m)
			if n != 0 || err != ErrShort {
				t.Errorf("%s: first %d bytes: %d, %v", tc.name, i, n, err)
			}
			if i >= 4 && m.Cause != tc.t.Cause {
				t.Errorf("%s: first %d bytes: cause %v is lost", tc.name, i, m.Cause)
			}
		}
	}
	if len(terminateVectors[2].wire)/2 != MaxTerminateLen {
		t.Errorf("MaxTerminateLen is %d, the longest vector has %d", MaxTerminateLen, len(terminateVectors[2].wire)/2)
	}
}

func TestStrings(t *testing.T) {
	for _, tc := range []struct{ got, want string }{
		{OpSendSEInv.String(), "Send with Solicited Event and Invalidate"},
		{Opcode(12).String(), "OpCode 12"},
		{Cause{LayerRDMA, 1, 9}.String(), "RDMA: Remote Protection Error: STag cannot be Invalidated"},
		{Cause{LayerRDMA, 0, 0}.String(), "RDMA: Local Catastrophic Error"},
		{Cause{LayerDDP, 2, 5}.String(), "DDP: Untagged Buffer Error: DDP Message too long for available buffer"},
		{Cause{LayerDDP, 0, 0}.String(), "DDP: Local Catastrophic"},
		{Cause{LayerLLP, 0, 6}.String(), "LLP: Insufficient IRD resources"},
		{Cause{LayerLLP, 3, 6}.String(), "LLP: type 3, code 6"},
		{Cause{9, 3, 6}.String(), "layer 9: type 3, code 6"},
	} {
		if tc.got != tc.want {
			t.Errorf("got %q, want %q", tc.got, tc.want)
		}
	}
}

func TestAllocs(t *testing.T) {
	buf := make([]byte, 0, 128)
	var r ReadRequest
	var m Terminate
	tm := terminateVectors[2].t
	if n := testing.AllocsPerRun(100, func() {
		b := AppendReadRequest(buf, &readVector.r)
		ConsumeReadRequest(b, &r)
		b = AppendTerminate(buf, &tm)
		ConsumeTerminate(b, &m)
		_, err := ConsumeTerminate(b[:7], &m)
		if err != ErrShort {
			panic(err)
		}
		if op, _ := ParseControl(Control(OpSend)); op != OpSend {
			panic(op)
		}
	}); n != 0 {
		t.Errorf("%v allocations, want none", n)
	}
}

func FuzzReadRequest(f *testing.F) {
	f.Add(testutil.Hex(f, readVector.wire))
	f.Fuzz(func(t *testing.T, b []byte) {
		var r ReadRequest
		n, err := ConsumeReadRequest(b, &r)
		if (err == nil) != (n == ReadRequestLen) {
			t.Fatalf("%d, %v: error and value", n, err)
		}
		if err == nil && !bytes.Equal(AppendReadRequest(nil, &r), b[:n]) {
			t.Fatalf("%x: round trip differs", b[:n])
		}
	})
}

func FuzzTerminate(f *testing.F) {
	for _, v := range terminateVectors {
		f.Add(testutil.Hex(f, v.wire))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		var m, again Terminate
		n, err := ConsumeTerminate(b, &m)
		if (err == nil) != (n > 0) {
			t.Fatalf("%d, %v: error and value", n, err)
		}
		_ = m.Cause.String()
		if err != nil {
			return
		}
		// Reserved bits, and M if only D or R is set, are not preserved; everything else is.
		w := AppendTerminate(nil, &m)
		if k, err := ConsumeTerminate(w, &again); k != len(w) || err != nil || !reflect.DeepEqual(m, again) {
			t.Fatalf("%x: %+v became %+v, %v", b[:n], m, again, err)
		}
	})
}
