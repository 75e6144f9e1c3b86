package nfsd_test

import (
	"context"
	"fmt"
	"io"
	"log"
	"syscall"

	"github.com/rpcrdma/rpcrdma/iwarp"
	"github.com/rpcrdma/rpcrdma/nfs"
	"github.com/rpcrdma/rpcrdma/nfs/nfsd"
	"github.com/rpcrdma/rpcrdma/transport"
)

// greeting is a file system: a directory with one file in it.
type greeting string

// An object of it: the directory is 1, the file 2.
type object struct {
	text greeting
	id   uint64
}

func (g greeting) Root(context.Context) (nfsd.Node, error) { return object{g, 1}, nil }

func (g greeting) Node(_ context.Context, handle []byte) (nfsd.Node, error) {
	if len(handle) != 1 || handle[0] != 1 && handle[0] != 2 {
		return nil, syscall.ESTALE
	}
	return object{g, uint64(handle[0])}, nil
}

func (o object) AppendHandle(b []byte) []byte { return append(b, byte(o.id)) }

func (o object) Release() {}

func (o object) Attr(context.Context, *nfsd.Caller) (nfs.Attr, error) {
	if o.id == 1 {
		return nfs.Attr{Type: nfs.TypeDir, Mode: 0o555, Nlink: 2, FileID: o.id}, nil
	}
	return nfs.Attr{Type: nfs.TypeReg, Mode: 0o444, Nlink: 1, FileID: o.id, Size: uint64(len(o.text))}, nil
}

func (o object) Lookup(_ context.Context, _ *nfsd.Caller, name string) (nfsd.Node, error) {
	switch name {
	case ".", "..":
		return object{o.text, 1}, nil
	case "hello":
		return object{o.text, 2}, nil
	}
	return nil, syscall.ENOENT
}

func (o object) ReadDir(_ context.Context, _ *nfsd.Caller, cookie uint64, _ bool, emit func(*nfsd.Entry) bool) (bool, error) {
	names := []string{".", "..", "hello"}
	if cookie > uint64(len(names)) {
		return false, syscall.EINVAL
	}
	for i, name := range names[cookie:] {
		id := uint64(1)
		if name == "hello" {
			id = 2
		}
		if !emit(&nfsd.Entry{Name: []byte(name), FileID: id, Cookie: cookie + uint64(i) + 1}) {
			return false, nil
		}
	}
	return true, nil
}

func (o object) Open(ctx context.Context, who *nfsd.Caller, rights uint32) (nfs.Attr, error) {
	if rights&nfs.AccessModify != 0 {
		return nfs.Attr{}, syscall.EROFS
	}
	return o.Attr(ctx, who)
}

func (o object) ReadAt(_ context.Context, _ *nfsd.Caller, b []byte, off int64) (int, error) {
	return copy(b, o.text[min(off, int64(len(o.text))):]), nil
}

// A file system of the program's own, and a client that reads its file.
func Example() {
	ctx := context.Background()
	check := func(err error) {
		if err != nil {
			log.Fatal(err)
		}
	}
	files, err := nfsd.New(&nfsd.Config{Exports: []nfsd.Export{{Name: "/", FS: greeting("hello, world"), ReadOnly: true}}})
	check(err)
	defer files.Shutdown(ctx)
	server, err := transport.NewServer(nil)
	check(err)
	for _, p := range files.Programs() {
		check(server.Register(p))
	}
	provider := iwarp.New(iwarp.Config{})
	l, err := server.Listen(ctx, provider, "127.0.0.1:0")
	check(err)
	go server.Serve(l)
	defer server.Close()

	c, err := nfs.Dial(ctx, provider, l.Addr().String(), nil)
	check(err)
	defer c.Close()
	f, err := c.Open(ctx, "/hello")
	check(err)
	text := make([]byte, 100)
	n, err := f.ReadAt(ctx, text, 0)
	if err != io.EOF {
		check(err)
	}
	fmt.Println(string(text[:n]))
	// Output: hello, world
}
