package nfs

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"io/fs"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/rpcrdma/rpcrdma/internal/testing/testbed"
	"github.com/rpcrdma/rpcrdma/proto/oncrpc"
	"github.com/rpcrdma/rpcrdma/rpc"
	"github.com/rpcrdma/rpcrdma/transport"
)

// pattern returns n bytes in which neighboring positions differ. No other goroutine has them yet, and
// the race detector would look at each.
//
//go:norace
func pattern(n int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(i>>16) ^ byte(i>>8)*31 ^ byte(i)
	}
	return b
}

func testProcedures(t *testing.T, b *testbed.Bed) {
	s, c := pair(t, b)
	ctx := t.Context()
	file := s.add("file", TypeReg, "hello, world")
	root := s.root.handle()
	check := func(what string, err error) {
		t.Helper()
		if err != nil {
			t.Errorf("%s: %v", what, err)
		}
	}
	check("NULL", c.Null(ctx))

	attr, err := c.GetAttr(ctx, file.handle())
	check("GETATTR", err)
	if attr.Type != TypeReg || attr.Size != 12 {
		t.Errorf("GETATTR: %+v", attr)
	}
	fh, post, err := c.Lookup(ctx, root, "file")
	check("LOOKUP", err)
	if fh != file.handle() || post.Attr != attr {
		t.Errorf("LOOKUP: %v, %+v", fh, post)
	}
	got, err := c.Access(ctx, fh, AccessRead|AccessDelete)
	check("ACCESS", err)
	if got != AccessRead {
		t.Errorf("ACCESS grants %#x", got)
	}
	check("SETATTR", c.SetAttr(ctx, fh, &SetAttr{SetMode: true, Mode: 0o600, SetSize: true, Size: 5}))
	if attr, _ := c.GetAttr(ctx, fh); attr.Mode != 0o600 || attr.Size != 5 {
		t.Errorf("after SETATTR: %+v", attr)
	}

	link, _, err := c.Symlink(ctx, root, "link", strings.Repeat("x/", 2000), new(SetAttr))
	check("SYMLINK", err)
	target, err := c.ReadLink(ctx, link)
	check("READLINK", err)
	if target != strings.Repeat("x/", 2000) {
		t.Errorf("READLINK: %d bytes", len(target))
	}

	dir, _, err := c.Mkdir(ctx, root, "dir", &SetAttr{SetMode: true, Mode: 0o700})
	check("MKDIR", err)
	made, post, err := c.Create(ctx, &CreateArgs{Where: DirOpArgs{dir, "new"}, Mode: Guarded, Attr: SetAttr{SetMode: true, Mode: 0o640}})
	check("CREATE", err)
	if post.Attr.Mode != 0o640 {
		t.Errorf("CREATE: %+v", post)
	}
	_, _, err = c.Create(ctx, &CreateArgs{Where: DirOpArgs{dir, "new"}, Mode: Guarded})
	if !errors.Is(err, fs.ErrExist) {
		t.Errorf("second CREATE: %v", err)
	}
	disk, _, err := c.Mknod(ctx, &MknodArgs{Where: DirOpArgs{dir, "disk"}, Type: TypeBlk, Attr: SetAttr{SetMode: true, Mode: 0o660}, Spec: Device{8, 1}})
	check("MKNOD", err)
	if attr, err := c.GetAttr(ctx, disk); err != nil || attr.Type != TypeBlk || attr.Rdev != (Device{8, 1}) || attr.Mode != 0o660 {
		t.Errorf("after MKNOD: %+v, %v", attr, err)
	}
	check("REMOVE of a device", c.Remove(ctx, dir, "disk"))
	check("LINK", c.Link(ctx, made, dir, "second"))
	check("RENAME", c.Rename(ctx, dir, "second", root, "third"))
	if fh, _, err := c.Lookup(ctx, root, "third"); err != nil || fh != made {
		t.Errorf("after LINK and RENAME: %v, %v", fh, err)
	}
	check("REMOVE", c.Remove(ctx, dir, "new"))
	check("RMDIR", c.Rmdir(ctx, root, "dir"))
	if err := c.Rmdir(ctx, root, "file"); !isStatus(err, StatusNotDir) {
		t.Errorf("RMDIR of a file: %v", err)
	}

	var res ReadDirPlusRes
	check("READDIRPLUS", c.ReadDirPlus(ctx, &ReadDirPlusArgs{Dir: root, DirCount: 4096, MaxCount: 32768}, &res))
	if len(res.Entries) != 5 || !res.EOF || res.Entries[2].Handle.Handle != fh {
		t.Errorf("READDIRPLUS: %+v", res.Entries)
	}
	var names ReadDirRes
	check("READDIR", c.ReadDirNames(ctx, &ReadDirArgs{Dir: root, Count: 4096}, &names))
	if len(names.Entries) != 5 || !names.EOF {
		t.Errorf("READDIR: %+v", names.Entries)
	}
	stat, err := c.FSStat(ctx, root)
	check("FSSTAT", err)
	if stat.TotalBytes != 1<<40 || stat.AvailFiles != 7 {
		t.Errorf("FSSTAT: %+v", stat)
	}
	info, err := c.FSInfo(ctx, root)
	check("FSINFO", err)
	if info.RTPref != 64<<10 {
		t.Errorf("FSINFO: %+v", info)
	}
	conf, err := c.PathConf(ctx, root)
	check("PATHCONF", err)
	if conf.NameMax != 255 || !conf.NoTrunc {
		t.Errorf("PATHCONF: %+v", conf)
	}
}

// The data of READ is written to the caller's memory through a write chunk, and nothing beyond
// it.
func testRead(t *testing.T, b *testbed.Bed) {
	s, c := pair(t, b)
	ctx := t.Context()
	want := pattern(100_003)
	f := s.add("file", TypeReg, string(want)).handle()
	for _, test := range []struct {
		off, size, n int
		eof          bool
	}{
		{0, 100_003, 100_003, true},
		{0, 65536, 65536, false},
		{1, 65535, 65535, false},
		{65536, 65536, 100_003 - 65536, true},
		{100_000, 10_000, 3, true}, // 3 bytes by chunk: padding may come, too
		{100_003, 8192, 0, true},
		{200_000, 8192, 0, true},
		{7, 13, 13, false}, // inline
		{0, 0, 0, false},
	} {
		buf := make([]byte, test.size+8)
		n, eof, err := c.Read(ctx, f, uint64(test.off), buf[:test.size:test.size])
		if n != test.n || eof != test.eof || err != nil {
			t.Errorf("READ of %d at %d: %d, %v, %v", test.size, test.off, n, eof, err)
			continue
		}
		if n > 0 && !bytes.Equal(buf[:n], want[test.off:test.off+n]) {
			t.Errorf("READ of %d at %d: wrong data", test.size, test.off)
		}
		if !bytes.Equal(buf[test.size:], make([]byte, 8)) {
			t.Errorf("READ of %d at %d wrote behind its buffer", test.size, test.off)
		}
	}
	if st := c.Transport().Stats(); st.WriteChunk < 5 || st.ReplyChunk > 0 {
		t.Errorf("READs used %d write chunks and %d reply chunks", st.WriteChunk, st.ReplyChunk)
	}
}

// A server may return the data inline although a write chunk was offered.
func testReadInline(t *testing.T, b *testbed.Bed) {
	s, c := pair(t, b)
	s.set(func() { s.inline = true })
	f := s.add("file", TypeReg, "inline data").handle()
	buf := make([]byte, 65536)
	n, eof, err := c.Read(t.Context(), f, 0, buf)
	if string(buf[:n]) != "inline data" || !eof || err != nil {
		t.Errorf("%q, %v, %v", buf[:n], eof, err)
	}
	if st := c.Transport().Stats(); st.WriteChunk > 0 {
		t.Errorf("the data came through a write chunk")
	}
}

// The data of WRITE uses a read chunk if it does not fit inline.
func testWrite(t *testing.T, b *testbed.Bed) {
	s, c := pair(t, b)
	ctx := t.Context()
	f := s.add("file", TypeReg, "")
	want := pattern(70_001)
	res, err := c.Write(ctx, f.handle(), 0, want, FileSync)
	if err != nil || res.Count != 70_001 || res.Committed != FileSync {
		t.Fatalf("%+v, %v", res, err)
	}
	if st := c.Transport().Stats(); st.ReadChunk != 1 {
		t.Errorf("%d read chunks", st.ReadChunk)
	}
	res, err = c.Write(ctx, f.handle(), 10, []byte("small"), Unstable)
	if err != nil || res.Count != 5 || res.Committed != Unstable || res.Verf != s.verf {
		t.Fatalf("%+v, %v", res, err)
	}
	if st := c.Transport().Stats(); st.ReadChunk != 1 {
		t.Errorf("%d read chunks after a small WRITE", st.ReadChunk)
	}
	copy(want[10:], "small")
	if !bytes.Equal(f.data, want) {
		t.Error("the file has other data")
	}
	if verf, err := c.Commit(ctx, f.handle(), 0, 0); err != nil || verf != s.verf {
		t.Errorf("COMMIT: %v, %v", verf, err)
	}
}

// The credential is that of the options, or by default that of the process.
func testCredential(t *testing.T, b *testbed.Bed) {
	creds := make(chan oncrpc.Auth, 2)
	srv, err := transport.NewServer(nil)
	if err != nil {
		t.Fatal(err)
	}
	defer srv.Close()
	h := rpc.HandlerFunc(func(_ context.Context, req *rpc.Request, res *rpc.Response) {
		creds <- oncrpc.Auth{Flavor: req.Cred.Flavor, Body: bytes.Clone(req.Cred.Body)}
		res.Results = (&GetAttrRes{}).Append(res.Results)
	})
	if err := srv.Register(rpc.Program{Number: Program, Low: 3, High: 3, Handler: h}); err != nil {
		t.Fatal(err)
	}
	l, err := srv.Listen(t.Context(), b.Provider, b.Host+":0")
	if err != nil {
		t.Fatal(err)
	}
	go srv.Serve(l)

	want := &oncrpc.AuthSys{Machine: "box", UID: 7, GID: 8, GIDs: []uint32{9}}
	for _, opts := range []*Options{{Auth: want}, nil} {
		c := dial(t, b, l.Addr().String(), opts)
		if _, err := c.GetAttr(t.Context(), tHandle); err != nil {
			t.Fatal(err)
		}
		cred := <-creds
		var got oncrpc.AuthSys
		if _, err := oncrpc.ConsumeAuthSys(cred.Body, &got); err != nil || cred.Flavor != oncrpc.FlavorSys {
			t.Fatalf("flavor %v, %v", cred.Flavor, err)
		}
		exp := want
		if opts == nil {
			exp = oncrpc.ProcessAuthSys()
		}
		if got.UID != exp.UID || got.GID != exp.GID || got.Machine != exp.Machine {
			t.Errorf("%+v, want %+v", got, exp)
		}
	}
}

// Replies that decode, but are inconsistent.
func testHostileReplies(t *testing.T, b *testbed.Bed) {
	s, c := pair(t, b)
	ctx := t.Context()
	f := s.add("file", TypeReg, string(pattern(20_000))).handle()
	// lie makes READ return data by write chunk, with a count and a length word
	// of their own.
	lie := func(count, size uint32, data []byte) {
		s.set(func() {
			s.override[ProcRead] = func(_ []byte, res *rpc.Response) bool {
				addRead(res, &ReadRes{Count: count, Data: data})
				binary.BigEndian.PutUint32(res.Results[len(res.Results)-4:], size)
				return true
			}
		})
	}
	buf := make([]byte, 8192)
	for _, test := range []struct {
		name  string
		count uint32
		size  uint32
		data  []byte
	}{
		{"count larger than the buffer", 8193, 8192, pattern(8192)},
		{"count 2^32-1", 1<<32 - 1, 8192, pattern(8192)},
		{"count smaller than the data", 100, 8192, pattern(8192)},
		{"count larger than the data", 8192, 100, pattern(100)},
		{"length word larger than the chunk", 8192, 8192, pattern(8000)},
		{"length word smaller than the chunk", 8000, 8000, pattern(8192)},
		{"length word 2^32-1", 8192, 1<<32 - 1, pattern(8192)},
	} {
		lie(test.count, test.size, test.data)
		n, _, err := c.Read(ctx, f, 0, buf)
		var re *BadReplyError
		if n != 0 || !errors.As(err, &re) {
			t.Errorf("%s: %d, %v", test.name, n, err)
		}
	}
	// The valid form of the same: a chunk with its padding.
	lie(8190, 8190, pattern(8192))
	if n, _, err := c.Read(ctx, f, 0, buf); n != 8190 || err != nil {
		t.Errorf("a chunk with padding: %d, %v", n, err)
	}

	expect := func(name string, err error) {
		t.Helper()
		var re *BadReplyError
		if !errors.As(err, &re) {
			t.Errorf("%s: %v", name, err)
		}
	}
	s.answer(ProcRead, &ReadRes{Count: 4, Data: []byte("12345")})
	_, _, err := c.Read(ctx, f, 0, buf)
	expect("READ, inline, count differs", err)
	s.answer(ProcRead, &ReadRes{Count: 9000, Data: pattern(900)})
	_, _, err = c.Read(ctx, f, 0, buf)
	expect("READ, inline, count larger than the buffer", err)
	// Only the count is wrong: item and buffer have the same size, and a caller that trusted
	// it would access memory beyond the buffer.
	s.answer(ProcRead, &ReadRes{Count: 5, Data: []byte("12345")})
	for _, few := range [][]byte{nil, make([]byte, 4)} {
		n, _, err := c.Read(ctx, f, 0, few)
		expect("READ, inline, more than was asked for", err)
		if n != 0 {
			t.Errorf("READ of %d bytes returns %d", len(few), n)
		}
	}
	s.answer(ProcRead, &FileHandle{})
	_, _, err = c.Read(ctx, f, 0, buf)
	expect("READ, results cut short", err)

	s.answer(ProcWrite, &WriteRes{Count: 6, Committed: FileSync})
	_, err = c.Write(ctx, f, 0, []byte("12345"), FileSync)
	expect("WRITE, more written than given", err)
	s.answer(ProcWrite, &WriteRes{Count: 5, Committed: Unstable})
	_, err = c.Write(ctx, f, 0, []byte("12345"), FileSync)
	expect("WRITE, less stable than asked for", err)

	s.answer(ProcReadLink, &LookupRes{Status: StatusNoEnt, DirAttr: tPostAttr})
	if _, err := c.ReadLink(ctx, f); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("READLINK: %v", err)
	}
	s.answer(ProcGetAttr, &ReadRes{Status: StatusOK})
	_, err = c.GetAttr(ctx, f)
	expect("GETATTR, results of another procedure", err)
	if c.Transport().Err() != nil {
		t.Errorf("the connection has ended: %v", c.Transport().Err())
	}
}

// NFS3ERR_JUKEBOX makes the client try again.
func testJukebox(t *testing.T, b *testbed.Bed) {
	s, c := pair(t, b)
	asked := 0
	s.set(func() {
		s.override[ProcGetAttr] = func(_ []byte, res *rpc.Response) bool {
			asked++
			if asked < 3 {
				res.Results = (&GetAttrRes{Status: StatusJukebox}).Append(res.Results)
			}
			return asked < 3
		}
	})
	if _, err := c.GetAttr(t.Context(), s.root.handle()); err != nil || asked != 3 {
		t.Errorf("asked %d times: %v", asked, err)
	}
	s.answer(ProcGetAttr, &GetAttrRes{Status: StatusJukebox})
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := c.GetAttr(ctx, s.root.handle()); !errors.Is(err, context.Canceled) {
		t.Errorf("with an ended context: %v", err)
	}
}

// Errors have their cause, and calls on a connection that has ended fail.
func testCallErrors(t *testing.T, b *testbed.Bed) {
	s, c := pair(t, b)
	ctx := t.Context()
	_, _, err := c.Lookup(ctx, s.root.handle(), "nothing")
	var e *Error
	if !errors.As(err, &e) || e.Op != "LOOKUP" || e.Status != StatusNoEnt {
		t.Errorf("LOOKUP: %v", err)
	}
	s.set(func() {
		s.override[ProcGetAttr] = func(_ []byte, res *rpc.Response) bool {
			res.Fail(oncrpc.SystemErr)
			return true
		}
	})
	var rpc *oncrpc.RPCError
	if _, err := c.GetAttr(ctx, s.root.handle()); !errors.As(err, &rpc) || !strings.HasPrefix(err.Error(), "nfs: GETATTR of NFS v3: ") {
		t.Errorf("GETATTR: %v", err)
	}
	if err := c.Shutdown(ctx); err != nil {
		t.Errorf("Shutdown: %v", err)
	}
	if _, err := c.GetAttr(ctx, s.root.handle()); !errors.Is(err, net.ErrClosed) {
		t.Errorf("on a closed connection: %v", err)
	}
}

// The pool of calls does not keep references to the caller's memory.
func testPool(t *testing.T, b *testbed.Bed) {
	s, c := pair(t, b)
	f := s.add("file", TypeReg, string(pattern(8192))).handle()
	call := c.v3.call(ProcRead)
	c.v3.calls.Put(call)
	buf := make([]byte, 8192)
	if _, _, err := c.Read(t.Context(), f, 0, buf); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Write(t.Context(), f, 0, buf, FileSync); err != nil {
		t.Fatal(err)
	}
	if slices.ContainsFunc(call.WriteItems[:cap(call.WriteItems)], func(w rpc.WriteItem) bool { return w.Buf != nil }) ||
		slices.ContainsFunc(call.ReadItems[:cap(call.ReadItems)], func(r rpc.ReadItem) bool { return r.Data != nil }) {
		t.Error("a call in the pool has memory of the caller")
	}
}

// Pending returns outstanding calls, oldest first, with their objects.
func testPending(t *testing.T, b *testbed.Bed) {
	s, c := pair(t, b)
	f := s.add("file", TypeReg, "x").handle()
	if got := c.Pending(); len(got) != 0 {
		t.Errorf("before any call: %+v", got)
	}
	var reached, release, done sync.WaitGroup
	release.Add(1)
	s.set(func() {
		s.override[ProcGetAttr] = func([]byte, *rpc.Response) bool {
			s.mu.Unlock() // others are answered meanwhile
			defer s.mu.Lock()
			reached.Done()
			release.Wait()
			return false
		}
	})
	const calls = 3
	for i := range calls {
		reached.Add(1)
		done.Go(func() {
			fh := f
			if i == 1 {
				fh = s.root.handle()
			}
			if _, err := c.GetAttr(t.Context(), fh); err != nil {
				t.Error(err)
			}
		})
		reached.Wait()
		if err := c.Null(t.Context()); err != nil { // it comes and goes between them
			t.Error(err)
		}
	}
	got := c.Pending()
	if len(got) != calls {
		t.Fatalf("%d calls wait, want %d", len(got), calls)
	}
	for i, p := range got {
		want := f
		if i == 1 {
			want = s.root.handle()
		}
		if p.Program != Program || p.Proc != ProcGetAttr || p.Object != want || i > 0 && p.Since.Before(got[i-1].Since) {
			t.Errorf("call %d: %+v", i, p)
		}
	}
	release.Done()
	done.Wait()
	if got := c.Pending(); len(got) != 0 {
		t.Errorf("after all calls: %+v", got)
	}
}
