package nfsd

import (
	"bytes"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/binary"
	"testing"

	"github.com/rpcrdma/rpcrdma/nfs"
	"github.com/rpcrdma/rpcrdma/proto/xdr"
)

// statusRes is the status of any procedure.
type statusRes nfs.Status

func (s *statusRes) Decode(d *xdr.Decoder) {
	*s = statusRes(d.Uint32())
	d.Rest()
}

// The signature is that of RFC 2104, for keys of any length.
func TestMAC(t *testing.T) {
	for _, size := range []int{16, 32, 64, 65, 200} {
		key := bytes.Repeat([]byte{byte(size)}, size)
		for _, handle := range [][]byte{{1}, []byte("0123456789"), bytes.Repeat([]byte{9}, MaxHandle)} {
			h := hmac.New(sha256.New, key)
			h.Write([]byte{handleVersion})
			h.Write(binary.BigEndian.AppendUint32(nil, 7))
			h.Write(handle)
			if got := newSealer(key).mac(7, handle); !bytes.Equal(got[:], h.Sum(nil)[:macSize]) {
				t.Errorf("key of %d bytes, handle of %d: %x, want %x", size, len(handle), got, h.Sum(nil))
			}
		}
	}
}

func TestSeal(t *testing.T) {
	s := newSealer([]byte("0123456789abcdef"))
	for _, size := range []int{1, 20, MaxHandle} {
		handle := bytes.Repeat([]byte{5}, size)
		fh := s.appendBytes([]byte("before"), 77, handle)[6:]
		export, got, status := s.open(fh)
		if status != nfs.StatusOK || export != 77 || !bytes.Equal(got, handle) || len(fh) > nfs.MaxHandle {
			t.Errorf("%d bytes: %v, export %d, %x", size, status, export, got)
		}
		for i := range fh {
			fh[i] ^= 0x80
			if _, _, status := s.open(fh); status == nfs.StatusOK {
				t.Errorf("byte %d changed, and it is still good", i)
			}
			fh[i] ^= 0x80
		}
	}
	if n := testing.AllocsPerRun(100, func() { s.mac(1, make([]byte, MaxHandle)) }); n != 0 && !raceDetector { // sync.Pool forgets things then
		t.Errorf("%v allocations", n)
	}
}

// No bytes make a handle of another key, and none make the server read outside of them.
func FuzzHandle(f *testing.F) {
	s := newSealer([]byte("0123456789abcdef"))
	other := newSealer([]byte("another key, 16 b"))
	f.Add(s.appendBytes(nil, 1, []byte{1, 2, 3}))
	f.Add(other.appendBytes(nil, 1, []byte{1, 2, 3}))
	f.Add([]byte{})
	f.Add(make([]byte, 64))
	f.Fuzz(func(t *testing.T, b []byte) {
		export, handle, status := s.open(b)
		if status != nfs.StatusOK {
			return
		}
		if again := s.appendBytes(nil, export, handle); !bytes.Equal(again, b) {
			t.Errorf("%x is read as %d, %x", b, export, handle)
		}
	})
}
