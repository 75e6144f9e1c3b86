package nfs

import (
	"reflect"
	"testing"

	"github.com/rpcrdma/rpcrdma/proto/xdr"
	"github.com/rpcrdma/rpcrdma/rpc"
)

const maxTransfer = 16 << 20 // the most that a count in arguments bounds results to

func proc(n uint32) rpc.Procedure {
	return rpc.Procedure{Prog: Program, Vers: Version, Proc: n}
}

// The items are those of RFC 8267 section 4 (NFS version 3 and 4), and no others.
func TestBindingItems(t *testing.T) {
	write := &WriteArgs{tHandle, 8, 5, Unstable, []byte("12345")}
	symlink := &SymlinkArgs{tWhere, tSetAttr, []byte("tar/get")}
	for _, test := range []struct {
		name string
		proc uint32
		args message
		item string
	}{
		{"WRITE data", ProcWrite, write, "12345"},
		{"SYMLINK path", ProcSymlink, symlink, "tar/get"},
		{"SYMLINK path, nothing set", ProcSymlink, &SymlinkArgs{Where: tWhere, Target: []byte("x")}, "x"},
		{"WRITE, empty", ProcWrite, &WriteArgs{File: tHandle}, ""},
	} {
		b := test.args.Append(nil)
		items, _ := Binding{}.Call(proc(test.proc), b, nil)
		if len(items) != 1 {
			t.Errorf("%s: %d items", test.name, len(items))
			continue
		}
		if got := string(b[items[0].Offset:][:items[0].Length]); got != test.item || items[0].End() != len(b) {
			t.Errorf("%s: item %+v is %q, want %q", test.name, items[0], got, test.item)
		}
	}
	for _, test := range []struct {
		name string
		proc uint32
		res  message
		item string
	}{
		{"READ data, all attributes", ProcRead, &ReadRes{Attr: tPostAttr, Count: 3, Data: []byte("abc")}, "abc"},
		{"READ data, no attributes", ProcRead, &ReadRes{Count: 4, Data: []byte("abcd")}, "abcd"},
		{"READ, empty", ProcRead, &ReadRes{EOF: true}, ""},
		{"READLINK path, all attributes", ProcReadLink, &ReadLinkRes{Attr: tPostAttr, Target: []byte("a/b")}, "a/b"},
		{"READLINK path, no attributes", ProcReadLink, &ReadLinkRes{Target: []byte("a/b")}, "a/b"},
	} {
		b := test.res.Append(nil)
		items := Binding{}.Reply(proc(test.proc), b, false, nil)
		if len(items) != 1 {
			t.Errorf("%s: %d items", test.name, len(items))
			continue
		}
		if got := string(b[items[0].Offset:][:items[0].Length]); got != test.item || items[0].End() != len(b) {
			t.Errorf("%s: item %+v is %q, want %q", test.name, items[0], got, test.item)
		}
		// Reduced results: the same item, without its bytes.
		cut := b[:items[0].Offset:items[0].Offset]
		if got := (Binding{}).Reply(proc(test.proc), cut, true, nil); len(got) != 1 || got[0] != items[0] {
			t.Errorf("%s, reduced: %+v, want %+v", test.name, got, items)
		}
		if len(test.item) > 0 {
			if got := (Binding{}).Reply(proc(test.proc), b, true, nil); len(got) > 0 {
				t.Errorf("%s, said to be reduced but whole: %+v", test.name, got)
			}
		}
	}

	// Everything else has none: other procedures, failures, other programs and versions,
	// truncated messages, and messages with trailing bytes.
	stale := []rpc.Range{{Offset: 1, Length: 1}}
	for p := range ProcCommit + 2 {
		for _, g := range goldens {
			b := g.m.Append(nil)
			if items, _ := (Binding{}).Call(proc(p), b, stale); len(items) > 0 && p != ProcWrite && p != ProcSymlink {
				t.Errorf("%s has items %v in the arguments %+v", ProcName(p), items, g.m)
			}
			if items := (Binding{}).Reply(proc(p), b, false, stale); len(items) > 0 && p != ProcRead && p != ProcReadLink {
				t.Errorf("%s has items %v in the results %+v", ProcName(p), items, g.m)
			}
		}
	}
	for _, res := range []*ReadRes{{Status: StatusIO}, {Status: StatusIO, Attr: tPostAttr}} {
		if items := (Binding{}).Reply(proc(ProcRead), res.Append(nil), false, stale); len(items) > 0 {
			t.Errorf("a failed READ has items %v", items)
		}
	}
	good := write.Append(nil)
	for n := range good {
		if items, _ := (Binding{}).Call(proc(ProcWrite), good[:n:n], stale); len(items) > 0 {
			t.Errorf("%d of %d bytes have items %v", n, len(good), items)
		}
	}
	if items, _ := (Binding{}).Call(proc(ProcWrite), append(good, 0, 0, 0, 0), stale); len(items) > 0 {
		t.Errorf("a stream with a tail has items %v", items)
	}
	for _, p := range []rpc.Procedure{
		{Prog: Program, Vers: 2, Proc: ProcWrite}, {Prog: Program, Vers: 4, Proc: ProcWrite},
		{Prog: MountProgram, Vers: MountVersion, Proc: ProcWrite}, {Prog: 1, Vers: Version, Proc: ProcWrite},
	} {
		if items, _ := (Binding{}).Call(p, good, stale); len(items) > 0 {
			t.Errorf("%+v has items %v", p, items)
		}
	}
}

// The bounds are exactly the largest results that RFC 1813 allows.
func TestBindingBounds(t *testing.T) {
	var big FileHandle
	big.n = MaxHandle
	fh := PostOpHandle{Present: true, Handle: big}
	attr, wcc := tPostAttr, tWcc
	largest := map[uint32]message{
		ProcGetAttr:     &GetAttrRes{Attr: tAttr},
		ProcSetAttr:     &WccRes{Wcc: wcc},
		ProcLookup:      &LookupRes{Object: big, Attr: attr, DirAttr: attr},
		ProcAccess:      &AccessRes{Attr: attr},
		ProcReadLink:    &ReadLinkRes{Attr: attr},
		ProcRead:        &ReadRes{Attr: attr},
		ProcWrite:       &WriteRes{Wcc: wcc},
		ProcCreate:      &CreateRes{Object: fh, Attr: attr, DirWcc: wcc},
		ProcMkdir:       &CreateRes{Object: fh, Attr: attr, DirWcc: wcc},
		ProcSymlink:     &CreateRes{Object: fh, Attr: attr, DirWcc: wcc},
		ProcMknod:       &CreateRes{Object: fh, Attr: attr, DirWcc: wcc},
		ProcRemove:      &WccRes{Wcc: wcc},
		ProcRmdir:       &WccRes{Wcc: wcc},
		ProcRename:      &RenameRes{FromWcc: wcc, ToWcc: wcc},
		ProcLink:        &LinkRes{Attr: attr, DirWcc: wcc},
		ProcReadDir:     &ReadDirRes{DirAttr: attr},
		ProcReadDirPlus: &ReadDirPlusRes{DirAttr: attr},
		ProcFSStat:      &FSStatRes{Attr: attr},
		ProcFSInfo:      &FSInfoRes{Attr: attr},
		ProcPathConf:    &PathConfRes{Attr: attr},
		ProcCommit:      &CommitRes{Wcc: wcc},
	}
	bounds := func(p rpc.Procedure, args message) rpc.ReplyBounds {
		var b []byte
		if args != nil {
			b = args.Append(nil)
		}
		_, r := Binding{}.Call(p, b, nil)
		return r
	}
	for p := ProcGetAttr; p <= ProcCommit; p++ {
		if got, want := bounds(proc(p), nil).MaxResults, len(largest[p].Append(nil)); got != want {
			t.Errorf("%s: bound %d, largest results %d", ProcName(p), got, want)
		}
	}
	mount := func(n uint32) rpc.Procedure {
		return rpc.Procedure{Prog: MountProgram, Vers: MountVersion, Proc: n}
	}
	for _, test := range []struct {
		name      string
		got, want rpc.ReplyBounds
	}{
		{"READ", bounds(proc(ProcRead), &ReadArgs{tHandle, 0, 65536}),
			rpc.ReplyBounds{MaxResults: 104, Items: [4]int{65536}, NumItems: 1}},
		{"READ of an odd count", bounds(proc(ProcRead), &ReadArgs{tHandle, 0, 5}),
			rpc.ReplyBounds{MaxResults: 104, Items: [4]int{8}, NumItems: 1}},
		{"READ of everything", bounds(proc(ProcRead), &ReadArgs{tHandle, 0, 1<<32 - 1}),
			rpc.ReplyBounds{MaxResults: 104, Items: [4]int{maxTransfer}, NumItems: 1}},
		{"READ that does not decode", bounds(proc(ProcRead), &tHandle), rpc.ReplyBounds{MaxResults: 104}},
		{"READLINK", bounds(proc(ProcReadLink), &tHandle),
			rpc.ReplyBounds{MaxResults: 96, Items: [4]int{MaxPath}, NumItems: 1}},
		{"READDIR", bounds(proc(ProcReadDir), &ReadDirArgs{tHandle, 0, tVerf, 1000}), rpc.ReplyBounds{MaxResults: 108 + 1000}},
		{"READDIRPLUS", bounds(proc(ProcReadDirPlus), &ReadDirPlusArgs{tHandle, 0, tVerf, 1000, 8000}),
			rpc.ReplyBounds{MaxResults: 108 + 8000}},
		{"WRITE", bounds(proc(ProcWrite), &WriteArgs{File: tHandle, Data: make([]byte, 9)}), rpc.ReplyBounds{MaxResults: 136}},
		{"EXPORT", bounds(mount(MountProcExport), nil), rpc.ReplyBounds{MaxResults: 65536}},
		{"MNT", bounds(mount(MountProcMnt), ptr(DirPath("/"))), rpc.ReplyBounds{MaxResults: 332}},
		{"MOUNT 6", bounds(mount(6), nil), rpc.ReplyBounds{}},
		{"NFS 22", bounds(proc(22), nil), rpc.ReplyBounds{}},
	} {
		if test.got != test.want {
			t.Errorf("%s: %+v, want %+v", test.name, test.got, test.want)
		}
	}
}

func TestBindingAlloc(t *testing.T) {
	write := (&WriteArgs{tHandle, 8, 5, Unstable, []byte("12345")}).Append(nil)
	read := (&ReadRes{Attr: tPostAttr, Count: 3, Data: []byte("abc")}).Append(nil)
	items := make([]rpc.Range, 0, 4)
	if n := testing.AllocsPerRun(100, func() {
		items, _ = Binding{}.Call(proc(ProcWrite), write, items)
		items = Binding{}.Reply(proc(ProcRead), read, false, items)
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

// For any message, ranges lie inside it, in ascending order, do not overlap, and each is an
// opaque item.
func FuzzBinding(f *testing.F) {
	f.Add(uint32(ProcWrite), (&WriteArgs{tHandle, 8, 5, Unstable, []byte("12345")}).Append(nil))
	f.Add(uint32(ProcSymlink), (&SymlinkArgs{tWhere, tSetAttr, []byte("tar/get")}).Append(nil))
	f.Add(uint32(ProcRead), (&ReadRes{Attr: tPostAttr, Count: 3, Data: []byte("abc")}).Append(nil))
	f.Add(uint32(ProcRead), (&ReadArgs{tHandle, 0, 1<<32 - 1}).Append(nil))
	f.Add(uint32(ProcReadLink), (&ReadLinkRes{Target: []byte("a/b")}).Append(nil))
	f.Add(uint32(ProcReadDirPlus), (&ReadDirPlusArgs{tHandle, 0, tVerf, 1<<32 - 1, 0}).Append(nil))
	f.Fuzz(func(t *testing.T, p uint32, b []byte) {
		before := append([]byte(nil), b...)
		for _, prog := range []uint32{Program, MountProgram} {
			pr := rpc.Procedure{Prog: prog, Vers: 3, Proc: p}
			args, bounds := Binding{}.Call(pr, b, nil)
			for _, items := range [][]rpc.Range{args, (Binding{}).Reply(pr, b, false, nil)} {
				end := 0
				for _, r := range items {
					if r.Offset < end+xdr.Unit || r.Offset%xdr.Unit != 0 || r.Length < 0 || r.End() > len(b) {
						t.Fatalf("range %+v in a stream of %d bytes", r, len(b))
					}
					if n, _ := xdr.ConsumeUint32(b[r.Offset-xdr.Unit:]); int(n) != r.Length {
						t.Fatalf("range %+v behind length %d", r, n)
					}
					end = r.End()
				}
			}
			for _, r := range (Binding{}).Reply(pr, b, true, nil) {
				if r.Offset != len(b) || r.Length < 0 || r.End() < 0 {
					t.Fatalf("range %+v in a reduced stream of %d bytes", r, len(b))
				}
			}
			if bounds.MaxResults < 0 || bounds.MaxResults > 2*maxTransfer || bounds.NumItems < 0 || bounds.NumItems > 1 ||
				bounds.Items[0] < 0 || bounds.Items[0] > maxTransfer {
				t.Fatalf("bounds %+v", bounds)
			}
		}
		if !reflect.DeepEqual(b, before) && len(b) > 0 {
			t.Fatal("the stream was changed")
		}
	})
}
