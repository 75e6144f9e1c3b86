package main

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"os"
	"testing"
	"time"

	"github.com/rpcrdma/rpcrdma/internal/testing/testutil"
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
		XID: c.xid, RPCVers: oncrpc.Version, Prog: prog, Vers: vers, Proc: proc, Cred: processCred(),
	}), args...)
}

// processCred returns the credential of this process.
func processCred() oncrpc.Auth {
	return (&oncrpc.AuthSys{UID: uint32(os.Geteuid()), GID: uint32(os.Getegid())}).Auth()
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
	if h := accept("NFS version 4", nfs.Program, 4, 1, nil, oncrpc.ProgMismatch); h.Low != 3 || h.High != 3 {
		t.Errorf("NFS versions are %d to %d", h.Low, h.High)
	}
	accept("MOUNT version 1", nfs.MountProgram, 1, 0, nil, oncrpc.ProgMismatch)
	accept("NFS procedure 22", nfs.Program, 3, 22, nil, oncrpc.ProcUnavail)
	accept("MOUNT procedure 6", nfs.MountProgram, 3, 6, nil, oncrpc.ProcUnavail)
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
	if status, _ := xdr.ConsumeUint32(results); nfs.Status(status) != nfs.StatusInval {
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

	// A stream that is not even that ends the connection, and no other.
	for what, b := range map[string][]byte{
		"a record of 2 GiB":        {0xff, 0xff, 0xff, 0xff},
		"an empty fragment":        {0, 0, 0, 0},
		"half a header":            {0x80, 0, 0, 12, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 2},
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
