package rpcrdma

import (
	"bytes"
	"errors"
	"testing"

	"github.com/rpcrdma/rpcrdma/internal/testing/testutil"
	"github.com/rpcrdma/rpcrdma/proto/xdr"
)

// configGolden are messages of RFC 5666 section 6.2, written by hand from its XDR.
var configGolden = []struct {
	name, wire string
	call       ConfigCall
	reply      ConfigReply
}{
	{"sizes of 4096 and 8192, 16 Reads", "00001000 00002000 00000010", ConfigCall{4096, 8192, 16}, ConfigReply{4096, 8192, 16}},
	{"no Reads", "00000400 00000001 00000000", ConfigCall{1024, 1, 0}, ConfigReply{1024, 1, 0}},
	{"the largest numbers", "ffffffff fffffffe fffffffd", ConfigCall{1<<32 - 1, 1<<32 - 2, 1<<32 - 3}, ConfigReply{1<<32 - 1, 1<<32 - 2, 1<<32 - 3}},
}

func TestConfigGolden(t *testing.T) {
	for _, tt := range configGolden {
		wire := testutil.Hex(t, tt.wire)
		t.Run("CCP-6.2-2 config_rdma_req/"+tt.name, func(t *testing.T) {
			if got := AppendConfigCall([]byte("x"), tt.call)[1:]; !bytes.Equal(got, wire) {
				t.Errorf("encoded %x, want %x", got, wire)
			}
			if got, n, err := ConsumeConfigCall(append(wire, "more"...)); got != tt.call || n != ConfigSize || err != nil {
				t.Errorf("decoded %+v, %d bytes, %v; want %+v", got, n, err, tt.call)
			}
		})
		t.Run("CCP-6.2-3 config_rdma_reply, whose second word is the alignment/"+tt.name, func(t *testing.T) {
			if got := AppendConfigReply([]byte("x"), tt.reply)[1:]; !bytes.Equal(got, wire) {
				t.Errorf("encoded %x, want %x", got, wire)
			}
			if got, n, err := ConsumeConfigReply(append(wire, "more"...)); got != tt.reply || n != ConfigSize || err != nil {
				t.Errorf("decoded %+v, %d bytes, %v; want %+v", got, n, err, tt.reply)
			}
		})
	}
	t.Run("CCP-6.2-1 the numbers of the program", func(t *testing.T) {
		if ConfigProgram != 0x18841 || ConfigVersion != 1 || ProcConfRDMA != 1 || ConfigSize != 12 {
			t.Errorf("program %#x, version %d, procedure %d, %d bytes", ConfigProgram, ConfigVersion, ProcConfRDMA, ConfigSize)
		}
	})
}

func TestConfigCutShort(t *testing.T) {
	wire := testutil.Hex(t, configGolden[2].wire)
	for n := range wire {
		var bad *xdr.DecodeError
		if c, k, err := ConsumeConfigCall(wire[:n:n]); c != (ConfigCall{}) || k != 0 || !errors.As(err, &bad) || bad.Offset != n {
			t.Errorf("%d bytes of arguments: %+v, %d, %v", n, c, k, err)
		}
		if r, k, err := ConsumeConfigReply(wire[:n:n]); r != (ConfigReply{}) || k != 0 || !errors.As(err, &bad) || bad.Offset != n {
			t.Errorf("%d bytes of results: %+v, %d, %v", n, r, k, err)
		}
	}
}

func TestConfigAllocs(t *testing.T) {
	buf := make([]byte, 0, 64)
	if n := testing.AllocsPerRun(100, func() {
		b := AppendConfigReply(AppendConfigCall(buf, ConfigCall{4096, 4096, 16}), ConfigReply{4096, 64, 16})
		c, n, err := ConsumeConfigCall(b)
		r, _, err2 := ConsumeConfigReply(b[n:])
		if err != nil || err2 != nil || c.MaxReads != r.MaxReads {
			t.Error("not what was encoded")
		}
	}); n != 0 {
		t.Errorf("the configuration protocol allocates %v times", n)
	}
}

func FuzzConsumeConfig(f *testing.F) {
	for _, tt := range configGolden {
		f.Add(testutil.Hex(f, tt.wire))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		c, n, err := ConsumeConfigCall(b)
		r, m, err2 := ConsumeConfigReply(b)
		if n != m || (err == nil) != (err2 == nil) || (err == nil) != (len(b) >= ConfigSize) {
			t.Fatalf("arguments: %d, %v; results: %d, %v", n, err, m, err2)
		}
		if err != nil {
			if n != 0 || c != (ConfigCall{}) || r != (ConfigReply{}) {
				t.Fatalf("%+v and %+v with an error", c, r)
			}
			return
		}
		if n != ConfigSize || !bytes.Equal(AppendConfigCall(nil, c), b[:n]) || !bytes.Equal(AppendConfigReply(nil, r), b[:n]) {
			t.Fatalf("%x is decoded as %+v and %+v", b, c, r)
		}
	})
}
