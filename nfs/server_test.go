package nfs

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/rpcrdma/rpcrdma/internal/testing/leak"
	"github.com/rpcrdma/rpcrdma/internal/testing/testbed"
	"github.com/rpcrdma/rpcrdma/proto/oncrpc"
	"github.com/rpcrdma/rpcrdma/proto/xdr"
	"github.com/rpcrdma/rpcrdma/rpc"
	"github.com/rpcrdma/rpcrdma/rpc/rpcbind"
	"github.com/rpcrdma/rpcrdma/transport"
)

// The tests of the client use an in-memory server, over RPC-over-RDMA on a test bed. The
// server follows RFC 1813, unless a test overrides a procedure.

func TestMain(m *testing.M) {
	testbed.OpenDevices()
	os.Exit(leak.Main(m))
}

type memNode struct {
	id     uint64
	attr   Attr
	data   []byte
	target string
	kids   map[string]*memNode
}

type memServer struct {
	t testing.TB
	b *testbed.Bed

	mu        sync.Mutex
	nodes     map[uint64]*memNode
	root      *memNode
	nextID    uint64
	verf      Verf
	info      FSInfoRes
	bare      bool // leaves out all optional attributes and handles
	inline    bool // READ data does not go to write chunks
	maxRead   int  // longest READ answered, 0: no limit
	maxWrite  int  // longest WRITE taken, 0: no limit
	page      int  // entries in a READDIRPLUS reply, 0: all
	exports   []Export
	lost      map[*memNode][]byte // contents that are not committed: what was before
	calls     map[uint32]int      // by procedure
	override  map[uint32]func(args []byte, res *rpc.Response) bool
	unstables int // WRITEs that were unstable
}

func newMemServer(t testing.TB, b *testbed.Bed) *memServer {
	s := &memServer{
		t: t, b: b, nodes: make(map[uint64]*memNode), calls: make(map[uint32]int),
		lost:     make(map[*memNode][]byte),
		override: make(map[uint32]func([]byte, *rpc.Response) bool),
		verf:     Verf{1},
		info: FSInfoRes{
			RTMax: 1 << 20, RTPref: 64 << 10, RTMult: 512, WTMax: 1 << 20, WTPref: 64 << 10, WTMult: 512,
			DTPref: 4096, MaxFileSize: 1 << 60, TimeDelta: Time{0, 1}, Properties: FSFLink | FSFSymlink,
		},
		exports: []Export{{Dir: "/export"}},
	}
	s.root = s.node(TypeDir, 0o755)
	return s
}

func (s *memServer) node(typ FileType, mode uint32) *memNode {
	s.nextID++
	n := &memNode{id: s.nextID, attr: Attr{Type: typ, Mode: mode, Nlink: 1, FileID: s.nextID, FSID: 1}}
	if typ == TypeDir {
		n.kids = make(map[string]*memNode)
	}
	s.nodes[n.id] = n
	return n
}

// add adds a node at a path below the root, with the directories on the path.
func (s *memServer) add(path string, typ FileType, content string) *memNode {
	s.mu.Lock()
	defer s.mu.Unlock()
	dir := s.root
	names := strings.Split(path, "/")
	for _, name := range names[:len(names)-1] {
		if dir.kids[name] == nil {
			dir.kids[name] = s.node(TypeDir, 0o755)
		}
		dir = dir.kids[name]
	}
	n := s.node(typ, 0o644)
	switch typ {
	case TypeReg:
		n.data = []byte(content)
	case TypeLnk:
		n.target = content
	}
	dir.kids[names[len(names)-1]] = n
	return n
}

// set changes the running server.
func (s *memServer) set(f func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f()
}

func (s *memServer) count(proc uint32) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.calls[proc]
}

// answer makes all calls of a procedure return the same results.
func (s *memServer) answer(proc uint32, m message) {
	s.set(func() {
		s.override[proc] = func(_ []byte, res *rpc.Response) bool {
			res.Results = m.Append(res.Results)
			return true
		}
	})
}

func (n *memNode) handle() FileHandle {
	var b [8]byte
	binary.BigEndian.PutUint64(b[:], n.id)
	fh, _ := NewFileHandle(b[:])
	return fh
}

func (s *memServer) find(fh FileHandle) *memNode {
	if fh.n != 8 {
		return nil
	}
	return s.nodes[binary.BigEndian.Uint64(fh.data[:8])]
}

func (s *memServer) post(n *memNode) PostOpAttr {
	if n == nil || s.bare {
		return PostOpAttr{}
	}
	return PostOpAttr{Present: true, Attr: n.attrs()}
}

func (n *memNode) attrs() Attr {
	a := n.attr
	a.Size = uint64(len(n.data))
	return a
}

func (s *memServer) wcc(n *memNode) Wcc { return Wcc{After: s.post(n)} }

func (s *memServer) created(n, dir *memNode) *CreateRes {
	r := &CreateRes{DirWcc: s.wcc(dir)}
	if !s.bare {
		r.Object = PostOpHandle{Present: true, Handle: n.handle()}
		r.Attr = s.post(n)
	}
	return r
}

// ServeRPC serves NFS.
func (s *memServer) ServeRPC(_ context.Context, req *rpc.Request, res *rpc.Response) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.calls[req.Proc]++
	if f := s.override[req.Proc]; f != nil && f(req.Args, res) {
		return
	}
	if req.Proc == ProcRead {
		s.read(req.Args, res)
		return
	}
	m := s.serve(req.Proc, req.Args)
	if r, ok := m.(*ReadLinkRes); ok && r.Status == StatusOK {
		res.Results = xdr.AppendUint32(res.Results, uint32(r.Status))
		res.Results = r.Attr.Append(res.Results)
		res.AddItem(r.Target, nil)
		return
	}
	if m == nil {
		res.Fail(oncrpc.GarbageArgs)
		return
	}
	res.Results = m.Append(res.Results)
}

func (s *memServer) read(args []byte, res *rpc.Response) {
	var a ReadArgs
	if decode(args, &a) != nil {
		res.Fail(oncrpc.GarbageArgs)
		return
	}
	n := s.find(a.File)
	r := ReadRes{Attr: s.post(n)}
	switch {
	case n == nil:
		r.Status = StatusStale
	case n.attr.Type == TypeDir:
		r.Status = StatusIsDir
	default:
		if s.maxRead > 0 {
			a.Count = min(a.Count, uint32(s.maxRead))
		}
		from := min(a.Offset, uint64(len(n.data)))
		to := min(from+uint64(a.Count), uint64(len(n.data)))
		r.Data = slices.Clone(n.data[from:to])
		r.Count, r.EOF = uint32(to-from), to == uint64(len(n.data))
	}
	if s.inline || r.Status != StatusOK {
		res.Results = r.Append(res.Results)
		return
	}
	addRead(res, &r)
}

// addRead adds the results of a READ, with the data as an item.
func addRead(res *rpc.Response, r *ReadRes) {
	data := r.Data
	r.Data = nil
	b := r.Append(res.Results)
	res.Results = b[:len(b)-xdr.Unit]
	res.AddItem(data, nil)
}

// serve executes all other procedures. It returns nil if the arguments do not decode.
func (s *memServer) serve(proc uint32, args []byte) message {
	switch proc {
	case ProcGetAttr:
		var a FileHandle
		if decode(args, &a) != nil {
			return nil
		}
		n := s.find(a)
		if n == nil {
			return &GetAttrRes{Status: StatusStale}
		}
		return &GetAttrRes{Attr: n.attrs()}
	case ProcSetAttr:
		var a SetAttrArgs
		if decode(args, &a) != nil {
			return nil
		}
		n := s.find(a.Object)
		if n == nil {
			return &WccRes{Status: StatusStale}
		}
		if a.Attr.SetMode {
			n.attr.Mode = a.Attr.Mode
		}
		if a.Attr.SetSize {
			n.data = append(n.data, make([]byte, max(0, int(a.Attr.Size)-len(n.data)))...)[:a.Attr.Size]
		}
		return &WccRes{Wcc: s.wcc(n)}
	case ProcLookup:
		var a DirOpArgs
		if decode(args, &a) != nil {
			return nil
		}
		dir := s.find(a.Dir)
		switch {
		case dir == nil:
			return &LookupRes{Status: StatusStale}
		case dir.kids == nil:
			return &LookupRes{Status: StatusNotDir, DirAttr: s.post(dir)}
		case dir.kids[a.Name] == nil:
			return &LookupRes{Status: StatusNoEnt, DirAttr: s.post(dir)}
		}
		n := dir.kids[a.Name]
		return &LookupRes{Object: n.handle(), Attr: s.post(n), DirAttr: s.post(dir)}
	case ProcAccess:
		var a AccessArgs
		if decode(args, &a) != nil {
			return nil
		}
		return &AccessRes{Attr: s.post(s.find(a.Object)), Access: a.Access &^ AccessDelete}
	case ProcReadLink:
		var a FileHandle
		if decode(args, &a) != nil {
			return nil
		}
		if n := s.find(a); n != nil && n.attr.Type == TypeLnk {
			return &ReadLinkRes{Attr: s.post(n), Target: []byte(n.target)}
		}
		return &ReadLinkRes{Status: StatusInval}
	case ProcWrite:
		return s.write(args)
	case ProcCreate:
		var a CreateArgs
		if decode(args, &a) != nil {
			return nil
		}
		return s.create(&a.Where, TypeReg, a.Attr.Mode, a.Mode == Unchecked)
	case ProcMkdir:
		var a MkdirArgs
		if decode(args, &a) != nil {
			return nil
		}
		return s.create(&a.Where, TypeDir, a.Attr.Mode, false)
	case ProcSymlink:
		var a SymlinkArgs
		if decode(args, &a) != nil {
			return nil
		}
		res := s.create(&a.Where, TypeLnk, a.Attr.Mode, false)
		if res.Status == StatusOK {
			s.find(a.Where.Dir).kids[a.Where.Name].target = string(a.Target)
		}
		return res
	case ProcMknod:
		var a MknodArgs
		if decode(args, &a) != nil {
			return nil
		}
		res := s.create(&a.Where, a.Type, a.Attr.Mode, false)
		if res.Status == StatusOK {
			s.find(a.Where.Dir).kids[a.Where.Name].attr.Rdev = a.Spec
		}
		return res
	case ProcRemove, ProcRmdir:
		var a DirOpArgs
		if decode(args, &a) != nil {
			return nil
		}
		dir := s.find(a.Dir)
		n := dir.kids[a.Name]
		switch {
		case n == nil:
			return &WccRes{Status: StatusNoEnt}
		case proc == ProcRemove && n.kids != nil:
			return &WccRes{Status: StatusIsDir}
		case proc == ProcRmdir && n.kids == nil:
			return &WccRes{Status: StatusNotDir}
		case len(n.kids) > 0:
			return &WccRes{Status: StatusNotEmpty}
		}
		delete(dir.kids, a.Name)
		return &WccRes{Wcc: s.wcc(dir)}
	case ProcRename:
		var a RenameArgs
		if decode(args, &a) != nil {
			return nil
		}
		from, to := s.find(a.From.Dir), s.find(a.To.Dir)
		n := from.kids[a.From.Name]
		if n == nil {
			return &RenameRes{Status: StatusNoEnt}
		}
		delete(from.kids, a.From.Name)
		to.kids[a.To.Name] = n
		return &RenameRes{FromWcc: s.wcc(from), ToWcc: s.wcc(to)}
	case ProcLink:
		var a LinkArgs
		if decode(args, &a) != nil {
			return nil
		}
		n := s.find(a.File)
		s.find(a.Link.Dir).kids[a.Link.Name] = n
		return &LinkRes{Attr: s.post(n)}
	case ProcReadDir:
		var a ReadDirArgs
		if decode(args, &a) != nil {
			return nil
		}
		plus := s.list(a.Dir, a.Cookie, false)
		r := &ReadDirRes{Status: plus.Status, DirAttr: plus.DirAttr, Verf: plus.Verf, EOF: plus.EOF}
		for _, e := range plus.Entries {
			r.Entries = append(r.Entries, NameEntry{FileID: e.FileID, Name: e.Name, Cookie: e.Cookie})
		}
		return r
	case ProcReadDirPlus:
		var a ReadDirPlusArgs
		if decode(args, &a) != nil {
			return nil
		}
		return s.list(a.Dir, a.Cookie, !s.bare)
	case ProcFSStat:
		return &FSStatRes{TotalBytes: 1 << 40, FreeBytes: 1 << 39, AvailFiles: 7}
	case ProcFSInfo:
		r := s.info
		return &r
	case ProcPathConf:
		return &PathConfRes{LinkMax: 1, NameMax: 255, NoTrunc: true}
	case ProcCommit:
		var a CommitArgs
		if decode(args, &a) != nil {
			return nil
		}
		n := s.find(a.File)
		delete(s.lost, n)
		return &CommitRes{Wcc: s.wcc(n), Verf: s.verf}
	}
	return nil
}

func (s *memServer) write(args []byte) message {
	var a WriteArgs
	if decode(args, &a) != nil {
		return nil
	}
	n := s.find(a.File)
	if n == nil {
		return &WriteRes{Status: StatusStale}
	}
	data := a.Data
	if s.maxWrite > 0 {
		data = data[:min(len(data), s.maxWrite)]
	}
	if a.Stable == Unstable {
		s.unstables++
		if _, ok := s.lost[n]; !ok {
			s.lost[n] = slices.Clone(n.data)
		}
	}
	if grow := int(a.Offset) + len(data) - len(n.data); grow > 0 {
		n.data = append(n.data, make([]byte, grow)...)
	}
	copy(n.data[a.Offset:], data)
	return &WriteRes{Wcc: s.wcc(n), Count: uint32(len(data)), Committed: a.Stable, Verf: s.verf}
}

// reboot drops uncommitted data. mu is held.
func (s *memServer) reboot() {
	for n, before := range s.lost {
		n.data = before
	}
	clear(s.lost)
	s.verf[7]++
}

func (s *memServer) create(where *DirOpArgs, typ FileType, mode uint32, unchecked bool) *CreateRes {
	dir := s.find(where.Dir)
	if dir == nil || dir.kids == nil {
		return &CreateRes{Status: StatusNotDir}
	}
	if old := dir.kids[where.Name]; old != nil {
		if unchecked && old.attr.Type == TypeReg {
			old.data = nil
			return s.created(old, dir)
		}
		return &CreateRes{Status: StatusExist}
	}
	n := s.node(typ, mode)
	dir.kids[where.Name] = n
	return s.created(n, dir)
}

// list executes READDIR and READDIRPLUS. Cookies are positions in the sorted list, from 1,
// after "." and "..".
func (s *memServer) list(fh FileHandle, cookie uint64, plus bool) *ReadDirPlusRes {
	dir := s.find(fh)
	if dir == nil || dir.kids == nil {
		return &ReadDirPlusRes{Status: StatusNotDir}
	}
	names := []string{".", ".."}
	for name := range dir.kids {
		names = append(names, name)
	}
	slices.Sort(names[2:])
	r := &ReadDirPlusRes{DirAttr: s.post(dir), Verf: s.verf, EOF: true}
	for i, name := range names {
		if uint64(i) < cookie {
			continue
		}
		if s.page > 0 && len(r.Entries) == s.page {
			r.EOF = false
			break
		}
		e := DirEntry{FileID: uint64(i), Name: name, Cookie: uint64(i + 1)}
		if n := dir.kids[name]; n != nil && plus {
			e.Attr = s.post(n)
			e.Handle = PostOpHandle{Present: true, Handle: n.handle()}
		}
		r.Entries = append(r.Entries, e)
	}
	return r
}

// mount executes the MOUNT program.
func (s *memServer) mount(proc uint32, args []byte) (results []byte, stat oncrpc.AcceptStat) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch proc {
	case MountProcNull:
		return nil, oncrpc.Success
	case MountProcMnt:
		var dir DirPath
		if decode(args, &dir) != nil {
			return nil, oncrpc.GarbageArgs
		}
		res := MntRes{Status: MountNoEnt}
		for _, e := range s.exports {
			if e.Dir == string(dir) {
				res = MntRes{Handle: s.root.handle(), Flavors: []uint32{1}}
			}
		}
		return res.Append(nil), oncrpc.Success
	case MountProcUmnt:
		return nil, oncrpc.Success
	case MountProcDump:
		return (&DumpRes{[]MountEntry{{"client", "/export"}}}).Append(nil), oncrpc.Success
	case MountProcExport:
		if s.exports[0].Groups == nil && s.exports[0].Dir == "no EXPORT" {
			return nil, oncrpc.ProcUnavail
		}
		return (&ExportRes{s.exports}).Append(nil), oncrpc.Success
	}
	return nil, oncrpc.ProcUnavail
}

// start serves s, with or without MOUNT, and returns the address.
func (s *memServer) start(mount bool) string {
	s.t.Helper()
	srv, err := transport.NewServer(nil)
	if err != nil {
		s.t.Fatal(err)
	}
	if err := srv.Register(rpc.Program{Number: Program, Low: 3, High: 3, Handler: s}); err != nil {
		s.t.Fatal(err)
	}
	if mount {
		h := rpc.HandlerFunc(func(_ context.Context, req *rpc.Request, res *rpc.Response) {
			results, stat := s.mount(req.Proc, req.Args)
			if stat != oncrpc.Success {
				res.Fail(stat)
				return
			}
			res.Results = append(res.Results, results...)
		})
		if err := srv.Register(rpc.Program{Number: MountProgram, Low: 3, High: 3, Handler: h}); err != nil {
			s.t.Fatal(err)
		}
	}
	l, err := srv.Listen(s.t.Context(), s.b.Provider, s.b.Host+":0")
	if err != nil {
		s.t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- srv.Serve(l) }()
	s.t.Cleanup(func() {
		srv.Close()
		<-served
	})
	return l.Addr().String()
}

// dial connects a client to the address; the test closes it.
func dial(t testing.TB, b *testbed.Bed, addr string, opts *Options) *Client {
	t.Helper()
	c, err := Dial(t.Context(), b.Provider, addr, opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
	return c
}

// pair starts a server with MOUNT and returns it with a client.
func pair(t testing.TB, b *testbed.Bed) (*memServer, *Client) {
	t.Helper()
	s := newMemServer(t, b)
	return s, dial(t, b, s.start(true), nil)
}

// rpcServer serves RPC calls over TCP: f returns the bytes of the answer to a call.
func rpcServer(t testing.TB, at string, f func(h *oncrpc.CallHeader, args []byte) []byte) (host string, port int) {
	t.Helper()
	l, err := net.Listen("tcp", at+":0")
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	ctx, cancel := context.WithCancel(context.Background())
	wg.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			wg.Go(func() {
				defer c.Close()
				defer context.AfterFunc(ctx, func() { c.Close() })()
				serveRecords(c, f)
			})
		}
	})
	t.Cleanup(func() {
		l.Close()
		cancel()
		wg.Wait()
	})
	a := l.Addr().(*net.TCPAddr)
	return a.IP.String(), a.Port
}

func serveRecords(c net.Conn, f func(h *oncrpc.CallHeader, args []byte) []byte) {
	buf := make([]byte, 64<<10)
	have := 0
	for {
		n, err := c.Read(buf[have:])
		if err != nil {
			return
		}
		have += n
		size, _, n := oncrpc.ConsumeRecordMark(buf[:have])
		if n < 0 || have < n+int(size) {
			continue
		}
		var h oncrpc.CallHeader
		at, err := oncrpc.ConsumeCall(buf[n:n+int(size)], &h)
		if err != nil {
			return
		}
		if _, err := c.Write(f(&h, buf[n+at:n+int(size)])); err != nil {
			return
		}
		have = copy(buf, buf[n+int(size):have])
	}
}

// record returns a reply message as a record of two fragments.
func record(xid uint32, stat oncrpc.AcceptStat, results []byte) []byte {
	msg := oncrpc.AppendReply(nil, &oncrpc.ReplyHeader{XID: xid, AcceptStat: stat, Low: 3, High: 3})
	msg = append(msg, results...)
	half := len(msg) / 2
	b := oncrpc.AppendRecordMark(nil, half, false)
	b = append(b, msg[:half]...)
	b = oncrpc.AppendRecordMark(b, len(msg)-half, true)
	return append(b, msg[half:]...)
}

// mountServer serves s's MOUNT over TCP.
func (s *memServer) mountServer() (host string, port int) {
	return rpcServer(s.t, s.b.Host, func(h *oncrpc.CallHeader, args []byte) []byte {
		if h.Prog != MountProgram {
			return record(h.XID, oncrpc.ProgUnavail, nil)
		}
		results, stat := s.mount(h.Proc, args)
		return record(h.XID, stat, results)
	})
}

// tcpServer serves programs over TCP with a Server of package transport, on port.
func tcpServer(t testing.TB, at string, progs ...rpc.Program) (port int) {
	t.Helper()
	return tcpServerWith(t, nil, at, progs...)
}

func tcpServerWith(t testing.TB, cfg *transport.ServerConfig, at string, progs ...rpc.Program) (port int) {
	t.Helper()
	s, err := transport.NewServer(cfg)
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range progs {
		if err := s.Register(p); err != nil {
			t.Fatal(err)
		}
	}
	l, err := net.Listen("tcp", at+":0")
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- s.ServeTCP(l) }()
	t.Cleanup(func() {
		s.Close()
		if err := <-served; !errors.Is(err, net.ErrClosed) {
			t.Errorf("ServeTCP returned %v", err)
		}
	})
	return l.Addr().(*net.TCPAddr).Port
}

// mountProgram is s's MOUNT.
func (s *memServer) mountProgram() rpc.Program {
	return rpc.Program{Number: MountProgram, Low: MountVersion, High: MountVersion, Handler: rpc.HandlerFunc(
		func(_ context.Context, req *rpc.Request, res *rpc.Response) {
			results, stat := s.mount(req.Proc, req.Args)
			if stat != oncrpc.Success {
				res.Fail(stat)
			}
			res.Results = append(res.Results, results...)
		})}
}

// rpcbindProgram is an rpcbind that knows the port of MOUNT.
func rpcbindProgram(port int) rpc.Program {
	return rpc.Program{Number: rpcbind.Program, Low: 4, High: 4, Handler: rpc.HandlerFunc(
		func(_ context.Context, req *rpc.Request, res *rpc.Response) {
			if d := xdr.NewDecoder(req.Args); req.Proc != 3 || d.Uint32() != MountProgram || d.Uint32() != MountVersion {
				res.Fail(oncrpc.GarbageArgs)
			}
			res.Results = xdr.AppendString(res.Results, fmt.Sprintf("192.0.2.1.%d.%d", port>>8, port&0xff))
		})}
}

// rpcbindServer supports one version, and returns the given address of MOUNT: a universal
// address, or a port in version 2. RFC 1833 sections 2.2.1 and 3.2.
func rpcbindServer(t testing.TB, at string, vers uint32, answer any) int {
	_, p := rpcServer(t, at, func(h *oncrpc.CallHeader, args []byte) []byte {
		d := xdr.NewDecoder(args)
		switch {
		case h.Prog != rpcbind.Program || h.Proc != 3 || d.Uint32() != MountProgram || d.Uint32() != MountVersion:
			return record(h.XID, oncrpc.GarbageArgs, nil)
		case h.Vers != vers:
			return record(h.XID, oncrpc.ProgMismatch, nil)
		}
		if uaddr, ok := answer.(string); ok {
			return record(h.XID, oncrpc.Success, xdr.AppendString(nil, uaddr))
		}
		return record(h.XID, oncrpc.Success, xdr.AppendUint32(nil, uint32(answer.(int))))
	})
	return p
}
