package nfsd

import (
	"context"
	"os"
	"slices"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/rpcrdma/rpcrdma/internal/testing/leak"
	"github.com/rpcrdma/rpcrdma/internal/testing/testbed"
	"github.com/rpcrdma/rpcrdma/internal/testing/testutil"
	"github.com/rpcrdma/rpcrdma/nfs"
	"github.com/rpcrdma/rpcrdma/proto/oncrpc"
	"github.com/rpcrdma/rpcrdma/proto/xdr"
	"github.com/rpcrdma/rpcrdma/rpc"
	"github.com/rpcrdma/rpcrdma/transport"
)

func TestMain(m *testing.M) { os.Exit(leak.Main(m)) }

// A plain is an FS that can do no more than it has to: a tree that does not change.
type plain struct {
	objects []*object // the root first
	uses    atomic.Int64
	last    atomic.Pointer[Caller] // of the latest operation
	block   chan struct{}          // if not nil, Attr waits for it
	blocked atomic.Int64
	panics  bool // Attr does
}

// An object of a plain is known by its place in the list.
type object struct {
	fs       *plain
	n        byte
	name     string
	data     string
	children []*object // of a directory
	err      error     // of every operation
}

// newPlain makes a tree: /dir/file and /top.
func newPlain() *plain {
	f := new(plain)
	file := &object{name: "file", data: "hello"}
	dir := &object{name: "dir", children: []*object{file}}
	top := &object{name: "top", data: "world"}
	f.objects = []*object{{name: "/", children: []*object{dir, top}}, dir, top, file}
	for i, o := range f.objects {
		o.fs, o.n = f, byte(i)
	}
	return f
}

func (f *plain) node(n int) (Node, error) {
	f.uses.Add(1)
	return f.objects[n], nil
}

func (f *plain) Root(context.Context) (Node, error) { return f.node(0) }

func (f *plain) Node(_ context.Context, handle []byte) (Node, error) {
	if len(handle) != 1 || int(handle[0]) >= len(f.objects) {
		return nil, syscall.ESTALE
	}
	return f.node(int(handle[0]))
}

func (o *object) Release() { o.fs.uses.Add(-1) }

func (o *object) AppendHandle(b []byte) []byte { return append(b, o.n) }

func (o *object) Attr(_ context.Context, who *Caller) (nfs.Attr, error) {
	o.fs.last.Store(&Caller{UID: who.UID, GID: who.GID, GIDs: slices.Clone(who.GIDs), Host: who.Host, Net: who.Net})
	if o.fs.block != nil {
		o.fs.blocked.Add(1)
		<-o.fs.block
	}
	if o.fs.panics {
		panic("as the test wants")
	}
	a := nfs.Attr{Type: nfs.TypeReg, Mode: 0o644, Nlink: 1, Size: uint64(len(o.data)), FileID: uint64(o.n) + 1}
	if o.children != nil {
		a.Type, a.Mode = nfs.TypeDir, 0o755
	}
	return a, o.err
}

func (o *object) Lookup(_ context.Context, _ *Caller, name string) (Node, error) {
	for _, c := range o.children {
		if c.name == name {
			return o.fs.node(int(c.n))
		}
	}
	if name == "." || name == ".." && o.n == 0 {
		return o.fs.node(int(o.n))
	}
	return nil, syscall.ENOENT
}

func (o *object) ReadDir(_ context.Context, _ *Caller, cookie uint64, plus bool, emit func(*Entry) bool) (bool, error) {
	if cookie > uint64(len(o.children)) {
		return false, syscall.EINVAL
	}
	for i, c := range o.children[cookie:] {
		e := Entry{Name: []byte(c.name), FileID: uint64(c.n) + 1, Cookie: cookie + uint64(i) + 1}
		if plus && c.children == nil {
			e.Handle = []byte{c.n}
			e.Attr, _ = c.Attr(context.Background(), new(Caller))
		}
		if !emit(&e) {
			return false, nil
		}
	}
	return true, nil
}

func (o *object) Open(ctx context.Context, who *Caller, rights uint32) (nfs.Attr, error) {
	a, err := o.Attr(ctx, who)
	if a.Type == nfs.TypeDir {
		err = syscall.EISDIR
	}
	return a, err
}

func (o *object) ReadAt(_ context.Context, _ *Caller, b []byte, off int64) (int, error) {
	return copy(b, o.data[off:]), nil
}

// A failing is a plain with files that can be written, with these results.
type failing struct {
	plain
	read, write, commit error
	short               bool // half of what is read or written is
}

func newFailing() *failing {
	f := new(failing)
	f.plain.objects = newPlain().objects
	for _, o := range f.objects {
		o.fs = &f.plain
	}
	return f
}

type failingNode struct {
	*object
	fs *failing
}

func (f *failing) Root(ctx context.Context) (Node, error) { return f.wrap(f.plain.Root(ctx)) }

func (f *failing) Node(ctx context.Context, handle []byte) (Node, error) {
	return f.wrap(f.plain.Node(ctx, handle))
}

func (f *failing) wrap(n Node, err error) (Node, error) {
	if err != nil {
		return nil, err
	}
	return failingNode{n.(*object), f}, nil
}

func (n failingNode) Lookup(ctx context.Context, who *Caller, name string) (Node, error) {
	return n.fs.wrap(n.object.Lookup(ctx, who, name))
}

func (n failingNode) ReadAt(ctx context.Context, who *Caller, b []byte, off int64) (int, error) {
	if n.fs.short {
		b = b[:len(b)/2]
	}
	got, _ := n.object.ReadAt(ctx, who, b, off)
	return got, n.fs.read
}

func (n failingNode) WriteAt(_ context.Context, _ *Caller, b []byte, _ int64, stable nfs.Stable) (int, nfs.Stable, error) {
	if n.fs.short {
		b = b[:len(b)/2]
	}
	return len(b), stable, n.fs.write
}

func (n failingNode) Commit(context.Context, *Caller, uint64, uint32) error { return n.fs.commit }

// A site is a server of exports, and a way to call it.
type site struct {
	t      testing.TB
	server *Server
	addr   string
	rpc    *transport.Client
}

func newSite(t testing.TB, cfg *Config) *site {
	t.Helper()
	s, err := New(cfg)
	testutil.Must(t, err)
	bed := testbed.Iwarp()
	srv, err := transport.NewServer(nil)
	testutil.Must(t, err)
	for _, p := range s.Programs() {
		p.Handler = proved(p.Handler)
		testutil.Must(t, srv.Register(p))
	}
	l, err := srv.Listen(t.Context(), bed.Provider, bed.Host+":0")
	testutil.Must(t, err)
	served := make(chan error, 1)
	go func() { served <- srv.Serve(l) }()
	c := &site{t: t, server: s, addr: l.Addr().String()}
	c.rpc = c.dial()
	t.Cleanup(func() {
		srv.Close()
		<-served
	})
	return c
}

func (c *site) dial() *transport.Client {
	c.t.Helper()
	rpc, err := transport.Dial(c.t.Context(), testbed.Iwarp().Provider, c.addr, nil)
	testutil.Must(c.t, err)
	c.t.Cleanup(func() { rpc.Close() })
	return rpc
}

// message is the arguments of a procedure.
type message interface{ Append([]byte) []byte }

// result is its results.
type result interface{ Decode(*xdr.Decoder) }

// call calls a procedure with a credential. res nil: there are no results.
func (c *site) call(cred oncrpc.Auth, prog, proc uint32, args message, res result) error {
	call := rpc.Call{Prog: prog, Vers: 3, Proc: proc, Cred: cred, MaxResults: 64 << 10}
	if args != nil {
		call.Args = args.Append(nil)
	}
	if err := c.rpc.Call(context.Background(), &call); err != nil {
		return err
	}
	d := xdr.NewDecoder(call.Results)
	if res != nil {
		res.Decode(&d)
	}
	return d.End()
}

func (c *site) nfs(proc uint32, args message, res result) {
	c.t.Helper()
	if err := c.call(someone(), nfs.Program, proc, args, res); err != nil {
		c.t.Fatalf("%s: %v", nfs.ProcName(proc), err)
	}
}

func (c *site) mnt(dir string) nfs.MntRes {
	c.t.Helper()
	var res nfs.MntRes
	path := nfs.DirPath(dir)
	if err := c.call(someone(), nfs.MountProgram, nfs.MountProcMnt, &path, &res); err != nil {
		c.t.Fatal(err)
	}
	return res
}

// lookup returns the handle of a path in an export.
func (c *site) lookup(fh nfs.FileHandle, names ...string) nfs.FileHandle {
	c.t.Helper()
	for _, name := range names {
		var res nfs.LookupRes
		c.nfs(nfs.ProcLookup, &nfs.DirOpArgs{Dir: fh, Name: name}, &res)
		if res.Status != nfs.StatusOK {
			c.t.Fatalf("%q: %v", name, res.Status)
		}
		fh = res.Object
	}
	return fh
}

func someone() oncrpc.Auth {
	return (&oncrpc.AuthSys{UID: 1000, GID: 1001, GIDs: []uint32{0, 5}}).Auth()
}
