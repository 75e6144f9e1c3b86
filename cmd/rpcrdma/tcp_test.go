package main

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"testing"
	"time"

	"github.com/rpcrdma/rpcrdma/internal/testutil"
	"github.com/rpcrdma/rpcrdma/loadgen"
	"github.com/rpcrdma/rpcrdma/nfs"
	"github.com/rpcrdma/rpcrdma/proto/oncrpc"
	"github.com/rpcrdma/rpcrdma/proto/xdr"
)

// An rpcConn is an ONC RPC client on TCP.
type rpcConn struct {
	net.Conn
	t   *testing.T
	xid uint32
}

func dialRPC(t *testing.T, addr string) *rpcConn {
	t.Helper()
	c, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	c.SetDeadline(time.Now().Add(testTimeout))
	return &rpcConn{Conn: c, t: t}
}

// message is a call.
func (c *rpcConn) message(prog, vers, proc uint32, args []byte) []byte {
	c.xid++
	return append(oncrpc.AppendCall(nil, &oncrpc.CallHeader{
		XID: c.xid, RPCVers: oncrpc.Version, Prog: prog, Vers: vers, Proc: proc,
	}), args...)
}

// send sends a message in fragments of at most size bytes.
func (c *rpcConn) send(msg []byte, size int) {
	c.t.Helper()
	for {
		n := min(size, len(msg))
		b := oncrpc.AppendRecordMark(nil, n, n == len(msg))
		if _, err := c.Write(append(b, msg[:n]...)); err != nil {
			c.t.Fatal(err)
		}
		if msg = msg[n:]; len(msg) == 0 {
			return
		}
	}
}

// receive returns the header and the results of the next reply.
func (c *rpcConn) receive() (oncrpc.ReplyHeader, []byte) {
	c.t.Helper()
	var mark [4]byte
	if _, err := io.ReadFull(c, mark[:]); err != nil {
		c.t.Fatal(err)
	}
	msg := make([]byte, binary.BigEndian.Uint32(mark[:])&^oncrpc.LastFragment)
	if _, err := io.ReadFull(c, msg); err != nil {
		c.t.Fatal(err)
	}
	var h oncrpc.ReplyHeader
	n, err := oncrpc.ConsumeReply(msg, &h)
	if err != nil {
		c.t.Fatal(err)
	}
	return h, msg[n:]
}

// call makes a call and returns its reply.
func (c *rpcConn) call(prog, vers, proc uint32, args []byte) (oncrpc.ReplyHeader, []byte) {
	c.t.Helper()
	c.send(c.message(prog, vers, proc, args), 1<<20)
	h, results := c.receive()
	if h.XID != c.xid {
		c.t.Fatalf("reply to %d, want %d", h.XID, c.xid)
	}
	return h, results
}

// On TCP there is the same as on RDMA.
func TestTCP(t *testing.T) {
	dir := t.TempDir()
	text := randomText(7, 100000)
	testutil.WriteFiles(t, dir, map[string]string{"file": text})
	s := startServer(t, "--dir", dir, "--tcp-addr", "127.0.0.1:0")
	tcp, rdma := dialRPC(t, s.tcp), s.dialNFS(t)

	slash := nfs.DirPath("/")
	_, results := tcp.call(nfs.MountProgram, nfs.MountVersion, nfs.MountProcMnt, slash.Append(nil))
	var mnt nfs.MntRes
	d := xdr.NewDecoder(results)
	if mnt.Decode(&d); d.End() != nil || mnt.Status != nfs.MountOK {
		t.Fatalf("MNT: %+v, %v", mnt, d.Err())
	}
	if top := root(t, rdma); mnt.Handle != top {
		t.Error("MNT gives another handle than on RDMA")
	}
	_, results = tcp.call(nfs.Program, nfs.Version, nfs.ProcGetAttr, mnt.Handle.Append(nil))
	var attr nfs.GetAttrRes
	d = xdr.NewDecoder(results)
	attr.Decode(&d)
	if want, err := rdma.GetAttr(t.Context(), mnt.Handle); d.End() != nil || err != nil || attr.Attr != want {
		t.Errorf("GETATTR: %+v, on RDMA %+v, %v, %v", attr.Attr, want, d.Err(), err)
	}

	// A call in many fragments, two calls at once.
	file := fhOf(t, rdma, mnt.Handle, "file")
	args := nfs.ReadArgs{File: file, Count: 1 << 20}
	msg := tcp.message(nfs.Program, nfs.Version, nfs.ProcRead, args.Append(nil))
	tcp.send(msg, 7)
	tcp.send(tcp.message(nfs.Program, nfs.Version, nfs.ProcRead, args.Append(nil)), 1<<20)
	for range 2 {
		var read nfs.ReadRes
		_, results := tcp.receive()
		d := xdr.NewDecoder(results)
		if read.Decode(&d); d.End() != nil || !read.EOF || string(read.Data) != text {
			t.Errorf("READ: %d bytes, %v", len(read.Data), d.Err())
		}
	}
	write := nfs.WriteArgs{File: file, Offset: 10, Count: 3 << 20, Stable: nfs.Unstable, Data: make([]byte, 3<<20)}
	_, results = tcp.call(nfs.Program, nfs.Version, nfs.ProcWrite, write.Append(nil))
	var written nfs.WriteRes
	d = xdr.NewDecoder(results)
	if written.Decode(&d); d.End() != nil || written.Count != 3<<20 {
		t.Errorf("WRITE: %+v, %v", written, d.Err())
	}
}

// Calls that make no sense get what RFC 5531 and RFC 1813 say, and the connection
// goes on.
func TestBadCalls(t *testing.T) {
	dir := t.TempDir()
	testutil.WriteFiles(t, dir, map[string]string{"file": "text"})
	s := startServer(t, "--dir", dir, "--tcp-addr", "127.0.0.1:0")
	c := dialRPC(t, s.tcp)
	rdma := s.dialNFS(t)
	top := root(t, rdma)
	file := fhOf(t, rdma, top, "file")

	huge := []byte{0xff, 0xff, 0xff, 0xff}
	accept := func(what string, prog, vers, proc uint32, args []byte, want oncrpc.AcceptStat) oncrpc.ReplyHeader {
		t.Helper()
		h, _ := c.call(prog, vers, proc, args)
		if h.Stat != oncrpc.MsgAccepted || h.AcceptStat != want {
			t.Errorf("%s: %v, want %v", what, h.Err(), want)
		}
		return h
	}
	accept("another program", 100000, 2, 0, nil, oncrpc.ProgUnavail)
	accept("the benchmark program, which is not on TCP", loadgen.ProgramNumber, 1, 0, nil, oncrpc.ProgUnavail)
	if h := accept("NFS version 4", nfs.Program, 4, 1, nil, oncrpc.ProgMismatch); h.Low != 3 || h.High != 3 {
		t.Errorf("NFS versions are %d to %d", h.Low, h.High)
	}
	accept("MOUNT version 1", nfs.MountProgram, 1, 0, nil, oncrpc.ProgMismatch)
	accept("NFS procedure 22", nfs.Program, 3, 22, nil, oncrpc.ProcUnavail)
	accept("MOUNT procedure 6", nfs.MountProgram, 3, 6, nil, oncrpc.ProcUnavail)
	accept("arguments of NULL", nfs.Program, 3, 0, make([]byte, 4), oncrpc.GarbageArgs)
	for proc := nfs.ProcGetAttr; proc <= nfs.ProcCommit; proc++ {
		accept("no arguments", nfs.Program, 3, proc, nil, oncrpc.GarbageArgs)
		accept("a length of 4 GiB", nfs.Program, 3, proc, huge, oncrpc.GarbageArgs)
		if proc == nfs.ProcAccess {
			continue // these are its arguments
		}
		accept("a handle and a length of 4 GiB", nfs.Program, 3, proc, append(top.Append(nil), huge...), oncrpc.GarbageArgs)
	}
	accept("MNT of 4 GiB", nfs.MountProgram, 3, 1, huge, oncrpc.GarbageArgs)
	accept("an empty MNT", nfs.MountProgram, 3, 1, make([]byte, 4), oncrpc.Success)

	// Disagreement between counts.
	write := nfs.WriteArgs{File: file, Count: 5, Data: []byte("four")}
	_, results := c.call(nfs.Program, 3, nfs.ProcWrite, write.Append(nil))
	if !bytes.Equal(results, failure(nfs.ProcWrite, nfs.StatusInval)) {
		t.Errorf("WRITE of 5 bytes with 4: %x", results)
	}

	// Headers.
	c.send(oncrpc.AppendCall(nil, &oncrpc.CallHeader{XID: 77, RPCVers: 3, Prog: nfs.Program, Vers: 3}), 1000)
	if h, _ := c.receive(); h.XID != 77 || h.Stat != oncrpc.MsgDenied || h.RejectStat != oncrpc.RPCMismatch || h.Low != 2 {
		t.Errorf("RPC version 3: %v", h.Err())
	}
	for _, cred := range []oncrpc.Auth{{Flavor: oncrpc.FlavorGSS}, {Flavor: oncrpc.FlavorSys, Body: huge}} {
		msg := oncrpc.AppendCall(nil, &oncrpc.CallHeader{XID: 78, RPCVers: 2, Prog: nfs.Program, Vers: 3, Proc: nfs.ProcGetAttr, Cred: cred})
		c.send(top.Append(msg), 1000)
		if h, _ := c.receive(); h.Stat != oncrpc.MsgDenied || h.RejectStat != oncrpc.AuthError || h.AuthStat != oncrpc.AuthBadCred {
			t.Errorf("credential %v: %v", cred.Flavor, h.Err())
		}
	}
	accept("a call after all that", nfs.Program, 3, 0, nil, oncrpc.Success)

	// What is not even that ends the connection, and no other.
	for what, b := range map[string][]byte{
		"a record of 2 GiB":        {0xff, 0xff, 0xff, 0xff},
		"an empty fragment":        {0, 0, 0, 0},
		"an empty record":          {0x80, 0, 0, 0},
		"half a header":            {0x80, 0, 0, 12, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 2},
		"a reply":                  {0x80, 0, 0, 12, 0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0, 0},
		"fragments without an end": bytes.Repeat(append([]byte{0, 1, 0, 0}, make([]byte, 1<<16)...), 65),
	} {
		bad := dialRPC(t, s.tcp)
		go bad.Write(b) // which may not get all of it out
		var ne net.Error
		if n, err := bad.Read(make([]byte, 1)); n != 0 {
			t.Errorf("%s is answered", what)
		} else if errors.As(err, &ne) && ne.Timeout() {
			t.Errorf("%s keeps the connection open", what)
		}
	}
	accept("a call after all that", nfs.Program, 3, 0, nil, oncrpc.Success)
}

// FuzzGuard sends the guard whatever can be a call. It must answer with a reply that
// decodes, and go on.
func FuzzGuard(f *testing.F) {
	dir := f.TempDir()
	e, err := newExport(dir, false)
	if err != nil {
		f.Fatal(err)
	}
	e.handles.instance = [8]byte{} // what one process finds means the same to another
	g := newGuard(e, true, (&options{}).logger(io.Discard))
	f.Cleanup(func() {
		g.stop(time.Second)
		e.Close()
	})
	top, _ := nfs.NewFileHandle(e.handles.handle(nil))
	add := func(prog, proc uint32, args []byte) {
		f.Add(prog, uint32(3), proc, args)
	}
	add(nfs.MountProgram, nfs.MountProcMnt, xdr.AppendString(nil, "/"))
	where := nfs.DirOpArgs{Dir: top, Name: "name"}
	for _, proc := range []uint32{nfs.ProcGetAttr, nfs.ProcFSStat, nfs.ProcFSInfo, nfs.ProcPathConf, nfs.ProcReadLink} {
		add(nfs.Program, proc, top.Append(nil))
	}
	for _, proc := range []uint32{nfs.ProcLookup, nfs.ProcRemove, nfs.ProcRmdir} {
		add(nfs.Program, proc, where.Append(nil))
	}
	create := nfs.CreateArgs{Where: where, Attr: nfs.SetAttr{SetMode: true, Mode: 0o644, SetSize: true, Size: 5}}
	add(nfs.Program, nfs.ProcCreate, create.Append(nil))
	mkdir := nfs.MkdirArgs{Where: where}
	add(nfs.Program, nfs.ProcMkdir, mkdir.Append(nil))
	symlink := nfs.SymlinkArgs{Where: where, Target: []byte("target")}
	add(nfs.Program, nfs.ProcSymlink, symlink.Append(nil))
	rename := nfs.RenameArgs{From: where, To: where}
	add(nfs.Program, nfs.ProcRename, rename.Append(nil))
	read := nfs.ReadArgs{File: top, Count: 1 << 31}
	add(nfs.Program, nfs.ProcRead, read.Append(nil))
	write := nfs.WriteArgs{File: top, Count: 3, Data: []byte("abc")}
	add(nfs.Program, nfs.ProcWrite, write.Append(nil))
	readdir := nfs.ReadDirPlusArgs{Dir: top, DirCount: 4096, MaxCount: 4096}
	add(nfs.Program, nfs.ProcReadDirPlus, readdir.Append(nil))
	f.Fuzz(func(t *testing.T, prog, vers, proc uint32, args []byte) {
		if len(args) > 1<<16 {
			return
		}
		h := oncrpc.CallHeader{XID: 5, RPCVers: oncrpc.Version, Prog: prog, Vers: vers, Proc: proc}
		record := oncrpc.AppendRecordMark(nil, h.Size()+len(args), true)
		record = append(oncrpc.AppendCall(record, &h), args...)
		reply := g.answer(&h, record, len(record)-len(args))
		size, last, n := oncrpc.ConsumeRecordMark(reply)
		if n < 0 || !last || int(size) != len(reply)-n {
			t.Fatalf("reply is not a record: %x", reply)
		}
		var r oncrpc.ReplyHeader
		at, err := oncrpc.ConsumeReply(reply[n:], &r)
		if err != nil || r.XID != h.XID {
			t.Fatalf("reply to %d: %v", r.XID, err)
		}
		if r.Err() != nil || prog != nfs.Program || proc == nfs.ProcNull {
			return
		}
		// Results decode to their last byte.
		if err := decodeResults(proc, reply[n+at:]); err != nil {
			t.Fatalf("%s: results %x: %v", nfs.ProcName(proc), reply[n+at:], err)
		}
	})
}

func decodeResults(proc uint32, results []byte) error {
	d := xdr.NewDecoder(results)
	var res interface{ Decode(*xdr.Decoder) }
	switch proc {
	case nfs.ProcGetAttr:
		res = new(nfs.GetAttrRes)
	case nfs.ProcSetAttr, nfs.ProcRemove, nfs.ProcRmdir:
		res = new(nfs.WccRes)
	case nfs.ProcLookup:
		res = new(nfs.LookupRes)
	case nfs.ProcAccess:
		res = new(nfs.AccessRes)
	case nfs.ProcReadLink:
		res = new(nfs.ReadLinkRes)
	case nfs.ProcRead:
		res = new(nfs.ReadRes)
	case nfs.ProcWrite:
		res = new(nfs.WriteRes)
	case nfs.ProcCreate, nfs.ProcMkdir, nfs.ProcSymlink, nfs.ProcMknod:
		res = new(nfs.CreateRes)
	case nfs.ProcRename:
		res = new(nfs.RenameRes)
	case nfs.ProcLink:
		res = new(nfs.LinkRes)
	case nfs.ProcReadDir:
		res = new(nfs.ReadDirRes)
	case nfs.ProcReadDirPlus:
		res = new(nfs.ReadDirPlusRes)
	case nfs.ProcFSStat:
		res = new(nfs.FSStatRes)
	case nfs.ProcFSInfo:
		res = new(nfs.FSInfoRes)
	case nfs.ProcPathConf:
		res = new(nfs.PathConfRes)
	default:
		res = new(nfs.CommitRes)
	}
	res.Decode(&d)
	return d.End()
}
