package nfs

import (
	"bytes"
	"context"
	"errors"
	"io"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rpcrdma/rpcrdma/internal/testing/testbed"
	"github.com/rpcrdma/rpcrdma/rpc"
)

// memFile is an in-memory file for transfers.
type memFile struct {
	mu   sync.Mutex
	data []byte
	fail error
}

func (f *memFile) WriteAt(p []byte, off int64) (int, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.fail != nil {
		return 0, f.fail
	}
	return copy(f.data[off:], p), nil
}

func testDownload(t *testing.T, b *testbed.Bed) {
	s, c := pair(t, b)
	ctx := t.Context()
	want := pattern(1<<20 + 12_345)
	s.add("file", TypeReg, string(want))
	f, err := c.Open(ctx, "/export/file")
	if err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		name    string
		maxRead int
		opts    *TransferOptions
	}{
		{"defaults", 0, nil},
		{"one at a time", 0, &TransferOptions{Parallel: 1}},
		{"short reads", 5000, &TransferOptions{Parallel: 3}},
		{"more workers than pieces", 0, &TransferOptions{Parallel: 100}},
	} {
		s.set(func() { s.maxRead = test.maxRead })
		dst := &memFile{data: make([]byte, len(want))}
		var seen []int64
		opts := &TransferOptions{Progress: func(n int64) { seen = append(seen, n) }}
		if test.opts != nil {
			opts.Parallel = test.opts.Parallel
		}
		n, err := f.Download(ctx, dst, opts)
		if n != int64(len(want)) || err != nil || !bytes.Equal(dst.data, want) {
			t.Errorf("%s: %d bytes, %v", test.name, n, err)
		}
		if !slices.IsSorted(seen) || seen[len(seen)-1] != int64(len(want)) || len(seen) != 17 {
			t.Errorf("%s: progress %v", test.name, seen)
		}
	}
	s.set(func() { s.maxRead = 0 })

	// A part of the file, and more than the file has.
	dst := &memFile{data: make([]byte, 100_000)}
	if n, err := c.Download(ctx, f.Handle, 100_000, dst, nil); n != 100_000 || err != nil || !bytes.Equal(dst.data, want[:100_000]) {
		t.Errorf("a part: %d, %v", n, err)
	}
	dst = &memFile{data: make([]byte, len(want)+1)}
	if _, err := c.Download(ctx, f.Handle, int64(len(want))+1, dst, nil); !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("more than there is: %v", err)
	}
	if n, err := c.Download(ctx, f.Handle, 0, dst, nil); n != 0 || err != nil {
		t.Errorf("nothing: %d, %v", n, err)
	}
	if _, err := c.Download(ctx, f.Handle, -1, dst, nil); err == nil {
		t.Error("a negative size")
	}

	full := errors.New("disk full")
	if _, err := f.Download(ctx, &memFile{fail: full}, nil); !errors.Is(err, full) {
		t.Errorf("a writer that fails: %v", err)
	}
	s.answer(ProcRead, &ReadRes{})
	if _, err := f.Download(ctx, dst, nil); !errors.Is(err, io.ErrNoProgress) {
		t.Errorf("a server that sends nothing: %v", err)
	}
	s.answer(ProcRead, &ReadRes{Status: StatusIO})
	var e *Error
	if _, err := f.Download(ctx, dst, nil); !errors.As(err, &e) || e.Path != "/export/file" {
		t.Errorf("NFS3ERR_IO: %v", err)
	}
	ended, cancel := context.WithCancel(ctx)
	cancel()
	if n, err := f.Download(ended, dst, nil); n != 0 || !errors.Is(err, context.Canceled) {
		t.Errorf("an ended context: %d, %v", n, err)
	}
}

// Several calls are in flight at once.
func testParallel(t *testing.T, b *testbed.Bed) {
	s, c := pair(t, b)
	want := pattern(1 << 20)
	s.add("file", TypeReg, string(want))
	f, err := c.Open(t.Context(), "/export/file")
	if err != nil {
		t.Fatal(err)
	}
	var mu sync.Mutex
	inflight, most := 0, 0
	met := make(chan struct{})
	meet := sync.OnceFunc(func() { close(met) })
	r := readerAt(func(p []byte, off int64) (int, error) {
		mu.Lock()
		inflight++
		if most = max(most, inflight); inflight == 4 {
			meet()
		}
		mu.Unlock()
		<-met // four of them meet here, or the test does not end
		mu.Lock()
		inflight--
		mu.Unlock()
		return copy(p, want[off:]), nil
	})
	if _, err := f.Upload(t.Context(), r, int64(len(want)), &TransferOptions{Parallel: 4}); err != nil || most != 4 {
		t.Errorf("%d at once, %v", most, err)
	}
}

// A transfer that one connection cannot keep up with is spread over several, and comes out whole.
func testConnections(t *testing.T, b *testbed.Bed) {
	s := newMemServer(t, b)
	want := pattern(8<<20 + 5)
	s.add("file", TypeReg, string(want))
	c := dial(t, b, s.start(true), &Options{Connections: 3})
	f, err := c.Open(t.Context(), "/export/file")
	if err != nil {
		t.Fatal(err)
	}
	for end := time.Now().Add(30 * time.Second); c.Transport().Stats().OpenConns < 3 && time.Now().Before(end); {
		got := &memFile{data: make([]byte, len(want))}
		if _, err := f.Download(t.Context(), got, &TransferOptions{Parallel: 64}); err != nil || !bytes.Equal(got.data, want) {
			t.Fatalf("%d bytes, %v", len(got.data), err)
		}
	}
	if n := c.Transport().Stats().OpenConns; n != 3 {
		t.Errorf("%d connections", n)
	}
	if _, err := Dial(t.Context(), b.Provider, "127.0.0.1:1", &Options{Connections: -1}); err == nil || strings.Contains(err.Error(), "refused") {
		t.Errorf("-1 connections: %v", err)
	}
}

// The calls that a group may make twice are those that a server need not remember.
func TestIdempotent(t *testing.T) {
	for _, tt := range []struct {
		prog, vers, proc uint32
		want             bool
	}{
		{Program, Version, ProcRead, true}, {Program, Version, ProcWrite, true}, {Program, Version, ProcCommit, true},
		{Program, Version, ProcRemove, false}, {Program, Version, ProcCreate, false}, {Program, Version, 22, false},
		{Program, 4, ProcRead, false}, {MountProgram, MountVersion, MountProcMnt, true}, {99, Version, ProcRead, false},
	} {
		if got := Idempotent(tt.prog, tt.vers, tt.proc); got != tt.want {
			t.Errorf("%d %d %d: %v", tt.prog, tt.vers, tt.proc, got)
		}
	}
}

type readerAt func(p []byte, off int64) (int, error)

func (f readerAt) ReadAt(p []byte, off int64) (int, error) { return f(p, off) }

func testReadAt(t *testing.T, b *testbed.Bed) {
	s, c := pair(t, b)
	ctx := t.Context()
	want := pattern(300_000)
	f := s.add("file", TypeReg, string(want)).handle()
	for _, maxRead := range []int{0, 1000} {
		s.set(func() { s.maxRead = maxRead })
		for _, test := range []struct {
			off  int64
			size int
			n    int
			err  error
		}{
			{0, 300_000, 300_000, nil},
			{100, 200_000, 200_000, nil},
			{5, 10, 10, nil},
			{200_000, 200_000, 100_000, io.EOF},
			{299_999, 2, 1, io.EOF},
			{0, 1 << 20, 300_000, io.EOF},
			{300_000, 10, 0, io.EOF},
			{0, 0, 0, nil},
		} {
			buf := make([]byte, test.size)
			n, err := c.ReadAt(ctx, f, buf, test.off)
			if n != test.n || err != test.err || !bytes.Equal(buf[:n], want[test.off:test.off+int64(n)]) {
				t.Errorf("ReadAt of %d at %d: %d, %v", test.size, test.off, n, err)
			}
		}
	}
	if _, err := c.ReadAt(ctx, f, make([]byte, 1), -1); err == nil {
		t.Error("a negative offset")
	}
	s.set(func() {
		s.maxRead = 0
		s.override[ProcRead] = func(args []byte, res *rpc.Response) bool {
			var a ReadArgs
			if decode(args, &a) != nil || a.Offset < 128<<10 {
				return false
			}
			res.Results = (&ReadRes{Status: StatusIO}).Append(res.Results)
			return true
		}
	})
	n, err := c.ReadAt(ctx, f, make([]byte, 300_000), 0)
	if !isStatus(err, StatusIO) || n > 128<<10 {
		t.Errorf("an error behind 128 KiB: %d, %v", n, err)
	}
}

func testUpload(t *testing.T, b *testbed.Bed) {
	s, c := pair(t, b)
	ctx := t.Context()
	want := pattern(1<<20 + 12_345)
	for _, test := range []struct {
		name     string
		maxWrite int
	}{
		{"whole writes", 0},
		{"short writes", 20_000},
	} {
		s.set(func() { s.maxWrite = test.maxWrite })
		f, err := c.CreateFile(ctx, "/export/"+test.name, 0o600)
		if err != nil {
			t.Fatal(err)
		}
		var seen []int64
		n, err := f.Upload(ctx, bytes.NewReader(want), int64(len(want)), &TransferOptions{Progress: func(n int64) { seen = append(seen, n) }})
		if n != int64(len(want)) || err != nil || !bytes.Equal(s.root.kids[test.name].data, want) {
			t.Errorf("%s: %d, %v", test.name, n, err)
		}
		if !slices.IsSorted(seen) || seen[len(seen)-1] != int64(len(want)) {
			t.Errorf("%s: progress %v", test.name, seen)
		}
		if len(s.lost) > 0 {
			t.Errorf("%s: not committed", test.name)
		}
	}
	s.set(func() { s.maxWrite = 0 })

	// A small file takes one call.
	f, err := c.CreateFile(ctx, "/export/small", 0o600)
	if err != nil {
		t.Fatal(err)
	}
	writes, commits := s.count(ProcWrite), s.count(ProcCommit)
	if n, err := f.Upload(ctx, strings.NewReader("tiny"), 4, nil); n != 4 || err != nil {
		t.Errorf("a small file: %d, %v", n, err)
	}
	if s.count(ProcWrite) != writes+1 || s.count(ProcCommit) != commits {
		t.Error("a small file takes more than one WRITE")
	}
	if n, err := f.WriteAt(ctx, []byte("xyz"), 2); n != 3 || err != nil || string(s.root.kids["small"].data) != "tixyz" {
		t.Errorf("WriteAt: %d, %v", n, err)
	}
	if n, err := f.WriteAt(ctx, want, 5); n != len(want) || err != nil || !bytes.Equal(s.root.kids["small"].data[5:], want) {
		t.Errorf("WriteAt of %d bytes: %d, %v", len(want), n, err)
	}
	buf := make([]byte, 5)
	if n, err := f.ReadAt(ctx, buf, 0); n != 5 || err != nil || string(buf) != "tixyz" {
		t.Errorf("ReadAt: %q, %v", buf, err)
	}
	if n, err := f.Upload(ctx, strings.NewReader(""), 0, nil); n != 0 || err != nil {
		t.Errorf("nothing: %d, %v", n, err)
	}
	if _, err := f.Upload(ctx, strings.NewReader("short"), 6, nil); !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("a reader that ends: %v", err)
	}
	bad := errors.New("bad sector")
	if _, err := f.Upload(ctx, readerAt(func([]byte, int64) (int, error) { return 0, bad }), 1<<20, nil); !errors.Is(err, bad) {
		t.Errorf("a reader that fails: %v", err)
	}
	if _, err := f.WriteAt(ctx, nil, -1); err == nil {
		t.Error("a negative offset")
	}
	s.answer(ProcWrite, &WriteRes{Committed: FileSync})
	if _, err := f.WriteAt(ctx, want, 0); !errors.Is(err, io.ErrShortWrite) {
		t.Errorf("a server that takes nothing: %v", err)
	}
	s.answer(ProcWrite, &WriteRes{Status: StatusNoSpc})
	if _, err := f.WriteAt(ctx, want, 0); !isStatus(err, StatusNoSpc) {
		t.Errorf("NFS3ERR_NOSPC: %v", err)
	}
}

// A server that restarts between WRITE and COMMIT has a new verifier, and has lost uncommitted
// data: only that is written again. RFC 1813 section 3.3.7. The file has 16 pieces of two
// WRITEs each, in sequence.
func testVerifierChange(t *testing.T, b *testbed.Bed) {
	want := pattern(1 << 20)
	for _, test := range []struct {
		name            string
		at              uint32 // the server restarts when this procedure is called
		times           []int  // for the n-th time
		writes, commits int
	}{
		{"never", ProcCommit, nil, 32, 1},
		{"before the COMMIT", ProcCommit, []int{1}, 64, 2},
		{"between WRITEs", ProcWrite, []int{5, 11}, 32 + 10, 2},
		{"again before the second COMMIT", ProcCommit, []int{1, 2}, 96, 2}, // the last ones with FILE_SYNC
		{"between the parts of one piece", ProcWrite, []int{2, 3, 4}, 32 + 4, 2},
	} {
		s, c := pair(t, b)
		f, err := c.CreateFile(t.Context(), "/export/file", 0o600)
		if err != nil {
			t.Fatal(err)
		}
		n := 0
		s.set(func() {
			s.maxWrite = 50_000
			s.override[test.at] = func([]byte, *rpc.Response) bool {
				if n++; slices.Contains(test.times, n) {
					s.reboot()
				}
				return false
			}
		})
		got, err := f.Upload(t.Context(), bytes.NewReader(want), int64(len(want)), &TransferOptions{Parallel: 1})
		if got != int64(len(want)) || err != nil || !bytes.Equal(s.root.kids["file"].data, want) {
			t.Errorf("%s: %d, %v", test.name, got, err)
		}
		if writes, commits := s.count(ProcWrite), s.count(ProcCommit); writes != test.writes || commits != test.commits {
			t.Errorf("%s: %d WRITEs and %d COMMITs, want %d and %d", test.name, writes, commits, test.writes, test.commits)
		}
	}

	// A verifier that comes back, as with two servers that replace each other: a piece with
	// different verifiers is written again, even if the COMMIT has the verifier of its first
	// part.
	s, c := pair(t, b)
	f, err := c.CreateFile(t.Context(), "/export/file", 0o600)
	if err != nil {
		t.Fatal(err)
	}
	first, n := s.verf, 0
	s.set(func() {
		s.maxWrite = 50_000
		s.override[ProcWrite] = func([]byte, *rpc.Response) bool {
			if s.verf, n = first, n+1; n == 2 {
				s.verf = Verf{9}
			}
			return false
		}
		s.override[ProcCommit] = func([]byte, *rpc.Response) bool {
			s.verf = first
			return false
		}
	})
	if _, err := f.Upload(t.Context(), bytes.NewReader(want), int64(len(want)), &TransferOptions{Parallel: 1}); err != nil || s.count(ProcWrite) != 32+2 {
		t.Errorf("a verifier that comes back: %d WRITEs, want 34, %v", s.count(ProcWrite), err)
	}

	// A server that keeps restarting.
	s, c = pair(t, b)
	if f, err = c.CreateFile(t.Context(), "/export/file", 0o600); err != nil {
		t.Fatal(err)
	}
	s.set(func() {
		s.override[ProcCommit] = func([]byte, *rpc.Response) bool {
			if s.calls[ProcCommit] < 10 { // or else it would never end
				s.reboot()
			}
			return false
		}
	})
	if _, err := f.Upload(t.Context(), bytes.NewReader(want), int64(len(want)), nil); err != nil || s.count(ProcCommit) != 2 || !bytes.Equal(s.root.kids["file"].data, want) {
		t.Errorf("a server that always restarts: %d COMMITs, %v", s.count(ProcCommit), err)
	}
}

// A file of more pieces than a window is written completely, and data of the second window
// that a restart loses is written again.
func testUploadWindows(t *testing.T, b *testbed.Bed) {
	const size = 64
	want := pattern(size*(transferWindow+100) + 7)
	for _, restart := range []bool{false, true} {
		s := newMemServer(t, b)
		c := dial(t, b, s.start(true), &Options{MaxTransfer: size})
		f, err := c.CreateFile(t.Context(), "/export/file", 0o600)
		if err != nil {
			t.Fatal(err)
		}
		wantWrites, wantCommits := transferWindow+101, 2
		if restart {
			wantWrites, wantCommits = wantWrites+101, 3
			s.set(func() {
				s.override[ProcCommit] = func([]byte, *rpc.Response) bool {
					if s.calls[ProcCommit] == 2 {
						s.reboot()
					}
					return false
				}
			})
		}
		n, err := f.Upload(t.Context(), bytes.NewReader(want), int64(len(want)), nil)
		if n != int64(len(want)) || err != nil || !bytes.Equal(s.root.kids["file"].data, want) {
			t.Errorf("%d of %d bytes, %v", n, len(want), err)
		}
		if writes, commits := s.count(ProcWrite), s.count(ProcCommit); writes != wantWrites || commits != wantCommits {
			t.Errorf("%d WRITEs and %d COMMITs, want %d and %d", writes, commits, wantWrites, wantCommits)
		}
	}
}

// After a failed COMMIT all data is written with FILE_SYNC.
func testCommitError(t *testing.T, b *testbed.Bed) {
	s, c := pair(t, b)
	want := pattern(1 << 20)
	f, err := c.CreateFile(t.Context(), "/export/file", 0o600)
	if err != nil {
		t.Fatal(err)
	}
	s.answer(ProcCommit, &CommitRes{Status: StatusIO})
	if _, err := f.Upload(t.Context(), bytes.NewReader(want), int64(len(want)), nil); err != nil || s.unstables != 16 || s.count(ProcWrite) != 32 {
		t.Errorf("%d of %d WRITEs unstable, %v", s.unstables, s.count(ProcWrite), err)
	}
	s.set(func() {
		s.override[ProcWrite] = func(args []byte, res *rpc.Response) bool {
			var a WriteArgs
			if decode(args, &a) != nil || a.Stable != FileSync {
				return false
			}
			res.Results = (&WriteRes{Status: StatusNoSpc}).Append(res.Results)
			return true
		}
	})
	if _, err := f.Upload(t.Context(), bytes.NewReader(want), int64(len(want)), nil); !isStatus(err, StatusNoSpc) {
		t.Error(err)
	}
}

// The end of the context ends a transfer, and the memory belongs to the caller again.
func testTransferCancel(t *testing.T, b *testbed.Bed) {
	s, c := pair(t, b)
	f := s.add("file", TypeReg, string(pattern(1<<20)))
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	dst := &memFile{data: make([]byte, 1<<20)}
	_, err := c.Download(ctx, f.handle(), 1<<20, dst, &TransferOptions{Progress: func(n int64) {
		if n >= 256<<10 {
			cancel()
		}
	}, Parallel: 2})
	if !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}

func TestTransferSize(t *testing.T) {
	for _, test := range []struct {
		limit, pref uint32
		most, want  int
	}{
		{1 << 20, 1 << 20, 1 << 20, 1 << 20},
		{1 << 20, 64 << 10, 1 << 20, 64 << 10},
		{64 << 10, 1 << 20, 1 << 20, 64 << 10},
		{1 << 30, 1 << 30, 1 << 20, 1 << 20},
		{1<<32 - 1, 1<<32 - 1, 1 << 20, 1 << 20},
		{1 << 20, 0, 1 << 20, 1 << 20},
		{0, 8192, 1 << 20, 8192},
		{0, 0, 1 << 20, 4096},
		{100, 100, 1 << 20, 4096},
		{1 << 20, 1 << 20, 1<<20 - 1024, 1<<20 - 4096},
		{1 << 20, 1 << 20, 1000, 1000},
	} {
		if got := transferSize(test.limit, test.pref, test.most); got != test.want {
			t.Errorf("%+v: %d", test, got)
		}
	}
	for total, want := range map[int64]int64{1: 1, 10: 1, 11: 2, 20: 2, 1 << 40: 1<<40/10 + 1} {
		if got := pieces(total, 10); got != want {
			t.Errorf("%d: %d pieces, want %d", total, got, want)
		}
	}
}

// parallel visits every piece once, and reports the first error.
func TestParallelPieces(t *testing.T) {
	for _, n := range []int64{1, 2, 7, 100} {
		var mu sync.Mutex
		seen := make(map[int64]int)
		err := parallel(t.Context(), n, 4, func(i int64) error {
			mu.Lock()
			defer mu.Unlock()
			seen[i]++
			return nil
		})
		if err != nil || len(seen) != int(n) {
			t.Errorf("%d pieces: %v, %v", n, seen, err)
		}
	}
	// When piece 3 fails, those before it are in progress and are completed.
	failure := errors.New("failure")
	failed := make(chan struct{})
	var ended atomic.Int32
	err := parallel(t.Context(), 100, 4, func(i int64) error {
		if i == 3 {
			close(failed)
			return failure
		}
		<-failed
		ended.Add(1)
		return nil
	})
	if err != failure || ended.Load() < 3 {
		t.Errorf("%v, %d pieces ended", err, ended.Load())
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := parallel(ctx, 2, 2, func(int64) error { return nil }); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}
