package main

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/rpcrdma/rpcrdma/internal/testutil"
	"github.com/rpcrdma/rpcrdma/iwarp"
	"github.com/rpcrdma/rpcrdma/nfs"
	"github.com/rpcrdma/rpcrdma/proto/oncrpc"
	"github.com/rpcrdma/rpcrdma/proto/xdr"
	"github.com/rpcrdma/rpcrdma/transport"
)

func testGuard(t *testing.T, dir string) *guard {
	t.Helper()
	e, err := newExport(dir, false)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { e.Close() })
	return newGuard(e, false, (&options{}).logger(io.Discard))
}

// pipeListener accepts the connections that are sent to it.
type pipeListener chan net.Conn

func (l pipeListener) Accept() (net.Conn, error) {
	if c, ok := <-l; ok {
		return c, nil
	}
	return nil, net.ErrClosed
}
func (l pipeListener) Close() error   { close(l); return nil }
func (l pipeListener) Addr() net.Addr { return laneAddr{} }

// stop lets a client have the reply to its call. One that does not take it is cut
// off in the end.
func TestGuardStops(t *testing.T) {
	for _, tt := range []struct {
		name    string
		timeout time.Duration
		reads   bool
	}{
		{"the client takes its reply", testTimeout, true},
		{"the client does not", 10 * time.Millisecond, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			dir := t.TempDir()
			synctest.Test(t, func(t *testing.T) {
				g := testGuard(t, dir)
				l := make(pipeListener)
				var serving sync.WaitGroup
				serving.Go(func() {
					if err := g.serveTCP(l); !errors.Is(err, net.ErrClosed) {
						t.Error(err)
					}
				})
				near, far := net.Pipe()
				defer near.Close()
				l <- far
				c := &rpcConn{Conn: near, t: t}
				c.send(c.message(nfs.Program, nfs.Version, nfs.ProcNull, nil), 1000)
				var one [1]byte
				if _, err := io.ReadFull(near, one[:]); err != nil { // the reply is on its way
					t.Fatal(err)
				}
				l.Close()
				stopped := make(chan time.Duration, 1)
				start := time.Now()
				go func() {
					g.stop(tt.timeout)
					stopped <- time.Since(start)
				}()
				synctest.Wait()
				if len(stopped) > 0 {
					t.Fatal("stop returns while a reply is on its way")
				}
				want := tt.timeout
				if tt.reads {
					want = 0
					rest, err := io.ReadAll(near)
					if want := oncrpc.RecordMarkSize + oncrpc.MinReplySize; err != nil || 1+len(rest) != want {
						t.Errorf("the reply has %d bytes, %v, want %d", 1+len(rest), err, want)
					}
				}
				if took := <-stopped; took != want {
					t.Errorf("stop took %v, want %v", took, want)
				}
				serving.Wait()
			})
		})
	}
}

// A file that a WRITE says is on disk, and a COMMIT, has been synced before the answer;
// nothing else is, and what cannot be synced is an error.
func TestStableStorage(t *testing.T) {
	for _, async := range []bool{false, true} {
		dir := t.TempDir()
		testutil.WriteFiles(t, dir, map[string]string{"file": ""})
		g := testGuard(t, dir)
		defer g.stop(0)
		g.async = async
		var synced []string
		var failure error
		g.export.fsync = func(f *os.File) error {
			data, err := os.ReadFile(filepath.Join(dir, "file"))
			if synced = append(synced, string(data)); err != nil || failure != nil {
				return errors.Join(failure, err)
			}
			return f.Sync()
		}
		file, _ := nfs.NewFileHandle(g.export.handles.handle([]string{"file"}))
		write := func(at uint64, text string, stable nfs.Stable) (nfs.Status, nfs.Stable) {
			var res nfs.WriteRes
			args := nfs.WriteArgs{File: file, Offset: at, Count: uint32(len(text)), Stable: stable, Data: []byte(text)}
			g.call(t, nfs.ProcWrite, args.Append(nil), &res)
			return res.Status, res.Committed
		}
		commit := func() nfs.Status {
			var res nfs.CommitRes
			g.call(t, nfs.ProcCommit, (&nfs.CommitArgs{File: file}).Append(nil), &res)
			return res.Status
		}
		steps := []struct {
			name   string
			do     func() (nfs.Status, nfs.Stable)
			stable nfs.Stable
			synced string // what the file holds then, "": it need not be
		}{
			{"an unstable WRITE", func() (nfs.Status, nfs.Stable) { return write(0, "a", nfs.Unstable) }, nfs.Unstable, ""},
			{"a WRITE with DATA_SYNC", func() (nfs.Status, nfs.Stable) { return write(1, "b", nfs.DataSync) }, nfs.DataSync, "ab"},
			{"a WRITE with FILE_SYNC", func() (nfs.Status, nfs.Stable) { return write(2, "c", nfs.FileSync) }, nfs.FileSync, "abc"},
			{"another unstable WRITE", func() (nfs.Status, nfs.Stable) { return write(3, "d", nfs.Unstable) }, nfs.Unstable, ""},
			{"a COMMIT", func() (nfs.Status, nfs.Stable) { return commit(), nfs.Unstable }, nfs.Unstable, "abcd"},
		}
		for _, step := range steps {
			synced = nil
			status, stable := step.do()
			if status != nfs.StatusOK || stable < step.stable || step.stable == nfs.Unstable && stable != nfs.Unstable {
				t.Errorf("async %v, %s: %v, stability %d", async, step.name, status, stable)
			}
			var want []string
			if step.synced != "" && !async {
				want = []string{step.synced}
			}
			if !slices.Equal(synced, want) {
				t.Errorf("async %v, %s: synced when the file held %q, want %q", async, step.name, synced, want)
			}
		}
		if async {
			continue
		}
		failure = syscall.EIO
		for _, step := range steps {
			if status, _ := step.do(); (status == nfs.StatusIO) != (step.synced != "") {
				t.Errorf("%s when the disk fails: %v", step.name, status)
			}
		}
	}
}

// call has the guard execute a call of NFS.
func (g *guard) call(t *testing.T, proc uint32, args []byte, res interface{ Decode(*xdr.Decoder) }) {
	t.Helper()
	h := oncrpc.CallHeader{XID: 1, RPCVers: oncrpc.Version, Prog: nfs.Program, Vers: nfs.Version, Proc: proc}
	record := oncrpc.AppendCall(oncrpc.AppendRecordMark(nil, h.Size()+len(args), true), &h)
	reply := g.answer(&h, append(record, args...), len(record))
	var r oncrpc.ReplyHeader
	n, err := oncrpc.ConsumeReply(reply[oncrpc.RecordMarkSize:], &r)
	if err == nil {
		err = r.Err()
	}
	if err != nil {
		t.Fatalf("%s: %v", nfs.ProcName(proc), err)
	}
	d := xdr.NewDecoder(reply[oncrpc.RecordMarkSize+n:])
	res.Decode(&d)
	if err := d.End(); err != nil {
		t.Fatalf("%s: %v", nfs.ProcName(proc), err)
	}
}

// Both directories of RENAME and LINK are known, or the call fails with the status that
// says what is wrong with the one that is not.
func TestSecondHandle(t *testing.T) {
	dir := t.TempDir()
	testutil.WriteFiles(t, dir, map[string]string{"file": "x"})
	g := testGuard(t, dir)
	defer g.stop(0)
	top, _ := nfs.NewFileHandle(g.export.handles.handle(nil))
	file, _ := nfs.NewFileHandle(g.export.handles.handle([]string{"file"}))
	gone, _ := nfs.NewFileHandle(binary.BigEndian.AppendUint64(g.export.handles.instance[:8:8], 1<<40))
	short, _ := nfs.NewFileHandle([]byte("abc"))
	for _, tt := range []struct {
		to   nfs.FileHandle
		want nfs.Status
	}{{gone, nfs.StatusStale}, {short, nfs.StatusBadHandle}} {
		var renamed nfs.RenameRes
		rename := nfs.RenameArgs{From: nfs.DirOpArgs{Dir: top, Name: "file"}, To: nfs.DirOpArgs{Dir: tt.to, Name: "new"}}
		if g.call(t, nfs.ProcRename, rename.Append(nil), &renamed); renamed.Status != tt.want {
			t.Errorf("RENAME to %v: %v, want %v", tt.to, renamed.Status, tt.want)
		}
		var linked nfs.LinkRes
		link := nfs.LinkArgs{File: file, Link: nfs.DirOpArgs{Dir: tt.to, Name: "new"}}
		if g.call(t, nfs.ProcLink, link.Append(nil), &linked); linked.Status != tt.want {
			t.Errorf("LINK in %v: %v, want %v", tt.to, linked.Status, tt.want)
		}
	}
}

// A server may have MOUNT on another port, as Linux's has.
func TestMountPort(t *testing.T) {
	dir := t.TempDir()
	testutil.WriteFiles(t, dir, map[string]string{"file": ""})
	g := testGuard(t, dir)
	server, err := transport.NewServer(nil)
	if err != nil {
		t.Fatal(err)
	}
	bridge := server.Bridge(nfs.Binding{}, nfs.Program)
	l, err := server.Listen(t.Context(), iwarp.New(iwarp.Config{}), "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	tcp, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var serving sync.WaitGroup
	serving.Go(func() { server.Serve(l) })
	serving.Go(func() { g.serveRDMA(bridge) })
	serving.Go(func() { g.serveTCP(tcp) })
	defer func() {
		server.Close()
		bridge.Close()
		tcp.Close()
		g.stop(testTimeout)
		serving.Wait()
	}()
	_, port, _ := net.SplitHostPort(tcp.Addr().String())
	url := "nfs://" + l.Addr().String() + "/"
	if out := mustRun(t, "ls", "--mount-port", port, url); out != "file\n" {
		t.Errorf("ls prints %q", out)
	}
	mustFail(t, 1, "no MOUNT on the RDMA connection (the server does not have MOUNT (PROG_UNAVAIL)), nor over TCP: connection refused",
		"ls", "--mount-port", strconv.Itoa(1), url)
}

// A hostile is an NFS server whose directories hold what it is told.
type hostile struct {
	entries map[string][]nfs.DirEntry // by the handle of the directory
	data    string
	links   map[string]string     // by handle: what a link says, instead of data
	denied  map[string]nfs.Status // by handle: what READDIRPLUS, READ and READLINK fail with
	huge    int                   // entries of the directory with the handle "huge", in pages
}

// start serves h until the test ends, and returns the address.
func (h *hostile) start(t *testing.T) string {
	t.Helper()
	server, err := transport.NewServer(nil)
	testutil.Must(t, err)
	for _, prog := range []uint32{nfs.Program, nfs.MountProgram} {
		testutil.Must(t, server.Register(transport.Program{Number: prog, Low: 3, High: 3, Handler: h}))
	}
	l, err := server.Listen(t.Context(), iwarp.New(iwarp.Config{}), "127.0.0.1:0")
	testutil.Must(t, err)
	var serving sync.WaitGroup
	serving.Go(func() { server.Serve(l) })
	t.Cleanup(func() {
		server.Close()
		serving.Wait()
	})
	return l.Addr().String()
}

func hostileEntry(name, handle string, kind nfs.FileType) nfs.DirEntry {
	fh, _ := nfs.NewFileHandle([]byte(handle))
	return nfs.DirEntry{
		FileID: 1, Name: name, Cookie: 1,
		Attr:   nfs.PostOpAttr{Present: true, Attr: hostileAttr(kind)},
		Handle: nfs.PostOpHandle{Present: true, Handle: fh},
	}
}

func hostileAttr(kind nfs.FileType) nfs.Attr {
	return nfs.Attr{Type: kind, Mode: 0o777, Nlink: 1, Size: 8, FileID: 1}
}

func (h *hostile) ServeRPC(_ context.Context, req *transport.Request, res *transport.Response) {
	d := xdr.NewDecoder(req.Args)
	if req.Prog == nfs.MountProgram {
		if req.Proc == nfs.MountProcExport {
			r := nfs.ExportRes{Exports: []nfs.Export{{Dir: "/"}}}
			res.Results = r.Append(res.Results)
			return
		}
		fh, _ := nfs.NewFileHandle([]byte("/"))
		r := nfs.MntRes{Handle: fh}
		res.Results = r.Append(res.Results)
		return
	}
	var fh nfs.FileHandle
	fh.Decode(&d)
	if status := h.denied[string(fh.Bytes())]; status != nfs.StatusOK {
		res.Results = append(res.Results, failure(req.Proc, status)...)
		return
	}
	switch req.Proc {
	case nfs.ProcLookup:
		name := d.String(nfs.MaxName)
		for _, e := range h.entries[string(fh.Bytes())] {
			if e.Name == name {
				r := nfs.LookupRes{Object: e.Handle.Handle, Attr: e.Attr}
				res.Results = r.Append(res.Results)
				return
			}
		}
		res.Results = append(res.Results, failure(req.Proc, nfs.StatusNoEnt)...)
	case nfs.ProcGetAttr:
		r := nfs.GetAttrRes{Attr: hostileAttr(nfs.TypeDir)}
		res.Results = r.Append(res.Results)
	case nfs.ProcReadDirPlus:
		r := nfs.ReadDirPlusRes{Entries: h.entries[string(fh.Bytes())], EOF: true}
		if string(fh.Bytes()) == "huge" {
			first := int(d.Uint64())
			last := min(first+100, h.huge)
			r.EOF = last == h.huge
			for i := first; i < last; i++ {
				e := hostileEntry(fmt.Sprintf("%08d", h.huge-i), "f", nfs.TypeReg)
				e.Cookie = uint64(i + 1)
				r.Entries = append(r.Entries, e)
			}
		}
		res.Results = r.Append(res.Results)
	case nfs.ProcReadLink:
		target, ok := h.links[string(fh.Bytes())]
		if !ok {
			target = h.data
		}
		r := nfs.ReadLinkRes{Target: []byte(target)}
		res.Results = r.Append(res.Results)
	case nfs.ProcFSInfo:
		r := nfs.FSInfoRes{RTMax: 4096, RTPref: 4096}
		res.Results = r.Append(res.Results)
	case nfs.ProcCreate:
		made, _ := nfs.NewFileHandle([]byte("made"))
		r := nfs.CreateRes{Object: nfs.PostOpHandle{Present: true, Handle: made}}
		res.Results = r.Append(res.Results)
	case nfs.ProcWrite:
		d.Uint64()
		r := nfs.WriteRes{Count: d.Uint32()}
		r.Committed = nfs.Stable(d.Uint32())
		res.Results = r.Append(res.Results)
	case nfs.ProcCommit:
		r := nfs.CommitRes{}
		res.Results = r.Append(res.Results)
	case nfs.ProcRemove:
		r := nfs.WccRes{}
		res.Results = r.Append(res.Results)
	case nfs.ProcRename:
		r := nfs.RenameRes{}
		res.Results = r.Append(res.Results)
	case nfs.ProcRead:
		r := nfs.ReadRes{Count: uint32(len(h.data)), EOF: true, Data: []byte(h.data)}
		res.Results = r.Append(res.Results)
	default:
		res.Fail(oncrpc.ProcUnavail)
	}
}

// Whatever names a server has, a get writes nothing outside of LOCAL.
func TestHostileServer(t *testing.T) {
	outside := t.TempDir()
	for _, tt := range []struct {
		name    string
		entries []nfs.DirEntry
		below   []nfs.DirEntry // in those with the handle "d"
	}{
		{"a parent", []nfs.DirEntry{hostileEntry("../../evil", "f", nfs.TypeReg)}, nil},
		{"an absolute path", []nfs.DirEntry{hostileEntry(filepath.Join(outside, "evil"), "f", nfs.TypeReg)}, nil},
		{"a path", []nfs.DirEntry{hostileEntry("sub/evil", "f", nfs.TypeReg)}, nil},
		{"an end of string", []nfs.DirEntry{hostileEntry("evil\x00", "f", nfs.TypeReg)}, nil},
		{"no name", []nfs.DirEntry{hostileEntry("", "f", nfs.TypeReg)}, nil},
		{"dots", []nfs.DirEntry{hostileEntry(".", "f", nfs.TypeReg), hostileEntry("..", "d", nfs.TypeDir)},
			[]nfs.DirEntry{hostileEntry("evil", "f", nfs.TypeReg)}},
		{"a link and a directory of one name",
			[]nfs.DirEntry{hostileEntry("sub", "l", nfs.TypeLnk), hostileEntry("sub", "d", nfs.TypeDir)},
			[]nfs.DirEntry{hostileEntry("evil", "f", nfs.TypeReg)}},
		{"a directory and a link of one name",
			[]nfs.DirEntry{hostileEntry("sub", "d", nfs.TypeDir), hostileEntry("sub", "l", nfs.TypeLnk)},
			[]nfs.DirEntry{hostileEntry("evil", "f", nfs.TypeReg)}},
		{"a directory in itself", []nfs.DirEntry{hostileEntry("sub", "d", nfs.TypeDir)},
			[]nfs.DirEntry{hostileEntry("sub", "d", nfs.TypeDir)}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			h := &hostile{entries: map[string][]nfs.DirEntry{"/": tt.entries, "d": tt.below}, data: outside[:8]}
			addr := h.start(t)
			parent := t.TempDir()
			local := filepath.Join(parent, "a", "b", "local")
			if err := os.MkdirAll(filepath.Dir(local), 0o755); err != nil {
				t.Fatal(err)
			}
			r := runCommand(t, "get", "-r", "nfs://"+addr+"/", local)
			if r.status != 1 && tt.name != "dots" {
				t.Errorf("status %d\n%s", r.status, r.stderr)
			}
			err := filepath.WalkDir(parent, func(path string, d fs.DirEntry, err error) error {
				if err == nil && strings.Contains(d.Name(), "evil") && !strings.HasPrefix(path, local+string(filepath.Separator)) {
					t.Errorf("it made %s", path)
				}
				return err
			})
			if err != nil {
				t.Fatal(err)
			}
			if left, err := os.ReadDir(outside); err != nil || len(left) > 0 {
				t.Errorf("it made %v in another directory, %v", left, err)
			}
		})
	}
}

// Links of a copy lead to what is in it, on whichever way, and whatever order they come in.
func TestLinksStayBelow(t *testing.T) {
	link := func(name string) nfs.DirEntry { return hostileEntry(name, "link "+name, nfs.TypeLnk) }
	h := &hostile{
		entries: map[string][]nfs.DirEntry{
			"/": {
				link("a"), hostileEntry("d", "d", nfs.TypeDir), link("first"), link("past"), link("up"), link("x"), link("abs"),
				hostileEntry("file", "f", nfs.TypeReg),
			},
			"d": {link("back"), link("deep"), link("out"), hostileEntry("real", "real", nfs.TypeDir), link("round"), link("sub"), link("too far")},
		},
		data: "contents",
		links: map[string]string{
			"link a":       "d/back/../../etc",  // through a link that leads up
			"link first":   "up/../../etc",      // through a link that comes later
			"link past":    "missing/../../etc", // through what may become a link
			"link up":      "d/..",              // to the copy itself, which d leads back to
			"link x":       "file",
			"link abs":     "/etc",
			"link back":    "..",
			"link deep":    "../d/real/../../file", // through real directories
			"link out":     "back/../etc",
			"link round":   "back/d/back/file", // through links, down only
			"link sub":     "real/../sub",
			"link too far": "../../etc",
		},
	}
	local := filepath.Join(t.TempDir(), "a", "b", "local")
	r := runCommand(t, "get", "-r", "nfs://"+h.start(t)+"/", local)
	if r.status != 1 || !strings.HasSuffix(r.stderr, ": 6 things were skipped, everything else is copied\n") {
		t.Errorf("status %d\n%s", r.status, r.stderr)
	}
	var links []string
	for name, what := range describe(t, local) {
		if !strings.HasPrefix(what, "L") {
			continue
		}
		links = append(links, name)
		at, err := filepath.EvalSymlinks(filepath.Join(local, name))
		if err == nil && at != local && !strings.HasPrefix(at, local+"/") {
			t.Errorf("%s leads to %s", name, at)
		}
	}
	slices.Sort(links)
	if want := []string{"d/back", "d/deep", "d/round", "d/sub", "up", "x"}; !slices.Equal(links, want) {
		t.Errorf("links: %q, want %q\n%s", links, want, r.stderr)
	}
	for _, name := range []string{"d/deep", "d/round", "x"} {
		if b, err := os.ReadFile(filepath.Join(local, name)); err != nil || string(b) != "contents" {
			t.Errorf("%s: %q, %v", name, b, err)
		}
	}
}

// What the server does not give is named; everything else is copied, or listed.
func TestPartOfTree(t *testing.T) {
	h := &hostile{
		entries: map[string][]nfs.DirEntry{
			"/": {
				hostileEntry("bad/name", "f", nfs.TypeReg), hostileEntry("a", "f", nfs.TypeReg),
				hostileEntry("closed", "closed", nfs.TypeDir), hostileEntry("open", "open", nfs.TypeDir),
				hostileEntry("secret", "secret", nfs.TypeReg), hostileEntry("z", "f", nfs.TypeReg),
				hostileEntry("broken link", "broken", nfs.TypeLnk),
			},
			"open": {hostileEntry("b", "f", nfs.TypeReg), hostileEntry("..\x00", "f", nfs.TypeReg), hostileEntry("c", "f", nfs.TypeReg)},
		},
		data:   "contents",
		denied: map[string]nfs.Status{"closed": nfs.StatusAcces, "secret": nfs.StatusIO, "broken": nfs.StatusStale},
	}
	url := "nfs://" + h.start(t) + "/"
	wantErr := func(r result, last string, skipped ...string) {
		t.Helper()
		lines := strings.Split(strings.TrimSuffix(r.stderr, "\n"), "\n")
		for _, what := range skipped {
			if !strings.Contains(r.stderr, url+": "+what) {
				t.Errorf("not named: %s", what)
			}
		}
		if r.status != 1 || len(lines) != len(skipped)+1 || !strings.HasSuffix(lines[len(lines)-1], last) {
			t.Errorf("status %d, want %d lines, last with %q:\n%s", r.status, len(skipped)+1, last, r.stderr)
		}
	}
	local := filepath.Join(t.TempDir(), "local")
	wantErr(runCommand(t, "get", "-r", url, local), ": 5 things were skipped, everything else is copied",
		"bad/name skipped: the name cannot be used here", `"open/..\x00" skipped: the name`,
		"closed skipped: permission denied (NFS3ERR_ACCES)", "secret skipped: the server could not read",
		"broken link skipped: the file is gone (NFS3ERR_STALE)")
	got := describe(t, local)
	for _, name := range []string{"a", "open/b", "open/c", "z"} {
		if !strings.HasSuffix(got[name], " contents") {
			t.Errorf("%s is not copied", name)
		}
	}
	if len(got) != 6 { // and two directories
		t.Errorf("copied: %q", got)
	}

	r := runCommand(t, "ls", url)
	if want := "a\nbroken link\nclosed/\nopen/\nsecret\nz\n"; r.stdout != want {
		t.Errorf("ls prints %q, want %q", r.stdout, want)
	}
	wantErr(r, ": 1 thing was skipped", "bad/name skipped: ")
	r = runCommand(t, "ls", "-r", "--json", url)
	if n := strings.Count(r.stderr, `{"skipped":`); r.status != 1 || n != 4 {
		t.Errorf("ls -r --json: status %d, %d skipped, want 4:\n%s", r.status, n, r.stderr)
	}
	l := decodeJSON[struct {
		URL     string      `json:"url"`
		Entries []entryJSON `json:"entries"`
	}](t, r.stdout)
	if len(l.Entries) != 7 {
		t.Errorf("ls -r --json: %+v", l)
	}
	// The directory that was asked for is not one of many.
	mustFail(t, 1, "permission denied (NFS3ERR_ACCES)", "ls", url+"closed")
	mustFail(t, 1, "permission denied (NFS3ERR_ACCES)", "get", "-r", url+"closed", local)
}

// A directory of any size is listed, and copied, as it comes.
func TestHugeDirectory(t *testing.T) {
	const n = 70_000
	h := &hostile{entries: map[string][]nfs.DirEntry{"/": {hostileEntry("huge", "huge", nfs.TypeDir)}}, huge: n}
	out := mustRun(t, "ls", "nfs://"+h.start(t)+"/huge")
	names := strings.Fields(out)
	if len(names) != n {
		t.Fatalf("%d names, want %d", len(names), n)
	}
	// So many are sorted; the server sends them the other way round.
	if !slices.IsSorted(names[:1<<16]) || names[n-1] != "00000001" {
		t.Errorf("from %s to %s, last %s", names[0], names[1<<16-1], names[n-1])
	}
}

// A listing that is continued is the same as before, for a while; later it is read
// again, and goes on if no name has changed.
func TestListings(t *testing.T) {
	dir := t.TempDir()
	testutil.WriteFiles(t, dir, map[string]string{"a": "", "b": ""})
	v := testGuard(t, dir)
	defer v.stop(0)
	read := func() []fs.FileInfo {
		infos, err := v.export.readDir(".")
		if err != nil {
			t.Fatal(err)
		}
		return infos
	}
	var c listings
	first := c.keep("/x", read())
	if got := c.find("/x", first); len(got) != 2 {
		t.Errorf("%d entries, want 2", len(got))
	}
	if c.find("/y", first) != nil || c.find("/x", first+1) != nil {
		t.Error("another directory's listing, or of another time")
	}
	if again := c.keep("/x", read()); again != first || len(c.list) != 1 {
		t.Errorf("the same names have another verifier, or are kept %d times", len(c.list))
	}
	if c.keep("/y", read()) == first {
		t.Error("two directories have the same verifier")
	}
	c.list[0].taken = time.Now().Add(-listingMaxAge - time.Second)
	if c.find("/x", first) != nil {
		t.Error("a listing stays for ever")
	}
	for i := range 3 * maxListings {
		c.keep(strconv.Itoa(i), read())
	}
	if len(c.list) != maxListings || c.size != 2*maxListings {
		t.Errorf("%d listings with %d entries, want %d", len(c.list), c.size, maxListings)
	}
}
