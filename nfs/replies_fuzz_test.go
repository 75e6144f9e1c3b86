package nfs

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/rpcrdma/rpcrdma/iwarp"
	"github.com/rpcrdma/rpcrdma/proto/oncrpc"
	"github.com/rpcrdma/rpcrdma/proto/xdr"
	"github.com/rpcrdma/rpcrdma/rpc"
	"github.com/rpcrdma/rpcrdma/transport"
)

// appendFuzzReply appends a reply to the fuzzer's input, a sequence of replies: the length in two
// bytes, of which the highest bit means that everything after the first 8 bytes is an item, to be
// sent in a write chunk if possible; then the results.
func appendFuzzReply(b []byte, results []byte, item bool) []byte {
	size := uint16(len(results))
	if item {
		size |= 0x8000
	}
	b = binary.BigEndian.AppendUint16(b, size)
	return append(b, results...)
}

// A fuzzServer answers any call with the next reply of the input.
type fuzzServer struct {
	mu      sync.Mutex
	replies []byte
}

func (s *fuzzServer) ServeRPC(_ context.Context, _ *rpc.Request, res *rpc.Response) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.replies) < 2 {
		res.Fail(oncrpc.SystemErr)
		return
	}
	size := binary.BigEndian.Uint16(s.replies)
	item := size&0x8000 != 0
	n := min(int(size&^0x8000), len(s.replies)-2)
	results := s.replies[2:][:n]
	s.replies = s.replies[2+n:]
	if status, n := xdr.ConsumeUint32(results); n > 0 && Status(status) == StatusJukebox {
		res.Fail(oncrpc.SystemErr) // the client would wait, and ask again
		return
	}
	const head = 8
	if item && len(results) > head {
		res.Results = append(res.Results, results[:head]...)
		res.AddItem(results[head:], nil)
		return
	}
	res.Results = append(res.Results, results...)
}

// FuzzClient sends a client arbitrary replies. Its results must be within the request, and it
// must not access other memory than the caller's.
func FuzzClient(f *testing.F) {
	const (
		opRead = iota
		opWrite
		opReadLink
		opList
		opWalk
		opStat
		opUpload
		opDownload
		opMount
		ops
	)
	attr := tPostAttr
	attr.Attr.Type = TypeReg
	attr.Attr.Size = 20
	dirAttr := tPostAttr
	dirAttr.Attr.Type = TypeDir
	entry := func(name string, cookie uint64, a PostOpAttr) DirEntry {
		return DirEntry{Name: name, Cookie: cookie, Attr: a, Handle: tPostFH}
	}
	reply := func(ms ...message) (b []byte) {
		for _, m := range ms {
			b = appendFuzzReply(b, m.Append(nil), false)
		}
		return b
	}
	info := &FSInfoRes{RTMax: 8, RTPref: 8, WTMax: 8, WTPref: 8}
	page := &ReadDirPlusRes{Entries: []DirEntry{entry("a", 1, attr), entry("../b", 2, attr), entry("d", 3, dirAttr)}}
	end := &ReadDirPlusRes{Entries: []DirEntry{entry("e", 4, PostOpAttr{})}, EOF: true}
	f.Add(byte(opRead), reply(&ReadRes{Attr: attr, Count: 5, EOF: true, Data: []byte("12345")}))
	f.Add(byte(opRead), appendFuzzReply(nil, append((&ReadRes{Count: 8, Data: make([]byte, 8)}).Append(nil), 0), true))
	f.Add(byte(opWrite), reply(&WriteRes{Count: 5, Committed: FileSync}))
	f.Add(byte(opReadLink), reply(&ReadLinkRes{Target: []byte("../x")}))
	f.Add(byte(opList), reply(page, end, &LookupRes{Object: tHandle, Attr: attr}))
	f.Add(byte(opList), reply(&ReadDirPlusRes{Status: StatusNotSupp}, &ReadDirRes{Entries: []NameEntry{{Name: "x", Cookie: 1}}, EOF: true}, &LookupRes{Object: tHandle, Attr: attr}))
	f.Add(byte(opWalk), reply(&ExportRes{[]Export{{Dir: "/"}}}, &MntRes{Handle: tHandle}, &GetAttrRes{Attr: dirAttr.Attr}, page, end, &ReadDirPlusRes{EOF: true}))
	f.Add(byte(opStat), reply(&ExportRes{[]Export{{Dir: "/"}}}, &MntRes{Handle: tHandle}, &GetAttrRes{Attr: dirAttr.Attr}, &LookupRes{Object: tHandle, Attr: attr}))
	f.Add(byte(opUpload), reply(info, &WriteRes{Count: 8}, &WriteRes{Count: 8}, &WriteRes{Count: 4}, &CommitRes{}))
	f.Add(byte(opDownload), reply(info, &ReadRes{Count: 8, Data: make([]byte, 8)}, &ReadRes{Count: 8, Data: make([]byte, 8)}, &ReadRes{Count: 4, EOF: true, Data: make([]byte, 4)}))
	f.Add(byte(opMount), reply(&DumpRes{}, &ExportRes{[]Export{{Dir: "/a"}, {Dir: "/"}}}))

	h := &fuzzServer{}
	srv, err := transport.NewServer(nil)
	if err == nil {
		err = errors.Join(
			srv.Register(rpc.Program{Number: Program, Low: Version, High: Version, Handler: h}),
			srv.Register(rpc.Program{Number: MountProgram, Low: MountVersion, High: MountVersion, Handler: h}),
		)
	}
	if err != nil {
		f.Fatal(err)
	}
	p := iwarp.New(iwarp.Config{})
	l, err := srv.Listen(f.Context(), p, "127.0.0.1:0")
	if err != nil {
		f.Fatal(err)
	}
	go srv.Serve(l)
	f.Cleanup(func() { srv.Close() })
	t, err := transport.Dial(f.Context(), p, l.Addr().String(), &transport.ClientConfig{NoReconnect: true})
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(func() { t.Close() })
	known := func(name string) bool { return name != "" && !strings.ContainsAny(name, "/\x00") }

	f.Fuzz(func(tt *testing.T, op byte, replies []byte) {
		ctx := tt.Context()
		h.mu.Lock()
		h.replies = replies
		h.mu.Unlock()
		// A new client, without cached state.
		c := NewClient(t, &Options{MaxTransfer: 8, MountPort: 1, MountHost: "127.0.0.1"})
		c.mountAt = mountOnRDMA
		mem := bytes.Repeat([]byte{0xa5}, 64)
		buf := mem[16:36:36]
		intact := func() {
			if slices.ContainsFunc(slices.Concat(mem[:16], mem[36:]), func(b byte) bool { return b != 0xa5 }) {
				tt.Fatalf("memory of others was written: %x", mem)
			}
		}
		switch op % ops {
		case opRead:
			if n, _, err := c.Read(ctx, tHandle, 0, buf); n < 0 || n > len(buf) || err != nil && n != 0 {
				tt.Fatalf("READ: %d, %v", n, err)
			}
		case opWrite:
			data := []byte("12345")
			if res, err := c.Write(ctx, tHandle, 0, data, DataSync); err == nil && (int(res.Count) > len(data) || res.Committed < DataSync) || string(data) != "12345" {
				tt.Fatalf("WRITE: %+v", res)
			}
		case opReadLink:
			if target, err := c.ReadLink(ctx, tHandle); err != nil && target != "" || len(target) > MaxPath {
				tt.Fatalf("READLINK: %q, %v", target, err)
			}
		case opList:
			for e, err := range c.Entries(ctx, tHandle) {
				if err == nil && (!known(e.Name) || e.Name == "." || e.Name == ".." || !e.Attr.Present || !e.Handle.Present) {
					tt.Fatalf("an entry: %+v", e)
				}
			}
		case opWalk:
			nodes := 0
			_ = c.Walk(ctx, "/", func(n Node, err error) error {
				if nodes++; n.Path != "/" && !strings.HasPrefix(n.Path, "/") || strings.Contains(n.Path, "..") && cleanPath(n.Path) != n.Path {
					tt.Fatalf("a path: %q", n.Path)
				}
				return nil
			})
		case opStat:
			if n, err := c.Stat(ctx, "/a"); err == nil && n.Path != "/a" {
				tt.Fatalf("Stat: %+v", n)
			}
		case opUpload:
			if n, err := c.Upload(ctx, tHandle, bytes.NewReader(buf), int64(len(buf)), nil); n < 0 || n > int64(len(buf)) || err == nil && n != int64(len(buf)) {
				tt.Fatalf("Upload: %d, %v", n, err)
			}
		case opDownload:
			w := &memFile{data: buf}
			if n, err := c.Download(ctx, tHandle, int64(len(buf)), w, nil); n < 0 || n > int64(len(buf)) || err == nil && n != int64(len(buf)) {
				tt.Fatalf("Download: %d, %v", n, err)
			}
		case opMount:
			_, _ = c.Mounts(ctx)
			_, _ = c.Exports(ctx)
			_, _ = c.Mnt(ctx, "/x")
		}
		intact()
		if err := t.Err(); err != nil {
			tt.Fatalf("the connection has ended: %v", err)
		}
	})
}
