package nfs3

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"slices"
	"testing"

	"github.com/rpcrdma/rpcrdma/nfs"
	"github.com/rpcrdma/rpcrdma/transport"
)

// message is what is encoded.
type message interface{ Append(b []byte) []byte }

// compare fails unless the bindings agree about a stream.
func compare(t *testing.T, what string, proc uint32, b []byte) {
	t.Helper()
	p := transport.Procedure{Prog: NfsProgram, Vers: NfsV3, Proc: proc}
	items, bounds := NfsV3Binding{}.Call(p, b, nil)
	wantItems, wantBounds := nfs.Binding{}.Call(p, b, nil)
	if !slices.Equal(items, wantItems) || bounds != wantBounds {
		t.Errorf("%s: arguments have items %+v and bounds %+v, want %+v and %+v", what, items, bounds, wantItems, wantBounds)
	}
	for _, reduced := range []bool{false, true} {
		items, want := NfsV3Binding{}.Reply(p, b, reduced, nil), nfs.Binding{}.Reply(p, b, reduced, nil)
		if !slices.Equal(items, want) {
			t.Errorf("%s: results have items %+v, want %+v, reduced %v", what, items, want, reduced)
		}
	}
	if got, want := (NfsV3Binding{}).Idempotent(p), (nfs.Binding{}).Idempotent(p); got != want {
		t.Errorf("procedure %d: idempotent %v, want %v", proc, got, want)
	}
}

// The generated binding says the same as the one that was written by hand, of good streams and of
// broken ones.
func TestSameBinding(t *testing.T) {
	attr := PostOpAttr{AttributesFollow: true, Attributes: Fattr3{Type: 1, Size: 2, Fileid: 3}}
	file := NfsFh3("file handle")
	where := Diropargs3{Dir: file, Name: "name"}
	sattr := Sattr3{
		Mode: SetUint32{SetIt: true, Value: 1}, Size: SetUint64{SetIt: true, Value: 2},
		Atime: SetTime{SetIt: SetToClientTime}, Mtime: SetTime{SetIt: SetToServerTime},
	}
	messages := []struct {
		proc uint32
		message
	}{
		{Nfsproc3Lookup, &where},
		{Nfsproc3Lookup, &Lookup3Res{Resok: Lookup3Resok{Object: file, ObjAttributes: attr}}},
		{Nfsproc3Readlink, &file},
		{Nfsproc3Readlink, &Readlink3Res{Resok: Readlink3Resok{SymlinkAttributes: attr, Data: []byte("path")}}},
		{Nfsproc3Readlink, &Readlink3Res{Resok: Readlink3Resok{Data: []byte("a/b/c")}}},
		{Nfsproc3Readlink, &Readlink3Res{Status: Nfs3ErrIo, Resfail: attr}},
		{Nfsproc3Read, &Read3Args{File: file, Offset: 1 << 40, Count: 65536}},
		{Nfsproc3Read, &Read3Args{File: file, Count: 1<<32 - 1}},
		{Nfsproc3Read, &Read3Args{Count: 5}},
		{Nfsproc3Read, &Read3Res{Resok: Read3Resok{FileAttributes: attr, Count: 4, Eof: true, Data: []byte("data")}}},
		{Nfsproc3Read, &Read3Res{Resok: Read3Resok{}}},
		{Nfsproc3Read, &Read3Res{Status: Nfs3ErrPerm}},
		{Nfsproc3Write, &Write3Args{File: file, Count: 3, Stable: FileSync, Data: []byte("abc")}},
		{Nfsproc3Write, &Write3Args{}},
		{Nfsproc3Write, &Write3Res{Resok: Write3Resok{FileWcc: WccData{After: attr}}}},
		{Nfsproc3Symlink, &Symlink3Args{where, Symlinkdata3{sattr, []byte("target")}}},
		{Nfsproc3Symlink, &Symlink3Args{Symlink: Symlinkdata3{SymlinkData: []byte("x")}}},
		{Nfsproc3Symlink, &Symlink3Res{Resok: Symlink3Resok{Obj: PostOpFh3{HandleFollows: true, Handle: file}}}},
		{Nfsproc3Readdir, &Readdir3Args{Dir: file, Count: 1001}},
		{Nfsproc3Readdir, &Readdir3Res{Resok: Readdir3Resok{Reply: Dirlist3{Entries: []Entry3{{1, "a", 2}}}}}},
		{Nfsproc3Readdirplus, &Readdirplus3Args{Dir: file, Dircount: 1000, Maxcount: 8000}},
		{Nfsproc3Readdirplus, &Readdirplus3Args{Dir: file, Dircount: 1<<32 - 1}},
		{Nfsproc3Readdirplus, &Readdirplus3Res{Resok: Readdirplus3Resok{Reply: Dirlistplus3{Entries: []Entryplus3{{Name: "b"}}}}}},
	}
	for i, m := range messages {
		b := m.Append(nil)
		what := fmt.Sprintf("message %d, %T", i, m.message)
		compare(t, what, m.proc, b)
		for n := range b {
			compare(t, fmt.Sprintf("%d bytes of %s", n, what), m.proc, b[:n])
		}
		compare(t, what+" with a tail", m.proc, append(bytes.Clone(b), 0, 0, 0, 0))
		for at := 0; at+4 <= len(b); at += 4 {
			for _, word := range []uint32{0, 1, 2, 4, 7, 64, 65, 1 << 20, 1 << 31, 1<<32 - 1} {
				other := bytes.Clone(b)
				binary.BigEndian.PutUint32(other[at:], word)
				compare(t, fmt.Sprintf("%s with %#x at %d", what, word, at), m.proc, other)
			}
		}
	}
}
