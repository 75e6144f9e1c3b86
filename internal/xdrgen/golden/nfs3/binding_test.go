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
	p := transport.Procedure{Prog: Program, Vers: Version, Proc: proc}
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
	attr := PostOpAttr{Present: true, Attr: Attr{Type: TypeReg, Size: 2, FileID: 3}}
	wcc := Wcc{Before: PreOpAttr{Present: true, Size: 1}, After: attr}
	file := FileHandle("file handle")
	where := DirOpArgs{Dir: file, Name: "name"}
	set := SetAttr{SetMode: true, Mode: 1, SetSize: true, Size: 2, ATimeHow: SetToClientTime, MTimeHow: SetToServerTime}
	messages := []struct {
		proc uint32
		message
	}{
		{ProcGetAttr, &file},
		{ProcGetAttr, &GetAttrRes{Attr: attr.Attr}},
		{ProcSetAttr, &SetAttrArgs{Object: file, Attr: set, Guard: true}},
		{ProcSetAttr, &WccRes{Wcc: wcc}},
		{ProcLookup, &where},
		{ProcLookup, &LookupRes{Object: file, Attr: attr}},
		{ProcAccess, &AccessArgs{Object: file, Access: 1}},
		{ProcAccess, &AccessRes{Attr: attr, Access: 1}},
		{ProcReadLink, &file},
		{ProcReadLink, &ReadLinkRes{Attr: attr, Target: []byte("path")}},
		{ProcReadLink, &ReadLinkRes{Target: []byte("a/b/c")}},
		{ProcReadLink, &ReadLinkRes{Status: StatusIO, Attr: attr}},
		{ProcRead, &ReadArgs{File: file, Offset: 1 << 40, Count: 65536}},
		{ProcRead, &ReadArgs{File: file, Count: 1<<32 - 1}},
		{ProcRead, &ReadArgs{Count: 5}},
		{ProcRead, &ReadRes{Attr: attr, Count: 4, EOF: true, Data: []byte("data")}},
		{ProcRead, &ReadRes{}},
		{ProcRead, &ReadRes{Status: StatusPerm}},
		{ProcWrite, &WriteArgs{File: file, Count: 3, Stable: FileSync, Data: []byte("abc")}},
		{ProcWrite, &WriteArgs{}},
		{ProcWrite, &WriteRes{Wcc: wcc}},
		{ProcCreate, &CreateArgs{Where: where, Mode: Guarded, Attr: set}},
		{ProcCreate, &CreateRes{Object: PostOpHandle{Present: true, Handle: file}, DirWcc: wcc}},
		{ProcMkdir, &MkdirArgs{Where: where, Attr: set}},
		{ProcSymlink, &SymlinkArgs{Where: where, Attr: set, Target: []byte("target")}},
		{ProcSymlink, &SymlinkArgs{Target: []byte("x")}},
		{ProcSymlink, &CreateRes{Object: PostOpHandle{Present: true, Handle: file}}},
		{ProcMknod, &MknodArgs{Where: where, Type: TypeBlk, Attr: set}},
		{ProcRemove, &where},
		{ProcRmdir, &where},
		{ProcRename, &RenameArgs{From: where, To: where}},
		{ProcRename, &RenameRes{FromWcc: wcc}},
		{ProcLink, &LinkArgs{File: file, Link: where}},
		{ProcLink, &LinkRes{Attr: attr, DirWcc: wcc}},
		{ProcReadDir, &ReadDirArgs{Dir: file, Count: 1001}},
		{ProcReadDir, &ReadDirRes{Entries: []NameEntry{{1, "a", 2}}}},
		{ProcReadDirPlus, &ReadDirPlusArgs{Dir: file, DirCount: 1000, MaxCount: 8000}},
		{ProcReadDirPlus, &ReadDirPlusArgs{Dir: file, DirCount: 1<<32 - 1}},
		{ProcReadDirPlus, &ReadDirPlusRes{Entries: []DirEntry{{Name: "b"}}}},
		{ProcFSStat, &file},
		{ProcFSInfo, &file},
		{ProcPathConf, &file},
		{ProcCommit, &CommitArgs{File: file}},
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
