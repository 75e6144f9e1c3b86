package nfs

import (
	"bytes"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/rpcrdma/rpcrdma/internal/testing/testutil"
	"github.com/rpcrdma/rpcrdma/proto/xdr"
)

// message is implemented by every type with an encoding.
type message interface {
	Append(b []byte) []byte
	Decode(d *xdr.Decoder)
}

// The vectors below were written out by hand from the XDR in RFC 1813, field by
// field in the order given there, with four bytes for each enum, bool and uint32
// and eight for each uint64 (RFC 4506). Types that occur in others:
const (
	// nfs_fh3 (2.5): opaque<64> of three bytes, one byte of padding.
	xHandle = "00000003 aabbcc00 "
	// fattr3 (2.5): type NF3REG, mode 0644, nlink 1, uid 1000, gid 100,
	// size 2^32+1, used 8192, rdev 8:17, fsid 0xf00d, fileid 42, atime 1.2,
	// mtime 3.4, ctime 5.6.
	xAttr = "00000001 000001a4 00000001 000003e8 00000064 " +
		"00000001 00000001 00000000 00002000 00000008 00000011 " +
		"00000000 0000f00d 00000000 0000002a " +
		"00000001 00000002 00000003 00000004 00000005 00000006 "
	// post_op_attr (2.5): TRUE and fattr3; FALSE.
	xPostAttr = "00000001 " + xAttr
	xNoAttr   = "00000000 "
	// wcc_data (2.5): pre_op_attr TRUE with wcc_attr size 7, mtime 1.2, ctime
	// 3.4; post_op_attr. Then one with neither.
	xWcc   = "00000001 00000000 00000007 00000001 00000002 00000003 00000004 " + xPostAttr
	xNoWcc = "00000000 00000000 "
	// diropargs3 (2.5): nfs_fh3, filename3 "name" (no padding).
	xWhere = xHandle + "00000004 6e616d65 "
	// sattr3 (2.5): mode 0755, no uid, gid 5, size 9, atime
	// SET_TO_CLIENT_TIME 1.2, mtime SET_TO_SERVER_TIME.
	xSetAttr = "00000001 000001ed 00000000 00000001 00000005 00000001 00000000 00000009 " +
		"00000002 00000001 00000002 00000001 "
	// A verifier: opaque[8].
	xVerf = "01020304 05060708 "
)

var (
	tHandle, _ = NewFileHandle([]byte{0xaa, 0xbb, 0xcc})
	tAttr      = Attr{
		Type: TypeReg, Mode: 0o644, Nlink: 1, UID: 1000, GID: 100,
		Size: 1<<32 + 1, Used: 8192, Rdev: Device{8, 17}, FSID: 0xf00d, FileID: 42,
		ATime: Time{1, 2}, MTime: Time{3, 4}, CTime: Time{5, 6},
	}
	tPostAttr = PostOpAttr{Present: true, Attr: tAttr}
	tPostFH   = PostOpHandle{Present: true, Handle: tHandle}
	tWcc      = Wcc{
		Before: PreOpAttr{Present: true, Size: 7, MTime: Time{1, 2}, CTime: Time{3, 4}},
		After:  tPostAttr,
	}
	tWhere   = DirOpArgs{Dir: tHandle, Name: "name"}
	tSetAttr = SetAttr{
		SetMode: true, Mode: 0o755, SetGID: true, GID: 5, SetSize: true, Size: 9,
		ATimeHow: SetToClientTime, ATime: Time{1, 2}, MTimeHow: SetToServerTime,
	}
	tVerf = Verf{1, 2, 3, 4, 5, 6, 7, 8}
)

var goldens = []struct {
	section string // of RFC 1813
	m       message
	hex     string
}{
	{"2.5 nfs_fh3", &tHandle, xHandle},
	{"2.5 nfs_fh3", &FileHandle{}, "00000000"},
	{"2.4 writeverf3", &tVerf, xVerf},
	{"2.5 nfstime3", &Time{1, 0xffffffff}, "00000001 ffffffff"},
	{"2.5 specdata3", &Device{1, 2}, "00000001 00000002"},
	{"2.5 fattr3", &tAttr, xAttr},
	{"2.5 post_op_attr", &tPostAttr, xPostAttr},
	{"2.5 post_op_attr", &PostOpAttr{}, xNoAttr},
	{"2.5 post_op_fh3", &tPostFH, "00000001 " + xHandle},
	{"2.5 pre_op_attr", &tWcc.Before, "00000001 00000000 00000007 00000001 00000002 00000003 00000004"},
	{"2.5 wcc_data", &tWcc, xWcc},
	{"2.5 wcc_data", &Wcc{}, xNoWcc},
	{"2.5 sattr3", &tSetAttr, xSetAttr},
	// All DONT_CHANGE or FALSE: six words of zero.
	{"2.5 sattr3", &SetAttr{}, "00000000 00000000 00000000 00000000 00000000 00000000"},
	{"2.5 diropargs3", &tWhere, xWhere},
	{"3.3.1 GETATTR3res", &GetAttrRes{Attr: tAttr}, "00000000 " + xAttr},
	// NFS3ERR_STALE, 70: the default arm is void.
	{"3.3.1 GETATTR3res", &GetAttrRes{Status: StatusStale}, "00000046"},
	{"3.3.2 SETATTR3args", &SetAttrArgs{Object: tHandle, Attr: tSetAttr, Guard: true, CTime: Time{5, 6}},
		xHandle + xSetAttr + "00000001 00000005 00000006"},
	{"3.3.2 SETATTR3args", &SetAttrArgs{Object: tHandle, Attr: tSetAttr}, xHandle + xSetAttr + "00000000"},
	{"3.3.2 SETATTR3res", &WccRes{Wcc: tWcc}, "00000000 " + xWcc},
	// NFS3ERR_NOT_SYNC, 10002, has wcc_data, too.
	{"3.3.2 SETATTR3res", &WccRes{Status: StatusNotSync}, "00002712 " + xNoWcc},
	{"3.3.3 LOOKUP3res", &LookupRes{Object: tHandle, Attr: tPostAttr}, "00000000 " + xHandle + xPostAttr + xNoAttr},
	{"3.3.3 LOOKUP3res", &LookupRes{Status: StatusNoEnt, DirAttr: tPostAttr}, "00000002 " + xPostAttr},
	{"3.3.4 ACCESS3args", &AccessArgs{tHandle, AccessRead | AccessExecute}, xHandle + "00000021"},
	{"3.3.4 ACCESS3res", &AccessRes{Attr: tPostAttr, Access: AccessRead}, "00000000 " + xPostAttr + "00000001"},
	{"3.3.4 ACCESS3res", &AccessRes{Status: StatusIO}, "00000005 " + xNoAttr},
	// nfspath3 "a/b/c": five bytes, three of padding.
	{"3.3.5 READLINK3res", &ReadLinkRes{Target: []byte("a/b/c")}, "00000000 " + xNoAttr + "00000005 612f622f 63000000"},
	{"3.3.5 READLINK3res", &ReadLinkRes{Status: StatusInval, Attr: tPostAttr}, "00000016 " + xPostAttr},
	{"3.3.6 READ3args", &ReadArgs{tHandle, 1 << 40, 4096}, xHandle + "00000100 00000000 00001000"},
	{"3.3.6 READ3res", &ReadRes{Attr: tPostAttr, Count: 2, EOF: true, Data: []byte{0xde, 0xad}},
		"00000000 " + xPostAttr + "00000002 00000001 00000002 dead0000"},
	{"3.3.6 READ3res", &ReadRes{Status: StatusAcces}, "0000000d " + xNoAttr},
	{"3.3.7 WRITE3args", &WriteArgs{tHandle, 8, 3, FileSync, []byte{1, 2, 3}},
		xHandle + "00000000 00000008 00000003 00000002 00000003 01020300"},
	{"3.3.7 WRITE3res", &WriteRes{Wcc: tWcc, Count: 3, Committed: DataSync, Verf: tVerf},
		"00000000 " + xWcc + "00000003 00000001 " + xVerf},
	{"3.3.7 WRITE3res", &WriteRes{Status: StatusNoSpc}, "0000001c " + xNoWcc},
	{"3.3.8 CREATE3args", &CreateArgs{Where: tWhere, Mode: Guarded, Attr: tSetAttr}, xWhere + "00000001 " + xSetAttr},
	{"3.3.8 CREATE3args", &CreateArgs{Where: tWhere, Mode: Exclusive, Verf: tVerf}, xWhere + "00000002 " + xVerf},
	{"3.3.8 CREATE3res", &CreateRes{Object: tPostFH, Attr: tPostAttr, DirWcc: tWcc},
		"00000000 00000001 " + xHandle + xPostAttr + xWcc},
	{"3.3.8 CREATE3res", &CreateRes{}, "00000000 00000000 00000000 " + xNoWcc},
	{"3.3.8 CREATE3res", &CreateRes{Status: StatusExist, DirWcc: tWcc}, "00000011 " + xWcc},
	{"3.3.9 MKDIR3args", &MkdirArgs{tWhere, tSetAttr}, xWhere + xSetAttr},
	{"3.3.10 SYMLINK3args", &SymlinkArgs{tWhere, tSetAttr, []byte("../x")}, xWhere + xSetAttr + "00000004 2e2e2f78"},
	{"3.3.11 MKNOD3args", &MknodArgs{tWhere, TypeBlk, tSetAttr, Device{8, 1}}, xWhere + "00000003 " + xSetAttr + "00000008 00000001"},
	{"3.3.11 MKNOD3args", &MknodArgs{Where: tWhere, Type: TypeFIFO, Attr: tSetAttr}, xWhere + "00000007 " + xSetAttr},
	{"3.3.11 MKNOD3args", &MknodArgs{Where: tWhere, Type: TypeReg}, xWhere + "00000001 "},
	{"3.3.14 RENAME3args", &RenameArgs{tWhere, DirOpArgs{tHandle, "to"}}, xWhere + xHandle + "00000002 746f0000"},
	{"3.3.14 RENAME3res", &RenameRes{FromWcc: tWcc}, "00000000 " + xWcc + xNoWcc},
	{"3.3.15 LINK3args", &LinkArgs{tHandle, tWhere}, xHandle + xWhere},
	{"3.3.15 LINK3res", &LinkRes{Status: StatusMLink, Attr: tPostAttr}, "0000001f " + xPostAttr + xNoWcc},
	{"3.3.16 READDIR3args", &ReadDirArgs{tHandle, 5, tVerf, 1024}, xHandle + "00000000 00000005 " + xVerf + "00000400"},
	// entry3 list: TRUE, fileid, name, cookie; FALSE; eof.
	{"3.3.16 READDIR3res", &ReadDirRes{Verf: tVerf, Entries: []NameEntry{{FileID: 1, Name: "a", Cookie: 9}}, EOF: true},
		"00000000 " + xNoAttr + xVerf + "00000001 00000000 00000001 00000001 61000000 00000000 00000009 00000000 00000001"},
	{"3.3.16 READDIR3res", &ReadDirRes{Status: StatusBadCookie}, "00002713 " + xNoAttr},
	{"3.3.17 READDIRPLUS3args", &ReadDirPlusArgs{tHandle, 5, tVerf, 512, 1024},
		xHandle + "00000000 00000005 " + xVerf + "00000200 00000400"},
	{"3.3.17 READDIRPLUS3res", &ReadDirPlusRes{
		DirAttr: tPostAttr, Verf: tVerf,
		Entries: []DirEntry{
			{FileID: 1, Name: "a", Cookie: 9, Attr: tPostAttr, Handle: tPostFH},
			{FileID: 2, Name: "bb", Cookie: 10},
		},
	}, "00000000 " + xPostAttr + xVerf +
		"00000001 00000000 00000001 00000001 61000000 00000000 00000009 " + xPostAttr + "00000001 " + xHandle +
		"00000001 00000000 00000002 00000002 62620000 00000000 0000000a 00000000 00000000 " +
		"00000000 00000000"},
	{"3.3.18 FSSTAT3res", &FSStatRes{TotalBytes: 1, FreeBytes: 2, AvailBytes: 3, TotalFiles: 4, FreeFiles: 5, AvailFiles: 6, Invarsec: 7},
		"00000000 " + xNoAttr + "00000000 00000001 00000000 00000002 00000000 00000003 " +
			"00000000 00000004 00000000 00000005 00000000 00000006 00000007"},
	{"3.3.19 FSINFO3res", &FSInfoRes{
		RTMax: 1, RTPref: 2, RTMult: 3, WTMax: 4, WTPref: 5, WTMult: 6, DTPref: 7,
		MaxFileSize: 1<<63 - 1, TimeDelta: Time{0, 1}, Properties: FSFLink | FSFSymlink | FSFHomogeneous | FSFCanSetTime,
	}, "00000000 " + xNoAttr + "00000001 00000002 00000003 00000004 00000005 00000006 00000007 " +
		"7fffffff ffffffff 00000000 00000001 0000001b"},
	{"3.3.20 PATHCONF3res", &PathConfRes{LinkMax: 32000, NameMax: 255, NoTrunc: true, CasePreserving: true},
		"00000000 " + xNoAttr + "00007d00 000000ff 00000001 00000000 00000000 00000001"},
	{"3.3.21 COMMIT3args", &CommitArgs{tHandle, 1, 2}, xHandle + "00000000 00000001 00000002"},
	{"3.3.21 COMMIT3res", &CommitRes{Wcc: tWcc, Verf: tVerf}, "00000000 " + xWcc + xVerf},
	{"3.3.21 COMMIT3res", &CommitRes{Status: StatusIO}, "00000005 " + xNoWcc},
	{"5.1.4 dirpath", ptr(DirPath("/srv")), "00000004 2f737276"},
	// fhandle3 opaque<64>, auth_flavors<>: AUTH_SYS 1 and AUTH_NONE 0.
	{"5.2.1 mountres3", &MntRes{Handle: tHandle, Flavors: []uint32{1, 0}}, "00000000 " + xHandle + "00000002 00000001 00000000"},
	{"5.2.1 mountres3", &MntRes{Status: MountAcces}, "0000000d"},
	{"5.2.2 mountlist", &DumpRes{[]MountEntry{{"h", "/d"}}}, "00000001 00000001 68000000 00000002 2f640000 00000000"},
	{"5.2.2 mountlist", &DumpRes{}, "00000000"},
	{"5.2.5 exports", &ExportRes{[]Export{{"/a", []string{"x", "y"}}, {Dir: "/"}}},
		"00000001 00000002 2f610000 00000001 00000001 78000000 00000001 00000001 79000000 00000000 " +
			"00000001 00000001 2f000000 00000000 " +
			"00000000"},
}

func ptr[T any](v T) *T { return &v }

// blank returns a new message of the type of m.
func blank(m message) message {
	return reflect.New(reflect.TypeOf(m).Elem()).Interface().(message)
}

// decode reads all of b into m.
func decode(b []byte, m message) error {
	d := xdr.NewDecoder(b)
	m.Decode(&d)
	return d.End()
}

// same compares messages; an empty list equals nil.
func same(a, b message) bool {
	return bytes.Equal(a.Append(nil), b.Append(nil))
}

func TestGolden(t *testing.T) {
	for _, g := range goldens {
		want := testutil.Hex(t, g.hex)
		if got := g.m.Append([]byte{0xff}); !bytes.Equal(got[1:], want) || got[0] != 0xff {
			t.Errorf("%s: %+v\nencodes to %x\nwant       %x", g.section, g.m, got[1:], want)
		}
		m := blank(g.m)
		if err := decode(want, m); err != nil {
			t.Errorf("%s: %v", g.section, err)
		} else if !reflect.DeepEqual(m, g.m) {
			t.Errorf("%s: decodes to\n%+v, want\n%+v", g.section, m, g.m)
		}
		// A struct with old contents, which must not survive.
		for _, other := range goldens {
			if reflect.TypeOf(other.m) != reflect.TypeOf(g.m) {
				continue
			}
			m := blank(g.m)
			if err := decode(testutil.Hex(t, other.hex), m); err != nil {
				t.Fatal(err)
			}
			if err := decode(want, m); err != nil || !same(m, g.m) {
				t.Errorf("%s: decoded over %+v: %+v, %v", g.section, other.m, m, err)
			}
		}
	}
}

// Every prefix of a message is an error, and none of them panics.
func TestTruncated(t *testing.T) {
	for _, g := range goldens {
		b := testutil.Hex(t, g.hex)
		for n := range b {
			if err := decode(b[:n:n], blank(g.m)); err == nil {
				t.Errorf("%s: %d of %d bytes decode", g.section, n, len(b))
			}
		}
	}
}

func TestMalformed(t *testing.T) {
	for _, test := range []struct {
		name string
		m    message
		hex  string
	}{
		{"handle of 65 bytes", new(FileHandle), "00000041 " + strings.Repeat("00", 68)},
		{"post_op_attr with discriminant 2", new(PostOpAttr), "00000002 " + xAttr},
		{"createmode3 3", new(CreateArgs), xWhere + "00000003 " + xSetAttr},
		{"name of 2^32-1 bytes", new(DirOpArgs), xHandle + "ffffffff 00000000"},
		{"2^30 flavors", new(MntRes), "00000000 " + xHandle + "40000000 00000001"},
		{"link of 4097 bytes", new(ReadLinkRes), "00000000 00000000 00001001 " + strings.Repeat("00", 4100)},
	} {
		if err := decode(testutil.Hex(t, test.hex), test.m); err == nil {
			t.Errorf("%s: decodes to %+v", test.name, test.m)
		}
	}
}

// Undefined values are preserved, and print as numbers.
func TestUnknownValues(t *testing.T) {
	var r GetAttrRes
	if err := decode(testutil.Hex(t, "0000ffff"), &r); err != nil || r.Status.String() != "nfsstat3(65535)" {
		t.Errorf("%v, %v", r.Status, err)
	}
	if s := FileType(8).String(); s != "ftype3(8)" {
		t.Error(s)
	}
	if s := MountStatus(9).String(); s != "mountstat3(9)" {
		t.Error(s)
	}
	if s := ProcName(22); s != "procedure 22" {
		t.Error(s)
	}
}

// The names are those of RFC 1813 sections 2.6 and 5.1.5.
func TestNames(t *testing.T) {
	for s, want := range map[Status]string{
		0: "NFS3_OK", 1: "NFS3ERR_PERM", 2: "NFS3ERR_NOENT", 5: "NFS3ERR_IO", 6: "NFS3ERR_NXIO",
		13: "NFS3ERR_ACCES", 17: "NFS3ERR_EXIST", 18: "NFS3ERR_XDEV", 19: "NFS3ERR_NODEV",
		20: "NFS3ERR_NOTDIR", 21: "NFS3ERR_ISDIR", 22: "NFS3ERR_INVAL", 27: "NFS3ERR_FBIG",
		28: "NFS3ERR_NOSPC", 30: "NFS3ERR_ROFS", 31: "NFS3ERR_MLINK", 63: "NFS3ERR_NAMETOOLONG",
		66: "NFS3ERR_NOTEMPTY", 69: "NFS3ERR_DQUOT", 70: "NFS3ERR_STALE", 71: "NFS3ERR_REMOTE",
		10001: "NFS3ERR_BADHANDLE", 10002: "NFS3ERR_NOT_SYNC", 10003: "NFS3ERR_BAD_COOKIE",
		10004: "NFS3ERR_NOTSUPP", 10005: "NFS3ERR_TOOSMALL", 10006: "NFS3ERR_SERVERFAULT",
		10007: "NFS3ERR_BADTYPE", 10008: "NFS3ERR_JUKEBOX",
	} {
		if s.String() != want {
			t.Errorf("%d is %v, want %s", uint32(s), s, want)
		}
	}
	for s, want := range map[MountStatus]string{
		0: "MNT3_OK", 1: "MNT3ERR_PERM", 2: "MNT3ERR_NOENT", 5: "MNT3ERR_IO", 13: "MNT3ERR_ACCES",
		20: "MNT3ERR_NOTDIR", 22: "MNT3ERR_INVAL", 63: "MNT3ERR_NAMETOOLONG",
		10004: "MNT3ERR_NOTSUPP", 10006: "MNT3ERR_SERVERFAULT",
	} {
		if s.String() != want {
			t.Errorf("%d is %v, want %s", uint32(s), s, want)
		}
	}
	for typ, want := range map[FileType]string{
		1: "NF3REG", 2: "NF3DIR", 3: "NF3BLK", 4: "NF3CHR", 5: "NF3LNK", 6: "NF3SOCK", 7: "NF3FIFO",
	} {
		if typ.String() != want {
			t.Errorf("%d is %v, want %s", uint32(typ), typ, want)
		}
	}
	for proc, want := range map[uint32]string{ProcNull: "NULL", ProcRead: "READ", ProcReadDirPlus: "READDIRPLUS", ProcCommit: "COMMIT"} {
		if got := ProcName(proc); got != want {
			t.Errorf("%d is %s, want %s", proc, got, want)
		}
	}
	if ProcCommit != 21 || ProcReadDirPlus != 17 || ProcLink != 15 || ProcWrite != 7 {
		t.Error("procedure numbers are not those of RFC 1813 section 3")
	}
}

func TestTime(t *testing.T) {
	// 2001-09-09 01:46:40 UTC is 10^9 seconds after the epoch of nfstime3.
	at := time.Date(2001, 9, 9, 1, 46, 40, 5, time.UTC)
	if got := TimeOf(at); got != (Time{1e9, 5}) || !got.Time().Equal(at) {
		t.Errorf("%+v, %v", got, got.Time())
	}
}

func TestHandle(t *testing.T) {
	long := bytes.Repeat([]byte{7}, MaxHandle)
	fh, ok := NewFileHandle(long)
	if !ok || !bytes.Equal(fh.Bytes(), long) || fh.IsZero() {
		t.Errorf("64 bytes: %v, %v", fh, ok)
	}
	if _, ok := NewFileHandle(append(long, 7)); ok {
		t.Error("65 bytes are a handle")
	}
	short, _ := NewFileHandle(long[:3])
	if short == fh || short.String() != "070707" {
		t.Errorf("3 bytes: %v", short)
	}
}

// Decoding of frequent messages must not allocate; names are copies, and lists grow.
func TestAlloc(t *testing.T) {
	var attr GetAttrRes
	var read ReadRes
	var write WriteRes
	var args WriteArgs
	var lookup LookupRes
	buf := make([]byte, 0, 1024)
	var vectors [5][]byte
	for i, m := range []message{
		&GetAttrRes{Attr: tAttr}, &ReadRes{Attr: tPostAttr, Count: 4, Data: []byte("data")},
		&WriteRes{Wcc: tWcc}, &WriteArgs{File: tHandle, Data: []byte("data")},
		&LookupRes{Object: tHandle, Attr: tPostAttr},
	} {
		vectors[i] = m.Append(nil)
	}
	n := testing.AllocsPerRun(100, func() {
		d := xdr.NewDecoder(vectors[0])
		attr.Decode(&d)
		d = xdr.NewDecoder(vectors[1])
		read.Decode(&d)
		d = xdr.NewDecoder(vectors[2])
		write.Decode(&d)
		d = xdr.NewDecoder(vectors[3])
		args.Decode(&d)
		d = xdr.NewDecoder(vectors[4])
		lookup.Decode(&d)
		b := attr.Append(buf)
		b = read.Append(b)
		b = write.Append(b)
		b = args.Append(b)
		lookup.Append(b)
	})
	if n != 0 {
		t.Errorf("%v allocations", n)
	}
}

// fuzzMessage decodes b as each type that goods have. A message that decodes must encode to something
// that decodes to the same.
func fuzzMessage(t *testing.T, b []byte, goods []message) {
	for _, g := range goods {
		m := blank(g)
		if decode(b, m) != nil {
			continue
		}
		again := blank(g)
		if err := decode(m.Append(nil), again); err != nil {
			t.Fatalf("%T: %+v does not decode: %v", m, m, err)
		}
		if !same(m, again) {
			t.Fatalf("%T: %+v comes back as %+v", m, m, again)
		}
	}
}

func fuzzTypes(f *testing.F, prefixes ...string) {
	var goods []message
	seen := make(map[reflect.Type]bool)
	for _, g := range goldens {
		if !slicesContainsPrefix(g.section, prefixes) {
			continue
		}
		f.Add(testutil.Hex(f, g.hex))
		if typ := reflect.TypeOf(g.m); !seen[typ] {
			seen[typ] = true
			goods = append(goods, g.m)
		}
	}
	f.Fuzz(func(t *testing.T, b []byte) { fuzzMessage(t, b, goods) })
}

func slicesContainsPrefix(s string, prefixes []string) bool {
	for _, p := range prefixes {
		if strings.HasPrefix(s, p) {
			return true
		}
	}
	return false
}

func FuzzTypes(f *testing.F) { fuzzTypes(f, "2.") }
func FuzzProcs(f *testing.F) { fuzzTypes(f, "3.") }
func FuzzMount(f *testing.F) { fuzzTypes(f, "5.") }
