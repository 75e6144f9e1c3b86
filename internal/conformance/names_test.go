package conformance

import (
	"context"
	"io"
	"net"
	"net/netip"
	"slices"
	"testing"

	"github.com/rpcrdma/rpcrdma/iwarp"
	"github.com/rpcrdma/rpcrdma/nfs"
	"github.com/rpcrdma/rpcrdma/proto/oncrpc"
	"github.com/rpcrdma/rpcrdma/proto/xdr"
	"github.com/rpcrdma/rpcrdma/rpc"
	"github.com/rpcrdma/rpcrdma/rpc/rpcbind"
	"github.com/rpcrdma/rpcrdma/transport"
)

// Rules that involve several packages: names and ports (RFC 5666 sections 10 and 12), and what
// bindings leave to the transport.

// serve starts a server without programs on a free port, which it returns.
func serve(t *testing.T) (*iwarp.Provider, netip.AddrPort) {
	t.Helper()
	s, err := transport.NewServer(nil)
	if err != nil {
		t.Fatal(err)
	}
	handler := rpc.HandlerFunc(func(context.Context, *rpc.Request, *rpc.Response) {})
	if err := s.Register(rpc.Program{Number: 0x20000099, Low: 1, High: 1, Handler: handler}); err != nil {
		t.Fatal(err)
	}
	provider := iwarp.New(iwarp.Config{})
	l, err := s.Listen(t.Context(), provider, "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	go s.Serve(l)
	t.Cleanup(func() { s.Close() })
	return provider, netip.MustParseAddrPort(l.Addr().String())
}

// ping calls procedure 0 at an address.
func ping(t *testing.T, provider *iwarp.Provider, at netip.AddrPort) {
	t.Helper()
	cl, err := transport.Dial(t.Context(), provider, at.String(), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer cl.Close()
	if err := cl.Null(t.Context(), 0x20000099, 1); err != nil {
		t.Error(err)
	}
}

func TestPorts(t *testing.T) {
	t.Run("V1-10-2 V1-12-3 NFS is at 20049, or where it is said to be", func(t *testing.T) {
		if nfs.Port != 20049 {
			t.Errorf("nfs.Port is %d", nfs.Port)
		}
		for text, want := range map[string]int{"nfs://server/export": 20049, "nfs://[fd09::1]/export": 20049, "nfs://server:2050/export": 2050} {
			if u, err := nfs.ParseURL(text); err != nil || u.Port != want {
				t.Errorf("%s: %+v, %v; want port %d", text, u, err, want)
			}
		}
	})
	t.Run("V1-10-2 on iWARP the port is TCP's", func(t *testing.T) {
		provider, at := serve(t)
		c, err := net.Dial("tcp", at.String())
		if err != nil {
			t.Fatal(err)
		}
		c.Close()
		ping(t, provider, at)
	})
}

// directory is an rpcbind with a list of mappings, which records registrations.
func directory(t *testing.T, list []rpcbind.Mapping) (rpcbind.Client, <-chan rpcbind.Mapping) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	told := make(chan rpcbind.Mapping, 1)
	answer := func(c net.Conn) error {
		defer c.Close()
		mark := make([]byte, oncrpc.RecordMarkSize)
		if _, err := io.ReadFull(c, mark); err != nil {
			return err
		}
		size, _, _ := oncrpc.ConsumeRecordMark(mark)
		msg := make([]byte, size)
		if _, err := io.ReadFull(c, msg); err != nil {
			return err
		}
		var call oncrpc.CallHeader
		n, err := oncrpc.ConsumeCall(msg, &call)
		if err != nil {
			return err
		}
		reply := oncrpc.AppendReply(nil, &oncrpc.ReplyHeader{XID: call.XID})
		if call.Proc == 1 { // SET
			d := xdr.NewDecoder(msg[n:])
			told <- rpcbind.Mapping{Prog: d.Uint32(), Vers: d.Uint32(), Netid: rpcbind.Netid(d.String(100)), Addr: d.String(100)}
			reply = xdr.AppendBool(reply, true)
		} else { // DUMP
			for _, m := range list {
				reply = xdr.AppendUint32(xdr.AppendUint32(xdr.AppendBool(reply, true), m.Prog), m.Vers)
				for _, text := range []string{string(m.Netid), m.Addr, "somebody"} {
					reply = xdr.AppendString(reply, text)
				}
			}
			reply = xdr.AppendBool(reply, false)
		}
		_, err = c.Write(append(oncrpc.AppendRecordMark(nil, len(reply), true), reply...))
		return err
	}
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			if err := answer(c); err != nil {
				t.Error(err)
			}
		}
	}()
	return rpcbind.Client{Addr: l.Addr().String()}, told
}

func TestNetids(t *testing.T) {
	t.Run("V1-10-4 V1-12-1 a client finds a program at the netid rdma or rdma6, and calls it", func(t *testing.T) {
		provider, at := serve(t)
		six := netip.MustParseAddrPort("[2001:db8::1]:20049")
		c, _ := directory(t, []rpcbind.Mapping{
			{Prog: 0x20000099, Vers: 1, Netid: "tcp", Addr: "127.0.0.1.0.1"},
			{Prog: 0x20000099, Vers: 1, Netid: "rdma6", Addr: rpcbind.FormatAddr(six)},
			{Prog: 0x20000099, Vers: 1, Netid: "rdma", Addr: rpcbind.FormatAddr(at)},
		})
		found, err := c.GetAddr(t.Context(), 0x20000099, 1, rpcbind.RDMA)
		if err != nil || found != at {
			t.Fatalf("found %v, %v; want %v", found, err, at)
		}
		ping(t, provider, found)
		if found, err := c.GetAddr(t.Context(), 0x20000099, 1, rpcbind.RDMA6); err != nil || found != six {
			t.Errorf("found %v, %v; want %v", found, err, six)
		}
	})
	t.Run("V1-10-5 another fabric's netid is as good", func(t *testing.T) {
		c, told := directory(t, nil)
		want := rpcbind.Mapping{Prog: 0x20000099, Vers: 1, Netid: "fabric9", Addr: "7.0.1"}
		if err := c.Set(t.Context(), want); err != nil {
			t.Fatal(err)
		}
		if got := <-told; got != want {
			t.Errorf("%+v was registered, want %+v", got, want)
		}
	})
}

func TestBindingOffers(t *testing.T) {
	t.Run("V1-3.4-6 each result of NFS that may be in a write chunk is offered one", func(t *testing.T) {
		handle := xdr.AppendOpaque(nil, make([]byte, 32))
		data := xdr.AppendOpaque(nil, make([]byte, 999))
		ok := make([]byte, 8) // NFS3_OK, no attributes
		for _, tt := range []struct {
			proc          uint32
			args, results []byte
		}{
			{nfs.ProcRead, slices.Concat(handle, make([]byte, 8), []byte{0, 0, 0x03, 0xe7}), slices.Concat(ok, []byte{0, 0, 0x03, 0xe7, 0, 0, 0, 1}, data)},
			{nfs.ProcReadLink, handle, slices.Concat(ok, data)},
		} {
			p := rpc.Procedure{Prog: nfs.Program, Vers: nfs.Version, Proc: tt.proc}
			items := nfs.Binding{}.Reply(p, tt.results, false, nil)
			if len(items) != 1 || items[0].Length != 999 {
				t.Fatalf("procedure %d has the items %v", tt.proc, items)
			}
			_, bounds := nfs.Binding{}.Call(p, tt.args, nil)
			if bounds.NumItems != len(items) || bounds.Items[0] < 999 {
				t.Errorf("procedure %d is offered %+v", tt.proc, bounds)
			}
		}
	})
}
