package transport_test

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"net"
	"os"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/rpcrdma/rpcrdma/fabric"
	"github.com/rpcrdma/rpcrdma/internal/testing/leak"
	"github.com/rpcrdma/rpcrdma/iwarp"
	"github.com/rpcrdma/rpcrdma/proto/xdr"
	"github.com/rpcrdma/rpcrdma/rpc"
	"github.com/rpcrdma/rpcrdma/transport"
)

// shared returns a file of n bytes of memory, and a mapping of it.
func shared(t *testing.T, n int) (*os.File, []byte) {
	t.Helper()
	fd, err := unix.MemfdCreate("foreign", unix.MFD_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	f := os.NewFile(uintptr(fd), "foreign")
	t.Cleanup(func() { f.Close() })
	if err := f.Truncate(int64(n)); err != nil {
		t.Fatal(err)
	}
	return f, mapped(t, f, n)
}

func mapped(t *testing.T, f *os.File, n int) []byte {
	t.Helper()
	m, err := unix.Mmap(int(f.Fd()), 0, n, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Munmap(m) })
	return m
}

// bulkBothWays has n bytes written to foreign memory and read from it, and looks at them by another
// mapping.
func bulkBothWays(cl rpc.Caller, mem fabric.Foreign, seen []byte, n, seed int) error {
	sink := mem.Slice(0, uint64(n))
	call := rpc.Call{Prog: prog, Vers: 1, Proc: procMake, Args: xdr.AppendUint32(xdr.AppendUint32(nil, uint32(n)), uint32(seed)),
		WriteItems: []rpc.WriteItem{{Foreign: &sink}}}
	if err := cl.Call(bg, &call); err != nil {
		return err
	}
	d := call.Decoder()
	if data := d.Item(); data != nil || d.End() != nil || call.WriteItems[0].N != n {
		return fmt.Errorf("%d bytes, %d of %d in the chunk, %v", len(data), call.WriteItems[0].N, n, d.Err())
	}
	want := make([]byte, n)
	fill(want, uint32(seed))
	if !bytes.Equal(seen[:n], want) {
		return errors.New("the bytes written are not those of the server")
	}
	source := mem.Slice(100, uint64(n))
	call = rpc.Call{Prog: prog, Vers: 1, Proc: procSum, Args: xdr.AppendUint32(nil, uint32(n)), MaxResults: 32,
		ReadItems: []rpc.ReadItem{{Offset: 4, Foreign: &source}}}
	if err := cl.Call(bg, &call); err != nil {
		return err
	}
	if sum := sha256.Sum256(seen[100:][:n]); !bytes.Equal(call.Results, sum[:]) {
		return errors.New("the bytes read are not those of the client")
	}
	return nil
}

// runForeign: data goes to foreign memory and comes from it. While it is registered, the mapping that
// the adapter was given permits the processor nothing, unless the adapter is the processor.
func runForeign(t *testing.T, b *bed, software bool) {
	leak.Check(t)
	const most = 1 << 20
	file, seen := shared(t, most+4096)
	given := mapped(t, file, len(seen))
	mem := fabric.Foreign{Addr: uint64(uintptr(unsafe.Pointer(&given[0]))), Len: uint64(len(given))}
	w := b.start(t, nil)
	cl := w.dial(t, nil)
	bulk := func(name string, mem fabric.Foreign) {
		for i, n := range []int{most, 8, 5000, most - 3} {
			if err := bulkBothWays(cl, mem, seen, n, i); err != nil {
				t.Errorf("%s, %d bytes: %v", name, n, err)
			}
		}
	}
	bulk("registered for each call", mem)
	if software {
		bulk("of a file", fabric.Foreign{File: file, Len: mem.Len})
	}
	m, err := cl.RegisterForeign(mem)
	if err != nil {
		t.Fatal(err)
	}
	if !software {
		if err := unix.Mprotect(given, unix.PROT_NONE); err != nil {
			t.Fatal(err)
		}
	}
	bulk("registered", mem)
	m.Close()
	if m.Bytes() != nil {
		t.Error("foreign memory has bytes")
	}
	if err := bulkBothWays(cl, mem, seen, 100, 9); (err == nil) != software {
		t.Errorf("memory that the processor must not touch is registered again: %v", err)
	}
	st := cl.Stats()
	t.Logf("%d write chunks, %d read chunks", st.WriteChunk, st.ReadChunk)
}

func TestForeign(t *testing.T) {
	runForeign(t, onIwarp(iwarp.Config{}), true)

	t.Run("TCP", func(t *testing.T) {
		_, seen := shared(t, 4096)
		mem := fabric.Foreign{Addr: uint64(uintptr(unsafe.Pointer(&seen[0]))), Len: 4096}
		w := onIwarp(iwarp.Config{}).start(t, nil)
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		go w.server.ServeTCP(l)
		cl, err := transport.DialTCP(bg, l.Addr().String(), (&transport.Settings{}).Client())
		if err != nil {
			t.Fatal(err)
		}
		defer cl.Close()
		var foreign *rpc.ForeignError
		if err := bulkBothWays(cl, mem, seen, 100, 1); !errors.As(err, &foreign) || !foreign.Result || foreign.Len != 100 {
			t.Errorf("over TCP: %v", err)
		}
		t.Log(foreign)
	})
}
