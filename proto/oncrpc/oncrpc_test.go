package oncrpc

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"testing"

	"github.com/rpcrdma/rpcrdma/internal/testing/testutil"
	"github.com/rpcrdma/rpcrdma/proto/xdr"
)

// The bytes were written by hand from the XDR of RFC 5531 section 9; program
// 100003 (0x186a3) is NFS.
var calls = []struct {
	name string
	wire string
	h    CallHeader
}{{
	name: "CTX-5531-1 NULL call with AUTH_NONE",
	wire: "01020304 00000000 00000002 000186a3 00000003 00000000  00000000 00000000  00000000 00000000",
	h:    CallHeader{XID: 0x01020304, RPCVers: 2, Prog: 100003, Vers: 3},
}, {
	name: "BIDI-2-1 BIDI-5.1-4 backward call of program 0x40000000",
	wire: "000000a7 00000000 00000002 40000000 00000001 00000001  00000000 00000000  00000000 00000000",
	h:    CallHeader{XID: 0xa7, RPCVers: 2, Prog: 0x40000000, Vers: 1, Proc: 1},
}, {
	name: "credential and verifier with bodies, the first padded",
	wire: "01020304 00000000 00000002 000186a3 00000003 00000007  00000006 00000005 0102030405 000000  00000006 00000004 0a0b0c0d",
	h: CallHeader{XID: 0x01020304, RPCVers: 2, Prog: 100003, Vers: 3, Proc: 7,
		Cred: Auth{FlavorGSS, []byte{1, 2, 3, 4, 5}}, Verf: Auth{FlavorGSS, []byte{10, 11, 12, 13}}},
}, {
	name: "flavor without a name",
	wire: "01020304 00000000 00000002 000186a3 00000003 00000007  000f4240 00000000  00000000 00000000",
	h:    CallHeader{XID: 0x01020304, RPCVers: 2, Prog: 100003, Vers: 3, Proc: 7, Cred: Auth{Flavor: 1000000}},
}, {
	name: "largest bodies",
	wire: "01020304 00000000 00000002 000186a3 00000003 00000007" +
		"00000006 00000190" + strings.Repeat("aa", 400) + "00000006 00000190" + strings.Repeat("bb", 400),
	h: CallHeader{XID: 0x01020304, RPCVers: 2, Prog: 100003, Vers: 3, Proc: 7,
		Cred: Auth{FlavorGSS, bytes.Repeat([]byte{0xaa}, 400)}, Verf: Auth{FlavorGSS, bytes.Repeat([]byte{0xbb}, 400)}},
}}

func TestCallGolden(t *testing.T) {
	for _, tt := range calls {
		t.Run(tt.name, func(t *testing.T) {
			wire := testutil.Hex(t, tt.wire)
			if got := AppendCall([]byte("x"), &tt.h)[1:]; !bytes.Equal(got, wire) {
				t.Errorf("encoded\n%x, want\n%x", got, wire)
			}
			if got := tt.h.Size(); got != len(wire) {
				t.Errorf("Size is %d, want %d", got, len(wire))
			}
			h := CallHeader{Proc: 99, Cred: Auth{Body: []byte("old")}} // all of it must go
			n, err := ConsumeCall(append(bytes.Clone(wire), "arguments"...), &h)
			if err != nil || n != len(wire) || !reflect.DeepEqual(h, tt.h) {
				t.Errorf("n = %d, error %v, header %+v; want %d and %+v", n, err, h, len(wire), tt.h)
			}
			if xid, typ, ok := Peek(wire); xid != tt.h.XID || typ != Call || !ok {
				t.Errorf("Peek: %#x, %v, %v", xid, typ, ok)
			}
			for n := range wire {
				if _, err := ConsumeCall(wire[:n:n], &h); !errors.As(err, new(*xdr.DecodeError)) {
					t.Fatalf("the first %d bytes: error %v", n, err)
				}
			}
		})
	}
	if n := calls[0].h.Size(); n != MinCallSize {
		t.Errorf("smallest call has %d bytes, MinCallSize is %d", n, MinCallSize)
	}
}

// The server must see other versions of RPC, to answer RPC_MISMATCH; what follows the version
// is ignored.
func TestConsumeCallOtherVersion(t *testing.T) {
	for _, wire := range []string{
		"01020304 00000000 00000003",
		"01020304 00000000 00000003 ffffffff",
		"01020304 00000000 00000003 000186a3 00000003 00000000  00000000 ffffffff  00000000 00000000",
	} {
		var h CallHeader
		n, err := ConsumeCall(testutil.Hex(t, wire), &h)
		if want := (CallHeader{XID: 0x01020304, RPCVers: 3}); err != nil || n != 12 || !reflect.DeepEqual(h, want) {
			t.Errorf("%s: n = %d, error %v, header %+v", wire, n, err, h)
		}
	}
}

func TestConsumeCallRefuses(t *testing.T) {
	const start = "01020304 00000000 00000002 000186a3 00000003 00000000 "
	for _, tt := range []struct {
		name, wire string
		offset     int
		what       string
	}{
		{"nothing", "", 0, "call header is cut short"},
		{"no program", "01020304 00000000 00000002", 12, "call header is cut short"},
		{"a reply", "01020304 00000001 00000002" + strings.Repeat("00", 28), 4, "message is not a call"},
		{"no such type", "01020304 00000002 00000002" + strings.Repeat("00", 28), 4, "message is not a call"},
		{"credential of 401 bytes", start + "00000006 00000191" + strings.Repeat("00", 404) + "00000000 00000000", 24, "credential is cut short or over 400 bytes"},
		{"credential of 2^32-1 bytes", start + "00000006 ffffffff 00000000 00000000", 24, "credential is cut short or over 400 bytes"},
		{"no verifier", start + "00000000 00000000", 32, "verifier is cut short or over 400 bytes"},
		{"verifier of 401 bytes", start + "00000000 00000000 00000006 00000191" + strings.Repeat("00", 404), 32, "verifier is cut short or over 400 bytes"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			n, err := ConsumeCall(testutil.Hex(t, tt.wire), new(CallHeader))
			var bad *xdr.DecodeError
			if !errors.As(err, &bad) || n != 0 || bad.Offset != tt.offset || bad.What != tt.what {
				t.Errorf("n = %d, error %v; want byte %d, %q", n, err, tt.offset, tt.what)
			}
		})
	}
}

// CTX-5531-2: one for each status of RFC 5531 section 9, and for numbers that it
// does not define.
var replies = []struct {
	name string
	wire string
	h    ReplyHeader
	err  string // of Err, what was called aside
}{{
	name: "SUCCESS",
	wire: "01020304 00000001 00000000  00000000 00000000  00000000",
	h:    ReplyHeader{XID: 0x01020304},
}, {
	name: "SUCCESS with a verifier",
	wire: "01020304 00000001 00000000  00000006 00000003 0a0b0c 00  00000000",
	h:    ReplyHeader{XID: 0x01020304, Verf: Auth{FlavorGSS, []byte{10, 11, 12}}},
}, {
	name: "V1-8-1 PROG_UNAVAIL",
	wire: "01020304 00000001 00000000  00000000 00000000  00000001",
	h:    ReplyHeader{XID: 0x01020304, AcceptStat: ProgUnavail},
	err:  "the server does not have the program (PROG_UNAVAIL)",
}, {
	name: "PROG_MISMATCH",
	wire: "01020304 00000001 00000000  00000000 00000000  00000002 00000003 00000004",
	h:    ReplyHeader{XID: 0x01020304, AcceptStat: ProgMismatch, Low: 3, High: 4},
	err:  "the server has versions 3 to 4 of the program (PROG_MISMATCH)",
}, {
	name: "PROG_MISMATCH, one version",
	wire: "01020304 00000001 00000000  00000000 00000000  00000002 00000003 00000003",
	h:    ReplyHeader{XID: 0x01020304, AcceptStat: ProgMismatch, Low: 3, High: 3},
	err:  "the server has version 3 of the program (PROG_MISMATCH)",
}, {
	name: "PROC_UNAVAIL",
	wire: "01020304 00000001 00000000  00000000 00000000  00000003",
	h:    ReplyHeader{XID: 0x01020304, AcceptStat: ProcUnavail},
	err:  "the server does not have the procedure (PROC_UNAVAIL)",
}, {
	name: "GARBAGE_ARGS",
	wire: "01020304 00000001 00000000  00000000 00000000  00000004",
	h:    ReplyHeader{XID: 0x01020304, AcceptStat: GarbageArgs},
	err:  "the server could not decode the arguments (GARBAGE_ARGS)",
}, {
	name: "SYSTEM_ERR",
	wire: "01020304 00000001 00000000  00000000 00000000  00000005",
	h:    ReplyHeader{XID: 0x01020304, AcceptStat: SystemErr},
	err:  "the server failed (SYSTEM_ERR)",
}, {
	name: "accept_stat without a name",
	wire: "01020304 00000001 00000000  00000000 00000000  00000063",
	h:    ReplyHeader{XID: 0x01020304, AcceptStat: 99},
	err:  "the server answered with the unknown status ACCEPT_STAT(99)",
}, {
	name: "RPC_MISMATCH",
	wire: "01020304 00000001 00000001  00000000 00000003 00000004",
	h:    ReplyHeader{XID: 0x01020304, Stat: MsgDenied, RejectStat: RPCMismatch, Low: 3, High: 4},
	err:  "the server has RPC versions 3 to 4, not 2 (RPC_MISMATCH)",
}, {
	name: "AUTH_ERROR",
	wire: "01020304 00000001 00000001  00000001 00000005",
	h:    ReplyHeader{XID: 0x01020304, Stat: MsgDenied, RejectStat: AuthError, AuthStat: AuthTooWeak},
	err:  "the server denied the call (AUTH_TOOWEAK)",
}, {
	name: "reject_stat without a name",
	wire: "01020304 00000001 00000001  00000063",
	h:    ReplyHeader{XID: 0x01020304, Stat: MsgDenied, RejectStat: 99},
	err:  "the server denied the call with the unknown status REJECT_STAT(99)",
}, {
	name: "reply_stat without a name",
	wire: "01020304 00000001 00000063",
	h:    ReplyHeader{XID: 0x01020304, Stat: 99},
	err:  "the server answered with the unknown status REPLY_STAT(99)",
}}

func TestReplyGolden(t *testing.T) {
	for _, tt := range replies {
		t.Run(tt.name, func(t *testing.T) {
			wire := testutil.Hex(t, tt.wire)
			if got := AppendReply([]byte("x"), &tt.h)[1:]; !bytes.Equal(got, wire) {
				t.Errorf("encoded\n%x, want\n%x", got, wire)
			}
			if got := tt.h.Size(); got != len(wire) {
				t.Errorf("Size is %d, want %d", got, len(wire))
			}
			h := ReplyHeader{AuthStat: 99, Low: 99, Verf: Auth{Body: []byte("old")}} // all of it must go
			n, err := ConsumeReply(append(bytes.Clone(wire), "results"...), &h)
			if err != nil || n != len(wire) || !reflect.DeepEqual(h, tt.h) {
				t.Errorf("n = %d, error %v, header %+v; want %d and %+v", n, err, h, len(wire), tt.h)
			}
			if xid, typ, ok := Peek(wire); xid != tt.h.XID || typ != Reply || !ok {
				t.Errorf("Peek: %#x, %v, %v", xid, typ, ok)
			}
			for n := range wire {
				if _, err := ConsumeReply(wire[:n:n], &h); !errors.As(err, new(*xdr.DecodeError)) {
					t.Fatalf("the first %d bytes: error %v", n, err)
				}
			}
		})
	}
	if n := replies[0].h.Size(); n != MinReplySize {
		t.Errorf("smallest reply has %d bytes, MinReplySize is %d", n, MinReplySize)
	}
}

// What has no name is a number, in hexadecimal if users choose it.
func TestCallName(t *testing.T) {
	store := &Program{Number: 0x20000001, Vers: 1, Name: "STORE", Procedures: []string{"NULL", "", "GET"}}
	for _, tt := range []struct {
		names *Program
		proc  uint32
		want  string
	}{
		{store, 2, "GET of STORE v1"},
		{store, 1, "procedure 1 of STORE v1"},
		{store, 1<<32 - 1, "procedure 4294967295 of STORE v1"},
		{&Program{Number: 0x20000001, Vers: 2}, 2, "procedure 2 of program 0x20000001 v2"},
		{&Program{Number: 0x1fffffff, Vers: 3}, 0, "procedure 0 of program 536870911 v3"},
	} {
		if got := tt.names.CallName(tt.proc); got != tt.want {
			t.Errorf("got %q, want %q", got, tt.want)
		}
	}
}

func TestReplyErr(t *testing.T) {
	for _, tt := range replies {
		t.Run(tt.name, func(t *testing.T) {
			err := tt.h.Err()
			if tt.err == "" {
				if err != nil {
					t.Errorf("error %v for a success", err)
				}
				return
			}
			var rpc *RPCError
			if !errors.As(err, &rpc) {
				t.Fatalf("error is %v, want a *RPCError", err)
			}
			if want := "rpc: " + tt.err; rpc.Error() != want {
				t.Errorf("got %q, want %q", rpc, want)
			}
			rpc.Prog, rpc.Vers, rpc.Proc = 100003, 9, 7
			if want := "procedure 7 of program 100003 v9: " + tt.err; rpc.Error() != want {
				t.Errorf("got %q, want %q", rpc, want)
			}
			rpc.Names = &Program{Number: 100003, Vers: 9, Name: "NFS", Procedures: []string{7: "WRITE"}}
			if want := "WRITE of NFS v9: " + tt.err; rpc.Error() != want {
				t.Errorf("got %q, want %q", rpc, want)
			}
			if rpc.Stat != tt.h.Stat || rpc.AcceptStat != tt.h.AcceptStat || rpc.RejectStat != tt.h.RejectStat ||
				rpc.AuthStat != tt.h.AuthStat || rpc.Low != tt.h.Low || rpc.High != tt.h.High {
				t.Errorf("error %+v does not say what the reply %+v does", rpc, tt.h)
			}
		})
	}
}

func TestConsumeReplyRefuses(t *testing.T) {
	for _, tt := range []struct {
		name, wire string
		offset     int
		what       string
	}{
		{"nothing", "", 0, "reply header is cut short"},
		{"BIDI-2.4-1 a call with the same xid", "01020304 00000000 00000002 000186a3", 4, "message is not a reply"},
		{"no verifier", "01020304 00000001 00000000", 12, "verifier is cut short or over 400 bytes"},
		{"verifier of 401 bytes", "01020304 00000001 00000000 00000000 00000191" + strings.Repeat("00", 408), 12, "verifier is cut short or over 400 bytes"},
		{"no accept_stat", "01020304 00000001 00000000 00000000 00000000", 20, "accept_stat is cut short"},
		{"half a range", "01020304 00000001 00000000 00000000 00000000 00000002 00000003", 24, "version range is cut short"},
		{"no reject_stat", "01020304 00000001 00000001", 12, "reject_stat is cut short"},
		{"half a range of RPC", "01020304 00000001 00000001 00000000 00000003", 16, "version range is cut short"},
		{"no auth_stat", "01020304 00000001 00000001 00000001", 16, "auth_stat is cut short"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			n, err := ConsumeReply(testutil.Hex(t, tt.wire), new(ReplyHeader))
			var bad *xdr.DecodeError
			if !errors.As(err, &bad) || n != 0 || bad.Offset != tt.offset || bad.What != tt.what {
				t.Errorf("n = %d, error %v; want byte %d, %q", n, err, tt.offset, tt.what)
			}
		})
	}
}

func TestPeek(t *testing.T) {
	for _, tt := range []struct {
		wire string
		xid  uint32
		typ  MsgType
		ok   bool
	}{
		{"", 0, 0, false},
		{"01020304 000000", 0, 0, false},
		{"01020304 00000000", 0x01020304, Call, true},
		{"01020304 00000001 ff", 0x01020304, Reply, true},
		{"01020304 00000007", 0x01020304, 7, true},
	} {
		if xid, typ, ok := Peek(testutil.Hex(t, tt.wire)); xid != tt.xid || typ != tt.typ || ok != tt.ok {
			t.Errorf("%q: %#x, %v, %v", tt.wire, xid, typ, ok)
		}
	}
}

// The bytes were written by hand from authsys_parms, RFC 5531 appendix A.
var authSys = []struct {
	name string
	wire string
	a    AuthSys
}{{
	name: "root without groups",
	wire: "00000000 00000000 00000000 00000000 00000000",
}, {
	name: "name with pad, two groups",
	wire: "0000002a 00000005 686f737431 000000 000003e8 00000064 00000002 00000064 0000001b",
	a:    AuthSys{Stamp: 42, Machine: "host1", UID: 1000, GID: 100, GIDs: []uint32{100, 27}},
}, {
	name: "largest",
	wire: "ffffffff 000000ff" + strings.Repeat("61", 255) + "00 ffffffff ffffffff 00000010" + strings.Repeat("00000007", 16),
	a: AuthSys{Stamp: 0xffffffff, Machine: strings.Repeat("a", 255), UID: 0xffffffff, GID: 0xffffffff,
		GIDs: []uint32{7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7}},
}}

func equalAuthSys(a, b *AuthSys) bool {
	return a.Stamp == b.Stamp && a.Machine == b.Machine && a.UID == b.UID && a.GID == b.GID &&
		fmt.Sprint(a.GIDs) == fmt.Sprint(b.GIDs)
}

func TestAuthSysGolden(t *testing.T) {
	var kept AuthSys
	for _, tt := range authSys {
		t.Run(tt.name, func(t *testing.T) {
			wire := testutil.Hex(t, tt.wire)
			if got := AppendAuthSys([]byte("x"), &tt.a)[1:]; !bytes.Equal(got, wire) {
				t.Errorf("encoded\n%x, want\n%x", got, wire)
			}
			if got := tt.a.Size(); got != len(wire) || got > MaxAuthBody {
				t.Errorf("Size is %d, want %d", got, len(wire))
			}
			for _, a := range []*AuthSys{{}, &kept} {
				if n, err := ConsumeAuthSys(wire, a); err != nil || n != len(wire) || !equalAuthSys(a, &tt.a) {
					t.Errorf("n = %d, error %v, decoded %+v; want %d and %+v", n, err, a, len(wire), tt.a)
				}
			}
			if auth := tt.a.Auth(); auth.Flavor != FlavorSys || !bytes.Equal(auth.Body, wire) || auth.Size() != 8+len(wire) {
				t.Errorf("credential %v of %d bytes: %x", auth.Flavor, auth.Size(), auth.Body)
			}
			for n := range wire {
				if n, err := ConsumeAuthSys(wire[:n:n], &kept); n != 0 || !errors.As(err, new(*xdr.DecodeError)) {
					t.Fatalf("cut short: n = %d, error %v", n, err)
				}
			}
		})
	}
}

func TestConsumeAuthSysRefuses(t *testing.T) {
	for _, tt := range []struct{ name, wire, err string }{
		{"name of 256 bytes", "00000000 00000100" + strings.Repeat("61", 256) + "00000000 00000000 00000000",
			"xdr: byte 4: opaque of 256 bytes, limit is 255"},
		{"17 groups", "00000000 00000000 00000000 00000000 00000011" + strings.Repeat("00000007", 17),
			"xdr: byte 16: array of 17 elements, limit is 16"},
		{"fewer groups than it says", "00000000 00000000 00000000 00000000 00000002 00000007",
			"xdr: byte 16: array of 2 elements does not fit the remaining bytes"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if _, err := ConsumeAuthSys(testutil.Hex(t, tt.wire), new(AuthSys)); err == nil || err.Error() != tt.err {
				t.Errorf("got %v, want %s", err, tt.err)
			}
		})
	}
}

// RFC 5531 section 11. V1-3-2: what RPC over RDMA does not have.
func TestRecordMark(t *testing.T) {
	for _, tt := range []struct {
		n    int
		last bool
		wire string
	}{
		{0, false, "00000000"},
		{0, true, "80000000"},
		{40, true, "80000028"},
		{1 << 20, false, "00100000"},
		{MaxFragment, false, "7fffffff"},
		{MaxFragment, true, "ffffffff"},
	} {
		wire := testutil.Hex(t, tt.wire)
		if got := AppendRecordMark([]byte("x"), tt.n, tt.last)[1:]; !bytes.Equal(got, wire) {
			t.Errorf("%d, last: %v: encoded %x, want %x", tt.n, tt.last, got, wire)
		}
		if length, last, n := ConsumeRecordMark(append(wire, 0xee)); length != uint32(tt.n) || last != tt.last || n != RecordMarkSize {
			t.Errorf("%s: decoded %d, last: %v, n = %d", tt.wire, length, last, n)
		}
	}
	if length, last, n := ConsumeRecordMark([]byte{0xff, 0xff, 0xff}); length != 0 || last || n >= 0 {
		t.Errorf("three bytes: decoded %d, last: %v, n = %d", length, last, n)
	}
}

// Encoding invalid values is a programming error and panics.
func TestAppendPanics(t *testing.T) {
	for _, tt := range []struct {
		want string
		f    func()
	}{
		{"oncrpc: RPCSEC_GSS body of 401 bytes, limit is 400", func() {
			AppendCall(nil, &CallHeader{Cred: Auth{FlavorGSS, make([]byte, 401)}})
		}},
		{"oncrpc: AUTH_NONE body of 500 bytes, limit is 400", func() {
			AppendReply(nil, &ReplyHeader{Verf: Auth{FlavorNone, make([]byte, 500)}})
		}},
		{"oncrpc: AUTH_SYS with a machine name of 256 bytes and 0 groups, limits are 255 and 16", func() {
			AppendAuthSys(nil, &AuthSys{Machine: strings.Repeat("a", 256)})
		}},
		{"oncrpc: AUTH_SYS with a machine name of 0 bytes and 17 groups, limits are 255 and 16", func() {
			AppendAuthSys(nil, &AuthSys{GIDs: make([]uint32, 17)})
		}},
		{"oncrpc: fragment of -1 bytes has no record mark", func() { AppendRecordMark(nil, -1, false) }},
	} {
		func() {
			defer func() {
				if r := recover(); r != tt.want {
					t.Errorf("recovered %v, want %q", r, tt.want)
				}
			}()
			tt.f()
		}()
	}
}

// Numbers and spelling of RFC 5531 sections 8.2 and 9; unknown values print as numbers.
func TestStrings(t *testing.T) {
	for _, tt := range []struct {
		name string
		v    func(v uint32) fmt.Stringer
		want []string // by number, "" for a gap
	}{
		{"flavor", func(v uint32) fmt.Stringer { return Flavor(v) },
			[]string{"AUTH_NONE", "AUTH_SYS", "AUTH_SHORT", "AUTH_DH", "AUTH(4)", "AUTH(5)", "RPCSEC_GSS", "AUTH_TLS", "AUTH(8)"}},
		{"msg_type", func(v uint32) fmt.Stringer { return MsgType(v) },
			[]string{"CALL", "REPLY", "MSG_TYPE(2)"}},
		{"reply_stat", func(v uint32) fmt.Stringer { return ReplyStat(v) },
			[]string{"MSG_ACCEPTED", "MSG_DENIED", "REPLY_STAT(2)"}},
		{"accept_stat", func(v uint32) fmt.Stringer { return AcceptStat(v) },
			[]string{"SUCCESS", "PROG_UNAVAIL", "PROG_MISMATCH", "PROC_UNAVAIL", "GARBAGE_ARGS", "SYSTEM_ERR", "ACCEPT_STAT(6)"}},
		{"reject_stat", func(v uint32) fmt.Stringer { return RejectStat(v) },
			[]string{"RPC_MISMATCH", "AUTH_ERROR", "REJECT_STAT(2)"}},
		{"auth_stat", func(v uint32) fmt.Stringer { return AuthStat(v) },
			[]string{"AUTH_OK", "AUTH_BADCRED", "AUTH_REJECTEDCRED", "AUTH_BADVERF", "AUTH_REJECTEDVERF", "AUTH_TOOWEAK",
				"AUTH_INVALIDRESP", "AUTH_FAILED", "AUTH_KERB_GENERIC", "AUTH_TIMEEXPIRE", "AUTH_TKT_FILE", "AUTH_DECODE",
				"AUTH_NET_ADDR", "RPCSEC_GSS_CREDPROBLEM", "RPCSEC_GSS_CTXPROBLEM", "AUTH_STAT(15)"}},
	} {
		for v, want := range tt.want {
			if got := tt.v(uint32(v)).String(); got != want {
				t.Errorf("%s %d prints as %q, want %q", tt.name, v, got, want)
			}
		}
	}
}

func TestAllocs(t *testing.T) {
	buf := make([]byte, 0, 1024)
	sys := AuthSys{Stamp: 1, Machine: "machine", UID: 1, GID: 1, GIDs: []uint32{1, 2, 3}}
	call := CallHeader{XID: 1, RPCVers: Version, Prog: 100003, Vers: 3, Proc: 1, Cred: sys.Auth()}
	reply := ReplyHeader{XID: 1, AcceptStat: ProgMismatch, Low: 1, High: 2}
	callWire, replyWire := AppendCall(nil, &call), AppendReply(nil, &reply)
	var (
		c CallHeader
		r ReplyHeader
		a AuthSys
	)
	if _, err := ConsumeAuthSys(call.Cred.Body, &a); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		name string
		f    func()
	}{
		{"AppendCall", func() { AppendCall(buf, &call) }},
		{"ConsumeCall", func() { ConsumeCall(callWire, &c) }},
		{"AppendReply", func() { AppendReply(buf, &reply) }},
		{"ConsumeReply", func() { ConsumeReply(replyWire, &r) }},
		{"AppendAuthSys", func() { AppendAuthSys(buf, &sys) }},
		{"ConsumeAuthSys, same client", func() { ConsumeAuthSys(c.Cred.Body, &a) }},
		{"Peek", func() { Peek(callWire) }},
		{"record mark", func() { ConsumeRecordMark(AppendRecordMark(buf, 40, true)) }},
	} {
		if n := testing.AllocsPerRun(100, tt.f); n != 0 {
			t.Errorf("%s allocates %v times", tt.name, n)
		}
	}
	if c.XID != 1 || r.High != 2 || !equalAuthSys(&a, &sys) {
		t.Errorf("measured the wrong thing: %+v, %+v, %+v", c, r, a)
	}
}

func FuzzConsumeCall(f *testing.F) {
	for _, tt := range calls {
		f.Add(testutil.Hex(f, tt.wire))
	}
	f.Add(testutil.Hex(f, "01020304 00000000 00000003"))
	f.Fuzz(func(t *testing.T, b []byte) {
		var h, again CallHeader
		n, err := ConsumeCall(b, &h)
		if err != nil {
			if n != 0 || !errors.As(err, new(*xdr.DecodeError)) {
				t.Fatalf("n = %d, error %v", n, err)
			}
			return
		}
		if n < 12 || n > len(b) {
			t.Fatalf("n = %d of %d bytes", n, len(b))
		}
		enc := AppendCall(nil, &h)
		if len(enc) != h.Size() || h.RPCVers == Version && len(enc) != n {
			t.Fatalf("%d bytes encoded of %d, Size %d", len(enc), n, h.Size())
		}
		if m, err := ConsumeCall(enc, &again); err != nil || m != n || !reflect.DeepEqual(h, again) {
			t.Fatalf("decoded again: n = %d, error %v, %+v, want %+v", m, err, again, h)
		}
	})
}

func FuzzConsumeReply(f *testing.F) {
	for _, tt := range replies {
		f.Add(testutil.Hex(f, tt.wire))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		var h, again ReplyHeader
		n, err := ConsumeReply(b, &h)
		if err != nil {
			if n != 0 || !errors.As(err, new(*xdr.DecodeError)) {
				t.Fatalf("n = %d, error %v", n, err)
			}
			return
		}
		if n > len(b) || n != h.Size() {
			t.Fatalf("n = %d of %d bytes, Size %d", n, len(b), h.Size())
		}
		if rpcErr := h.Err(); rpcErr != nil && !strings.HasPrefix(rpcErr.Error(), "rpc: ") {
			t.Fatalf("error %q", rpcErr)
		}
		enc := AppendReply(nil, &h)
		if m, err := ConsumeReply(enc, &again); err != nil || m != n || len(enc) != n || !reflect.DeepEqual(h, again) {
			t.Fatalf("decoded again: n = %d, error %v, %+v, want %+v", m, err, again, h)
		}
	})
}

func FuzzConsumeAuthSys(f *testing.F) {
	for _, tt := range authSys {
		f.Add(testutil.Hex(f, tt.wire))
	}
	var kept AuthSys // carries the storage of one input to the next
	f.Fuzz(func(t *testing.T, b []byte) {
		n, err := ConsumeAuthSys(b, &kept)
		if err != nil {
			if n != 0 || !errors.As(err, new(*xdr.DecodeError)) {
				t.Fatalf("n = %d, error %v", n, err)
			}
			return
		}
		if n > len(b) || n != kept.Size() || len(kept.Machine) > MaxMachineName || len(kept.GIDs) > MaxGIDs {
			t.Fatalf("n = %d of %d bytes, %+v", n, len(b), kept)
		}
		var again AuthSys
		enc := AppendAuthSys(nil, &kept)
		if m, err := ConsumeAuthSys(enc, &again); err != nil || m != n || !equalAuthSys(&kept, &again) {
			t.Fatalf("decoded again: n = %d, error %v, %+v, want %+v", m, err, again, kept)
		}
	})
}

func FuzzConsumeRecordMark(f *testing.F) {
	f.Add([]byte{0x80, 0, 0, 40})
	f.Fuzz(func(t *testing.T, b []byte) {
		length, last, n := ConsumeRecordMark(b)
		if _, _, ok := Peek(b); ok != (len(b) >= 8) {
			t.Fatalf("Peek at %d bytes: %v", len(b), ok)
		}
		if n < 0 {
			if length != 0 || last || len(b) >= RecordMarkSize {
				t.Fatalf("%x is refused with %d, %v", b, length, last)
			}
			return
		}
		if enc := AppendRecordMark(nil, int(length), last); !bytes.Equal(enc, b[:n]) {
			t.Fatalf("decoded %x, encoded %x", b[:n], enc)
		}
	})
}

// TestProtected: which credentials have arguments and results in an envelope. RFC 2203 section 5.3.
func TestProtected(t *testing.T) {
	gss := func(words ...uint32) (a Auth) {
		a.Flavor = FlavorGSS
		for _, w := range words {
			a.Body = binary.BigEndian.AppendUint32(a.Body, w)
		}
		return a
	}
	for _, tt := range []struct {
		name string
		a    Auth
		want bool
	}{
		{"no credential", Auth{}, false},
		{"authentication alone", gss(1, 0, 7, 1, 0), false},
		{"integrity", gss(1, 0, 7, 2, 0), true},
		{"privacy", gss(1, 0, 7, 3, 0), true},
		{"an unknown service", gss(1, 0, 7, 4, 0), false},
		{"a context is made", gss(1, 1, 7, 2, 0), false},
		{"another version", gss(2, 0, 7, 2, 0), false},
		{"truncated", gss(1, 0, 7), false},
		{"another flavor", Auth{FlavorSys, gss(1, 0, 7, 2, 0).Body}, false},
	} {
		if got := tt.a.Protected(); got != tt.want {
			t.Errorf("%s: %v", tt.name, got)
		}
	}
}
