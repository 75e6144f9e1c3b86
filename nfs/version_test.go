package nfs

import (
	"bytes"
	"errors"
	"io"
	"strings"
	"testing"

	"github.com/rpcrdma/rpcrdma/internal/testing/testbed"
	"github.com/rpcrdma/rpcrdma/rpc"
)

func TestSameVersion(t *testing.T) {
	base := Attr{Type: TypeReg, Mode: 0o644, Nlink: 1, Size: 10, FSID: 1, FileID: 2, ATime: Time{1, 1}, MTime: Time{2, 2}, CTime: Time{3, 3}}
	for _, tt := range []struct {
		name string
		what string // empty: the same version
		edit func(*Attr)
	}{
		{"nothing", "", func(*Attr) {}},
		{"it was read", "", func(a *Attr) { a.ATime = Time{9, 9} }},
		{"the server was started again", "", func(a *Attr) { a.FSID = 7 }},
		{"another file", "file id 2, then 5", func(a *Attr) { a.FileID = 5 }},
		{"it grew", "size 10, then 11", func(a *Attr) { a.Size = 11 }},
		{"it was written", "mtime; ctime", func(a *Attr) { a.MTime.Nsec++; a.CTime.Nsec++ }},
		{"written, and the time set back", "ctime", func(a *Attr) { a.CTime.Sec++ }},
		{"everything", "file id 2, then 0; size 10, then 0; mtime; ctime", func(a *Attr) { *a = Attr{} }},
	} {
		after := base
		tt.edit(&after)
		if same := base.SameVersion(&after); same != (tt.what == "") || same != after.SameVersion(&base) {
			t.Errorf("%s: the same version: %v", tt.name, same)
		}
		e := ChangedError{Before: base, After: after}
		if e.What() != tt.what || !strings.Contains(e.Error(), tt.what) {
			t.Errorf("%s: %q, want %q", tt.name, e.What(), tt.what)
		}
	}
}

// A transfer with an offset leaves what is before it alone, at both ends.
func testTransferOffset(t *testing.T, b *testbed.Bed) {
	s, c := pair(t, b)
	ctx := t.Context()
	want := pattern(300_001)
	f := s.add("file", TypeReg, string(want)).handle()
	for _, off := range []int64{1, 65536, 299_999, 300_000, 300_001, 400_000} {
		dst := &memFile{data: make([]byte, len(want))}
		n, err := c.Download(ctx, f, int64(len(want)), dst, &TransferOptions{Offset: off})
		from := min(off, int64(len(want)))
		if n != int64(len(want))-from || err != nil || !bytes.Equal(dst.data[:from], make([]byte, from)) || !bytes.Equal(dst.data[from:], want[from:]) {
			t.Errorf("Download from %d: %d bytes, %v", off, n, err)
		}
		up := s.add("up", TypeReg, string(make([]byte, from)))
		n, err = c.Upload(ctx, up.handle(), bytes.NewReader(want), int64(len(want)), &TransferOptions{Offset: off})
		if n != int64(len(want))-from || err != nil || !bytes.Equal(up.data[:from], make([]byte, from)) || !bytes.Equal(up.data[from:], want[from:]) {
			t.Errorf("Upload from %d: %d bytes, %v", off, n, err)
		}
	}
	opts := &TransferOptions{Offset: -1}
	if _, err := c.Download(ctx, f, 1, &memFile{}, opts); err == nil {
		t.Error("Download from a negative offset")
	}
	if _, err := c.Upload(ctx, f, strings.NewReader("x"), 1, opts); err == nil {
		t.Error("Upload from a negative offset")
	}
	// Missing data is named by its place in the file.
	if _, err := c.Upload(ctx, f, strings.NewReader("0123456789"), 20, &TransferOptions{Offset: 5}); !errors.Is(err, io.ErrUnexpectedEOF) || !strings.Contains(err.Error(), " at 10:") {
		t.Errorf("a reader that ends: %v", err)
	}
}

// A Download of a file that changes meanwhile says so, from the attributes of the last READ or,
// without these or with several READs, from a GETATTR at the end.
func testChanged(t *testing.T, b *testbed.Bed) {
	for _, tt := range []struct {
		name     string
		size     int
		at       int // the file changes before this READ; 0: never
		bare     bool
		getattrs int
	}{
		{"one READ", 1000, 0, false, 0},
		{"one READ, no attributes with it", 1000, 0, true, 1},
		{"many READs", 300_000, 0, false, 1},
		{"nothing to read", 0, 0, false, 1},
		{"a change before the only READ", 1000, 1, false, 0},
		{"a change before the only READ, no attributes with it", 1000, 1, true, 1},
		{"a change before the first READ", 300_000, 1, false, 1},
		{"a change between READs", 300_000, 3, false, 1},
	} {
		s, c := pair(t, b)
		f := s.add("file", TypeReg, string(pattern(tt.size)))
		before, err := c.GetAttr(t.Context(), f.handle())
		if err != nil {
			t.Fatal(err)
		}
		reads := 0
		s.set(func() {
			s.bare = tt.bare
			s.override[ProcRead] = func([]byte, *rpc.Response) bool {
				if reads++; reads == tt.at {
					f.attr.CTime.Sec++
				}
				return false
			}
		})
		asked := s.count(ProcGetAttr)
		n, err := c.Download(t.Context(), f.handle(), int64(tt.size), &memFile{data: make([]byte, tt.size)}, &TransferOptions{Before: &before})
		var changed *ChangedError
		if n != int64(tt.size) || errors.As(err, &changed) != (tt.at > 0) || tt.at == 0 && err != nil {
			t.Errorf("%s: %d bytes, %v", tt.name, n, err)
		}
		if changed != nil && (changed.Before != before || changed.After.CTime.Sec != before.CTime.Sec+1) {
			t.Errorf("%s: %+v", tt.name, changed)
		}
		if asked = s.count(ProcGetAttr) - asked; asked != tt.getattrs {
			t.Errorf("%s: %d GETATTRs, want %d", tt.name, asked, tt.getattrs)
		}
	}
	// The file is gone at the end.
	s, c := pair(t, b)
	f := s.add("file", TypeReg, string(pattern(300_000)))
	s.answer(ProcGetAttr, &GetAttrRes{Status: StatusStale})
	if _, err := c.Download(t.Context(), f.handle(), 300_000, &memFile{data: make([]byte, 300_000)}, &TransferOptions{Before: &Attr{}}); !isStatus(err, StatusStale) {
		t.Errorf("a file that is gone: %v", err)
	}
}
